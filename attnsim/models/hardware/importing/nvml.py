"""GPU of this machine through NVML, if nvidia-ml-py is installed; needs neither CUDA nor CuPy."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

from attnsim.errors import InputError
from attnsim.models.hardware.attached import Attached, gpu_of_attached
from attnsim.models.hardware.files import known_gpu_ids, load_gpu
from attnsim.models.hardware.importing import Imported

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
