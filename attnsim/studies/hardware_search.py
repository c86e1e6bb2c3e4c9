"""Searches for the best hardware for a question under limits, by SciPy's differential evolution.

Small spaces are searched exhaustively. In larger ones, an evolution with a Sobol start (Storn and Price, J. Global
Optim. 11, 1997; constraints after Lampinen, CEC 2002; both as in `scipy.optimize.differential_evolution`) minimises
each objective alone and mixtures of two. All evaluated machines are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Unpack

import numpy as np
from scipy import optimize

from attnsim.api.asking import Given, read_conditions
from attnsim.api.comparing.ratios import Ratio
from attnsim.api.comparing.splitting import MOST, Split, differing, shared_out
from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.area import area_mm2, cost_usd
from attnsim.models.hardware.gpu import Change, Gpu
from attnsim.models.hardware.sections import Interval
from attnsim.models.hardware.units import RESULTS, column
from attnsim.models.question.workload import Workload
from attnsim.studies.hardware_case import NOT_OF_CASES, Answered, Case, speedup_of
from attnsim.studies.hardware_machines import INFEASIBLE, Design, Evaluator, Mix, compared
from attnsim.studies.hardware_space import Prices, Space, check_name, with_figures

POINTS = 200
MIXTURES = (1.0, 0.0, 0.5, 0.25, 0.75)
"""Weights of the first of two objectives (their logarithms are mixed), in search order."""
ANOMALIES = by_hand(
    0.02, "difference of two replayed times that may be an anomaly of scheduling (docs/design/what-if.md)"
)


@dataclass(frozen=True, slots=True)
class HardwareSearch:
    """The result of a hardware search.

    Parameters
    ----------
    machines : tuple of Design
        All evaluated machines, in order of evaluation.
    exhaustive : bool
        True if every machine of the space was evaluated.
    unchanged : Design
        The GPU from which the search starts, on tiles chosen in the same way as the machines'.
    """

    objectives: tuple[str, ...]
    machines: tuple[Design, ...]
    space: Space
    exhaustive: bool
    unchanged: Design
    mix: Mix
    answered: Callable[[Gpu], tuple[Answered, ...]] = field(repr=False, compare=False, default=lambda gpu: ())

    @property
    def feasible(self) -> tuple[Design, ...]:
        """Machines within the limits, sorted by the first objective."""
        good = [one for one in self.machines if not one.broken]
        return tuple(sorted(good, key=lambda one: one.objectives))

    @property
    def front(self) -> tuple[Design, ...]:
        """Pareto front: feasible machines that no other one beats in every objective."""
        found: list[Design] = []
        for one in self.feasible:  # ascending in the first objective: the last one has to fall
            if not found or one.objectives[-1] < found[-1].objectives[-1]:
                found.append(one)
        return tuple(found)

    def alike(self, one: Design, other: Design) -> bool:
        """True if the model cannot distinguish the times of two machines.

        That is so if the range of their ratio includes 1, or they differ by at most the scheduling anomalies
        (`ANOMALIES`).
        """
        both = one.answer and other.answer and (one.answer.predictions, other.answer.predictions)
        ratio = compared(*both, self.mix) if both else None
        return ratio is not None and (ratio.low <= 1 <= ratio.high or abs(ratio.value - 1) <= ANOMALIES)

    def alike_runs(self, machines: Sequence[Design]) -> list[list[int]]:
        """Group machines by time: each run holds the machines that cannot be distinguished from its fastest one."""
        order = sorted((one.answer.time_s.typical, at) for at, one in enumerate(machines) if one.answer)
        runs: list[list[int]] = []
        for _, at in order:
            if runs and self.alike(machines[runs[-1][0]], machines[at]):
                runs[-1].append(at)
            else:
                runs.append([at])
        return [sorted(run) for run in runs]


def search_hardware(
    workloads: Workload | Sequence[Case], space: Space, algorithm: str | None = None, *,
    implementation: str | None = None, objectives: Sequence[str] = ("time",), prices: Prices | None = None,
    points: int = POINTS, seed: int = 0, done: Callable[[int], object] = lambda count: None, **given: Unpack[Given],
) -> HardwareSearch:  # fmt: skip
    """Find the machines that answer a question best within limits.

    Parameters
    ----------
    workloads : Workload or sequence of Case
        One workload, or several cases with weights: calls or whole layers (`attnsim.studies.hardware_case`).
    algorithm : str, optional
        Of the attention; default: flash, and for a layer the mechanism that supports its latent or mask.
    implementation : str, optional
        As in `attnsim.predict`.
    objectives : sequence of str
        One or two of "time", "energy", "power", "area" and "cost", or a figure of the GPU; each minimised.
    prices : Prices, optional
        Definition of "cost"; default: dies, memory and package by published prices.
    points : int
        Largest number of machines to evaluate.
    seed : int
        Of the evolution; equal seeds give equal results.
    done : callable
        Called with the number of newly evaluated machines.
    given
        Conditions as for `attnsim.predict`: cache, launch and calibration.

    Raises
    ------
    InputError
        For unknown objectives, if no machine can answer, or if area or cost is wanted and not known.
    """
    names = tuple(objectives)
    for name in names:
        check_name(name, "--minimise")
    if not 1 <= len(names) <= 2 or len(set(names)) < len(names):
        raise InputError(f"--minimise {', '.join(names)}: give one or two different ones, such as time,energy")
    if not 1 <= points <= 100_000:
        raise InputError(f"points is {points}; allowed: 1 to 100000")
    cases = (Case(workloads),) if isinstance(workloads, Workload) else tuple(workloads)
    wanted = {*names, *(limit.name for limit in space.limits)}
    if "area" in wanted:
        area_mm2(space.gpu)
    if "cost" in wanted:
        (prices.cost if prices else cost_usd)(space.gpu)
    conditions = read_conditions(of="a search of hardware", without=NOT_OF_CASES, **given)

    def shipped(gpu: Gpu) -> tuple[Answered, ...]:
        return tuple(case.answered(gpu, algorithm, implementation, conditions) for case in cases)

    base = shipped(space.gpu)
    evaluator = Evaluator(Mix.of(cases, base), space, algorithm, implementation, names, conditions, prices, done)
    mix = evaluator.mix = Mix.of(cases, [evaluator.retuned(case, one) for case, one in zip(cases, base, strict=True)])
    unchanged = evaluator.measure_unchanged()
    space = evaluator.space
    exhaustive = space.size <= points
    if exhaustive:
        for index in product(*(range(len(one.values)) for one in space.ranges)):
            evaluator.machine(index)
    else:
        mixtures = MIXTURES if len(names) == 2 else (1.0,)
        for number, weight in enumerate(mixtures):  # all from one Sobol start, which is answered once
            _evolve(evaluator, weight, points * (number + 1) // len(mixtures), seed)
    machines = tuple(evaluator.known.values())
    if all(one.answer is None for one in machines):
        raise InputError(f"no machine can answer: {machines[0].broken[0]}")
    return HardwareSearch(names, machines, space, exhaustive, unchanged, mix, shipped)


class _Spent(Exception):
    """All points are used up."""


def _evolve(evaluator: Evaluator, weight: float, points: int, seed: int) -> None:
    """Run the evolution until so many machines are evaluated, or it has converged."""
    ranges = evaluator.space.ranges

    def at(place: Any) -> Design:
        index = tuple(round(float(one)) for one in place)
        if index not in evaluator.known and len(evaluator.known) >= points:
            raise _Spent
        return evaluator.machine(index)

    def mixed(place: Any) -> float:
        first, *rest = at(place).objectives
        if not math.isfinite(first):
            return INFEASIBLE
        logs = [math.log(max(value, 1e-300)) for value in (first, *rest)]
        return weight * logs[0] + (1 - weight) * logs[-1]

    def beyond(place: Any) -> Any:
        return np.array(at(place).excess)

    limits: Any = (optimize.NonlinearConstraint(beyond, 0.0, 0.0),) if evaluator.space.limits else ()
    bounds = optimize.Bounds(np.zeros(len(ranges)), np.array([len(one.values) - 1.0 for one in ranges]))
    with suppress(_Spent):
        optimize.differential_evolution(
            mixed,
            bounds,
            integrality=[True] * len(ranges),
            constraints=limits,
            init="sobol",
            popsize=8,
            maxiter=points,
            tol=1e-3,
            polish=False,
            rng=np.random.default_rng(seed),
        )


def rows_of(found: HardwareSearch) -> list[dict[str, Any]]:
    """Return the unchanged machine and all others as plain records, SI units."""
    front = {id(one) for one in found.front}
    machines = (found.unchanged, *found.machines)
    return [_row(number, one, found, id(one) in front) for number, one in enumerate(machines)]


def _row(number: int, one: Design, found: HardwareSearch, front: bool) -> dict[str, Any]:
    answer = one.answer
    results = answer.results if answer else dict.fromkeys(RESULTS)
    ratio = answer.speedup if answer else None
    cases = found.mix.cases if len(found.mix.cases) > 1 else ()
    parts = answer.predictions if answer else [None] * len(cases)
    return {
        "machine": number,
        "unchanged": number == 0,
        **one.figures,
        **{column: value for name, result in results.items() for column, value in ends(name, result).items()},
        **{f"time_s of {case.name}": part and part.time_s for case, part in zip(cases, parts, strict=False)},
        **{
            f"speedup of {case.name}": (own := part and speedup_of(base, part)) and own.value
            for case, base, part in zip(cases, found.mix.base, parts, strict=False)
        },
        "speedup": ratio and ratio.value,
        "speedup_low": ratio and ratio.low,
        "speedup_high": ratio and ratio.high,
        "busiest": _joined([part.busiest or "" for part in answer.predictions]) if answer else None,
        "tile": _joined([part.tile for part in answer.predictions]) if answer else "",
        "trust": _joined([part.trust.level for part in answer.predictions]) if answer else None,
        "feasible": not one.broken,
        "front": front,
        "breaks": "; ".join(one.broken),
    }


def ends(name: str, result: Interval | None) -> dict[str, float | None]:
    """Return the columns of a result and of the ends of its range."""
    typical, low, high = (result.typical, result.low, result.high) if result else (None, None, None)
    return {column(name): typical, column(name, "low"): low, column(name, "high"): high}


def _joined(words: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(words))


@dataclass(frozen=True, slots=True)
class MixAnswer:
    """A machine's answers to all workloads of a mix, in the form that :func:`attnsim.split` takes."""

    mix: Mix
    answers: tuple[Answered, ...]

    @property
    def time_s(self) -> float | None:
        """Seconds of the mix's calls; None if one does not fit the memory."""
        times = [one.time_s for one in self.answers]
        pairs = zip(self.mix.calls, times, strict=True)
        return None if None in times else sum(number * (time or 0.0) for number, time in pairs)

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes that make the machine hypothetical."""
        return self.answers[0].changes

    def speedup_over(self, other: MixAnswer) -> Ratio | None:
        """Return the speedup over another machine."""
        return compared(other.answers, self.answers, self.mix)

    def to_dict(self) -> dict[str, object]:
        """Return plain types."""
        return {"time_s": self.time_s, "changes": list(map(str, self.changes))}


def split_best(found: HardwareSearch) -> Split[MixAnswer] | None:
    """Split the speedup of the best machine within the limits among its figures (:func:`attnsim.split`).

    Tiles are the shipped ones.

    Returns
    -------
    Split or None
        None if no machine keeps the limits, or the best one has fewer than two changed figures.

    Raises
    ------
    InputError
        If more than `MOST` figures differ, or the figures are not valid one by one.
    """
    if not found.feasible:
        return None
    machine = with_figures(found.space.gpu, found.feasible[0].figures)
    number = len(differing(found.space.gpu, machine))
    if number < 2:
        return None
    if number > MOST:
        raise InputError(
            f"the best machine has {number} changed figures, of which every subset is replayed; most: {MOST}"
        )
    return shared_out(found.space.gpu, machine, lambda gpu: MixAnswer(found.mix, found.answered(gpu)))
