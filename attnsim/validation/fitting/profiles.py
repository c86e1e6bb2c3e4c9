"""How far the rows of a fit let each number go, and which other numbers fit them nearly as well.

The profile of a number is the loss as it moves, with all others fitted again. Where it has risen by `NEAR` lies an
alternative, and from how fast it rises follows the number's 95 % interval, on each side by itself. Rates of the GPU,
which nobody fits, move within their own intervals (`attnsim.models.calibrations.numbers.RATES`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attnsim.by_hand import by_hand
from attnsim.models.calibrations.calibration import Alternative
from attnsim.models.calibrations.numbers import RATES, Numbers
from attnsim.validation.fitting.problem import NOISE, Key, Problem
from attnsim.validation.fitting.solver import ROBUST_SCALE, STEPS, Solution, fit_numbers, soft

NEAR = by_hand(0.1, "share by which the loss of an alternative may lie above the best; of 36 rows a 95 % interval's")
TRIES = by_hand(3, "distances that are tried for an end of a profile, the first where a linear fit has it")
MOST = by_hand(8, "alternatives that are kept of an implementation")
RISE_95 = 1.96**2 / 2
"""Rise of a loss of squares over 2, in residual variances, at the ends of a 95 % interval."""


def profiled(problem: Problem) -> Solution:
    """Fit the free numbers of a problem, with their intervals and alternatives to them."""
    best = fit_numbers(problem)
    if not problem.keys:
        return replace(best, alternatives=dict.fromkeys(best.numbers, ()))
    here = _Profiles(problem, best)
    ends = [(key, here.end(key, side)) for key in here.wide.keys for side in (-1, +1)]
    values = {key: [problem.definition(key).value(end.at_95) for one, end in ends if one == key] for key in best.keys}
    return replace(
        best,
        ranges={key: (low, high) for key, (low, high) in values.items()},
        alternatives={owner: here.alternatives(owner, ends) for owner in best.numbers},
    )


@dataclass(frozen=True, eq=False)
class End:
    """One side of the profile of a number.

    Parameters
    ----------
    units : ndarray
        ``[keys]``: unit coordinates of all numbers at its end.
    loss : float
        There, over the best.
    at_95 : float
        Unit coordinate of the number where its 95 % interval ends.
    """

    units: NDArray[np.float64]
    loss: float
    at_95: float


class _Profiles:
    """The loss around a fit, quadratic with the slopes there, and as it is."""

    def __init__(self, problem: Problem, best: Solution) -> None:
        rates = tuple(("", name) for name in RATES)
        self.wide, self.free = replace(problem, keys=(*problem.keys, *rates)), len(problem.keys)
        self.units = np.array([self._unit(key, best.numbers) for key in self.wide.keys])
        self.priors, self.doubts = problem.priors(), problem.doubts()
        at = self.pulled(self.units)
        self.loss, rows = soft(at), len(problem.rows)
        slopes = self.wide.jacobian(self.units, STEPS[0])[:rows]
        self.slopes = np.concatenate([slopes, np.eye(self.free, len(self.units)) * (NOISE / self.doubts)[:, None]])
        self.weights = 1 / np.sqrt(1 + (at / ROBUST_SCALE) ** 2)
        self.curvature = (self.slopes.T * self.weights) @ self.slopes
        variance = float(at[:rows] @ at[:rows]) / max(1, rows - self.free)
        self.rise_95 = RISE_95 * variance / self.loss

    def _unit(self, key: Key, numbers: dict[str, Numbers]) -> float:
        owner, name = key
        value = getattr(numbers[owner].implementation if owner else next(iter(numbers.values())), name)
        return self.wide.definition(key).coordinate(value)

    def pulled(self, units: NDArray[np.float64]) -> NDArray[np.float64]:
        """The residuals, then the pull of each prior, ``[rows + free keys]``: no prior pulls at a rate."""
        pull = NOISE / self.doubts * (units[: self.free] - self.priors)
        return np.concatenate([self.wide.residuals(units), pull])

    def end(self, key: Key, side: int) -> End:
        """The farthest of `TRIES` places below (-1) or above (+1) the best whose loss is within `NEAR` of it."""
        at = self.wide.keys.index(key)
        others = [index for index in range(self.free) if index != at]
        held = self.curvature[np.ix_(others, others)]
        follow = np.zeros(len(self.units))
        follow[at], follow[others] = 1.0, -np.linalg.solve(held, self.curvature[others, at])
        found, room = End(self.units, 1.0, float(self.units[at])), abs(float(side > 0) - self.units[at])
        if room < STEPS[-1]:
            return replace(found, at_95=float(side > 0))
        bend = float(self.curvature[at] @ follow)
        far = math.sqrt(2 * NEAR * self.loss / bend) if bend > 0 else room
        for _ in range(TRIES):
            far = min(far, room)
            there = np.clip(self.units + side * far * follow, 0, 1)
            seen = self.pulled(there)
            again = there.copy()
            again[others] -= np.linalg.solve(held, self.slopes[:, others].T @ (self.weights * seen))
            again = np.clip(again, 0, 1)
            loss, units = min(((soft(seen), there), (soft(self.pulled(again)), again)), key=lambda pair: pair[0])
            rise = loss / self.loss - 1
            grown = math.sqrt(self.rise_95 / rise) if rise > 0 else math.inf
            at_95 = float(self.units[at] + side * min(room, far * grown))
            if rise <= NEAR:
                found = End(units, 1 + rise, at_95)
                if far == room or rise > NEAR / 2:
                    break
            elif found.units is self.units:
                found = replace(found, at_95=at_95)
            far *= min(2.5, max(0.4, math.sqrt(0.8 * NEAR / max(rise, 1e-9))))
        return found

    def alternatives(self, owner: str, ends: Sequence[tuple[Key, End]]) -> tuple[Alternative, ...]:
        """Up to `MOST` ends of an implementation's and its GPU's profiles, far from the best and from each other."""
        mine = [index for index, key in enumerate(self.wide.keys) if key[0] in ("", owner)]
        left = [end for key, end in ends if key[0] in ("", owner)]
        kept = [End(self.units, 1.0, 0.0)]
        while left and len(kept) <= MOST:
            apart = [min(float(np.abs(one.units - other.units)[mine].max()) for other in kept) for one in left]
            if max(apart) < STEPS[-1]:
                break
            kept.append(left.pop(int(np.argmax(apart))))
        return tuple(self._alternative(owner, one) for one in kept[1:])

    def _alternative(self, owner: str, end: End) -> Alternative:
        moved: dict[str, dict[str, float]] = {owner: {}, "": {}}
        for (whose, name), unit, best in zip(self.wide.keys, end.units.tolist(), self.units.tolist(), strict=True):
            if whose in moved and unit != best:
                moved[whose][name] = float(f"{self.wide.definition((whose, name)).value(unit):.6g}")
        return Alternative(round(end.loss, 4), moved[owner], moved[""])
