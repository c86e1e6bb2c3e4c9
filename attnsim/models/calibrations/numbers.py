"""Fitted numbers: meaning, prior and bounds of each.

The chip has the rates and the kernel has the latencies: at most five latencies describe an implementation on an
architecture, and none of them scales a rate (``docs/design/calibration.md``).
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
    prior, low, high : float
        Value without a fit, and the bounds of a fit.
    scale : {"linear", "square root"}
        How the unit coordinate, in which the number is fitted, runs from `low` (0) to `high` (1): latencies, which span
        decades down to zero, by their square root.
    """

    unit: str
    prior: float
    low: float
    high: float
    meaning: str
    scale: Literal["linear", "square root"] = "linear"

    def coordinate(self, value: float) -> float:
        """The unit coordinate of a value."""
        part = min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))
        return math.sqrt(part) if self.scale == "square root" else part

    def value(self, coordinate: float) -> float:
        """The value at a unit coordinate."""
        part = coordinate * coordinate if self.scale == "square root" else coordinate
        return self.low + (self.high - self.low) * part


IMPLEMENTATION_NUMBERS: dict[str, Number] = {
    "step_clks": Number(
        "clk", 500.0, 0.0, 8000.0, "latency of one inner step: barriers and dependent issue", "square root"
    ),
    "back_clks": Number("clk", 1000.0, 0.0, 8000.0, "the same of one inner step of a backward kernel", "square root"),
    "block_clks": Number(
        "clk", 2000.0, 0.0, 40000.0, "latency of a block's prologue and epilogue together", "square root"
    ),
    "write_clks": Number(
        "clk", 1000.0, 0.0, 20000.0, "latency of a block that writes new K and V into a cache", "square root"
    ),
    "call_s": Number("s", 3e-6, 0.0, 1e-3, "fixed time of a call beside the launches of its kernels", "square root"),
}


RATES: dict[str, Number] = {
    "l2_share": Number("1", 1.0, 0.7, 1.0, "share of a microbenchmark's L2 bandwidth that a kernel reaches"),
    "hbm_share": Number("1", 1.0, 0.93, 1.0, "share of the achievable memory bandwidth that a kernel reaches"),
    "tensor_share": Number("1", 1.0, 0.95, 1.05, "tensor rate over that of the kernel's instruction path"),
}
"""Ranges of the chip's rates, which are never fitted: alternatives of a calibration vary them.

Microbenchmarks of the L2 of one card differ: 5.5 of 6.9 TB/s (Chips and Cheese over gpu-l2-cache, H100 PCIe), 5.21 of
6.16 (gpu-l2-cache over gpu-l2-stream, L40), 2.44 of 3.09 (A40). The best tenth of products that read weights from HBM
are at 0.93 to 0.99 of the best (``benchmarks/memory_share.py``). Instruction shapes of wgmma and of mma.sync
are 5 % about their mean (Luo et al., arXiv 2402.13499).
"""


@dataclass(frozen=True, slots=True)
class ImplementationNumbers:
    """Latencies that the source of a kernel does not state; :data:`IMPLEMENTATION_NUMBERS` has meaning and bounds.

    If the backward step has no latency of its own (None), the forward's applies.
    """

    step_clks: float = IMPLEMENTATION_NUMBERS["step_clks"].prior
    back_clks: float | None = None
    block_clks: float = IMPLEMENTATION_NUMBERS["block_clks"].prior
    write_clks: float = IMPLEMENTATION_NUMBERS["write_clks"].prior
    call_s: float = IMPLEMENTATION_NUMBERS["call_s"].prior


@dataclass(frozen=True, slots=True)
class Numbers:
    """All fitted numbers that a replay uses, and the speed of a build.

    Parameters
    ----------
    l2_share, hbm_share, tensor_share : float
        Shares of the rates in the GPU's file (:data:`RATES`). Never fitted; an alternative of a calibration varies one.
    speed : float
        Speed of the SMs' work in the build asked about, over the build that the numbers were fitted on. Never fitted.
    counts : str
        Kernel of ``schedule/instructions.csv`` whose instruction counts belong to the numbers; "" for the kernel's
        instruction path's.
    """

    implementation: ImplementationNumbers = field(default_factory=ImplementationNumbers)
    l2_share: float = 1.0
    hbm_share: float = 1.0
    tensor_share: float = 1.0
    speed: float = 1.0
    counts: str = ""
