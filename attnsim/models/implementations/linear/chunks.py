"""Kernels that process sequences in chunks: a block per chunk, or a block that walks all chunks of its head in order.

A block's transfers are declared as tensors along axes, its arithmetic per chunk as :class:`Work`. The last chunk of a
sequence transfers its rows only, but multiplies whole tiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.schedule.axes import Axis, Tensor, declared
from attnsim.models.schedule.operation import Nest, TileOp, loop, once
from attnsim.models.schedule.schedule import Kernel, Path

LINK_CLKS = by_hand(30, "clocks of one link of a chain of dependent instructions, such as a row of a substitution")
REGISTERS = by_hand(128, "registers a thread of a compiled kernel whose tiles are small: Triton does not print them")


@dataclass(frozen=True, slots=True)
class Work:
    """Arithmetic of a block for a chunk.

    Parameters
    ----------
    products : tuple of (int, int, int)
        m, n, k of each product of tiles, of 16-bit operands.
    exps, fp32 : int
        Exponentials, and FP32-lane instructions.
    links : int
        Dependent instructions whose latency nothing hides: rows of a substitution, tokens of a recurrence.
    """

    products: tuple[tuple[int, int, int], ...] = ()
    exps: int = 0
    fp32: int = 0
    links: int = 0

    @property
    def flops(self) -> int:
        """FLOPs of the products."""
        return sum(2 * m * n * k for m, n, k in self.products)

    def operations(self, element_bytes: int) -> tuple[TileOp, ...]:
        """Tile operations; both operands of each product are read from shared memory once."""
        out = []
        for (m, n, k), same in groupby(self.products):
            times = len(list(same))
            name = f"{m} x {n} x {k}" if times == 1 else f"{times} of {m} x {n} x {k}"
            operands = (m + n) * k * element_bytes
            out.append(TileOp("mma", name, flops=times * 2 * m * n * k, smem_bytes=times * operands))
        if self.exps or self.fp32:
            out.append(TileOp("vector", "gates", exps=self.exps, fp32=self.fp32))
        chain = [TileOp("delay", "chain", clks=self.links * LINK_CLKS)] if self.links else []
        return (*out, *chain, TileOp("delay", waits="step"))


@dataclass(frozen=True, slots=True)
class Chunks:
    """A kernel over chunks.

    Its axes are the sequences ``b``, the heads of Q and K ``h``, the heads of V that share one of them ``g``, the
    tokens ``c`` in chunks, and its columns ``x``. A tensor along ``c`` moves with each chunk. A tensor along ``b``
    without ``c`` is read before the first chunk of a sequence or written after the last. A tensor along neither is read
    by every block.

    Parameters
    ----------
    chunk : int
        Rows of a chunk.
    heads : (int, int)
        Heads of Q and K, and neighbouring heads that share one: blocks side by side on a sequence's chunk.
    columns : int or mapping of str to int
        Blocks that share the columns of a head's output; several axes by name, slowest first.
    serial : bool
        Whether a block walks all chunks of its sequence, with the state in registers.
    warps, registers, shared_memory_bytes : int
        Resources of a block.
    path : str
        Instructions of the products.
    ahead : bool
        Whether a serial block prefetches the next chunk before it computes one.
    in_flight_bytes : int
        Most bytes of a tensor that a block has in flight; 0: a chunk's.
    alone : bool
        Whether threads are independent, so that a block has no prologue and no epilogue.
    row_tiles : int
        Neighbouring chunks that are the row tiles of a larger chunk, along ``C``.
    """

    name: str
    chunk: int
    heads: tuple[int, int]
    tensors: tuple[Tensor, ...]
    work: Work
    columns: int | Mapping[str, int] = 1
    serial: bool = False
    warps: int = 4
    registers: int = REGISTERS
    shared_memory_bytes: int = 0
    path: Path = "simt"
    ahead: bool = True
    in_flight_bytes: int = 0
    alone: bool = False
    row_tiles: int = 1

    def kernel(self, sequences: int, tokens: int, dtype: str, element_bytes: int = 2) -> Kernel:
        """The kernel for `sequences` sequences of equal length."""
        columns = {"x": self.columns} if isinstance(self.columns, int) else self.columns
        axes = {
            "b": Axis(sequences),
            "h": Axis(self.heads[0]),
            "g": Axis(self.heads[1]),
            "c": Axis(tokens, self.chunk, cuts="C"),
            "C": Axis(tokens, self.chunk * self.row_tiles),
            **{name: Axis(n) for name, n in columns.items()},
        }
        c, work = axes["c"], self.work.operations(element_bytes)
        at = np.arange(c.tiles)
        facts = {"first": at == 0, "last": at == c.tiles - 1, "missing": c.missing}
        if self.serial:
            facts = {"missing": c.missing[-1:]}
        return declared(
            self.name,
            axes,
            " ".join(["b h g", *["c"][self.serial :], *columns]),
            self._shared(),
            facts,
            partial(self._walked, c.tiles, work) if self.serial else partial(self._spread, work),
            each=1 if self.serial else math.prod(columns.values()),
            threads=32 * self.warps,
            registers_per_thread=self.registers,
            path=self.path,
            buffers=(("tiles", self.shared_memory_bytes),) if self.shared_memory_bytes else (),
            dtype=dtype,
            in_flight_bytes=self.in_flight_bytes,
            step="chunk",
        )

    def _shared(self) -> list[Tensor]:
        """The tensors; those that are both read and written are marked as in place."""
        both = {one.name for one in self.tensors if one.written} & {one.name for one in self.tensors if not one.written}
        return [replace(one, in_place=one.name in both) for one in self.tensors]

    @property
    def _ends(self) -> list[Tensor]:
        """Tensors that are transferred once per sequence."""
        return [one for one in self.tensors if "b" in one.axes.split() and not _along_chunks(one)]

    def _moved(self, written: bool, missing: int = 0, ends: bool = False) -> tuple[TileOp, ...]:
        """Loads or stores of a chunk that lacks `missing` rows; with `ends`, those of a whole sequence."""
        rows = self.chunk - missing
        return tuple(
            (one.store if written else one.load)(1 if ends or one.by_tile else rows)
            for one in self.tensors
            if one.written == written and (one in self._ends if ends else _along_chunks(one))
        )

    @property
    def _begin(self) -> tuple[TileOp, ...]:
        """Beginning of a block: loads that every block makes."""
        constants = (one.load() for one in self.tensors if "b" not in one.axes.split())
        return (*([] if self.alone else [TileOp("delay", waits="block")]), *constants)

    @property
    def _end(self) -> tuple[TileOp, ...]:
        return () if self.alone else (TileOp("delay", waits="block"),)

    def _walked(self, chunks: int, work: tuple[TileOp, ...], missing: Ints) -> Nest:
        """A block that walks all chunks of its sequence in order: the state, then each chunk, the next in flight."""
        short = int(missing[0])
        whole_chunks = chunks - (short > 0)

        def turn(load_next: bool = False, next_whole: bool = True, whole: bool = True) -> Iterator[TileOp]:
            loads = self._moved(False, 0 if whole else short)
            yield from () if self.ahead else loads
            yield from waits(loads)
            yield from self._moved(False, 0 if next_whole else short) if load_next else ()
            yield from (*work, *self._moved(True, 0 if whole else short))

        flags: dict[str, Any] = {"load_next": chunks - 1} if self.ahead else {}
        if short:
            flags |= {"next_whole": whole_chunks - 1} if self.ahead else {}
            flags |= {"whole": whole_chunks}
        state = (*self._begin, *self._moved(False, ends=True))
        first = self._moved(False, 0 if whole_chunks else short) if self.ahead else ()
        return [
            *once("state", (*state, *waits(state))),
            *once("first chunk's loads", first, int(self.ahead)),
            *loop("chunk", np.array([chunks]), turn, **flags),
            *once("end", (*self._moved(True, ends=True), *self._end)),
        ]

    def _spread(self, work: tuple[TileOp, ...], first: Ints, last: Ints, missing: Ints) -> Nest:
        """A block for each chunk: at the beginning of a sequence, within it, or at its end."""
        nest: Nest = []
        for number, (begins, ends, short) in enumerate(
            zip(first.tolist(), last.tolist(), missing.tolist(), strict=True)
        ):
            before = self._moved(False, ends=True) if begins else ()
            after = self._moved(True, ends=True) if ends else ()
            loads = (*before, *self._moved(False, short))
            ops = (*self._begin, *loads, *waits((*self._begin, *loads)), *work, *self._moved(True, short))
            name = "last chunk" if ends else "first chunk" if begins else "chunk"
            nest += once(name, (*ops, *after, *self._end), np.arange(len(first)) == number)
        return nest


def _along_chunks(tensor: Tensor) -> bool:
    return not {"c", "C"}.isdisjoint(tensor.axes.split())


def waits(ops: Iterable[TileOp]) -> list[TileOp]:
    """A wait for each load."""
    return [TileOp("wait", op.tensor) for op in ops if op.kind == "load"]


def path_of(gpu: Gpu, rows: int, warps: int) -> Path:
    """Instructions of ``tl.dot`` in Triton (``AccelerateMatmul.cpp``): wgmma or tcgen05 from 64 rows and four warps."""
    if rows < 64 or warps < 4:
        return "mma_sync"
    return "tcgen05" if gpu.features.tcgen05 else "wgmma" if gpu.features.wgmma else "mma_sync"
