"""What a call asks of a kernel beside its shape: who does it, since which version, and what that adds to the schedule.

``options.csv`` has a line for each implementation that does one, ``option_work.csv`` the instructions that it adds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from attnsim.errors import InputError, some
from attnsim.models.implementations.fused.tile import FusedTiles
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.implementations.names import version_parts
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.schedule import Kernel, Schedule, TensorUse, edited
from attnsim.tables import read_csv

LANES = 32
FRAGMENT_ROWS = 16
"""Rows of a tile whose warps convert fragments of their own, not tiles in shared memory (`USE_KV_REPACK`)."""
TOLD = {
    "kv_dtype": "reads K and V in the queries' format alone, kv_dtype is {}",
    "sinks": "has no attention sinks",
    "softcap": "has no soft-capping, softcap is {:g}",
    "page_size": "has no page table, page_size is {}",
}


@dataclass(frozen=True, slots=True)
class Support:
    """That an implementation does what an option asks: a line of ``options.csv``.

    Parameters
    ----------
    option, implementation : str
    since : str
        Version of its library that brought it; "" where all that are known here have it.
    passes : {"fwd", "all"}
    work : str
        Line of ``option_work.csv``; "" where what is counted of the kernel has it.
    source : str
    """

    option: str
    implementation: str
    since: str
    passes: str
    work: str
    source: str


@dataclass(frozen=True, slots=True)
class Work:
    """Instructions of a thread, by pipe, and bytes of shared memory."""

    exps: float
    fp32: float
    int32: float
    load_stores: float
    smem_bytes: float

    def added(self, op: TileOp, times: float) -> TileOp:
        """The operation with so many times the work; of a counted one its instructions too."""
        more = {name: round(times * getattr(self, name)) for name in self.__slots__}
        issues = round(sum(number for name, number in more.items() if name != "smem_bytes") / LANES)
        counted = {"issues": op.issues + issues} if op.issues else {}
        return op._replace(**{name: getattr(op, name) + number for name, number in more.items()}, **counted)


_HERE = Path(__file__)
_LINES = [Support(**row) for row in read_csv(_HERE.with_suffix(".csv"))]
SUPPORTS = {(one.option, one.implementation): one for one in _LINES}
WORK = {
    row["work"]: Work(*(float(row[name]) for name in Work.__slots__))
    for row in read_csv(_HERE.with_name("option_work.csv"))
}


def lacking(record: Implementation, w: Workload) -> str:
    """Why an implementation does not do what a question asks beside its shape; "" where it does."""
    for option in (*w.options, *(["page_size"] if w.page_size else [])):
        found = SUPPORTS.get((option, record.name))
        told = f"{record.name} {TOLD[option].format(getattr(w, option))}"
        if found is None and option == "page_size":
            continue  # the record's `pages` say it
        if found is None:
            able = [one.implementation for one in _LINES if one.option == option]
            return f"{told}; leave it out, or take {some(able, 'attnsim implementations')}"
        if found.since and record.version and version_parts(record.version) < version_parts(found.since):
            return f"{told}: it came with version {found.since}, asked is {record.version}; take a newer one"
        if found.passes == "fwd" and "bwd" in w.directions:
            return f"{told} with pass {w.passes}; allowed: fwd, decode"
    return ""


def check_options(record: Implementation, w: Workload) -> None:
    """Refuse what an implementation does not do.

    Raises
    ------
    InputError
    """
    if reason := lacking(record, w):
        raise InputError(reason)


def able(w: Workload) -> list[str]:
    """The implementations that do all that a question asks beside its shape."""
    return [
        one.implementation
        for one in _LINES
        if one.option == w.options[0] and all((other, one.implementation) in SUPPORTS for other in w.options)
    ]


def came_later(name: str, version: str) -> bool:
    """Whether an implementation does something since a later version alone."""
    asked = version_parts(version)
    return any(one.implementation == name and asked < version_parts(one.since) for one in _LINES)


def with_options(record: Implementation, w: Workload, schedule: Schedule) -> Schedule:
    """The schedule with what the question's options add to its kernels."""
    asked = (*w.options, *(["page_size"] if w.page_size else []))
    works = {option: SUPPORTS[option, record.name].work for option in asked if (option, record.name) in SUPPORTS}
    kernels = schedule.kernels
    if work := works.get("softcap"):
        kernels = tuple(edited(one, partial(_capped, _of(work, one.is_backward))) for one in kernels)
    if works.get("sinks") == "row":
        kernels = tuple(_with_sinks(one, w) for one in kernels)
    if isinstance(schedule.tile, FusedTiles) and schedule.tile.forward:
        tile = schedule.tile.forward
        work = works.get("kv_dtype", "")
        by_fragment = work == "e4m3 by integers" and tile.rows <= FRAGMENT_ROWS
        conversion = WORK["e4m3 in fragments" if by_fragment else work] if work else None
        address = WORK[works["page_size"]] if works.get("page_size") else None
        if conversion or address:
            before = partial(_before_products, rows=tile.rows // tile.warpgroups, keys=tile.keys)
            kernels = tuple(
                replace(one, segments=tuple(before(segment, conversion, address) for segment in one.segments))
                if one.role == "attention"
                else one
                for one in kernels
            )
    return replace(schedule, kernels=kernels)


def _of(work: str, backward: bool) -> Work:
    again = f"{work} backward"
    return WORK[again if backward and again in WORK else work]


def _capped(work: Work, op: TileOp) -> TileOp:
    """A softmax, or the probabilities of a backward pass, whose scores are bounded first."""
    return work.added(op, op.scores) if op.scores else op


def _with_sinks(kernel: Kernel, w: Workload) -> Kernel:
    """A kernel that reads the sink of each row's head and adds it to the row's sum before it stores the row's O."""
    if not any(op.scores for segment in kernel.segments for op in segment.ops):
        return kernel
    sizes = {"O": w.head_dim_v * w.output_bytes, "O partial": w.head_dim_v * 4}

    def ops(segment: Segment) -> Iterator[TileOp]:
        for op in segment.ops:
            if op.kind == "store" and op.tensor in sizes:
                rows = op.bytes // sizes[op.tensor]
                yield TileOp("load", "sinks", bytes=4 * rows)
                yield WORK["row"].added(TileOp("vector", "sums"), rows / kernel.warpgroups)
            yield op

    use = TensorUse("sinks", 4 * w.heads_q, (1.0, float(kernel.blocks)))
    return replace(
        kernel,
        segments=tuple(replace(one, ops=tuple(ops(one))) for one in kernel.segments),
        uses=(*kernel.uses, use),
    )


def _before_products(
    segment: Segment, conversion: Work | None, address: Work | None, *, rows: int, keys: int
) -> Segment:
    """Steps whose K and V are converted before they are multiplied, and whose next tile's addresses are worked out."""

    def ops() -> Iterator[TileOp]:
        for op in segment.ops:
            if op.kind in ("mma", "mma_async"):
                if address and op.tensor == "S":
                    yield address.added(TileOp("vector", "addresses"), keys)
                if conversion:
                    name = {"S": "K", "O": "V"}[op.tensor]
                    yield conversion.added(TileOp("vector", f"{name} converted"), op.flops / (2 * rows))
            yield op

    return replace(segment, ops=tuple(ops()))
