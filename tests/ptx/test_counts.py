"""Counts against what a profiler would show: bytes, sectors, bank conflicts, operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attnsim.ptx.counters import Counters
from attnsim.ptx.run import run

Launch = Callable[..., Counters]


def buffers(size: int = 4096) -> dict[str, Any]:
    return {"in": np.arange(size, dtype=np.float32), "out": np.zeros(size, np.float32)}


@pytest.mark.parametrize(
    ("index", "sectors"),
    [
        ("threadIdx.x", 4),
        ("threadIdx.x + 4", 5),  # from the middle of a sector
        ("2 * threadIdx.x", 8),
        ("8 * threadIdx.x", 32),
        ("31 - threadIdx.x", 4),
        ("threadIdx.x / 8 * 64", 4),
        ("7", 1),
    ],
)
def test_sectors(launch: Launch, index: str, sectors: int) -> None:
    source = f"KERNEL(const float* in, float* out) {{ out[threadIdx.x] = in[{index}]; }}"
    counters = launch(source, buffers())
    assert (counters.sectors_loaded, counters.sectors_stored) == (sectors, 4)
    assert counters.loads == {"in": 128}
    assert counters.stores == {"out": 128}


def test_sectors_of_inactive_lanes_and_wide_loads(launch: Launch) -> None:
    source = """KERNEL(const float4* in, float* out) {
        if (threadIdx.x % 2) { const float4 v = in[threadIdx.x]; out[threadIdx.x] = v.x + v.y + v.z + v.w; }
    }"""
    counters = launch(source, buffers(), block=64, grid=2)
    assert counters.loads == {"in": 2 * 32 * 16}
    assert counters.sectors_loaded == 2 * 32
    assert counters.sectors_stored == 2 * 8


# Word stride between lanes, and the passes that a warp's access of 4 bytes takes: gcd(stride, 32).
@pytest.mark.parametrize(
    ("stride", "passes"), [(0, 1), (1, 1), (2, 2), (3, 1), (4, 4), (8, 8), (16, 16), (32, 32), (33, 1)]
)
def test_bank_conflicts_of_words(launch: Launch, stride: int, passes: int) -> None:
    source = """KERNEL(const float* in, float* out) {
        extern __shared__ float tile[];
        for (int i = threadIdx.x; i < 1088; i += 32) tile[i] = in[i];
        __syncthreads();
        out[threadIdx.x] = tile[threadIdx.x * @];
    }""".replace("@", str(stride))
    counters = launch(source, buffers(), shared=4352)
    assert counters.bank_conflicts == passes - 1
    assert counters.shared_wavefronts == 1088 // 32 + passes
    assert (counters.shared_bytes_loaded, counters.shared_bytes_stored) == (128, 4352)


@pytest.mark.parametrize("broadcast", [False, True])
def test_bank_conflicts_under_a_mask(launch: Launch, broadcast: bool) -> None:
    source = """KERNEL(const float* in, float* out) {
        extern __shared__ float tile[];
        for (int i = threadIdx.x; i < 1024; i += 32) tile[i] = in[i];
        __syncthreads();
        if (threadIdx.x % 3 == 0) out[threadIdx.x] = tile[@];
    }""".replace("@", "5" if broadcast else "threadIdx.x / 3 * 32")
    assert launch(source, buffers(), shared=4096).bank_conflicts == (0 if broadcast else 10)


# 16 bytes a lane: quarter warps, so eight lanes to a pass. Rows of `pitch` words read by columns of 16 bytes.
@pytest.mark.parametrize(
    ("width", "pitch", "passes"), [("4", 4, 4), ("4", 32, 32), ("4", 36, 4), ("4", 8, 8), ("2", 2, 2), ("2", 32, 32)]
)
def test_bank_conflicts_of_vectors(launch: Launch, width: str, pitch: int, passes: int) -> None:
    source = """KERNEL(const float* in, float* out) {
        extern __shared__ __align__(16) float tile[];
        for (int i = threadIdx.x; i < 1152; i += 32) tile[i] = in[i];
        __syncthreads();
        const float@ v = *reinterpret_cast<const float@*>(tile + threadIdx.x * PITCH);
        out[threadIdx.x] = v.x + v.y;
    }""".replace("@", width).replace("PITCH", str(pitch))
    counters = launch(source, buffers(), shared=4608)
    assert counters.shared_wavefronts - 36 == passes
    assert counters.bank_conflicts == passes - 32 * int(width) // 32


@pytest.mark.parametrize(("address", "conflicts"), [("SharedTile<64, 64>{0}.address(lane, 0)", 0), ("lane * 128", 28)])
def test_swizzle_frees_ldmatrix_of_conflicts(launch: Launch, address: str, conflicts: int) -> None:
    """Rows of 128 bytes: all eight rows of a matrix on the same banks, unless the pieces are permuted."""
    source = f"""KERNEL(const float* in, float* out) {{
        extern __shared__ __align__(128) float tile[];
        for (int i = threadIdx.x; i < 2048; i += 32) tile[i] = in[i];
        __syncthreads();
        const int lane = threadIdx.x;
        uint32 r[4];
        ldmatrix_x4(r, shared_address(tile) + {address});
        out[threadIdx.x] = r[0] + r[1] + r[2] + r[3];
    }}"""
    counters = launch(source, buffers(), shared=8192)
    assert counters.bank_conflicts == conflicts
    assert counters.shared_wavefronts == 64 + 4 + conflicts


def test_asynchronous_copies(launch: Launch) -> None:
    """A copy counts as a load of global and a store to shared memory; what is not valid is zero and not requested."""
    source = """KERNEL(const float* in, float* out, int valid) {
        __shared__ __align__(16) float tile[128];
        const uint32 address = shared_address(tile + 4 * threadIdx.x);
        cp_async_16(address, in + (threadIdx.x < valid ? 4 * threadIdx.x : 1 << 20), threadIdx.x < valid);
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        for (int i = 0; i < 4; ++i) out[32 * i + threadIdx.x] = tile[32 * i + threadIdx.x];
    }"""
    for valid in (32, 20, 0):
        arguments = {**buffers(), "valid": np.int32(valid)}
        counters = launch(source, arguments)
        assert counters.loads["in"] == 16 * valid
        assert counters.sectors_loaded == -(-valid // 2)
        assert counters.shared_bytes_stored == 512
        assert counters.shared_wavefronts == 4 + 4
        want = np.where(np.arange(128) < 4 * valid, np.arange(128), 0)
        np.testing.assert_array_equal(arguments["out"][:128], want)


def test_asynchronous_copies_of_other_widths(launch: Launch) -> None:
    source = """KERNEL(const float* in, float* out, int valid) {
        __shared__ __align__(16) float tile[32];
        const uint32 address = shared_address(tile + threadIdx.x);
        tile[threadIdx.x] = -1.f;
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(address), "l"(in + threadIdx.x) : "memory");
        asm volatile("cp.async.wait_all;" ::: "memory");
        if (threadIdx.x < 4)  // eight bytes, six of them from memory
            asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 8, %2;"
                :: "r"(shared_address(tile + 2 * threadIdx.x)), "l"(in + 64 + 2 * threadIdx.x), "r"(valid) : "memory");
        cp_async_commit();
        cp_async_wait<0>();
        __syncwarp();
        out[threadIdx.x] = tile[threadIdx.x];
    }"""
    arguments = {**buffers(), "valid": np.int32(6)}
    counters = launch(source, arguments)
    assert counters.loads["in"] == 32 * 4 + 4 * 6
    want = np.arange(32, dtype=np.float32)
    want[:8] = np.arange(64, 72)
    want[1:8:2] = (want[1:8:2].view(np.uint32) & np.uint32(0xFFFF)).view(np.float32)
    np.testing.assert_array_equal(arguments["out"][:32], want)


def test_operations(launch: Launch) -> None:
    source = """KERNEL(const float* in, float* out) {
        const float x = in[threadIdx.x];
        float y = fmaf(x, x, 1.f);
        if (threadIdx.x < 16) y = y * 3.f;
        float z;
        asm("add.f32 %0, %1, %2;" : "=f"(z) : "f"(y), "f"(x));
        out[threadIdx.x] = exp2_fast(z);
        __syncthreads();
    }"""
    counters = launch(source, buffers(), block=64, grid=3)
    assert counters.exponentials == 3 * 64
    assert counters.barriers == 3
    assert counters.flops in (3 * (64 * 3 + 16), 3 * 64 * 4)  # the product may be computed everywhere and selected


def test_issued_instructions() -> None:
    """A warp instruction is one whatever its mask; both sides of a divergent branch are issued."""
    ptx = """.version 9.0
    .target sm_80
    .address_size 64
    .visible .entry kernel() {
    .reg .pred %p; .reg .b32 %i;
    mov.u32 %i, %tid.x;
    setp.lt.u32 %p, %i, 40;
    @%p bra LOW;
    add.u32 %i, %i, 1;
    add.u32 %i, %i, 1;
    bra END;
    LOW: @%p mul.lo.u32 %i, %i, 3;
    END: ret; }"""
    # Both warps: mov, setp, bra. One goes low and exits (2), one goes both ways and exits on each (4 and 2).
    assert run(ptx, "kernel", 1, 64, {}).instructions == 2 * 3 + 2 + 6


def test_local_memory(launch: Launch) -> None:
    source = """KERNEL(const float* in, float* out) {
        float table[16];
        for (int i = 0; i < 16; ++i) table[i] = in[i];
        asm volatile("" ::: "memory");
        out[threadIdx.x] = table[(threadIdx.x * 7) % 16] + table[int(in[threadIdx.x]) % 16];
    }"""
    arguments = buffers()
    counters = launch(source, arguments)
    thread = np.arange(32)
    np.testing.assert_array_equal(arguments["out"][:32], thread * 7 % 16 + thread % 16)
    assert counters.local_bytes == 32 * 4 * (16 + 2)


def test_counters_add() -> None:
    a, b = Counters(flops=3, barriers=1), Counters(flops=4)
    a.loads["K"] += 5
    b.loads["K"] += 6
    b.stores["O"] += 7
    total = a + b
    assert (total.loads, total.stores, total.flops, total.barriers) == ({"K": 11}, {"O": 7}, 7, 1)
