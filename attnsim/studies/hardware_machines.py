"""Machines of a hardware search: their answers, and the limits that they break.

A machine is evaluated by replay. If the search changes the limits of a block, it is evaluated on the best of a few
tiles.

The weight of a workload is its share of the unchanged machine's time. A mix is the set of calls that the unchanged
machine makes in one second: each workload is called so often that it takes its share of that second. The time of
another machine is its time for the same calls. A single workload is one call.
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
from attnsim.models.hardware.area import area_mm2, cost_usd, without_area
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.sections import Interval
from attnsim.models.implementations.implementation import TileRequest
from attnsim.simulator.replay import replay
from attnsim.studies.hardware_case import Answered, Case, speedup_of
from attnsim.studies.hardware_space import Prices, Space, with_figures
from attnsim.studies.points import RATES


@dataclass(frozen=True, slots=True)
class Mix:
    """Workloads, and the number of calls of each.

    Parameters
    ----------
    calls : tuple of float
        Calls of each workload: 1 for a single workload; in a mix, the calls that the unchanged machine makes in the
        workload's share of one second.
    base : tuple of Answer or LayerAnswer
        Answers of the unchanged machine.
    """

    cases: tuple[Case, ...]
    calls: tuple[float, ...]
    base: tuple[Answered, ...]

    @classmethod
    def of(cls, cases: Sequence[Case], base: Sequence[Answered]) -> Mix:
        """Build the mix whose weights are shares of the unchanged machine's time.

        Raises
        ------
        InputError
            If one of several workloads has no time on the unchanged machine.
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
    """A machine's answer to a mix.

    Parameters
    ----------
    predictions : tuple of Answer or LayerAnswer
        Prediction of each workload.
    time_s, joules, watts : Interval
        Of one call, or of the calls of a mix (one second on the unchanged machine).
    area, cost : Interval or None
        mm2; US dollars, or the currency of the user's prices; None if not known.
    speedup : Ratio or None
        Over the unchanged machine.
    assumed : tuple of str
        Units whose energy is assumed for the architecture.
    free : tuple of str
        Changed figures whose die area is not known.
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
        """Results by the names of `attnsim.models.hardware.units.RESULTS`."""
        return {"time": self.time_s, "energy": self.joules, "power": self.watts, "area": self.area, "cost": self.cost}

    def values(self) -> dict[str, float]:
        """Return the typical results that are known."""
        return {name: one.typical for name, one in self.results.items() if one is not None}


def answered(gpu: Gpu, mix: Mix, predictions: Sequence[Answered], prices: Prices | None) -> MachineAnswer:
    """Build a machine's answer from the predictions of its workloads.

    Raises
    ------
    InputError
        If a workload does not fit the memory.
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
    """Return the speedup of a mix from `base` to `other` predictions; None if a workload has no ratio."""
    ratios = list(map(speedup_of, base, other))
    if len(ratios) == 1:
        return ratios[0]
    shares = [number * (one.time_s or 0.0) for number, one in zip(mix.calls, base, strict=True)]
    return together(list(zip(shares, ratios, strict=True)))


def _sum(parts: Iterable[tuple[float, Interval]]) -> Interval:
    """Sum the energies of several calls; their ends add up, since the same constants are off in the same direction."""
    items = list(parts)
    return Interval(*(math.fsum(n * getattr(one, end) for n, one in items) for end in ("low", "typical", "high")))


def known(figure: Callable[[Gpu], Interval], gpu: Gpu) -> Interval | None:
    """Return a figure of a GPU, None if it is not known."""
    try:
        return figure(gpu)
    except InputError:
        return None


CORNER_TILES = 6
"""Tiles replayed at each corner of the space, after an estimate has sorted all fitting tiles; the best one is kept."""
CORNER_RATES = 2
"""Number of ranges whose ends form the corners."""
INFEASIBLE = 1e6
"""Excess over every limit that is assigned to a machine without an answer."""


@dataclass(frozen=True, slots=True)
class Design:
    """One machine of a search.

    Parameters
    ----------
    figures : dict of str to float
        The varied figures, SI units.
    answer : MachineAnswer or None
        None if the machine cannot answer.
    broken : tuple of str
        Limits that it breaks, or the reason why it has no answer.
    excess : tuple of float
        Relative excess over each limit.
    """

    figures: dict[str, float]
    answer: MachineAnswer | None
    objectives: tuple[float, ...]
    broken: tuple[str, ...]
    excess: tuple[float, ...]


@dataclass
class Evaluator:
    """The question, and the machines that were already answered."""

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
        """Evaluate the unchanged machine, and turn limits that are multiples of its results into values.

        Raises
        ------
        InputError
            If a limit is a multiple of an unknown result.
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
        """Return the machine at an index of the space; each is evaluated once."""
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
        """Build a design from a machine's answer: its objectives, and the limits that it breaks."""
        values = answer.values()
        of = {**{limit.name: gpu.get(limit.name) for limit in self.space.limits if limit.name not in values}, **values}
        excess = tuple(limit.excess(of[limit.name]) for limit in self.space.limits)
        broken = tuple(limit.text for limit, far in zip(self.space.limits, excess, strict=True) if far)
        objectives = tuple(values[name] if name in values else gpu.get(name) for name in self.objectives)
        return Design(figures, answer, objectives, broken, excess)

    def _predicted(self, case: Case, gpu: Gpu) -> Answered:
        """Return the prediction on the fastest of the promising tiles.

        Raises
        ------
        InputError
            If no tile fits.
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
        """Return the unchanged machine's answer on the best promising tile, the shipped one included.

        A changed machine is then not credited with a gain that a tile also brings on the unchanged one.
        """
        with suppress(InputError):
            found = self._predicted(case, self.space.gpu)
            return min(shipped, found, key=lambda one: math.inf if one.time_s is None else one.time_s)
        return shipped

    def _promising(self, case: Case, gpu: Gpu) -> tuple[TileRequest | None, ...]:
        """Return the best tile of each corner of the machines with equal block limits; None is the shipped tile.

        Corners are needed because a tile that suits few SMs may starve many SMs.
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
        """Return the machine with its rates at mid-range, and at the ends of the first `CORNER_RATES` ranges."""
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
