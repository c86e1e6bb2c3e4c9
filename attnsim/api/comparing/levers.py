"""Levers: figures of the GPU changed one at a time, and how much faster each makes a call.

Properties of the kernel, each a schedule that can be built, are changed on the same GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from attnsim.api.answer import Outcome, TooLarge
from attnsim.api.asking import Conditions, Question
from attnsim.api.bounds import bounds_of
from attnsim.api.playing import Played, chosen_anew, fitting, play, play_schedule, replayed, scheduled
from attnsim.errors import InputError
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.gpu import LIMITS, Gpu
from attnsim.models.hardware.sections import field_of
from attnsim.models.hardware.units import UNITS, unit_text
from attnsim.models.implementations.fused.tile import FlashTile, meets
from attnsim.models.implementations.implementation import Implementation, TileRequest
from attnsim.models.implementations.own.sparse import SparseTile
from attnsim.models.implementations.registry import IMPLEMENTATIONS
from attnsim.models.mechanisms import running
from attnsim.models.mechanisms.choosing import check_runs
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Path, Schedule
from attnsim.simulator.replay import Replay
from attnsim.wording import times_text

BETTER = 2.0
"""How much better each figure is made: a rate twice as high, a latency half as long."""


@dataclass(frozen=True, slots=True)
class Lever:
    """One figure of the GPU and what it would do for the call.

    Parameters
    ----------
    unit : str
        Unit of the replay; "latency" and "launch" for what no unit is busy with; "power" where the power limit holds
        the clock down; "clock" and "SMs" for all of an SM's units and issue slots together, its integer work too.
    figure, value : str
        Key of the figure and what it is now.
    busy_s : float or None
        Seconds that the unit is busy, averaged over the SMs.
    share : float or None
        Of the call's time.
    takes_over_at : float or None
        Factor by which the busiest unit would have to be faster for this one to be as busy.
    speedup : float
        Of the call with the figure `BETTER` times as good, replayed.
    busiest : str
        Busiest unit then.
    anew : str
        The tile that the implementation would choose anew on such a GPU, where it is another; else empty.
    speedup_anew : float or None
        With that tile.
    """

    unit: str
    figure: str
    value: str
    busy_s: float | None
    share: float | None
    takes_over_at: float | None
    speedup: float
    busiest: str
    anew: str = ""
    speedup_anew: float | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """The point at which another unit is as busy: the busiest of the longest kernel made as much faster as that takes.

    Parameters
    ----------
    unit, figure : str
        The busiest unit now, and its figure.
    next_unit : str
        The second busiest.
    factor : float
        How much faster `figure` has to be for the two to be equally busy.
    time_s, speedup : float
        Of the call with the figure changed so, replayed.
    busiest : str
        Busiest unit with the figure a percent beyond that.
    """

    unit: str
    figure: str
    next_unit: str
    factor: float
    time_s: float
    speedup: float
    busiest: str


def _fixed(run: Played[Any]) -> Conditions:
    """Conditions of the plays on changed GPUs: one tile for all, in fast mode, unless each is to have its best tile."""
    conditions: Conditions = run.question.conditions
    return conditions if conditions.tiles == "retuned" else replace(conditions, mode="fast")


def _on(run: Played[Any], gpu: Gpu) -> tuple[Schedule, Replay]:
    """The call on another GPU."""
    asked, numbers = run.question, run.chosen.numbers
    if isinstance(asked, Question):
        return play_schedule(asked.record, asked.w, gpu, numbers, _fixed(run))
    return run.schedule, replayed(run.schedule, gpu, numbers, _fixed(run))


def _anew(run: Played[Any], gpu: Gpu, held: Schedule) -> tuple[Schedule, Replay] | None:
    """The call on the tile that its implementation would choose on another GPU; None where it is the one held."""
    asked = run.question
    if not isinstance(asked, Question) or asked.conditions.tiles != "shipped":
        return None
    with suppress(InputError):  # no tile fits
        other = chosen_anew(asked.record, asked.w, gpu)
        if other.tile != held.tile:
            return other, replayed(other, gpu, run.chosen.numbers, _fixed(run))
    return None


def _base(run: Played[Any]) -> Replay:
    """The call as its changes are played."""
    return run.replay if _fixed(run) == run.question.conditions else _on(run, run.question.gpu)[1]


def levers(run: Played[Any]) -> tuple[Lever, ...]:
    """Every unit's figure, latencies, launches, the clock and the SMs, each made `BETTER` times as good by itself.

    All on the same tile; beside it the tile chosen anew, where that is another.
    """
    played, gpu, dtype, launch = _base(run), run.question.gpu, run.question.dtype, run.question.conditions.launch
    units = played.units_s()
    busiest = max(busy for unit, busy in units.items() if unit in UNITS)
    figures: list[tuple[str, str]] = [(name, unit.figure_for(dtype)) for name, unit in UNITS.items()]
    figures += [("latency", "l2.latency"), ("latency", "hbm.latency")]
    if launch != "kernel":
        figures.append(("launch", "launch.graph" if launch == "graph" else "launch.stream"))
    if played.clock_by in ("power", "least") and BETTER * gpu.power.limit_w <= LIMITS[1] * gpu.power.tdp_w:
        figures.append(("power", "power.limit"))
    figures += [("clock", "clock.sustained" if gpu.clock.held_hz else "clock.free"), ("SMs", "sm.count")]
    out = []
    for unit, figure in figures:
        busy = units.get(unit)
        if not units.get(unit, unit not in UNITS) or not gpu.get(figure):
            continue
        shorter = unit in ("latency", "launch")
        machine = _changed(gpu, figure, 1 / BETTER if shorter else BETTER)
        held, then = _on(run, machine)
        other = _anew(run, machine, held)
        out.append(
            Lever(
                unit=unit,
                figure=figure,
                value=field_of(figure).show(gpu.get(figure)),
                busy_s=busy,
                share=None if busy is None else busy / played.time_s,
                takes_over_at=None if busy is None else busiest / busy,
                speedup=played.time_s / then.time_s,
                busiest=then.busiest,
                anew=other[0].tile_text if other else "",
                speedup_anew=played.time_s / other[1].time_s if other else None,
            )
        )
    return tuple(out)


def two_busiest(played: Replay) -> tuple[str, str, float] | None:
    """The two busiest units of the longest kernel, and how much faster the first has to be for both to be as busy.

    None where launches or latency take most of the time, or no other unit is busy.
    """
    units = {unit: busy for unit, busy in played.main.units_s.items() if busy > 0}
    if played.busiest not in units or len(units) < 2:
        return None
    first, second = sorted(units, key=lambda unit: -units[unit])[:2]
    return first, second, units[first] / units[second]


def turn(run: Played[Any]) -> Turn | None:
    """The point at which another unit is as busy; None where launches or latency take most of the time, or none is."""
    played = _base(run)
    busiest = two_busiest(played)
    if busiest is None:
        return None
    first, second, factor = busiest
    figure = UNITS[first].figure_for(run.question.dtype)
    then = _on(run, _changed(run.question.gpu, figure, factor))[1]
    return Turn(
        first, figure, second, factor, then.time_s, played.time_s / then.time_s, then.busiest_with({first: 1.01})
    )


def _changed(gpu: Gpu, figure: str, factor: float) -> Gpu:
    return gpu.replace(figure, gpu.get(figure) * factor)


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
    busiest : str
        Busiest unit then.
    """

    lever: str
    change: str
    time_s: float
    speedup: float
    busiest: str


