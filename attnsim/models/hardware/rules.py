"""Rules for figures nobody could be cited for: the one place where a GPU's missing numbers come from.

A value from here is marked "assumed" and its rule becomes its source. The rules agreed for the project: copy
bandwidth as a fraction of the datasheet's by kind of memory; L2 bandwidth in bytes per clock and SM, and
latencies in clocks, of the nearest architecture; launch cost of the GPUs it was measured on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from attnsim.models.hardware.architectures import ARCHITECTURES, Architecture, measured
from attnsim.models.hardware.figure import fields_of
from attnsim.models.hardware.sections import Features

MEMORY_KINDS = ("HBM2", "HBM2e", "HBM3", "HBM3e", "GDDR6", "GDDR6X", "GDDR7")

_GUIDE = "rule: limit of this compute capability in the CUDA Programming Guide"
_LATENCY = "rule: clocks measured on the nearest architecture"


@dataclass(frozen=True, slots=True)
class Known:
    """What a file says so far: compute capability as 90, kind of memory, and SI values by key."""

    capability: int
    memory: str
    values: Mapping[str, float]

    @property
    def row(self) -> Architecture:
        """What holds for its compute capability."""
        return ARCHITECTURES[self.capability]


@dataclass(frozen=True, slots=True)
class Rule:
    """How one missing figure follows from the known ones, and the sentence that says so."""

    key: str
    value: Callable[[Known], float]
    text: str


def _measured(column: str) -> Callable[[Known], float]:
    return lambda known: measured(known.capability, attrgetter(column))


def _constant(value: float) -> Callable[[Known], float]:
    return lambda known: value


def _same_as(key: str, factor: float = 1.0) -> Callable[[Known], float]:
    return lambda known: known.values[key] * factor


def _of_row(column: str, factor: int = 1) -> Callable[[Known], float]:
    return lambda known: float(getattr(known.row, column) * factor)


def _feature(name: str) -> Rule:
    return Rule(f"features.{name}", lambda known: float(name in known.row.features), _GUIDE)


def _format(name: str, factor: float, text: str) -> Rule:
    key = f"tensor.{name}"
    takes = attrgetter("fp8" if name == "fp8" else "bf16")
    return Rule(key, lambda known: known.values["tensor.fp16"] * factor if takes(known.row) else 0.0, text)


def _mma_sync_fraction(known: Known) -> float:
    reached, rate = known.row.mma_sync_flops_per_clk, known.values["tensor.fp16"]
    return min(0.95, reached / rate) if reached and rate else 0.95


def _l2_bandwidth(known: Known) -> float:
    per_clk_sm = _measured("l2_bytes_per_clk_sm")(known)
    return round(per_clk_sm * known.values["sm.count"] * known.values["clock.boost"], -9)


def _per_block(known: Known) -> float:
    return known.values["sm.shared_memory"] - known.values["sm.shared_memory_reserved"]


# In the order they are applied: later rules read what earlier ones gave.
RULES: tuple[Rule, ...] = (
    Rule(
        "clock.boost", _same_as("clock.tensor"), "rule: the clock of the tensor peak where no boost clock is published"
    ),
    Rule("clock.tensor", _same_as("clock.boost"), "rule: the boost clock where the datasheet's peak implies no other"),
    Rule("clock.base", _same_as("clock.boost", 0.8), "rule: 0.8 of the boost clock, H100 SXM's ratio"),
    Rule("clock.sustained", _same_as("clock.tensor"), "rule: the clock of the tensor peak; lower it for a power limit"),
    Rule("sm.max_threads", _of_row("max_threads"), _GUIDE),
    Rule("sm.max_warps", _same_as("sm.max_threads", 1 / 32), _GUIDE),
    Rule("sm.max_blocks", _of_row("max_blocks"), _GUIDE),
    Rule("sm.max_threads_per_block", _constant(1024), _GUIDE),
    Rule("sm.registers", _constant(65536), _GUIDE),
    Rule("sm.max_registers_per_thread", _constant(255), _GUIDE),
    Rule("sm.shared_memory", _of_row("shared_memory_kib", 1024), _GUIDE),
    Rule("sm.shared_memory_reserved", _of_row("reserved_kib", 1024), _GUIDE),
    Rule("sm.shared_memory_per_block", _per_block, "rule: the shared memory of an SM less the reserve of a block"),
    Rule(
        "sm.shared_memory_bandwidth",
        _of_row("shared_memory_bytes_per_clk"),
        "rule: 32 banks of 4 bytes a clock; half on Turing",
    ),
    Rule("sm.shared_memory_latency", _measured("shared_memory_latency"), _LATENCY),
    Rule("sm.fp32_rate", _of_row("fp32_flops_per_clk"), "rule: 128 FP32 lanes since compute capability 8.6, 64 before"),
    Rule("sm.exp_rate", _constant(16), "rule: 16 special-function lanes, as on every architecture from 7.0 to 10.0"),
    Rule("sm.warp_schedulers", _constant(4), "rule: four partitions, as on every architecture since Volta"),
    _format("bf16", 1, "rule: the fp16 rate from compute capability 8.0, none before"),
    _format("tf32", 0.5, "rule: half the fp16 rate from 8.0, none before"),
    _format("fp8", 2, "rule: twice the fp16 rate from 8.9, none before"),
    Rule(
        "tensor.mma_sync_fraction",
        _mma_sync_fraction,
        "rule: 0.95 as on A100; 0.629 on Hopper; on data-centre Blackwell Hopper's mma.sync FLOP/clk per SM "
        "(Luo et al., arXiv 2402.13499)",
    ),
    Rule("tensor.mma_latency", _measured("mma_latency"), _LATENCY),
    Rule(
        "l2.bandwidth",
        _l2_bandwidth,
        "rule: bytes per clock and SM of the nearest architecture, times SMs and boost clock",
    ),
    Rule("l2.latency", _measured("l2_latency"), _LATENCY),
    Rule("l2.partitions", _of_row("l2_partitions"), "rule: two on the data-centre chips since A100, one elsewhere"),
    Rule(
        "hbm.achievable_fraction",
        lambda known: 0.92 if known.memory in ("HBM3", "HBM3e") else 0.85,
        "rule: copy bandwidth 0.92 of the datasheet's with HBM3 and HBM3e, 0.85 with HBM2e and GDDR",
    ),
    Rule("hbm.latency", _measured("hbm_latency"), _LATENCY),
    Rule("launch.stream", _constant(2.5e-6), "rule: 2.5 us in a stream, as on A100 and GH200"),
    Rule("launch.graph", _constant(1.3e-6), "rule: 1.3 us in a graph, as on A100 and GH200"),
    *map(_feature, fields_of(Features)),
)

GIVEN = tuple(dict.fromkeys(key for row in ARCHITECTURES.values() for key, _, _ in row.given))

# No rule can give these: a file states them or extends one that does. One of the two clocks is enough.
REQUIRED = ("sm.count", "tensor.fp16", "l2.capacity", "hbm.capacity", "hbm.bandwidth", "power.tdp")


def fill(known: Known) -> dict[str, tuple[float, str]]:
    """Values and rules for every figure that `known` lacks and a rule gives, in the order of `RULES`."""
    values = dict(known.values)
    found: dict[str, tuple[float, str]] = {}
    given = {key: Rule(key, _constant(value), text) for key, value, text in known.row.given}
    elsewhere = (Rule(key, _constant(0), "rule: none on this architecture") for key in GIVEN if key not in given)
    for rule in (*RULES, *given.values(), *elsewhere):
        if rule.key in values:
            continue
        value = rule.value(Known(known.capability, known.memory, values))
        values[rule.key] = value
        found[rule.key] = (float(value), rule.text)
    return found
