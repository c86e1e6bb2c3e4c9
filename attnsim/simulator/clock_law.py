"""The SM clock of a call: the given one, else what short calls run at, else what the power limit allows.

A call that is long enough for the card to act (`Architecture.slowed_from_s` to `slowed_to_s`) runs at the clock f at
which static power and the power of its counted work are the limit::

    limit - static = (chip x f / f0 + memory) / (time x f0 / f)

`chip` and `memory` are joules at the full clock f0. An operation on the chip takes energy in proportion to the clock
("voltage exponent" in ``models/hardware/energy.csv``), a byte from HBM takes the same at any. `time` is the call's at
f0, as if all of it were clocks. The replay plays again at that clock, and once more where the call then took less than
that, because memory bounds it. The L2 and HBM have clocks of their own, which stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from attnsim.models.arrays import Floats
from attnsim.models.by_hand import by_hand
from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.hardware.energy import PICO, constants, work
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import HBM
from attnsim.models.schedule.schedule import Kernel
from attnsim.simulator.memory import Traffic

ClockBy = Literal["given", "boost", "power"]
"""What set a call's clock."""

Value = float | Floats
"""Of one call, or a column of several."""


MOST_PLAYS = by_hand(3, "times that a call is played to find the clock that its power allows")


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
    """

    capability: int
    tensor_hz: float
    static_w: float
    from_s: float
    to_s: float


@lru_cache(maxsize=256)
def clock_law(gpu: Gpu) -> ClockLaw:
    """The law of a GPU."""
    base, capability = gpu.unchanged, gpu.compute_capability_number
    row = architecture_of(capability)
    static_w = constants(capability)["static"].typical * base.power.tdp_w
    return ClockLaw(capability, base.clock.tensor_hz, static_w, row.slowed_from_s, row.slowed_to_s)


def joules(capability: int, dtype: str, **counts: float) -> tuple[float, float]:
    """Energy on the chip at the clock of the tensor peak, and of the memory.

    Parameters
    ----------
    capability : int
    dtype, **counts
        As `attnsim.models.hardware.energy.work` takes them.
    """
    prices = constants(capability)
    spent = {name: prices[name].typical * PICO * amount for name, amount in work(dtype, **counts).items()}
    memory = spent.pop(HBM.name)
    return sum(spent.values()), memory


def spent_j(
    law: ClockLaw, gpu: Gpu, kernel: Kernel, useful: float, fp32_s: float, rows: Sequence[Traffic]
) -> tuple[float, float]:
    """Energy of a kernel's work at the full clock: on the chip, and of the memory.

    Parameters
    ----------
    law : ClockLaw
    gpu : Gpu
    kernel : Kernel
    useful : float
        Share of its matrix FLOPs that are on data.
    fp32_s : float
        Seconds that the FP32 lanes are busy at the full clock.
    rows : sequence of Traffic
        Bytes of each of its tensors.
    """
    chip, memory = joules(
        law.capability,
        kernel.dtype,
        flops=kernel.total("flops"),
        useful=kernel.total("flops") * useful,
        lanes=fp32_s * gpu.sm.count * gpu.clock.full_hz * gpu.sm.fp32_flops_per_clk / 2,
        exps=kernel.total("exps"),
        smem_bytes=kernel.total("smem_bytes"),
        l2_bytes=sum(row.l2_bytes for row in rows),
        hbm_bytes=sum(row.hbm_bytes for row in rows),
    )
    return chip * gpu.clock.full_hz / law.tensor_hz, memory


def clock_share(time_s: Value, chip_j: Value, memory_j: Value, power_w: Value) -> Floats:
    """Part of the full clock at which work takes no more than some power.

    Parameters
    ----------
    time_s : float or ndarray
        Of the call at the full clock, as if it were clocks alone.
    chip_j, memory_j : float or ndarray
        Energy of its work at the full clock.
    power_w : float or ndarray
        What the limit leaves beside static power; a watt at least.
    """
    allowed = np.maximum(power_w, 1.0) * time_s
    found = 2 * allowed / (memory_j + np.sqrt(memory_j * memory_j + 4 * chip_j * allowed))
    return np.asarray(np.minimum(1.0, found))


def limit_felt(time_s: Value, from_s: Value, to_s: Value) -> Floats:
    """How far, 0 to 1, a call of this length at the full clock feels its limit; between the two by the logarithm."""
    return np.asarray(np.clip(np.log(time_s / from_s) / np.log(to_s / from_s), 0.0, 1.0))
