"""Kernels as PyTorch launches them one operation at a time: element-wise passes, and passes over rows.

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
    """Instructions per element on the FP32 lanes, the integer lanes and those of special functions."""

    fp32: int
    int32: int = 0
    exps: int = 0


NARROW = 1024
"""Most columns that PyTorch's softmax and reductions give to one warp a row (``PersistentSoftmax.cuh``)."""

ROW_LANES = by_hand(Lanes(fp32=6), "instructions per element of a sum, a maximum or a softmax backward over rows")
"""Convert, maximum, subtract with scale, sum, multiply, convert: of a softmax but for exponentials and divisions."""
SOFTMAX_LANES = by_hand(
    (Lanes(fp32=15, int32=11, exps=2), Lanes(fp32=22, int32=9, exps=3)),
    "instructions per element of a softmax forward by one warp a row, and by a block: those of its machine code",
)
"""Counted in what nvcc 13.0 makes of ``softmax_warp_forward`` (``PersistentSoftmax.cuh``) for 512 and 1,024 columns,
and of ``cunn_SoftMaxForwardSmem`` and ``cunn_SoftMaxForward`` (``SoftMax.cu``), for sm_80, sm_90 and sm_100, which
differ by two at most. `std::exp` and the division are of full precision: some seven instructions around ``MUFU.EX2``,
and a reciprocal with corrections, a check and its branch. A block takes the exponential twice, for the sum and for the
result. Control and accesses, 4 to 12 more, are left out."""
ELEMENTWISE_THREADS, ELEMENTWISE_WORK = 128, 4
"""Threads of a block and elements of a thread in PyTorch's elementwise kernels (``CUDALoops.cuh``)."""

UNEVEN = by_hand(4, "most by which an even number of blocks of an eager pass may lie below the real one")

GEMM_TEXT = "GEMMs of cuBLAS"
"""The tile of a list of operations, whose GEMMs have each its own."""


def even_blocks(wanted: int, *sizes: int) -> int:
    """A number of blocks of which all have the same share of every operand, near and not above the one wanted.

    The blocks of a launch then are one class. Where sizes have no such divisor within a factor of `UNEVEN`, the number
    wanted, of which some have a byte more.
    """
    common = math.gcd(*sizes)
    least = max(1, -(-common // wanted))
    for share in range(least, UNEVEN * least + 1):
        if common % share == 0 and common // share * UNEVEN >= wanted:
            return common // share
    return wanted


def summed(name: str, reads: tuple[str, int], writes: tuple[str, int], elements: int) -> Kernel:
    """A sum over all but a few elements: blocks of about `STREAM_BYTES`."""
    blocks = even_blocks(-(-reads[1] // STREAM_BYTES), elements, reads[1], writes[1])
    return streaming(name, [Access(*reads), Access(*writes, True)], elements=elements, blocks=blocks)


def elementwise(
    name: str, reads: Tensors, writes: tuple[str, int], elements: int, *, broadcast: bool = False, exps: int = 0
) -> Kernel:
    """An element-wise kernel over `elements`, in equal blocks where there are such.

    Parameters
    ----------
    reads : sequence of (str, int)
        Tensors and their bytes.
    broadcast : bool
        Whether an operand has fewer elements than the result, which are then found by integer divisions.
    """
    blocks = even_blocks(_elementwise_blocks(elements), elements, writes[1], *(size for _, size in reads))
    int32 = BROADCAST_INSTRUCTIONS * broadcast
    return one_pass(name, reads, [writes], elements, int32=int32, exps=exps, blocks=blocks)


def _elementwise_blocks(elements: int) -> int:
    return -(-elements // (ELEMENTWISE_THREADS * ELEMENTWISE_WORK))


def one_pass(
    name: str, reads: Tensors, writes: Tensors, elements: int, *, int32: int = 0, exps: int = 0, blocks: int = 0
) -> Kernel:
    """An element-wise kernel, in as many blocks as PyTorch launches unless told.

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
    """A copy between two orders of elements, whose offsets TensorIterator finds by divisions as it does a broadcast's.

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
    """A pass over rows, such as a sum or maximum: up to `NARROW` columns a warp per row, four to a block; else a block.

    With `even`, as many blocks as have equal shares; `exps` exponentials over all rows beside those of the `lanes`; so
    many `threads` of a block that has a row.
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
    """Q, K, V and O."""
    rows_q, rows_kv = w.batch * w.heads_q * w.seq_q, w.batch * w.heads_kv * w.seq_kv
    inputs = (rows_q + rows_kv) * w.head_dim + rows_kv * w.head_dim_v
    return inputs * w.element_bytes + rows_q * w.head_dim_v * w.output_bytes
