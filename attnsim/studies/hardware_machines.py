"""Machines of a search over hardware, answered one by one and judged by the limits.

A machine is answered by the replay, on the best of a few tiles where the search changes what a block may hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product

from attnsim.api.asking import Conditions, ask
from attnsim.api.retuning import fitting
from attnsim.errors import InputError
from attnsim.models.calibrations.choose import built, choose
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import TileRequest
from attnsim.simulator.replay import replay
from attnsim.studies.hardware_answer import MachineAnswer, Mix, answered
from attnsim.studies.hardware_case import Answered, Case
from attnsim.studies.hardware_space import Space, with_figures
from attnsim.studies.points import RATES
from attnsim.studies.prices import Prices

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
