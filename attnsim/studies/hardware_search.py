"""The best hardware for a question under limits, and what it trades: SciPy's differential evolution over whole steps.

A machine is answered by the replay, on the best of a few tiles where the search changes what a block may hold. Small
spaces are walked through whole; in larger ones an evolution with a Sobol start (Storn and Price, J. Global Optim. 11,
1997; constraints after Lampinen, CEC 2002; both as in `scipy.optimize.differential_evolution`) looks for each objective
alone and for mixtures of two, and everything it asks for is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from attnsim.api.answering import answer
from attnsim.api.asking import Conditions, ask, read_conditions
from attnsim.api.energy import Energy, energy
from attnsim.api.prediction import Prediction
from attnsim.api.retuning import fitting
from attnsim.models.calibrations.choose import built, choose
from attnsim.models.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.question.workload import Workload
from attnsim.simulator.replay import replay
from attnsim.studies.hardware_space import Space, check_name, with_figures
from attnsim.studies.points import RATES

POINTS = 200
CORNER_TILES = 6
"""Tiles replayed at each corner of the space, after an estimate has sorted all that fit; the best is kept."""
CORNER_RATES = 2
"""Ranges whose ends make the corners."""
MIXTURES = (1.0, 0.0, 0.5, 0.25, 0.75)
"""Weights of the first of two objectives (their logarithms are mixed), in the order in which they are looked for."""
_INFEASIBLE = 1e6


@dataclass(frozen=True, slots=True)
class Design:
    """One machine of a search.

    Parameters
    ----------
    figures : dict of str to float
        What varies, SI units.
    prediction, energy
        None where the machine cannot answer.
    objectives : tuple of float
    broken : tuple of str
        Limits that it does not keep, or why it cannot answer.
    excess : tuple of float
        How far it is beyond each limit, relative.
    """

    figures: dict[str, float]
    prediction: Prediction | None
    energy: Energy | None
    objectives: tuple[float, ...]
    broken: tuple[str, ...]
    excess: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class HardwareSearch:
    """What was found.

    Parameters
    ----------
    objectives : tuple of str
    machines : tuple of Design
        All that were answered, in the order in which they were asked for.
    space : Space
    exhaustive : bool
        Whether they are all there are.
    """

    objectives: tuple[str, ...]
    machines: tuple[Design, ...]
    space: Space
    exhaustive: bool

    @property
    def feasible(self) -> tuple[Design, ...]:
        """Those within the limits, the best in the first objective first."""
        good = [one for one in self.machines if not one.broken]
        return tuple(sorted(good, key=lambda one: one.objectives))

    @property
    def front(self) -> tuple[Design, ...]:
        """Feasible machines that none other beats in every objective."""
        found: list[Design] = []
        for one in self.feasible:  # ascending in the first objective: the last one has to fall
            if not found or one.objectives[-1] < found[-1].objectives[-1]:
                found.append(one)
        return tuple(found)


@dataclass
class _Asked:
    """The question, and what is already known of the space."""

    workload: Workload
    space: Space
    algorithm: str
    implementation: str | None
    objectives: tuple[str, ...]
    conditions: Conditions
    done: Callable[[int], object]
    known: dict[tuple[int, ...], Design] = field(default_factory=dict)
    tiles: dict[object, tuple[TileRequest | None, ...]] = field(default_factory=dict)

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
            prediction = self._predicted(gpu)
            used = energy(prediction, gpu)
        except InputError as error:
            worst = tuple(math.inf for _ in self.objectives)
            return Design(figures, None, None, worst, (str(error),), tuple(_INFEASIBLE for _ in self.space.limits))
        known = {"time": prediction.time_s, "energy": used.joules.typical, "power": used.watts.typical}
        values = {name: value for name, value in known.items() if value is not None}
        of = {**{limit.name: gpu.get(limit.name) for limit in self.space.limits if limit.name not in values}, **values}
        excess = tuple(limit.excess(of[limit.name]) for limit in self.space.limits)
        broken = tuple(limit.text for limit, far in zip(self.space.limits, excess, strict=True) if far)
        objectives = tuple(values[name] if name in values else gpu.get(name) for name in self.objectives)
        return Design(figures, prediction, used, objectives, broken, excess)

    def _predicted(self, gpu: Gpu) -> Prediction:
        """The fastest of the tiles that promise something.

        Raises
        ------
        InputError
            When none fits.
        """
        found: list[Prediction] = []
        problems: list[InputError] = []
        for tile in self._promising(gpu):
            conditions = replace(self.conditions, tile=tile, tiles="given" if tile else "shipped")
            try:
                found.append(answer(ask(self.workload, gpu, self.algorithm, self.implementation, conditions)))
            except InputError as error:
                problems.append(error)
        if not found:
            raise problems[-1]
        return min(found, key=lambda one: math.inf if one.time_s is None else one.time_s)

    def _promising(self, gpu: Gpu) -> tuple[TileRequest | None, ...]:
        """The best tile of each corner of the machines whose blocks may hold as much; None stands for the shipped one.

        Corners, because a tile that suits few SMs may starve many of them.
        """
        key = tuple(gpu.get(one.key) for one in self.space.ranges if one.key not in RATES)
        if not key:
            return (None,)
        if key not in self.tiles:
            best = dict.fromkeys(self._best_tile(corner) for corner in self._corners(gpu))
            self.tiles[key] = tuple(best) or (None,)
        return self.tiles[key]

    def _corners(self, gpu: Gpu) -> list[Gpu]:
        """The machine with its rates in the middle of their ranges, and at the ends of the first `CORNER_RATES`."""
        rates = [one for one in self.space.ranges if one.key in RATES][:CORNER_RATES]
        middle = tuple(one.values[len(one.values) // 2] for one in rates)
        corners = dict.fromkeys((middle, *product(*((one.values[0], one.values[-1]) for one in rates))))
        return [with_figures(gpu, {one.key: end for one, end in zip(rates, ends, strict=True)}) for ends in corners]

    def _best_tile(self, gpu: Gpu) -> TileRequest | None:
        question = ask(self.workload, gpu, self.algorithm, self.implementation)
        if not question.record.tunable:
            return None
        numbers = built(choose(question.record, gpu), question.record, question.w, gpu).numbers
        best: list[tuple[float, TileRequest]] = []
        for one in fitting(question.record, question.w, gpu, numbers)[:CORNER_TILES]:
            with suppress(InputError):
                best.append((replay(one.schedule, gpu, numbers).time_s, one.shape))
        return min(best)[1] if best else None


def search_hardware(
    w: Workload, space: Space, algorithm: str = "flash", *, implementation: str | None = None,
    objectives: Sequence[str] = ("time",), points: int = POINTS, seed: int = 0, cache: str = "warm",
    launch: str = "stream", done: Callable[[int], object] = lambda count: None,
) -> HardwareSearch:  # fmt: skip
    """Find the machines that answer a question best within limits.

    Parameters
    ----------
    w : Workload
    space : Space
    algorithm, implementation, cache, launch
        As for `attnsim.predict`.
    objectives : sequence of str
        One or two of "time", "energy" and "power", or a figure of the GPU as a stand-in for cost; each minimised.
    points : int
        Machines answered at most.
    seed : int
        Of the evolution; the same seed finds the same.
    done : callable
        Called with the number of machines newly answered.

    Raises
    ------
    InputError
        For unknown objectives, or when no machine can answer at all.
    """
    names = tuple(objectives)
    for name in names:
        check_name(name, "--minimise")
    if not 1 <= len(names) <= 2 or len(set(names)) < len(names):
        raise InputError(f"--minimise {', '.join(names)}: give one or two different ones, such as time,energy")
    if not 1 <= points <= 100_000:
        raise InputError(f"points is {points}; allowed: 1 to 100000")
    asked = _Asked(w, space, algorithm, implementation, names, read_conditions(cache=cache, launch=launch), done)
    exhaustive = space.size <= points
    if exhaustive:
        for index in product(*(range(len(one.values)) for one in space.ranges)):
            asked.machine(index)
    else:
        mixtures = MIXTURES if len(names) == 2 else (1.0,)
        for number, weight in enumerate(mixtures):  # all from one Sobol start, which is answered once
            _evolve(asked, weight, points * (number + 1) // len(mixtures), seed)
    machines = tuple(asked.known.values())
    if all(one.prediction is None for one in machines):
        raise InputError(f"no machine can answer: {machines[0].broken[0]}")
    return HardwareSearch(names, machines, space, exhaustive)


class _Spent(Exception):
    """All points are answered."""


def _evolve(asked: _Asked, weight: float, points: int, seed: int) -> None:
    """Let the evolution ask for machines until so many are answered, or it has converged."""
    import numpy as np
    from scipy import optimize

    ranges = asked.space.ranges

    def at(place: Any) -> Design:
        index = tuple(round(float(one)) for one in place)
        if index not in asked.known and len(asked.known) >= points:
            raise _Spent
        return asked.machine(index)

    def mixed(place: Any) -> float:
        first, *rest = at(place).objectives
        if not math.isfinite(first):
            return _INFEASIBLE
        logs = [math.log(max(value, 1e-300)) for value in (first, *rest)]
        return weight * logs[0] + (1 - weight) * logs[-1]

    def beyond(place: Any) -> Any:
        return np.array(at(place).excess)

    limits: Any = (optimize.NonlinearConstraint(beyond, 0.0, 0.0),) if asked.space.limits else ()
    bounds = optimize.Bounds(np.zeros(len(ranges)), np.array([len(one.values) - 1.0 for one in ranges]))
    with suppress(_Spent):
        optimize.differential_evolution(
            mixed, bounds, integrality=[True] * len(ranges),
            constraints=limits, init="sobol", popsize=8, maxiter=points, tol=1e-3, polish=False,
            rng=np.random.default_rng(seed),
        )  # fmt: skip
