"""AIConfigurator's system files: ``systems/*.yaml`` of NVIDIA's aiconfigurator-core (0.12).

They hold what a roofline needs: bandwidth, capacity, peak rates, power and the compute capability. The number of SMs
follows from the peak, given the rate and clock of an SM of a GPU of that capability.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from attnsim.errors import InputError, shown
from attnsim.files import read_yaml
from attnsim.models.hardware.figure import Figure
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.importing.sections import Found, Section, figure

_OLDEST, _NEWEST = 70, 129
_PEAKS = ("bfloat16_tc_flops", "float16_tc_flops")
_LARGEST_RATIO = 8.0
"""Largest plausible ratio of two formats' peaks."""


def read(path: Path, liken: Callable[[int, float, float], Gpu]) -> Found:
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
