"""With and without compiled loops, together and one by one: the same results, counts and faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attnsim.kernels.arrays import encode
from attnsim.kernels.cpu import (
    banks,
    compiled,
    copies,
    fragments,
    hazards,
    matrix_descriptors,
    memory,
    ordering,
    program,
    run,
    shared,
    tape,
    tensor_cores,
)
from attnsim.kernels.cpu.counters import Counters
from attnsim.kernels.cpu.device import CpuDevice
from attnsim.kernels.cpu.sixteen_bit import half_to_float
from attnsim.kernels.flash import flash_forward
from attnsim.kernels.hopper import flash_hopper
from attnsim.models.mask.mask import Mask

USERS = (banks, copies, fragments, hazards, matrix_descriptors, memory, ordering, shared, tape, tensor_cores)


def without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in USERS:
        monkeypatch.setattr(module, "compiled", lambda: None)
    run._program.cache_clear()


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
def test_every_way_gives_the_same(kernel: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, counters = answer(kernel, dtype)
    for change in (one_by_one, without_numba):  # then both
        change(monkeypatch)
        other, counted = answer(kernel, dtype)
        for a, b in zip(found, other, strict=True):
            assert a.tobytes() == b.tobytes()
        assert counted == counters
    run._program.cache_clear()


def test_halves_of_every_bit_pattern() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    found = np.empty((1, 4096, 16), np.uint32)
    compiled.pieces_to_floats(bits.reshape(-1, 8), np.arange(8192).reshape(1, 4096, 2), False, False, found)
    np.testing.assert_array_equal(found.reshape(-1), bits.view(np.float16).astype(np.float32).view(np.uint32))
    np.testing.assert_array_equal(
        half_to_float(bits[bits & 0x7C00 < 0x7C00]).view(np.uint32),
        bits[bits & 0x7C00 < 0x7C00].view(np.float16).astype(np.float32).view(np.uint32),
    )
