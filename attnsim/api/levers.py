"""What bounds a call, and what would have to change for the bound to move: figures of the GPU changed one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from attnsim.models.hardware.gpu import LIMITS, Gpu
from attnsim.models.hardware.sections import field_of
from attnsim.models.hardware.units import UNITS
from attnsim.models.schedule.schedule import Schedule
from attnsim.simulator.replay import Replay

BETTER = 2.0
"""How much better each figure is made: a rate twice as high, a latency half as long."""

Play = Callable[[Gpu], tuple[Schedule, Replay]]
"""The same tile on another GPU."""

Anew = Callable[[Gpu, Schedule], tuple[Schedule, Replay] | None]
"""The tile that an implementation would choose on another GPU, beside the one held; None where it is the same."""


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
    bound : str
        What bounds it then.
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
    bound: str
    anew: str = ""
    speedup_anew: float | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """Where the bound moves: the busiest unit made as much faster as the next one allows.

    Parameters
    ----------
    unit, figure : str
        The unit that bounds now, and its figure.
    next_unit : str
        The second busiest.
    factor : float
        How much faster `figure` has to be for the two to be equally busy.
    time_s, speedup : float
        Of the call with the figure changed so, replayed.
    bound : str
        What bounds it with the figure a percent beyond that.
    """

    unit: str
    figure: str
    next_unit: str
    factor: float
    time_s: float
    speedup: float
    bound: str


def levers(played: Replay, gpu: Gpu, dtype: str, launch: str, play: Play, anew: Anew) -> tuple[Lever, ...]:
    """Every unit's figure, latencies, launches, the clock and the SMs, each made `BETTER` times as good by itself.

    All on the same tile; beside it the tile chosen anew, where that is another.
    """
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
        held, then = play(machine)
        other = anew(machine, held)
        out.append(
            Lever(
                unit=unit,
                figure=figure,
                value=field_of(figure).show(gpu.get(figure)),
                busy_s=busy,
                share=None if busy is None else busy / played.time_s,
                takes_over_at=None if busy is None else busiest / busy,
                speedup=played.time_s / then.time_s,
                bound=then.bound,
                anew=other[0].tile_text if other else "",
                speedup_anew=played.time_s / other[1].time_s if other else None,
            )
        )
    return tuple(out)


def two_busiest(bound: str | None, units_s: Mapping[str, float]) -> tuple[str, str, float] | None:
    """The unit that bounds a call, the next busiest, and how much faster the first has to be for both to be as busy.

    None where no unit bounds the call or no other is busy.
    """
    units = {unit: busy for unit, busy in units_s.items() if unit in UNITS and busy > 0}
    if bound not in units or len(units) < 2:
        return None
    first, second = sorted(units, key=lambda unit: -units[unit])[:2]
    return first, second, units[first] / units[second]


def turn(played: Replay, gpu: Gpu, dtype: str, play: Play) -> Turn | None:
    """Where the bound moves to, None where no unit bounds the call or no other is busy."""
    busiest = two_busiest(played.bound, played.units_s())
    if busiest is None:
        return None
    first, second, factor = busiest
    figure = UNITS[first].figure_for(dtype)
    then = play(_changed(gpu, figure, factor))[1]
    return Turn(first, figure, second, factor, then.time_s, played.time_s / then.time_s, then.bound_with({first: 1.01}))


def _changed(gpu: Gpu, figure: str, factor: float) -> Gpu:
    return gpu.replace(figure, gpu.get(figure) * factor)
