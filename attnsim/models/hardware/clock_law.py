"""SM clock of a call: the given clock, or the one of short calls, or the one that the power limit allows.

A call that is long enough for the card to react (`Architecture.slowed_from_s` to `slowed_to_s`) runs at the clock f at
which static power and the power of its counted work reach the limit::

    limit - static = (chip x f / f0 + memory) / (clocks x f0 / f + fixed)

`chip` and `memory` are joules at the full clock f0. The energy of an operation on the chip is proportional to the clock
("voltage exponent" in ``models/hardware/energy.csv``); a byte from HBM takes the same energy at any clock. `clocks` and
`fixed` are the parts of the call's time that scale with the clock and that do not: the L2 and HBM have their own
clocks, which do not change. Each replay returns both parts at its clock.
No call is slowed below the least clock of the architecture, at which it may draw more than its limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from attnsim.arrays import Floats
from attnsim.by_hand import by_hand
from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.hardware.energy import PICO, constants, work
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import HBM

ClockBy = Literal["given", "boost", "load", "power", "least"]
"""Origin of a call's clock: "load" is the clock of a warm card, "least" the lowest, if power asks for less."""

Value = float | Floats
"""Value of one call, or a column of several."""

Timed = tuple[Value, Value]
"""Time of a call, and the part of it that does not depend on the clock."""


MOST_PLAYS = by_hand(5, "times that a call is played to find the clock that its power allows")
SAME_CLOCK = by_hand(0.002, "relative difference of clocks below which a call is not played again")


@dataclass(frozen=True, slots=True)
class ClockLaw:
    """Parameters that determine the clock of long calls on a GPU.

    Parameters
    ----------
    capability : int
        90 for compute capability 9.0.
    tensor_hz : float
        Clock for which the energies of the chip hold.
    static_w : float
        Static power of the unchanged GPU. For a hypothetical GPU, the static power of added units is on top of its
        limit.
    from_s, to_s : float
        Length of a call at which power begins to slow it, and at which the limit applies in full.
    least_hz : float
        Lowest clock that power leads to.
    """

    capability: int
    tensor_hz: float
    static_w: float
    from_s: float
    to_s: float
    least_hz: float


@lru_cache(maxsize=256)
def clock_law(gpu: Gpu) -> ClockLaw:
    """Clock law of a GPU."""
    base, capability = gpu.unchanged, gpu.compute_capability_number
    row = architecture_of(capability)
    static_w = constants(capability)["static"].typical * base.power.tdp_w
    return ClockLaw(capability, base.clock.tensor_hz, static_w, row.slowed_from_s, row.slowed_to_s, row.least_clock_hz)


def joules(capability: int, dtype: str, **counts: float) -> tuple[float, float]:
    """Energy on the chip at the clock of the tensor peak, and energy of the memory, in joules.

    Parameters
    ----------
    dtype, **counts
        As `attnsim.models.hardware.energy.work` takes them.
    """
    prices = constants(capability)
    spent = {name: prices[name].typical * PICO * amount for name, amount in work(dtype, **counts).items()}
    memory = spent.pop(HBM.name)
    return sum(spent.values()), memory


def clock_share(clocks_s: Value, fixed_s: Value, chip_j: Value, memory_j: Value, power_w: Value) -> Floats:
    """Fraction of the full clock at which work draws at most `power_w`.

    Parameters
    ----------
    clocks_s, fixed_s : float or ndarray
        Time of the call at the full clock that scales with the clock, and time that does not.
    chip_j, memory_j : float or ndarray
        Energy of its work at the full clock; on the chip at least a picojoule.
    power_w : float or ndarray
        Power limit less static power; at least a watt.
    """
    chip_j, power_w = np.maximum(chip_j, PICO), np.maximum(power_w, 1.0)
    rest = memory_j - power_w * fixed_s
    root = np.sqrt(rest * rest + 4 * chip_j * power_w * clocks_s)
    return np.asarray(np.minimum(1.0, (root - rest) / (2 * chip_j)))


def settled(
    full: Timed,
    time_at: Callable[[Floats], Timed],
    chip_j: Value,
    memory_j: Value,
    power_w: Value,
    felt: Value,
    least: Value,
) -> Floats:
    """Fraction of the full clock at which a call runs.

    Each replay gives the clock that its power would allow if the clock-independent time stayed constant (a tangent).
    From the second replay below the full clock on, the next clock is found by linear interpolation through the last
    two. Once memory begins to bind kernels, tangents converge by less than half each time, or oscillate.

    Parameters
    ----------
    full : (float or ndarray, float or ndarray)
        Time of the call at the full clock, and its clock-independent part.
    time_at : callable
        Returns both at a fraction of the full clock. It is called until the clock stays within `SAME_CLOCK`, at most
        `MOST_PLAYS` - 1 times; the result is the last fraction that it was called with.
    chip_j, memory_j, power_w : float or ndarray
        As for `clock_share`.
    felt : float or ndarray
        Degree to which the limit applies, from `limit_felt`.
    least : float or ndarray
        Lowest fraction of the full clock.
    """
    time_s, held_s = full
    share = np.ones_like(time_s, dtype=float)
    last = np.full((2, *share.shape), np.nan)
    for _ in range(MOST_PLAYS - 1):
        allowed = clock_share((time_s - held_s) * share, held_s, chip_j, memory_j, power_w)
        gap = np.clip(allowed, least, 1.0) ** felt - share
        slope = (gap - last[1]) / (share - last[0])
        found = share + np.divide(gap, -slope, out=np.array(gap), where=slope < 0)
        found = np.clip(found, least**felt, 1.0)
        moved = np.abs(found - share) >= SAME_CLOCK * share
        if not moved.any():
            break
        last = np.where(moved & (share < 1), (share, gap), last)
        share = np.where(moved, found, share)
        time_s, held_s = time_at(share)
    return share


def limit_felt(time_s: Value, from_s: Value, to_s: Value) -> Floats:
    """Degree, 0 to 1, to which the limit applies to a call of this length; logarithmic between the two lengths."""
    return np.asarray(np.clip(np.log(time_s / from_s) / np.log(to_s / from_s), 0.0, 1.0))
