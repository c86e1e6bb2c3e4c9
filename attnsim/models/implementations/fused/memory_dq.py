"""Backward that sums dQ in memory: each tile of keys takes dQ of all rows that it visits through it.

``python/triton/ops/flash_attention.py`` of triton-lang/triton, as 2.1.0 ships it. A block for each head takes its keys
in turn, and at each visit reads dQ in fp32 and writes it back; or a block for each tile of keys (`sequence_parallel`)
writes a dQ of its own in 16 bits, and all of them are summed after. Nothing is fetched ahead (`num_stages=1`): a step
asks for Q and waits for it. Eight barriers a step keep the warps together, so
all wait for registers that were put aside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attnsim.arrays import Ints
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.backward import KEYS_OUTSIDE, BackwardOps
from attnsim.models.implementations.fused.building import in_step
from attnsim.models.implementations.fused.tile import BackwardTile
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.buffers import Buffers
from attnsim.models.schedule.instructions import LANES
from attnsim.models.schedule.nest import loop, loop_nest, once
from attnsim.models.schedule.operation import TileOp
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.row_tiles import classes, visible_queries
from attnsim.models.schedule.schedule import Kernel, Launch
from attnsim.models.schedule.uses import TensorUse

WARP_ROWS = 16
"""Rows of an output that a warp has of ``mma.sync.m16n8k16``."""
PRODUCTS = (*KEYS_OUTSIDE, "dQ")


@dataclass(frozen=True, slots=True)
class MemoryDqTile(BackwardTile):
    """A tile whose warps lie below one another over each output: each reads its rows of A, and all of B.

    So Triton lays out products of which one follows on another (`warpsPerTileV2` in
    ``lib/Dialect/TritonGPU/Transforms/AccelerateMatmul.cpp``).

    Parameters
    ----------
    parallel : bool
        Whether each tile of keys has a block and a dQ of its own, which it computes as the transpose of K^T dS^T; else
        a head has one block, and dS stays in registers for dS K.
    spilled, reloaded : int
        Bytes of registers that a thread puts aside in a step and takes back, where the L1 has no room for all of them.
    stack : int
        Bytes that a thread has for them.
    """

    parallel: bool = False
    spilled: int = 0
    reloaded: int = 0
    stack: int = 0

    def buffers(self, d: int, dv: int, element: int) -> Buffers:
        """Shared-memory buffers of a block and their bytes."""
        m, n = self.rows, self.keys
        return (
            ("Q, dO", m * (d + dv) * element),
            ("K, V", n * (d + dv) * element),
            ("P, dS, dQ", m * n * element),
        )

    def copies(self, product: str, d: int) -> int:
        """Warps that compute the same rows of a product, where it has fewer than the warps have together."""
        return max(1, self.warps * WARP_ROWS // d) if product == "dQ" and self.parallel else 1

    def product_bytes(self, product: str, products: tuple[str, ...], d: int, dv: int, element: int) -> int:
        """Bytes of shared memory that half a block moves for one of its `products` in a step."""
        m, n = self.rows, self.keys
        if product == "dQ":
            a, b = (d * self.copies(product, d), m) if self.parallel else (0, d)
            return (a + self.warps * b) * n * element // 2
        a, b, depth = {"S": (m, n, d), "dP": (m, n, dv), "dV": (n, dv, m), "dK": (n, d, m)}[product]
        return (a + self.warps * b) * depth * element // 2

    def __str__(self) -> str:
        form = "a dQ for each tile of keys" if self.parallel else "a block for each head"
        return f"{BackwardTile.__str__(self)}, {form}"


def memory_dq_backward(w: Workload, gpu: Gpu, tile: MemoryDqTile) -> tuple[Kernel, ...]:
    """The kernels of the backward pass of `w`, whose queries and keys are whole tiles."""
    heads = w.batch * w.heads_q
    out, dq = heads * w.seq_q * w.head_dim_v * w.element_bytes, heads * w.seq_q * w.head_dim * w.element_bytes
    name, size = dq_in_memory(w, tile)
    dots = [Access("O", out), Access("dO", out), Access("D", heads * w.seq_q * 4, True)]
    return (
        streaming("clear dQ", [Access(name, size, True)], elements=size // w.element_bytes, fp32_per_element=0),
        streaming("dot_do_o", dots, elements=out // w.element_bytes, fp32_per_element=3),
        _main(w, gpu, tile),
        streaming("sum dQ", [Access(name, size), Access("dQ", dq, True)], elements=size // w.element_bytes),
    )


def dq_in_memory(w: Workload, tile: MemoryDqTile) -> tuple[str, int]:
    """What dQ is called in memory until it is summed, and its bytes."""
    elements = w.batch * w.heads_q * w.seq_q * w.head_dim
    if tile.parallel:
        return "dQ parts", -(-w.seq_kv // tile.keys) * elements * w.element_bytes
    return "dQ accum", elements * 4


def _main(w: Workload, gpu: Gpu, tile: MemoryDqTile) -> Kernel:
    """A block for each head, or for each tile of keys, those of all heads before the next."""
    heads, d, dv = w.batch * w.heads_q, w.head_dim, w.head_dim_v
    first = np.arange(-(-w.seq_kv // tile.keys), dtype=np.int64) * tile.keys
    low, high = visible_queries(w, first, first + tile.keys - 1)
    steps = -(-high // tile.rows) - low // tile.rows
    (turns,), inverse = classes(steps) if tile.parallel else ((steps[None],), np.zeros(1, dtype=np.int64))
    ops = _Ops(w, tile, PRODUCTS, (d, dv))
    segments, repeats = loop_nest(
        [
            *once("prologue", (*ops.prologue(), ops.k.wait(), ops.v.wait()), turns > 0),
            *loop("row step", turns, ops.turn),
            *once("epilogue", ops.epilogue(), turns > 0),
        ]
    )
    buffers = tile.buffers(d, dv, w.element_bytes)
    blocks = heads * (len(steps) if tile.parallel else 1)
    return in_step(
        Kernel(
            name="flash_bwd_parts" if tile.parallel else "flash_bwd_turns",
            threads=tile.warps * 32,
            registers_per_thread=tile.registers,
            segments=segments,
            repeats=repeats,
            launches=(Launch(inverse, each=heads) if tile.parallel else Launch(inverse, heads),),
            uses=(*_uses(w, tile, steps), *_spills(tile, min(blocks, gpu.sm.count))),
            warpgroups=2,
            slowed_by_extra=True,
            path=tile.path,
            buffers=buffers,
            dtype=w.dtype,
            step="row tile",
        )
    )


def _uses(w: Workload, tile: MemoryDqTile, steps: Ints) -> tuple[TensorUse, ...]:
    """Rows are visited by so many tiles of keys in the mean: by one block, or by blocks a round of heads apart."""
    heads, e, d, dv = w.batch * w.heads_q, w.element_bytes, w.head_dim, w.head_dim_v
    visits = float(steps.sum()) / -(-w.seq_q // tile.rows)
    name, size = dq_in_memory(w, tile)
    once = [TensorUse("K", w.seq_kv * d * e, heads), TensorUse("V", w.seq_kv * dv * e, heads)]
    once += [TensorUse(f"d{use.tensor}", use.piece_bytes, heads, written=True) for use in once]
    again = (("Q", d * e), ("dO", dv * e), ("LSE, D", 8))
    if tile.parallel:
        round_bytes = heads * w.seq_q * (2 * d + dv) * e
        passed = [
            TensorUse(tensor, heads * w.seq_q * width, 1, heads * visits, apart_bytes=round_bytes, rounds=visits)
            for tensor, width in again
        ]
        return (*once, *passed, TensorUse(name, size // heads, heads, written=True))
    passed = [TensorUse(tensor, w.seq_q * width, heads, 1.0, visits) for tensor, width in again]
    summed = [TensorUse(name, size // heads, heads, 1.0, visits, written=written) for written in (False, True)]
    return (*once, *passed, *summed)


def _spills(tile: MemoryDqTile, running: int) -> tuple[TensorUse, ...]:
    """Registers put aside: each running block's stack, touched again in every step."""
    if not tile.stack:
        return ()
    size = tile.stack * tile.warps * LANES
    return tuple(TensorUse("spills", size, running, written=one, just_written=True) for one in (False, True))


