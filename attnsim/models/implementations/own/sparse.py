"""Schedule of ``kernels/cuda/sparse.cu``: flash attention over a list of visible tiles.

A row tile of a head walks its own list of key tiles in FlashAttention-2's loop order (Dao, arXiv 2307.08691). Row tiles
differ in their numbers of full and partly visible key tiles, and in whether they visit the last, shorter key tile; a
partly visible tile also needs its bit mask. Block-sparse attention on whole tiles is section 3.3 of the FlashAttention
paper (Dao et al., arXiv 2205.14135).

If there are more row tiles than blocks fit the GPU, persistent blocks process them in turn, and prefetch the start of
the next one during the last step of the one before. The kernel's plan assigns each row tile to the block with the
fewest visits left; the schedule assigns them in the same order as blocks finish.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from heapq import heapify, heapreplace

import numpy as np

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.forward import (
    MASK_INSTRUCTIONS,
    block_begins,
    busy_rows,
    flash_peak_bytes,
    listed_keys,
)
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.implementations.own import resources
from attnsim.models.implementations.own.resources import (
    ELEMENT,
    Compiled,
    asked_for,
    kernel_label,
    least_clks,
)
from attnsim.models.mask.tile_counts import TileCounts
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Seen, Tensor, declared
from attnsim.models.schedule.instructions import StepCounts, product
from attnsim.models.schedule.occupancy import occupancy
from attnsim.models.schedule.operation import BLOCK, STEP, Nest, TileOp, by_size, loop
from attnsim.models.schedule.schedule import Buffers, Kernel, Launch, Schedule, check_shared_memory

NAME = "attnsim.sparse"
ENTRY = "sparse_forward"

ROW_TILE_BYTES = 32
"""Bytes per row tile of a head in the plan: eight int32, `RowTile` of ``kernels/cuda/sparse.cu``."""

VISIT_BYTES = 8
"""Bytes of an entry of the block list: key tile and pattern."""

REFILL = 16
"""Visits of the block list that a block fetches at a time, `kRefill` of ``kernels/cuda/sparse.cu``."""
LISTED = 2 * REFILL
"""Visits that a block holds in shared memory, and fetches before the first."""

RING = 2
"""Buffers of K and of V in its ring: it copies only the next tile ahead."""

BESIDE_VISITS = by_hand(1, "visits that what a block does before and after those of a row tile takes as long as")

ALONE_TOO_LONG = by_hand(
    1 / 20, "share of a kernel's work in one block from which on all heads' longest blocks go first"
)
"""If they are launched together, none of them is left over at the end."""


@dataclass(frozen=True, slots=True)
class SparseTile(Compiled):
    """One compilation of the kernel.

    Parameters
    ----------
    warps : int
        Warps, which divide the rows.
    stages : int
        Buffers of K and of V.
    residents : int
        Blocks that the registers of an SM must hold.
    """

    head_dim: int
    rows: int
    keys: int
    warps: int
    stages: int
    residents: int

    @property
    def bit_mask_bytes(self) -> int:
        """Bytes of the bit mask of a tile."""
        return self.rows * self.keys // 8

    @property
    def buffers(self) -> Buffers:
        """Shared-memory buffers of a block and their bytes."""
        ring = self.stages * self.keys * self.head_dim * 2
        masks, listed = self.stages * self.bit_mask_bytes, LISTED * VISIT_BYTES
        tiles = ("Q", self.rows * self.head_dim * 2), ("K", ring), ("V", ring), ("bit masks", masks)
        return (*tiles, ("list", listed), ("row tiles", 2 * ROW_TILE_BYTES))

    def constants(self, dtype: str) -> tuple[tuple[str, int | str], ...]:
        """Compile-time constants of the kernel."""
        sizes = (("HEAD_DIM", self.head_dim), ("BLOCK_M", self.rows), ("BLOCK_N", self.keys))
        return (
            ("ELEMENT", ELEMENT[dtype]),
            *sizes,
            ("WARPS", self.warps),
            ("STAGES", self.stages),
            ("RESIDENTS", self.residents),
        )

    def __str__(self) -> str:
        return f"{self.rows} x {self.keys}, {self.warps} warps{', 2 stages' if self.stages == 2 else ''}"


TILES = {
    64: (SparseTile(64, 128, 64, 4, 2, 3), SparseTile(64, 64, 64, 2, 2, 5), SparseTile(64, 64, 64, 4, 2, 4)),
    128: (SparseTile(128, 128, 64, 4, 1, 2), SparseTile(128, 64, 64, 2, 1, 4), SparseTile(128, 64, 64, 4, 1, 3)),
    256: (SparseTile(256, 128, 64, 8, 1, 1), SparseTile(256, 64, 64, 4, 1, 2)),
}
"""Tiles by head_dim. A warp of 32 rows reads K and V from shared memory half as often as one of 16; two warps of 16
hide more of each other's latencies."""


