"""Declarations of a GPU's figures, in SI units or per SM and clock; `FIELDS` has them by key."""

from __future__ import annotations

from dataclasses import dataclass

from attnsim.errors import InputError, nearest, shown
from attnsim.models.hardware.figure import Field, fields_of, figure

_KIB, _GB = 1024, 1e9


@dataclass(frozen=True, slots=True)
class Sm:
    """Limits and rates of one streaming multiprocessor, and how many there are.

    `registers` counts 32-bit registers per SM; `shared_memory_bytes` is the largest carve-out of one SM,
    `shared_memory_per_block_bytes` what one block may opt in to, `shared_memory_reserved_bytes` what the
    system takes per resident block. Rates are per SM and clock; an FMA is two FLOPs.
    """

    count: int = figure("count", "1", 1, 100_000, integer=True)
    max_threads: int = figure("max_threads", "1", 32, 65_536, "limit", integer=True)
    max_warps: int = figure("max_warps", "1", 1, 2048, "limit", integer=True)
    max_blocks: int = figure("max_blocks", "1", 1, 2048, "limit", integer=True)
    max_threads_per_block: int = figure("max_threads_per_block", "1", 32, 65_536, "limit", integer=True)
    registers: int = figure("registers", "1", 1024, 2**24, "limit", integer=True)
    max_registers_per_thread: int = figure("max_registers_per_thread", "1", 16, 4096, "limit", integer=True)
    shared_memory_bytes: int = figure("shared_memory", "B", _KIB, 2**30, "limit", integer=True)
    shared_memory_per_block_bytes: int = figure("shared_memory_per_block", "B", _KIB, 2**30, "limit", integer=True)
    shared_memory_reserved_bytes: int = figure("shared_memory_reserved", "B", 0, 64 * _KIB, "limit", integer=True)
    shared_memory_bytes_per_clk: float = figure("shared_memory_bandwidth", "B/clk", 1, 1e6)
    shared_memory_latency_clk: float = figure(
        "shared_memory_latency",
        "clk",
        0,
        1e5,
        "nobody",
        instead="the fitted latency of an inner step holds it; sm.shared_memory_bandwidth is read",
    )
    fp32_flops_per_clk: float = figure("fp32_rate", "FLOP/clk", 1, 1e6)
    exp_per_clk: float = figure("exp_rate", "op/clk", 0.01, 1e5)
    issues_per_clk: float = figure("issue_rate", "op/clk", 0.01, 1e5)
    int32_per_clk: float = figure("int32_rate", "op/clk", 0.01, 1e5)
    fp64_per_clk: float = figure("fp64_rate", "op/clk", 0.01, 1e5, "replay")
    load_stores_per_clk: float = figure("load_store_rate", "op/clk", 0.01, 1e5)
    warp_schedulers: int = figure(
        "warp_schedulers",
        "1",
        1,
        256,
        "nobody",
        integer=True,
        instead="kernels are lifted by that of their architecture; sm.issue_rate is read",
    )


@dataclass(frozen=True, slots=True)
class Tensor:
    """Tensor-core rates per SM and clock, dense, accumulating in fp32; 0.0 if the GPU lacks the format.

    `mma_sync_fraction` is the share of the rate that warp-level `mma.sync` reaches: about 0.63 on Hopper, where only
    `wgmma` reaches the full rate (Luo et al., arXiv 2402.13499). `memory_bytes_per_clk` is the rate between tensor
    memory and registers; 0.0 if accumulators are in registers.
    """

    fp16_flops_per_clk: float = figure("fp16", "FLOP/clk", 0, 1e8)
    bf16_flops_per_clk: float = figure("bf16", "FLOP/clk", 0, 1e8)
    tf32_flops_per_clk: float = figure(
        "tf32",
        "FLOP/clk",
        0,
        1e8,
        "nobody",
        instead="no kernel multiplies in tf32; tensor.fp16, tensor.bf16, tensor.fp8 and, for fp32, sm.fp32_rate are",
    )
    fp8_flops_per_clk: float = figure("fp8", "FLOP/clk", 0, 1e8)
    mma_sync_fraction: float = figure("mma_sync_fraction", "1", 0.01, 1)
    mma_latency_clk: float = figure(
        "mma_latency",
        "clk",
        0,
        1e5,
        "nobody",
        instead="the fitted latency of an inner step holds it; tensor.fp16 and its like are read",
    )
    memory_bytes_per_clk: float = figure("memory_bandwidth", "B/clk", 0, 1e6, "replay")


@dataclass(frozen=True, slots=True)
class L2:
    """The L2 cache; `partitions` is 2 if half of it lies behind the far crossbar (A100 and its successors).

    `bandwidth_bytes_per_s` is the read bandwidth; `write_share` is the share of it that writes reach.
    """

    capacity_bytes: int = figure("capacity", "B", _KIB, 2**50, integer=True)
    bandwidth_bytes_per_s: float = figure("bandwidth", "B/s", _GB, 1e18)
    latency_clk: float = figure("latency", "clk", 0, 1e6, "replay")
    partitions: int = figure("partitions", "1", 1, 64, integer=True)
    write_share: float = figure("write_share", "1", 0.01, 1)


@dataclass(frozen=True, slots=True)
class Hbm:
    """Device memory of any kind, including GDDR.

    `bandwidth_bytes_per_s` is the datasheet's; `achievable_fraction` is the ratio of the copy bandwidth to it;
    `latency_clk` is the load-to-use latency in SM clocks.
    """

    capacity_bytes: int = figure("capacity", "B", 2**20, 2**60, integer=True)
    bandwidth_bytes_per_s: float = figure("bandwidth", "B/s", _GB, 1e16)
    achievable_fraction: float = figure("achievable_fraction", "1", 0.01, 1)
    latency_clk: float = figure("latency", "clk", 0, 1e6, "replay")


