"""Measures the components of trust: how far predictions err by what separates the question from the measurements.

A *group* is the rows of one source, GPU, kernel and pass, predicted with numbers that were fitted without them. A group
has components (`attnsim.api.trust`); the farthest component is its *category*. Errors are logs of measured over
predicted time.

- The square of a group's half-width is a sum of squares: one half-width for each of its components, and a multiple of
  the mean error that its calibration states.
- All half-widths are fitted together so that nine rows in ten lie inside, by quantile regression (Koenker and Bassett,
  1978) on the logarithm of |error| / half-width. No distribution of the errors is assumed, and a far outlier counts no
  more than a row just outside.
- Every group has one vote. For ratios, all steps of a kernel's pass share one vote.
- Few sources determine a component only weakly. Its logarithm is therefore drawn towards the components' mean, with
  standard deviation `OPEN`, against a loss in units of its own mean (that of an asymmetric Laplace distribution). A
  component that no source shows gets the general width.

The check leaves out a laboratory or a chip, fits the half-widths again, and counts the rows inside.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from attnsim.by_hand import by_hand
from attnsim.models.calibrations.components import COMPONENTS, NORMAL_90, RMS_OVER_MEAN, Widths

SHARE = 0.9
"""Share of the measured times that an interval should hold."""

OPEN = by_hand(
    1.0, "standard deviation of the logarithm of a component's variance about the components' mean, before data"
)
ROUNDED = by_hand(
    0.05, "log width over which the kink of the quantile loss is rounded, so that it has a slope everywhere"
)

HOME = "home"
"""Category of groups without components: predicted by their own calibration, with the group left out."""


@dataclass(frozen=True, eq=False)
class Group:
    """The rows of one source, GPU, kernel and pass.

    Parameters
    ----------
    components : tuple of str
        Components, the nearest first.
    logs : ndarray
        ``[rows]``, log of measured over predicted time.
    spread : float
        Mean size of the log errors that the calibration states; 0 for priors.
    sizes : mapping of str to float
        Multiples of components that are not 1.
    known : float
        Half-width that the range has besides the components: for a ratio, the distance of the farthest alternative on
        the side of the measured ratio.
    """

    source: str
    laboratory: str
    gpu: str
    kernel: str
    passes: str
    components: tuple[str, ...]
    logs: NDArray[np.float64]
    spread: float
    sizes: Mapping[str, float] = field(default_factory=dict)
    known: float = 0.0

    def sd(self, widths: Widths) -> float:
        """Return the standard deviation of log time that widths state for the group."""
        parts = widths.parts(self.spread, self.components)
        return math.hypot(self.known / NORMAL_90, *(sd * self.sizes.get(name, 1.0) for name, sd in parts.items()))

    @property
    def category(self) -> str:
        """The farthest component."""
        return self.components[-1] if self.components else HOME

    @property
    def bias(self) -> float:
        """Mean of the logs."""
        return float(self.logs.mean())

    @property
    def vote(self) -> tuple[object, ...]:
        """Key of its vote, shared by groups with equal source, GPU, kernel, pass and components."""
        return self.source, self.gpu, self.kernel, self.passes, self.components

    @property
    def scatter(self) -> float:
        """Standard deviation of the logs about their mean; for a single row, the calibration's stated one."""
        return float(self.logs.std(ddof=1)) if len(self.logs) > 1 else RMS_OVER_MEAN * self.spread


def measured(groups: Sequence[Group], names: Collection[str] = COMPONENTS) -> Widths:
    """Fit the widths to groups.

    Parameters
    ----------
    names : collection of str
        The components.

    Returns
    -------
    Widths
        Its standard deviations are half-widths divided by `NORMAL_90`, as of normal errors.
    """
    rows = _Rows.of_groups(groups, names)
    logs, scale = np.full(1 + len(names), _START), 1.0
    for _ in range(_ROUNDS):  # the loss's own scale
        logs = minimize(partial(rows.cost, scale=scale), logs, jac=True, method="L-BFGS-B", tol=1e-12).x
        scale = rows.loss(logs)[0] / float(rows.weights.sum())
    within, *sds = (float(half) / NORMAL_90 for half in np.exp(logs / 2))
    return Widths(NORMAL_90, within, dict(zip(names, sds, strict=True)))


_START = 2 * math.log(0.15)
"""Start value: logarithm of a squared half-width."""
_ROUNDS = 8


