"""Rules for figures nobody could be cited for: the one place where a GPU's missing numbers come from.

A value from here is marked "assumed" and its rule becomes its source. The rules agreed for the project: copy
bandwidth as a fraction of the datasheet's by kind of memory; L2 bandwidth in bytes per clock and SM, and
latencies in clocks, of the nearest architecture; launch cost of the GPUs it was measured on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from attnsim.models.hardware.gpu import Architecture

# Compute capabilities with figures of their own; others take those of the nearest one not newer, except that
# consumer Blackwell (12.0) is nearer to Ada than to data-centre Blackwell where it has none.
_NEAREST = {
    70: (70,),
    75: (75, 70),
    80: (80, 70),
    86: (86, 80, 70),
    89: (89, 86, 80, 70),
    90: (90, 80, 70),
    100: (100, 90, 80, 70),
    120: (120, 89, 86, 80, 70),
}

# Bytes per clock and SM, read: gpu-benches at 1038c5d0 (V100, A100, A40, L40, GH200); 7.5 recalled from
# Jia et al., arXiv 1903.07486.
_L2_BYTES_PER_CLK_SM = {70: 22.2, 75: 20.0, 80: 35.7, 86: 21.1, 89: 17.4, 90: 37.1}

# Load-to-use latencies in SM clocks, by pointer chase: gpu-benches at 1038c5d0 (V100, A100, A40, L40),
# AI_kernels at d916a39b (H100 SXM, B200, RTX 5090), MT4G at 4cc55662 and arXiv 2402.13499 (shared memory),
# Accel-Sim SM86_RTX3070 (8.6 shared memory); 7.5 recalled from Jia 2019.
_L2_LATENCY = {70: 212.0, 75: 188.0, 80: 205.5, 86: 250.0, 89: 273.6, 90: 291.0, 100: 293.0, 120: 360.0}
_DRAM_LATENCY = {70: 434.0, 80: 552.0, 86: 556.0, 89: 625.0, 90: 700.0, 100: 858.0, 120: 936.0}
_SHARED_LATENCY = {70: 23.5, 75: 19.0, 80: 29.0, 86: 29.0, 89: 30.1, 90: 29.9}
_MMA_LATENCY = {70: 25.0, 80: 25.0, 90: 24.1}  # Accel-Sim SM80_A100; arXiv 2402.13499 (H800)

# Limits of an SM by compute capability (CUDA Programming Guide, Compute Capabilities): threads, blocks,
# shared memory per SM, reserve per block in KiB.
_LIMITS = {
    70: (2048, 32, 96, 0),
    75: (1024, 16, 64, 0),
    80: (2048, 32, 164, 1),
    86: (1536, 16, 100, 1),
    89: (1536, 24, 100, 1),
    90: (2048, 32, 228, 1),
    100: (2048, 32, 228, 1),
    120: (1536, 24, 100, 1),
}

# mma.sync on Hopper: 62.9 % of peak, 4096 FLOP/clk per SM (arXiv 2402.13499, H800).
_HOPPER_MMA_SYNC_FLOPS_PER_CLK = 0.629 * 4096

MEMORY_KINDS = ("HBM2", "HBM2e", "HBM3", "HBM3e", "GDDR6", "GDDR6X", "GDDR7")
ARCHITECTURES: dict[int, Architecture] = {
    70: "volta",
    75: "turing",
    80: "ampere",
    86: "ampere",
    89: "ada",
    90: "hopper",
    100: "blackwell",
    120: "blackwell",
}


@dataclass(frozen=True, slots=True)
class Known:
    """What a file says so far: compute capability as 90, kind of memory, and SI values by key."""

    capability: int
    memory: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Rule:
    """How one missing figure follows from the known ones, and the sentence that says so."""

    key: str
    value: Callable[[Known], float]
    text: str


def _of_nearest(table: Mapping[int, float]) -> Callable[[Known], float]:
    return lambda known: next(table[at] for at in _NEAREST[known.capability] if at in table)


def _constant(value: float) -> Callable[[Known], float]:
    return lambda known: value


def _same_as(key: str, factor: float = 1.0) -> Callable[[Known], float]:
    return lambda known: known.values[key] * factor


def _since(capability: int, key: str, factor: float) -> Callable[[Known], float]:
    return lambda known: known.values[key] * factor if known.capability >= capability else 0.0


def _limit(column: int, factor: float = 1.0) -> Callable[[Known], float]:
    return lambda known: _LIMITS[known.capability][column] * factor


def _mma_sync_fraction(known: Known) -> float:
    if known.capability == 90:
        return 0.629
    if known.capability == 100:
        rate = known.values["tensor.fp16"]
        return min(0.95, _HOPPER_MMA_SYNC_FLOPS_PER_CLK / rate) if rate else 0.95
    return 0.95


def _l2_bandwidth(known: Known) -> float:
    per_clk_sm = _of_nearest(_L2_BYTES_PER_CLK_SM)(known)
    return round(per_clk_sm * known.values["sm.count"] * known.values["clock.boost"], -9)


def _per_block(known: Known) -> float:
    return known.values["sm.shared_memory"] - known.values["sm.shared_memory_reserved"]


_GUIDE = "rule: limit of this compute capability in the CUDA Programming Guide"
_LATENCY = "rule: clocks measured on the nearest architecture"

# In the order they are applied: later rules read what earlier ones gave.
RULES: tuple[Rule, ...] = (
    Rule(
        "clock.boost",
        _same_as("clock.tensor"),
        "rule: the clock of the tensor peak where no boost clock is published",
    ),
    Rule(
        "clock.tensor",
        _same_as("clock.boost"),
        "rule: the boost clock where the datasheet's peak implies no other",
    ),
    Rule("clock.base", _same_as("clock.boost", 0.8), "rule: 0.8 of the boost clock, H100 SXM's ratio"),
    Rule(
        "clock.sustained",
        _same_as("clock.tensor"),
        "rule: the clock of the tensor peak; lower it for a power limit",
    ),
    Rule("sm.max_threads", _limit(0), _GUIDE),
    Rule("sm.max_warps", _same_as("sm.max_threads", 1 / 32), _GUIDE),
    Rule("sm.max_blocks", _limit(1), _GUIDE),
    Rule("sm.max_threads_per_block", _constant(1024), _GUIDE),
    Rule("sm.registers", _constant(65536), _GUIDE),
    Rule("sm.max_registers_per_thread", _constant(255), _GUIDE),
    Rule("sm.shared_memory", _limit(2, 1024), _GUIDE),
    Rule("sm.shared_memory_reserved", _limit(3, 1024), _GUIDE),
    Rule(
        "sm.shared_memory_per_block",
        _per_block,
        "rule: the shared memory of an SM less the reserve of a block",
    ),
    Rule(
        "sm.shared_memory_bandwidth",
        lambda known: 64.0 if known.capability == 75 else 128.0,
        "rule: 32 banks of 4 bytes a clock; half on Turing",
    ),
    Rule("sm.shared_memory_latency", _of_nearest(_SHARED_LATENCY), _LATENCY),
    Rule(
        "sm.fp32_rate",
        lambda known: 256.0 if known.capability >= 86 else 128.0,
        "rule: 128 FP32 lanes since compute capability 8.6, 64 before",
    ),
    Rule(
        "sm.exp_rate",
        _constant(16),
        "rule: 16 special-function lanes, as on every architecture from 7.0 to 10.0",
    ),
    Rule("sm.warp_schedulers", _constant(4), "rule: four partitions, as on every architecture since Volta"),
    Rule(
        "tensor.bf16",
        _since(80, "tensor.fp16", 1),
        "rule: the fp16 rate from compute capability 8.0, none before",
    ),
    Rule("tensor.tf32", _since(80, "tensor.fp16", 0.5), "rule: half the fp16 rate from 8.0, none before"),
    Rule("tensor.fp8", _since(89, "tensor.fp16", 2), "rule: twice the fp16 rate from 8.9, none before"),
    Rule(
        "tensor.mma_sync_fraction",
        _mma_sync_fraction,
        "rule: 0.95 as on A100; 0.629 on Hopper; on data-centre Blackwell Hopper's mma.sync FLOP/clk per SM "
        "(Luo et al., arXiv 2402.13499)",
    ),
    Rule("tensor.mma_latency", _of_nearest(_MMA_LATENCY), _LATENCY),
    Rule(
        "l2.bandwidth",
        _l2_bandwidth,
        "rule: bytes per clock and SM of the nearest architecture, times SMs and boost clock",
    ),
    Rule("l2.latency", _of_nearest(_L2_LATENCY), _LATENCY),
    Rule(
        "l2.partitions",
        lambda known: 2.0 if known.capability in (80, 90, 100) else 1.0,
        "rule: two on the data-centre chips since A100, one elsewhere",
    ),
    Rule(
        "hbm.achievable_fraction",
        lambda known: 0.92 if known.memory in ("HBM3", "HBM3e") else 0.85,
        "rule: copy bandwidth 0.92 of the datasheet's with HBM3 and HBM3e, 0.85 with HBM2e and GDDR",
    ),
    Rule("hbm.latency", _of_nearest(_DRAM_LATENCY), _LATENCY),
    Rule("launch.stream", _constant(2.5e-6), "rule: 2.5 us in a stream, as on A100 and GH200"),
    Rule("launch.graph", _constant(1.3e-6), "rule: 1.3 us in a graph, as on A100 and GH200"),
    Rule("features.cp_async", lambda known: float(known.capability >= 80), _GUIDE),
    Rule("features.tma", lambda known: float(known.capability >= 90), _GUIDE),
    Rule("features.wgmma", lambda known: float(known.capability == 90), _GUIDE),
    Rule("features.tcgen05", lambda known: float(known.capability == 100), _GUIDE),
    Rule("features.clusters", lambda known: float(known.capability >= 90), _GUIDE),
)

# No rule can give these: a file states them or extends one that does. One of the two clocks is enough.
REQUIRED = ("sm.count", "tensor.fp16", "l2.capacity", "hbm.capacity", "hbm.bandwidth", "power.tdp")


def fill(known: Known) -> dict[str, tuple[float, str]]:
    """Values and rules for every figure that `known` lacks and a rule gives, in the order of `RULES`."""
    values = dict(known.values)
    found: dict[str, tuple[float, str]] = {}
    for rule in RULES:
        if rule.key in values:
            continue
        value = rule.value(Known(known.capability, known.memory, values))
        values[rule.key] = value
        found[rule.key] = (value, rule.text)
    return found
