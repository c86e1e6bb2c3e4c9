"""Sections of other tools' files; numbers are checked as they are read.

LLMCompass's hardware descriptions: ``configs/*.json`` of PrincetonUniversity/LLMCompass (Zhang et al., ISCA 2024).

A core is an SM, a sublane one of its partitions. Keys as in the repository at b95c6c95.

AIConfigurator's system files: ``systems/*.yaml`` of NVIDIA's aiconfigurator-core (0.12).

They hold what a roofline needs: bandwidth, capacity, peak rates, power and the compute capability. The number of SMs
follows from the peak, given the rate and clock of an SM of a GPU of that capability.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnsim.errors import InputError, shown
from attnsim.files import read_bytes, read_yaml
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.names import is_anothers
from attnsim.models.hardware.rules import MEMORY_KINDS
from attnsim.models.hardware.sections import FIELDS, Figure, Kind

MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """Information about a GPU found in a file.

    Parameters
    ----------
    figures : dict of str to Figure
        By key, ``hbm.bandwidth``.
    like : Gpu
        The known GPU that supplies figures missing from file and rules.
    capability : int
        90 for compute capability 9.0.
    memory : str
        Kind of memory as in GPU files; "" if the file does not state it.
    remarks : tuple of str
        Interpretations that a person should know of.
    likened : bool
        Whether it is a different GPU than `like`, so that figures taken from `like` are assumed.
    """

    name: str
    figures: dict[str, Figure]
    like: Gpu
    capability: int
    memory: str = ""
    remarks: tuple[str, ...] = ()
    likened: bool = False


class Section:
    """A mapping within a file, with its path for messages."""

    def __init__(self, content: object, where: str = "") -> None:
        if not isinstance(content, Mapping):
            raise InputError(f"{where or 'the file'} is {shown(content)}; it should hold keys and values")
        self.content: Mapping[Any, object] = content
        self.where = where

    def path(self, key: str) -> str:
        """Path of a key: ``device.io.global_buffer_MB``."""
        return f"{self.where}.{key}" if self.where else key

    def section(self, key: str) -> Section:
        """The mapping under a key.

        Raises
        ------
        InputError
            If the key is missing.
        """
        if key not in self.content:
            raise InputError(f"{self.path(key)} is missing; add it")
        return Section(self.content[key], self.path(key))

    def number(self, key: str, unit: str = "", default: float | None = None) -> float:
        """A positive number.

        Parameters
        ----------
        unit : str
            Unit in the file, for messages: "bytes/s".
        default : float, optional
            Value if the key is absent.

        Raises
        ------
        InputError
            If the value is missing or not positive.
        """
        given = self.content.get(key)
        if given is None and default is not None:
            return default
        if given is None:
            raise InputError(f"{self.path(key)} is missing; add it as a number{f' in {unit}' if unit else ''}")
        try:
            value = math.nan if isinstance(given, bool) or not isinstance(given, (int, float)) else float(given)
        except OverflowError:
            value = math.inf
        if not 0 < value < math.inf:
            of = f" in {unit}, without the unit" if unit else ""
            raise InputError(f"{self.path(key)} is {shown(given)}; write a positive number{of}")
        return value

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self.number(key, default=None if default is None else float(default))
        if value != int(value):
            raise InputError(f"{self.path(key)} is {shown(self.content.get(key))}; write a whole number")
        return int(value)

    def text(self, key: str) -> str:
        """Text on one line; "" if absent."""
        value = self.content.get(key)
        return " ".join(filter(str.isprintable, value.split()))[:200] if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True)
class Imported:
    """A GPU imported from another tool's file.

    Parameters
    ----------
    like : str
        Id of the known GPU that supplies missing figures.
    lacking : tuple of str
        Keys taken from it.
    """

    gpu: Gpu
    format: str
    like: str
    lacking: tuple[str, ...]
    remarks: tuple[str, ...]


def figure(key: str, value: float, kind: Kind, source: str) -> Figure:
    """Make a figure, checked against the range of GPU files, and whole if it counts something.

    Raises
    ------
    InputError
        If the value is out of range or not whole.
    """
    field = FIELDS[key]
    number = float(round(value)) if field.integer and math.isfinite(value) else float(value)
    try:
        field.check(number, field.show(number) if math.isfinite(number) else number)
    except InputError as error:
        raise InputError(f"{key}, by {source}, {error}") from None
    return Figure(number, field.unit, kind, source)


def read_text(path: Path) -> str:
    """The text of a file of at most `MAX_FILE_BYTES`.

    Raises
    ------
    InputError
        If the file is too large or not UTF-8.
    """
    raw = read_bytes(path, MAX_FILE_BYTES, "a hardware file", "hardware files are small")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path.name}: is not UTF-8 text; save it as UTF-8") from None


LEAST_L1_KIB = 28
"""L1 part of SRAM_KB beyond the largest shared memory: 192 KiB against 164 on A100, 256 against 228 on H100."""
LEAST_SRAM_KIB = 32
_SOURCE = "LLMCompass hardware description"


def read_llmcompass(text: str, liken: Callable[[float, float], Gpu]) -> Found:
    """Read the figures of a description.

    Parameters
    ----------
    liken : callable
        (16-bit FLOPs per clock of an SM, bandwidth in bytes/s) to the GPU whose SMs these are like.

    Raises
    ------
    InputError
        If a figure is missing or out of range, or the GPU is not one of NVIDIA's.
    """
    whole = Section(_parsed(text))
    if is_anothers(name := whole.text("name")):
        raise InputError(f"name is {shown(name)}; attnsim models GPUs of NVIDIA only; rename a design of your own")
    device = whole.section("device")
    chiplet, io = device.section("compute_chiplet"), device.section("io")
    core = chiplet.section("core")
    array, vector = core.section("systolic_array"), core.section("vector_unit")
    if array.text("data_type") not in ("fp16", "bf16"):
        raise InputError(f"{array.path('data_type')} is {shown(array.content.get('data_type'))}; allowed: fp16, bf16")
    _at_most(chiplet, "core_count", "physical_core_count")
    _at_most(io, "memory_channel_active_count", "memory_channel_physical_count")
    clock, lanes = device.number("frequency_Hz", "Hz"), core.whole("sublane_count")
    macs = lanes * array.whole("array_width") * array.whole("array_height") * array.number("mac_per_cycle")
    pins = io.whole("memory_channel_active_count") * io.whole("pin_count_per_channel")
    sram = core.number("SRAM_KB", "KiB")
    if sram < LEAST_SRAM_KIB:
        raise InputError(f"{core.path('SRAM_KB')} is {sram:g}; allowed: {LEAST_SRAM_KIB} KiB and more")
    shared = sram - LEAST_L1_KIB
    vectors = "fp16_count" if vector.content.get("fp32_count") == 0 else "fp32_count"
    values = {
        "clock.boost": (clock, "frequency_Hz"),
        "sm.count": (chiplet.whole("core_count") * device.whole("compute_chiplet_count", 1), "core_count x chiplets"),
        "tensor.fp16": (2 * macs, "2 x sublanes x array width x height x mac_per_cycle"),
        "sm.fp32_rate": (2 * lanes * vector.number(vectors), f"2 x sublanes x {vectors}"),
        "sm.shared_memory": (shared * 1024, f"SRAM_KB less the {LEAST_L1_KIB} KiB that stay L1 on A100 and H100"),
        "l2.capacity": (io.number("global_buffer_MB", "MiB") * 2**20, "global_buffer_MB, of 2**20 bytes"),
        "l2.bandwidth": (
            io.number("global_buffer_bandwidth_per_cycle_byte", "bytes") * clock,
            "global_buffer_bandwidth_per_cycle_byte x frequency_Hz",
        ),
        "hbm.capacity": (device.section("memory").number("total_capacity_GB", "GB") * 1e9, "total_capacity_GB"),
        "hbm.bandwidth": (
            pins * io.number("bandwidth_per_pin_bit", "bit/s") / 8,
            "active channels x pins x bandwidth_per_pin_bit / 8",
        ),
    }
    if "register_file" in core.content:
        file = core.section("register_file")
        if file.whole("register_bitwidth", 32) == 32:
            count = lanes * file.whole("num_reg_files", 1) * file.whole("num_registers")
            values["sm.registers"] = (count, "sublanes x num_reg_files x num_registers")
    figures = {key: figure(key, value, "derived", f"{_SOURCE}: {how}") for key, (value, how) in values.items()}
    memory = device.text("memory_protocol")
    remarks: tuple[str, ...] = ()
    if vectors != "fp32_count":
        remarks = (f"fp32_count is 0: the lanes of {vectors} are taken for it",)
    if memory not in MEMORY_KINDS:
        remarks += (f"memory_protocol {shown(memory)} is read as HBM2e",)
    like = liken(figures["tensor.fp16"].value, figures["hbm.bandwidth"].value)
    remarks += (f"compute capability {like.compute_capability} assumed, that of {like.id}: LLMCompass has none",)
    memory = memory if memory in MEMORY_KINDS else "HBM2e"
    return Found(name, figures, like, like.compute_capability_number, memory, remarks)


def _parsed(text: str) -> object:
    def refuse(word: str) -> object:
        raise InputError(f"holds {word}; write finite numbers")

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise InputError("is nested too deeply; correct the JSON") from None
    except ValueError as error:
        raise InputError(f"cannot be read as JSON: {' '.join(str(error).split())[:120]}; correct it") from None


def _at_most(section: Section, active: str, physical: str) -> None:
    """Refuse more active units than physical ones."""
    if physical in section.content and section.whole(active) > section.whole(physical):
        raise InputError(
            f"{section.path(active)} is {section.whole(active)}, more than {physical}, {section.whole(physical)}; "
            "correct one of them"
        )


_OLDEST, _NEWEST = 70, 129
_PEAKS = ("bfloat16_tc_flops", "float16_tc_flops")
_LARGEST_RATIO = 8.0
"""Largest plausible ratio of two formats' peaks."""