def able_tiles(w: Workload, gpu: Gpu, shape: TileRequest | None = None) -> list[SparseTile]:
    """The tiles, or those of the requested shape, that fit `gpu`.

    Raises
    ------
    InputError
        If the kernel is not compiled for the width or the tile, or the tile does not fit `gpu`.
    """
    if w.head_dim not in TILES or w.head_dim_v != w.head_dim:
        allowed = ", ".join(map(str, TILES))
        raise InputError(f"{NAME} has head_dim {allowed} for K and V alike, not {w.head_dim}/{w.head_dim_v}")
    tiles = asked_for(TILES[w.head_dim], shape, NAME, w.head_dim)
    limit = gpu.sm.shared_memory_per_block_bytes
    if shape is not None and shape.stages is not None:
        if shape.stages > RING:
            raise InputError(f"{NAME} has 1 or {RING} buffers of K and V, not {shape.stages}; leave them out")
        tiles = [replace(tile, stages=shape.stages) for tile in tiles]
    able = [tile for tile in tiles if tile.shared_memory_bytes <= limit]
    if not able:
        least = min(tiles, key=lambda tile: tile.shared_memory_bytes)
        check_shared_memory(f"{NAME} at head_dim {w.head_dim}", least.buffers, gpu)
    return able


def choose_tile(w: Workload, gpu: Gpu, shape: TileRequest | None = None) -> SparseTile:
    """The requested tile, or the one with the least time by :func:`least_clks` on the unchanged GPU.

    Tall tiles read K and V for more rows at once; short ones visit fewer pairs outside the pattern.

    Raises
    ------
    InputError
        See :func:`able_tiles`.
    """
    able = able_tiles(w, gpu, shape)
    return min(able, key=lambda tile: _least_clks(w, gpu.tiled_for, tile)) if len(able) > 1 else able[0]


def compiled(tile: SparseTile) -> SparseTile:
    """Compilation of a tile: the same, or one with other buffers, whose step has the same instructions."""
    return next(one for one in TILES[tile.head_dim] if replace(one, stages=tile.stages) == tile)


def label_of(tile: SparseTile, dtype: str) -> str:
    """Label of a tile's compilation in the tables of registers and instructions."""
    return kernel_label(ENTRY, compiled(tile).constants(dtype))


def _least_clks(w: Workload, gpu: Gpu, tile: SparseTile) -> float:
    """Clocks of the grid on a tile."""
    blocks = gpu.sm.shared_memory_bytes // (tile.shared_memory_bytes + gpu.sm.shared_memory_reserved_bytes)
    residents = max(1, min(blocks, tile.residents))
    counts = resources.counts_of(label_of(tile, w.dtype), gpu)
    return least_clks(w, gpu, tile, counts, residents, _visits(w, tile), w.batch * w.heads_q)


def _visits(w: Workload, tile: SparseTile) -> Ints:
    """Visits of each row tile of a head.

    Those of tall tiles follow from the counts of tiles half as tall, which are needed anyway.
    """
    half = tile.rows // 2
    if half % tile.keys:
        return counts_of(w, tile).visits
    return w.mask.tile_counts(w.seq_q, w.seq_kv, half, tile.keys).visits_of_pairs


def counts_of(w: Workload, tile: SparseTile) -> TileCounts:
    """Numbers of key tiles that the row tiles of a head visit."""
    return w.mask.tile_counts(w.seq_q, w.seq_kv, tile.rows, tile.keys)


def launch_order(counts: TileCounts) -> Ints:
    """Row tiles of a head in launch order: the longest first, equal ones together, neighbours side by side."""
    return np.lexsort((counts.last_key_tile, counts.full, -counts.visits))


def following(visits: Ints, blocks: int) -> Ints:
    """Successor of each row tile on its block, or -1: row tiles are assigned in launch order to the least loaded block.

    List scheduling of longest tasks first (Graham, SIAM J. Appl. Math. 17, 1969): no block has more work than its
    share plus the longest row tile.

    Parameters
    ----------
    visits : ndarray ``[row tiles of all heads]``
        In launch order.
    blocks : int
        Number of blocks; the first row tiles are their first ones.
    """
    after = np.full(len(visits), -1, np.int64)
    work = (visits + BESIDE_VISITS).tolist()
    given = list(range(min(blocks, len(work))))
    busy = [(work[block], block) for block in given]
    heapify(busy)
    for number in range(len(busy), len(work)):
        until, block = busy[0]
        after[given[block]] = given[block] = number
        heapreplace(busy, (until + work[number], block))
    return after


