"""Atomics on global and shared memory: results, returned values, counts, and their order with plain accesses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attnsim.ptx.counters import Counters
from attnsim.ptx.faults import OutOfBounds, Race

Launch = Callable[..., Counters]

VALUES = np.random.default_rng(8).integers(-1000, 1000, 256).astype(np.int32)

UPDATES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "atomicAdd": ("int", lambda v: v.sum()),
    "atomicMax": ("int", lambda v: v.max()),
    "atomicMin": ("int", lambda v: v.min()),
    "atomicOr": ("int", np.bitwise_or.reduce),
    "atomicAnd": ("int", np.bitwise_and.reduce),
    "atomicXor": ("int", np.bitwise_xor.reduce),
    "atomicAdd float": ("float", lambda v: v.sum()),
}


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("name", UPDATES)
def test_reduction(launch: Launch, name: str, space: str) -> None:
    kind, expected = UPDATES[name]
    target, prologue, epilogue = "out", "", ""
    if space == "shared":
        target = "cell"
        prologue = "__shared__ T cell[1]; if (threadIdx.x == 0) cell[0] = out[0]; __syncthreads();"
        epilogue = "__syncthreads(); if (threadIdx.x == 0) out[0] = cell[0];"
    source = f"""using T = {kind};
    KERNEL(const T* in, T* out) {{ {prologue} {name.split(maxsplit=1)[0]}({target}, in[threadIdx.x]); {epilogue} }}"""
    values = VALUES.astype(np.float32) if kind == "float" else VALUES
    out = np.full(1, values[0])
    counters = launch(source, {"in": values[1:].copy(), "out": out}, block=255)
    assert out[0] == expected(values)
    if space == "global":
        assert counters.stores == {"out": 4 * 255}
        assert counters.loads == {"in": 4 * 255}
    else:
        assert counters.shared_bytes_stored == 4 * 256


def test_returned_values_are_those_of_some_order(launch: Launch) -> None:
    source = """KERNEL(unsigned* counter, unsigned* ticket) {
        ticket[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(counter + threadIdx.x % 2, 1u);
    }"""
    counter, ticket = np.zeros(2, np.uint32), np.zeros((3, 64), np.uint32)
    launch(source, {"counter": counter, "ticket": ticket}, block=64, grid=3, lanes=64)
    assert (counter == 96).all()
    for parity in range(2):
        np.testing.assert_array_equal(np.sort(ticket[:, parity::2].reshape(-1)), np.arange(96))


def test_exchange_compare_and_wrap(launch: Launch) -> None:
    source = """KERNEL(unsigned* cell, unsigned* old) {
        old[threadIdx.x] = atomicCAS(cell, threadIdx.x, threadIdx.x + 1);
        __syncthreads();
        old[32 + threadIdx.x] = atomicExch(cell + 1, threadIdx.x + 100);
        atomicInc(cell + 2, 9u);
    }"""
    cell, old = np.array([0, 7, 0], np.uint32), np.zeros(64, np.uint32)
    launch(source, {"cell": cell, "old": old})
    np.testing.assert_array_equal(old[:32], np.arange(32))
    assert sorted([*old[32:].tolist(), int(cell[1])]) == [7, *range(100, 132)]
    assert cell.tolist() == [32, cell[1], 2]


def test_wide_and_packed(launch: Launch) -> None:
    source = """KERNEL(unsigned long long* wide, double* real, uint32* pair) {
        atomicAdd(wide, 1ull << 40);
        atomicMax(wide + 1, 5ull + threadIdx.x);
        atomicAdd(real, 0.5);
        asm volatile("red.global.add.noftz.f16x2 [%0], %1;" :: "l"(pair), "r"(Half::pack(1.f, 2.f)) : "memory");
    }"""
    wide, real, pair = np.zeros(2, np.uint64), np.zeros(1), np.zeros(2, np.float16)
    launch(source, {"wide": wide, "real": real, "pair": pair.view(np.uint32)})
    assert wide.tolist() == [32 << 40, 36]
    assert real[0] == 16
    assert pair.tolist() == [32, 64]


def test_bounds(launch: Launch) -> None:
    with pytest.raises(OutOfBounds, match="atomic of 4 bytes at 0 bytes past the end of out"):
        launch("KERNEL(float* out) { atomic_add_global(out + 8, 1.f); }", {"out": np.zeros(8, np.float32)})


@pytest.mark.parametrize("barrier", [False, True])
def test_plain_load_races_with_atomics(launch: Launch, barrier: bool) -> None:
    source = """KERNEL(uint32* out) {
        __shared__ uint32 cell;
        if (threadIdx.x == 0) cell = 0;
        __syncthreads();
        atomicAdd(&cell, 1u);
        @
        out[threadIdx.x] = cell;
    }""".replace("@", "__syncthreads();" if barrier else "")
    out = np.zeros(64, np.uint32)
    if barrier:
        launch(source, {"out": out}, block=64)
        assert (out == 64).all()
    else:
        with pytest.raises(Race):
            launch(source, {"out": out}, block=64)
