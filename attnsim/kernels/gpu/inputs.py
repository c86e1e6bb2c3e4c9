"""Random 16-bit arrays on a GPU, without CuPy's compiler, which needs CUDA headers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnsim.kernels.device import Array, Device
from attnsim.ptx.counters import encode

DRAWN = 1 << 20
"""Numbers drawn for an array; longer arrays repeat them."""


Random = Callable[[tuple[int, ...], str, int], Array]
"""Makes normal numbers of a shape in fp16 or bf16; the seed distinguishes arrays of one workload."""


class RepeatedNormals:
    """Normal numbers in device memory: drawn once on the CPU, then repeated by copies on the device."""

    def __init__(self, device: Device, seed: int) -> None:
        self._device = device
        self._seed = seed

    def __call__(self, shape: tuple[int, ...], dtype: str, seed: int) -> Any:
        """Make normal numbers of a shape; `seed` distinguishes arrays of one workload."""
        count = int(np.prod(shape))
        drawn = np.random.default_rng((self._seed, seed)).standard_normal(min(count, DRAWN), dtype=np.float32)
        some = self._device.upload(encode(drawn, dtype))
        if some.size == count:
            return some.reshape(shape)
        array = self._device.empty((count,), str(some.dtype))
        array.data.copy_from_device_async(some.data, some.nbytes)
        done = int(some.size)
        while done < count:  # doubling: as many copies as the length has bits
            more = min(done, count - done)
            array[done : done + more].data.copy_from_device_async(array.data, more * array.itemsize)
            done += more
        return array.reshape(shape)
