"""Reads a GPU's clocks, power and throttle state through NVML, during timing.

It never changes a setting: the card is measured as it is found.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from attnsim.kernels.gpu import probe_kernels
from attnsim.kernels.gpu.cuda_device import CudaDevice

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


Mode = Literal["cold", "warm", "graph", "cold graph"]

BURST = 5
"""Samples of a burst, between two readings of the clocks."""
CALLS_PER_GRAPH = 10
"""Calls captured in one graph, to share its launch; only one if the L2 is flushed."""

SHORTEST_GATE_S = 1e-4
LONGEST_GATE_S = 0.05
"""Longest gate; kernels that take longer to queue run so long that Python's share does not matter."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed call, and the GPU's state after its burst."""

    seconds: float
    state: Reading


@dataclass(frozen=True, slots=True)
class Timing:
    """All samples of one call.

    Parameters
    ----------
    mode : {"cold", "warm", "graph", "cold graph"}
        "cold": the L2 is flushed before every call. "warm": the call repeats on the same data. "graph": warm, from a
        CUDA graph of ten calls. "cold graph": a graph of one call after a flush.
    samples : tuple of Sample
        In order, throttled ones included.
    """

    mode: Mode
    samples: tuple[Sample, ...]

    @property
    def _kept(self) -> tuple[Sample, ...]:
        return tuple(sample for sample in self.samples if not sample.state.throttled) or self.samples

    @property
    def kept(self) -> tuple[float, ...]:
        """Seconds of the samples that were not throttled; of all samples if every one was."""
        return tuple(sample.seconds for sample in self._kept)

    @property
    def throttled(self) -> int:
        """Number of throttled samples."""
        return sum(bool(sample.state.throttled) for sample in self.samples)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons for throttling, each once."""
        return tuple(dict.fromkeys(reason for sample in self.samples for reason in sample.state.throttled))

    @property
    def median_s(self) -> float:
        """Median of the kept samples in seconds."""
        return statistics.median(self.kept)

    @property
    def iqr_s(self) -> float:
        """Interquartile range of the kept samples in seconds; 0 for a single sample."""
        if len(self.kept) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.kept, n=4, method="inclusive")
        return high - low

    @property
    def sm_mhz(self) -> float | None:
        """Median SM clock of the kept samples in MHz; None if the driver does not provide it."""
        clocks = [sample.state.sm_mhz for sample in self._kept if sample.state.sm_mhz is not None]
        return statistics.median(clocks) if clocks else None

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON: samples by burst, each burst with the GPU's state after it."""
        bursts = itertools.groupby(self.samples, key=lambda sample: id(sample.state))
        groups = [list(burst) for _, burst in bursts]
        return {
            "mode": self.mode,
            "median_s": self.median_s,
            "iqr_s": self.iqr_s,
            "kept": len(self.kept),
            "throttled": self.throttled,
            "reasons": list(self.reasons),
            "sm_mhz": self.sm_mhz,
            "bursts": [{"samples_s": [one.seconds for one in burst], **asdict(burst[0].state)} for burst in groups],
        }


class Watch(Protocol):
    """Interface of a timer: :class:`Stopwatch`, or a stand-in in tests."""

    def time(
        self,
        call: Callable[[], object],
        mode: Mode = "cold",
        *,
        samples: int = 30,
        warm_up: int = 3,
        limit_s: float = 2.0,
    ) -> Timing:
        """Run a call until there are `samples` of it, or `limit_s` is used up."""
        ...


