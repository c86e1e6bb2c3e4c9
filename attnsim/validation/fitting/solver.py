"""Robust least squares on a problem, and how well its rows determine each number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnsim.models.calibrations.numbers import OPEN, Numbers
from attnsim.validation.fitting.problem import Key, Problem

ROBUST_SCALE = 0.05
"""Residuals beyond about 5 % weigh linearly instead of quadratically (soft L1)."""
TOLERANCE = 1e-3
"""Relative change of the loss, or of a coordinate, at which a fit stops: below it waves make the loss a staircase."""


@dataclass(frozen=True, eq=False)
class Solution:
    """What a fit found.

    Parameters
    ----------
    numbers : dict of str to Numbers
        By implementation.
    units : ndarray
        ``[keys]``: unit coordinates of the free numbers.
    ranges : dict of (str, str) to (float, float)
        95 % confidence interval of each free number.
    jacobian : ndarray
        ``[rows + keys, keys]``: derivatives of `Problem.pulled` there.
    variance : float
        Of the residuals.
    """

    numbers: dict[str, Numbers]
    units: NDArray[np.float64]
    ranges: dict[Key, tuple[float, float]]
    jacobian: NDArray[np.float64]
    variance: float

    def undetermined(self, keys: Sequence[Key]) -> tuple[Key, ...]:
        """Numbers that the rows leave open.

        The widest interval is held first, then the widest of the rest, until every number left is determined: two
        numbers that do the same to every row are both open, but once one of them is held the other is not.
        """
        free, held = list(range(len(keys))), []
        while len(free) > 1:
            widths = 2 * _spreads(self.jacobian[:, free], self.variance)
            widest = int(np.argmax(widths))
            if widths[widest] < OPEN:
                break
            held.append(free.pop(widest))
        return tuple(keys[index] for index in sorted(held))


def solve(problem: Problem, start: NDArray[np.float64], iterations: int) -> Solution:
    """Minimise the soft-L1 loss of log time within the bounds, from unit coordinates ``[keys]``."""
    from scipy.optimize import least_squares

    found = least_squares(
        problem.pulled,
        start,
        jac=problem.jacobian,
        bounds=(0.0, 1.0),
        loss="soft_l1",
        f_scale=ROBUST_SCALE,
        max_nfev=iterations,
        x_scale=0.2,
        ftol=TOLERANCE,
        xtol=TOLERANCE,
    )
    residuals, jacobian = np.asarray(found.fun), np.asarray(found.jac)
    count = len(problem.rows)
    variance = float(residuals[:count] @ residuals[:count]) / max(1, count - len(start))
    spreads = _spreads(jacobian, variance)
    ends = np.clip([found.x - spreads, found.x + spreads], 0, 1).T.tolist()
    ranges = {
        key: (problem.definition(key).value(low), problem.definition(key).value(high))
        for key, (low, high) in zip(problem.keys, ends, strict=True)
    }
    return Solution(problem.numbers(found.x), found.x, ranges, jacobian, variance)


def _spreads(jacobian: NDArray[np.float64], variance: float) -> NDArray[np.float64]:
    """Half-widths of the 95 % confidence intervals in unit coordinates, ``[keys]``."""
    covariance = variance * np.linalg.pinv(jacobian.T @ jacobian)
    return np.asarray(1.96 * np.sqrt(np.maximum(np.diag(covariance), 0.0)))