@dataclass(frozen=True, eq=False)
class _Rows:
    """The terms of the loss.

    Parameters
    ----------
    terms : ndarray
        ``[groups, 1 + components]``: squares of the calibration's mean error and of the components' sizes.
    known : ndarray
        ``[groups]``: squares of the half-widths besides the components.
    of, logs, weights : ndarray
        ``[rows]``: group of a row, logarithm of its error's size, its share of a vote.
    """

    terms: NDArray[np.float64]
    known: NDArray[np.float64]
    of: NDArray[np.int64]
    logs: NDArray[np.float64]
    weights: NDArray[np.float64]

    @classmethod
    def of_groups(cls, groups: Sequence[Group], names: Collection[str]) -> _Rows:
        votes = Counter(group.vote for group in groups)
        shares = [[group.sizes.get(name, 1.0) ** 2 * (name in group.components) for name in names] for group in groups]
        rows = [len(group.logs) for group in groups]
        sizes = np.concatenate([np.abs(group.logs) for group in groups])
        return cls(
            np.column_stack([[group.spread**2 for group in groups], np.array(shares).reshape(len(groups), len(names))]),
            np.array([group.known**2 for group in groups]),
            np.repeat(np.arange(len(groups)), rows),
            np.log(np.maximum(sizes, _EXACT)),
            np.repeat([1 / (len(group.logs) * votes[group.vote]) for group in groups], rows),
        )

    def loss(self, logs: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return the quantile loss of squared half-widths with these logarithms, and its gradient."""
        parts = self.terms * np.exp(logs)
        square = parts.sum(axis=1) + self.known + _EXACT**2
        off = self.logs - np.log(square)[self.of] / 2
        value = ROUNDED * np.logaddexp(0.0, off / ROUNDED) - (1 - SHARE) * off
        outside = self.weights * (1 / (1 + np.exp(-off / ROUNDED)) - (1 - SHARE))
        slope = -np.bincount(self.of, outside, len(square)) / (2 * square)
        return float((self.weights * value).sum()), slope @ parts

    def cost(self, logs: NDArray[np.float64], scale: float) -> tuple[float, NDArray[np.float64]]:
        """Return the loss in units of its scale plus the prior on the components' spread, and its gradient."""
        value, slope = self.loss(logs)
        apart = np.concatenate([[0.0], logs[1:] - logs[1:].mean()]) / OPEN
        return value / scale + float((apart**2).sum()) / 2, slope / scale + apart / OPEN


_EXACT = 1e-4
"""Smallest error size; smaller errors count as this."""


def needed(groups: Sequence[Group]) -> float:
    """Return the half-width that holds `SHARE` of the rows of some groups; groups have equal weight."""
    sizes = np.concatenate([np.abs(group.logs) for group in groups])
    weights = np.concatenate([np.full(len(group.logs), 1 / len(group.logs)) for group in groups])
    order = np.argsort(sizes)
    total = np.cumsum(weights[order])
    return float(sizes[order][np.searchsorted(total, SHARE * total[-1])])


def _half(widths: Widths, group: Group) -> float:
    return widths.factor * group.sd(widths)


@dataclass(frozen=True, slots=True)
class Check:
    """Result of a check with widths that were fitted without a group: share of its rows inside, and its half-width."""

    inside: Mapping[Group, float]
    half: Mapping[Group, float]


def left_out(groups: Sequence[Group], key: Callable[[Group], str], names: Collection[str] = COMPONENTS) -> Check:
    """Check the groups of each laboratory (or chip, by `key`) with widths from all others."""
    inside: dict[Group, float] = {}
    half: dict[Group, float] = {}
    for value in sorted({key(group) for group in groups}):
        widths = measured([group for group in groups if key(group) != value], names)
        for group in groups:
            if key(group) == value:
                half[group] = _half(widths, group)
                inside[group] = float((np.abs(group.logs) <= half[group]).mean())
    return Check(inside, half)


def components_table(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return the components with their estimates and checks, one line per category.

    Returns
    -------
    list of dict
        ``component, sources, laboratories, groups, within, sd, half_width, needed, ratio, held, held_chip``:
        `within` is the standard deviation of log time inside the groups, `sd` the component's. `half_width` is the
        median stated half-width of the category's groups, `needed` the one that would hold 90 % of their rows, `ratio`
        the first over the second. `held` and `held_chip` are the shares of rows inside, with equal weight of groups,
        with widths from other laboratories and from other chips.
    """
    widths = measured(groups)
    laboratories, chips = left_out(groups, lambda group: group.laboratory), left_out(groups, lambda group: group.gpu)
    table = []
    for name in (HOME, *COMPONENTS):
        members = [group for group in groups if group.category == name]
        line: dict[str, Any] = {
            "component": name,
            "sources": len({group.source for group in members}),
            "laboratories": len({group.laboratory for group in members}),
            "groups": len(members),
            "within": None,
            "sd": widths.sd.get(name, 0.0),
            **dict.fromkeys(("half_width", "needed", "ratio", "held", "held_chip")),
        }
        if members:
            stated, wanted = float(np.median([_half(widths, group) for group in members])), needed(members)
            line |= {
                "within": float(np.sqrt(np.mean([group.scatter**2 for group in members]))),
                "half_width": stated,
                "needed": wanted,
                "ratio": stated / wanted,
                "held": float(np.mean([laboratories.inside[group] for group in members])),
                "held_chip": float(np.mean([chips.inside[group] for group in members])),
            }
        table.append({key: round(value, 4) if isinstance(value, float) else value for key, value in line.items()})
    return table