def read_aiconfigurator(path: Path, liken: Callable[[int, float, float], Gpu]) -> Found:
    """Read the figures of a system.

    Parameters
    ----------
    liken : callable
        (compute capability, 16-bit peak in FLOP/s, bandwidth in bytes/s) to the GPU whose SMs these are like.

    Raises
    ------
    InputError
        If a figure is missing or out of range.
    """
    content = read_yaml(path, "AIConfigurator system")
    try:
        return _system(Section(content).section("gpu"), path.stem, liken)
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None


def _system(gpu: Section, name: str, liken: Callable[[int, float, float], Gpu]) -> Found:
    if "sm_version" not in gpu.content:
        raise InputError("gpu.sm_version is missing, so this is no CUDA GPU; attnsim models NVIDIA's")
    capability = gpu.whole("sm_version")
    if not _OLDEST <= capability <= _NEWEST:
        raise InputError(f"gpu.sm_version is {capability}; allowed: {_OLDEST} to {_NEWEST}, such as 90")
    source = f"AIConfigurator system file {name}"
    stated = {
        key: figure(key, gpu.number(entry, unit), "datasheet", f"{source}, {entry} (secondary)")
        for key, entry, unit in (
            ("hbm.bandwidth", "mem_bw", "bytes/s"),
            ("hbm.capacity", "mem_capacity", "bytes"),
            ("power.tdp", "power", "W"),
        )
    }
    peak_key = _peak_key(gpu)
    peak = gpu.number(peak_key, "FLOP/s")
    like = liken(capability, peak, stated["hbm.bandwidth"].value)
    return Found(name, stated | _of_peak(gpu, peak_key, peak, like), like, capability)


