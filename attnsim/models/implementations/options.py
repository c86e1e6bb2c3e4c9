"""Options of a call beyond its shape: which implementations support them, since when, and the work that they add.

``options.csv`` has a line for each implementation that supports one, ``option_work.csv`` the added instructions.

Work around the kernels of a call: copies of strided tensors, accumulation of gradients, and the host's time.

The host's time is the time that the CPU takes to launch the kernels into a stream, one PyTorch call after another. It
is a lower bound for back-to-back calls on any GPU: the CPU works on the next call's operations while the GPU runs those
of the last. A CUDA graph has no such time, and neither have kernels timed alone.

The figures are those of PyTorch 2.1 (nightly of March 2023), read off the shape-independent floors in
fxmarty/efficient-attention-benchmark's tables (A100, unknown CPU): 38, 57 and 105 us a forward call of 1, 4 and 7
kernels in inference mode, 294 and 550 us a forward and backward of 13 and 20. The FlashAttention paper's table 18 (an
older PyTorch, gradients recorded) has floors of 80 and 210 us for 1 and 3 to 6 kernels: about twice as much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from attnsim.by_hand import by_hand
from attnsim.errors import InputError, some
from attnsim.models.implementations.frameworks.eager import one_pass, strided_copy
from attnsim.models.implementations.fused.tile import FlashTile, FusedTiles
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.implementations.names import version_parts
from attnsim.models.question.operations import Operations
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Tensor
from attnsim.models.schedule.operation import TileOp
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.tables import read_csv

LANES = 32
FRAGMENT_ROWS = 16
BY_FRAGMENT = {"e4m3 by integers": "e4m3 in fragments"}
"""Work for tiles of so few rows that warps convert their own fragments instead of staged data (`USE_KV_REPACK`)."""
SINKS = Tensor("sinks", "h", 4)
OPTION_TEXTS = {
    "kv_dtype": "takes K and V in the format of Q alone, kv_dtype is {}",
    "sinks": "has no attention sinks",
    "softcap": "has no soft-capping, softcap is {:g}",
    "page_size": "has no page table, page_size is {}",
}


@dataclass(frozen=True, slots=True)
class Support:
    """Support of an option by an implementation: a line of ``options.csv``.

    Parameters
    ----------
    since : str
        Version of its library that introduced it; "" if all known versions have it.
    passes : {"fwd", "all", "none"}
    work : str
        Line of ``option_work.csv``; "" if the kernel's instruction counts include it.
    source : str
        Source; with passes "none", the reason why it is not supported or not played.
    """

    option: str
    implementation: str
    since: str
    passes: str
    work: str
    source: str


@dataclass(frozen=True, slots=True)
class Work:
    """Instructions of a thread by pipe, and bytes of shared memory."""

    exps: float
    fp32: float
    int32: float
    load_stores: float
    smem_bytes: float

    def added(self, op: TileOp, times: float) -> TileOp:
        """The operation with `times` times this work added; a counted operation also gets the instructions."""
        more = {name: round(times * getattr(self, name)) for name in self.__slots__}
        issues = round(sum(number for name, number in more.items() if name != "smem_bytes") / LANES)
        counted = {"issues": op.issues + issues} if op.issues else {}
        return op._replace(**{name: getattr(op, name) + number for name, number in more.items()}, **counted)


_HERE = Path(__file__)
_LINES = [Support(**row) for row in read_csv(_HERE.with_suffix(".csv"))]
SUPPORTS = {(one.option, one.implementation): one for one in _LINES if one.passes != "none"}
REASONS = {(one.option, one.implementation): one.source for one in _LINES if one.passes == "none"}
WORK = {
    row["work"]: Work(*(float(row[name]) for name in Work.__slots__))
    for row in read_csv(_HERE.with_name("option_work.csv"))
}


def lacking(record: Implementation, w: Workload, usable: Callable[[str], bool] | None = None) -> str:
    """Reason why an implementation does not support a question's options; "" if it does.

    Implementations that do are named, of these the `usable` ones.
    """
    for option in (*w.options, *(["page_size"] if w.page_size else [])):
        found = SUPPORTS.get((option, record.name))
        text = f"{record.name} {OPTION_TEXTS[option].format(getattr(w, option))}"
        if found is None and option == "page_size":
            continue  # see the record's `pages`
        if found is None:
            names = [name for other, name in SUPPORTS if other == option and (usable is None or usable(name))]
            reason = REASONS.get((option, record.name))
            why = f"{record.name} is not played so, {option} is {getattr(w, option)}: {reason}" if reason else text
            instead = f"leave it out, or take {some(names, 'attnsim implementations')}"
            return f"{why}; {instead if names else 'leave it out: no other that runs the question there does it'}"
        if found.since and record.version and version_parts(record.version) < version_parts(found.since):
            return f"{text}: it came with version {found.since}, asked is {record.version}; take a newer one"
        if found.passes == "fwd" and "bwd" in w.directions:
            return f"{text} with pass {w.passes}; allowed: fwd, decode"
    return ""


def check_options(record: Implementation, w: Workload) -> None:
    """Refuse options that an implementation does not support."""
    if reason := lacking(record, w):
        raise InputError(reason)


def able(w: Workload) -> list[str]:
    """Implementations that support all options of a question."""
    first = [name for option, name in SUPPORTS if option == w.options[0]]
    return [name for name in first if all((option, name) in SUPPORTS for option in w.options)]


def came_later(name: str, version: str) -> bool:
    """Return whether an implementation gained an option after this version."""
    asked = version_parts(version)
    return any(one.implementation == name and asked < version_parts(one.since) for one in _LINES)


def with_options(record: Implementation, w: Workload, schedule: Schedule) -> Schedule:
    """The schedule with the work that the question's options add to its kernels."""
    asked = (*w.options, *(["page_size"] if w.page_size else []))
    works = {option: SUPPORTS[option, record.name].work for option in asked if (option, record.name) in SUPPORTS}
    if not any(works.values()):
        return schedule
    tile = schedule.tile.forward if isinstance(schedule.tile, FusedTiles) else None
    return replace(schedule, kernels=tuple(_with_work(kernel, w, works, tile) for kernel in schedule.kernels))


