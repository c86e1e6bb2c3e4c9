"""Profiles of a fit's loss on residuals that are known: intervals, alternatives, rates that no row tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from attnsim.arrays import Floats
from attnsim.models.calibrations.calibration import Alternative
from attnsim.models.calibrations.numbers import IMPLEMENTATION_NUMBERS, RATES, ImplementationNumbers, Numbers
from attnsim.validation.fitting.problem import Key, Problem
from attnsim.validation.fitting.profiles import MOST, NEAR, profiled
from attnsim.validation.fitting.solver import ROBUST_SCALE, Solution
from attnsim.validation.measured.datasets import published_rows

NAME = "flash-attn.3"
NOISE = np.where(np.arange(36) % 2, 0.04, -0.04)
"""Of 36 rows, with no trend along them."""
HALF = np.arange(36) < 18


def units_of(name: str, value: float) -> float:
    return (IMPLEMENTATION_NUMBERS | RATES)[name].coordinate(value)


@dataclass(frozen=True, eq=False)
class Known(Problem):
    """Rows whose residuals are a function of a step's wait, a block's and the L2's share, in unit coordinates."""

    of: Callable[[float, float, float], Floats | float] = lambda step, block, share: 0.0

    def residuals(self, units: Floats, owner: str = "") -> Floats:
        at = self.numbers(units)[NAME]
        step, block = (units_of(name, getattr(at.implementation, name)) for name in ("step_clks", "block_clks"))
        return (NOISE + self.of(step, block, units_of("l2_share", at.l2_share)))[:: 36 // len(self.rows)]


def fitted(of: Callable[[float, float, float], Floats | float], *names: str) -> Solution:
    keys: tuple[Key, ...] = tuple((NAME, name) for name in names)
    rows = tuple(published_rows())[:36]
    return profiled(Known(rows, keys, {NAME: ImplementationNumbers()}, of=of))


def sides(found: Solution, name: str) -> tuple[float, float]:
    """How far an interval reaches below and above the best, in unit coordinates."""
    low, high = (units_of(name, end) for end in found.ranges[NAME, name])
    best = units_of(name, getattr(found.numbers[NAME].implementation, name))
    return best - low, high - best


def test_an_interval_is_that_of_a_linear_fit_where_the_fit_is_linear() -> None:
    """Of a slope of 0.5: half-width 1.96 sd / (0.5 sqrt(rows)), longer by how much less a robust loss bends there."""
    found = fitted(lambda step, block, share: 0.5 * (step - 0.5), "step_clks")
    half = 1.96 * 0.04 / (0.5 * 6) * (1 + (0.04 / ROBUST_SCALE) ** 2) ** 0.75
    assert sides(found, "step_clks") == pytest.approx([half, half], rel=0.05)


def test_an_interval_is_long_on_the_side_that_rows_hardly_tell() -> None:
    """A wait below 0.24 hides behind other work: rows speak eight times louder above it."""
    found = fitted(lambda step, block, share: 0.5 * max(0.0, block - 0.24) + 0.07 * (block - 0.22), "block_clks")
    below, above = sides(found, "block_clks")
    assert above < 0.1
    assert below > 0.15
    farthest = min(units_of("block_clks", one.implementation["block_clks"]) for one in found.alternatives[NAME])
    assert farthest < 0.12


def test_alternatives_are_within_a_tenth_and_go_along_what_rows_leave_open() -> None:
    """Of two waits of which rows tell the sum, one is held at its prior; alternatives trade it for the other."""
    found = fitted(lambda step, block, share: 0.5 * (step + block - 0.8), "step_clks", "block_clks")
    assert 2 <= len(found.alternatives[NAME]) <= MOST
    traded = [one for one in found.alternatives[NAME] if not one.rates]
    assert all(one.loss <= 1 + NEAR for one in found.alternatives[NAME])
    steps, blocks = (
        [units_of(name, one.implementation[name]) for one in traded] for name in ("step_clks", "block_clks")
    )
    assert max(steps) - min(steps) > 0.2
    assert np.add(steps, blocks) == pytest.approx(0.8, abs=0.04)


def test_a_rate_that_rows_do_not_tell_moves_to_the_end_of_its_interval() -> None:
    found = fitted(lambda step, block, share: 0.5 * (step - 0.5), "step_clks")
    moved = [one.rates for one in found.alternatives[NAME] if one.rates]
    ends = [{name: end} for name, rate in RATES.items() for end in {rate.low, rate.high} - {rate.prior}]
    assert sorted(map(str, moved)) == sorted(map(str, ends))


def test_a_rate_that_rows_tell_goes_as_far_as_they_let_it_and_the_waits_follow() -> None:
    """A smaller share of the L2 and a longer wait do opposite things to half of the rows."""

    def of(step: float, block: float, share: float) -> Floats:
        return np.where(HALF, 0.5 * (step - 0.5) + 0.5 * (1 - share), 0.1 * (step - 0.5))

    found = fitted(of, "step_clks")
    one = next(one for one in found.alternatives[NAME] if "l2_share" in one.rates)
    moved = 1 - units_of("l2_share", one.rates["l2_share"])
    assert 0.05 < moved < 0.95, "not to the end of the interval"
    assert units_of("step_clks", one.implementation["step_clks"]) < found.units[0] - 0.5 * moved


def test_an_alternative_replaces_what_differs() -> None:
    one = Alternative(1.05, {"step_clks": 321.0}, {"l2_share": 0.9})
    then = one.of(Numbers(speed=1.1))
    assert (then.implementation.step_clks, then.l2_share, then.speed) == (321.0, 0.9, 1.1)
    assert then.implementation.block_clks == Numbers().implementation.block_clks