class Stopwatch:
    """Times calls on a GPU.

    Parameters
    ----------
    clocks : Clocks, optional
        Default: this device's.
    """

    def __init__(self, device: CudaDevice, clocks: Clocks | None = None) -> None:
        import cupy

        self._cupy = cupy
        self._device = device
        # One for all: the memory pool keeps what was freed apart by stream.
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self.clocks = clocks or Clocks(cupy.cuda.runtime.deviceGetPCIBusId(cupy.cuda.runtime.getDevice()))
        # Twice the L2, so that nothing of the last call's data is left in it. It is read, not written: lines that were
        # written would be sent to memory while the next kernel runs.
        self._flush = cupy.zeros(2 * int(device.gpu.l2.capacity_bytes), "uint8")
        self._sink = cupy.zeros(1, "uint32")
        probe_kernels.wait(device, 0.0)  # loaded now: a load between two events would be timed
        probe_kernels.read(device, self._flush, self._sink)

    def time(
        self,
        call: Callable[[], object],
        mode: Mode = "cold",
        *,
        samples: int = 30,
        warm_up: int = 3,
        limit_s: float = 2.0,
    ) -> Timing:
        """Run a call until there are `samples` of it, or `limit_s` is used up.

        Parameters
        ----------
        call : callable
            Queues work on the current stream and does not wait for it.
        mode : {"cold", "warm", "graph", "cold graph"}
        limit_s : float
            GPU time after which no further burst begins, in seconds.
        """
        self._device.synchronize()  # inputs are made on another stream, which this one does not wait for
        try:
            with self._stream as stream:
                for _ in range(warm_up):
                    call()
                stream.synchronize()
                return Timing(mode, tuple(self._samples(call, mode, samples, limit_s, stream)))
        except Exception:
            # The stream may be left in the middle of a capture, or the device in error: which the next line then says.
            self._stream = self._cupy.cuda.Stream(non_blocking=True)
            self._device.synchronize()
            raise

    def _samples(
        self, call: Callable[[], object], mode: Mode, samples: int, limit_s: float, stream: Any
    ) -> list[Sample]:
        calls = {"graph": CALLS_PER_GRAPH, "cold graph": 1}.get(mode, 0)
        run = self._graph(call, calls, stream) if calls else call
        gate_s, found = self._gate(run, stream), list[Sample]()
        while len(found) < samples and sum(one.seconds for one in found) * max(1, calls) < limit_s:
            count = min(BURST, samples - len(found))
            burst, gate_s = self._burst(run, stream, count, gate_s, flush=mode.startswith("cold"))
            state = self.clocks.read()
            found += [Sample(seconds / max(1, calls), state) for seconds in burst]
        return found

    def _gate(self, run: Callable[[], object], stream: Any) -> float:
        """Return the duration of the gate in seconds: twice the time that queueing a burst takes."""
        start = time.perf_counter()
        run()
        queueing = time.perf_counter() - start
        stream.synchronize()
        return min(LONGEST_GATE_S, max(SHORTEST_GATE_S, 2 * BURST * queueing))

    def _burst(
        self, run: Callable[[], object], stream: Any, count: int, gate_s: float, *, flush: bool
    ) -> tuple[list[float], float]:
        """Run one burst; returns the seconds of each call, and the gate that was long enough."""
        while True:
            gate = self._cupy.cuda.Event()
            probe_kernels.wait(self._device, gate_s)
            gate.record(stream)
            events = [self._queued(run, stream, flush) for _ in range(count)]
            in_time = not gate.done
            stream.synchronize()
            if in_time or gate_s >= LONGEST_GATE_S:
                # CUDA counts in milliseconds.
                return [self._cupy.cuda.get_elapsed_time(start, stop) / 1e3 for start, stop in events], gate_s
            gate_s = min(LONGEST_GATE_S, 2 * gate_s)

    def _queued(self, run: Callable[[], object], stream: Any, flush: bool) -> tuple[Any, Any]:
        if flush:
            probe_kernels.read(self._device, self._flush, self._sink)
        start, stop = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        start.record(stream)
        run()
        stop.record(stream)
        return start, stop

    def _graph(self, call: Callable[[], object], calls: int, stream: Any) -> Callable[[], object]:
        stream.begin_capture()
        for _ in range(calls):
            call()
        graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
        return lambda: graph.launch(stream)
