"""A kernel that goes over sequences in chunks: one block a chunk, or one that walks all chunks of its head in order.

What a block moves is told as :class:`Flow`, what it computes for a chunk as :class:`Work`. The last chunk of a sequence
moves the rows that it has and multiplies whole tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np

from attnsim.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.schedule.nest import Nest, loop_nest
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.schedule import Kernel, Launch, Path
from attnsim.models.schedule.uses import TensorUse

LINK_CLKS = by_hand(
    30, "clocks of one link of a chain of dependent instructions, such as a row of a substitution, before `extra`"
)
REGISTERS = by_hand(128, "registers a thread of a compiled kernel whose tiles are small: Triton does not print them")

Per = Literal["row", "chunk", "sequence"]


@dataclass(frozen=True, slots=True)
class Flow:
    """A tensor that a block reads or writes.

    Parameters
    ----------
    tensor : str
    bytes : int
        Of a row, of a chunk, or of a whole sequence (read before its first chunk or written after its last).
    per : {"row", "chunk", "sequence"}
    written : bool
    by_columns : bool
        Whether all columns of blocks read the same bytes.
    by_heads : int
        Heads whose blocks read the same bytes.
    """

    tensor: str
    bytes: int
    per: Per = "row"
    written: bool = False
    by_columns: bool = False
    by_heads: int = 1


@dataclass(frozen=True, slots=True)
class Work:
    """What a block computes for a chunk.

    Parameters
    ----------
    products : tuple of (int, int, int)
        m, n, k of each product of tiles, of 16-bit operands.
    exps, fp32 : int
        Exponentials, and FP32-lane instructions.
    links : int
        Dependent instructions that nothing hides: rows of a substitution, tokens of a recurrence.
    """

    products: tuple[tuple[int, int, int], ...] = ()
    exps: int = 0
    fp32: int = 0
    links: int = 0

    @property
    def flops(self) -> int:
        """Of the products."""
        return sum(2 * m * n * k for m, n, k in self.products)

    def operations(self, element_bytes: int) -> tuple[TileOp, ...]:
        """The operations, with both operands of each product read from shared memory once."""
        out = []
        for (m, n, k), same in groupby(self.products):
            times = len(list(same))
            name = f"{m} x {n} x {k}" if times == 1 else f"{times} of {m} x {n} x {k}"
            operands = (m + n) * k * element_bytes
            out.append(TileOp("mma", name, flops=times * 2 * m * n * k, smem_bytes=times * operands))
        if self.exps or self.fp32:
            out.append(TileOp("vector", "gates", exps=self.exps, fp32=self.fp32))
        chain = [TileOp("delay", "extra", clks=self.links * LINK_CLKS)] if self.links else []
        return (*out, *chain, TileOp("delay", "step"))


@dataclass(frozen=True, slots=True)
class Chunks:
    """A kernel over chunks.

    Parameters
    ----------
    name : str
    chunk : int
        Rows of a chunk.
    heads : int
        Blocks side by side of a sequence's chunk, beside the columns.
    flows : tuple of Flow
    work : Work
    columns : int
        Blocks that share the columns of a head's output.
    serial : bool
        Whether a block walks all chunks of its sequence, with the state in registers.
    warps, registers, shared_memory_bytes : int
        Of a block.
    path : str
        Instructions of the products.
    ahead : bool
        Whether a serial block asks for the next chunk before it computes one.
    in_flight_bytes : int
        Most bytes of a tensor that a block has on their way; 0: a chunk's.
    alone : bool
        Whether every thread works for itself, so that a block has no prologue and no epilogue.
    """

    name: str
    chunk: int
    heads: int
    flows: tuple[Flow, ...]
    work: Work
    columns: int = 1
    serial: bool = False
    warps: int = 4
    registers: int = REGISTERS
    shared_memory_bytes: int = 0
    path: Path = "simt"
    ahead: bool = True
    in_flight_bytes: int = 0
    alone: bool = False

    @property
    def _edge(self) -> tuple[TileOp, ...]:
        """What it takes to begin a block, or to end one."""
        return () if self.alone else (TileOp("delay", "block"),)

    def kernel(self, sequences: int, tokens: int, dtype: str, element_bytes: int = 2) -> Kernel:
        """The kernel for so many sequences of equal length."""
        chunks = -(-tokens // self.chunk)
        last = tokens - (chunks - 1) * self.chunk
        build = self._walked if self.serial else self._spread
        nest, launches = build(sequences, chunks, last, self.work.operations(element_bytes))
        segments, repeats = loop_nest(nest)
        return Kernel(
            name=self.name,
            threads=32 * self.warps,
            registers_per_thread=self.registers,
            segments=segments,
            repeats=repeats,
            launches=launches,
            uses=self._uses(sequences, tokens, chunks),
            path=self.path,
            buffers=(("tiles", self.shared_memory_bytes),) if self.shared_memory_bytes else (),
            dtype=dtype,
            in_flight_bytes=self.in_flight_bytes,
            step="chunk",
        )

    def _copies(self, kind: Literal["load", "store"], rows: int, pers: Sequence[Per]) -> tuple[TileOp, ...]:
        """Loads or stores of a chunk of so many rows."""
        return tuple(
            TileOp(kind, flow.tensor, bytes=flow.bytes * (rows if flow.per == "row" else 1))
            for flow in self.flows
            if flow.written == (kind == "store") and flow.per in pers
        )

    def _walked(
        self, sequences: int, chunks: int, last: int, work: tuple[TileOp, ...]
    ) -> tuple[Nest, tuple[Launch, ...]]:
        """One class of blocks: the state, then every chunk while the next is on its way."""
        full: tuple[Per, Per] = ("row", "chunk")
        short = int(last < self.chunk)
        loads, rest = (self._copies("load", rows, full) for rows in (self.chunk, last))
        stores, remaining = (self._copies("store", rows, full) for rows in (self.chunk, last))
        waits = tuple(TileOp("wait", one.tensor) for one in loads)
        before = self._copies("load", 0, ("sequence",))
        start = (*self._edge, *before, *(TileOp("wait", one.tensor) for one in before))
        end = (*self._copies("store", 0, ("sequence",)), *self._edge)
        if not self.ahead:
            nest: Nest = [
                (Segment("state", start), 1),
                (Segment("chunk", (*loads, *waits, *work, *stores)), chunks - short),
                (Segment("last chunk", (*rest, *waits, *work, *remaining)), short),
                (Segment("end", end), 1),
            ]
        else:
            alone = int(chunks == 1)
            nest = [
                (Segment("state", start), 1),
                (Segment("first chunk's loads", loads), 1 - alone * short),
                (Segment("short chunk's loads", rest), alone * short),
                (Segment("chunk", (*waits, *loads, *work, *stores)), chunks - 1 - (1 - alone) * short),
                (Segment("chunk before the short one", (*waits, *rest, *work, *stores)), (1 - alone) * short),
                (Segment("last chunk", (*waits, *work, *stores)), 1 - short),
                (Segment("short chunk", (*waits, *work, *remaining)), short),
                (Segment("end", end), 1),
            ]
        return nest, (Launch.alike(self.columns * self.heads * sequences),)

    def _spread(
        self, sequences: int, chunks: int, last: int, work: tuple[TileOp, ...]
    ) -> tuple[Nest, tuple[Launch, ...]]:
        """A block a chunk: those that begin a sequence, those within, and those that end it."""
        begin, end = self._copies("load", 0, ("sequence",)), self._copies("store", 0, ("sequence",))
        kinds = [(self.chunk, False, False), (self.chunk, True, False), (last, chunks == 1, True)]
        which = np.array([1, *[0] * (chunks - 2), 2] if chunks > 1 else [2], np.int64)
        nest: Nest = []
        for (rows, first, final), chosen in zip(kinds, np.eye(3, dtype=np.int64), strict=True):
            loads = (*(begin if first else ()), *self._copies("load", rows, ("row", "chunk")))
            stores = (*self._copies("store", rows, ("row", "chunk")), *(end if final else ()))
            name = "last chunk" if final else "first chunk" if first else "chunk"
            waits = (TileOp("wait", one.tensor) for one in loads)
            ops = (*self._edge, *loads, *waits, *work, *stores, *self._edge)
            nest.append((Segment(name, ops), chosen * np.isin(np.arange(3), which)))
        return nest, (Launch(which, self.heads * sequences, self.columns),)

    def _uses(self, sequences: int, tokens: int, chunks: int) -> tuple[TensorUse, ...]:
        read = {flow.tensor for flow in self.flows if not flow.written}
        stored = {flow.tensor for flow in self.flows if flow.written}
        uses: dict[tuple[str, bool], TensorUse] = {}
        for flow in self.flows:
            each = flow.bytes * {"row": tokens, "chunk": chunks, "sequence": 1}[flow.per]
            shared = (self.columns if flow.by_columns else 1) * flow.by_heads
            whole = each * sequences * self.heads * self.columns // shared
            # A column of blocks touches a chunk together; heads that share it come a whole sequence of blocks later.
            apart = chunks if flow.per != "sequence" and not self.serial else 1
            groups = max(1, sequences * self.heads * self.columns // shared)
            together = flow.by_heads == 1
            pieces, sharers = (groups * apart, shared) if together else (groups, shared * apart)
            use = TensorUse(
                flow.tensor, whole // pieces, pieces, sharers, written=flow.written,
                in_place=flow.tensor in read & stored, all_bytes=whole if whole % pieces else 0,
            )  # fmt: skip
            known = uses.get((flow.tensor, flow.written))
            if known is None or use.unique_bytes > known.unique_bytes:
                uses[flow.tensor, flow.written] = use
        return tuple(uses.values())


def path_of(gpu: Gpu, rows: int, warps: int) -> Path:
    """What Triton makes of ``tl.dot`` (``AccelerateMatmul.cpp``): 64 rows and four warps for wgmma and tcgen05."""
    if rows < 64 or warps < 4:
        return "mma_sync"
    return "tcgen05" if gpu.features.tcgen05 else "wgmma" if gpu.features.wgmma else "mma_sync"
