"""How far predictions err by what separates the question from the measurements: the components of trust, measured.

The rows of one source, GPU, kernel and pass are a *group*, predicted with numbers that saw none of them. A group
carries components (`attnsim.api.carried`); the farthest is its *category*. Errors are logs of measured over predicted
time:

- *within* a group they scatter, at home by a multiple of the calibration's own held-out errors;
- *between* groups the mean moves, by the sum of the components that the group carries. Their variances are the
  likeliest ones for the groups' means, which are taken to follow Student's t (one broken table does not set a
  component), every source having one vote for each set of components.

Few sources say little about a variance: its logarithm is drawn to that of a common one, `OPEN` either way, and what
remains open about it widens it. Two components that always come together share alike. One factor for all half-widths is
then measured, so that nine rows in ten lie inside, with the row's laboratory left out of the components.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.models.by_hand import by_hand
from attnsim.models.calibrations.components import COMPONENTS, NORMAL_90, RMS_OVER_MEAN, Widths

SHARE = 0.9
"""Share of the measured times that an interval is meant to hold."""

OPEN = by_hand(1.0, "standard deviation of the logarithm of a component's variance about the common one's, before data")
TAILS = by_hand(4.0, "degrees of freedom of the distribution of groups' means: a few are far off")

HOME = "home"
"""Category of groups that carry nothing: their own calibration, with the group left out."""


@dataclass(frozen=True, eq=False)
class Group:
    """The rows of one source, GPU, kernel and pass.

    Parameters
    ----------
    source, laboratory, gpu, kernel, passes : str
    carried : tuple of str
        Components, the nearest first.
    logs : ndarray
        ``[rows]``, log of measured over predicted time.
    spread : float
        Mean size of the log errors that the calibration states of itself; 0 for priors.
    sizes : mapping of str to float
        By how much of a component they are separated, where that is not 1.
    """

    source: str
    laboratory: str
    gpu: str
    kernel: str
    passes: str
    carried: tuple[str, ...]
    logs: NDArray[np.float64]
    spread: float
    sizes: Mapping[str, float] = field(default_factory=dict)

    def sd(self, widths: Widths) -> float:
        """Standard deviation of log time that widths state for the group."""
        parts = widths.parts(self.spread, self.carried)
        return math.hypot(*(sd * self.sizes.get(name, 1.0) for name, sd in parts.items()))

    @property
    def category(self) -> str:
        """The farthest component."""
        return self.carried[-1] if self.carried else HOME

    @property
    def bias(self) -> float:
        """Mean of the logs."""
        return float(self.logs.mean())

    @property
    def scatter(self) -> float:
        """Standard deviation of the logs about their mean; of a single row what its calibration states."""
        return float(self.logs.std(ddof=1)) if len(self.logs) > 1 else RMS_OVER_MEAN * self.spread


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a component adds.

    Parameters
    ----------
    between : float
        Standard deviation of log time that it adds.
    sd : float
        The same with what the sources leave open: what trust sums up.
    """

    between: float
    sd: float


