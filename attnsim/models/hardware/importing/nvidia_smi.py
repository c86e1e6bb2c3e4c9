"""``nvidia-smi -q -x``: a GPU by its name, with the clocks and the power limit of this machine.

The log names neither SMs nor rates, bandwidth or caches. It identifies a known GPU, and the settings that differ.

GPU of this machine through NVML, if nvidia-ml-py is installed; needs neither CUDA nor CuPy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, cast
from xml.etree import ElementTree

from attnsim.errors import InputError, shown
from attnsim.models.hardware.attached import MEMORY_MARGIN, Attached, gpu_of_attached
from attnsim.models.hardware.files import known_gpu_ids, load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.importing.sections import Found, Imported, figure
from attnsim.models.hardware.sections import Figure
from attnsim.units import parse_quantity

MAX_DEPTH = 32
_DIFFERENCE = 0.005
"""Relative difference above which a clock or limit counts as changed."""
_SOURCE = "nvidia-smi"


_POWER_LIMITS = tuple(
    f"{section}/{entry}"
    for entry in ("current_power_limit", "power_limit", "enforced_power_limit")
    for section in ("gpu_power_readings", "power_readings")
)
_SM_CLOCKS = ("max_clocks/sm_clock", "max_clocks/graphics_clock")


@dataclass(frozen=True, slots=True)
class Card:
    """Properties that identify a GPU; None if the log lacks one.

    Parameters
    ----------
    memory_bytes : float or None
        Visible device memory.
    boost_hz : float or None
        Highest SM clock.
    power_w : float or None
        Power limit as shipped.
    """

    name: str
    memory_bytes: float | None
    boost_hz: float | None
    power_w: float | None


def read_nvidia_smi(text: str, identify: Callable[[Card], Gpu], like: Gpu | None = None) -> Found:
    """Read the GPU of a log; the first if there are several.

    Parameters
    ----------
    identify : callable
        Returns the known GPU of a card; raises an InputError if there is none.
    like : Gpu, optional
        GPU to take figures from instead. The card's own datasheet has priority.

    Raises
    ------
    InputError
        If the log lists no GPU, or not its product name.
    """
    root = _parsed(text)
    cards = root.findall("gpu") if root.tag == "nvidia_smi_log" else []
    if not cards:
        raise InputError("holds no nvidia_smi_log with a gpu; write the file with: nvidia-smi -q -x")
    card = cards[0]
    name = " ".join(filter(str.isprintable, (card.findtext("product_name") or "").split()))[:200]
    if not name:
        raise InputError("product_name is missing; write the file with: nvidia-smi -q -x")
    memory = _quantity(card, ("fb_memory_usage/total",), "B")
    shipped = _quantity(card, ("gpu_power_readings/default_power_limit", "power_readings/default_power_limit"), "W")
    named = Card(name, memory, _quantity(card, _SM_CLOCKS, "Hz"), shipped)
    own = _own(named, identify, like)
    likened = like is not None and (own is None or own.id != like.id)
    base = like or own
    assert base is not None
    stated = {key: one for key, one in own.provenance.items() if one.kind != "assumed"} if own and likened else {}
    figures = stated | _different(card, own or base, _DIFFERENCE if own else -1)
    if memory is not None and (own is None or abs(memory / own.hbm.capacity_bytes - 1) > MEMORY_MARGIN):
        figures["hbm.capacity"] = figure("hbm.capacity", memory, "measured", f"{_SOURCE}, fb_memory_usage")
    others = {(other.findtext("product_name") or "").strip() for other in cards[1:]} - {name}
    remarks: tuple[str, ...] = ()
    if len(cards) > 1:
        remarks = (f"the first of {len(cards)} GPUs{', of several kinds' if others else ''}",)
    if contradicted := [key for key, one in stated.items() if one.value != base.get(key)]:
        remarks += (f"not as on {base.id}, by what is known of {name} itself: {', '.join(contradicted)}",)
    return Found(name, figures, base, base.compute_capability_number, "", remarks, likened)


def _own(card: Card, identify: Callable[[Card], Gpu], like: Gpu | None) -> Gpu | None:
    """Known GPU of a card; None if the card is unknown and likened to another GPU."""
    try:
        return identify(card)
    except InputError:
        if like is None:
            raise
        return None


def _different(card: ElementTree.Element, like: Gpu, most: float) -> dict[str, Figure]:
    """Clocks and power limit whose relative difference from the known GPU's exceeds `most`."""
    found = {}
    for key, paths, unit in (("clock.boost", _SM_CLOCKS, "Hz"), ("power.limit", _POWER_LIMITS, "W")):
        value = _quantity(card, paths, unit)
        if value is not None and abs(value / like.get(key) - 1) > most:
            found[key] = figure(key, value, "measured", f"{_SOURCE}, {paths[0]}")
    return found


