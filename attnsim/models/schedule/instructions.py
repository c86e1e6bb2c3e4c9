"""Warp instructions of a softmax step by pipe, counted in public machine code.

Borrowed instruction counts: a kernel that borrows fitted numbers also borrows the instruction counts they belong to.

Numbers fitted on a kernel with counted instructions mean the time beside those instructions. They do not hold for a
softmax that is charged per score. If a kernel borrows another kernel's numbers and its own instructions are not
counted, it therefore borrows the counts too.

Kernels lifted from their instructions, and their origin.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from importlib.resources import files
from weakref import WeakKeyDictionary

from attnsim.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import PIPES
from attnsim.models.schedule.operation import AMOUNTS, TileOp
from attnsim.models.schedule.schedule import Kernel, Schedule, edited
from attnsim.tables import read_csv

LANES = 32
"""Threads of a warp."""
MMA_FLOPS = 2 * 16 * 8 * 16
"""FLOPs of one ``mma.sync.m16n8k16`` of a warp (PTX ISA, "Warp-level matrix instructions")."""
LDMATRIX_BYTES = 4 * 8 * 8 * 2
"""Bytes that one ``ldmatrix.x4`` of a warp reads (PTX ISA, "ldmatrix")."""
POLYNOMIAL_FP32, POLYNOMIAL_INTEGERS = 5, 3
"""Instructions of a polynomial exponential (FlashAttention-4's ``flash_attn/cute/utils.py``, `ex2_emulation_2`)."""
DS_INSTRUCTIONS = by_hand(4, "FP32-lane instructions per score of dS = P (dP - D) and its conversion")


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Warp instructions of one warp in one step of its loop, beside the products and their matrix loads.

    A loop that hides scores in some steps is counted by one that hides none; of kernels whose steps all do, such as
    NSA's, by one that does.

    Parameters
    ----------
    scores : int
        Scores that the warp has in a step.
    rescaled : int
        Elements of O that it multiplies by their row's factor in each step.
    issued : int
        All of its instructions, of whatever pipe.
    fp32, integer, load_store : int
        Those of each pipe. Multiplications of integers run with those of FP32; comparisons, maxima, selections, moves
        and conversions with the integers (NVIDIA Nsight Compute documentation, "Pipelines").
    masked : int
        Further warp instructions, all integer, of a step that hides scores; 0 where nobody counted them.
    """

    scores: int
    rescaled: int
    issued: int
    fp32: int
    integer: int
    load_store: int
    masked: int = 0

    def hiding(self, scores: int, each: int) -> int:
        """Instructions of all lanes that hide so many scores; `each` a score where nobody counted them."""
        return round(scores / self.scores * LANES * self.masked) if self.masked else each * scores

    def softmax(self, scores: int, exps: int, rescaled: int, masked: int, polynomials: int = 0) -> TileOp:
        """Softmax of `scores` scores of a warpgroup, with all other instructions of the warps beside the products.

        Parameters
        ----------
        exps : int
            Exponentials, factors of rows included.
        rescaled : int
            Elements of O that are multiplied by their row's factor.
        masked : int
            Instructions of masks, of all lanes.
        polynomials : int
            Exponentials that are polynomials on the FP32 lanes, packed two by two, and on the integer lanes.
        """
        warps = scores / self.scores
        fewer = warps * self.rescaled - rescaled
        packed, integers = POLYNOMIAL_FP32 * polynomials, POLYNOMIAL_INTEGERS * polynomials
        return TileOp(
            "vector",
            "P",
            scores=scores,
            exps=exps,
            fp32=round(warps * LANES * self.fp32 - fewer) + packed,
            int32=round(warps * LANES * self.integer) + masked + integers,
            load_stores=round(warps * LANES * self.load_store),
            issues=round(warps * self.issued - (fewer - masked - packed / 2 - integers + polynomials) / LANES),
        )

    def work(self, name: str, elements: int, exps: int = 0) -> TileOp:
        """Vector work on `elements` that are not scores, at the instruction counts of :meth:`softmax`."""
        return self.softmax(elements, exps, round(elements / self.scores * self.rescaled), 0)._replace(
            tensor=name, scores=0
        )

    def gradients(self, scores: int) -> tuple[TileOp, TileOp]:
        """P and dS of `scores` scores of a warpgroup: P has the exponentials, each half of the rest."""
        whole = self.softmax(scores, 0, round(scores / self.scores * self.rescaled), 0)
        half = whole._replace(
            fp32=whole.fp32 // 2, int32=whole.int32 // 2, load_stores=whole.load_stores // 2, issues=whole.issues // 2
        )
        return half._replace(exps=scores), half._replace(tensor="dS", scores=0)


def product(op: TileOp) -> TileOp:
    """Product by ``mma.sync`` with its instructions: one per `MMA_FLOPS`, and one matrix load per `LDMATRIX_BYTES`."""
    loads = op.smem_bytes // LDMATRIX_BYTES
    return op._replace(issues=op.flops // MMA_FLOPS + loads, load_stores=LANES * loads)


def together(name: str, *ops: TileOp) -> TileOp:
    """Sum several kinds of vector work into one operation."""
    summed = (sum(getattr(op, amount) for op in ops) for amount in AMOUNTS)
    return TileOp("vector", name, **dict(zip(AMOUNTS, summed, strict=True)))


def counts_in(row: Mapping[str, str]) -> StepCounts:
    """Read the counts from a row of a table."""
    return StepCounts(**{item.name: int(row[item.name]) for item in fields(StepCounts) if item.name in row})


def nearest(known: Iterable[int], capability: int) -> int:
    """Newest compute capability in `known` that is not above `capability`; otherwise the oldest."""
    every = sorted(known)
    return max([one for one in every if one <= capability], default=every[0])


@functools.cache
def _table() -> dict[tuple[str, int], dict[int, StepCounts]]:
    """Counts by kernel and compute capability, and then by head dimension."""
    found: dict[tuple[str, int], dict[int, StepCounts]] = {}
    for row in read_csv(files("attnsim.models.schedule") / "instructions.csv"):
        found.setdefault((row["kernel"], int(row["arch"])), {})[int(row["head_dim"])] = counts_in(row)
    return found


def step_counts(kernel: str, capability: int, head_dim: int) -> StepCounts:
    """Counts of a kernel at the newest compute capability not above, and at the nearest head dimension.

    Parameters
    ----------
    capability : int
        90 for compute capability 9.0.
    head_dim : int
        Of O, as compiled.
    """
    widths = _table()[kernel, nearest((arch for name, arch in _table() if name == kernel), capability)]
    return widths[min(widths, key=lambda width: (abs(width - head_dim), width))]


PRODUCTS = {False: 2, True: 5}
"""Products of the size of the scores in a pass, by whether it is the backward pass."""
OF_PATH = {"mma_sync": "flash-attn.2", "wgmma": "flash-attn.3", "tcgen05": "flash-attn.4"}
"""Kernel whose counts an uncounted kernel borrows, by instruction path: FlashAttention on the same path."""
_borrowed: WeakKeyDictionary[Kernel, dict[tuple[str, int], Kernel]] = WeakKeyDictionary()


def with_borrowed_counts(kernel: Kernel, counts: str, gpu: Gpu) -> Kernel:
    """Return the kernel with counted instructions: its own, or those that go with its fitted numbers.

    - A softmax gets the instructions per score of the kernel named by `counts`, at the nearest head dimension. Its
      exponentials, and the rescaling, masks and polynomials that its operations name, stay its own.
    - dS gets those of that kernel's backward pass.
    - A product of mma.sync gets its MMA instructions and its matrix loads.
    - Any other vector work gets the instructions that it names.
    - Passes over memory, which multiply nothing, are unchanged.

    Parameters
    ----------
    counts : str
        Kernel of ``schedule/instructions.csv``; "" for the newest one of the kernel's instruction path.
    """
    counts = counts or OF_PATH.get(kernel.path, "")
    if not counts or kernel.counted or not kernel.total("flops"):
        return kernel
    capability = gpu.compute_capability_number
    known = _borrowed.setdefault(kernel, {})
    if (counts, capability) not in known:
        known[counts, capability] = _with_counts(kernel, counts, capability)
    return known[counts, capability]


def _with_counts(kernel: Kernel, counts: str, capability: int) -> Kernel:
    names = {op.tensor for segment in kernel.segments for op in segment.ops if op.kind == "vector"}
    backward, scores = "dS" in names, kernel.total("scores")
    head_dim = kernel.total("flops") // (2 * PRODUCTS[backward] * scores) if scores else 0
    base = counts.removesuffix(" split") + " backward" if backward else counts
    step = step_counts(base, capability, head_dim)

    def counted(op: TileOp) -> TileOp:
        if op.kind in ("mma", "mma_async"):
            return product(op) if kernel.path == "mma_sync" else op
        return _vector(op, step, backward) if op.kind == "vector" else op

    return edited(kernel, counted)


def _vector(op: TileOp, step: StepCounts, backward: bool) -> TileOp:
    if backward and op.tensor in ("P", "dS"):
        scores = op.scores or op.fp32 // DS_INSTRUCTIONS
        charged = step.gradients(scores)[op.tensor == "dS"]
    elif op.scores:
        charged = step.softmax(op.scores, op.exps, op.fp32, 0)
    else:
        charged = op._replace(issues=max(1, (op.exps + op.fp32 + op.int32) // LANES))
    on_pipes = {one.amount: getattr(op, one.amount) for one in PIPES}
    return charged._replace(exps=op.exps, scores=op.scores, **on_pipes)


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a lifted kernel.

    Parameters
    ----------
    entry : str
        Name of the kernel.
    source : str
        File, function or operation.
    ptx_sha256 : str
        SHA-256 of the PTX.
    arch : str
        Architecture of the PTX, such as "80".
    arguments : mapping of str to str
        Shapes and numbers.
    inputs : str
        Content of the arrays, on which data-dependent control flow depends.
    resources : str
        Source of the number of registers per thread.
    attnsim : str
        Version that wrote the file.
    """

    entry: str
    source: str
    ptx_sha256: str
    arch: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: Mapping[str, str]
    inputs: str
    resources: str
    attnsim: str


@dataclass(frozen=True, eq=False, slots=True)
class Lifted:
    """A lifted kernel with information that its schedule does not hold.

    Parameters
    ----------
    instructions : tuple of mapping of str to int
        Warp instructions of the PTX by pipe, for each segment.
    fp32_per_score : float
        FP32 instructions per score, which the schedule leaves to the fitted number.
    """

    kernel: Kernel
    origin: Origin
    instructions: tuple[Mapping[str, int], ...] = ()
    fp32_per_score: float = 0.0


@dataclass(frozen=True, eq=False, slots=True)
class LiftedCall:
    """The kernels of one call.

    Parameters
    ----------
    kernels : tuple of Lifted
        In launch order.
    like : str
        The implementation whose fitted numbers are borrowed; empty for the priors.
    memory_bytes : int
        Bytes of all arguments.
    """

    kernels: tuple[Lifted, ...]
    like: str
    memory_bytes: int

    @property
    def name(self) -> str:
        """Names of the distinct kernels, joined by " + "."""
        return " + ".join(dict.fromkeys(one.kernel.name for one in self.kernels))

    @property
    def schedule(self) -> Schedule:
        """The call as the simulator plays it."""
        kernels = tuple(one.kernel for one in self.kernels)
        return Schedule("lifted kernel", self.name, kernels, "as compiled", self.memory_bytes)