def _with_work(kernel: Kernel, w: Workload, works: Mapping[str, str], tile: FlashTile | None) -> Kernel:
    """A kernel with the work of each option before or in the operations that it belongs to.

    - Scores are bounded before their softmax; in a backward pass, before their probabilities.
    - The sink of each row's head is read and added to the row's sum before the row's O is stored.
    - K and V are converted before they are multiplied.
    - The addresses of a paged cache are computed before the first product.
    """
    sizes = {"O": w.head_dim_v * w.output_bytes, "O partial": w.head_dim_v * 4}
    sunk = works.get("sinks") == "row" and any(op.scores for part in kernel.segments for op in part.ops)
    cap, cached = works.get("softcap", ""), works.get("kv_dtype", "")
    cap = f"{cap} backward" if kernel.is_backward and f"{cap} backward" in WORK else cap
    if tile and cached in BY_FRAGMENT and tile.rows <= FRAGMENT_ROWS:
        cached = BY_FRAGMENT[cached]

    def ops(op: TileOp) -> Iterator[TileOp]:
        if sunk and op.kind == "store" and op.tensor in sizes:
            rows = op.bytes // sizes[op.tensor]
            yield SINKS.load(rows)
            yield WORK["row"].added(TileOp("vector", "sums"), rows / kernel.warpgroups)
        if tile and kernel.role == "attention" and op.kind in ("mma", "mma_async"):
            if (address := works.get("page_size")) and op.tensor == "S":
                yield WORK[address].added(TileOp("vector", "addresses"), tile.keys)
            if cached:
                elements = op.flops / (2 * tile.rows // tile.warpgroups)
                yield WORK[cached].added(TileOp("vector", f"for {op.tensor} converted"), elements)
        yield WORK[cap].added(op, op.scores) if cap and op.scores else op

    segments = (replace(part, ops=tuple(one for op in part.ops for one in ops(op))) for part in kernel.segments)
    axes = {"h": Axis(w.heads_q), "blocks": Axis(kernel.blocks)}
    uses = (*kernel.uses, SINKS.use(axes, "blocks")) if sunk else kernel.uses
    return replace(kernel, segments=tuple(segments), uses=uses)


EAGER = frozenset({"efficient-attention", "linformer", "performer-pytorch", "torch", "transformers"})
"""Libraries that Python calls one operation at a time, so that the host bounds their calls in any stream. The others
are also launched by servers and graphs; the host bounds them only if the question says that Python launches them."""

CALL_S = by_hand(22e-6, "host time of a PyTorch call beside its kernels' (floors of one table, A100, PyTorch 2.1)")
KERNEL_S = by_hand(11.5e-6, "host time of each kernel that PyTorch launches in inference mode")
RECORDED_S = by_hand(24e-6, "host time of each kernel in a training step: autograd records it, and runs its own")
HOST_WIDTH = by_hand(0.75, "half-width of log host time: two published machines differ by a factor of 2.1")


def host_s(w: Workload, kernels: int) -> float:
    """Seconds of the host to launch `kernels` kernels from Python."""
    return CALL_S + kernels * (RECORDED_S if "bwd" in w.directions else KERNEL_S)


FUSED = ("flash-1", "flash-2", "flash-3")
"""Mechanisms of kernels whose only inputs are Q, K and V of every head."""


def check_operations(record: Implementation, w: Workload) -> None:
    """Refuse operations that an implementation has no kernels for."""
    given = w.operations
    if given is None:
        return
    if record.unfused and record.operations:
        if not given.has_softmax:
            raise InputError(f"the operations of {record.name} are '{given}', without a softmax; add it")
    elif not (record.runs in FUSED and given.may_surround):
        exception = " but copies and accumulate around it" if record.runs in FUSED else ""
        raise InputError(
            f"{record.name} takes no operations{exception}, they are '{given}'; take --implementation torch.eager"
        )


def surrounded(record: Implementation, w: Workload, schedule: Schedule) -> Schedule:
    """The schedule with the operations around its kernels, and the host's launch time."""
    padded = "copies" if w.head_dim % record.pads else ""
    text = record.operations or padded
    own = Operations.parse(text) if text else Operations(())
    operations = own if w.operations is None else w.operations
    kernels = schedule.kernels
    if "copies" in operations and not record.unfused:
        kernels = _copied(w, kernels)
    if "accumulate" in operations and "bwd" in w.directions:
        kernels += tuple(_accumulate(w, f"d{x}", _elements(w)[x]) for x in "QKV")
    return replace(schedule, kernels=kernels, host_s=host_s(w, len(kernels)), is_eager=record.library in EAGER)


def _copied(w: Workload, kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """Kernels that read copies of strided tensors; the backward copies Q, K and V again, as the originals were kept."""
    sizes = _elements(w)
    split = next(
        (i for i, kernel in enumerate(kernels) if any(use.tensor == "dO" for use in kernel.uses)), len(kernels)
    )
    forward, backward = kernels[:split], kernels[split:]
    if forward:
        forward = (*(_copy_in(w, x, sizes[x]) for x in "QKV"), *forward)
    if backward:
        again = (_copy_in(w, x, sizes[x], " again") for x in "QKV")
        outputs = (_copy_out(w, f"d{x}", sizes[x]) for x in "QKV")
        backward = (*again, _copy_in(w, "dO", sizes["dO"]), *backward, *outputs)
    return forward + backward


def _elements(w: Workload) -> dict[str, int]:
    queries, keys = w.batch * w.heads_q * w.seq_q, w.batch * w.heads_kv * w.seq_kv
    return {"Q": queries * w.head_dim, "K": keys * w.head_dim, "V": keys * w.head_dim_v, "dO": queries * w.head_dim_v}


def _copy_in(w: Workload, tensor: str, elements: int, when: str = "") -> Kernel:
    size = elements * w.element_bytes
    return strided_copy(f"copy {tensor}{when}", (f"{tensor} strided", size), (tensor, size), elements)


def _copy_out(w: Workload, tensor: str, elements: int) -> Kernel:
    size = elements * w.element_bytes
    return strided_copy(f"copy {tensor}", (tensor, size), (f"{tensor} strided", size), elements)


def _accumulate(w: Workload, tensor: str, elements: int) -> Kernel:
    """Kernel that adds a gradient to an existing one: dQ and q.grad are read, q.grad is written."""
    size = elements * w.element_bytes
    grad = (f"{tensor} sum so far", size)
    return one_pass(f"accumulate {tensor}", [(tensor, size), grad], [grad], elements)