def kernel_levers(run: Played[Question]) -> tuple[KernelLever, ...]:
    """Every lever that the implementation, or one beside it, can be built with; the best first."""
    played, question = _base(run), replace(run.question, conditions=_fixed(run))
    found = [
        KernelLever(lever, change, then.time_s, played.time_s / then.time_s, then.busiest)
        for lever, change, then in _levers(question, run.schedule, run.chosen.numbers)
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
    """Requests for the tile with one property of its kernel changed."""
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
    same_library = (one for one in IMPLEMENTATIONS.values() if one.library == question.record.library)
    usual = (IMPLEMENTATIONS[name] for mechanism in asked for name in mechanism.implementations)
    for group in (same_library, usual):
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


def unturned(busiest: str | None) -> str:
    """The sentence about a call in which no two units can be as busy."""
    what = {
        "launch": "Launches take more than half of the time: fewer kernels, or a CUDA graph, before a faster GPU.",
        "latency": "No unit is busy for 35 % of the time: too few blocks or too short a pipeline to hide latency.",
    }
    return what.get(busiest or "", f"Busiest: {unit_text(busiest)}; no other unit has work.")


def why(one: Outcome) -> str:
    """The bound of a call, by replays with each figure doubled, and how busy units are."""
    if isinstance(one, TooLarge):
        return f"{one.algorithm}: {one.notes[0]}"
    busiest = two_busiest(one.run.replay)
    bound = f"{one.algorithm}: bound by {bounds_of(one.run)[0].words}."
    if busiest is None:
        return f"{bound} {unturned(one.busiest)}"
    figure = UNITS[busiest[0]].figure_for(one.workload.dtype)
    return f"{bound} {busy_text(one.run.replay)} {as_busy_text(figure, busiest[2], busiest[1])}."


def as_busy_text(figure: str, factor: float, unit: str) -> str:
    """When the second busiest unit is as busy as the busiest: "With tensor.bf16 1.24x the L2 is as busy"."""
    name = unit_text(unit)
    return f"With {figure} {times_text(factor)} {name} {'are' if name.endswith('s') else 'is'} as busy"


def busy_text(played: Replay) -> str:
    """How busy the two busiest units are while the longest kernel runs."""
    main = played.main
    first, second = sorted(main.units_s, key=lambda unit: -main.units_s[unit])[:2]
    shares = (f"{unit_text(unit)}, {100 * main.units_s[unit] / main.time_s:.0f} %" for unit in (first, second))
    where = f"the time of {main.name}" if len(played.kernels) > 1 else "the time"
    return "Busiest: {} of {where}; next: {}.".format(*shares, where=where)