def heads_together(w: Workload, gpu: Gpu, counts: TileCounts) -> int:
    """Heads whose blocks are launched in turn: one, or all if the longest block could be left over at the end.

    Head after head keeps the keys that neighbouring row tiles share in the L2.
    """
    heads = w.batch * w.heads_q
    longest, work = int(counts.visits.max()), int(counts.visits.sum()) * heads
    return heads if longest * gpu.sm.count > ALONE_TOO_LONG * work else 1


PREFETCH = TileOp("prefetch")
ROW_TILES, LIST, MASKS = "row tiles", "block list", "bit masks"
"""Tensors of the mask: the plan, the visits, and the visible pairs of a tile."""


def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """The schedule with the tile that the operation chooses.

    Raises
    ------
    InputError
        If the kernel is not compiled for the width or the tile, or the tile does not fit.
    """
    return schedule_of(w, gpu, choose_tile(w, gpu, shape))


def schedule_of(w: Workload, gpu: Gpu, tile: SparseTile) -> Schedule:
    """Schedule of the kernel on a tile."""
    counts = counts_of(w, tile)
    kernel = _kernel(w, gpu, tile, counts)
    metadata = sum(use.unique_bytes for use in kernel.uses if use.tensor in (ROW_TILES, LIST, MASKS))
    visits, dense = int(counts.visits.sum()), counts.tiles.row_tiles * counts.tiles.key_tiles
    part = int(counts.partial.sum())
    note = f"{visits} of {dense} tiles visited ({100 * visits / dense:.3g} %), {part} of them in part"
    return Schedule("sparse", NAME, (kernel,), tile, flash_peak_bytes(w, metadata), (note,))


def _kernel(w: Workload, gpu: Gpu, tile: SparseTile, counts: TileCounts) -> Kernel:
    """Each tile of rows i walks its list of key tiles j: partly visible ones, with a bit mask each, then full ones.

    The order within the list does not matter: only the numbers affect the time. The list is prefetched in parts of many
    visits. The first tile visited may be the last of the sequence, which may be shorter.
    """
    heads = w.batch * w.heads_q
    axes = {
        "b": Axis(w.batch),
        "h": Axis(w.heads_kv),
        "g": Axis(w.group),
        "i": Axis(w.seq_q, tile.rows, cuts="visits"),
        "j": Axis(w.seq_kv, tile.keys),
        "visits": Axis(int(counts.visits.sum())),
        "patterns": Axis(counts.patterns),
    }
    together, fitting = heads_together(w, gpu, counts), blocks_at_once(w, gpu, tile)
    blocks = heads * axes["i"].tiles
    persistent = blocks > fitting
    row_tile = _RowTile(w, gpu, tile, counts, persistent=persistent)
    facts = {
        "full": counts.full,
        "partly": counts.partial,
        "missing_keys": counts.last_key_tile * axes["j"].short,
        "missing_rows": axes["i"].missing,
    }
    return declared(
        ENTRY,
        axes,
        "i b h g" if together > 1 else "b h g i",
        row_tile.tensors,
        facts,
        row_tile.block,
        launches=lambda kinds: _launches(kinds[launch_order(counts)], heads, together),
        persistent=persistent,
        step="key tile",
        **tile.resources(label_of(tile, w.dtype), gpu, w.dtype),
    )


