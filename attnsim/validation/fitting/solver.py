"""Robust least squares on a problem, from its priors and other starts, and how well its rows determine each number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from attnsim.models.calibrations.calibration import Alternative
from attnsim.models.calibrations.numbers import OPEN, Numbers
from attnsim.validation.fitting.problem import Key, Problem

ROBUST_SCALE = 0.05
"""Residuals beyond about 5 % weigh linearly instead of quadratically (soft L1)."""
STEPS = (0.1, 0.02)
"""Finite-difference steps of unit coordinates. Waves make the loss a staircase: a fit goes down it by wide steps, which
see over its jumps, and then by narrow ones. Narrower ones fall between the jumps."""
TOLERANCE = 0.1
"""Relative change of the loss, or of a coordinate, at which a fit stops: a part of its step."""
IDLE = 0.011
"""Unit coordinate below which a number is at its lowest value: a fit begins 0.01 inside its bounds."""
STARTS = (0.25, 0.45, 0.75)
"""Unit coordinates of all free numbers in the starts beside the priors."""
THINNED = 3
"""Every third row tells a start that leads to a worse minimum."""
SHORT, LONG = 6, 40
"""Most evaluations of a start on these rows, and with each step from the best of them on all rows."""


@dataclass(frozen=True, eq=False)
class Solution:
    """The result of a fit.

    Parameters
    ----------
    keys : tuple of (str, str)
        The numbers that stayed free; the others that were free are at their priors.
    numbers : dict of str to Numbers
        By implementation.
    units : ndarray
        ``[keys]``: unit coordinates of the free numbers.
    covariance : ndarray
        ``[keys, keys]`` of those, from what the rows and the priors say, as far as the fit is linear.
    loss : float
        Soft-L1 loss with the pull of the priors.
    converged : bool
        Whether the loss or the coordinates stopped changing before the evaluations ran out.
    ranges : mapping of (str, str) to (float, float)
        95 % confidence interval of each free number, from its profile (`attnsim.validation.fitting.profiles`).
    alternatives : mapping of str to tuple of Alternative
        By implementation: other numbers that fit the rows nearly as well.
    """

    keys: tuple[Key, ...]
    numbers: dict[str, Numbers]
    units: NDArray[np.float64]
    covariance: NDArray[np.float64]
    loss: float
    converged: bool
    ranges: Mapping[Key, tuple[float, float]] = field(default_factory=dict)
    alternatives: Mapping[str, tuple[Alternative, ...]] = field(default_factory=dict)

    def idle(self) -> tuple[Key, ...]:
        """Numbers that ended at the lowest value, no wait at all."""
        return tuple(key for key, unit in zip(self.keys, self.units, strict=True) if unit < IDLE)

    def undetermined(self, priors: NDArray[np.float64]) -> tuple[Key, ...]:
        """Numbers that the rows leave open: the 95 % interval covers `OPEN` of the range, and the prior ``[keys]``.

        The widest is put at its prior first, and the others go where it then leaves them (as far as the fit is linear),
        until none is open: two numbers that do the same to every row are both open, but once one of them is held the
        other is not.
        """
        covariance = self.covariance
        units, free, held = self.units.copy(), list(range(len(self.keys))), []
        while free:
            half = 1.96 * np.sqrt(np.maximum(np.diag(covariance), 0.0))
            here = np.abs(units - priors)[free] <= half
            widths = np.where(here, 2 * half, 0.0)
            widest = int(np.argmax(widths))
            if widths[widest] < OPEN:
                break
            column = covariance[:, widest] / covariance[widest, widest]
            units[free] += column * (priors[free[widest]] - units[free[widest]])
            covariance = covariance - np.outer(column, covariance[widest])
            covariance = np.delete(np.delete(covariance, widest, 0), widest, 1)
            held.append(free.pop(widest))
        return tuple(self.keys[index] for index in sorted(held))


def fit_numbers(problem: Problem) -> Solution:
    """Fit the free numbers of a problem; those that its rows leave open end at their priors or at no wait at all.

    After `fit_free` open numbers are held, and so are those that ended at no wait, and the fit is solved again, until
    the rows determine every number that is left: with what is held at the priors and at zero, from where it was and
    from the priors, since what is held may have kept the others elsewhere.
    """
    found = fit_free(problem)
    while open_ := found.undetermined(problem.priors()) or found.idle():
        kept = found.units[[key not in open_ for key in found.keys]]
        tried = problem.held(open_), problem.held(open_, at_prior=False)
        again = [(one, of) for of in tried for one in (solve(of, kept, STEPS[-1]), descend(of, of.priors()))]
        found, problem = min(again, key=lambda pair: pair[0].loss)
    return found


def fit_free(problem: Problem) -> Solution:
    """Fit the free numbers of a problem; those that its rows leave open end near their priors.

    The fit begins at the priors and at `STARTS`, and follows the best of them to convergence. Nothing but the rows and
    the priors enters, so that a fit gives the same numbers each time.
    """
    few = replace(problem, rows=problem.rows[::THINNED])
    starts = [problem.priors(), *(np.full(len(problem.keys), place) for place in STARTS)]
    best = min((solve(few, start, STEPS[0], SHORT) for start in starts), key=lambda found: found.loss)
    return descend(problem, best.units)


def descend(problem: Problem, start: NDArray[np.float64]) -> Solution:
    """Fit with one step after the other, to convergence, from unit coordinates ``[keys]``."""
    for step in STEPS:
        found = solve(problem, start, step)
        start = found.units
    return found


def solve(problem: Problem, start: NDArray[np.float64], step: float, evaluations: int = LONG) -> Solution:
    """Minimise the soft-L1 loss of log time, and of the priors, within the bounds, from unit coordinates ``[keys]``."""
    if not problem.keys:
        return Solution((), problem.numbers(start), start, np.zeros((0, 0)), soft(problem.residuals(start)), True)
    found = least_squares(
        problem.pulled,
        np.clip(start, 0.01, 0.99),
        jac=partial(problem.jacobian, step=step),
        bounds=(0.0, 1.0),
        loss="soft_l1",
        f_scale=ROBUST_SCALE,
        max_nfev=evaluations,
        x_scale=0.2,
        ftol=TOLERANCE * step,
        xtol=TOLERANCE * step,
    )
    count = len(problem.rows)
    residuals, slopes = np.asarray(found.fun)[:count], np.asarray(found.jac)[:count]
    variance = float(residuals @ residuals) / max(1, count - len(start))
    covariance = np.linalg.inv(slopes.T @ slopes / variance + np.diag(problem.doubts() ** -2.0))
    return Solution(problem.keys, problem.numbers(found.x), found.x, covariance, float(found.cost), bool(found.success))


def soft(residuals: NDArray[np.float64]) -> float:
    """The soft-L1 loss that a fit minimises."""
    return float(ROBUST_SCALE**2 * np.sum(np.sqrt(1 + (residuals / ROBUST_SCALE) ** 2) - 1))
