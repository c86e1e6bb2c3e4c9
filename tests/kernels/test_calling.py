"""Operations on bare arrays: where they run, what they are called with, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import attnsim.kernels as ak
from attnsim.errors import InputError
from attnsim.kernels.calling import device_of
from attnsim.kernels.catalog import OPERATIONS
from attnsim.kernels.cpu_device import CpuDevice
from attnsim.models.mask.mask import Mask
from attnsim.models.references.softmax import attention
from attnsim.ptx.counters import decode, encode
from attnsim.ptx.outcome import TOLERANCE

SHAPE = (1, 2, 40, 64)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_numpy_arrays_run_in_the_interpreter(dtype: str) -> None:
    q, k, v = (encode(np.random.default_rng(i).standard_normal(SHAPE), dtype) for i in range(3))
    o, lse = ak.flash_forward(q, k, v, causal=True)
    expected, expected_lse = attention(decode(q), decode(k), decode(v), Mask.causal())
    assert o.dtype == q.dtype and np.abs(decode(o) - expected).max() < TOLERANCE[dtype] * np.abs(expected).max()
    assert np.allclose(lse, expected_lse, atol=0.01)


def test_the_package_lists_its_operations_and_says_what_they_take() -> None:
    for operation in OPERATIONS.values():
        found = getattr(ak, operation.function)
        assert operation.function in dir(ak) and found.__name__ == operation.function
        assert found.__doc__
    with pytest.raises(AttributeError, match="no attribute 'flash'"):
        ak.__getattr__("flash")


def test_misuse_is_refused_in_words() -> None:
    q = np.zeros(SHAPE, np.float16)
    with pytest.raises(InputError, match="flash_forward takes 3 arrays: q, k, v; 2 given"):
        ak.flash_forward(q, q)
    with pytest.raises(InputError, match=r"does not take window; allowed: .*causal"):
        ak.flash_forward(q, q, q, window=3)
    with pytest.raises(InputError, match="arrays of ndarray, list, ndarray; give all of NumPy"):
        ak.flash_forward(q, [1.0], q)
    assert isinstance(device_of(q, q), CpuDevice)