@dataclass(frozen=True, slots=True)
class Clock:
    """SM clocks in Hz.

    - `boost_hz` and `base_hz` are the datasheet's.
    - `tensor_hz` is the clock of its tensor peak (1830 MHz on H100 SXM, which boosts to 1980 MHz).
    - `free_hz` is the clock of a call that neither power nor a lock slows: boost, and above it on GeForce cards.
    - `held_hz` is a clock that every call runs at, whatever its power; 0.0 if none is given, so that the replay finds
      the clock (`attnsim.models.hardware.clock_law`).
    """

    base_hz: float = figure("base", "Hz", 1e6, 1e12, "nobody", instead="clock.free is the one of short calls")
    boost_hz: float = figure("boost", "Hz", 1e6, 1e12)
    tensor_hz: float = figure("tensor", "Hz", 1e6, 1e12)
    free_hz: float = figure("free", "Hz", 1e6, 1e12)
    held_hz: float = figure("sustained", "Hz", 0, 1e12)

    @property
    def full_hz(self) -> float:
        """Clock without a power limit: the held clock, otherwise the free one."""
        return self.held_hz or self.free_hz


@dataclass(frozen=True, slots=True)
class Launch:
    """Seconds per back-to-back kernel launch: from a stream, and inside a CUDA graph."""

    stream_s: float = figure("stream", "s", 0, 1)
    graph_s: float = figure("graph", "s", 0, 1)

    def each_s(self, mode: str) -> float:
        """Seconds of one launch: in a CUDA graph, 0 for a kernel alone, or in a stream (also from Python)."""
        return {"graph": self.graph_s, "kernel": 0.0}.get(mode, self.stream_s)


@dataclass(frozen=True, slots=True)
class Power:
    """Watts: the thermal design power, and the power limit, which is the same by default."""

    tdp_w: float = figure("tdp", "W", 1, 1e6)
    limit_w: float = figure("limit", "W", 1, 1e6)


@dataclass(frozen=True, slots=True)
class Features:
    """Hardware features that kernels may use (CUDA C++ Programming Guide and PTX ISA, by compute capability)."""

    cp_async: bool = figure(
        "cp_async", "bool", 0, 1, "nobody", instead="every kernel's loads are asynchronous; its tile is what changes"
    )
    tma: bool = figure(
        "tma", "bool", 0, 1, "nobody", instead="kernels that use it need features.wgmma or features.tcgen05 as well"
    )
    wgmma: bool = figure("wgmma", "bool", 0, 1, "limit")
    tcgen05: bool = figure("tcgen05", "bool", 0, 1, "limit")
    clusters: bool = figure(
        "clusters",
        "bool",
        0,
        1,
        "nobody",
        instead="kernels that use them need features.wgmma or features.tcgen05 as well",
    )


@dataclass(frozen=True, slots=True)
class Link:
    """Links of a GPU to others; each rate is for one direction.

    - `gpus`: GPUs joined by a switch or a bridge; 1 without links.
    - `bandwidth_bytes_per_s`: all links of one GPU together.
    - `pcie_bytes_per_s`: the slot's rate.
    - `network_bytes_per_s`: a GPU's share of its server's network.
    - `latency_s`: time of an empty exchange between two GPUs.
    - `multicast`: whether the switch adds and copies data on the way (NVLink SHARP).
    """

    gpus: int = figure("gpus", "1", 1, 4096, "links", integer=True)
    bandwidth_bytes_per_s: float = figure("bandwidth", "B/s", 0, 1e15, "links")
    latency_s: float = figure("latency", "s", 0, 1, "links")
    pcie_bytes_per_s: float = figure("pcie", "B/s", 1e6, 1e15, "links")
    network_bytes_per_s: float = figure("network", "B/s", 1e6, 1e15, "links")
    multicast: bool = figure("multicast", "bool", 0, 1, "links")


SECTIONS = {kind.__name__.lower(): kind for kind in (Sm, Tensor, L2, Hbm, Clock, Launch, Power, Features, Link)}
FIELDS: dict[str, Field] = {
    f"{section}.{name}": declared for section, kind in SECTIONS.items() for name, declared in fields_of(kind).items()
}
"""Every figure of a GPU by its key, `hbm.bandwidth`."""


def field_of(key: str) -> Field:
    """The figure under `key`, or an `InputError` with the nearest keys."""
    found = FIELDS.get(key)
    if found is None:
        raise InputError(f"unknown key {shown(key)}; {nearest(key, FIELDS)}")
    return found


def changeable(key: str) -> Field:
    """The figure under `key`, if changing it can affect a prediction.

    Raises
    ------
    InputError
        If no figure has this name, or no prediction reads it; the message then names the figure that is read instead.
    """
    found = field_of(key)
    if found.read == "nobody":
        raise InputError(f"{key} is read by no prediction, so changing it would change nothing; {found.instead}")
    return found


def changeable_alone(key: str) -> Field:
    """The figure under `key`, if changing it can affect a prediction for a single GPU.

    Raises
    ------
    InputError
        If no figure has this name, or the figure is of the links to other GPUs.
    """
    found = changeable(key)
    if found.read == "links":
        raise InputError(
            f"{key} is read where several GPUs share a model; it goes with predict --layer --lengths --tp N, or with "
            "whatif --of model --tp N"
        )
    return found
