"""Kernels that pass over tensors once: the passes of unfused attention, and small helpers of fused kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from attnsim.by_hand import by_hand
from attnsim.models.schedule.operation import STEP, TileOp, apart, once
from attnsim.models.schedule.schedule import Kernel, Launch, TensorUse

STREAM_BYTES = by_hand(16 * 1024, "bytes that a block of a helper kernel reads")
"""256 threads with four 16-byte loads each in flight."""
BROADCAST_INSTRUCTIONS = by_hand(50, "instructions per element of a broadcast pass, all charged to the integer lanes")
"""PyTorch's TensorIterator then computes each element's offset from its index with divisions instead of loading vectors
(``aten/src/ATen/native/cuda/OffsetCalculator.cuh``). Over two dimensions ``elementwise_kernel<128, 4>`` has 44 for each
element in what nvcc 13.0 makes of it for sm_80, and 57 for sm_90: 32 integer ones, multiplications among them, 3 or 4
accesses, 2 or 3 conversions and additions; the others compute with uniform registers or branch."""


@dataclass(frozen=True, slots=True)
class Access:
    """A tensor that a streaming kernel reads or writes once."""

    tensor: str
    bytes: int
    written: bool = False


def streaming(
    name: str,
    accesses: Sequence[Access],
    *,
    elements: int,
    exps: int = 0,
    fp32_per_element: float = 1.0,
    int32_per_element: int = 0,
    threads: int = 256,
    block_bytes: int = STREAM_BYTES,
    blocks: int | None = None,
) -> Kernel:
    """Kernel that reads and writes each tensor once, in blocks of about `block_bytes` of its largest tensor.

    Blocks have equal shares, to a byte. If a tensor's read is named before its write, the tensor is changed in place.
    If it is named after the write, the kernel reads back what it has written.

    Parameters
    ----------
    elements : int
        Elements processed, for the arithmetic.
    exps : int
        Exponentials over the whole grid.
    fp32_per_element : float
        FP32-lane instructions per element.
    int32_per_element : int
        Integer instructions per element.
    blocks : int, optional
        Number of blocks, when the implementation fixes it.
    """
    largest = max(access.bytes for access in accesses)
    count = blocks or max(1, -(-largest // block_bytes))
    # The remaining bytes go to the first blocks, one each, so that the sum is exact.
    shares = [divmod(access.bytes, count) for access in accesses]
    bounds = sorted({0, count, *(left for _, left in shares)})
    part = elements // count
    fp32, int32 = round(part * fp32_per_element), part * int32_per_element
    begins_written = {access.tensor: access.written for access in reversed(accesses)}
    work = TileOp("vector", name, exps=exps // count, fp32=fp32, int32=int32), STEP

    def block(first: int) -> tuple[TileOp, ...]:
        moved = [(a, n + (first < left)) for a, (n, left) in zip(accesses, shares, strict=True) if n or first < left]
        loads = [TileOp("load", a.tensor, bytes=n) for a, n in moved if not a.written]
        stores = [TileOp("store", a.tensor, bytes=n) for a, n in moved if a.written]
        return *loads, *(TileOp("wait", load.tensor) for load in loads), *work, *stores

    tags = [*(f"block with odd bytes {n}" for n in range(1, len(bounds) - 1)), "block"]
    nest = apart([once(tag, block(first)) for tag, first in zip(tags, bounds, strict=False)])
    launches = tuple(Launch.alike(end - begin, number) for number, (begin, end) in enumerate(pairwise(bounds)))
    return Kernel.of(
        nest,
        name=name,
        threads=threads,
        registers_per_thread=32,
        launches=launches,
        uses=tuple(
            TensorUse(a.tensor, a.bytes, (count,), 1.0, a.written, not (a.written or begins_written[a.tensor]))
            for a in accesses
        ),
        dtype="fp32",
        step="block",
    )
