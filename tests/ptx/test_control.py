"""Branches, loops, exits and barriers; how a kernel is launched and what it sees of the launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from attnsim.errors import InputError
from attnsim.ptx import program
from attnsim.ptx.basic_blocks import Line
from attnsim.ptx.counters import Counters
from attnsim.ptx.faults import Deadlock, OutOfBounds, UnsupportedInstruction
from attnsim.ptx.run import run
from attnsim.ptx.syntax import Instruction, Register

Launch = Callable[..., Counters]

ZEROS = np.zeros(256, np.int32)


def test_loops_of_different_length_meet_again(launch: Launch) -> None:
    """Collatz steps by thread, then a shuffle that needs every lane back."""
    source = """KERNEL(int* out) {
        int n = threadIdx.x + 1, steps = 0;
        while (n != 1) {
            if (n % 2) n = 3 * n + 1; else n /= 2;
            if (++steps > 50) break;
        }
        out[threadIdx.x] = __shfl_xor_sync(kAllLanes, steps, 1);
    }"""
    out = ZEROS.copy()
    launch(source, {"out": out}, block=256)

    def steps(n: int) -> int:
        count = 0
        while n != 1:
            n, count = (3 * n + 1 if n % 2 else n // 2), count + 1
            if count > 50:
                break
        return count

    np.testing.assert_array_equal(out, [steps((t ^ 1) + 1) for t in range(256)])


def test_switch(launch: Launch) -> None:
    """Enough cases for an indexed branch."""
    cases = " ".join(f"case {i}: x = x * {i + 3} + atomicAdd(out + 255, 0); break;" for i in range(12))
    source = f"""KERNEL(int* out) {{
        int x = threadIdx.x;
        switch (x % 13) {{ {cases} default: x = -1; }}
        out[x < 0 ? 200 : x] = 1 + x;
    }}"""
    out = ZEROS.copy()
    launch(source, {"out": out}, block=16)
    want = ZEROS.copy()
    for t in range(16):
        x = -1 if t % 13 == 12 else t * (t % 13 + 3)
        want[200 if x < 0 else x] = 1 + x
    np.testing.assert_array_equal(out, want)


def test_indexed_branch() -> None:
    ptx = """.version 9.0
    .target sm_80
    .address_size 64
    .visible .entry kernel(.param .u64 out) {
    .reg .b32 %r<4>; .reg .b64 %rd<3>;
    mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 3;
    ts: .branchtargets $A, $B, $C, $A;
    brx.idx %r2, ts;
    $A: mov.u32 %r3, 10; bra.uni $END;
    $B: mov.u32 %r3, 20; bra.uni $END;
    $C: mov.u32 %r3, 30;
    $END: ld.param.u64 %rd1, [out]; mad.wide.u32 %rd2, %r1, 4, %rd1; st.global.u32 [%rd2], %r3;
    ret; }"""
    out = np.zeros(32, np.uint32)
    run(ptx, "kernel", 1, 32, {"out": out})
    np.testing.assert_array_equal(out, np.tile([10, 20, 30, 10], 8))


def test_threads_may_exit_before_a_barrier(launch: Launch) -> None:
    """Whole warps and parts of one: the barrier waits for those that are left."""
    source = """KERNEL(int* out) {
        __shared__ int tile[256];
        if (threadIdx.x >= 70) return;
        tile[threadIdx.x] = threadIdx.x;
        __syncthreads();
        out[threadIdx.x] = tile[69 - threadIdx.x];
    }"""
    out = ZEROS.copy()
    counters = launch(source, {"out": out}, block=256, grid=3, lanes=512)
    np.testing.assert_array_equal(out[:70], np.arange(69, -1, -1))
    assert counters.barriers == 3


def test_warps_take_different_ways_to_a_barrier(launch: Launch) -> None:
    source = """KERNEL(int* out) {
        __shared__ int tile[128];
        if (threadIdx.x / 32 == 2) { tile[threadIdx.x] = 5; __syncthreads(); out[threadIdx.x] = tile[0]; }
        else {
            for (int i = 0; i <= threadIdx.x / 32; ++i) tile[threadIdx.x] = i;
            __syncthreads();
            out[threadIdx.x] = tile[(threadIdx.x + 32) % 128];
        }
    }"""
    out = ZEROS.copy()
    launch(source, {"out": out}, block=128, grid=2)
    np.testing.assert_array_equal(out[:128], np.repeat([1, 5, 0, 0], 32))


def test_producer_and_consumer_at_named_barriers(launch: Launch) -> None:
    """One warp fills a tile and only arrives; another waits for it, and gives it back by a second barrier."""
    source = """KERNEL(const int* in, int* out) {
        __shared__ int tile[32];
        const int lane = threadIdx.x % 32;
        for (int i = 0; i < 4; ++i) {
            if (threadIdx.x < 32) {
                if (i > 0) asm volatile("bar.sync 2, 64;" ::: "memory");
                tile[lane] = in[32 * i + lane];
                asm volatile("bar.arrive 1, 64;" ::: "memory");
            } else {
                asm volatile("bar.sync 1, 64;" ::: "memory");
                out[32 * i + lane] = tile[31 - lane];
                if (i < 3) asm volatile("bar.arrive 2, 64;" ::: "memory");
            }
        }
    }"""
    values, out = np.arange(128, dtype=np.int32), ZEROS.copy()
    launch(source, {"in": values, "out": out}, block=64)
    np.testing.assert_array_equal(out[:128].reshape(4, 32), values.reshape(4, 32)[:, ::-1])


def test_block_barrier_reductions(launch: Launch) -> None:
    source = """KERNEL(const int* in, int* out) {
        const int x = in[threadIdx.x];
        out[3 * threadIdx.x] = __syncthreads_count(x > 5);
        out[3 * threadIdx.x + 1] = __syncthreads_or(x == 7);
        out[3 * threadIdx.x + 2] = __syncthreads_and(x >= 0);
    }"""
    values, out = np.arange(64, dtype=np.int32) % 9, np.zeros((64, 3), np.int32)
    launch(source, {"in": values, "out": out}, block=64)
    assert (out[:, 0] == (values > 5).sum()).all()
    assert (out[:, 1] != 0).all()
    assert (out[:, 2] != 0).all()


@pytest.mark.parametrize("lanes", [32, 96, 4096])
def test_positions_in_grid_and_block(launch: Launch, lanes: int) -> None:
    source = """KERNEL(int* out) {
        const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
        const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
        const int threads = blockDim.x * blockDim.y * blockDim.z;
        out[block * threads + thread] = blockIdx.x + 10 * blockIdx.y + 100 * blockIdx.z + 1000 * threadIdx.x +
            10000 * threadIdx.y + 100000 * threadIdx.z;
    }"""
    out = np.zeros((5, 2, 3, 2, 3, 4), np.int32)
    launch(source, {"out": out}, grid=(3, 2, 5), block=(4, 3, 2), lanes=lanes)
    bz, by, bx, tz, ty, tx = np.indices(out.shape)
    np.testing.assert_array_equal(out, bx + 10 * by + 100 * bz + 1000 * tx + 10000 * ty + 100000 * tz)


def test_constants_structures_and_generic_pointers(launch: Launch) -> None:
    source = """
    __constant__ int table[4] = {3, 1, 4, 1};
    struct Pair { int64 offset; float scale; };
    __device__ __noinline__ float* choose(float* a, float* b, bool first);
    KERNEL(const Pair pair, float* out) {
        __shared__ float tile[32];
        float* target = threadIdx.x % 2 ? tile : out + pair.offset;
        target[threadIdx.x] = pair.scale * table[threadIdx.x % 4];
        __syncthreads();
        if (threadIdx.x % 2) out[threadIdx.x] = tile[threadIdx.x];
    }"""
    pair = np.array((64, 2.0), np.dtype([("offset", "i8"), ("scale", "f4")], align=True))[()]
    out = np.zeros(96, np.float32)
    counters = launch(
        source.replace("__device__ __noinline__ float* choose(float* a, float* b, bool first);", ""),
        {"pair": pair, "out": out},
    )
    want = 2.0 * np.tile([3, 1, 4, 1], 8)
    np.testing.assert_array_equal(out[1:32:2], want[1::2])
    np.testing.assert_array_equal(out[64:96:2], want[::2])
    assert counters.stores == {"out": 128}


def test_endless_loop_is_noticed(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "STEPS_LIMIT", 1000)
    source = "KERNEL(volatile int* out) { while (out[0] == 0) {} }"
    with pytest.raises(Deadlock, match="no end after 1000 instructions"):
        launch(source, {"out": ZEROS.copy()})


def test_unknown_special_register(launch: Launch) -> None:
    source = 'KERNEL(int* out) { int x; asm volatile("mov.u32 %0, %%smid;" : "=r"(x)); out[0] = x; }'
    with pytest.raises(UnsupportedInstruction, match="'%smid' is not known"):
        launch(source, {"out": ZEROS.copy()})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "kernel takes 1 arguments, 0 given"),
        ({"out": 5}, "out is int; give an array or a NumPy scalar"),
        ({"out": np.int32(5)}, "out has 4 bytes, its parameter takes 8"),
        ({"out": np.zeros((4, 4), np.int32).T}, "out is not contiguous"),
    ],
)
def test_arguments_are_checked(launch: Launch, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        launch("KERNEL(int* out) { out[0] = 1; }", arguments)


def test_one_array_under_two_names(launch: Launch) -> None:
    """As when a kernel works in place: what is stored under one name is loaded under the other."""
    array = np.arange(64, dtype=np.int32)
    source = "KERNEL(const int* in, int* out) { out[threadIdx.x] = 2 * in[threadIdx.x]; }"
    counters = launch(source, {"in": array, "out": array[32:]})
    np.testing.assert_array_equal(array[32:], 2 * np.arange(32))
    launch(source, {"in": array[32:], "out": array})
    np.testing.assert_array_equal(array[:32], 4 * np.arange(32))
    assert (counters.loads, counters.stores) == ({"in": 128}, {"out": 128})


def test_the_last_bytes_of_an_array(launch: Launch) -> None:
    """Three elements of two bytes: the third is one access of two bytes, not half of one of four."""
    source = "KERNEL(const @* in, @* out) { out[blockIdx.x] = in[blockIdx.x]; }"
    array, out = np.array([5, 6, 7], np.uint16), np.zeros(3, np.uint16)
    launch(source.replace("@", "uint16"), {"in": array, "out": out}, grid=3, block=1)
    np.testing.assert_array_equal(out, array)
    with pytest.raises(OutOfBounds, match="load of 4 bytes at byte 4 of in, which has 6 bytes"):
        launch(source.replace("@", "uint32"), {"in": array, "out": out}, grid=2, block=1)


def test_too_many_threads(launch: Launch) -> None:
    with pytest.raises(InputError, match="1056 threads; allowed: up to 1024"):
        launch("KERNEL() {}", {}, block=(33, 32))


def test_unknown_entry() -> None:
    with pytest.raises(InputError, match="flash: no such entry point; the PTX has none"):
        run(".version 9.0\n", "flash", 1, 32, {})


def test_names_in_scopes_of_inline_assembly_are_their_own(launch: Launch) -> None:
    source = """KERNEL(int* out) {
        int x = threadIdx.x, y = 2 * x;
        asm volatile("{ .reg .pred p; .reg .b32 t; setp.lt.s32 p, %0, 5; @p bra DONE;"
                     "add.s32 t, %0, 1; mov.b32 %0, t; DONE: }" : "+r"(x));
        asm volatile("{ .reg .f32 p; .reg .b64 t; mov.b64 t, 7; cvt.u32.u64 %0, t; DONE: }" : "+r"(y));
        out[threadIdx.x] = x + y;
    }"""
    out = ZEROS.copy()
    launch(source, {"out": out})
    thread = np.arange(32)
    np.testing.assert_array_equal(out[:32], np.where(thread < 5, thread, thread + 1) + 7)


def test_an_instruction_on_a_tape_writes_its_first_operand_and_one_that_nobody_knows_may_write_any() -> None:
    first, second, third = (Register(f"%r{number}", "u32") for number in (1, 2, 3))
    unknown = Line(Instruction("add", ("u32",), (first, second, third), None, (), "add", 1), lambda mask: None)
    assert (unknown.writes, unknown.reads) == ({"%r1", "%r2", "%r3"}, {"%r1", "%r2", "%r3"})
    known = replace(unknown, code=cast(Any, object()))
    assert (known.writes, known.reads) == ({"%r1"}, {"%r2", "%r3"})
