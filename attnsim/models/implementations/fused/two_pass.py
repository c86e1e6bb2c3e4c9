"""Backward without atomics: dK and dV with keys outside, then dQ with rows outside.

S and dP are computed in both passes: seven GEMMs in place of five, no fp32 accumulator of dQ, the same sums at every
run (``_attn_bwd`` of triton-lang/triton ``python/tutorials/06-fused-attention.py``, there one pass after the other
within a block; here two kernels, so that each has the grid of its own outer loop).
"""

from __future__ import annotations

import numpy as np

from attnsim.models.implementations.fused.backward import (
    ROWS_OUTSIDE,
    BackwardOps,
    keys_outside,
    shared_rows,
    sums_of_groups,
)
from attnsim.models.implementations.fused.loops import sizes
from attnsim.models.implementations.fused.order import ABSENT_CLKS, grid_of_heads
from attnsim.models.implementations.fused.tile import BackwardTile
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.nest import Nest, loop_nest
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.row_tiles import classes, row_tiles
from attnsim.models.schedule.schedule import Kernel
from attnsim.models.schedule.widths import padded


def two_pass_backward(w: Workload, tile: BackwardTile) -> tuple[Kernel, ...]:
    """The kernels of the backward pass of `w`."""
    rows = w.queries * w.heads_q
    out = rows * w.head_dim_v * w.element_bytes
    dots = streaming(
        "dot_do_o",
        [Access("O", out), Access("dO", out), Access("D", rows * 4, True)],
        elements=out // w.element_bytes,
        fp32_per_element=3,
    )
    return (dots, keys_outside(w, tile, dq=False), rows_outside(w, tile), *sums_of_groups(w))


def rows_outside(w: Workload, tile: BackwardTile) -> Kernel:
    """A block for each tile of rows: Q, dO and dQ stay, visible tiles of K and V pass, the last first.

    Of sequences of different lengths the grid has as many for each as the longest has, as that of the keys.
    """
    band = row_tiles(w, tile.rows, tile.keys)
    tiles = np.bincount(band.part)
    columns, absent = [band.steps, band.missing_rows, band.missing_keys], tiles.min() < tiles.max()
    if absent:
        columns = [np.append(column, last) for column, last in zip(columns, (0, tile.rows, 0), strict=True)]
    (steps, missing_rows, missing_keys), inverse = classes(*columns)
    blocks = [one[None] for one in np.split(inverse[: len(band.part)], np.cumsum(tiles)[:-1])]
    d, dv = padded(w.head_dim), padded(w.head_dim_v)
    ops = BackwardOps(w, tile, ROWS_OUTSIDE)
    nest: Nest = []
    present = [n for n in sizes(missing_rows) if n < tile.rows]
    for fewer in present:
        nest.append((_prologue(ops, tile.rows - fewer, fewer), (missing_rows == fewer) & (steps > 0)))
    for fewer in sizes(missing_keys):
        nest.append((_first_keys(ops, tile.keys - fewer, fewer), (missing_keys == fewer) & (steps > 0)))
    nest.append((_step(ops, "key step", True), np.maximum(steps - 1, 0)))
    nest.append((_step(ops, "last key step", False), steps > 0))
    for fewer in present:
        nest.append((_epilogue(w, tile.rows - fewer, fewer), missing_rows == fewer))
    nest.append((Segment("no rows", (TileOp("delay", "exit", clks=ABSENT_CLKS),)), missing_rows == tile.rows))
    segments, repeats = loop_nest(nest)
    e, queries, keys = w.element_bytes, [one.queries for one in w.parts], [one.keys for one in w.parts]
    sharers, once = (tiles * w.group).tolist(), [1] * len(w.parts)
    buffers = (
        ("Q, dO", tile.rows * (d + dv) * e),
        ("K, V", tile.keys * (d + dv) * e),
        ("dS", tile.rows * tile.keys * e),
    )
    return Kernel(
        name="flash_bwd_dq",
        threads=tile.warps * 32 + tile.extra_threads,
        registers_per_thread=tile.registers,
        segments=segments,
        repeats=repeats,
        launches=grid_of_heads(w, blocks, w.heads_q, int(inverse[-1]) if absent else None),
        uses=(
            shared_rows("K", w.head_dim * e, w.heads_kv, keys, sharers, w),
            shared_rows("V", w.head_dim_v * e, w.heads_kv, keys, sharers, w),
            shared_rows("Q", w.head_dim * e, w.heads_q, queries, once, w),
            shared_rows("dO", w.head_dim_v * e, w.heads_q, queries, once, w),
            shared_rows("LSE, D", 8, w.heads_q, queries, once, w),
            shared_rows("dQ", w.head_dim * e, w.heads_q, queries, once, w, written=True),
        ),
        warpgroups=2,
        slowed_by_extra=True,
        path=tile.path,
        buffers=buffers,
        dtype=w.dtype,
        step="key tile",
    )


def _prologue(ops: BackwardOps, rows: int, ragged: int) -> Segment:
    name = f"prologue{' (last rows)' if ragged else ''}"
    return Segment(name, (TileOp("delay", "block"), *ops.loads(rows)))


def _keys(ops: BackwardOps, keys: int) -> tuple[TileOp, TileOp]:
    w = ops.w
    return (
        TileOp("load", "K", bytes=keys * w.head_dim * ops.e),
        TileOp("load", "V", bytes=keys * w.head_dim_v * ops.e),
    )


def _first_keys(ops: BackwardOps, keys: int, ragged: int) -> Segment:
    name = f"first keys{' (shorter)' if ragged else ''}"
    waits = (TileOp("wait", "Q"), TileOp("wait", "LSE, D"), TileOp("wait", "dO"))
    return Segment(name, (*_keys(ops, keys), *waits))


def _step(ops: BackwardOps, name: str, more: bool) -> Segment:
    k, v = _keys(ops, ops.tile.keys)
    return Segment(
        name,
        (
            TileOp("wait", "K"),
            TileOp("delay", "step"),
            ops.product("S"),
            ops.probabilities(),
            TileOp("wait", "V"),
            ops.product("dP"),
            *((v,) if more else ()),
            ops.gradients(),
            ops.product("dQ"),
            *((k,) if more else ()),
        ),
    )


def _epilogue(w: Workload, rows: int, ragged: int) -> Segment:
    return Segment(
        f"epilogue{' (last rows)' if ragged else ''}",
        (TileOp("delay", "block"), TileOp("store", "dQ", bytes=rows * w.head_dim * w.element_bytes)),
    )
