"""Picojoules per unit of work, and static power, by architecture: each with an interval, a kind and a source.

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

from attnsim.models.hardware.gpu import Architecture, Gpu


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


_TENSOR: dict[Architecture, Constant] = {
    "volta": Constant(
        0.6, 1.05, 1.9, "pJ/FLOP", "assumed",
        "Dally's HMMA of 110 pJ and 22 % for 128 FLOPs at 45 nm; high: V100's 300 W less 22 % at 125 TFLOP/s",
    ),
    "turing": Constant(0.5, 1.0, 1.9, "pJ/FLOP", "assumed", "as Volta, the same node"),
    "ampere": Constant(
        0.4, 0.70, 1.2, "pJ/FLOP", "derived",
        "He 2024: (400 - 88) W at 257 TFLOP/s is the high end; typical: less what the same GEMM, in tiles of "
        "128 x 256, moves from the L2 and shared memory by the constants here",
    ),
    "ada": Constant(
        0.25, 0.41, 0.75, "pJ/FLOP", "assumed", "as Hopper, the same node; high: L40S's 350 W less 22 % at 362 TFLOP/s"
    ),
    "hopper": Constant(
        0.25, 0.41, 0.69, "pJ/FLOP", "derived",
        "Bekman's 794.5 TFLOP/s with 700 W less 22 % is the high end; typical: less what the same GEMM moves from "
        "the L2 and shared memory by the constants here",
    ),
    "blackwell": Constant(
        0.15, 0.27, 0.45, "pJ/FLOP", "assumed",
        "high: Bekman's 1745 TFLOP/s on B200 with 1000 W less 22 %; typical: Hopper's share of its high end",
    ),
}  # fmt: skip
"""Tensor-core FLOP in fp16 or bf16, operands in registers."""

FORMAT_FACTORS = {"fp16": 1.0, "bf16": 1.0, "fp8": 0.5, "tf32": 2.0}
"""Energy of a FLOP over fp16's, assumed: every halving of the width doubles the rate of the same units."""

_PADDING = (0.2, 0.5, 1.0)
"""Energy of a FLOP on padding over that of one on data, assumed: operands that are zero switch fewer transistors (He
2024 shows that they save power, not how much)."""

_NODE: dict[Architecture, tuple[float, float, float]] = {
    "volta": (0.30, 0.45, 0.65),
    "turing": (0.30, 0.45, 0.65),
    "ampere": (0.12, 0.20, 0.35),
    "ada": (0.08, 0.14, 0.25),
    "hopper": (0.08, 0.14, 0.25),
    "blackwell": (0.08, 0.14, 0.25),
}
"""Energy of moving data and of plain instructions over that of the K40's 28 nm, assumed. The low ends follow what TSMC
states for logic at equal speed (16 nm: 60 % less than 28 nm; 7 nm: 60 % less than 16 nm; 5 nm: 30 % less than 7 nm);
wires and SRAM shrink less."""

_SHARED = Constant(42.6, 42.6, 42.6, "pJ/B", "assumed", "GPUJoule, K40: 5.32 pJ a bit; scaled from 28 nm (assumed)")
_L2 = Constant(123.8, 123.8, 123.8, "pJ/B", "assumed", "GPUJoule, K40: 15.48 pJ a bit; scaled from 28 nm (assumed)")
_LANE = Constant(
    40, 40, 40, "pJ/instruction", "assumed",
    "an FP32-lane instruction at 28 nm: between Horowitz's 4.6 pJ of arithmetic with Dally's 30 pJ of fetch, decode "
    "and operands at 45 nm, and what is left of board power at full FP32 rate; scaled (assumed)",
)  # fmt: skip
_EXP = Constant(80, 80, 80, "pJ/instruction", "assumed", "two FP32-lane instructions")
_HBM = Constant(
    31.0, 56.0, 88.0, "pJ/B", "derived",
    "low: HBM2's 3.9 pJ a bit (O'Connor 2017); typical: HBM2E's 6.0 pJ (Micron) and 1 pJ for controller and interface "
    "(assumed); high: 11 pJ (assumed)",
)  # fmt: skip
_GDDR = Constant(
    56.0, 68.0, 120.0, "pJ/B", "derived",
    "GDDR6 7.5 pJ a bit (Micron) and 1 pJ for controller and interface (assumed); high: 15 pJ (assumed)",
)  # fmt: skip
_STATIC = Constant(
    0.15, 0.22, 0.33, "of TDP", "derived",
    "88 W of 400 W on an idle A100 (He 2024); high: leakage and clocks of a hot, busy chip (assumed)",
)  # fmt: skip

_WITH_HBM = (70, 80, 90, 100)
"""Compute capabilities of data-centre chips, whose memory is HBM."""

_VOLTAGE_EXPONENTS = (0.0, 1.0, 2.0)
"""Energy of an operation over the clock, as a power: assumed. The voltage hardly falls at low clocks (0) and follows
the clock near the top, where the energy goes with its square (2)."""


def constants(gpu: Gpu) -> dict[str, Constant]:
    """The constants of a GPU by unit: tensor (fp16), padding, fp32, exp, shared_memory, l2, hbm and static."""
    node = _NODE[gpu.architecture]
    tensor = _TENSOR[gpu.architecture]
    return {
        "tensor": tensor,
        "padding": replace(tensor.times(*_PADDING), kind="assumed"),
        "fp32": _LANE.times(*node),
        "exp": _EXP.times(*node),
        "shared_memory": _SHARED.times(*node),
        "l2": _L2.times(*node),
        "hbm": _HBM if gpu.compute_capability_number in _WITH_HBM else _GDDR,
        "static": _STATIC,
    }


def voltage_factor(gpu: Gpu, base: Gpu) -> tuple[float, float, float]:
    """Energy of an operation on the chip over that at the unchanged clock: low, typical, high."""
    ratio = gpu.clock.sustained_hz / base.clock.sustained_hz
    low, typical, high = (ratio**exponent for exponent in _VOLTAGE_EXPONENTS)
    return min(low, high), typical, max(low, high)
