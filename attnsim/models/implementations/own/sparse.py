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

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from attnsim.arrays import Ints
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.forward import block_begins, flash_peak_bytes
from attnsim.models.implementations.fused.listed import all_at_once, busy_rows, listed_keys
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
from attnsim.models.schedule.axes import Axis, Override, Tensor, declared
from attnsim.models.schedule.instructions import StepCounts, product
from attnsim.models.schedule.nest import Nest, by_size, loop
from attnsim.models.schedule.occupancy import occupancy
from attnsim.models.schedule.operation import BLOCK, STEP, TileOp
from attnsim.models.schedule.schedule import Kernel, Launch, Schedule

PREFETCH = TileOp("prefetch")
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
    """Each tile of rows i walks its list of key tiles j: those seen in part, with a bit mask each, then the whole ones.

    The list may mix them: only their numbers matter to the time. It runs ahead of the tiles: it is read in parts of
    many visits. The first tile visited may be the last of the sequence, which may be shorter.
    """
    heads = w.batch * w.heads_q
    axes = {
        "b": Axis(w.batch), "h": Axis(w.heads_kv), "g": Axis(w.group), "i": Axis(w.seq_q, tile.rows),
        "j": Axis(w.seq_kv, tile.keys), "visits": Axis(int(counts.visits.sum())), "patterns": Axis(counts.patterns),
    }  # fmt: skip
    together, fitting = heads_together(w, gpu, counts), blocks_at_once(w, gpu, tile)
    blocks = heads * axes["i"].tiles
    running, persistent = min(blocks, fitting), blocks > fitting
    walked = listed_keys(w, counts, 0 if together > 1 else axes["i"].tiles * w.group, running)
    row_tile = _RowTile(w, gpu, tile, counts, walked, all_at_once(running), persistent=persistent)
    facts = {
        "full": counts.full, "partly": counts.partial,
        "missing_keys": counts.last_key_tile * axes["j"].short, "missing_rows": axes["i"].missing,
    }  # fmt: skip
    return declared(
        ENTRY, axes, "b h g i", row_tile.tensors, facts, row_tile.block,
        launches=lambda kinds: _launches(kinds[launch_order(counts)], heads, together), persistent=persistent,
        **_resources(w, gpu, tile),
    )  # fmt: skip