class _RowTile:
    """A block's work on a tile of rows: the tensors that it copies, and its loops."""

    def __init__(self, w: Workload, gpu: Gpu, tile: SparseTile, counts: TileCounts, *, persistent: bool) -> None:
        d, e = w.head_dim, w.element_bytes
        self.tile, self.persistent, self.ring = tile, persistent, tile.stages > 1
        self.q = Tensor("Q", "b h g i", d * e, seen=Seen("i", busy_rows(w, counts)))
        self.k, self.v = (Tensor(name, "b h j", d * e, seen=listed_keys(counts)) for name in "KV")
        self.plan = Tensor(ROW_TILES, "b h g i", ROW_TILE_BYTES, by_tile=True)
        self.visits = Tensor(LIST, "visits", VISIT_BYTES)
        self.bits = Tensor(MASKS, "patterns", tile.bit_mask_bytes)
        self.o = Tensor("O", "b h g i", d * w.output_bytes, written=True)
        self.lse = Tensor("LSE", "b h g i", 4, written=True)
        self.counted = resources.counts_of(label_of(tile, w.dtype), gpu)
        self.scores, self.output = _products(tile, e, counted=self.counted is not None)
        self.begins = block_begins(d, d)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Tensors in the order of the declaration."""
        return self.q, self.k, self.v, self.plan, self.visits, self.bits, self.o, self.lse

    def prologue(self, listed: int, missing: int) -> Iterator[TileOp]:
        """Load of the row tile (prefetched if blocks are persistent), then of its first visits and Q.

        The first row tile of a persistent block is therefore played without a wait, once per block.
        """
        yield from (self.begins, self.plan.load())
        if not self.persistent:
            yield self.plan.wait()
        yield from (self.q.load(self.tile.rows - missing), self.visits.load(listed))
        if not self.persistent:
            yield self.visits.wait()

    def fill(self, masked: bool, missing: int) -> Iterator[TileOp]:
        """Other loads in flight when the first step begins: K, and in a ring V and the bit mask."""
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

        In a ring, all of the next tile is copied under the whole step. Prefetches for the next row tile are issued from
        the products of S of the last step on; in a ring all at its end, when its buffer of Q is free.
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
        """Load of further visits of the list; the block waits for them when it stores them into shared memory."""
        return self.visits.load(REFILL - missing), self.visits.wait()

    def without_keys(self, missing: int) -> tuple[TileOp, ...]:
        """A row tile without any visible key."""
        return self.begins, self.plan.load(), self.plan.wait(), *self.ends(missing)

    def ends(self, missing: int) -> tuple[TileOp, ...]:
        """Stores of O and LSE of the valid rows."""
        return BLOCK, self.o.store(self.tile.rows - missing), self.lse.store(self.tile.rows - missing)

    def block(self, full: Ints, partly: Ints, missing_keys: Ints, missing_rows: Ints) -> Nest:
        """The whole loop nest, by the numbers of full and partly visible tiles of each class."""
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
    """S = Q K^T and O += P V of a key tile, with their instructions if the kernel's are counted."""
    flops = 2 * tile.rows * tile.keys * tile.head_dim
    row = tile.head_dim * element_bytes
    operands = tile.warps * tile.keys * row
    scores = TileOp("mma", "S", flops=flops, smem_bytes=operands + tile.rows * row)
    output = TileOp("mma", "O", flops=flops, smem_bytes=operands)
    return (product(scores), product(output)) if counted else (scores, output)


def _softmax(tile: SparseTile, counted: StepCounts | None, *, masked: bool, first: bool) -> TileOp:
    """The exponentials of a tile.

    Instructions are those of a step on a full tile; masking is added. Fetching further visits of the list, once in many
    steps, is counted in each step. O is rescaled, each row's factor computed by four lanes, at the first tile and then
    rarely.
    """
    scores, rows = tile.rows * tile.keys, tile.rows * first
    exps, rescaled = scores + 4 * rows, rows * tile.head_dim
    if counted:
        return counted.softmax(scores, exps, rescaled, counted.hiding(scores, MASK_INSTRUCTIONS) * masked)
    return TileOp("vector", "P", scores=scores, exps=exps, fp32=rescaled + MASK_INSTRUCTIONS * scores * masked)


def blocks_at_once(w: Workload, gpu: Gpu, tile: SparseTile) -> int:
    """Blocks that fit the GPU: the largest grid that the kernel is launched with."""
    none = np.zeros((0, 1, 0), np.int64)
    resources = tile.resources(label_of(tile, w.dtype), gpu, w.dtype)
    kernel = Kernel(ENTRY, segments=(), repeats=none, launches=(), uses=(), step="key tile", **resources)
    return gpu.sm.count * occupancy(kernel, gpu).blocks_per_sm


def _launches(order: Ints, heads: int, together: int) -> tuple[Launch, ...]:
    """Block classes in launch order; the order keeps row tiles of a class together."""
    if together == 1:
        return (Launch(order, heads),)
    ends = np.append(np.flatnonzero(order[1:] != order[:-1]) + 1, len(order))
    times = np.diff(ends, prepend=0) * heads
    return tuple(Launch(one, n) for one, n in zip(order[ends - 1, None], times.tolist(), strict=True))


RECORD = record(NAME, build)
