"""Options of a call beyond its shape: which implementations support them, since when, and the work that they add.

``options.csv`` has a line for each implementation that supports one, ``option_work.csv`` the added instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from attnsim.errors import InputError, some
from attnsim.models.implementations.fused.tile import FlashTile, FusedTiles
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.implementations.names import version_parts
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
