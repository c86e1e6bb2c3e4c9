"""One operation on a tile with the amount of work for each unit of an SM, and segments of such operations."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, NamedTuple

Kind = Literal["load", "wait", "store", "mma", "mma_async", "mma_wait", "vector", "delay", "prefetch"]
Waits = Literal["", "step", "block", "write"]


class TileOp(NamedTuple):
    """One operation on a tile, with the amount of work for each unit of the SM.

    Parameters
    ----------
    kind : str
        - ``load`` starts an asynchronous copy from global memory; ``wait`` blocks until the oldest such copy of the
          same tensor has landed.
        - ``store`` writes global memory and does not wait.
        - ``mma`` multiplies and waits; ``mma_async`` issues, and ``mma_wait`` waits for the oldest one issued.
        - ``vector`` is work on registers (softmax, rescaling, masks).
        - ``delay`` is a fixed latency.
        - ``prefetch`` lets a persistent block start the leading loads of its next tile.
    tensor : str
        The tensor moved or waited for; the output's name for an MMA.
    bytes : int
        Bytes requested from or sent to global memory.
    flops : int
        Tensor-core FLOPs executed, padding included.
    smem_bytes : int
        Shared-memory traffic of the operands.
    tmem_bytes : int
        Bytes between tensor memory and registers.
    scores : int
        Elements of S or P that pass through the softmax.
    exps : int
        Exponentials.
    fp32 : int
        FP32-lane instructions: all of a counted operation, otherwise those apart from the per-score ones.
    int32 : int
        Instructions on the integer lanes: all of a counted operation (integers, comparisons, maxima, selections,
        conversions), otherwise those that its source names.
    load_stores : int
        Threads' accesses through the load/store units: shared memory, shuffles, matrix loads.
    issues : int
        Warp instructions that the schedulers issue, on any pipe. An operation with any is *counted*: it takes as long
        as its busiest pipe. An operation with none takes as long as its pipes one after another.
    fp64 : int
        Instructions on the FP64 lanes.
    clks : int
        Latency of a ``delay``, in clocks.
    share : float
        Part of the latency named by a ``delay``: an epilogue stores valid rows only.
    waits : str
        Latency of the implementation that a ``delay`` adds to its `clks`: "step", "block" or "write".
    """

    kind: Kind
    tensor: str = ""
    bytes: int = 0
    flops: int = 0
    smem_bytes: int = 0
    tmem_bytes: int = 0
    scores: int = 0
    exps: int = 0
    fp32: int = 0
    int32: int = 0
    load_stores: int = 0
    issues: int = 0
    fp64: int = 0
    clks: int = 0
    share: float = 1.0
    waits: Waits = ""

    def __str__(self) -> str:
        """One line for a reader: the kind, the tensor and the amounts that are not zero."""
        amounts = [
            f"{name} {amount:{',' * (name != 'waits')}}"
            for name, amount in self._asdict().items()
            if name not in ("kind", "tensor") and amount != self._field_defaults[name]
        ]
        return " ".join(part for part in (self.kind, self.tensor, *amounts) if part)


BLOCK, STEP = TileOp("delay", waits="block"), TileOp("delay", waits="step")
"""Latencies that are numbers of the implementation: at the beginning or end of a block, and at a step's barriers."""
AMOUNTS = tuple(name for name in TileOp._fields if name not in ("kind", "tensor", "share", "waits"))
"""Fields of an operation that can be summed."""
amounts = attrgetter(*AMOUNTS)
"""The amounts of an operation, in that order."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the loop nest that is always run as a whole.

    Copies from and to global memory are issued once per block, by the last warpgroup to arrive. Every other operation
    is run by each warpgroup on its own rows.
    """

    name: str
    ops: tuple[TileOp, ...]
