"""The machine: one frozen record per GPU, figures in SI units or per SM and clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from attnsim.models.errors import InputError

Kind = Literal["datasheet", "measured", "derived", "assumed"]
Architecture = Literal["volta", "turing", "ampere", "ada", "hopper", "blackwell"]


def _no_provenance() -> Mapping[str, Figure]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Figure:
    """Where one number of a GPU comes from.

    Parameters
    ----------
    value
        The number in SI units (bytes, bytes/s, Hz, s, W) or per SM and clock.
    unit
        Its unit as in `attnsim.models.hardware.figure.FIELDS`: "B/s", "FLOP/clk", "clk", ...
    kind
        "datasheet" (vendor's document), "measured", "derived" (arithmetic on other figures) or
        "assumed" (a stated rule, or a value nobody could be cited for).
    source
        Citation, or the rule.
    """

    value: float
    unit: str
    kind: Kind
    source: str


@dataclass(frozen=True, slots=True)
class Sm:
    """Limits and rates of one streaming multiprocessor, and how many there are.

    `registers` counts 32-bit registers per SM; `shared_memory_bytes` is the largest carve-out of one SM,
    `shared_memory_per_block_bytes` what one block may opt in to, `shared_memory_reserved_bytes` what the
    system takes per resident block. Rates are per SM and clock; an FMA is two FLOPs.
    """

    count: int
    max_threads: int
    max_warps: int
    max_blocks: int
    max_threads_per_block: int
    registers: int
    max_registers_per_thread: int
    shared_memory_bytes: int
    shared_memory_per_block_bytes: int
    shared_memory_reserved_bytes: int
    shared_memory_bytes_per_clk: float
    shared_memory_latency_clk: float
    fp32_flops_per_clk: float
    exp_per_clk: float
    warp_schedulers: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """Tensor-core rates per SM and clock, dense, accumulating in fp32; 0.0 where the GPU cannot.

    `mma_sync_fraction` is the share of the rate that warp-level `mma.sync` reaches: about 0.63 on Hopper,
    where only `wgmma` reaches the rest (Luo et al., arXiv 2402.13499).
    """

    fp16_flops_per_clk: float
    bf16_flops_per_clk: float
    tf32_flops_per_clk: float
    fp8_flops_per_clk: float
    mma_sync_fraction: float
    mma_latency_clk: float


@dataclass(frozen=True, slots=True)
class L2:
    """The L2 cache; `partitions` is 2 where half of it lies behind the far crossbar (A100 and its heirs)."""

    capacity_bytes: int
    bandwidth_bytes_per_s: float
    latency_clk: float
    partitions: int


@dataclass(frozen=True, slots=True)
class Hbm:
    """Device memory of any kind, GDDR too.

    `bandwidth_bytes_per_s` is the datasheet's; `achievable_fraction` the copy bandwidth over it;
    `latency_clk` the load-to-use latency in SM clocks.
    """

    capacity_bytes: int
    bandwidth_bytes_per_s: float
    achievable_fraction: float
    latency_clk: float


@dataclass(frozen=True, slots=True)
class Clock:
    """SM clocks in Hz.

    `tensor_hz` is the clock at which the datasheet's tensor peak holds (1830 MHz on H100 SXM, which boosts to
    1980 MHz); `sustained_hz` the one the replay runs at: lower it to model a power limit.
    """

    base_hz: float
    boost_hz: float
    tensor_hz: float
    sustained_hz: float


@dataclass(frozen=True, slots=True)
class Launch:
    """Cost of one kernel launched back to back, in seconds: from a stream, and inside a CUDA graph."""

    stream_s: float
    graph_s: float


@dataclass(frozen=True, slots=True)
class Power:
    """Thermal design power in watts."""

    tdp_w: float


@dataclass(frozen=True, slots=True)
class Features:
    """What kernels may use (CUDA C++ Programming Guide and PTX ISA, by compute capability)."""

    cp_async: bool
    tma: bool
    wgmma: bool
    tcgen05: bool
    clusters: bool


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, real or hypothetical.

    Parameters
    ----------
    id, name, architecture, compute_capability
        `h100-sxm5-80gb`, "NVIDIA H100 SXM5 80GB", "hopper", "9.0".
    changes
        One line per figure changed by `replace`: `hbm.bandwidth = 6 TB/s (was 3.35 TB/s)`.
    base_id
        Id of the unmodified GPU; equals `id` when nothing was changed.
    provenance
        Key (`hbm.bandwidth`) to `Figure`. Not part of equality, hash or repr.

    Examples
    --------
    >>> from attnsim.models.hardware.files import load_gpu
    >>> gpu = load_gpu("h100-sxm5-80gb").replace("hbm.bandwidth", "6TB/s")
    >>> gpu.changes
    ('hbm.bandwidth = 6 TB/s (was 3.35 TB/s)',)
    """

    id: str
    name: str
    architecture: Architecture
    compute_capability: str
    sm: Sm
    tensor: Tensor
    l2: L2
    hbm: Hbm
    clock: Clock
    launch: Launch
    power: Power
    features: Features
    changes: tuple[str, ...] = ()
    base_id: str = ""
    provenance: Mapping[str, Figure] = field(default_factory=_no_provenance, compare=False, hash=False, repr=False)

    def __post_init__(self) -> None:
        if not self.base_id:
            object.__setattr__(self, "base_id", self.id)

    def __reduce__(self) -> tuple[object, ...]:
        # A mappingproxy cannot be pickled and process pools send GPUs about: travel as a plain dict.
        values = [getattr(self, item.name) for item in dataclasses.fields(self)]
        return (_rebuild, (*values[:-1], dict(self.provenance)))

    @property
    def compute_capability_number(self) -> int:
        """80 for compute capability 8.0, 120 for 12.0."""
        major, minor = self.compute_capability.split(".")
        return int(major) * 10 + int(minor)

    @property
    def sm_arch(self) -> str:
        """The compiler's name of the architecture, "sm_80"."""
        return f"sm_{self.compute_capability_number}"

    def tensor_flops_per_clk(self, dtype: str) -> float:
        """Matrix FLOPs per SM and clock for `dtype`: fp16, bf16, fp8, tf32, or fp32 on the FMA lanes.

        Raises
        ------
        InputError
            For any other dtype.
        """
        match dtype:
            case "fp16":
                return self.tensor.fp16_flops_per_clk
            case "bf16":
                return self.tensor.bf16_flops_per_clk
            case "fp8":
                return self.tensor.fp8_flops_per_clk
            case "tf32":
                return self.tensor.tf32_flops_per_clk
            case "fp32":
                return self.sm.fp32_flops_per_clk
        raise InputError(f"dtype is {dtype!r}; allowed: fp16, bf16, fp8, tf32, fp32")

    def supports_dtype(self, dtype: str) -> bool:
        """Whether the GPU multiplies matrices of `dtype` (bf16 needs Ampere, fp8 Ada or later)."""
        return self.tensor_flops_per_clk(dtype) > 0

    def peak_tensor_flops_per_s(self, dtype: str) -> float:
        """Dense peak in FLOP/s at `clock.tensor_hz`, the datasheet's figure."""
        return self.tensor_flops_per_clk(dtype) * self.sm.count * self.clock.tensor_hz

    @property
    def fp32_flops_per_s(self) -> float:
        """FP32 rate of the FMA lanes in FLOP/s at `clock.tensor_hz`."""
        return self.sm.fp32_flops_per_clk * self.sm.count * self.clock.tensor_hz

    @property
    def exp_per_s(self) -> float:
        """Exponentials per second of the special-function units at `clock.tensor_hz`."""
        return self.sm.exp_per_clk * self.sm.count * self.clock.tensor_hz

    @property
    def hbm_achievable_bytes_per_s(self) -> float:
        """Datasheet bandwidth of device memory times the achievable fraction, bytes/s."""
        return self.hbm.bandwidth_bytes_per_s * self.hbm.achievable_fraction

    def get(self, key: str) -> float:
        """The figure under a key such as `hbm.bandwidth`, in SI units.

        Raises
        ------
        InputError
            For an unknown key, naming the nearest.
        """
        from attnsim.models.hardware.figure import get_value

        return get_value(self, key)

    def replace(self, key: str, value: str | float) -> Gpu:
        """A hypothetical GPU with one figure changed, and the figures that hang on it.

        Parameters
        ----------
        key
            `hbm.bandwidth`, `sm.shared_memory`, `sm.count`, ... : the keys of the GPU files.
        value
            "6 TB/s", "2x" (times the present value), "160", or a number in SI units.

        Raises
        ------
        InputError
            Unknown key (names the nearest), wrong unit, or a value outside the allowed range.
        """
        from attnsim.models.hardware.changes import change

        return change(self, key, value)


def _rebuild(*values: Any) -> Gpu:
    figures: list[Any] = [*values[:-1], MappingProxyType(values[-1])]
    return Gpu(*figures)
