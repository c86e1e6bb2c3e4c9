"""Declarations of a GPU's figures, in SI units or per SM and clock; `FIELDS` has them by key.

Figure of a GPU: declaration, unit, range, readers and source; and the uncertainty of constants.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from attnsim.errors import InputError, nearest, shown
from attnsim.tables import read_csv
from attnsim.units import EXAMPLES, format_quantity, parse_quantity

Kind = Literal["datasheet", "measured", "derived", "assumed"]
Reader = Literal["rate", "replay", "limit", "links", "nobody"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a GPU, with its source.

    Parameters
    ----------
    value
        The number in SI units (bytes, bytes/s, Hz, s, W) or per SM and clock.
    unit
        Its unit as in `Field.unit`: "B/s", "FLOP/clk", "clk", ...
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
class Field:
    """Declaration of one figure.

    Parameters
    ----------
    name
        Second part of its key: `bandwidth` of `hbm.bandwidth`.
    unit
        SI unit, "1" for plain numbers and "bool" for features.
    low, high
        Allowed range in SI units, ends included. Wide on purpose: hypothetical machines are the point, so the
        range only keeps out what is a slip (a bandwidth in bytes, a fraction above one).
    integer
        Whether the value must be whole.
    read
        "rate": the replay and the closed forms read it, and no tile depends on it. "replay": the replay alone reads it.
        "limit": it may decide which kernels run, and on what tile. "links": only several GPUs' collectives read it.
        "nobody": no prediction reads it.
    attribute
        Name within the section's dataclass: `bandwidth_bytes_per_s` of `hbm`.
    """

    name: str
    unit: str
    low: float
    high: float
    integer: bool
    read: Reader
    attribute: str = ""

    def allowed(self) -> str:
        """The allowed range in words: "1 GB/s to 10 PB/s"."""
        if self.unit == "bool":
            return "true or false"
        whole = "whole numbers from " if self.integer and self.unit == "1" else ""
        return f"{whole}{format_quantity(self.low, self.unit)} to {format_quantity(self.high, self.unit)}"

    def example(self) -> str:
        """Example of a value in the text form."""
        return "108" if self.integer and self.unit == "1" else EXAMPLES[self.unit]

    def show(self, value: float) -> str:
        """The value with its unit, as the files write it."""
        return show(value, self.unit)

    def stored(self, value: float) -> float | int | bool:
        """The value in the type that the section keeps it in."""
        return bool(value) if self.unit == "bool" else int(value) if self.integer else value

    def parse(self, given: object) -> float:
        """Parse "6 TB/s", a number in SI units or a truth value into an SI value.

        Raises
        ------
        InputError
            If the value is not allowed; the message lacks the key, which the caller knows.
        """
        if self.unit == "bool":
            if given in (True, False, "true", "false"):
                return float(given in (True, "true"))
            raise InputError(f"is {given!r}; allowed: true or false")
        if isinstance(given, bool) or not isinstance(given, (str, int, float)):
            raise InputError(f"is {shown(given)}; write a value such as {self.example()!r}")
        try:
            value = parse_quantity(given, self.unit) if isinstance(given, str) else float(given)
        except InputError as error:
            reason = str(error).split("' ", 1)[-1]  # the message starts with the given text
            raise InputError(f"is {shown(given)}, which {reason}; allowed: {self.allowed()}") from None
        except OverflowError:
            raise InputError(f"is too large a number; allowed: {self.allowed()}") from None
        self.check(value, given)
        return value

    def check(self, value: float, given: object) -> None:
        """Refuse a value outside the range, or a fraction of something countable."""
        if not self.low <= value <= self.high:  # also false for nan
            advice = "give a positive value" if value <= 0 < self.low else "give a value in this range"
            example = EXAMPLES[self.unit] if self.unit != "1" else ""
            such = f" such as {example!r}" if example else ""
            raise InputError(f"is {shown(given)}; allowed: {self.allowed()}; {advice}{such}")
        if self.integer and value != int(value):
            raise InputError(f"is {shown(given)}, not a whole number of {'bytes' if self.unit == 'B' else 'units'}")


def figure(name: str, unit: str, low: float, high: float, read: Reader = "rate", *, integer: bool = False) -> Any:
    """Declare an attribute of a GPU's section as the figure `name`; parameters as for `Field`."""
    return dataclasses.field(metadata={"figure": Field(name, unit, low, high, integer, read)})


def fields_of(section: type) -> dict[str, Field]:
    """The figures that a section declares, by name."""
    declared = {item.name: item.metadata["figure"] for item in dataclasses.fields(section)}
    return {one.name: dataclasses.replace(one, attribute=attribute) for attribute, one in declared.items()}


