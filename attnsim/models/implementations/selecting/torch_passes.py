"""PyTorch passes for selection: `torch.topk` over rows of scores, and operations over whole tensors.

`torch.topk` has one block per row, which it reads once for each two bits of a number, then twice:
``aten/src/ATen/native/cuda/TensorTopK.cu``, `sbtopk::gatherTopK`: `radixSelect` finds the k-th value two bits at a time
(``SortingRadixSelect.cuh``, RADIX_BITS), then one pass writes greater values and one equal ones. A separate kernel
sorts the values found.
"""

from __future__ import annotations

from attnsim.by_hand import by_hand
from attnsim.models.schedule.axes import Axis, Tensor, declared
from attnsim.models.schedule.operation import BLOCK, STEP, Nest, TileOp, loop, once
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.schedule import Kernel

RADIX_BITS = 2
VALUE_BITS = 32
PASSES = VALUE_BITS // RADIX_BITS + 2
"""Times that a block reads its row: once for each digit, and twice to gather."""
FOUND_BYTES = 12
"""Bytes of a value in fp32 and its index in int64."""
LIST, INDEX_BYTES = "selected", 4
"""Tensor of the chosen blocks or keys of each query: int32."""
PASS_INSTRUCTIONS = by_hand(46, "integer instructions an element and pass, as `countRadixUsingMask` writes them")
"""Address, bound and load 6, ordered integer 4, mask and digit 4; of each of four digits 8: a comparison (2), a ballot,
a sum, and a population count at a quarter of the rate."""


def top_k(scores: str, rows: int, columns: int, top: int) -> list[Kernel]:
    """Kernels of `torch.topk` and of sorting the indices found.

    Parameters
    ----------
    scores : str
        Tensor of `rows` x `columns` numbers in fp32.
    """
    axes = {"r": Axis(rows), "c": Axis(columns)}
    row, best = Tensor(scores, "r c", 4, times=PASSES), Tensor("found", "r", top * FOUND_BYTES, written=True)
    digits = TileOp("vector", "digits", int32=PASS_INSTRUCTIONS * columns)

    def body() -> Nest:
        return [
            *loop("pass", PASSES, lambda: (row.load(columns), row.wait(), STEP, digits)),
            *once("store", [BLOCK, best.store()]),
        ]

    select = declared(
        "top-k",
        axes,
        "r",
        (row, best),
        {},
        body,
        threads=min(1024, -(-columns // 32) * 32),
        registers_per_thread=32,
        buffers=(("digits", 1024),),
        dtype="fp32",
        step="pass",
    )
    found = rows * top * FOUND_BYTES
    return [select, *(_sorted(name, found, rows * top) for name in ("sort values", "sort places"))]


def _sorted(name: str, size: int, elements: int) -> Kernel:
    """Kernel for rows so short that a thread block sorts them in registers."""
    return over(name, {"found": size}, {"found": size}, elements)


def best_past(rows: int, top: int) -> list[Kernel]:
    """Indices found by `torch.topk`, without those in the future, as int32."""
    found = rows * top
    return [
        over("future", {"found": found * 8}, {"is future": found}, found),
        over("drop", {"found": found * 8, "is future": found}, {"found": found * 8}, found),
        over("to int32", {"found": found * 8}, {LIST: found * INDEX_BYTES}, found),
    ]


def clear(name: str, tensor: str, size: int) -> Kernel:
    """`torch.zeros`: the tensor written once."""
    return over(name, {}, {tensor: size}, size // 2)


def over(name: str, reads: dict[str, int], writes: dict[str, int], elements: int) -> Kernel:
    """An operation that passes once over the given bytes of each tensor."""
    accesses = [*(Access(x, n) for x, n in reads.items()), *(Access(x, n, True) for x, n in writes.items())]
    return streaming(name, accesses, elements=elements)
