"""wgmma, the tensor copy engine and mbarriers, against layouts written out element by element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from attnsim.errors import InputError
from attnsim.kernels.cpu_device import CpuDevice
from attnsim.ptx.counters import Counters, decode, encode
from attnsim.ptx.faults import RegisterInFlight, UnsupportedInstruction
from attnsim.ptx.run import run
from attnsim.ptx.shared import TensorMap

Launch = Callable[..., Counters]
Array = NDArray[Any]

RNG = np.random.default_rng(11)
WARPGROUPS = 2
THREADS = 128 * WARPGROUPS


@dataclass(frozen=True)
class Product:
    """A wgmma: where A is, which of A and B are transposed (m or n contiguous), n, swizzle mode, element, signs."""

    a: str = "shared"
    transposed: tuple[bool, bool] = (False, False)
    columns: int = 64
    mode: int = 1
    kind: str = "f16"
    signs: tuple[int, int] = (1, 1)
    keep: bool = True


PRODUCTS = {
    "both along k": Product(columns=128),
    "A in registers, V's way": Product("registers", (False, True), 128, kind="bf16"),
    "A in registers, B along k": Product("registers", columns=8),
    "both transposed": Product(transposed=(True, True), columns=256),
    "A transposed": Product(transposed=(True, False), kind="bf16"),
    "64-byte swizzle": Product(mode=2),
    "64-byte swizzle, transposed": Product(transposed=(True, True), mode=2),
    "32-byte swizzle": Product(mode=3, columns=24),
    "32-byte swizzle, transposed": Product(transposed=(True, True), mode=3),
    "no swizzle": Product(mode=0),
    "no swizzle, transposed": Product(transposed=(True, True), mode=0, columns=40),
    "overwritten": Product(keep=False),
    "subtracted": Product(signs=(-1, 1), kind="bf16"),
}


def wgmma_kernel(p: Product, image_bytes: int) -> str:
    """PTX that copies an image to shared memory, multiplies by the descriptors of each warpgroup, and stores D."""
    d = [f"%d{i}" for i in range(p.columns // 2)]
    a = "{%a0, %a1, %a2, %a3}" if p.a == "registers" else "%da"
    flags = f"{p.signs[0]}, {p.signs[1]}, " + (f"{int(p.transposed[0])}, " if p.a == "shared" else "")
    move = [
        f"ld.global.v4.u32 {{%w0, %w1, %w2, %w3}}, [%image+{at}];\nst.shared.v4.u32 [%to+{at}], {{%w0, %w1, %w2, %w3}};"
        for at in range(0, image_bytes, 16 * THREADS)
    ]
    names = ("image", "descriptors", "a", "d")
    lines = [
        f".reg .f32 {', '.join(d)};",
        ".reg .b32 %t, %g, %to, %w0, %w1, %w2, %w3, %a0, %a1, %a2, %a3;",
        ".reg .b64 %image, %descriptors, %a, %d, %da, %db;\n.reg .pred %keep;",
        *(f"ld.param.u64 %{name}, [{name}];" for name in names),
        "mov.u32 %t, %tid.x;\nshr.u32 %g, %t, 7;\nmov.u32 %to, memory;",
        "mad.wide.u32 %image, %t, 16, %image;\nmad.lo.u32 %to, %t, 16, %to;",
        "mad.wide.u32 %descriptors, %g, 16, %descriptors;\nmad.wide.u32 %a, %t, 16, %a;",
        f"mad.wide.u32 %d, %t, {4 * len(d)}, %d;",
        "ld.global.u64 %da, [%descriptors];\nld.global.u64 %db, [%descriptors+8];",
        "ld.global.v4.u32 {%a0, %a1, %a2, %a3}, [%a];",
        *(f"ld.global.f32 {r}, [%d+{4 * i}];" for i, r in enumerate(d)),
        *move,
        "fence.proxy.async;\nbar.sync 0;",
        f"setp.eq.u32 %keep, 1, {int(p.keep)};",
        "wgmma.fence.sync.aligned;",
        f"wgmma.mma_async.sync.aligned.m64n{p.columns}k16.f32.{p.kind}.{p.kind} "
        f"{{{', '.join(d)}}}, {a}, %db, %keep, {flags}{int(p.transposed[1])};",
        "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;",
        *(f"st.global.f32 [%d+{4 * i}], {r};" for i, r in enumerate(d)),
        "ret;",
    ]
    head = ".version 9.0\n.target sm_90a\n.address_size 64\n"
    parameters = ", ".join(f".param .u64 {name}" for name in names)
    memory = f".shared .align 1024 .b8 memory[{image_bytes}];"
    return f"{head}.visible .entry kernel({parameters})\n{{\n{memory}\n" + "\n".join(lines) + "\n}\n"


SPAN = {0: 16, 1: 128, 2: 64, 3: 32}
"""Bytes that each swizzle mode permutes."""


def place(image: Array, matrix: Array, start: int, mode: int, transposed: bool) -> int:
    """Lay ``[rows, 16]`` into shared memory, element by element, and return its descriptor.

    In bytes, of CUTLASS's comments beside make_gmma_desc: along k ((8, m), 2):((span, SBO), 16), without swizzle LBO
    for the 16; transposed ((span / 16, m), (8, 2)):((16, LBO), (span, SBO)), without swizzle LBO and SBO exchanged.
    """
    span = SPAN[mode]
    leading, stride = 8 * span * 2, 8 * span
    if not mode:  # bricks of 8 x 16 bytes, those of one k after another
        leading = stride * -(-len(matrix) // 8)
    if not mode and transposed:
        leading, stride = stride, leading
    for row in range(len(matrix)):
        for k in range(16):
            if not transposed:
                offset = row // 8 * stride + row % 8 * span + k // 8 * (16 if mode else leading) + k % 8 * 2
            elif mode:
                offset = row // (span // 2) * leading + row % (span // 2) * 2 + k // 8 * stride + k % 8 * span
            else:
                offset = row // 8 * stride + row % 8 * 2 + k // 8 * leading + k % 8 * span
            address = start + offset
            image[(address ^ ((address >> 7 & (span // 16 - 1)) << 4)) // 2] = matrix[row, k]
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | mode << 62


def rows_and_columns(element: int) -> tuple[Array, Array]:
    """Where element i of an accumulator lies, for each thread: PTX ISA, "wgmma.mma_async.m64nNk16", matrix D."""
    thread = np.arange(128)
    row = thread // 32 * 16 + thread % 32 // 4 + element // 2 % 2 * 8
    return row, element // 4 * 8 + thread % 4 * 2 + element % 2


@pytest.mark.parametrize("name", PRODUCTS)
def test_wgmma(name: str) -> None:
    p = PRODUCTS[name]
    dtype = "fp16" if p.kind == "f16" else "bf16"
    a = encode(RNG.normal(size=(WARPGROUPS, 64, 16)), dtype)
    b = encode(RNG.normal(size=(WARPGROUPS, p.columns, 16)), dtype)
    c = RNG.normal(size=(WARPGROUPS, 64, p.columns)).astype(np.float32)
    image = np.zeros(1 << 16, np.uint16)
    descriptors = np.zeros((WARPGROUPS, 2), np.uint64)
    fragments = np.zeros((WARPGROUPS, 128, 8), np.uint16)
    for group in range(WARPGROUPS):
        base = group << 16
        descriptors[group, 0] = place(image, a[group].view(np.uint16), base, p.mode, p.transposed[0])
        descriptors[group, 1] = place(image, b[group].view(np.uint16), base + 16384, p.mode, p.transposed[1])
        for i in range(8):  # A's elements 4 to 7 are those of k 8 to 15, otherwise like D's
            row, k = rows_and_columns(i)
            fragments[group, :, i] = a[group].view(np.uint16)[row, k]
    d = np.empty((WARPGROUPS, 128, p.columns // 2), np.float32)
    for i in range(p.columns // 2):
        row, column = rows_and_columns(i)
        d[:, :, i] = c[:, row, column]
    arguments: dict[str, Array] = {"image": image, "descriptors": descriptors, "a": fragments, "d": d}
    counters = run(wgmma_kernel(p, image.nbytes), "kernel", 1, THREADS, arguments)
    product = p.signs[0] * p.signs[1] * (decode(a) @ decode(b).swapaxes(1, 2))
    want = product + (c if p.keep else 0)
    for i in range(p.columns // 2):
        row, column = rows_and_columns(i)
        np.testing.assert_allclose(d[:, :, i], want[:, row, column], rtol=1e-5, atol=1e-5)
    assert counters.tensor_flops == WARPGROUPS * 2 * 64 * p.columns * 16


TOUCHES = {
    "mov.b32 %a0, 0;": "registers",
    "mov.b32 %w0, %a3;": "registers",
    "add.f32 %d3, %d3, %d3;": "shared",
    "@%keep mov.f32 %d0, 0f00000000;": "shared",
}


@pytest.mark.parametrize("line", TOUCHES)
def test_registers_belong_to_the_tensor_cores_until_waited_for(line: str) -> None:
    p = Product(TOUCHES[line], (False, True))
    text = wgmma_kernel(p, 1 << 15)
    arguments: dict[str, Array] = {
        "image": np.zeros(1 << 14, np.uint16),
        "descriptors": np.full((WARPGROUPS, 2), 1 << 62 | 64 << 32 | 1 << 16, np.uint64),
        "a": np.zeros((THREADS, 8), np.uint16),
        "d": np.zeros((THREADS, 32), np.float32),
    }
    wait = "wgmma.wait_group.sync.aligned 0;"
    run(text.replace(wait, f"{wait}\n{line}"), "kernel", 1, THREADS, arguments)
    with pytest.raises(RegisterInFlight, match="a wgmma works on a register of this instruction"):
        run(text.replace(wait, f"{line}\n{wait}"), "kernel", 1, THREADS, arguments)
    fence = "wgmma.fence.sync.aligned;"
    with pytest.raises(RegisterInFlight, match=r"accessed, and no wgmma\.fence came after"):
        run(text.replace(fence, f"{fence}\n{line}"), "kernel", 1, THREADS, arguments)


COPY = """
#include "slab_tile.cuh"
KERNEL(const __grid_constant__ TensorMap map, uint32* out, int column, int row, int plane) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32 tile = shared_address(memory), barrier = tile + 32 * 128;
    if (threadIdx.x == 0) {
        prefetch_tensor_map(map);
        mbarrier_init(barrier, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect(barrier, 32 * 128);
        tensor_copy(tile, map, barrier, column, row, plane);
    }
    __syncthreads();
    mbarrier_wait(barrier, 0);
    for (int i = threadIdx.x; i < 32 * 32; i += 64) out[i] = __float_as_uint(load_shared_float(tile + 4 * i));
}
"""

CORNERS = {
    "inside": (0, 0, 1),
    "last rows": (64, 30, 2),
    "past the last row": (0, 50, 0),
    "past the last column": (96, 10, 1),
    "before the first": (-8, -5, 0),
    "no such plane": (0, 0, 3),
}


@pytest.mark.parametrize("name", CORNERS)
def test_tensor_copy(name: str, launch: Launch) -> None:
    """A box of 32 rows of 64 of ``[3, 50, 120]``: swizzled in shared memory, zeros outside, only the inside counted."""
    column, row, plane = CORNERS[name]
    tensor = RNG.integers(1, 1 << 16, (3, 50, 120)).astype(np.uint16)
    out = np.zeros(32 * 32, np.uint32)
    scalars = {"column": np.int32(column), "row": np.int32(row), "plane": np.int32(plane)}
    arguments = {"T": TensorMap(tensor, (1, 32, 64)), "out": out, **scalars}
    counters = launch(COPY, arguments, block=64, shared=32 * 128 + 8, arch="90a")
    want, inside = np.zeros((32, 64), np.uint16), 0
    for i in range(32):
        for j in range(64):
            if 0 <= plane < 3 and 0 <= row + i < 50 and 0 <= column + j < 120:
                want[i, (j // 8 ^ i % 8) * 8 + j % 8] = tensor[plane, row + i, column + j]
                inside += 2
    np.testing.assert_array_equal(out.view(np.uint16).reshape(32, 64), want)
    assert counters.loads["T"] == inside
    assert counters.shared_bytes_stored == 32 * 128  # zeros too
    assert inside / 32 <= counters.sectors_loaded <= inside / 32 + 32


def test_a_device_makes_maps_of_single_heads() -> None:
    array = np.zeros((2, 3, 70, 128), np.float16)
    made = CpuDevice("h100-sxm5-80gb").tensor_map(array, 100)
    assert made.array.shape == (6, 70, 128) and made.box == (1, 100, 64) and made.box_bytes == 12800
    with pytest.raises(InputError, match="boxes \\[1, 300, 64\\]; allowed: 256 elements"):
        CpuDevice("h100-sxm5-80gb").tensor_map(array, 300)
    with pytest.raises(InputError, match="rows of 60 elements; allowed: multiples of 8"):
        TensorMap(np.zeros((1, 4, 60), np.float16), (1, 4, 8))


RING = """
#include "hopper.cuh"
// Warp 0 hands `count` numbers to warps 1 and 2 through a ring of two slots; each adds up what it gets.
KERNEL(int* out, int count) {
    __shared__ int slots[2][32];
    __shared__ __align__(8) uint64 barriers[4];
    const uint32 full = shared_address(barriers), empty = full + 16;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0)
        for (int i = 0; i < 2; ++i) mbarrier_init(full + 8 * i, 32), mbarrier_init(empty + 8 * i, 64);
    __syncthreads();
    int sum = 0;
    for (int i = 0; i < count + blockIdx.x; ++i) {
        const int slot = i % 2, turn = i / 2 % 2;
        mbarrier_wait(warp ? full + 8 * slot : empty + 8 * slot, warp ? turn : turn ^ 1);
        if (warp == 0) slots[slot][lane] = i * 100 + lane;
        else sum += warp * slots[slot][lane];
        mbarrier_arrive(warp ? empty + 8 * slot : full + 8 * slot);
    }
    if (warp) out[blockIdx.x * 64 + threadIdx.x - 32] = sum;
}
"""


@pytest.mark.parametrize("lanes", [96, 4096], ids=["block by block", "all blocks together"])
def test_warps_at_different_places_hand_over_by_mbarriers(launch: Launch, lanes: int) -> None:
    """Blocks of different lengths, three warps each in its own part of the loop, 7 to 9 turns of a ring of two."""
    blocks, count = 3, 7
    out = np.zeros((blocks, 2, 32), np.int32)
    launch(RING, {"out": out, "count": np.int32(count)}, block=96, grid=blocks, arch="90a", lanes=lanes)
    for block in range(blocks):
        total = sum(i * 100 + np.arange(32) for i in range(count + block))
        np.testing.assert_array_equal(out[block], np.stack([total, 2 * total]))


TOKENS = """
#include "hopper.cuh"
KERNEL(const int* in, int* out) {
    __shared__ int memory[64];
    __shared__ __align__(8) uint64 barrier;
    const uint32 address = shared_address(&barrier);
    if (threadIdx.x == 0) mbarrier_init(address, 64);
    __syncthreads();
    for (int round = 0; round < 3; ++round) {
        memory[(threadIdx.x + round) % 64] = in[threadIdx.x] + round;
        uint64 token;
        asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1], 1;" : "=l"(token) : "r"(address) : "memory");
        asm volatile("{ .reg .pred p;\\nagain: mbarrier.try_wait.shared::cta.b64 p, [%0], %1;\\n@!p bra again; }"
                     ::"r"(address), "l"(token) : "memory");
        out[threadIdx.x] += memory[63 - threadIdx.x];
        __syncthreads();
    }
}
"""


def test_phases_by_token(launch: Launch) -> None:
    values, out = np.arange(64, dtype=np.int32) ** 2, np.zeros(64, np.int32)
    launch(TOKENS, {"in": values, "out": out}, block=64, arch="90a")
    rounds = [np.roll(values + r, r)[::-1] for r in range(3)]
    np.testing.assert_array_equal(out, sum(rounds))


def test_named_barriers_by_register(launch: Launch) -> None:
    """Pairs of warps meet at a barrier of their own, whose number is computed; one of each pair does not wait."""
    source = """
    #include "hopper.cuh"
    KERNEL(const int* in, int* out) {
        __shared__ int memory[128];
        const int pair = threadIdx.x / 64, second = threadIdx.x / 32 % 2;
        if (!second) memory[threadIdx.x] = in[threadIdx.x];
        if (second) named_barrier_sync(1 + pair, 64);
        else named_barrier_arrive(1 + pair, 64);
        if (second) out[threadIdx.x] = memory[threadIdx.x - 32];
    }"""
    values, out = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
    launch(source, {"in": values, "out": out}, block=128, grid=2, arch="90a")
    np.testing.assert_array_equal(out[32:64], values[:32])
    np.testing.assert_array_equal(out[96:], values[64:96])


@pytest.mark.parametrize(
    "line",
    [
        "mbarrier.init.shared::cluster.b64 [%r], 1;",
        "mbarrier.test_wait.parity.shared::cta.b64 %p, [%r], 0;",
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%f0, %f1, %f2, %f3}, %l, %l, %p, 1, 1;",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r], [%l], 16, [%r];",
        "barrier.cluster.arrive.relaxed.aligned;",
    ],
)
def test_what_is_not_modelled_is_named(line: str) -> None:
    declared = ".reg .f32 %f<4>;\n.reg .b64 %l;\n.reg .b32 %r;\n.reg .pred %p;\n"
    text = f".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry kernel()\n{{\n{declared}{line}\nret;\n}}\n"
    with pytest.raises(UnsupportedInstruction, match=f"'{line.rstrip(';').partition(' ')[0]}' is not known"):
        run(text, "kernel", 1, 128, {})
