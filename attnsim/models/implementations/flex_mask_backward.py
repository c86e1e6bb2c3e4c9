"""FlexAttention's backward over a BlockMask: one grid, whose first blocks are for dK and dV and the others for dQ.

``torch/_inductor/kernel/flex_attention.py`` of PyTorch 2.7, `flex_attention_backward`: of each head of K and V the
blocks of keys walk the queries that see them, the heads of a group in turn (`q_num_blocks`, `full_q_num_blocks`), then
the blocks of queries of each of its heads walk the keys that they see. Those seen in part come first and compute the
mask's function. Its tiles are those of the backward without a BlockMask, for dQ with rows and keys exchanged
(`BLOCK_M2`, `BLOCK_N2`). Every step looks up its block and the one after.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnsim.arrays import Ints
from attnsim.models.implementations.fused.backward import KEYS_OUTSIDE, BackwardOps, dot_do_o
from attnsim.models.implementations.fused.tile import BackwardTile
from attnsim.models.implementations.selecting.torch_passes import LIST
from attnsim.models.implementations.selecting.walks import Walk, keys_outside, rows_outside
from attnsim.models.mask.tile_counts import TileCounts
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Override, Tensor, uses_of
from attnsim.models.schedule.buffers import bytes_of
from attnsim.models.schedule.schedule import Kernel, Launch

LOOKED_UP = 8
"""Bytes of two entries of a list."""


def queries_tile(tile: BackwardTile) -> BackwardTile:
    """The tile of the blocks for dQ."""
    return replace(tile, rows=tile.keys, keys=tile.rows)


def walks_of(w: Workload, tile: BackwardTile, counts: TileCounts, block: int, function: int) -> tuple[Walk, Walk]:
    """What blocks of a head of K and V walk for dK and dV, and blocks of a head for dQ."""

    def walk(visits: Ints, partial: Ints, tiles: int, height: int, width: int, times: int) -> Walk:
        """Tiles of `height` outside, of `width` passing, each list walked `times` times over."""
        place = np.arange(tiles) * height // block
        each = times * -(-block // width)
        return Walk(each * visits[place], LOOKED_UP, each * partial[place], function)

    queries, keys = -(-w.seq_q // tile.keys), -(-w.seq_kv // tile.keys)
    return (
        walk(counts.key_visits, counts.key_partial, keys, tile.keys, tile.rows, w.group),
        walk(counts.visits, counts.partial, queries, tile.keys, tile.rows, 1),
    )


def backward(w: Workload, tile: BackwardTile, counts: TileCounts, block: int, function: int) -> list[Kernel]:
    """Row sums of dO and O, then the one kernel."""
    by_keys, by_rows = walks_of(w, tile, counts, block, function)
    one = replace(w, heads_q=w.heads_kv)  # a block sums over the heads of a group itself
    keys = keys_outside(one, tile, by_keys, "keys")
    rows = rows_outside(w, queries_tile(tile), by_rows, tile.keys, "rows")
    outer = max(keys.repeats.shape[1], rows.repeats.shape[1])
    repeats = np.zeros(
        (len(keys.repeats) + len(rows.repeats), outer, len(keys.segments) + len(rows.segments)), np.int64
    )
    repeats[: len(keys.repeats), : keys.repeats.shape[1], : len(keys.segments)] = keys.repeats
    repeats[len(keys.repeats) :, : rows.repeats.shape[1], len(keys.segments) :] = rows.repeats
    of_rows = np.tile(rows.launches[0].rows + len(keys.repeats), w.group)
    axes = {"b": Axis(w.batch), "h": Axis(w.heads_kv), "g": Axis(w.group), "i": Axis(w.seq_q), "j": Axis(w.seq_kv)}
    heads, kv = w.batch * w.heads_q, w.batch * w.heads_kv
    entries = (int(by_keys.steps.sum()) * kv + int(by_rows.steps.sum()) * heads) * LOOKED_UP
    axes["byte"] = Axis(max(1, entries // heads))
    down, across, why = len(by_keys.steps), len(by_rows.steps), "blocks of keys and of queries are one grid"
    by_all = Override(why, sharers=down + 1.0), Override(why, sharers=across * w.group + 1.0)
    ops = BackwardOps(one, tile, KEYS_OUTSIDE)
    uses = (
        *uses_of((replace(tensor, override=by_all[0]) for tensor in (ops.q, ops.do, *ops.statistics)), axes, "b h g"),
        *uses_of((replace(tensor, override=by_all[1]) for tensor in (ops.k, ops.v)), axes, "b h"),
        *uses_of((Tensor(LIST, "byte", 1),), axes, "b h g"),
        *uses_of((replace(tensor, axes="b h j") for tensor in ops.outputs), axes, "b h"),
        *uses_of((ops.dq,), axes, "b h g"),
    )
    merged = replace(
        keys,
        name="flex_attention_backward",
        buffers=max(keys.buffers, rows.buffers, key=bytes_of),
        segments=(*keys.segments, *rows.segments),
        repeats=repeats,
        launches=(Launch(np.concatenate([keys.launches[0].rows, of_rows]), kv),),
        uses=uses,
    )
    return [dot_do_o(w), merged]
