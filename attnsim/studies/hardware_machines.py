"""Machines of a search over hardware, answered one by one and judged by the limits.

A machine is answered by the replay, on the best of a few tiles where the search changes what a block may hold.

The weight of a workload is its share of the time on the unchanged machine. A mix is counted per second of that: each
workload runs so often that the unchanged machine spends its share of a second on it, and the time of another machine is
that of the same calls. A single workload is counted by the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product

from attnsim.api.asking import Conditions, ask
from attnsim.api.comparing.ratios import Ratio, together
from attnsim.api.energy import energy
from attnsim.api.playing import fitting
from attnsim.errors import InputError
from attnsim.models.calibrations.choose import built, choose
from attnsim.models.hardware.area import area_mm2, without_area
from attnsim.models.hardware.cost import cost_usd
from attnsim.models.hardware.figure import Interval
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import TileRequest
from attnsim.simulator.replay import replay
from attnsim.studies.hardware_case import Answered, Case, speedup_of
from attnsim.studies.hardware_space import Space, with_figures
from attnsim.studies.points import RATES
from attnsim.studies.prices import Prices


@dataclass(frozen=True, slots=True)
class Mix:
    """Workloads and how often each runs.

    Parameters
    ----------
    cases : tuple of Case
    calls : tuple of float
        Of each: 1 of a single workload, else so many as the unchanged machine does in its share of a second.
    base : tuple of Answer or LayerAnswer
        Of each on the unchanged machine.
    """

    cases: tuple[Case, ...]
    calls: tuple[float, ...]
    base: tuple[Answered, ...]

    @classmethod
    def of(cls, cases: Sequence[Case], base: Sequence[Answered]) -> Mix:
        """The mix whose weights are shares of the unchanged machine's time.

        Raises
        ------
        InputError
            When one of several workloads has no time there.
        """
        if len(cases) == 1:
            return cls(tuple(cases), (1.0,), tuple(base))
        whole = sum(case.weight for case in cases)
        calls = []
        for case, one in zip(cases, base, strict=True):
            if not one.time_s:
                raise InputError(f"{case.name}: {one.notes[0]}; a weight is a share of the unchanged machine's time")
            calls.append(case.weight / whole / one.time_s)
        return cls(tuple(cases), tuple(calls), tuple(base))


@dataclass(frozen=True, slots=True)
class MachineAnswer:
    """What a machine answers.

    Parameters
    ----------
    predictions : tuple of Answer or LayerAnswer
        Of each workload.
    time_s, joules, watts : Interval
        Of a call, or of a second of the mix on the unchanged machine.
    area, cost : Interval or None
        mm2, and US dollars or the user's prices; None where they are not known.
    speedup : Ratio or None
        Over the unchanged machine.
    assumed : tuple of str
        Units whose energy is assumed for the architecture.
    free : tuple of str
        Changed figures whose area is not known.
    """

    predictions: tuple[Answered, ...]
    time_s: Interval
    joules: Interval
    watts: Interval
    area: Interval | None
    cost: Interval | None
    speedup: Ratio | None
    assumed: tuple[str, ...]
    free: tuple[str, ...]

    @property
    def results(self) -> dict[str, Interval | None]:
        """By the names of `attnsim.models.hardware.merits.RESULTS`."""
        return {"time": self.time_s, "energy": self.joules, "power": self.watts, "area": self.area, "cost": self.cost}

    def values(self) -> dict[str, float]:
        """The typical results, where they are known."""
        return {name: one.typical for name, one in self.results.items() if one is not None}


def answered(gpu: Gpu, mix: Mix, predictions: Sequence[Answered], prices: Prices | None) -> MachineAnswer:
    """What a machine answers, of the predictions of its workloads.

    Raises
    ------
    InputError
        When one does not fit the memory.
    """
    used = [energy(one, gpu) for one in predictions]
    calls = mix.calls
    low, time_s, high = (
        sum(number * (getattr(one, end) or 0.0) for number, one in zip(calls, predictions, strict=True))
        for end in ("time_low_s", "time_s", "time_high_s")
    )
    joules = _sum((number, one.joules) for number, one in zip(calls, used, strict=True))
    return MachineAnswer(
        predictions=tuple(predictions),
        time_s=Interval(low, time_s, high),
        joules=joules,
        watts=joules.over(time_s),
        area=known(area_mm2, gpu),
        cost=prices.cost(gpu) if prices else known(cost_usd, gpu),
        speedup=compared(mix.base, predictions, mix),
        assumed=tuple(dict.fromkeys(name for one in used for name in one.assumed)),
        free=without_area(gpu),
    )


def compared(base: Sequence[Answered], other: Sequence[Answered], mix: Mix) -> Ratio | None:
    """How many times faster the mix is by `other` predictions than by those of `base`."""
    ratios = list(map(speedup_of, base, other))
    if len(ratios) == 1:
        return ratios[0]
    shares = [number * (one.time_s or 0.0) for number, one in zip(mix.calls, base, strict=True)]
    return together(list(zip(shares, ratios, strict=True)))


def _sum(parts: Iterable[tuple[float, Interval]]) -> Interval:
    """Energies of several calls, whose constants are the same ones: all off in the same direction."""
    items = list(parts)
    return Interval(*(math.fsum(n * getattr(one, end) for n, one in items) for end in ("low", "typical", "high")))


def known(figure: Callable[[Gpu], Interval], gpu: Gpu) -> Interval | None:
    """A figure of a GPU, None where it is not known."""
    try:
        return figure(gpu)
    except InputError:
        return None


CORNER_TILES = 6
"""Tiles replayed at each corner of the space, after an estimate has sorted all that fit; the best is kept."""
CORNER_RATES = 2
"""Ranges whose ends make the corners."""
INFEASIBLE = 1e6
"""How far beyond every limit a machine is that cannot answer."""


@dataclass(frozen=True, slots=True)
class Design:
    """One machine of a search.

    Parameters
    ----------
    figures : dict of str to float
        What varies, SI units.
    answer : MachineAnswer or None
        None where the machine cannot answer.
    objectives : tuple of float
    broken : tuple of str
        Limits that it does not keep, or why it cannot answer.
    excess : tuple of float
        How far it is beyond each limit, relative.
    """

    figures: dict[str, float]
    answer: MachineAnswer | None
    objectives: tuple[float, ...]
    broken: tuple[str, ...]
    excess: tuple[float, ...]


@dataclass
class Asked:
    """The question, and what is already known of the space."""

    mix: Mix
    space: Space
    algorithm: str | None
    implementation: str | None
    objectives: tuple[str, ...]
    conditions: Conditions
    prices: Prices | None
    done: Callable[[int], object]
    known: dict[tuple[int, ...], Design] = field(default_factory=dict)
    tiles: dict[object, tuple[TileRequest | None, ...]] = field(default_factory=dict)

    def measure_unchanged(self) -> Design:
        """The unchanged machine, and limits as values where they were multiples of what it answers.

        Raises
        ------
        InputError
            When a limit is a multiple of what is not known.
        """
        space, figures = self.space, {one.key: self.space.gpu.get(one.key) for one in self.space.ranges}
        try:
            found = answered(space.gpu, self.mix, self.mix.base, self.prices)
        except InputError as error:
            if any(limit.times for limit in space.limits):
                raise InputError(f"the unchanged machine cannot answer: {error}; give limits as values") from None
            return self._refused(figures, error)
        values = found.values()
        limits = tuple(one.over(values[one.name]) if one.times else one for one in space.limits)
        self.space = replace(space, limits=limits)
        return self.judged(figures, space.gpu, found)

    def machine(self, index: tuple[int, ...]) -> Design:
        """The machine at a place of the space, answered once."""
        if index not in self.known:
            self.known[index] = self._answered(index)
            self.done(1)
        return self.known[index]

    def _answered(self, index: tuple[int, ...]) -> Design:
        figures = self.space.values(index)
        try:
            gpu = self.space.machine(index)
            predictions = [self._predicted(case, gpu) for case in self.mix.cases]
            return self.judged(figures, gpu, answered(gpu, self.mix, predictions, self.prices))
        except InputError as error:
            return self._refused(figures, error)

    def _refused(self, figures: dict[str, float], error: InputError) -> Design:
        worst = tuple(math.inf for _ in self.objectives)
        return Design(figures, None, worst, (str(error),), tuple(INFEASIBLE for _ in self.space.limits))

    def judged(self, figures: dict[str, float], gpu: Gpu, answer: MachineAnswer) -> Design:
        """A machine by its answer: its objectives, and the limits that it breaks."""
        values = answer.values()
        of = {**{limit.name: gpu.get(limit.name) for limit in self.space.limits if limit.name not in values}, **values}
        excess = tuple(limit.excess(of[limit.name]) for limit in self.space.limits)
        broken = tuple(limit.text for limit, far in zip(self.space.limits, excess, strict=True) if far)
        objectives = tuple(values[name] if name in values else gpu.get(name) for name in self.objectives)
        return Design(figures, answer, objectives, broken, excess)

    def _predicted(self, case: Case, gpu: Gpu) -> Answered:
        """The fastest of the tiles that promise something.

        Raises
        ------
        InputError
            When none fits.
        """
        found: list[Answered] = []
        problems: list[InputError] = []
        for tile in self._promising(case, gpu):
            conditions = replace(self.conditions, tile=tile, tiles="given" if tile else "shipped")
            try:
                found.append(case.answered(gpu, self.algorithm, self.implementation, conditions))
            except InputError as error:
                problems.append(error)
        if not found:
            raise problems[-1]
        return min(found, key=lambda one: math.inf if one.time_s is None else one.time_s)

    def retuned(self, case: Case, shipped: Answered) -> Answered:
        """What the unchanged machine answers on the best of the tiles that its machines may take, the shipped included.

        So that a machine is not credited with what a tile gains on the unchanged one.
        """
        with suppress(InputError):
            found = self._predicted(case, self.space.gpu)
            return min(shipped, found, key=lambda one: math.inf if one.time_s is None else one.time_s)
        return shipped

    def _promising(self, case: Case, gpu: Gpu) -> tuple[TileRequest | None, ...]:
        """The best tile of each corner of the machines whose blocks may hold as much; None stands for the shipped one.

        Corners, because a tile that suits few SMs may starve many of them.
        """
        sizes = tuple(gpu.get(one.key) for one in self.space.ranges if one.key not in RATES)
        if not sizes:
            return (None,)
        key = (case.workload, sizes)
        if key not in self.tiles:
            best = dict.fromkeys(self._best_tile(case, corner) for corner in self._corners(gpu))
            self.tiles[key] = tuple(best) or (None,)
        return self.tiles[key]

    def _corners(self, gpu: Gpu) -> list[Gpu]:
        """The machine with its rates in the middle of their ranges, and at the ends of the first `CORNER_RATES`."""
        rates = [one for one in self.space.ranges if one.key in RATES][:CORNER_RATES]
        middle = tuple(one.values[len(one.values) // 2] for one in rates)
        corners = dict.fromkeys((middle, *product(*((one.values[0], one.values[-1]) for one in rates))))
        return [with_figures(gpu, {one.key: end for one, end in zip(rates, ends, strict=True)}) for ends in corners]

    def _best_tile(self, case: Case, gpu: Gpu) -> TileRequest | None:
        question = ask(case.workload, gpu, case.algorithm(self.algorithm), self.implementation)
        if not question.record.tunable:
            return None
        numbers = built(choose(question.record, gpu), question.record, question.w, gpu).numbers
        best: list[tuple[float, TileRequest]] = []
        for one in fitting(question.record, question.w, gpu, numbers)[:CORNER_TILES]:
            with suppress(InputError):
                best.append((replay(one.schedule, gpu, numbers).time_s, one.shape))
        return min(best)[1] if best else None