class _RowTile:
    """What a block does with a tile of rows: the tensors that it copies, and its loops."""

    def __init__(
        self, w: Workload, gpu: Gpu, tile: SparseTile, counts: TileCounts, walked: dict[str, Any], told: Override, *,
        persistent: bool,
    ) -> None:  # fmt: skip
        d, e = w.head_dim, w.element_bytes
        self.tile, self.persistent, self.ring = tile, persistent, tile.stages > 1
        self.q = Tensor("Q", "b h g i", d * e, seen=(busy_rows(w, counts), 1.0))
        self.k, self.v = (Tensor(name, "b h j", d * e, **walked) for name in "KV")
        self.plan = Tensor(ROW_TILES, "b h g i", ROW_TILE_BYTES, by_tile=True)
        self.visits = Tensor(LIST, "visits", VISIT_BYTES, override=told)
        self.bits = Tensor(MASKS, "patterns", tile.bit_mask_bytes, override=told)
        self.o = Tensor("O", "b h g i", d * w.output_bytes, written=True)
        self.lse = Tensor("LSE", "b h g i", 4, written=True)
        self.counted = resources.counts_of(label_of(tile, w.dtype), gpu)
        self.scores, self.output = _products(tile, e, counted=self.counted is not None)
        self.begins = block_begins(d, d)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """In the order in which they are told."""
        return self.q, self.k, self.v, self.plan, self.visits, self.bits, self.o, self.lse

    def prologue(self, listed: int, missing: int) -> Iterator[TileOp]:
        """The row tile, which is there long before where blocks persist, then its first visits and Q.

        So the first row tile of a block that persists is played as if it were not waited for, once a block.
        """
        yield from (self.begins, self.plan.load())
        if not self.persistent:
            yield self.plan.wait()
        yield from (self.q.load(self.tile.rows - missing), self.visits.load(listed))
        if not self.persistent:
            yield self.visits.wait()

    def fill(self, masked: bool, missing: int) -> Iterator[TileOp]:
        """What else is in flight when the first step begins: K, and in a ring V and the bit mask."""
        yield self.k.load(self.tile.keys - missing)
        if self.ring:
            yield self.v.load(self.tile.keys - missing)
        if self.ring and masked:
            yield self.bits.load()
        if self.persistent:
            yield from (self.plan.wait(), self.visits.wait())
        yield self.q.wait()

    def step(self, first: bool, missing: int, masked: bool, load_next: bool, next_masked: bool) -> Iterator[TileOp]:
        """One key tile. Single buffers: V and the bit mask are copied under S = Q K^T, the next K under the rest.

        In a ring all of the next tile is copied under the whole step. What the next row tile begins with is copied
        from the products of S of the last step on, in a ring all at its end, where its Q is.
        """
        yield from (self.k.wait(), STEP)
        if self.ring:
            yield self.v.wait()
            yield from [self.bits.wait()] * masked
            if load_next:
                yield from (self.k.load(self.tile.keys), self.v.load(self.tile.keys), *[self.bits.load()] * next_masked)
            yield self.scores
        else:
            yield from (self.v.load(self.tile.keys - missing), *[self.bits.load()] * masked, self.scores, self.v.wait())
            if load_next:
                yield self.k.load(self.tile.keys)
            elif self.persistent:
                yield PREFETCH
            yield from [self.bits.wait()] * masked
        yield from (_softmax(self.tile, self.counted, masked=masked, first=first), self.output)
        if self.ring and self.persistent and not load_next:
            yield PREFETCH

    def refill(self, missing: int) -> tuple[TileOp, TileOp]:
        """Further visits of the list, for which the block waits as it puts them into shared memory."""
        return self.visits.load(REFILL - missing), self.visits.wait()

    def without_keys(self, missing: int) -> tuple[TileOp, ...]:
        """A row tile of which nothing is visible."""
        return self.begins, self.plan.load(), self.plan.wait(), *self.ends(missing)

    def ends(self, missing: int) -> tuple[TileOp, ...]:
        """O and LSE of the valid rows."""
        return BLOCK, self.o.store(self.tile.rows - missing), self.lse.store(self.tile.rows - missing)

    def block(self, full: Ints, partly: Ints, missing_keys: Ints, missing_rows: Ints) -> Nest:
        """All of it, by how many tiles each class sees whole and in part."""
        steps = full + partly
        busy, begun = steps > 0, np.minimum(steps, LISTED)
        later = steps - begun
        flags = {"masked": partly, "load_next": steps - 1, "next_masked": partly - 1}
        further = {flag: until - 1 for flag, until in flags.items()}
        nest: Nest = []
        for listed in np.unique(begun[busy]).tolist():
            here = busy & (begun == listed)
            nest += by_size(f"prologue, {listed} listed", missing_rows, partial(self.prologue, listed), here)
        for masked in (False, True):
            nest += by_size("fill", missing_keys, partial(self.fill, masked), busy & ((partly > 0) == masked))
        nest += loop("listed", later // REFILL, partial(self.refill, 0))
        nest += by_size("last listed", -later % REFILL, self.refill, later % REFILL > 0)
        nest += loop("step", np.minimum(steps, 1), partial(self.step, True), shorter=missing_keys, **flags)
        nest += loop("step", steps - 1, partial(self.step, False, 0), **further)
        nest += by_size("row tile without keys", missing_rows, self.without_keys, ~busy)
        return nest + by_size("epilogue", missing_rows, self.ends, busy)


def _products(tile: SparseTile, element_bytes: int, *, counted: bool) -> tuple[TileOp, TileOp]:
    """S = Q K^T and O += P V of a key tile, with their instructions where those of the kernel are counted."""
    flops = 2 * tile.rows * tile.keys * tile.head_dim
    row = tile.head_dim * element_bytes
    operands = tile.warps * tile.keys * row
    scores = TileOp("mma", "S", flops=flops, smem_bytes=operands + tile.rows * row)
    output = TileOp("mma", "O", flops=flops, smem_bytes=operands)
    return (product(scores), product(output)) if counted else (scores, output)


def _softmax(tile: SparseTile, counted: StepCounts | None, *, masked: bool, first: bool) -> TileOp:
    """The exponentials of a tile.

    Instructions are those of a step that sees its whole tile; hiding scores comes on top. What fetches further visits
    of the list, once in many steps, is counted in each. O is rescaled, each row's factor computed by four lanes, at
    the first tile and then hardly ever.
    """
    scores, rows = tile.rows * tile.keys, tile.rows * first
    exps, rescaled = scores + 4 * rows, rows * tile.head_dim
    if counted:
        return counted.softmax(scores, exps, rescaled, counted.hiding(scores, MASK_INSTRUCTIONS) * masked)
    return TileOp("vector", "P", scores=scores, exps=exps, fp32=rescaled + MASK_INSTRUCTIONS * scores * masked)


def _resources(w: Workload, gpu: Gpu, tile: SparseTile) -> dict[str, Any]:
    """What a block takes."""
    registers = registers_of(label_of(tile, w.dtype), gpu, tile.threads)
    return {
        "threads": tile.threads, "registers_per_thread": registers, "path": "mma_sync", "buffers": tile.buffers,
        "dtype": w.dtype, "step": "key tile",
    }  # fmt: skip


def blocks_at_once(w: Workload, gpu: Gpu, tile: SparseTile) -> int:
    """Blocks that the GPU has room for, the largest grid that the kernel is launched with."""
    none = np.zeros((0, 1, 0), np.int64)
    kernel = Kernel(ENTRY, segments=(), repeats=none, launches=(), uses=(), **_resources(w, gpu, tile))
    return gpu.sm.count * occupancy(kernel, gpu).blocks_per_sm


def _launches(order: Ints, heads: int, together: int) -> tuple[Launch, ...]:
    """Block classes in launch order; the order keeps row tiles of a class together."""
    if together == 1:
        return (Launch(order, heads),)
    ends = np.append(np.flatnonzero(order[1:] != order[:-1]) + 1, len(order))
    times = np.diff(ends, prepend=0) * heads
    return tuple(Launch(one, n) for one, n in zip(order[ends - 1, None], times.tolist(), strict=True))


RECORD = record(NAME, build)
