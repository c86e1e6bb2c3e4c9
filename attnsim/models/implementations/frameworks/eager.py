"""PyTorch's eager kernels, one per operation: element-wise passes, and passes over rows.

Every operation reads its operands from global memory and writes its result there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from attnsim.by_hand import by_hand
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.passes import BROADCAST_INSTRUCTIONS, STREAM_BYTES, Access, streaming
from attnsim.models.schedule.schedule import Kernel

Tensors = Sequence[tuple[str, int]]
"""Tensors and their bytes."""


class Lanes(NamedTuple):
    """Instructions per element on the FP32 lanes, the integer lanes and the special-function units."""

    fp32: int
    int32: int = 0
    exps: int = 0


NARROW = 1024
"""Most columns for which PyTorch's softmax and reductions use one warp per row (``PersistentSoftmax.cuh``)."""

ROW_LANES = by_hand(Lanes(fp32=6), "instructions per element of a sum, a maximum or a softmax backward over rows")
"""A softmax without exponentials and divisions: convert, maximum, subtract with scale, sum, multiply, convert."""
SOFTMAX_LANES = by_hand(
    (Lanes(fp32=15, int32=11, exps=2), Lanes(fp32=22, int32=9, exps=3)),
    "instructions per element of a softmax forward by one warp a row, and by a block: those of its machine code",
)
"""Counted in nvcc 13.0's code for ``softmax_warp_forward`` (``PersistentSoftmax.cuh``) with 512 and 1,024 columns, and
for ``cunn_SoftMaxForwardSmem`` and ``cunn_SoftMaxForward`` (``SoftMax.cu``), for sm_80, sm_90 and sm_100, which differ
by two at most. `std::exp` and the division are of full precision: some seven instructions around ``MUFU.EX2``, and a
reciprocal with corrections, a check and its branch. A block computes the exponential twice, for the sum and for the
result. Control and accesses, 4 to 12 more, are left out."""
ELEMENTWISE_THREADS, ELEMENTWISE_WORK = 128, 4
"""Threads of a block and elements of a thread in PyTorch's elementwise kernels (``CUDALoops.cuh``)."""

UNEVEN = by_hand(4, "most by which an even number of blocks of an eager pass may lie below the real one")

GEMM_TEXT = "GEMMs of cuBLAS"
"""Text of the tile of a list of operations, each of whose GEMMs has its own tile."""


def even_blocks(wanted: int, *sizes: int) -> int:
    """Largest number of blocks, at most `wanted`, of which each has the same share of every operand.

    The blocks of a launch are then one class. If sizes have no such divisor within a factor of `UNEVEN`, the result is
    `wanted`, and some blocks have a byte more.
    """
    common = math.gcd(*sizes)
    least = max(1, -(-common // wanted))
    for share in range(least, UNEVEN * least + 1):
        if common % share == 0 and common // share * UNEVEN >= wanted:
            return common // share
    return wanted


def summed(name: str, reads: tuple[str, int], writes: tuple[str, int], elements: int) -> Kernel:
    """Kernel that sums over most elements, in blocks of about `STREAM_BYTES`."""
    blocks = even_blocks(-(-reads[1] // STREAM_BYTES), elements, reads[1], writes[1])
    return streaming(name, [Access(*reads), Access(*writes, True)], elements=elements, blocks=blocks)


def elementwise(
    name: str, reads: Tensors, writes: tuple[str, int], elements: int, *, broadcast: bool = False, exps: int = 0
) -> Kernel:
    """An element-wise kernel over `elements`, in equal blocks if possible.

    Parameters
    ----------
    reads : sequence of (str, int)
        Tensors and their bytes.
    broadcast : bool
        Whether an operand has fewer elements than the result, whose offsets then need integer divisions.
    """
    blocks = even_blocks(_elementwise_blocks(elements), elements, writes[1], *(size for _, size in reads))
    int32 = BROADCAST_INSTRUCTIONS * broadcast
    return one_pass(name, reads, [writes], elements, int32=int32, exps=exps, blocks=blocks)


def _elementwise_blocks(elements: int) -> int:
    return -(-elements // (ELEMENTWISE_THREADS * ELEMENTWISE_WORK))


def one_pass(
    name: str, reads: Tensors, writes: Tensors, elements: int, *, int32: int = 0, exps: int = 0, blocks: int = 0
) -> Kernel:
    """An element-wise kernel, by default in as many blocks as PyTorch launches.

    Parameters
    ----------
    reads, writes : sequence of (str, int)
        Tensors and their bytes.
    int32 : int
        Integer instructions per element.
    """
    return streaming(
        name,
        [*(Access(*item) for item in reads), *(Access(*item, True) for item in writes)],
        elements=elements,
        exps=exps,
        int32_per_element=int32,
        threads=ELEMENTWISE_THREADS,
        blocks=blocks or _elementwise_blocks(elements),
    )


def strided_copy(name: str, read: tuple[str, int], written: tuple[str, int], elements: int) -> Kernel:
    """A copy between two orders of elements, whose offsets TensorIterator computes by divisions, as for a broadcast.

    Parameters
    ----------
    read, written : (str, int)
        Tensor and bytes.
    """
    return one_pass(name, [read], [written], elements, int32=BROADCAST_INSTRUCTIONS)


def over_rows(
    name: str,
    reads: Tensors,
    writes: tuple[str, int],
    rows: int,
    columns: int,
    *,
    exps: int = 0,
    lanes: Lanes = ROW_LANES,
    threads: int = 0,
    even: bool = True,
) -> Kernel:
    """A pass over rows, such as a sum: up to `NARROW` columns a warp per row, four per block; otherwise a block.

    With `even`, the number of blocks gives equal shares. `exps` are exponentials over all rows in addition to those of
    the `lanes`. `threads` are those of a block that has one row.
    """
    narrow = columns <= NARROW
    fours = -(-rows // 4)
    return streaming(
        name,
        [*(Access(tensor, size) for tensor, size in reads), Access(*writes, True)],
        elements=rows * columns,
        exps=exps + rows * columns * lanes.exps,
        fp32_per_element=lanes.fp32,
        int32_per_element=lanes.int32,
        threads=128 if narrow else threads or min(1024, -(-columns // 256) * 32),
        blocks=rows if not narrow else even_blocks(fours, rows) if even else fours,
    )


def softmax(
    name: str, reads: Tensors, writes: tuple[str, int], rows: int, columns: int, *, even: bool = True
) -> Kernel:
    """A softmax forward of each row, blocks as :func:`over_rows`, but of 1,024 threads (``SoftMax.cu``)."""
    lanes = SOFTMAX_LANES[columns > NARROW]
    return over_rows(name, reads, writes, rows, columns, lanes=lanes, threads=1024, even=even)


def arrays_bytes(w: Workload) -> int:
    """Bytes of Q, K, V and O."""
    rows_q, rows_kv = w.batch * w.heads_q * w.seq_q, w.batch * w.heads_kv * w.seq_kv
    inputs = (rows_q + rows_kv) * w.head_dim + rows_kv * w.head_dim_v
    return inputs * w.element_bytes + rows_q * w.head_dim_v * w.output_bytes
