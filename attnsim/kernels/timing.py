"""Time on a GPU with CUDA events: cold or warm L2, in a stream or as a graph, every sample kept.

``cupyx.profiler.benchmark`` synchronises after every repeat and never flushes the L2, so that short kernels show the
latency of a launch; here a whole burst of samples is queued before anything is waited for.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from attnsim.kernels.clocks import Clocks, Reading
from attnsim.kernels.gpu import CudaDevice

Mode = Literal["cold", "warm", "graph"]
MODES: tuple[Mode, ...] = ("cold", "warm", "graph")

BURST = 5
"""Samples queued between two looks at the clocks."""
CALLS_PER_GRAPH = 10
"""Calls captured in one graph: its own launch is shared among them."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed call and the state of the GPU right after its burst."""

    seconds: float
    state: Reading


@dataclass(frozen=True, slots=True)
class Timing:
    """All samples of one call.

    Parameters
    ----------
    mode : {"cold", "warm", "graph"}
        The L2 flushed before every call; the call repeated on the same data; the same from a CUDA graph.
    samples : tuple of Sample
        In order, throttled ones included.
    """

    mode: Mode
    samples: tuple[Sample, ...]

    @property
    def kept(self) -> tuple[float, ...]:
        """Seconds of the samples that were not throttled; of all when every one was."""
        good = tuple(sample.seconds for sample in self.samples if not sample.state.throttled)
        return good or tuple(sample.seconds for sample in self.samples)

    @property
    def throttled(self) -> int:
        """How many samples were throttled."""
        return sum(bool(sample.state.throttled) for sample in self.samples)

    @property
    def median_s(self) -> float:
        """Median of the kept samples."""
        return statistics.median(self.kept)

    @property
    def iqr_s(self) -> float:
        """Distance between the quartiles of the kept samples; 0 for a single one."""
        if len(self.kept) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.kept, n=4, method="inclusive")
        return high - low


class Stopwatch:
    """Times calls on a GPU.

    Parameters
    ----------
    device : CudaDevice
    clocks : Clocks, optional
        Default: this device's.
    """

    def __init__(self, device: CudaDevice, clocks: Clocks | None = None) -> None:
        import cupy

        self._cupy = cupy
        self.clocks = clocks or Clocks(cupy.cuda.runtime.deviceGetPCIBusId(cupy.cuda.runtime.getDevice()))
        # Twice the L2, so that nothing of the last call's data is left in it.
        self._flush = cupy.empty(2 * int(device.gpu.l2.capacity_bytes), "uint8")

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
        mode : {"cold", "warm", "graph"}
        samples, warm_up : int
        limit_s : float
            GPU time after which no further burst is begun.
        """
        with self._cupy.cuda.Stream(non_blocking=True) as stream:
            for _ in range(warm_up):
                call()
            stream.synchronize()
            run, calls = (self._graph(call, stream), CALLS_PER_GRAPH) if mode == "graph" else (call, 1)
            found: list[Sample] = []
            while len(found) < samples and sum(one.seconds * calls for one in found) < limit_s:
                burst = self._burst(run, stream, min(BURST, samples - len(found)), flush=mode == "cold")
                state = self.clocks.read()
                found += [Sample(seconds / calls, state) for seconds in burst]
        return Timing(mode, tuple(found))

    def _burst(self, run: Callable[[], object], stream: Any, count: int, *, flush: bool) -> list[float]:
        events = []
        for _ in range(count):
            if flush:
                self._flush.fill(0)
            start, stop = self._cupy.cuda.Event(), self._cupy.cuda.Event()
            start.record(stream)
            run()
            stop.record(stream)
            events.append((start, stop))
        stream.synchronize()
        return [self._cupy.cuda.get_elapsed_time(start, stop) / 1e3 for start, stop in events]  # CUDA counts ms

    def _graph(self, call: Callable[[], object], stream: Any) -> Callable[[], object]:
        stream.begin_capture()
        for _ in range(CALLS_PER_GRAPH):
            call()
        graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
        return lambda: graph.launch(stream)
