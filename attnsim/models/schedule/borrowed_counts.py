"""Borrowed instruction counts: a kernel that borrows fitted numbers also borrows the instruction counts they belong to.

Numbers fitted on a kernel with counted instructions mean the time beside those instructions. They do not hold for a
softmax that is charged per score. If a kernel borrows another kernel's numbers and its own instructions are not
counted, it therefore borrows the counts too.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import PIPES
from attnsim.models.schedule.instructions import DS_INSTRUCTIONS, LANES, StepCounts, product, step_counts
from attnsim.models.schedule.operation import TileOp
from attnsim.models.schedule.schedule import Kernel, edited

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
