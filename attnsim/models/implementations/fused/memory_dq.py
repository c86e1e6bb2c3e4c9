"""Backward that accumulates dQ in memory: each tile of keys updates dQ of all rows that it visits.

``python/triton/ops/flash_attention.py`` of triton-lang/triton, as shipped in 2.1.0. A block for each head processes its
tiles of keys in turn, and at each visit reads dQ in fp32 and writes it back. Alternatively (`sequence_parallel`) a
block for each tile of keys writes its own dQ in 16 bits, and all of these are summed later. There is no prefetch
(`num_stages=1`): a step requests Q and waits for it. Eight barriers per step keep the warps in lockstep, so all wait
for spilled registers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.backward import KEYS_OUTSIDE, BackwardOps, axes_of, dot_do_o
from attnsim.models.implementations.fused.building import in_step
from attnsim.models.implementations.fused.tile import BackwardTile
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Seen, Tensor, uses_of
from attnsim.models.schedule.instructions import LANES
from attnsim.models.schedule.operation import STEP, TileOp, loop, once
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.row_tiles import classes, visible_queries
from attnsim.models.schedule.schedule import Buffers, Kernel, Launch

WARP_ROWS = 16
"""Rows of an output per warp with ``mma.sync.m16n8k16``."""


@dataclass(frozen=True, slots=True)
class MemoryDqTile(BackwardTile):
    """A tile whose warps are stacked along the rows of each output: each reads its rows of A, and all of B.

    Triton uses this layout for dependent products (`warpsPerTileV2` in
    ``lib/Dialect/TritonGPU/Transforms/AccelerateMatmul.cpp``).

    Parameters
    ----------
    parallel : bool
        Whether each tile of keys has a block and its own dQ, computed as the transpose of K^T dS^T. Otherwise a head
        has one block, and dS stays in registers for dS K.
    spilled, reloaded : int
        Bytes of registers that a thread spills and reloads per step, if they exceed the L1.
    stack : int
        Bytes of a thread's stack for them.
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
        """Warps that compute the same rows of a product, if it has fewer rows than all warps together."""
        return max(1, self.warps * WARP_ROWS // d) if product == "dQ" and self.parallel else 1

    def product_bytes(self, product: str, products: tuple[str, ...], d: int, dv: int, element: int) -> int:
        """Bytes of shared memory that half a block moves for one of its `products` per step."""
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
    """Kernels of the backward pass of `w`, whose queries and keys are whole tiles."""
    (name, size), dq = dq_in_memory(w, tile), w.batch * w.heads_q * w.seq_q * w.head_dim * w.element_bytes
    return (
        streaming("clear dQ", [Access(name, size, True)], elements=size // w.element_bytes, fp32_per_element=0),
        dot_do_o(w),
        _main(w, gpu, tile),
        streaming("sum dQ", [Access(name, size), Access("dQ", dq, True)], elements=size // w.element_bytes),
    )


def dq_in_memory(w: Workload, tile: MemoryDqTile) -> tuple[str, int]:
    """Name of dQ in memory before it is summed, and its bytes."""
    elements = w.batch * w.heads_q * w.seq_q * w.head_dim
    if tile.parallel:
        return "dQ parts", -(-w.seq_kv // tile.keys) * elements * w.element_bytes
    return "dQ accum", elements * 4


def _main(w: Workload, gpu: Gpu, tile: MemoryDqTile) -> Kernel:
    """Main kernel: a block for each head, or for each tile of keys, those of all heads before the next tile's."""
    axes, heads, d, dv, e = axes_of(w, tile), w.batch * w.heads_q, w.head_dim, w.head_dim_v, w.element_bytes
    first = np.arange(axes["j"].tiles, dtype=np.int64) * tile.keys
    low, high = visible_queries(w, first, first + tile.keys - 1)
    steps = -(-high // tile.rows) - low // tile.rows
    (turns,), inverse = classes(steps) if tile.parallel else ((steps[None],), np.zeros(1, dtype=np.int64))
    blocks = heads * (len(steps) if tile.parallel else 1)
    axes |= {"resident": Axis(min(blocks, gpu.sm.count)), "byte": Axis(tile.stack)}
    ops, visits = BackwardOps(w, tile, (*KEYS_OUTSIDE, "dQ"), (d, dv)), float(steps.sum()) / axes["i"].tiles
    passed = [ops.q, ops.do, *ops.statistics]
    if tile.parallel:
        passed = [replace(tensor, seen=Seen("j", w.seq_q, max(1.0, visits))) for tensor in passed]
        sums = Tensor("dQ parts", "b h g i j", tile.rows * d * e, written=True, by_tile=True)
        read_back = []
    else:
        passed = [replace(tensor, times=visits) for tensor in passed]
        sums = replace(ops.sums, times=visits)
        read_back = [replace(sums, written=False)]
    spills = Tensor("spills", "resident byte", tile.warps * LANES, just_written=True)
    put_aside = [spills, replace(spills, written=True)] if tile.stack else []
    nest = [
        *once("prologue", (*ops.prologue(), ops.k.wait(), ops.v.wait()), turns > 0),
        *loop("row step", turns, lambda: _turn(ops, tile, sums, spills)),
        *once("epilogue", ops.epilogue(), turns > 0),
    ]
    tensors = (ops.k, ops.v, *ops.outputs, *passed, *read_back, sums, *put_aside)
    return in_step(
        Kernel.of(
            nest,
            name="flash_bwd_parts" if tile.parallel else "flash_bwd_turns",
            threads=tile.warps * 32,
            registers_per_thread=tile.registers,
            launches=(Launch(inverse, each=heads) if tile.parallel else Launch(inverse, heads),),
            uses=uses_of(tensors, axes, "j b h g" if tile.parallel else "b h g"),
            warpgroups=2,
            is_backward=True,
            path=tile.path,
            buffers=tile.buffers(d, dv, e),
            dtype=w.dtype,
            step="row tile",
        )
    )


def _turn(ops: BackwardOps, tile: MemoryDqTile, sums: Tensor, spills: Tensor) -> Iterator[TileOp]:
    """One tile of rows: statistics and dO are requested when Q has arrived, dQ when dK is done."""
    q, *others = ops.loads(tile.rows)
    q_arrived, *statistics_arrived, do_arrived = ops.waits()
    yield from (q, q_arrived, STEP, *others)
    yield from (ops.product("S"), *statistics_arrived, ops.probabilities())
    yield from (do_arrived, ops.product("dV"), ops.product("dP"))
    if tile.stack:
        yield from (spills.load(tile.reloaded), spills.wait())
    yield ops.gradients()
    if tile.stack:
        yield spills.store(tile.spilled)
    yield ops.product("dK")
    if not tile.parallel:
        yield sums.load(tile.rows)
    yield ops.product("dQ")
    if not tile.parallel:
        yield sums.wait()
    yield sums.store(1 if sums.by_tile else tile.rows)
