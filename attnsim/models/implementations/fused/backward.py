"""FlashAttention backward: a preprocess kernel, one block per tile of keys, a conversion of dQ.

P is recomputed from the log-sum-exp, so five GEMMs replace the forward's two; dQ is summed with fp32 atomics
(``csrc/flash_attn/src/flash_bwd_kernel.h`` of Dao-AILab/flash-attention).
"""

from __future__ import annotations

import numpy as np

from attnsim.models.by_hand import by_hand
from attnsim.models.implementations.fused.tile import BackwardTile
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.nest import Nest, loop_nest
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.row_tiles import classes, visible_queries
from attnsim.models.schedule.schedule import Kernel, Launch, Segment, TensorUse, TileOp
from attnsim.models.schedule.widths import padded

DS_INSTRUCTIONS = by_hand(4, "FP32-lane instructions per score of dS = P (dP - D) and its conversion")


def flash_backward(w: Workload, tile: BackwardTile) -> tuple[Kernel, ...]:
    """The kernels of the backward pass of `w`."""
    heads = w.batch * w.heads_q
    padded_rows = -(-w.seq_q // 128) * 128
    accumulator = heads * padded_rows * padded(w.head_dim) * 4
    out = heads * w.seq_q * w.head_dim_v * w.element_bytes
    rows = heads * w.seq_q * 4
    dq = heads * w.seq_q * w.head_dim * w.element_bytes
    return (
        streaming(
            "dot_do_o",
            [
                Access("O", out),
                Access("dO", out),
                Access("D", rows, True),
                Access("dQ accum", accumulator, True),
            ],
            elements=out // w.element_bytes,
            fp32_per_element=3,
        ),
        keys_outside(w, tile),
        streaming(
            "convert_dQ",
            [Access("dQ accum", accumulator), Access("dQ", dq, True)],
            elements=accumulator // 4,
            fp32_per_element=2,
        ),
        *sums_of_groups(w),
    )


def sums_of_groups(w: Workload) -> list[Kernel]:
    """Of grouped heads, the kernels that add up dK and dV over the query heads of a group."""
    if w.group == 1:
        return []
    kernels = []
    for name, width in (("dK", w.head_dim), ("dV", w.head_dim_v)):
        summed = w.batch * w.heads_kv * w.seq_kv * width * w.element_bytes
        kernels.append(
            streaming(
                f"sum {name}",
                [Access(f"{name} expanded", summed * w.group), Access(name, summed, True)],
                elements=summed * w.group // w.element_bytes,
            )
        )
    return kernels


def keys_outside(w: Workload, tile: BackwardTile, *, dq: bool = True) -> Kernel:
    """The main kernel, a block for each tile of keys; `dq`: whether it also adds to dQ."""
    d, dv = padded(w.head_dim), padded(w.head_dim_v)
    key_tiles = -(-w.seq_kv // tile.keys)
    first = np.arange(key_tiles, dtype=np.int64) * tile.keys
    last = np.minimum(first + tile.keys, w.seq_kv) - 1
    low, high = visible_queries(w, first, last)
    start, stop = low // tile.rows, -(-high // tile.rows)
    row_tiles = -(-w.seq_q // tile.rows)
    last_rows = w.seq_q - (row_tiles - 1) * tile.rows
    last_keys = w.seq_kv - (key_tiles - 1) * tile.keys
    steps = np.maximum(stop - start, 0)
    ragged_rows = (steps > 0) & (stop == row_tiles) & (last_rows < tile.rows)
    ragged_keys = (np.arange(key_tiles) == key_tiles - 1) & (last_keys < tile.keys)
    (steps, ragged_rows, ragged_keys), inverse = classes(steps, ragged_rows, ragged_keys)
    ops = BackwardOps(w, tile, d, dv, dq)
    nest: Nest = []
    for ragged in (0, 1):
        keys = last_keys if ragged else tile.keys
        nest.append((ops.prologue(keys, ragged), (ragged_keys == ragged) & (steps > 0)))
    for ragged in (0, 1):
        rows = last_rows if ragged else tile.rows
        nest.append((ops.first_loads(rows, ragged), (ragged_rows == ragged) & (steps > 0)))
    nest.append((ops.step("row step", True), np.maximum(steps - 1, 0)))
    nest.append((ops.step("last row step", False), steps > 0))
    for ragged in (0, 1):
        keys = last_keys if ragged else tile.keys
        nest.append((ops.epilogue(keys, ragged), ragged_keys == ragged))
    segments, repeats = loop_nest(nest)
    e, heads, kv = w.element_bytes, w.batch * w.heads_q, w.batch * w.heads_kv
    expanded = " expanded" if w.group > 1 else ""
    buffers = tile.buffers(d, dv, e)
    uses = (
        TensorUse("K", w.seq_kv * w.head_dim * e, kv, w.group),
        TensorUse("V", w.seq_kv * w.head_dim_v * e, kv, w.group),
        TensorUse("Q", w.seq_q * w.head_dim * e, heads, key_tiles),
        TensorUse("dO", w.seq_q * w.head_dim_v * e, heads, key_tiles),
        TensorUse("LSE, D", w.seq_q * 8, heads, key_tiles),
        *([TensorUse("dQ accum", -(-w.seq_q // 128) * 128 * d * 4, heads, key_tiles, written=True)] if dq else []),
        TensorUse(f"dK{expanded}", w.seq_kv * w.head_dim * e, heads, written=True),
        TensorUse(f"dV{expanded}", w.seq_kv * w.head_dim_v * e, heads, written=True),
    )
    return Kernel(
        name="flash_bwd" if dq else "flash_bwd_dkdv",
        threads=tile.warps * 32 + tile.extra_threads,
        registers_per_thread=tile.registers,
        shared_memory_bytes=sum(size for _, size in buffers),
        segments=segments,
        repeats=repeats,
        launches=(Launch(inverse, heads),),
        uses=uses,
        warpgroups=2,
        slowed_by_extra=True,
        path=tile.path,
        buffers=buffers,
        dtype=w.dtype,
        step="row tile",
    )


class BackwardOps:
    """Tile operations of the main backward kernel, with or without its share of dQ."""

    def __init__(self, w: Workload, tile: BackwardTile, d: int, dv: int, dq: bool = True) -> None:
        self.w, self.tile, self.d, self.dv, self.dq = w, tile, d, dv, dq
        self.e = w.element_bytes
        self.expanded = " expanded" if w.group > 1 else ""

    def prologue(self, keys: int, ragged: int) -> Segment:
        """K and V of the block."""
        w = self.w
        return Segment(
            f"prologue{' (last keys)' if ragged else ''}",
            (
                TileOp("delay", "block"),
                TileOp("load", "K", bytes=keys * w.head_dim * self.e),
                TileOp("load", "V", bytes=keys * w.head_dim_v * self.e),
            ),
        )

    def loads(self, rows: int) -> tuple[TileOp, TileOp, TileOp]:
        """Q, the row statistics and dO of a tile of rows."""
        w = self.w
        return (
            TileOp("load", "Q", bytes=rows * w.head_dim * self.e),
            TileOp("load", "LSE, D", bytes=rows * 8),
            TileOp("load", "dO", bytes=rows * w.head_dim_v * self.e),
        )

    def first_loads(self, rows: int, ragged: int) -> Segment:
        """The first tile of rows, the last of the sequence and so perhaps a shorter one."""
        name = f"first rows{' (shorter)' if ragged else ''}"
        return Segment(name, (*self.loads(rows), TileOp("wait", "K"), TileOp("wait", "V")))

    def product(self, name: str, shared: int, depth: int, columns: int) -> TileOp:
        """A GEMM of the tile, half of it on each warpgroup."""
        half = self.tile.rows * self.tile.keys * columns // 2
        return TileOp("mma", name, flops=2 * half, smem_bytes=shared * depth * self.e)

    def reads(self, a: int, b: int) -> int:
        """Rows of A and columns of B that half a block reads."""
        return self.tile.operands_read(a, b) // 2

    def step(self, name: str, load: bool) -> Segment:
        """One tile of rows; `load`: whether the next one is fetched under way."""
        m, n, d, dv = self.tile.rows, self.tile.keys, self.d, self.dv
        scores = m * n // 2
        q, stats, do = self.loads(m)
        ops = (
            TileOp("wait", "Q"),
            TileOp("wait", "LSE, D"),
            TileOp("delay", "step"),
            *((q, stats) if load and self.tile.stages_q > 1 else ()),
            self.product("S", self.reads(m, n), d, d),
            TileOp("vector", "P", scores=scores, exps=scores),
            TileOp("wait", "dO"),
            self.product("dP", self.reads(m, n), dv, dv),
            TileOp("vector", "dS", fp32=DS_INSTRUCTIONS * scores),
            self.product("dV", self.reads(n, dv), m, dv),
            *((do,) if load else ()),
            *self.share_of_dq(),
            self.product("dK", self.reads(n, d), m, d),
            *((q, stats) if load and self.tile.stages_q == 1 else ()),
        )
        return Segment(name, ops)

    def share_of_dq(self) -> tuple[TileOp, ...]:
        """dS K, added to dQ with fp32 atomics."""
        if not self.dq:
            return ()
        m, n, d = self.tile.rows, self.tile.keys, self.d
        return (self.product("dQ", self.reads(m, d), n, d), TileOp("store", "dQ accum", bytes=m * d * 4))

    def epilogue(self, keys: int, ragged: int) -> Segment:
        """The block's dK and dV."""
        w = self.w
        return Segment(
            f"epilogue{' (last keys)' if ragged else ''}",
            (
                TileOp("delay", "block"),
                TileOp("store", f"dK{self.expanded}", bytes=keys * w.head_dim * self.e),
                TileOp("store", f"dV{self.expanded}", bytes=keys * w.head_dim_v * self.e),
            ),
        )