class _Ops(BackwardOps):
    """Tile operations of the main kernel, in the order of its machine code."""

    tile: MemoryDqTile

    def spills(self) -> tuple[tuple[TileOp, ...], tuple[TileOp, ...], tuple[TileOp, ...]]:
        """Taking registers back, waiting for them, and putting others aside."""
        tile, threads = self.tile, self.tile.warps * LANES
        if not tile.stack:
            return (), (), ()
        load = TileOp("load", "spills", bytes=tile.reloaded * threads)
        return (load,), (TileOp("wait", "spills"),), (TileOp("store", "spills", bytes=tile.spilled * threads),)

    def turn(self) -> Iterator[TileOp]:
        """One tile of rows: statistics and dO are asked for as Q arrives, dQ as dK is done."""
        q, *others = self.loads(self.tile.rows)
        q_arrived, *statistics_arrived, do_arrived = self.waits()
        tensor, wide = ("dQ parts", self.e) if self.tile.parallel else ("dQ accum", 4)
        size = self.tile.rows * self.w.head_dim * wide
        take, taken, put = self.spills()
        yield from (q, q_arrived, TileOp("delay", "step"), *others)
        yield from (self.product("S"), *statistics_arrived, self.probabilities())
        yield from (do_arrived, self.product("dV"), self.product("dP"))
        yield from (*take, *taken, self.gradients(), *put, self.product("dK"))
        if not self.tile.parallel:
            yield TileOp("load", tensor, bytes=size)
        yield self.product("dQ")
        if not self.tile.parallel:
            yield TileOp("wait", tensor)
        yield TileOp("store", tensor, bytes=size)
