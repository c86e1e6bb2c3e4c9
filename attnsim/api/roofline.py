"""The roofline of a GPU: ceilings, diagonals and where they meet.

After Williams, Waterman and Patterson, CACM 52(4), 2009. It goes beyond the classical picture in three ways: a ceiling
for the exponential unit, expressed in FLOP/s at the FLOPs that attention does per exponential; one for warp-level
`mma.sync` where it does not reach the tensor peak; and diagonals for the L2 and for shared memory beside HBM's, as in
the hierarchical roofline (Yang et al., arXiv 2008.11326).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import ASYNC_SHARE, ON_SM

Level = str
Unit = Literal["tensor", "mma_sync", "fp32", "exp"]
LEVELS: tuple[Level, ...] = ("hbm", "l2", "smem")
"""Levels whose bytes an answer holds."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A rate of arithmetic that nothing exceeds, at `Roofline.clock_hz`, and what kernels reach of it.

    `achievable_flops_per_s` is None where nothing was fitted for the architecture.
    """

    unit: Unit
    flops_per_s: float
    achievable_flops_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Diagonal:
    """Bandwidth of a memory level: the datasheet's, and what kernels reach."""

    level: Level
    bytes_per_s: float
    achievable_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Point:
    """A measured or predicted kernel.

    Parameters
    ----------
    name : str
    level : {"hbm", "l2", "smem"}
        The memory level whose bytes make the intensity.
    intensity : float
        Useful FLOPs per byte.
    flops_per_s : float
        Useful FLOPs over the time.
    """

    name: str
    level: Level
    intensity: float
    flops_per_s: float

    def __post_init__(self) -> None:
        if not (self.intensity > 0 and self.flops_per_s > 0):
            raise InputError(
                f"{self.name}: intensity {self.intensity:g} FLOP/byte at {self.flops_per_s:g} FLOP/s; "
                "a point needs both above 0"
            )


@dataclass(frozen=True, slots=True)
class Roofline:
    """Ceilings and diagonals of one GPU for one number format.

    Parameters
    ----------
    gpu : Gpu
    dtype : str
    flops_per_exp : float
        Useful FLOPs per exponential of the workload, 2 (d + dv) in a forward pass; it scales the "exp"
        ceiling.
    """

    gpu: Gpu
    dtype: str
    flops_per_exp: float

    def __post_init__(self) -> None:
        if not self.gpu.supports_dtype(self.dtype):
            able = ", ".join(d for d in ("fp16", "bf16", "fp8", "fp32") if self.gpu.supports_dtype(d))
            raise InputError(f"{self.gpu.id} has no {self.dtype} ceiling; it has {able}")
        if not self.flops_per_exp > 0:
            raise InputError(f"flops_per_exp is {self.flops_per_exp:g}; allowed: above 0, 2 (d + dv) forward")

    @property
    def clock_hz(self) -> float:
        """Clock of the SMs' roofs: the datasheet's of the tensor peak, or the GPU's own where that was changed."""
        clock = self.gpu.clock
        return clock.tensor_hz if clock.full_hz == self.gpu.unchanged.clock.full_hz else clock.full_hz

    @property
    def ceilings(self) -> tuple[Ceiling, ...]:
        """Tensor cores for the format by instruction path, FP32 lanes, and the exponential unit.

        What is achievable of the tensor cores is what products of the path reach.
        """
        faster = self.clock_hz / self.gpu.clock.tensor_hz
        peak = self.gpu.peak_tensor_flops_per_s(self.dtype) * faster
        part = self.gpu.mma_sync_flops_per_clk(self.dtype) / self.gpu.tensor_flops_per_clk(self.dtype)
        share = ASYNC_SHARE if self.gpu.features.wgmma or self.gpu.features.tcgen05 else part
        slower = (Ceiling("mma_sync", peak * part, peak * part),) if part < 1 else ()
        return (
            Ceiling("tensor", peak, peak * share),
            *slower,
            Ceiling("fp32", self.gpu.fp32_flops_per_s * faster),
            Ceiling("exp", self.gpu.exp_per_s * self.flops_per_exp * faster),
        )

    @property
    def diagonals(self) -> tuple[Diagonal, ...]:
        """HBM, L2 and the memories of the SMs.

        Achievable is the share of the HBM's bandwidth in the GPU's file; that of the L2 is measured.
        """
        hbm, l2 = self.gpu.hbm.bandwidth_bytes_per_s, self.gpu.l2.bandwidth_bytes_per_s
        fraction = self.gpu.hbm.achievable_fraction
        clks = self.gpu.sm.count * self.clock_hz
        on_sm = ((one.level, clks * self.gpu.get(one.figure)) for one in ON_SM if one.level)
        return (
            Diagonal("hbm", hbm, hbm * fraction),
            Diagonal("l2", l2, l2),
            *(Diagonal(level, rate, rate) for level, rate in on_sm if rate),
        )

    def ceiling(self, unit: Unit) -> float:
        """FLOP/s of one ceiling."""
        return next(c.flops_per_s for c in self.ceilings if c.unit == unit)

    def bandwidth(self, level: Level) -> float:
        """Datasheet bytes/s of one level."""
        return next(d.bytes_per_s for d in self.diagonals if d.level == level)

    def ridge(self, level: Level, unit: Unit = "tensor") -> float:
        """Intensity in FLOP/byte at which a ceiling takes over from a diagonal."""
        return self.ceiling(unit) / self.bandwidth(level)

    def reached(self, level: Level, intensity: float) -> float:
        """FLOP/s that kernels reach at an intensity of one level: the lower of its bandwidth and of the tensor cores.

        Where nothing was fitted for the tensor cores of the architecture, the datasheet's rate stands for them.
        """
        tensor = next(c for c in self.ceilings if c.unit == "tensor")
        memory = next(d for d in self.diagonals if d.level == level)
        return min(tensor.achievable_flops_per_s or tensor.flops_per_s, memory.achievable_bytes_per_s * intensity)

    def roof(self, intensities: dict[Level, float]) -> tuple[float, str]:
        """Highest FLOP/s at these intensities, and what sets it.

        Tensor cores and exponentials both have to be served, so the lower ceiling counts; the FP32 ceiling is
        shown for orientation and limits only fp32 workloads, whose tensor ceiling it is.
        """
        limits = {"tensor": self.ceiling("tensor"), "exp": self.ceiling("exp")}
        limits |= {level: self.bandwidth(level) * intensity for level, intensity in intensities.items()}
        lowest = min(limits, key=lambda name: limits[name])
        return limits[lowest], lowest