def estimate(groups: Sequence[Group], names: Collection[str] = COMPONENTS) -> dict[str, Estimate]:
    """Every component of these names, from all groups together."""
    from scipy.optimize import minimize, minimize_scalar

    means = _Means.of([group for group in groups if group.carried], names)
    number = len(names)
    every = np.ones(number)
    common = minimize_scalar(lambda log: means.unlikely(log * every)[0], bounds=_BOUNDS, method="bounded").x

    def cost(logs: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        value, slope = means.unlikely(logs)
        off = (logs - common) / OPEN
        return value + float((off**2).sum()) / 2, slope + off / OPEN

    logs = minimize(cost, common * every, jac=True, method="L-BFGS-B").x
    step = 0.05 * np.eye(number)
    curvature = np.array([(cost(logs + one)[1] - cost(logs - one)[1]) / 0.1 for one in step])
    left = np.linalg.inv((curvature + curvature.T) / 2).diagonal().clip(0, OPEN**2)
    return {
        name: Estimate(float(np.exp(log / 2)) / _AS_NORMAL, float(np.exp(log / 2 + open_ / 4)) / _AS_NORMAL)
        for name, log, open_ in zip(names, logs, left, strict=True)
    }


_AS_NORMAL = 0.831
"""The likeliest scale of Student's t with `TAILS` degrees of freedom for normal numbers of standard deviation 1."""

_BOUNDS = (2 * np.log(0.01), 2 * np.log(1.0))
"""Of the logarithm of the common variance: between 1 % and a factor of e."""


@dataclass(frozen=True, eq=False)
class _Means:
    """The groups' means: ``[groups]`` of them, their sampling variances, votes, and squared sizes of the components."""

    means: NDArray[np.float64]
    noise: NDArray[np.float64]
    votes: NDArray[np.float64]
    carries: NDArray[np.float64]

    @classmethod
    def of(cls, groups: Sequence[Group], names: Collection[str]) -> _Means:
        sets = Counter((group.source, group.carried) for group in groups)
        return cls(
            np.array([group.bias for group in groups]),
            np.array([group.scatter**2 / len(group.logs) for group in groups]),
            np.array([1 / sets[group.source, group.carried] for group in groups]),
            np.array(
                [[group.sizes.get(name, 1.0) ** 2 * (name in group.carried) for name in names] for group in groups]
            ).reshape(len(groups), len(names)),
        )

    def unlikely(self, logs: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Minus the log likelihood of variances with these logarithms, and its slope."""
        variances = np.exp(logs)
        total = self.carries @ variances + self.noise
        square = self.means**2 / (TAILS * total)
        value = self.votes * (np.log(total) / 2 + (TAILS + 1) / 2 * np.log1p(square))
        slope = self.votes / total * (1 - (TAILS + 1) * square / (1 + square)) / 2
        return float(value.sum()), (slope @ self.carries) * variances


_ROUNDS = 20


def measured(
    groups: Sequence[Group], *, crossed: bool = True, names: Collection[str] = COMPONENTS
) -> tuple[Widths, dict[str, Estimate]]:
    """The widths that the groups give, and the components behind them.

    Parameters
    ----------
    groups : sequence of Group
    crossed : bool
        Whether each laboratory's rows are scored with components that its groups did not make.
    names : collection of str
        The components.
    """
    found = estimate(groups, names)
    home, away = [[group for group in groups if bool(group.carried) == one] for one in (False, True)]
    without = {laboratory: _sds(found) for laboratory in {group.laboratory for group in away}}
    if crossed:
        without = {
            one: _sds(estimate([group for group in groups if group.laboratory != one], names)) for one in without
        }
    at_home, factor = _score(home, [group.spread for group in home]), NORMAL_90
    for _ in range(_ROUNDS):  # home holds as much as what is away, by the multiple of a calibration's own errors
        widths = {name: Widths(factor, at_home / factor, sds) for name, sds in without.items()}
        factor = _score(away, [group.sd(widths[group.laboratory]) for group in away])
    return Widths(factor, at_home / factor, _sds(found)), found


def _sds(found: Mapping[str, Estimate]) -> dict[str, float]:
    return {name: one.sd for name, one in found.items()}


def _score(groups: Sequence[Group], sds: Sequence[float]) -> float:
    """Half-width over standard deviation that holds `SHARE` of the rows of some groups."""
    scores = [np.abs(group.logs) / sd for group, sd in zip(groups, sds, strict=True)]
    return _quantile(scores, [np.full(len(one), 1 / len(one)) for one in scores])


def _quantile(values: Sequence[NDArray[np.float64]], weights: Sequence[NDArray[np.float64]]) -> float:
    """The value that `SHARE` of the weight lies at or below; that of a normal distribution without any."""
    if not values:
        return NORMAL_90
    every, weight = np.concatenate(values), np.concatenate(weights)
    order = np.argsort(every)
    total = np.cumsum(weight[order])
    return float(every[order][np.searchsorted(total, SHARE * total[-1])])


def needed(groups: Sequence[Group]) -> float:
    """The half-width that holds `SHARE` of the rows of some groups, every group counting as much."""
    return _score(groups, [1.0] * len(groups))


def _half(widths: Widths, group: Group) -> float:
    return widths.factor * group.sd(widths)


@dataclass(frozen=True, slots=True)
class Check:
    """Groups judged by widths that were set without them: share of the rows inside, and half-width of each group."""

    inside: Mapping[Group, float]
    half: Mapping[Group, float]


def left_out(groups: Sequence[Group], key: Callable[[Group], str], names: Collection[str] = COMPONENTS) -> Check:
    """Judge the groups of each laboratory (or chip: `key`) by widths from all others."""
    inside: dict[Group, float] = {}
    half: dict[Group, float] = {}
    for value in sorted({key(group) for group in groups}):
        widths, _ = measured([group for group in groups if key(group) != value], crossed=False, names=names)
        for group in groups:
            if key(group) == value:
                half[group] = _half(widths, group)
                inside[group] = float((np.abs(group.logs) <= half[group]).mean())
    return Check(inside, half)


def components_table(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """The components with their estimate and its check: one line a category.

    Returns
    -------
    list of dict
        ``component, sources, laboratories, groups, within, between, sd, half_width, needed, ratio, held, held_chip``:
        `within` and `between` are standard deviations of log time that the groups show, `sd` what trust adds;
        `half_width` the median stated one of the category's groups, `needed` the one that would hold 90 % of their
        rows, `ratio` the first over the second; `held` and `held_chip` the share of rows inside, every group counting
        as much, with widths from other laboratories and from other chips.
    """
    widths, known = measured(groups)
    laboratories, chips = left_out(groups, lambda group: group.laboratory), left_out(groups, lambda group: group.gpu)
    table = []
    for name in (HOME, *COMPONENTS):
        mine = [group for group in groups if group.category == name]
        found = known.get(name, Estimate(0.0, 0.0))
        line: dict[str, Any] = {
            "component": name, "sources": len({group.source for group in mine}),
            "laboratories": len({group.laboratory for group in mine}), "groups": len(mine), "within": None,
            "between": found.between, "sd": found.sd, "half_width": None, "needed": None, "ratio": None, "held": None,
            "held_chip": None,
        }  # fmt: skip
        if mine:
            stated, wanted = float(np.median([_half(widths, group) for group in mine])), needed(mine)
            line |= {
                "within": float(np.sqrt(np.mean([group.scatter**2 for group in mine]))),
                "half_width": stated, "needed": wanted, "ratio": stated / wanted,
                "held": float(np.mean([laboratories.inside[group] for group in mine])),
                "held_chip": float(np.mean([chips.inside[group] for group in mine])),
            }  # fmt: skip
        table.append({key: round(value, 4) if isinstance(value, float) else value for key, value in line.items()})
    return table
