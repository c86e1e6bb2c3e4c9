"""What another kernel would do for a call on the same GPU: each lever a schedule that can be built, replayed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from attnsim.api.asking import Conditions, Question
from attnsim.api.building import scheduled
from attnsim.api.playing import play
from attnsim.api.retuning import fitting, replayed
from attnsim.errors import InputError
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.tile import FlashTile, meets
from attnsim.models.implementations.implementation import Implementation, TileRequest
from attnsim.models.implementations.own.sparse import SparseTile
from attnsim.models.implementations.registry import IMPLEMENTATIONS
from attnsim.models.mechanisms import running
from attnsim.models.mechanisms.choosing import check_runs
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Path, Schedule
from attnsim.simulator.replay import Replay

TILES = 3
"""Other tiles that are replayed, after a simple estimate has sorted all that fit."""


@dataclass(frozen=True, slots=True)
class KernelLever:
    """One property of the kernel changed, on the same GPU.

    Parameters
    ----------
    lever : str
        What is changed: "tile", "stages", "GQA packing", "blocks", "order", "instructions", "format".
    change : str
        What it is then.
    time_s, speedup : float
        Of the call, replayed.
    bound : str
        What bounds it then.
    """

    lever: str
    change: str
    time_s: float
    speedup: float
    bound: str


def kernel_levers(question: Question, schedule: Schedule, played: Replay, numbers: Numbers) -> tuple[KernelLever, ...]:
    """Every lever that the implementation, or one beside it, can be built with; the best first.

    Parameters
    ----------
    question : Question
    schedule, played : Schedule, Replay
        How it runs, and in fast mode how long.
    numbers : Numbers
        Those of its implementation.
    """
    found = [
        KernelLever(lever, change, then.time_s, played.time_s / then.time_s, then.bound)
        for lever, change, then in _levers(question, schedule, numbers)
        if then is not None
    ]
    return tuple(sorted(found, key=lambda one: one.time_s))


def _levers(question: Question, schedule: Schedule, numbers: Numbers) -> Iterator[tuple[str, str, Replay | None]]:
    """Lever, what is changed, and the replay; None where the tree has no schedule of it."""
    w, record = question.w, question.record
    tile = _tile(schedule)
    if record.tunable and w.directions == ("fwd",):
        yield from _other_tile(question, schedule, numbers)
        for lever, change, request in _requests(tile, w) if tile else ():
            yield lever, change, _requested(question, request, numbers)
    yield from _newer(question, schedule)
    if w.dtype != "fp8":
        yield "format", "fp8", _played(question, dtype="fp8")


def _other_tile(question: Question, schedule: Schedule, numbers: Numbers) -> Iterator[tuple[str, str, Replay]]:
    """The fastest of the most promising other tiles, unless the call has the best already."""
    if question.conditions.tiles == "retuned":
        return
    fit = fitting(question.record, question.w, question.gpu, numbers)
    others = [one.schedule for one in fit if one.schedule.tile_text != schedule.tile_text][:TILES]
    timed = [(replayed(one, question.gpu, numbers, question.conditions), one.tile_text) for one in others]
    for then, text in sorted(timed, key=lambda pair: pair[0].time_s)[:1]:
        yield "tile", text, then


def _tile(schedule: Schedule) -> FlashTile | SparseTile | None:
    """The forward tile of a kernel that walks key tiles, all of them or a list; None of others."""
    tile = getattr(schedule.tile, "forward", schedule.tile)
    return tile if isinstance(tile, FlashTile | SparseTile) else None


def _requests(tile: FlashTile | SparseTile, w: Workload) -> Iterator[tuple[str, str, TileRequest]]:
    """The same tile with one property of its kernel changed."""
    own = TileRequest(tile.rows, tile.keys)
    for stages in (tile.stages - 1, tile.stages + 1):
        if stages:
            yield "stages", f"{stages}", replace(own, stages=stages)
    if isinstance(tile, SparseTile):  # all else of its kernel is as it is compiled
        return
    if w.group > 1:
        yield "GQA packing", "off" if tile.pack_gqa else "on", replace(own, pack_gqa=not tile.pack_gqa)
    if not tile.persistent:
        yield "blocks", "persistent", replace(own, persistent=True)
    differ = w.mask.within(w.seq_q, w.seq_kv).right is not None or not w.mask.is_band
    if tile.order == "ascending" and differ and w.seq_q > tile.rows:
        yield "order", "longest first", replace(own, longest_first=True)


def _requested(question: Question, request: TileRequest, numbers: Numbers) -> Replay | None:
    """The replay with a kernel so changed; None where the implementation's builder has no such kernel."""
    conditions = replace(question.conditions, tiles="given", tile=request)
    try:
        schedule = scheduled(question.record, question.w, question.gpu, conditions)
    except InputError:
        return None
    tile = _tile(schedule)
    met = meets(tile, request) if isinstance(tile, FlashTile) else tile is not None and tile.stages == request.stages
    if not met:
        return None
    return replayed(schedule, question.gpu, numbers, conditions)


def _played(question: Question, record: Implementation | None = None, dtype: str = "") -> Replay | None:
    """The replay by another implementation or in another format, on the tiles it ships; None where it is not run."""
    try:
        other, w = record or question.record, replace(question.w, dtype=dtype or question.w.dtype)
        check_runs(other, w, question.gpu)
        return play(replace(question, record=other, w=w, conditions=_shipped(question.conditions))).replay
    except InputError:
        return None


def _shipped(conditions: Conditions) -> Conditions:
    return replace(conditions, tiles="shipped", tile=None)


def _newer(question: Question, schedule: Schedule) -> Iterator[tuple[str, str, Replay]]:
    """The fastest implementation of the same form with the GPU's newest tensor instructions, where this has others.

    Of the same library or, where it has none, the defaults of the mechanisms that both run; `TILES` are replayed.
    """
    main, path = schedule.main, _newest(question.gpu)
    if main.path in (path, "simt"):
        return
    asked = running(question.record)
    beside = (one for one in IMPLEMENTATIONS.values() if one.library == question.record.library)
    usual = (IMPLEMENTATIONS[name] for mechanism in asked for name in mechanism.implementations)
    for group in (beside, usual):
        able = [one for one in dict.fromkeys(group) if any(mechanism.run_by(one) for mechanism in asked)]
        like = islice((one for one in able if _issues(path, one, schedule, question)), TILES)
        timed = [(then, one.name) for one in like if (then := _played(question, record=one))]
        if timed:
            then, name = min(timed, key=lambda pair: pair[0].time_s)
            yield "instructions", f"{path}, {name}", then
            return


def _issues(path: Path, record: Implementation, like: Schedule, question: Question) -> bool:
    """Whether an implementation runs the question with such instructions, and does all that is done here.

    Softmax beside the products or apart, new tokens put into the cache or not. It is asked for its schedule, which is
    not replayed.
    """
    try:
        check_runs(record, question.w, question.gpu)
        other = scheduled(record, question.w, question.gpu, _shipped(question.conditions))
    except InputError:
        return False
    return other.main.path == path and _does(other) == _does(like)


def _does(schedule: Schedule) -> tuple[bool, bool]:
    """Whether the main kernel has the softmax, and whether the call puts new tokens into the cache."""
    return schedule.main.total("exps") > 0, any(tensor.startswith("new ") for _, _, tensor in schedule.requested())


def _newest(gpu: Gpu) -> Path:
    return "tcgen05" if gpu.features.tcgen05 else "wgmma" if gpu.features.wgmma else "mma_sync"
