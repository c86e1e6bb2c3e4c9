"""Detects NVIDIA cards, driver and usable GPUs on this machine, and runs NVIDIA's tools."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnsim.kernels.gpu.cuda_device import attached, import_cupy

NVIDIA_VENDOR = "0x10de"
"""PCI vendor id."""

TIMEOUT_S = 90
"""Time limit for a tool on a small kernel, in seconds."""


@dataclass(frozen=True, slots=True)
class Host:
    """NVIDIA hardware and driver of this machine.

    Parameters
    ----------
    cards : int
        Number of attached NVIDIA devices (on PCI, or by the driver's device files).
    driver_cuda : int
        Newest CUDA release that the driver supports, 13000 for 13.0; 0 without a driver.
    gpus : tuple of str
        Descriptions of the GPUs that CuPy can use.
    trouble : str
        Reason why CuPy cannot use a GPU.
    """

    cards: int
    driver_cuda: int
    gpus: tuple[str, ...]
    trouble: str

    @classmethod
    def here(cls) -> Host:
        """Examine this machine."""
        cards, driver = _count_cards(), _driver_cuda()
        try:
            gpus, trouble = tuple(_usable_gpus()), ""
        except Exception as error:  # whatever stops CuPy is what has to be told
            gpus, trouble = (), one_line(error)
        return cls(max(cards, len(gpus)), driver, gpus, trouble)


def _count_cards() -> int:
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    classes = [vendor.with_name("class") for vendor in vendors if read(vendor).strip() == NVIDIA_VENDOR]
    on_bus = sum(read(path).startswith("0x03") for path in classes)  # display and 3D controllers
    return max(on_bus, sum(1 for _ in Path("/dev").glob("nvidia[0-9]*")))


def _driver_cuda() -> int:
    version = ctypes.c_int(0)
    try:
        library = ctypes.CDLL("libcuda.so.1")
        status: Callable[[Any], int] = library.cuDriverGetVersion
        return version.value if status(ctypes.byref(version)) == 0 else 0
    except (OSError, AttributeError):
        return 0


def _usable_gpus() -> Iterator[str]:
    cupy = import_cupy()
    for number in range(cupy.cuda.runtime.getDeviceCount()):
        one = attached(number)
        sms = one.attributes.get("MultiProcessorCount", 0)
        yield f"{one.name}, sm_{one.capability}, {sms} SMs, {one.memory_bytes / 1e9:.0f} GB"


def tried(command: list[str]) -> tuple[int, str]:
    """Run a tool; returns its exit code and all its output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, one_line(error)
    return done.returncode, done.stdout + done.stderr


def read(path: Path) -> str:
    """Read a system file; "" if there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def one_line(error: object) -> str:
    """Return a message without line breaks."""
    return " ".join(str(error).split())
