"""FlashAttention backward: a preprocess kernel, one block per tile of keys, a conversion of dQ.

P is recomputed from the log-sum-exp, so five GEMMs replace the forward's two; dQ is summed with fp32 atomics
(``csrc/flash_attn/src/flash_bwd_kernel.h`` of Dao-AILab/flash-attention). On data-centre Blackwell the five accumulate
in tensor memory, dK and dV until the block ends (``flash_attn/cute/flash_bwd_sm100.py``).
"""

from __future__ import annotations

import numpy as np

from attnsim.models.by_hand import by_hand
from attnsim.models.implementations.fused.tile import BackwardTile
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.nest import Nest, loop_nest
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.row_tiles import classes, visible_queries
from attnsim.models.schedule.schedule import Kernel, Launch, TensorUse
from attnsim.models.schedule.widths import padded

KEYS_OUTSIDE, ROWS_OUTSIDE = ("S", "dP", "dV", "dK"), ("S", "dP", "dQ")
"""Products of a step of a pass for dK and dV, and of one for dQ."""
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

    def product(self, name: str, products: tuple[str, ...]) -> TileOp:
        """One of the `products` of a step, half of it on each warpgroup."""
        tile, width = self.tile, self.dv if name in ("dP", "dV") else self.d
        shared = tile.product_bytes(name, products, self.d, self.dv, self.e)
        return TileOp("mma", name, flops=2 * (tile.rows * tile.keys * width // 2), smem_bytes=shared)

    def probabilities(self) -> TileOp:
        """P from S; from tensor memory S is read in fp32 and P written there."""
        scores = self.tile.rows * self.tile.keys // 2
        return TileOp("vector", "P", scores=scores, exps=scores, tmem_bytes=self._tensor_memory(scores))

    def gradients(self) -> TileOp:
        """dS = P (dP - D)."""
        scores = self.tile.rows * self.tile.keys // 2
        return TileOp("vector", "dS", fp32=DS_INSTRUCTIONS * scores, tmem_bytes=self._tensor_memory(scores))

    def _tensor_memory(self, scores: int) -> int:
        return scores * (4 + self.e) if self.tile.path == "tcgen05" else 0

    def step(self, name: str, load: bool) -> Segment:
        """One tile of rows; `load`: whether the next one is fetched under way."""
        q, stats, do = self.loads(self.tile.rows)
        products = (*KEYS_OUTSIDE, "dQ") if self.dq else KEYS_OUTSIDE
        early = self.tile.stages_q > 1
        ops = (
            TileOp("wait", "Q"),
            TileOp("wait", "LSE, D"),
            TileOp("delay", "step"),
            *((q, stats) if load and early else ()),
            self.product("S", products),
            self.probabilities(),
            TileOp("wait", "dO"),
            self.product("dP", products),
            self.gradients(),
            self.product("dV", products),
            *((do,) if load else ()),
            *((self.product("dQ", products), self.add_to_dq()) if self.dq else ()),
            self.product("dK", products),
            *((q, stats) if load and not early else ()),
        )
        return Segment(name, ops)

    def add_to_dq(self) -> TileOp:
        """dS K, added to dQ with fp32 atomics; of a pair of blocks each adds half the rows."""
        return TileOp("store", "dQ accum", bytes=self.tile.rows * self.d * 4 // self.tile.pair)

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
