"""The fitted numbers: what each means, its prior and its bounds.

Eight numbers describe an implementation on an architecture, of which at most four are fitted, and at most four a GPU
(``docs/design``). Each is
a physical quantity with bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from attnsim.by_hand import by_hand

OPEN = by_hand(0.5, "share of its range from which on a 95 % interval that holds the prior leaves a number open")


@dataclass(frozen=True, slots=True)
class Number:
    """Meaning, prior and bounds of one fitted number.

    Parameters
    ----------
    unit : str
    prior, low, high : float
        Value without a fit, and the bounds of a fit.
    meaning : str
    scale : {"linear", "log", "square root"}
        How the unit coordinate, in which the number is fitted, runs from `low` (0) to `high` (1): ratios by their
        logarithm, latencies, which span decades down to zero, by their square root.
    """

    unit: str
    prior: float
    low: float
    high: float
    meaning: str
    scale: Literal["linear", "log", "square root"] = "linear"

    def coordinate(self, value: float) -> float:
        """The unit coordinate of a value."""
        if self.scale == "log":
            return math.log(value / self.low) / math.log(self.high / self.low)
        part = min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))
        return math.sqrt(part) if self.scale == "square root" else part

    def value(self, coordinate: float) -> float:
        """The value at a unit coordinate."""
        if self.scale == "log":
            return float(self.low * (self.high / self.low) ** coordinate)
        part = coordinate * coordinate if self.scale == "square root" else coordinate
        return self.low + (self.high - self.low) * part


IMPLEMENTATION_NUMBERS: dict[str, Number] = {
    "tensor_efficiency": Number("1", 0.95, 0.3, 1.0, "share of the instruction path's tensor rate that is issued"),
    "smem_exposed": Number(
        "1", 0.4, 0.0, 1.0, "share of operand reads that warps make from shared memory not hidden behind the MMA"
    ),
    "softmax_instructions": Number("1/score", 5.0, 1.0, 16.0, "FP32-lane instructions per score besides the exp"),
    "interference": Number("1", 0.4, 0.0, 1.0, "share of an MMA or softmax during which the other unit stalls"),
    "step_clks": Number(
        "clk", 150.0, 0.0, 2000.0, "latency of one inner step: barriers and dependent issue", "square root"
    ),
    "block_clks": Number(
        "clk", 2000.0, 0.0, 20000.0, "latency of a block's prologue and epilogue together", "square root"
    ),
    "call_s": Number("s", 3e-6, 0.0, 3e-4, "fixed time of a call beside the launches of its kernels", "square root"),
    "extra": Number("1", 1.0, 0.125, 8.0, "implementation's own number, named by the implementation", "log"),
}

GPU_NUMBERS: dict[str, Number] = {
    "hbm_fraction": Number("1", 0.0, 0.5, 1.0, "share of the HBM bandwidth reached; prior: the GPU file's"),
    "l2_fraction": Number("1", 0.7, 0.2, 1.0, "share of the L2 bandwidth reached"),
    "l2_capacity_fraction": Number(
        "1", 0.6, 0.2, 1.0, "share of a two-partition L2 that keeps data; of one partition all"
    ),
    "launch_scale": Number("1", 1.0, 0.25, 4.0, "kernel launch cost over the GPU file's", "log"),
}


@dataclass(frozen=True, slots=True)
class ImplementationNumbers:
    """What the source of a kernel does not tell; see :data:`IMPLEMENTATION_NUMBERS` for meaning and bounds."""

    tensor_efficiency: float = IMPLEMENTATION_NUMBERS["tensor_efficiency"].prior
    smem_exposed: float = IMPLEMENTATION_NUMBERS["smem_exposed"].prior
    softmax_instructions: float = IMPLEMENTATION_NUMBERS["softmax_instructions"].prior
    interference: float = IMPLEMENTATION_NUMBERS["interference"].prior
    step_clks: float = IMPLEMENTATION_NUMBERS["step_clks"].prior
    block_clks: float = IMPLEMENTATION_NUMBERS["block_clks"].prior
    call_s: float = IMPLEMENTATION_NUMBERS["call_s"].prior
    extra: float = IMPLEMENTATION_NUMBERS["extra"].prior


@dataclass(frozen=True, slots=True)
class GpuNumbers:
    """What the datasheet does not tell; see :data:`GPU_NUMBERS`. None leaves the GPU file's figure."""

    hbm_fraction: float | None = None
    l2_fraction: float = GPU_NUMBERS["l2_fraction"].prior
    l2_capacity_fraction: float = GPU_NUMBERS["l2_capacity_fraction"].prior
    launch_scale: float = GPU_NUMBERS["launch_scale"].prior


@dataclass(frozen=True, slots=True)
class Numbers:
    """Everything fitted that a replay uses: the implementation's numbers and the GPU's; and the speed of a build.

    Parameters
    ----------
    implementation : ImplementationNumbers
    gpu : GpuNumbers
    speed : float
        Of the SMs' work in the build that is asked about, over the one that the numbers were fitted on. Never fitted.
    counts : str
        Kernel of ``schedule/instructions.csv`` whose counted instructions go with the numbers; "" where
        they go with none.
    """

    implementation: ImplementationNumbers = field(default_factory=ImplementationNumbers)
    gpu: GpuNumbers = field(default_factory=GpuNumbers)
    speed: float = 1.0
    counts: str = ""