def _quantity(card: ElementTree.Element, paths: tuple[str, ...], unit: str) -> float | None:
    """First of the entries that is present and known, in SI units."""
    for path in paths:
        given = (card.findtext(path) or "").strip()
        if not given or re.fullmatch(r"\[?(N/A|Not Supported|Unknown Error|Requested.*)\]?", given):
            continue
        try:
            return parse_quantity(given, unit)
        except InputError as error:
            raise InputError(f"{path.replace('/', '.')}: {error}") from None
    return None


def _parsed(text: str) -> ElementTree.Element:
    """XML tree of a document without own entities, nested no deeper than `MAX_DEPTH`."""
    if "<!ENTITY" in text or re.search(r"<!DOCTYPE[^>]*\[", text):
        raise InputError("declares entities, which nvidia-smi never does; write the file with: nvidia-smi -q -x")
    parser = ElementTree.XMLPullParser(("start", "end"))  # type: ignore[var-annotated]
    depth, root = 0, None
    try:
        parser.feed(text)
        parser.close()
        for event, element in cast("Iterator[tuple[str, ElementTree.Element]]", parser.read_events()):
            root = element if root is None else root
            depth += 1 if event == "start" else -1
            if depth > MAX_DEPTH:
                raise InputError(f"is nested more than {MAX_DEPTH} deep; write the file with: nvidia-smi -q -x")
    except ElementTree.ParseError as error:
        raise InputError(f"cannot be read as XML ({error}); write the file with: nvidia-smi -q -x") from None
    except (ValueError, UnicodeError) as error:
        raise InputError(f"cannot be read as XML ({shown(str(error))}); save it as UTF-8") from None
    if root is None:
        raise InputError("is empty; write the file with: nvidia-smi -q -x")
    return root


_FEWER_CORES = (70, 75, 80)
"""Compute capabilities with 64 FP32 cores per SM; later ones have 128 (CUDA Programming Guide)."""
_BORROWED = "CUDA device attribute"


def import_attached() -> Imported:
    """The attached GPU: the built-in one, or a record made from what NVML reports.

    Raises
    ------
    InputError
        Without nvidia-ml-py, driver or GPU.
    """
    gpu = gpu_of_attached(_attached(), map(load_gpu, known_gpu_ids()))
    if gpu.id in known_gpu_ids():
        return Imported(gpu, "nvml", gpu.id, (), ())
    figures = {key: replace(one, source=one.source.replace(_BORROWED, "NVML")) for key, one in gpu.provenance.items()}
    return Imported(replace(gpu, provenance=MappingProxyType(figures)), "nvml", "", (), ())


def _attached() -> Attached:
    try:
        import pynvml
    except ImportError:
        raise InputError(
            "NVML needs nvidia-ml-py (pip install 'attnsim[gpu]'); or give a file written by: nvidia-smi -q -x"
        ) from None
    nvml: Any = pynvml
    try:
        nvml.nvmlInit()
        try:
            return _read(nvml, nvml.nvmlDeviceGetHandleByIndex(0))
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        raise InputError(f"NVML: {error}; check nvidia-smi") from None


def _read(nvml: Any, card: Any) -> Attached:
    name = nvml.nvmlDeviceGetName(card)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(card)
    capability = 10 * major + minor
    attributes = {
        "MultiProcessorCount": nvml.nvmlDeviceGetNumGpuCores(card) // (64 if capability in _FEWER_CORES else 128),
        "ClockRate": 1000 * nvml.nvmlDeviceGetMaxClockInfo(card, nvml.NVML_CLOCK_SM),
        "MemoryClockRate": 1000 * nvml.nvmlDeviceGetMaxClockInfo(card, nvml.NVML_CLOCK_MEM),
        "GlobalMemoryBusWidth": nvml.nvmlDeviceGetMemoryBusWidth(card),
    }
    return Attached(
        name=name.decode() if isinstance(name, bytes) else str(name),
        capability=capability,
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(card).total),
        attributes=attributes,
    )
