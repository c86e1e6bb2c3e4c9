"""Schedule of ``kernels/cuda/sparse.cu``: flash attention over a list of visible tiles.

A row tile of a head walks its own list of key tiles in FlashAttention-2's loop order (Dao, arXiv 2307.08691). Row tiles
differ in how many tiles they see whole, how many in part, and whether the last, shorter key tile is among them; a tile
seen in part also needs its bit mask. Block-sparse attention on whole tiles is section 3.3 of the FlashAttention paper
(Dao et al., arXiv 2205.14135).

Where there are more row tiles than blocks fit the GPU, those that fit take one after the other, and copy what the next
begins with under the last step of the one before. The kernel's plan gives each to the block that has fewest visits to
go; the schedule hands them out in the same order as blocks are done.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from attnsim.arrays import Ints
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.forward import block_begins, flash_peak_bytes
from attnsim.models.implementations.fused.listed import busy_rows, keys_uses
from attnsim.models.implementations.fused.loops import MASK_INSTRUCTIONS
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.implementations.own import resources
from attnsim.models.implementations.own.resources import registers_of
from attnsim.models.implementations.own.sparse_tiles import (
    ENTRY,
    LISTED,
    NAME,
    REFILL,
    ROW_TILE_BYTES,
    VISIT_BYTES,
    SparseTile,
    choose_tile,
    counts_of,
    heads_together,
    label_of,
    launch_order,
)
from attnsim.models.mask.tile_counts import TileCounts
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import StepCounts, product
from attnsim.models.schedule.nest import Nest, loop_nest
from attnsim.models.schedule.occupancy import occupancy
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.row_tiles import classes
from attnsim.models.schedule.schedule import Kernel, Launch, Schedule
from attnsim.models.schedule.uses import TensorUse

ROW_TILES, LIST, MASKS = "row tiles", "block list", "bit masks"
"""Tensors of the mask: the plan, the visits, and which pairs of a tile are seen."""


def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """The schedule with the tile that the operation chooses.

    Raises
    ------
    InputError
        When the kernel is not compiled for the width or the tile, or the tile does not fit.
    """
    return schedule_of(w, gpu, choose_tile(w, gpu, shape))


def schedule_of(w: Workload, gpu: Gpu, tile: SparseTile) -> Schedule:
    """The same on a tile."""
    counts = counts_of(w, tile)
    kernel = _kernel(w, gpu, tile, counts)
    metadata = sum(use.unique_bytes for use in kernel.uses if use.tensor in (ROW_TILES, LIST, MASKS))
    visits, dense = int(counts.visits.sum()), counts.tiles.row_tiles * counts.tiles.key_tiles
    part = int(counts.partial.sum())
    note = f"{visits} of {dense} tiles visited ({100 * visits / dense:.3g} %), {part} of them in part"
    return Schedule("sparse", NAME, (kernel,), tile, flash_peak_bytes(w, metadata), (note,))


def _kernel(w: Workload, gpu: Gpu, tile: SparseTile, counts: TileCounts) -> Kernel:
    tiles = counts.tiles
    last_rows = w.seq_q - (tiles.row_tiles - 1) * tile.rows
    shorter = (np.arange(tiles.row_tiles) == tiles.row_tiles - 1) & (last_rows < tile.rows)
    columns, inverse = classes(counts.full, counts.partial, counts.last_key_tile, shorter)
    together, heads = heads_together(w, gpu, counts), w.batch * w.heads_q
    fitting, launched = blocks_at_once(w, gpu, tile), tiles.row_tiles * heads
    counted = resources.counts_of(label_of(tile, w.dtype), gpu)
    operations = _Operations(w, tile, counted, persistent=launched > fitting)
    nest = _nest(operations, columns, w.seq_kv - (tiles.key_tiles - 1) * tile.keys, last_rows)
    segments, repeats = loop_nest(nest)
    return replace(
        _without_blocks(w, gpu, tile),
        segments=segments,
        repeats=repeats,
        launches=_launches(inverse[launch_order(counts)], heads, together),
        uses=_uses(w, tile, counts, together, min(launched, fitting)),
        persistent=operations.persistent,
    )


def _without_blocks(w: Workload, gpu: Gpu, tile: SparseTile) -> Kernel:
    """The kernel before anything is known of its row tiles."""
    return Kernel(
        name=ENTRY,
        threads=tile.threads,
        registers_per_thread=registers_of(label_of(tile, w.dtype), gpu, tile.threads),
        segments=(),
        repeats=np.zeros((0, 1, 0), np.int64),
        launches=(),
        uses=(),
        path="mma_sync",
        buffers=tile.buffers,
        dtype=w.dtype,
        step="key tile",
    )


def blocks_at_once(w: Workload, gpu: Gpu, tile: SparseTile) -> int:
    """Blocks that the GPU has room for, the largest grid that the kernel is launched with."""
    return gpu.sm.count * occupancy(_without_blocks(w, gpu, tile), gpu).blocks_per_sm


def _launches(order: Ints, heads: int, together: int) -> tuple[Launch, ...]:
    """Block classes in launch order; the order keeps row tiles of a class together."""
    if together == 1:
        return (Launch(order, heads),)
    ends = np.append(np.flatnonzero(order[1:] != order[:-1]) + 1, len(order))
    times = np.diff(ends, prepend=0) * heads
    return tuple(Launch(one, n) for one, n in zip(order[ends - 1, None], times.tolist(), strict=True))


def _uses(w: Workload, tile: SparseTile, counts: TileCounts, together: int, running: int) -> tuple[TensorUse, ...]:
    """Sharing of the tensors among the blocks that run at the same time."""
    e, d, heads = w.element_bytes, w.head_dim, w.batch * w.heads_q
    visits, row_tiles = int(counts.visits.sum()), counts.tiles.row_tiles
    return (
        TensorUse("Q", busy_rows(w, counts) * d * e, heads),
        *keys_uses(w, counts, 0 if together > 1 else row_tiles * w.group, running),
        TensorUse(ROW_TILES, heads * row_tiles * ROW_TILE_BYTES, 1),
        TensorUse(LIST, visits * VISIT_BYTES, 1, running),
        TensorUse(MASKS, counts.patterns * tile.bit_mask_bytes, 1, running),
        TensorUse("O", w.seq_q * d * w.output_bytes, heads, written=True),
        TensorUse("LSE", w.seq_q * 4, heads, written=True),
    )


Next = Literal["none", "whole", "masked"]
"""What is visited after a step."""


def _nest(ops: _Operations, block: tuple[Ints, ...], last_keys: int, last_rows: int) -> Nest:
    """The loop nest and, by block class, how often each segment runs.

    The first tile visited may be the last of the sequence, which may be shorter. Tiles seen in part are then played
    before tiles seen whole, although the list may mix them: only their numbers matter to the time.
    """
    full, partial, short_keys, short_rows = block
    tile = ops.tile
    busy = full + partial > 0
    nest: Nest = []
    at_first = np.minimum(full + partial, LISTED)
    later = full + partial - at_first
    for short, rows in ((0, tile.rows), (1, last_rows)):
        here = (short_rows == short) & busy
        for listed in np.unique(at_first[here]).tolist():
            nest.append((ops.prologue(rows, listed, " (last rows)" * short), here & (at_first == listed)))
    for short, keys in ((0, tile.keys), (1, last_keys)):
        for masked in (False, True):
            segment = ops.fill(keys, masked, " (last keys)" * short)
            nest.append((segment, (short_keys == short) & busy & ((partial > 0) == masked)))
    # Steps in their order: partial ones up to the last, that one, whole ones up to the last, that one.
    runs: tuple[tuple[bool, Next, Ints], ...] = (
        (True, "masked", np.maximum(partial - 1, 0)),
        (True, "whole", ((partial > 0) & (full > 0)).astype(np.int64)),
        (True, "none", ((partial > 0) & (full == 0)).astype(np.int64)),
        (False, "whole", np.maximum(full - 1, 0)),
        (False, "none", (full > 0).astype(np.int64)),
    )
    nest.append((ops.refill(REFILL), later // REFILL))
    for listed in np.unique(later % REFILL).tolist():
        if listed:
            nest.append((ops.refill(listed), later % REFILL == listed))
    begun = ~busy
    for masked, following, count in runs:
        first = ~begun & (count > 0)
        for short, keys in ((0, tile.keys), (1, last_keys)):
            segment = ops.step(masked, following, keys, first=True)
            nest.append((segment, first & (short_keys == short)))
        nest.append((ops.step(masked, following, tile.keys, first=False), count - first))
        begun |= first
    for short, rows in ((0, tile.rows), (1, last_rows)):
        tag = " (last rows)" * short
        nest.append((ops.without_keys(rows, tag), (short_rows == short) & ~busy))
        nest.append((ops.epilogue(rows, tag), (short_rows == short) & busy))
    return nest


class _Operations:
    """The tile operations of the kernel. The list runs ahead of the tiles: it is read in parts of many visits.

    Instructions are those of a step that sees its whole tile. What fetches further visits of the list, once in many
    steps, is counted in each. Hiding scores comes on top in a step that sees its tile in part.
    """

    def __init__(self, w: Workload, tile: SparseTile, counted: StepCounts | None, *, persistent: bool) -> None:
        self.w, self.tile, self.counted, self.persistent = w, tile, counted, persistent

    def _load(self, tensor: str, rows: int) -> TileOp:
        return TileOp("load", tensor, bytes=rows * self.w.head_dim * self.w.element_bytes)

    def _masks(self, needed: bool) -> tuple[TileOp, ...]:
        return (TileOp("load", MASKS, bytes=self.tile.bit_mask_bytes),) if needed else ()

    def _row_tile(self) -> tuple[TileOp, ...]:
        begins = block_begins(self.tile.head_dim, self.tile.head_dim)
        return begins, TileOp("load", ROW_TILES, bytes=ROW_TILE_BYTES)

    def prologue(self, rows: int, listed: int, tag: str) -> Segment:
        """The row tile, which is there long before where blocks persist, then its first visits and Q.

        So the first row tile of a block that persists is played as if it were not waited for, once a block.
        """
        known, there = ((), ()) if self.persistent else ((TileOp("wait", ROW_TILES),), (TileOp("wait", LIST),))
        first = self._load("Q", rows), TileOp("load", LIST, bytes=listed * VISIT_BYTES)
        return Segment(f"prologue, {listed} listed{tag}", (*self._row_tile(), *known, *first, *there))

    def refill(self, listed: int) -> Segment:
        """Further visits of the list, for which the block waits as it puts them into shared memory."""
        return Segment(f"{listed} listed", (TileOp("load", LIST, bytes=listed * VISIT_BYTES), TileOp("wait", LIST)))

    def fill(self, keys: int, masked: bool, tag: str) -> Segment:
        """What else is in flight when the first step begins: K, and in a ring V and the bit mask."""
        beside = (self._load("V", keys), *self._masks(masked)) if self.tile.stages > 1 else ()
        waits = (*((ROW_TILES, LIST) if self.persistent else ()), "Q")
        ops = self._load("K", keys), *beside, *(TileOp("wait", tensor) for tensor in waits)
        return Segment(f"fill{', masked' * masked}{tag}", ops)

    def step(self, masked: bool, following: Next, keys: int, *, first: bool) -> Segment:
        """One key tile. Single buffers: V and the bit mask are copied under S = Q K^T, the next K under the rest.

        In a ring all of the next tile is copied under the whole step. What the next row tile begins with is copied
        from the products of S of the last step on, in a ring all at its end, where its Q is.
        """
        name = f"{'first ' * first}{'masked ' * masked}step{'' if following != 'none' else ', the last'}"
        name += f" ({keys} keys)" * (keys != self.tile.keys)
        more, next_row_tile = following != "none", self.persistent and following == "none"
        beyond = (TileOp("prefetch"),) if next_row_tile else ()
        wait_mask = (TileOp("wait", MASKS),) if masked else ()
        d, e, tile = self.w.head_dim, self.w.element_bytes, self.tile
        flops, operands = 2 * tile.rows * tile.keys * d, tile.warps * tile.keys * d * e
        scores = self._product(TileOp("mma", "S", flops=flops, smem_bytes=operands + tile.rows * d * e))
        output = self._product(TileOp("mma", "O", flops=flops, smem_bytes=operands))
        start = TileOp("wait", "K"), TileOp("delay", "step")
        if tile.stages > 1:
            ahead = (
                self._load("K", tile.keys),
                self._load("V", tile.keys),
                *self._masks(following == "masked"),
            )
            ops = (*start, TileOp("wait", "V"), *wait_mask, *(ahead if more else ()), scores)
        else:
            beside, ahead = (self._load("V", keys), *self._masks(masked)), (self._load("K", tile.keys),)
            under = (*beside, scores, TileOp("wait", "V"))
            ops = (*start, *under, *(ahead if more else beyond), *wait_mask)
        at_end = beyond if tile.stages > 1 else ()
        return Segment(name, (*ops, self._softmax(masked, first), output, *at_end))

    def _product(self, op: TileOp) -> TileOp:
        """With its instructions where those of the kernel are counted."""
        return product(op) if self.counted else op

    def _softmax(self, masked: bool, first: bool) -> TileOp:
        """The exponentials of a tile.

        O is rescaled, each row's factor computed by four lanes, at the first tile and then hardly ever.
        """
        scores, rows = self.tile.rows * self.tile.keys, self.tile.rows * first
        exps, rescaled = scores + 4 * rows, rows * self.w.head_dim
        if self.counted:
            hidden = self.counted.hiding(scores, MASK_INSTRUCTIONS) * masked
            return self.counted.softmax(scores, exps, rescaled, hidden)
        return TileOp("vector", "P", scores=scores, exps=exps, fp32=rescaled + MASK_INSTRUCTIONS * scores * masked)

    def _stores(self, rows: int) -> tuple[TileOp, ...]:
        out = TileOp("store", "O", bytes=rows * self.w.head_dim * self.w.output_bytes)
        return TileOp("delay", "block"), out, TileOp("store", "LSE", bytes=rows * 4)

    def without_keys(self, rows: int, tag: str) -> Segment:
        """A row tile of which nothing is visible."""
        ops = *self._row_tile(), TileOp("wait", ROW_TILES), *self._stores(rows)
        return Segment(f"row tile without keys{tag}", ops)

    def epilogue(self, rows: int, tag: str) -> Segment:
        """O and LSE of the valid rows."""
        return Segment(f"epilogue{tag}", self._stores(rows))


RECORD = record(NAME, build)
