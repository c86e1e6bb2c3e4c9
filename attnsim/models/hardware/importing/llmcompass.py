"""LLMCompass's hardware descriptions: ``configs/*.json`` of PrincetonUniversity/LLMCompass (Zhang et al., ISCA 2024).

A core is an SM, a sublane one of its partitions. Keys as in the repository at b95c6c95.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from attnsim.errors import InputError, shown
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.importing.sections import Found, Section, figure
from attnsim.models.hardware.names import is_anothers
from attnsim.models.hardware.rules import MEMORY_KINDS

LEAST_L1_KIB = 28
"""L1 part of SRAM_KB beyond the largest shared memory: 192 KiB against 164 on A100, 256 against 228 on H100."""
LEAST_SRAM_KIB = 32
_SOURCE = "LLMCompass hardware description"


def read(text: str, liken: Callable[[float, float], Gpu]) -> Found:
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
