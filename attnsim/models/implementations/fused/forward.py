"""FlashAttention forward kernels on any tile: one block per tile of query rows (and range of keys)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.loops import LOOPS, PAGES, Operations, page_bytes, pages, sizes
from attnsim.models.implementations.fused.order import ABSENT_CLKS, launch_order
from attnsim.models.implementations.fused.tile import GRIDS_OF_THE_LONGEST, FlashTile
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.nest import Nest, loop_nest
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.row_tiles import RowTiles, classes, row_tiles
from attnsim.models.schedule.schedule import Kernel, Launch
from attnsim.models.schedule.splits import UNCUT, Splits
from attnsim.models.schedule.uses import TensorUse
from attnsim.models.schedule.widths import padded

BY_WIDTH = by_hand(0.5, "part of a block's latency at head_dim 128 that grows with head_dim, K's and V's alike")
"""Read off decode steps of more blocks than SMs and up to 32 keys, of which each wave costs the latency of a block:
from head_dim 64 to 256 it grows by 1.5 in FlashAttention-3 as vLLM and SGLang call it and in XQA."""


def pages_of(w: Workload) -> int:
    """Pages of all sequences."""
    return sum(one.times * pages(w, one.keys) for one in w.parts)


def flash_peak_bytes(w: Workload, partial: int = 0) -> int:
    """Inputs, outputs, log-sum-exp, the backward's dQ accumulator and gradients, and partial outputs."""
    e = w.element_bytes
    q = w.heads_q * w.queries
    kv = w.heads_kv * (pages_of(w) * w.page_size if w.page_size else w.keys)
    inputs = (q + kv) * w.head_dim * e + kv * w.head_dim_v * e
    out = q * w.head_dim_v * w.output_bytes + 4 * q
    if "bwd" in w.directions:
        expanded = w.heads_q * w.keys * (w.head_dim + w.head_dim_v) * e if w.group > 1 else 0
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
    whole, kinds = _kinds(w, tile, splits, pack)
    ops = Operations(w, tile, lse)
    body = LOOPS[tile.loop](ops, kinds.steps, kinds.masked, kinds.missing_keys)
    ended = with_ends(ops, body, kinds.steps, kinds.missing_rows, kinds.partial, fetch_clks)
    if w.page_size and not tile.looks_up_pages:
        looked_up = TileOp("load", PAGES, bytes=page_bytes(w, tile.keys))
        ended.append((Segment("page numbers", (looked_up,)), kinds.steps))
    heads = w.heads_kv if tile.pack_gqa else w.heads_q
    uses = (
        TensorUse("Q", w.queries * w.head_dim * w.element_bytes, w.heads_q),
        *_keys_uses(w, tile, whole, w.group // pack),
        *_output_uses(w, splits, lse),
        *([TensorUse(PAGES, 4 * pages_of(w), 1, float(heads))] if w.page_size or tile.looks_up_pages else []),
    )
    return tiled_kernel(w, tile, name, ended, launch_order(w, gpu, tile, kinds.blocks, heads, kinds.absent), uses)


def tiled_kernel(
    w: Workload, tile: FlashTile, name: str, nest: Nest, launches: tuple[Launch, ...], uses: tuple[TensorUse, ...]
) -> Kernel:
    """A forward kernel on a tile, of which only its loop nest, launch order and shared tensors are its own."""
    segments, repeats = loop_nest(nest)
    widths = tile.compiled(w)
    return Kernel(
        name=name,
        threads=tile.threads,
        registers_per_thread=tile.registers,
        segments=segments,
        repeats=repeats,
        launches=launches,
        uses=uses,
        warpgroups=tile.warpgroups,
        path=tile.path,
        max_blocks_per_sm=tile.max_blocks_per_sm,
        persistent=tile.persistent,
        buffers=tile.buffers(*widths, w.element_bytes),
        dtype=w.dtype,
        step="key tile",
        role="attention",
    )


@dataclass(frozen=True, eq=False)
class _Kinds:
    """Classes of blocks, and which block is of which.

    Parameters
    ----------
    steps, masked, missing_keys, missing_rows : ndarray of int, ``[classes]``
        As in :class:`RowTiles`.
    partial : ndarray of int, ``[classes]``
        Whether its result is one of several that a combine kernel merges.
    blocks : tuple of ndarray, shape [splits, row tiles]
        Classes of the blocks of a head, of each sequence.
    absent : int or None
        Class of blocks that have no row tile, where the grid has such.
    """

    steps: Ints
    masked: Ints
    missing_keys: Ints
    missing_rows: Ints
    partial: Ints
    blocks: tuple[Ints, ...]
    absent: int | None


def _kinds(w: Workload, tile: FlashTile, splits: Splits, pack: int) -> tuple[RowTiles, _Kinds]:
    """The row tiles of uncut keys, and the classes of all blocks."""
    cut = partial(
        row_tiles, w, tile.rows, tile.keys, pack, edges_only=tile.edges_only, from_first_key=tile.from_first_key
    )
    whole = cut()
    ranges = np.array(splits.each or [splits.count] * len(w.parts))
    pieces = [whole]
    if splits.partial:
        count = range(splits.count)
        pieces = [cut(s, ranges, of_seen=splits.of_seen, chunk=splits.chunk) for s in count]
    number = np.repeat(np.arange(len(pieces)), len(whole.part))
    part = np.tile(whole.part, len(pieces))
    merged = splits.merged(len(w.parts))[part] > 0
    in_loop = "steps" if tile.masks_all and w.mask != Mask.full() else "masked"
    columns = [
        np.concatenate([getattr(piece, column) for piece in pieces])
        for column in ("steps", in_loop, "missing_keys", "missing_rows")
    ]
    columns.append(merged.astype(np.int64))
    tiles = np.bincount(whole.part)
    of_longest = tile.order in GRIDS_OF_THE_LONGEST or (tile.order == "ascending" and not tile.persistent)
    too_few = tile.order == "sections_by_sequence" or (of_longest and tiles.min() < tiles.max())
    if too_few:
        columns = [np.append(column, last) for column, last in zip(columns, (0, 0, 0, tile.rows, 0), strict=True)]
    found, inverse = classes(*columns)
    if len(tiles) == 1:
        blocks: tuple[Ints, ...] = (inverse[: len(number)].reshape(len(pieces), -1),)
    else:
        launched = np.flatnonzero(number < ranges[part])
        order = launched[np.argsort(part[launched], kind="stable")]
        ends, each = np.cumsum([0, *np.bincount(part[order])]).tolist(), inverse[order]
        blocks = tuple(
            each[begin:end].reshape(-1, count)
            for begin, end, count in zip(ends, ends[1:], tiles.tolist(), strict=False)
        )
    steps, masked, missing_keys, missing_rows, of_several = found
    absent = int(inverse[-1]) if too_few else None
    return whole, _Kinds(steps, masked, missing_keys, missing_rows, of_several, blocks, absent)


def _keys_uses(w: Workload, tile: FlashTile, whole: RowTiles, heads: int) -> tuple[TensorUse, ...]:
    """How blocks share K and V: all row tiles touch those of their KV head, times the `heads` that do not share rows.

    Of a window those around it do. In a grid with heads outermost the blocks of the heads of a group are as far apart
    as a head of the whole batch, so that each may fetch it anew.
    """
    counts = np.array([one.times for one in w.parts])
    tiles = np.bincount(whole.part)
    seen = np.array([one.keys for one in w.parts])
    sharers = tiles * heads * 1.0
    if w.mask.is_windowed:
        visits = np.bincount(whole.part, whole.steps).astype(np.int64) * whole.keys
        seen = whole.touched_keys
        sharers = np.maximum(1.0, visits / np.maximum(1, seen)) * heads
    widths = {"K": w.head_dim * w.element_bytes, "V": w.head_dim_v * w.element_bytes}
    total = int(counts @ seen)
    if len(counts) == 1:
        return tuple(
            TensorUse(tensor, int(seen[0]) * size, w.batch * w.heads_kv, float(sharers[0]))
            for tensor, size in widths.items()
        )
    if tile.order == "ascending" and not tile.persistent and heads > 1:
        apart, blocks = total * sum(widths.values()), float(counts @ tiles * heads)
        return tuple(
            TensorUse(tensor, total * size, w.heads_kv, blocks, apart_bytes=apart, rounds=heads)
            for tensor, size in widths.items()
        )
    mean = float((counts * seen) @ sharers / max(1, total))
    return tuple(
        TensorUse(tensor, total * size // w.batch, w.batch * w.heads_kv, mean, all_bytes=total * size * w.heads_kv)
        for tensor, size in widths.items()
    )


def _output_uses(w: Workload, splits: Splits, lse: bool) -> tuple[TensorUse, ...]:
    merged, final = partial_rows(w, splits), w.queries
    uses: list[TensorUse] = []
    if merged:
        each = splits.merged(len(w.parts)).tolist()
        final = sum(one.queries * one.times for one, of in zip(w.parts, each, strict=True) if not of)
        uses = [
            TensorUse("O partial", merged * w.head_dim_v * 4, w.heads_q, written=True),
            TensorUse("LSE partial", merged * 4, w.heads_q, written=True),
        ]
    if final:
        uses.append(TensorUse("O", final * w.head_dim_v * w.output_bytes, w.heads_q, written=True))
    if final and lse:
        uses.append(TensorUse("LSE", final * 4, w.heads_q, written=True))
    return tuple(uses)


def block_begins(head_dim: int, head_dim_v: int, fragments: int = 1) -> TileOp:
    """The latency of a block's beginning: a part grows with the columns that a thread has of Q, the first K and O.

    And with the `fragments` of 16 rows that it has of them, over those that its kernel's latency stands for.
    """
    return TileOp("delay", "block", share=1 + BY_WIDTH * (fragments * (head_dim + head_dim_v) / 256 - 1))


def partial_rows(w: Workload, splits: Splits) -> int:
    """Rows of a head in partial results that a combine kernel merges."""
    merged = splits.merged(len(w.parts)).tolist()
    return sum(one.queries * one.times * of for one, of in zip(w.parts, merged, strict=True))


def with_ends(ops: Operations, body: Nest, steps: Ints, missing_rows: Ints, partial: Ints, fetch_clks: int = 0) -> Nest:
    """Put the prologue and epilogue, for full and for ragged row tiles, around a loop body.

    A prologue waits for page table, Q and K in turn, however many rows are valid. A block without any row leaves.
    """
    begins = block_begins(*ops.tile.compiled(ops.w))
    fetch = (TileOp("delay", "fetch", clks=fetch_clks),) if fetch_clks else ()
    begin, end, results = [], [], sizes(partial)
    for missing in sizes(missing_rows):
        rows, tag = ops.tile.rows - missing, " (last rows)" * (missing > 0)
        here = missing_rows == missing
        if not rows:
            end.append((Segment("no rows", (TileOp("delay", "exit", clks=ABSENT_CLKS),)), here))
            continue
        prologue = Segment(f"prologue{tag}", (*fetch, begins, ops.load_q(rows)))
        latency = TileOp("delay", "block", share=rows / ops.tile.rows if ops.tile.by_row else 1.0)
        begin.append((prologue, here & (steps > 0)))
        for merged in results:
            stores = ops.stores(rows, partial=merged == 1)
            end.append((Segment(f"epilogue{tag}", (latency, *stores)), here & (partial == merged)))
    return [*begin, *body, *end]
