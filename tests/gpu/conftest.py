"""The GPU that these tests run on; without one they are skipped, and say what is missing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from attnsim.errors import InputError
from attnsim.kernels.gpu.cuda_device import CudaDevice


@pytest.fixture(scope="session")
def gpu_device() -> Iterator[CudaDevice]:
    """Fresh memory is NaN, and every launch is waited for."""
    try:
        device = CudaDevice(poison=True, synchronous=True)
    except InputError as reason:
        pytest.skip(str(reason))
    yield device
    device.synchronize()


@pytest.fixture
def seed() -> int:
    """Another one each run; a failing test shows it."""
    chosen = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {chosen}")
    return chosen
