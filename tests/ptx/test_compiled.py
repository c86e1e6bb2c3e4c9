"""Instructions together and one by one: the same results, counts and faults; 16-bit floats of every bit pattern."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attnsim.errors import InputError
from attnsim.kernels.cpu_device import CpuDevice
from attnsim.kernels.flash import flash_forward
from attnsim.kernels.hopper import flash_hopper
from attnsim.models.mask.mask import Mask
from attnsim.ptx import compiled_matrices, program
from attnsim.ptx.counters import Counters, encode, floats
from attnsim.ptx.foreign.run import run_ptx


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program.Run, "__init__", _ungrouped(program.Run.__init__))


def _ungrouped(original: Callable[..., None]) -> Callable[..., None]:
    return lambda self, of, _grouped=True: original(self, of, False)


def answer(kernel: str, dtype: str) -> tuple[Any, Counters]:
    rng = np.random.default_rng(3)
    q, k, v = (encode(rng.standard_normal((1, 2, 200, 64)), dtype) for _ in range(3))
    device = CpuDevice("h100-sxm5-80gb" if kernel == "hopper" else "a100-sxm4-80gb")
    found = (flash_hopper if kernel == "hopper" else flash_forward)(device, q, k, v, mask=Mask.causal())
    return found, sum((one.counters for one in device.launches), Counters())


@pytest.mark.parametrize("kernel", ["flash", "hopper"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_both_ways_give_the_same(kernel: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, counters = answer(kernel, dtype)
    one_by_one(monkeypatch)
    other, counted = answer(kernel, dtype)
    for a, b in zip(found, other, strict=True):
        assert a.tobytes() == b.tobytes()
    assert counted == counters


def test_halves_of_every_bit_pattern() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    found = np.empty((1, 4096, 16), np.float32)
    places = np.arange(8192).reshape(1, 4096, 2)
    compiled_matrices.pieces_to_floats(bits.reshape(-1, 8), places, False, floats("f16"), found)
    np.testing.assert_array_equal(
        found.reshape(-1).view(np.uint32), bits.view(np.float16).astype(np.float32).view(np.uint32)
    )
    compiled_matrices.pieces_to_floats(bits.reshape(-1, 8), places, False, floats("bf16"), found)
    np.testing.assert_array_equal(found.reshape(-1).view(np.uint32), bits.astype(np.uint32) << np.uint32(16))


def test_without_numba_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"^numba is not installed, .*: pip install numba$"):
        run_ptx(".visible .entry without_numba()\n{\nret;\n}", grid=1, block=32, arguments={})
