"""Picojoules per unit of work, and static power: each with an interval, a kind and a source.

What differs by architecture, the tensor cores and the process node, is in
:mod:`attnsim.models.hardware.architectures`. The node's factors are assumed: the low ends follow what TSMC states for
logic at equal speed (16 nm: 60 % less than 28 nm; 7 nm: 60 % less than 16 nm; 5 nm: 30 % less than 7 nm); wires and
SRAM shrink less. Energy of a tensor FLOP is with operands in registers.

Sources, as they are quoted below:

- Horowitz, "Computing's energy problem", ISSCC 2014: arithmetic at 45 nm (FP32 multiply 3.7 pJ, add 0.9 pJ).
- Dally, talks on trends in deep-learning hardware (2017 to 2023): HMMA 110 pJ for 128 FLOPs and 22 % overhead of the
  instruction, estimated for 45 nm.
- Arunkumar et al., "Understanding the future of energy efficiency in multi-module GPUs", HPCA 2019 (GPUJoule): energies
  of moving a bit on a K40 (28 nm), measured at the board: 5.32 pJ from shared memory, 15.48 pJ from the L2 to the SM
  (read through a secondary source).
- O'Connor et al., "Fine-grained DRAM", MICRO 2017: HBM2 3.9 pJ a bit. Micron, "Ultra-bandwidth solutions" (product
  page): average device power HBM2E 6.0, GDDR6 7.5, GDDR6X 7.25 pJ a bit.
- He, "Strangely, matrix multiplications on GPUs run faster when given predictable data" (thonking.ai, 2024): A100 of
  400 W, 88 W idle, 257 TFLOP/s of cuBLAS on random data at its power limit.
- Bekman, ml-engineering, "Maximum achievable matmul FLOPS": bf16 794.5 TFLOP/s on H100 SXM, 1745 on B200.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant.

    Parameters
    ----------
    low, typical, high : float
        In the unit.
    unit : str
        "pJ/FLOP", "pJ/instruction", "pJ/B", or "of TDP".
    kind : {"derived", "assumed"}
    source : str
    """

    low: float
    typical: float
    high: float
    unit: str
    kind: Literal["derived", "assumed"]
    source: str

    def times(self, low: float, typical: float, high: float) -> Constant:
        """The constant with each end scaled."""
        return replace(self, low=self.low * low, typical=self.typical * typical, high=self.high * high)


FORMAT_FACTORS = {"fp16": 1.0, "bf16": 1.0, "fp8": 0.5, "tf32": 2.0}
"""Energy of a FLOP over fp16's, assumed: every halving of the width doubles the rate of the same units."""

PADDING = (0.2, 0.5, 1.0)
"""Energy of a FLOP on padding over that of one on data, assumed: operands that are zero switch fewer transistors (He
2024 shows that they save power, not how much)."""

AT_28_NM = {
    "fp32": Constant(
        40, 40, 40, "pJ/instruction", "assumed",
        "an FP32-lane instruction at 28 nm: between Horowitz's 4.6 pJ of arithmetic with Dally's 30 pJ of fetch, "
        "decode and operands at 45 nm, and what is left of board power at full FP32 rate; scaled (assumed)",
    ),
    "exp": Constant(80, 80, 80, "pJ/instruction", "assumed", "two FP32-lane instructions"),
    "shared_memory": Constant(
        42.6, 42.6, 42.6, "pJ/B", "assumed", "GPUJoule, K40: 5.32 pJ a bit; scaled from 28 nm (assumed)"
    ),
    "l2": Constant(
        123.8, 123.8, 123.8, "pJ/B", "assumed", "GPUJoule, K40: 15.48 pJ a bit; scaled from 28 nm (assumed)"
    ),
}  # fmt: skip
"""By unit; the architecture's process node scales them. What a unit that is not here takes is in the tensor FLOP's."""

HBM_BYTE = Constant(
    31.0, 56.0, 88.0, "pJ/B", "derived",
    "low: HBM2's 3.9 pJ a bit (O'Connor 2017); typical: HBM2E's 6.0 pJ (Micron) and 1 pJ for controller and interface "
    "(assumed); high: 11 pJ (assumed)",
)  # fmt: skip
GDDR_BYTE = Constant(
    56.0, 68.0, 120.0, "pJ/B", "derived",
    "GDDR6 7.5 pJ a bit (Micron) and 1 pJ for controller and interface (assumed); high: 15 pJ (assumed)",
)  # fmt: skip
STATIC = Constant(
    0.15, 0.22, 0.33, "of TDP", "derived",
    "88 W of 400 W on an idle A100 (He 2024); high: leakage and clocks of a hot, busy chip (assumed)",
)  # fmt: skip

VOLTAGE_EXPONENTS = (0.0, 1.0, 2.0)
"""Energy of an operation over the clock, as a power: assumed. The voltage hardly falls at low clocks (0) and follows
the clock near the top, where the energy goes with its square (2)."""
