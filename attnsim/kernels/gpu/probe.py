"""Microbenchmarks: rates and latencies of a GPU's units, each measured by a kernel that uses one unit only."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from attnsim.kernels.device import Device
from attnsim.kernels.gpu import probe_kernels
from attnsim.kernels.gpu.timing import Mode, Timing, Watch

L2_SHARES = (1 / 8, 3 / 16, 1 / 4, 5 / 16, 3 / 8, 7 / 16, 1 / 2, 9 / 16, 5 / 8, 3 / 4, 7 / 8, 1, 5 / 4, 3 / 2, 2, 3)
"""Working sets of the L2 sweep, as fractions of the L2's capacity: they show its bandwidth and its effective size."""

REREAD_BYTES = 1 << 30
"""Bytes read in each call of the sweep, so that the launch is negligible."""

STREAMED_BYTES = 2 << 30
"""Size of the array that is streamed from device memory: its launch is 0.5 % of the time at 5 TB/s."""

SPUN = (
    ("probe_mma", "tensor.mma_sync", "FLOP/s"),
    ("probe_wgmma", "tensor.wgmma", "FLOP/s"),
    ("probe_exp", "exp", "1/s"),
    ("probe_fma", "fp32.fma", "FLOP/s"),
    ("probe_shared", "shared_memory.read", "B/s"),
)
"""Compute-only kernels: entry, name of the rate (tensor rates are for bf16), unit."""

L1_BYTES = 16 << 10
"""Working set for the L1 latency: half of the smallest L1."""

L1_STEPS = 100_000
"""Steps of the L1 latency; the misses of the first round are 0.1 % of them."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A measured rate, time or latency.

    Parameters
    ----------
    name : str
        Name of the quantity: ``hbm.copy``, ``tensor.mma_sync``, ``l2.reread``, ``launch.graph``, ``latency.hbm``.
    value : float
        Median.
    unit : str
        "B/s", "FLOP/s", "1/s", "s" or "clk".
    spread : float
        Interquartile range divided by the median.
    samples : int
        Number of samples of the median.
    throttled : int
        Samples that were dropped because the GPU was throttled.
    sm_mhz : float or None
        Median SM clock during the measurement; None if the driver does not provide it.
    working_set_bytes : int or None
        Working set, for points of a sweep.
    """

    name: str
    value: float
    unit: str
    spread: float
    samples: int
    throttled: int = 0
    sm_mhz: float | None = None
    working_set_bytes: int | None = None


def measure(device: Device, watch: Watch) -> Iterator[Rate]:
    """Run every microbenchmark, the most valuable first."""
    l2 = int(device.gpu.l2.capacity_bytes)
    large = device.zeros((max(8 * l2, STREAMED_BYTES),), "uint8")
    yield _rate(watch, "hbm.read", large.nbytes, "B/s", partial(probe_kernels.read, device, large))
    other = device.empty(large.shape, "uint8")
    yield _rate(watch, "hbm.copy", 2 * large.nbytes, "B/s", partial(probe_kernels.copy, device, large, other))
    del other  # given back before the next rate
    for entry, name, unit in SPUN:
        if entry != "probe_wgmma" or device.gpu.features.wgmma:
            work = probe_kernels.work_of(entry) * probe_kernels.blocks_of(device, entry)
            yield _rate(watch, name, work, unit, partial(probe_kernels.spin, device, entry), "warm")
    for share in L2_SHARES:
        part = large[: int(l2 * share) // 512 * 512]
        passes = max(2, REREAD_BYTES // part.nbytes)
        call = partial(probe_kernels.reread, device, part, passes)
        yield _rate(watch, "l2.reread", passes * part.nbytes, "B/s", call, "warm", working_set_bytes=part.nbytes)
    # Time between two events around a kernel that does nothing: in a stream, and one of ten in a graph.
    launches: tuple[tuple[str, Mode], ...] = (("stream", "warm"), ("graph", "graph"))
    for name, mode in launches:
        found = watch.time(partial(probe_kernels.null, device), mode, samples=200)
        yield _of_timing(f"launch.{name}", found.median_s, "s", found)
    yield _latency(device, "l1", L1_BYTES, L1_STEPS)
    yield _latency(device, "l2", l2 // 8)
    # Read in between, `large` drives the links out of the L2; the first chase of each leaves nothing behind.
    yield _latency(device, "hbm", 4 * l2, before=partial(probe_kernels.read, device, large))


def _rate(
    watch: Watch,
    name: str,
    work: float,
    unit: str,
    call: Callable[[], None],
    mode: Mode = "cold",
    working_set_bytes: int | None = None,
) -> Rate:
    found = watch.time(call, mode, samples=20, limit_s=0.5)
    return _of_timing(name, work / found.median_s, unit, found, working_set_bytes)


def _of_timing(name: str, value: float, unit: str, found: Timing, working_set_bytes: int | None = None) -> Rate:
    return Rate(
        name,
        value,
        unit,
        found.iqr_s / found.median_s,
        len(found.kept),
        found.throttled,
        found.sm_mhz,
        working_set_bytes,
    )


def _latency(
    device: Device, name: str, size: int, steps: int | None = None, before: Callable[[], None] | None = None
) -> Rate:
    """Measure the clocks of a load that depends on the one before.

    The loads go through `size` bytes and meet no cache line twice in `steps`.
    """
    links = device.upload(probe_kernels.ring(size // 4, probe_kernels.LINE_ELEMENTS))
    steps = steps or min(20_000, size // (4 * probe_kernels.LINE_ELEMENTS))
    clocks = []
    for attempt in range(6):
        if before is not None:
            before()
        found = float(device.download(probe_kernels.chase(device, links, steps))[0]) / steps
        if attempt:  # the first loads the kernel, and the links into whatever cache is measured
            clocks.append(found)
    low, high = np.quantile(clocks, [0.25, 0.75])
    middle = statistics.median(clocks)
    return Rate(f"latency.{name}", middle, "clk", float(high - low) / middle, len(clocks))
