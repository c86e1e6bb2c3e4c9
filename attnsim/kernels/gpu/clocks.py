"""Reads a GPU's clocks, power and throttle state through NVML, during timing.

It never changes a setting: the card is measured as it is found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

THROTTLE_REASONS = {
    0x0000000000000004: "power cap",
    0x0000000000000008: "hardware slowdown",
    0x0000000000000020: "software thermal slowdown",
    0x0000000000000040: "hardware thermal slowdown",
    0x0000000000000080: "power brake",
}
"""Bits of nvmlClocksThrottleReasons that mean the GPU ran slower than asked (NVML API reference); idle, application
clocks and sync boost are not among them."""


@dataclass(frozen=True, slots=True)
class Reading:
    """State of the GPU at one moment; None for values that the driver does not provide.

    Parameters
    ----------
    sm_mhz, power_w : float or None
        SM clock in MHz and power in W.
    throttled : tuple of str
        Reasons why the clock is below the requested one; empty if it is not.
    """

    sm_mhz: float | None = None
    power_w: float | None = None
    throttled: tuple[str, ...] = ()


class Clocks:
    """Reads one GPU's state; readings are empty if NVML is not installed or fails.

    Parameters
    ----------
    pci_bus_id : str
        From CUDA, because NVML and CUDA number GPUs in different orders.
    """

    def __init__(self, pci_bus_id: str) -> None:
        self._nvml: Any = None
        self.missing = ""
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id.encode())
            self._nvml = pynvml
        except ImportError:
            self.missing = "no NVML: pip install nvidia-ml-py"
        except Exception as error:
            # pynvml raises a class of its own per driver error; a missing clock must not stop a measurement.
            self.missing = f"NVML refuses: {error}"

    def driver(self) -> str:
        """Return the driver's version, "" without NVML."""
        return str(self._asked("nvmlSystemGetDriverVersion", system=True) or "")

    def read(self) -> Reading:
        """Read the present state."""
        if self._nvml is None:
            return Reading()
        nvml = self._nvml
        bits = self._asked("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        power = self._asked("nvmlDeviceGetPowerUsage")
        return Reading(
            sm_mhz=self._asked("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            power_w=None if power is None else power / 1e3,  # NVML counts milliwatts
            throttled=tuple(reason for bit, reason in THROTTLE_REASONS.items() if bits & bit),
        )

    def _asked(self, function: str, *arguments: Any, system: bool = False) -> Any:
        if self._nvml is None:
            return None
        try:
            return getattr(self._nvml, function)(*(() if system else (self._handle,)), *arguments)
        except self._nvml.NVMLError:
            return None
