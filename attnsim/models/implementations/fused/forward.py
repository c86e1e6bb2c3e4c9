"""FlashAttention forward kernels on any tile: one block per tile of query rows (and range of keys)."""

from __future__ import annotations

from functools import partial

import numpy as np

from attnsim.models.arrays import Ints
from attnsim.models.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.loops import LOOPS, Operations
from attnsim.models.implementations.fused.order import launch_order
from attnsim.models.implementations.fused.tile import FlashTile
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.nest import Nest, loop_nest
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.row_tiles import RowTiles, classes, row_tiles
from attnsim.models.schedule.schedule import Kernel, TensorUse
from attnsim.models.schedule.splits import UNCUT, Splits
from attnsim.models.schedule.widths import padded

BY_WIDTH = by_hand(0.5, "part of a block's latency at head_dim 128 that grows with head_dim, K's and V's alike")
"""Read off decode steps of more blocks than SMs and up to 32 keys, of which each wave costs the latency of a block:
from head_dim 64 to 256 it grows by 1.5 in FlashAttention-3 as vLLM and SGLang call it and in XQA."""


def flash_peak_bytes(w: Workload, partial: int = 0) -> int:
    """Inputs, outputs, log-sum-exp, the backward's dQ accumulator and gradients, and partial outputs."""
    e = w.element_bytes
    q = w.batch * w.heads_q * w.seq_q
    kv = w.batch * w.heads_kv * w.seq_kv
    inputs = (q + kv) * w.head_dim * e + kv * w.head_dim_v * e
    out = q * w.head_dim_v * w.output_bytes + 4 * q
    if "bwd" in w.directions:
        expanded = w.batch * w.heads_q * w.seq_kv * (w.head_dim + w.head_dim_v) * e if w.group > 1 else 0
        return 2 * (inputs + out) + q * padded(w.head_dim) * 4 + 4 * q + expanded
    return inputs + out + partial


def flash_forward(
    w: Workload,
    gpu: Gpu,
    tile: FlashTile,
    name: str = "flash_fwd",
    splits: Splits = UNCUT,
    lse: bool = True,
    fetch_clks: int = 0,
) -> Kernel:
    """The forward kernel of `w` on `tile`.

    Parameters
    ----------
    w : Workload
    gpu : Gpu
        Only for the size of the L2 sections in longest-first order.
    tile : FlashTile
    name : str
    splits : Splits, optional
        Split-KV: one block per row tile and range of keys, fp32 partial outputs.
    lse : bool
        Whether the log-sum-exp of each row is written, fp32.
    fetch_clks : int
        Latency of finding a block's tile, where a scheduler has to search for it.
    """
    w = w.bounded()
    pack = w.group if tile.pack_gqa else 1
    heads = w.batch * (w.heads_kv if tile.pack_gqa else w.heads_q)
    cut = partial(
        row_tiles, w, tile.rows, tile.keys, pack, edges_only=tile.edges_only, from_first_key=tile.from_first_key
    )
    shape = cut()
    parts = [cut(s, splits.count, of_seen=splits.of_seen) if splits.partial else shape for s in range(splits.count)]
    columns = [
        np.concatenate([getattr(part, column) for part in parts])
        for column in ("steps", "masked", "ragged_keys", "ragged_rows")
    ]
    (steps, masked, ragged_keys, ragged_rows), inverse = classes(*columns)
    ops = Operations(w, tile, shape, splits.partial, lse)
    body = LOOPS[tile.loop](ops, steps, masked, ragged_keys)
    segments, repeats = loop_nest(with_ends(ops, body, steps, ragged_rows, fetch_clks))
    e, d, dv = w.element_bytes, w.head_dim, w.head_dim_v
    seen, sharers = _shared_keys(w, shape, w.group // pack)
    uses = (
        TensorUse("Q", w.seq_q * d * e, w.batch * w.heads_q),
        TensorUse("K", seen * d * e, w.batch * w.heads_kv, sharers),
        TensorUse("V", seen * dv * e, w.batch * w.heads_kv, sharers),
        *_output_uses(w, splits, lse),
    )
    d_pad, dv_pad = tile.compiled(w)
    return Kernel(
        name=name,
        threads=tile.threads,
        registers_per_thread=tile.registers,
        shared_memory_bytes=tile.shared_memory_bytes(d_pad, dv_pad, e),
        segments=segments,
        repeats=repeats,
        launches=launch_order(w, gpu, tile, inverse, heads, splits.count),
        uses=uses,
        warpgroups=tile.warpgroups,
        path=tile.path,
        max_blocks_per_sm=tile.max_blocks_per_sm,
        persistent=tile.persistent,
        buffers=tile.buffers(d_pad, dv_pad, e),
        dtype=w.dtype,
        step="key tile",
        role="attention",
    )


def _shared_keys(w: Workload, whole: RowTiles, heads: int) -> tuple[int, float]:
    """Keys of a KV head that are touched, and how many blocks touch each.

    All row tiles do, times the `heads` that do not share their rows; of a window those around it.
    """
    if not w.mask.is_windowed:
        return w.seq_kv, float(len(whole.steps) * heads)
    visits = int(whole.steps.sum()) * whole.keys
    return whole.touched_keys, max(1.0, visits / max(1, whole.touched_keys)) * heads


def _output_uses(w: Workload, splits: Splits, lse: bool) -> tuple[TensorUse, ...]:
    rows = w.batch * w.heads_q
    if splits.partial:
        return (
            TensorUse("O partial", w.seq_q * w.head_dim_v * 4, rows * splits.count, written=True),
            TensorUse("LSE partial", w.seq_q * 4, rows * splits.count, written=True),
        )
    out = (TensorUse("O", w.seq_q * w.head_dim_v * w.output_bytes, rows, written=True),)
    return (*out, TensorUse("LSE", w.seq_q * 4, rows, written=True)) if lse else out


def with_ends(ops: Operations, body: Nest, steps: Ints, ragged_rows: Ints, fetch_clks: int = 0) -> Nest:
    """Put the prologue and epilogue, for full and for ragged row tiles, around a loop body.

    A prologue waits for page table, Q and K in turn, however many rows are valid. A part of the latency grows with the
    columns that a thread handles of Q, of the first K and of O.
    """
    columns = 1 + BY_WIDTH * (sum(ops.tile.compiled(ops.w)) / 256 - 1)
    fetch = (TileOp("delay", "fetch", clks=fetch_clks),) if fetch_clks else ()
    begin, end = [], []
    for ragged, tag, rows in ((0, "", ops.tile.rows), (1, " (last rows)", ops.shape.last_rows)):
        here = ragged_rows == ragged
        prologue = Segment(f"prologue{tag}", (*fetch, TileOp("delay", "block", share=columns), ops.load_q(rows)))
        latency = TileOp("delay", "block", share=rows / ops.tile.rows if ops.tile.by_row else 1.0)
        begin.append((prologue, here & (steps > 0)))
        end.append((Segment(f"epilogue{tag}", (latency, *ops.stores(rows))), here))
    return [*begin, *body, *end]
