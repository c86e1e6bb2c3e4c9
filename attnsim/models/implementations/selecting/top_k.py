"""`torch.topk` over rows of scores: one block a row, which it reads once for each two bits of a number, then twice.

``aten/src/ATen/native/cuda/TensorTopK.cu``, `sbtopk::gatherTopK`: `radixSelect` finds the k-th value two bits at a time
(``SortingRadixSelect.cuh``, RADIX_BITS), then a pass writes what is greater and one what is equal. The values found are
sorted by a kernel of their own.
"""

from __future__ import annotations

import numpy as np

from attnsim.by_hand import by_hand
from attnsim.models.schedule.nest import loop_nest
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.schedule import Kernel, Launch
from attnsim.models.schedule.uses import TensorUse

RADIX_BITS = 2
VALUE_BITS = 32
PASSES = VALUE_BITS // RADIX_BITS + 2
"""Times that a block reads its row: once for each digit, and twice to gather."""
FOUND_BYTES = 12
"""A value in fp32 and its place in int64."""
PASS_INSTRUCTIONS = by_hand(46, "integer instructions an element and pass, as `countRadixUsingMask` writes them")
"""Address, bound and load 6, ordered integer 4, mask and digit 4; of each of four digits 8: a comparison (2), a ballot,
a sum, and a population count at a quarter of the rate."""


def top_k(scores: str, rows: int, columns: int, top: int) -> list[Kernel]:
    """The kernels of `torch.topk` and of sorting the places found.

    Parameters
    ----------
    scores : str
        Tensor of `rows` x `columns` numbers in fp32.
    rows, columns, top : int
    """
    threads = min(1024, -(-columns // 32) * 32)
    one = Segment(
        "pass",
        (
            TileOp("load", scores, bytes=columns * 4),
            TileOp("wait", scores),
            TileOp("delay", "step"),
            TileOp("vector", "digits", int32=PASS_INSTRUCTIONS * columns),
        ),
    )
    end = Segment("store", (TileOp("delay", "block"), TileOp("store", "found", bytes=top * FOUND_BYTES)))
    segments, repeats = loop_nest([(one, np.array([PASSES])), (end, np.array([1]))])
    select = Kernel(
        name="top-k",
        threads=threads,
        registers_per_thread=32,
        buffers=(("digits", 1024),),
        segments=segments,
        repeats=repeats,
        launches=(Launch.alike(rows),),
        uses=(
            TensorUse(scores, columns * 4, rows, passes_per_block=PASSES),
            TensorUse("found", top * FOUND_BYTES, rows, written=True),
        ),
        dtype="fp32",
        step="pass",
    )
    found = rows * top * FOUND_BYTES
    return [select, *(_sorted(name, found, rows * top) for name in ("sort values", "sort places"))]


def _sorted(name: str, size: int, elements: int) -> Kernel:
    """Rows so short that a block of threads sorts them in registers."""
    return streaming(name, [Access("found", size), Access("found", size, True)], elements=elements)
