"""tcgen05: fragments of tensor memory, products against NumPy by layout, and seeded bugs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from attnsim.ptx import faults
from attnsim.ptx.counters import Counters, decode, encode
from attnsim.ptx.run import run

Launch = Callable[..., Counters]

HEAD = """
#include "hopper.cuh"
__device__ void store_word(uint32 at, uint32 value) {
    asm volatile("tcgen05.st.sync.aligned.32x32b.x1.b32 [%0], {%1};" :: "r"(at), "r"(value) : "memory");
}
__device__ uint32 load_word(uint32 at) {
    uint32 value;
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];" : "=r"(value) : "r"(at) : "memory");
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
    return value;
}
__device__ void stores_done() { asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory"); }
"""

ALLOCATE = """
    const uint32 warp = threadIdx.x / 32, slot = shared_address(memory) + SLOT;
    if (warp == 0) {
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 512;" :: "r"(slot) : "memory");
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
    }
    __syncthreads();
    const uint32 base = *reinterpret_cast<const uint32*>(memory + SLOT), own = base + (warp % 4 * 32 << 16);
"""

RELEASE = """
    __syncthreads();
    if (warp == 0) asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 512;" :: "r"(base));
"""

FRAGMENTS = (
    HEAD
    + """
KERNEL(uint32* out) {
    extern __shared__ __align__(1024) unsigned char memory[];"""
    + ALLOCATE.replace("SLOT", "0")
    + """
    if (warp < 4)
        for (uint32 column = 0; column < 8; ++column) store_word(own + column, threadIdx.x * 8 + column);
    stores_done();
    __syncthreads();
    uint32 a, b;
    const uint32 half = own + ((warp / 4 * 16) << 16);
    asm volatile("tcgen05.ld.sync.aligned.16x32bx2.x2.b32 {%0, %1}, [%2 + 1], 4;" : "=r"(a), "=r"(b) : "r"(half));
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
    out[threadIdx.x * 2] = a;
    out[threadIdx.x * 2 + 1] = b;
    __syncthreads();
    asm volatile("tcgen05.st.sync.aligned.16x32bx2.x2.b32 [%0], 4, {%1, %2};" :: "r"(half), "r"(a), "r"(b) : "memory");
    stores_done();
    __syncthreads();
    if (warp < 4)
        for (uint32 column = 0; column < 8; ++column) out[512 + threadIdx.x * 8 + column] = load_word(own + column);"""
    + RELEASE
    + "}"
)


def test_fragments_lie_as_the_manual_says(launch: Launch) -> None:
    out = np.zeros(512 + 1024, np.uint32)
    launch(FRAGMENTS, {"out": out}, block=256, shared=16, arch="100a")
    words = np.arange(1024, dtype=np.uint32).reshape(128, 8)  # lane, column
    for thread, (a, b) in enumerate(out[:512].reshape(256, 2).tolist()):
        warp, lane = thread // 32, thread % 32
        row, column = warp % 4 * 32 + warp // 4 * 16 + lane % 16, 1 + lane // 16 * 4
        assert (a, b) == tuple(words[row, column : column + 2]), thread
    # What was read at columns 1, 2, 5 and 6 has been stored at 0, 1, 4 and 5.
    expected = words.copy()
    expected[:, [0, 1, 4, 5]] = words[:, [1, 2, 5, 6]]
    np.testing.assert_array_equal(out[512:].reshape(128, 8), expected)


PRODUCT = (
    HEAD
    + """
KERNEL(const uint4* image, int count, uint64 a, uint64 b, uint32 descriptor, int accumulate, float* out, int columns) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const uint32 barrier = shared_address(memory) + 16 * count;"""
    + ALLOCATE.replace("SLOT", "16 * count + 8")
    + """
    for (int i = threadIdx.x; i < count; i += 128) reinterpret_cast<uint4*>(memory)[i] = image[i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    if (threadIdx.x == 0) mbarrier_init(barrier, 1);
    const uint32* words = reinterpret_cast<const uint32*>(image);
    if (LEFT) for (int c = 0; c < 8; ++c) store_word(own + 256 + c, words[threadIdx.x * 8 + c]);
    for (int c = 0; c < columns; ++c) store_word(own + c, __float_as_uint(threadIdx.x + c));
    stores_done();
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %4, 0;"
            "tcgen05.mma.cta_group::1.kind::f16 [%0], OPERAND, %2, %3, p; }"
            :: "r"(base), "A"(a), "l"(b), "r"(descriptor), "r"(accumulate) : "memory");
        asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" :: "r"(barrier));
    }
    mbarrier_wait(barrier, 0);
    for (int c = 0; c < columns; ++c) out[threadIdx.x * columns + c] = __uint_as_float(load_word(own + c));"""
    + RELEASE
    + "}"
)
IN_SHARED = PRODUCT.replace("LEFT", "false").replace("OPERAND", "%1").replace('"A"', '"l"')
IN_TENSOR_MEMORY = PRODUCT.replace("LEFT", "true").replace("OPERAND", "[%1]").replace('"A"(a)', '"r"(base + 256)')

SPANS = {16: 0, 32: 6, 64: 4, 128: 2}
"""Swizzle modes in a descriptor by the bytes that they permute."""


@dataclass(frozen=True)
class Operand:
    """A matrix ``[rows, 16]`` in shared memory: where, how swizzled, and whether its rows are contiguous."""

    rows: int
    span: int
    at: int
    across: bool = False
    bits: int = 0  # more of its descriptor

    def descriptor(self) -> int:
        """For tcgen05.mma (PTX ISA 9.0, "Shared memory descriptor")."""
        leading, stride = self.strides()
        return self.at >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | 1 << 46 | SPANS[self.span] << 61 | self.bits

    def strides(self) -> tuple[int, int]:
        """Leading and stride byte offset of this layout."""
        if self.across:  # spans along the rows, then two groups of eight k
            spans = self.rows * 2 // self.span
            return (8 * self.span * spans, 8 * self.span) if self.span == 16 else (16 * self.span, 8 * self.span)
        return 8 * 16 if self.span == 16 else 16, 2 * 8 * 16 if self.span == 16 else 8 * self.span

    def byte(self, row: int, k: int) -> int:
        """Where an element lies, written out by the manual's canonical layouts, element by element."""
        leading, stride = self.strides()
        if not self.across:
            if self.span == 16:  # core matrices of eight rows by 16 bytes
                return self.at + row // 8 * stride + k // 8 * leading + row % 8 * 16 + k % 8 * 2
            place = row // 8 * stride + row % 8 * self.span + 2 * k
        elif self.span == 16:
            return self.at + row // 8 * stride + k // 8 * leading + k % 8 * 16 + row % 8 * 2
        else:
            per_span = self.span // 2
            place = row // per_span * leading + k // 8 * stride + k % 8 * self.span + row % per_span * 2
        # Swizzle: bits 4.. of the address are changed by bits 7..
        bits = {32: 1, 64: 3, 128: 7}[self.span]
        return self.at + (place ^ (place >> 7 & bits) << 4)

    def write(self, image: Any, values: Any) -> None:
        """Put the matrix into an image of shared memory, as 16-bit words."""
        for row in range(self.rows):
            for k in range(16):
                image[self.byte(row, k) // 2] = values[row, k]


def multiplied(
    launch: Launch, rows: int, left: Operand | None, right: Operand, dtype: str = "fp16", accumulate: bool = True,
    descriptor: int | None = None, **changes: Any,
) -> tuple[Any, Any, Counters]:  # fmt: skip
    """D of the kernel, D of NumPy, and counts."""
    random, columns = np.random.default_rng(1), right.rows
    a, b = (encode(random.standard_normal((n, 16)), dtype).view(np.uint16) for n in (rows, columns))
    image = np.zeros(16384, np.uint16)
    if left:
        left.write(image, a)
    else:
        image[: a.size] = a.reshape(-1)
    right.write(image, b)
    kind = 0x480 if dtype == "bf16" else 0
    bits = 1 << 4 | kind | columns >> 3 << 17 | rows >> 4 << 24 | right.across << 16
    bits |= (left.across if left else 0) << 15
    out = np.zeros((128, columns), np.float32)
    given = {
        "image": image,
        "count": np.int32(2048),
        "a": np.uint64(left.descriptor() if left else 0),
        "b": np.uint64(right.descriptor()),
        "descriptor": np.uint32(bits if descriptor is None else descriptor),
        "accumulate": np.int32(accumulate),
        "out": out,
        "columns": np.int32(columns),
    }
    source = changes.pop("source", IN_SHARED if left else IN_TENSOR_MEMORY)
    counters = launch(source, given, block=128, shared=2048 * 16 + 16, arch="100a", **changes)
    lanes = np.arange(128) if rows == 128 else np.arange(64) // 16 * 32 + np.arange(64) % 16
    before = (np.arange(128)[:, None] + np.arange(columns)).astype(np.float64)
    expected = before.copy()
    expected[lanes] *= accumulate
    as_floats = [decode(x if dtype == "bf16" else x.view(np.float16)) for x in (a, b)]
    expected[lanes] += as_floats[0] @ as_floats[1].T
    return out, expected, counters


A128 = Operand(128, 128, 0)
CASES = {
    **{f"span {s}": (128, Operand(128, s, 0), Operand(32, s, 16384)) for s in SPANS},
    **{f"B across, span {s}": (128, A128, Operand(64, s, 16384, across=True)) for s in SPANS},
    "A across": (128, Operand(128, 128, 0, across=True), Operand(16, 16, 16384)),
    "64 rows": (64, Operand(64, 64, 0), Operand(24, 32, 16384)),
    "A in tensor memory": (128, None, Operand(48, 128, 16384)),
    "A in tensor memory, B across": (128, None, Operand(128, 64, 16384, across=True)),
}


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("case", CASES)
def test_products_by_layout(case: str, dtype: str, launch: Launch) -> None:
    rows, left, right = CASES[case]
    found, expected, counters = multiplied(launch, rows, left, right, dtype)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
    assert counters.tensor_flops == 2 * rows * right.rows * 16


def test_a_product_without_accumulation_forgets_what_was_there(launch: Launch) -> None:
    found, expected, _ = multiplied(launch, 64, Operand(64, 128, 0), Operand(16, 128, 16384), accumulate=False)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)  # lanes without a row keep theirs


@dataclass(frozen=True)
class Bug:
    """What is replaced by what, and what comes of it."""

    fault: type[faults.Fault]
    old: str
    new: str
    message: str


BUGS = {
    "no wait for the product": Bug(
        faults.TensorMemoryInFlight, "mbarrier_wait(barrier, 0);", "",
        "tcgen05.ld column 0, lanes 0 to 31 of tensor memory, written by tcgen05.mma of warp 0, whose tcgen05.commit",
    ),
    "no wait for stores": Bug(
        faults.TensorMemoryInFlight, "stores_done();\n    __syncthreads();", "__syncthreads();",
        "read by tcgen05.mma of column 0, .* to which a warp stores; tcgen05.wait::st must come first",
    ),
    "no barrier behind stores": Bug(
        faults.Race, "stores_done();\n    __syncthreads();", "stores_done();",
        "read by tcgen05.mma .* written by warp 1 with no barrier between",
    ),
    "no proxy fence": Bug(
        faults.Race, 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");', "",
        "read by tcgen05.mma at shared address .* and not passed on by fence.proxy.async",
    ),
    "operand overwritten": Bug(
        faults.Race, "mbarrier_wait(barrier, 0);\n", "memory[16 * threadIdx.x] = 1; mbarrier_wait(barrier, 0);\n",
        "store of 1 bytes .* read by tcgen05.mma of warp 0 with no wait for the mbarrier of its tcgen05.commit",
    ),
    "loads not waited for": Bug(
        faults.TensorMemoryInFlight, "    if (threadIdx.x == 0) {\n        asm",
        '    uint32 v; asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];" : "=r"(v) : "r"(own));\n'
        "    __syncthreads();\n    if (threadIdx.x == 0) {\n        asm",
        "written by tcgen05.mma of column 0, .* which warp 0 reads; tcgen05.wait::ld must come first",
    ),
    "another warp's lanes": Bug(
        faults.MisusedTensorMemory, "own = base + (warp % 4 * 32 << 16)", "own = base",
        "tcgen05.st at lane 0: this warp reaches lanes 32 to 63",
    ),
    "kept": Bug(
        faults.MisusedTensorMemory, "if (warp == 0) asm", "if (warp == 9) asm",
        "the block has ended with 512 columns of tensor memory allocated",
    ),
    "given back in part": Bug(
        faults.MisusedTensorMemory, "b32 %0, 512;", "b32 %0, 256;", "dealloc of 256 columns at 0x0, which were not"
    ),
    "an odd number of columns": Bug(
        faults.MisusedTensorMemory, "[%0], 512;", "[%0], 48;", "tcgen05.alloc of 48 columns; allowed: 32, 64"
    ),
    "allocated too little": Bug(
        faults.MisusedTensorMemory, "[%0], 512;", "[%0], 32;", "tcgen05.st column 256 of tensor memory, which is not"
    ),
    "allocated too late": Bug(
        faults.MisusedTensorMemory, "    __syncthreads();\n    const uint32 base",
        '    if (warp == 0) asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 32;"'
        ' :: "r"(slot) : "memory");\n    __syncthreads();\n    const uint32 base',
        "tcgen05.alloc after tcgen05.relinquish_alloc_permit",
    ),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_bugs_are_found_and_named(bug: str, launch: Launch) -> None:
    told = BUGS[bug]
    right, kept = Operand(16, 128, 16384), IN_TENSOR_MEMORY if "little" in bug else IN_SHARED
    assert told.old in kept
    left = None if "little" in bug else A128
    with pytest.raises(told.fault, match=told.message):
        multiplied(launch, 128, left, right, source=kept.replace(told.old, told.new, 1))


def test_descriptors_with_unknown_bits_are_refused_with_the_line(launch: Launch) -> None:
    plain = 1 << 4 | 2 << 17 | 8 << 24
    for bits in (plain & ~(1 << 4), plain | 1 << 2, plain | 1 << 13, plain | 1 << 7, plain | 1 << 30, plain ^ 9 << 24):
        with pytest.raises(faults.UnsupportedInstruction, match=r"tcgen05.mma.*line \d+ .*the instruction descriptor"):
            multiplied(launch, 128, A128, Operand(16, 128, 16384), descriptor=bits)
    with pytest.raises(faults.Fault, match=r"the matrix descriptor 0x.* of tcgen05.mma has bits"):
        multiplied(launch, 128, replace(A128, bits=1 << 53), Operand(16, 128, 16384))


@pytest.mark.parametrize(
    "form",
    [
        "tcgen05.cp.cta_group::1.128x256b [%r1], %rd1;",
        "tcgen05.shift.cta_group::1.down [%r1];",
        "tcgen05.mma.cta_group::2.kind::f16 [%r1], %rd1, %rd1, %r1, %p1;",
        "tcgen05.mma.cta_group::1.kind::tf32 [%r1], %rd1, %rd1, %r1, %p1;",
        "tcgen05.mma.ws.cta_group::1.kind::f16 [%r1], %rd1, %rd1, %r1, %p1;",
        "tcgen05.ld.sync.aligned.16x64b.x1.b32 {%r1}, [%r1];",
        "tcgen05.ld.sync.aligned.32x32b.x1.pack::16b.b32 {%r1}, [%r1];",
        "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r1}, [%r1];",
    ],
)
def test_other_forms_are_refused_by_name_and_line(form: str) -> None:
    opcode = form.split(maxsplit=1)[0]
    ptx = ".version 8.8\n.target sm_100a\n.visible .entry k()\n{ .reg .b32 %r<3>; .reg .b64 %rd<3>; .reg .pred %p<3>;\n"
    with pytest.raises(faults.UnsupportedInstruction, match=f"line 5 of the PTX.*'{opcode}' is not known"):
        run(ptx + form + "\nret; }", "k", 1, 128, {})
