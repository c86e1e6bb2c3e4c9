"""What tests of kernels on the CPU share: the device, and the comparison of what ran with the schedule."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from attnsim.kernels.cpu.device import CpuDevice
from attnsim.models.schedule.schedule import Schedule

AssertMatches = Callable[[CpuDevice, Schedule], None]


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
        planned = [(one.name, one.blocks, one.threads, one.shared_memory_bytes) for one in schedule.kernels]
        assert ran == planned, "(kernel, blocks, threads, shared memory) that ran, and those of the schedule"
        wanted: dict[tuple[str, str, str], int] = {}
        for kernel in schedule.kernels:
            for key, count in kernel.requested().items():
                wanted[kernel.name, *key] = wanted.get((kernel.name, *key), 0) + count
        assert device.requested() == wanted, "bytes of global memory by kernel and tensor"

    return check
