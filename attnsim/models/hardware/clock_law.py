"""The SM clock of a call: the given one, else what short calls run at, else what the power limit allows.

A call that is long enough for the card to act (`Architecture.slowed_from_s` to `slowed_to_s`) runs at the clock f at
which static power and the power of its counted work are the limit::

    limit - static = (chip x f / f0 + memory) / (clocks x f0 / f + fixed)

`chip` and `memory` are joules at the full clock f0. An operation on the chip takes energy in proportion to the clock
("voltage exponent" in ``models/hardware/energy.csv``), a byte from HBM takes the same at any. `clocks` and `fixed` are
the parts of the call's time that follow the clock and that do not: the L2 and HBM have clocks of their own, which stay
as they are. Each play tells the two parts at its own clock.
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
"""What set a call's clock: "load" is that of a card that is not cold, "least" the lowest, where power asks for less."""

Value = float | Floats
"""Of one call, or a column of several."""

Timed = tuple[Value, Value]
"""Time of a call, and the part of it that the clock does not change."""


MOST_PLAYS = by_hand(5, "times that a call is played to find the clock that its power allows")
SAME_CLOCK = by_hand(0.002, "relative difference of clocks below which a call is not played again")


@dataclass(frozen=True, slots=True)
class ClockLaw:
    """What the clock of long calls on a GPU follows from.

    Parameters
    ----------
    capability : int
        90 for compute capability 9.0.
    tensor_hz : float
        Clock at which the energies of the chip hold.
    static_w : float
        Of the unchanged GPU: a hypothetical one gets the static power of what is added on top of its limit.
    from_s, to_s : float
        Length of a call from which on power slows it, and from which on it does so wholly.
    least_hz : float
        Clock below which power slows no call.
    """

    capability: int
    tensor_hz: float
    static_w: float
    from_s: float
    to_s: float
    least_hz: float


@lru_cache(maxsize=256)
def clock_law(gpu: Gpu) -> ClockLaw:
    """The law of a GPU."""
    base, capability = gpu.unchanged, gpu.compute_capability_number
    row = architecture_of(capability)
    static_w = constants(capability)["static"].typical * base.power.tdp_w
    return ClockLaw(capability, base.clock.tensor_hz, static_w, row.slowed_from_s, row.slowed_to_s, row.least_clock_hz)


def joules(capability: int, dtype: str, **counts: float) -> tuple[float, float]:
    """Energy on the chip at the clock of the tensor peak, and of the memory.

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
    """Part of the full clock at which work takes no more than some power.

    Parameters
    ----------
    clocks_s, fixed_s : float or ndarray
        Of the call at the full clock: what follows the clock, and what does not.
    chip_j, memory_j : float or ndarray
        Energy of its work at the full clock; on the chip a picojoule at least.
    power_w : float or ndarray
        What the limit leaves beside static power; a watt at least.
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
    """Part of the full clock at which a call runs.

    Each play says which clock its power would allow, if what no clock changes stayed as it is (a tangent). From the
    second play below the full clock on, the next is on the straight line through the last two: as the memory begins to
    hold kernels up, tangents come closer by less than half each time, or go to and fro.

    Parameters
    ----------
    full : (float or ndarray, float or ndarray)
        Time of the call at the full clock, and what of it no clock changes there.
    time_at : callable
        The same at a part of the full clock. It is asked until the clock stays within `SAME_CLOCK`, `MOST_PLAYS` - 1
        times at most; the answer is the last part that it was asked for.
    chip_j, memory_j, power_w : float or ndarray
        As `clock_share` takes them.
    felt : float or ndarray
        How far the limit is felt, from `limit_felt`.
    least : float or ndarray
        Part of the full clock below which power slows no call.
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
    """How far, 0 to 1, a call of this length at the full clock feels its limit; between the two by the logarithm."""
    return np.asarray(np.clip(np.log(time_s / from_s) / np.log(to_s / from_s), 0.0, 1.0))
