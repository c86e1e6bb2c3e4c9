"""The keys of a GPU: `hbm.bandwidth` and the rest, where each is kept, its unit and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnsim.models.errors import InputError
from attnsim.models.units import EXAMPLES, format_quantity, parse_quantity

if TYPE_CHECKING:
    from attnsim.models.hardware.gpu import Gpu


@dataclass(frozen=True, slots=True)
class Field:
    """One figure of a GPU.

    Parameters
    ----------
    attribute
        Name within the section's dataclass: `bandwidth_bytes_per_s` of `hbm`.
    unit
        SI unit, "1" for plain numbers and "bool" for features.
    low, high
        Allowed range in SI units, ends included. Wide on purpose: hypothetical machines are the point, so the
        range only keeps out what is a slip (a bandwidth in bytes, a fraction above one).
    integer
        Whether the value must be whole.
    """

    attribute: str
    unit: str
    low: float
    high: float
    integer: bool = False

    def allowed(self) -> str:
        """The allowed range in words: "1 GB/s to 10 PB/s"."""
        if self.unit == "bool":
            return "true or false"
        whole = "whole numbers from " if self.integer and self.unit == "1" else ""
        return f"{whole}{format_quantity(self.low, self.unit)} to {format_quantity(self.high, self.unit)}"

    def example(self) -> str:
        """A value a person might write."""
        return "108" if self.integer and self.unit == "1" else EXAMPLES[self.unit]

    def show(self, value: float) -> str:
        """The value with its unit, as the files write it."""
        if self.unit == "bool":
            return "true" if value else "false"
        return format_quantity(value, self.unit)

    def parse(self, given: object) -> float:
        """An SI value from "6 TB/s", a number in SI units or a truth value.

        Raises
        ------
        InputError
            What was given, what is allowed and what to do, without the key: the caller knows it.
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
            reason = str(error).split("' ", 1)[-1]  # the message starts with the text itself
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


def _count(attribute: str, high: int, low: int = 1) -> Field:
    return Field(attribute, "1", low, high, integer=True)


_KIB, _GB = 1024, 1e9

FIELDS: dict[str, Field] = {
    "sm.count": _count("count", 100_000),
    "sm.max_threads": _count("max_threads", 65_536, low=32),
    "sm.max_warps": _count("max_warps", 2048),
    "sm.max_blocks": _count("max_blocks", 2048),
    "sm.max_threads_per_block": _count("max_threads_per_block", 65_536, low=32),
    "sm.registers": _count("registers", 2**24, low=1024),
    "sm.max_registers_per_thread": _count("max_registers_per_thread", 4096, low=16),
    "sm.shared_memory": Field("shared_memory_bytes", "B", _KIB, 2**30, integer=True),
    "sm.shared_memory_per_block": Field("shared_memory_per_block_bytes", "B", _KIB, 2**30, integer=True),
    "sm.shared_memory_reserved": Field("shared_memory_reserved_bytes", "B", 0, 64 * _KIB, integer=True),
    "sm.shared_memory_bandwidth": Field("shared_memory_bytes_per_clk", "B/clk", 1, 1e6),
    "sm.shared_memory_latency": Field("shared_memory_latency_clk", "clk", 0, 1e5),
    "sm.fp32_rate": Field("fp32_flops_per_clk", "FLOP/clk", 1, 1e6),
    "sm.exp_rate": Field("exp_per_clk", "op/clk", 0.01, 1e5),
    "sm.warp_schedulers": _count("warp_schedulers", 256),
    "tensor.fp16": Field("fp16_flops_per_clk", "FLOP/clk", 0, 1e8),
    "tensor.bf16": Field("bf16_flops_per_clk", "FLOP/clk", 0, 1e8),
    "tensor.tf32": Field("tf32_flops_per_clk", "FLOP/clk", 0, 1e8),
    "tensor.fp8": Field("fp8_flops_per_clk", "FLOP/clk", 0, 1e8),
    "tensor.mma_sync_fraction": Field("mma_sync_fraction", "1", 0.01, 1),
    "tensor.mma_latency": Field("mma_latency_clk", "clk", 0, 1e5),
    "l2.capacity": Field("capacity_bytes", "B", _KIB, 2**50, integer=True),
    "l2.bandwidth": Field("bandwidth_bytes_per_s", "B/s", _GB, 1e18),
    "l2.latency": Field("latency_clk", "clk", 0, 1e6),
    "l2.partitions": _count("partitions", 64),
    "hbm.capacity": Field("capacity_bytes", "B", 2**20, 2**60, integer=True),
    "hbm.bandwidth": Field("bandwidth_bytes_per_s", "B/s", _GB, 1e16),
    "hbm.achievable_fraction": Field("achievable_fraction", "1", 0.01, 1),
    "hbm.latency": Field("latency_clk", "clk", 0, 1e6),
    "clock.base": Field("base_hz", "Hz", 1e6, 1e12),
    "clock.boost": Field("boost_hz", "Hz", 1e6, 1e12),
    "clock.tensor": Field("tensor_hz", "Hz", 1e6, 1e12),
    "clock.sustained": Field("sustained_hz", "Hz", 1e6, 1e12),
    "launch.stream": Field("stream_s", "s", 0, 1),
    "launch.graph": Field("graph_s", "s", 0, 1),
    "power.tdp": Field("tdp_w", "W", 1, 1e6),
    "features.cp_async": Field("cp_async", "bool", 0, 1),
    "features.tma": Field("tma", "bool", 0, 1),
    "features.wgmma": Field("wgmma", "bool", 0, 1),
    "features.tcgen05": Field("tcgen05", "bool", 0, 1),
    "features.clusters": Field("clusters", "bool", 0, 1),
}


def field_of(key: str) -> Field:
    """The field under `key`, or an `InputError` with the nearest keys."""
    found = FIELDS.get(key)
    if found is None:
        raise InputError(f"unknown key {shown(key)}; {nearest(key, FIELDS)}")
    return found


def get_value(gpu: Gpu, key: str) -> float:
    """The figure of `gpu` under `key` in SI units; truth values as 1.0 and 0.0."""
    attribute = field_of(key).attribute
    return float(getattr(getattr(gpu, key.split(".", maxsplit=1)[0]), attribute))


def nearest(given: str, names: Iterable[str]) -> str:
    """Words naming the closest of `names`: "nearest: hbm.bandwidth, l2.bandwidth"."""
    known = list(names)
    # Also compare with the part after the dot: 'bandwidth' alone, or 'clock', should find its relatives.
    close = difflib.get_close_matches(given, known, n=3, cutoff=0.6)
    related = [name for name in known if given and (given in name.split(".") or name.startswith(f"{given}."))]
    picks = list(dict.fromkeys([*related, *close]))[:4] or difflib.get_close_matches(given, known, n=3, cutoff=0.0)
    return f"nearest: {', '.join(picks)}"


def shown(given: object) -> str:
    """A person's input on one line and not longer than a message can bear."""
    text = " ".join(repr(given).split())
    return text if len(text) <= 70 else f"{text[:66]}...'"
