"""Seeded bugs: each is found, with its place, and the corrected twin of each runs clean and right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from attnsim.ptx import faults
from attnsim.ptx.counters import Counters
from attnsim.ptx.run import run

Launch = Callable[..., Counters]


@dataclass(frozen=True)
class Bug:
    """A kernel with a hole ``@`` in it: filled with `wrong` it has the bug, with `right` it has not."""

    fault: type[faults.Fault]
    source: str
    wrong: str
    right: str
    message: str
    block: int = 64
    grid: int = 2
    size: int = 64
    options: dict[str, Any] = field(default_factory=dict)


BUGS = {
    "missing __syncthreads": Bug(
        faults.Race,
        """
        KERNEL(const float* in, float* out) {
            __shared__ float tile[64];
            tile[threadIdx.x] = in[threadIdx.x];
            @
            out[threadIdx.x] = tile[63 - threadIdx.x];
        }""",
        wrong="",
        right="__syncthreads();",
        message=r"load of 4 bytes at shared address 0xfc by warp 0, written by warp 1 with no barrier between",
    ),
    "read, then overwritten by another warp": Bug(
        faults.Race,
        """
        KERNEL(const float* in, float* out) {
            __shared__ float tile[64];
            tile[threadIdx.x] = in[threadIdx.x];
            __syncthreads();
            out[threadIdx.x] = tile[63 - threadIdx.x];
            @
            tile[threadIdx.x] = 0.f;
        }""",
        wrong="",
        right="__syncthreads();",
        message=r"store of 4 bytes at shared address .* by warp 0, read by warp 1",
    ),
    "two warps write one word": Bug(
        faults.Race,
        """
        KERNEL(const float* in, float* out) {
            __shared__ float tile[64];
            tile[threadIdx.x @] = in[threadIdx.x];
            __syncthreads();
            out[threadIdx.x] = tile[threadIdx.x];
        }""",
        wrong="% 32",
        right="",
        message=r"store of 4 bytes .* written by warp 1",
    ),
    "uninitialised shared memory": Bug(
        faults.UninitialisedRead,
        """
        KERNEL(const float* in, float* out) {
            __shared__ float tile[64];
            if (@) tile[threadIdx.x] = in[threadIdx.x];
            __syncthreads();
            out[threadIdx.x] = tile[threadIdx.x];
        }""",
        wrong="threadIdx.x < 63",
        right="threadIdx.x < 64",
        message=r"thread \(63, 0, 0\): load of 4 bytes at shared address 0xfc: nothing has been written there",
    ),
    "missing cp.async wait": Bug(
        faults.CopyInFlight,
        """
        KERNEL(const float* in, float* out) {
            __shared__ __align__(16) float tile[64];
            if (threadIdx.x < 16) cp_async_16(shared_address(tile + 4 * threadIdx.x), in + 4 * threadIdx.x);
            cp_async_commit();
            @
            __syncthreads();
            out[threadIdx.x] = tile[threadIdx.x];
        }""",
        wrong="",
        right="cp_async_wait<0>();",
        message=r"a cp.async to it is still in flight",
    ),
    "cp.async waited for one group too few": Bug(
        faults.CopyInFlight,
        """
        KERNEL(const float* in, float* out) {
            __shared__ __align__(16) float tile[64];
            if (threadIdx.x < 8) cp_async_16(shared_address(tile + 4 * threadIdx.x), in + 4 * threadIdx.x);
            cp_async_commit();
            if (threadIdx.x >= 8 && threadIdx.x < 16)
                cp_async_16(shared_address(tile + 4 * threadIdx.x), in + 4 * threadIdx.x);
            cp_async_commit();
            cp_async_wait<@>();
            __syncthreads();
            out[threadIdx.x] = tile[threadIdx.x];
        }""",
        wrong="1",
        right="0",
        message=r"shared address 0x80: a cp.async",
    ),
    "cp.async waited for without a barrier": Bug(
        faults.Race,
        """
        KERNEL(const float* in, float* out) {
            __shared__ __align__(16) float tile[64];
            if (threadIdx.x < 16) cp_async_16(shared_address(tile + 4 * threadIdx.x), in + 4 * threadIdx.x);
            cp_async_commit();
            cp_async_wait<0>();
            @
            out[threadIdx.x] = tile[threadIdx.x];
        }""",
        wrong="",
        right="__syncthreads();",
        message=r"by warp 1, written by warp 0",
    ),
    "cp.async into a buffer that is still read": Bug(
        faults.Race,
        """
        KERNEL(const float* in, float* out) {
            __shared__ __align__(16) float tile[64];
            tile[threadIdx.x] = in[threadIdx.x];
            __syncthreads();
            out[threadIdx.x] = tile[threadIdx.x];
            @
            if (threadIdx.x < 16) cp_async_16(shared_address(tile + 4 * threadIdx.x), in + 4 * threadIdx.x);
            cp_async_commit();
            cp_async_wait<0>();
        }""",
        wrong="",
        right="__syncthreads();",
        message=r"cp.async of 16 bytes at shared address 0x80 by warp 0, read by warp 1",
    ),
    "missing __syncwarp": Bug(
        faults.Race,
        """
        KERNEL(const float* in, float* out) {
            __shared__ float tile[64];
            tile[threadIdx.x] = in[threadIdx.x];
            @
            out[threadIdx.x] = tile[threadIdx.x ^ 1];
        }""",
        wrong="",
        right="__syncwarp();",
        message=r"by lane 0 of warp 0, written by its lane 1 with no __syncwarp between",
    ),
    "cp.async read by its warp without __syncwarp": Bug(
        faults.Race,
        """
        KERNEL(const float* in, float* out) {
            __shared__ __align__(16) float tile[64];
            const int lane = threadIdx.x % 32, first = threadIdx.x - lane;
            if (lane < 8) cp_async_16(shared_address(tile + first + 4 * lane), in + first + 4 * lane);
            cp_async_commit();
            cp_async_wait<0>();
            @
            out[threadIdx.x] = tile[threadIdx.x];
        }""",
        wrong="",
        right="__syncwarp();",
        message=r"by lane 1 of warp 0, written by its lane 0 with no __syncwarp between",
    ),
    "out of bounds": Bug(
        faults.OutOfBounds,
        """
        KERNEL(const float* in, float* out) {
            const int i = threadIdx.x + 1;
            out[threadIdx.x] = @ ? in[i] : 0.f;
        }""",
        wrong="true",
        right="i < 64",
        message=r"block \(0, 0, 0\), thread \(63, 0, 0\): load of 4 bytes at 0 bytes past the end of in, which has 256",
    ),
    "before the start": Bug(
        faults.OutOfBounds,
        "KERNEL(const float* in, float* out) { const int i = threadIdx.x; if (@) out[i - 1] = in[i]; }",
        wrong="true",
        right="i > 0",
        message=r"store of 4 bytes at 4 bytes before out, which has 256 bytes",
    ),
    "out of the block's shared memory": Bug(
        faults.OutOfBounds,
        """
        KERNEL(const float* in, float* out) {
            extern __shared__ float tile[];
            if (@) tile[threadIdx.x + 1] = in[threadIdx.x];
        }""",
        wrong="true",
        right="threadIdx.x < 63",
        message=r"store of 4 bytes at shared address 0x100, but the block has 256 bytes of shared memory",
        options={"shared": 256},
    ),
    "misaligned vector": Bug(
        faults.Misaligned,
        """
        KERNEL(const float* in, float* out) {
            if (threadIdx.x < 8) {
                const float4 v = *reinterpret_cast<const float4*>(in + 4 * threadIdx.x + @);
                out[threadIdx.x] = v.x + v.y + v.z + v.w;
            }
        }""",
        wrong="1",
        right="4",
        message=r"load of 16 bytes at byte 4 of in, which has 256 bytes is not aligned to 16 bytes",
    ),
    "misaligned cp.async": Bug(
        faults.Misaligned,
        """
        KERNEL(const float* in, float* out) {
            __shared__ __align__(16) float tile[72];
            if (threadIdx.x < 16) cp_async_16(shared_address(tile + 4 * threadIdx.x + @), in + 4 * threadIdx.x);
            cp_async_commit();
            cp_async_wait<0>();
        }""",
        wrong="2",
        right="4",
        message=r"cp.async of 16 bytes at shared address 0x8 is not aligned",
    ),
    "divergent barrier": Bug(
        faults.DivergentBarrier,
        """
        KERNEL(const float* in, float* out) {
            __shared__ float tile[64];
            tile[threadIdx.x] = in[threadIdx.x];
            if (@) __syncthreads();
            out[threadIdx.x] = tile[threadIdx.x];
        }""",
        wrong="in[threadIdx.x] > -10.f && threadIdx.x < 48",
        right="threadIdx.x < 64",
        message=r"thread \(32, 0, 0\): a barrier in divergent code: 16 of the warp's 32 threads came",
    ),
    "warps at different barriers": Bug(
        faults.Deadlock,
        """
        KERNEL(const float* in, float* out) {
            if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;");
            else asm volatile("bar.sync @, 64;");
            out[threadIdx.x] = in[threadIdx.x];
        }""",
        wrong="2",
        right="1",
        message=r"barrier 1 waits for 2 warps, 1 arrived, no other will",
    ),
    "shuffle from an absent lane": Bug(
        faults.InactiveLane,
        """
        KERNEL(const float* in, float* out) {
            float x = in[threadIdx.x];
            if (@) x += __shfl_xor_sync(0xffffffffu, x, 16);
            out[threadIdx.x] = x;
        }""",
        wrong="threadIdx.x % 32 < 16",
        right="threadIdx.x < 64",
        message=r"shfl with member mask 0xffffffff, but lane 31 is not there",
    ),
    "mma in a divergent warp": Bug(
        faults.InactiveLane,
        """
        KERNEL(const float* in, float* out) {
            float c[4] = {};
            const uint32 one = Half::pack(in[0], in[1]);
            const uint32 a[4] = {one, one, one, one};
            if (@) Half::mma(c, a, one, one);
            out[threadIdx.x] = c[0] + c[1] + c[2] + c[3];
        }""",
        wrong="in[threadIdx.x] < 2.f && threadIdx.x % 32 < 31",
        right="threadIdx.x < 32",
        message=r"mma needs all 32 lanes of the warp, 31 are active",
    ),
}


def inputs(bug: Bug) -> dict[str, Any]:
    return {
        "in": np.random.default_rng(0).uniform(-1, 1, bug.size).astype(np.float32),
        "out": np.zeros(bug.size, np.float32),
    }


@pytest.mark.parametrize("name", BUGS)
def test_bug_is_found(name: str, launch: Launch) -> None:
    bug = BUGS[name]
    with pytest.raises(bug.fault, match=bug.message) as caught:
        launch(bug.source.replace("@", bug.wrong), inputs(bug), block=bug.block, grid=1, **bug.options)
    assert str(caught.value).startswith("kernel, instruction ")


@pytest.mark.parametrize("name", BUGS)
def test_corrected_twin_runs(name: str, launch: Launch) -> None:
    bug = BUGS[name]
    launch(bug.source.replace("@", bug.right), inputs(bug), block=bug.block, grid=bug.grid, **bug.options)


@pytest.mark.parametrize("name", ["missing __syncthreads", "uninitialised shared memory", "missing cp.async wait"])
def test_checks_can_be_switched_off(name: str, launch: Launch) -> None:
    bug = BUGS[name]
    launch(bug.source.replace("@", bug.wrong), inputs(bug), block=bug.block, checks=False, **bug.options)


def test_copy_that_is_not_waited_for_has_not_landed(launch: Launch) -> None:
    arguments = inputs(BUGS["missing cp.async wait"])
    launch(BUGS["missing cp.async wait"].source.replace("@", ""), arguments, block=64, checks=False)
    assert np.isnan(arguments["out"]).all()


def test_fault_names_block_and_thread_of_a_later_batch(launch: Launch) -> None:
    source = "KERNEL(float* out) { if (blockIdx.y == 5) out[1 << 20] = 0.f; else out[threadIdx.x] = 1.f; }"
    with pytest.raises(faults.OutOfBounds, match=r"block \(0, 5, 0\), thread \(0, 0, 0\): store of 4 bytes"):
        launch(source, {"out": np.zeros(32, np.float32)}, grid=(2, 8), lanes=64)


@pytest.mark.parametrize("space", ["global", "shared"])
def test_an_address_to_which_nothing_can_be_added_is_out_of_bounds(space: str) -> None:
    ptx = f""".version 8.0
    .target sm_80
    .address_size 64
    .visible .entry kernel(.param .u64 out) {{
    .reg .b64 %rd<3>;
    mov.u64 %rd1, 0x7ffffffffffffff8;
    ld.{space}.u64 %rd2, [%rd1];
    ret; }}"""
    with pytest.raises(faults.OutOfBounds, match=r"load of 8 bytes at .*0x7ffffffffffffff8"):
        run(ptx, "kernel", 1, 32, {"out": np.zeros(32, np.float32)})


def test_store_to_a_read_only_array(launch: Launch) -> None:
    array = np.zeros(32, np.float32)
    array.flags.writeable = False
    with pytest.raises(faults.OutOfBounds, match="store to table, which is read-only"):
        launch("KERNEL(float* out) { out[threadIdx.x] = 1.f; }", {"table": array})


def test_unknown_instructions_are_named() -> None:
    ptx = """.version 9.0
    .target sm_100a
    .address_size 64
    .visible .entry kernel() {
    tcgen05.wait::all.sync.aligned;
    ret; }"""
    message = r"kernel, instruction 0 .*'tcgen05.wait::all.sync.aligned' is not known to the interpreter"
    with pytest.raises(faults.UnsupportedInstruction, match=message):
        run(ptx, "kernel", 1, 32, {})


def test_trap(launch: Launch) -> None:
    source = "KERNEL(float* out) { if (threadIdx.x == 3) __trap(); out[threadIdx.x] = 1.f; }"
    with pytest.raises(faults.Trapped, match=r"thread \(3, 0, 0\): the kernel executed trap"):
        launch(source, {"out": np.zeros(32, np.float32)})


@pytest.mark.parametrize(
    "line",
    [
        "foo.bar %r;",
        "add.s32 %r, %r;",
        "add.s32 %nobody, %r, %r;",
        "add.cc.u32 %r, %r, %r;",
        "min.xorsign.abs.f32 %f, %f, %f;",
        "div.rz.f32 %f, %f, %f;",
        "ex2 %f, %f;",
        "bar.sync;",
        "bra;",
        "brx.idx %r, nowhere;",
        "setp.lt.f32 %p, %f;",
        "redux.sync.add.f32 %f, %f, -1;",
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r, %r}, {%r}, {%r}, {%r, %r};",
        "movmatrix.sync.aligned.m8n8.trans.b16 %r;",
        "mov.u32 %r, %smid;",
        "ld.global.b128 %l, [%l];",
        "call (%r), other, (%r);",
        "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r], 128;",
        "tex.2d.v4.f32.f32 {%f, %f, %f, %f}, [%l, {%f, %f}];",
    ],
)
def test_every_unknown_form_is_refused_with_its_line(line: str) -> None:
    """Wrong operands too: each by its name and the number of its line, whose comments count."""
    declared = ".reg .f32 %f; /* two\nlines */ .reg .b64 %l;\n.reg .b32 %r; // %x\n.reg .pred %p;\n"
    text = f".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry kernel()\n{{\n{declared}{line}\nret;\n}}\n"
    with pytest.raises(faults.UnsupportedInstruction) as found:
        run(text, "kernel", 1, 128, {})
    assert "(line 10 of the PTX)" in str(found.value) and line.split(maxsplit=1)[0].rstrip(";") in str(found.value)
    assert "\n" not in str(found.value)
