"""What tests of kernels on the CPU share: the device, and the comparison of what ran with the schedule."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from attnsim.kernels.cpu_device import CpuDevice
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.schedule.occupancy import occupancy
from attnsim.models.schedule.schedule import Kernel, Schedule

AssertMatches = Callable[[CpuDevice, Schedule], None]


def _grid(kernel: Kernel, gpu: Gpu) -> int:
    """Blocks that a kernel is launched with: of one that persists, no more whole clusters than fit the GPU."""
    at_once = gpu.sm.count * occupancy(kernel, gpu).blocks_per_sm
    clusters = max(at_once // kernel.multicast, 1)
    return min(clusters * kernel.multicast, kernel.blocks) if kernel.persistent else kernel.blocks


@pytest.fixture
def cpu_device() -> CpuDevice:
    """The interpreter with the tiles of an A100, nothing launched yet."""
    return CpuDevice("a100-sxm4-80gb")


@pytest.fixture
def assert_matches_schedule() -> AssertMatches:
    """Asserts that what ran on a device is what the schedule says: kernels, grids, blocks and requested bytes."""

    def check(device: CpuDevice, schedule: Schedule) -> None:
        ran = [
            (one.variant.entry, math.prod(one.grid), one.variant.threads, one.variant.shared_memory_bytes)
            for one in device.launches
        ]
        planned = [(one.name, _grid(one, device.gpu), one.threads, one.shared_memory_bytes) for one in schedule.kernels]
        assert ran == planned, "(kernel, blocks, threads, shared memory) that ran, and those of the schedule"
        wanted: dict[tuple[str, str, str], int] = {}
        for kernel in schedule.kernels:
            for key, count in kernel.requested().items():
                wanted[kernel.name, *key] = wanted.get((kernel.name, *key), 0) + count
        assert device.requested() == wanted, "bytes of global memory by kernel and tensor"

    return check