def show(value: float, unit: str) -> str:
    """A figure's value with its unit, as the files write it."""
    if unit == "bool":
        return "true" if value else "false"
    return format_quantity(value, unit)


_Ends = TypeVar("_Ends", bound="Interval")


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its uncertainty: low, typical and high in the same unit."""

    low: float
    typical: float
    high: float

    def over(self, divisor: float) -> Interval:
        """Divide low, typical and high by `divisor`."""
        return Interval(self.low / divisor, self.typical / divisor, self.high / divisor)

    def times(self: _Ends, other: Interval) -> _Ends:
        """Multiply low, typical and high by those of `other`."""
        return replace(
            self, low=self.low * other.low, typical=self.typical * other.typical, high=self.high * other.high
        )


@dataclass(frozen=True, slots=True)
class Constant(Interval):
    """A constant of a data file.

    Parameters
    ----------
    unit : str
        In words: "pJ/FLOP", "of TDP", "mm2 per stack".
    kind : {"datasheet", "published", "derived", "assumed"}
    """

    unit: str
    kind: str
    source: str


def propagated(figure: Callable[[Mapping[str, float]], float], constants: Mapping[str, Interval]) -> Interval:
    """Propagate the intervals of constants to a figure: each constant moves to its ends while the others stay typical.

    Errors of the constants are taken as independent: their effects add in quadrature, separately below and above the
    typical figure.
    """
    values = {name: one.typical for name, one in constants.items()}
    typical = figure(values)
    moved = [
        [figure(values | {name: end}) - typical for end in (one.low, one.high)]
        for name, one in constants.items()
        if one.low < one.high
    ]
    down = math.hypot(*(max(0.0, -min(ends)) for ends in moved))
    up = math.hypot(*(max(0.0, *ends) for ends in moved))
    return Interval(typical - down, typical, typical + up)


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
    shared_memory_latency_clk: float = figure("shared_memory_latency", "clk", 0, 1e5, "nobody")
    fp32_flops_per_clk: float = figure("fp32_rate", "FLOP/clk", 1, 1e6)
    exp_per_clk: float = figure("exp_rate", "op/clk", 0.01, 1e5)
    issues_per_clk: float = figure("issue_rate", "op/clk", 0.01, 1e5)
    int32_per_clk: float = figure("int32_rate", "op/clk", 0.01, 1e5)
    fp64_per_clk: float = figure("fp64_rate", "op/clk", 0.01, 1e5, "replay")
    load_stores_per_clk: float = figure("load_store_rate", "op/clk", 0.01, 1e5)
    warp_schedulers: int = figure("warp_schedulers", "1", 1, 256, "nobody", integer=True)


@dataclass(frozen=True, slots=True)
class Tensor:
    """Tensor-core rates per SM and clock, dense, accumulating in fp32; 0.0 if the GPU lacks the format.

    `mma_sync_fraction` is the share of the rate that warp-level `mma.sync` reaches: about 0.63 on Hopper, where only
    `wgmma` reaches the full rate (Luo et al., arXiv 2402.13499). `memory_bytes_per_clk` is the rate between tensor
    memory and registers; 0.0 if accumulators are in registers.
    """

    fp16_flops_per_clk: float = figure("fp16", "FLOP/clk", 0, 1e8)
    bf16_flops_per_clk: float = figure("bf16", "FLOP/clk", 0, 1e8)
    tf32_flops_per_clk: float = figure("tf32", "FLOP/clk", 0, 1e8, "nobody")
    fp8_flops_per_clk: float = figure("fp8", "FLOP/clk", 0, 1e8)
    mma_sync_fraction: float = figure("mma_sync_fraction", "1", 0.01, 1)
    mma_latency_clk: float = figure("mma_latency", "clk", 0, 1e5, "nobody")
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

    base_hz: float = figure("base", "Hz", 1e6, 1e12, "nobody")
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

    cp_async: bool = figure("cp_async", "bool", 0, 1, "nobody")
    tma: bool = figure("tma", "bool", 0, 1, "nobody")
    wgmma: bool = figure("wgmma", "bool", 0, 1, "limit")
    tcgen05: bool = figure("tcgen05", "bool", 0, 1, "limit")
    clusters: bool = figure("clusters", "bool", 0, 1, "nobody")


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
        instead = next(
            one["instead"] for one in read_csv(Path(__file__).with_name("unread.csv")) if one["figure"] == key
        )
        raise InputError(f"{key} is read by no prediction, so changing it would change nothing; {instead}")
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