def _peak_key(gpu: Section) -> str:
    """Key of the 16-bit peak: bf16 in newer files, fp16 in older ones; if both are given they must agree."""
    given = [key for key in _PEAKS if key in gpu.content]
    if len({gpu.number(key, "FLOP/s") for key in given}) > 1:
        values = ", ".join(f"{gpu.path(key)} is {shown(gpu.content[key])}" for key in given)
        raise InputError(f"{values}; no GPU that attnsim models has two 16-bit rates; correct or delete one")
    return given[0] if given else _PEAKS[0]


def _of_peak(gpu: Section, peak_key: str, peak: float, like: Gpu) -> dict[str, Figure]:
    """Number of SMs and clock that give the peak, for SMs like those of a known GPU."""
    rate = like.tensor.fp16_flops_per_clk
    count = figure(
        "sm.count",
        peak / (rate * like.clock.tensor_hz),
        "derived",
        f"{peak_key} over {rate:g} FLOP/clk at {like.clock.tensor_hz / 1e6:g} MHz as on {like.id}",
    )
    clock = round(peak / (rate * count.value))
    figures = {
        "tensor.fp16": figure("tensor.fp16", rate, "assumed", f"as on {like.id}"),
        "sm.count": count,
        "clock.tensor": figure("clock.tensor", clock, "derived", f"{peak_key} over SMs and FLOP/clk"),
    }
    if "fp8_tc_flops" in gpu.content and like.tensor.fp8_flops_per_clk:
        ratio = gpu.number("fp8_tc_flops", "FLOP/s") / peak
        if not 1 / _LARGEST_RATIO <= ratio <= _LARGEST_RATIO:
            raise InputError(
                f"gpu.fp8_tc_flops is {shown(gpu.content['fp8_tc_flops'])}, {ratio:.3g} times {peak_key}; write both "
                "in FLOP/s"
            )
        figures["tensor.fp8"] = figure("tensor.fp8", rate * ratio, "derived", "fp8_tc_flops over SMs and clock")
    return figures
