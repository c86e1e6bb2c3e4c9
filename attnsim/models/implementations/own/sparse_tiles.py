"""Tiles of our block-sparse kernel, which of them suits a mask, and the order in which its blocks are launched.

The operation that launches the kernel and the schedule that stands for it both ask here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heapify, heapreplace

import numpy as np

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.implementations.own import resources
from attnsim.models.implementations.own.least_time import least_clks
from attnsim.models.implementations.own.resources import ELEMENT, asked_for, kernel_label
from attnsim.models.mask.tile_counts import TileCounts
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.buffers import Buffers, bytes_of, check_shared_memory

NAME = "attnsim.sparse"
ENTRY = "sparse_forward"

ROW_TILE_BYTES = 32
"""Bytes of a row tile of a head in the plan: eight int32, `RowTile` of ``kernels/cuda/sparse.cu``."""

VISIT_BYTES = 8
"""An entry of the block list: key tile and pattern."""

REFILL = 16
"""Visits of the block list that a block fetches at a time, `kRefill` of ``kernels/cuda/sparse.cu``."""
LISTED = 2 * REFILL
"""Those that it holds in shared memory, and fetches before the first."""

RING = 2
"""Buffers of K and of V in its ring: it copies the next tile and none after that."""

BESIDE_VISITS = by_hand(1, "visits that what a block does before and after those of a row tile takes as long as")

ALONE_TOO_LONG = by_hand(
    1 / 20, "share of a kernel's work in one block from which on all heads' longest blocks go first"
)
"""Launched together, none of them is left over at the end."""


@dataclass(frozen=True, slots=True)
class SparseTile:
    """One compilation of the kernel.

    Parameters
    ----------
    head_dim, rows, keys : int
    warps : int
        They share out the rows.
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
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

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

    @property
    def shared_memory_bytes(self) -> int:
        """Sum of the buffers."""
        return bytes_of(self.buffers)

    def constants(self, dtype: str) -> tuple[tuple[str, int | str], ...]:
        """Compile-time constants of the kernel."""
        sizes = (("HEAD_DIM", self.head_dim), ("BLOCK_M", self.rows), ("BLOCK_N", self.keys))
        return (("ELEMENT", ELEMENT[dtype]), *sizes, ("WARPS", self.warps), ("STAGES", self.stages),
                ("RESIDENTS", self.residents))  # fmt: skip

    def __str__(self) -> str:
        return f"{self.rows} x {self.keys}, {self.warps} warps{', 2 stages' if self.stages == 2 else ''}"


TILES = {
    64: (SparseTile(64, 128, 64, 4, 2, 3), SparseTile(64, 64, 64, 2, 2, 5), SparseTile(64, 64, 64, 4, 2, 4)),
    128: (SparseTile(128, 128, 64, 4, 1, 2), SparseTile(128, 64, 64, 2, 1, 4), SparseTile(128, 64, 64, 4, 1, 3)),
    256: (SparseTile(256, 128, 64, 8, 1, 1), SparseTile(256, 64, 64, 4, 1, 2)),
}
"""By head_dim. A warp of 32 rows reads K and V from shared memory half as often as one of 16, two warps of 16 hide more
of each other's latencies."""


def able_tiles(w: Workload, gpu: Gpu, shape: TileRequest | None = None) -> list[SparseTile]:
    """The tiles, or those of the shape given, that fit `gpu`.

    Raises
    ------
    InputError
        When the kernel is not compiled for the width or the tile, or the tile does not fit `gpu`.
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
    """The tile given, or the one that is done first as :func:`least_clks` reckons for the GPU without its changes.

    Tall tiles read K and V for more rows at once; short ones visit less beside the pattern.

    Raises
    ------
    InputError
        See :func:`able_tiles`.
    """
    able = able_tiles(w, gpu, shape)
    return min(able, key=lambda tile: _least_clks(w, gpu.tiled_for, tile)) if len(able) > 1 else able[0]


def compiled(tile: SparseTile) -> SparseTile:
    """The compilation that a tile is of: the same, or with other buffers, whose step has the same instructions."""
    return next(one for one in TILES[tile.head_dim] if replace(one, stages=tile.stages) == tile)


def label_of(tile: SparseTile, dtype: str) -> str:
    """What the tables of registers and instructions call the compilation of a tile."""
    return kernel_label(ENTRY, compiled(tile).constants(dtype))


def _least_clks(w: Workload, gpu: Gpu, tile: SparseTile) -> float:
    """Clocks of the grid on a tile."""
    blocks = gpu.sm.shared_memory_bytes // (tile.shared_memory_bytes + gpu.sm.shared_memory_reserved_bytes)
    residents = max(1, min(blocks, tile.residents))
    counts = resources.counts_of(label_of(tile, w.dtype), gpu)
    return least_clks(w, gpu, tile, counts, residents, _visits(w, tile), w.batch * w.heads_q)


def _visits(w: Workload, tile: SparseTile) -> Ints:
    """Visits of each row tile of a head.

    Those of tall tiles follow from the counts of tiles half as tall, which are made anyway.
    """
    half = tile.rows // 2
    if half % tile.keys:
        return counts_of(w, tile).visits
    return w.mask.tile_counts(w.seq_q, w.seq_kv, half, tile.keys).visits_of_pairs


def counts_of(w: Workload, tile: SparseTile) -> TileCounts:
    """What the row tiles of a head visit."""
    return w.mask.tile_counts(w.seq_q, w.seq_kv, tile.rows, tile.keys)


def launch_order(counts: TileCounts) -> Ints:
    """Row tiles of a head in launch order: the longest first, alike ones together, neighbours side by side."""
    return np.lexsort((counts.last_key_tile, counts.full, -counts.visits))


def following(visits: Ints, blocks: int) -> Ints:
    """Which row tile a block takes after each, or -1: handed out in launch order, to whoever has least to do so far.

    List scheduling of longest tasks first (Graham, SIAM J. Appl. Math. 17, 1969): no block has more to do than its
    share and the longest row tile.

    Parameters
    ----------
    visits : ndarray ``[row tiles of all heads]``
        In launch order.
    blocks : int
        The first ones begin with one row tile each.
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
    """Heads whose blocks are launched in turn: one, or all where the longest block could be left over at the end.

    Head after head keeps the keys that neighbouring row tiles share in the L2.
    """
    heads = w.batch * w.heads_q
    longest, work = int(counts.visits.max()), int(counts.visits.sum()) * heads
    return heads if longest * gpu.sm.count > ALONE_TOO_LONG * work else 1
