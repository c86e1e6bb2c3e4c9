"""FlashAttention's block-sparse forward on Hopper: ``flash_attn/cute`` of Dao-AILab/flash-attention, commit 03264f5.

FlashAttention-3's loop (wgmma, TMA copies by a producer warp, two consumer warpgroups) runs over lists of visible tiles
of 128 queries x 128 keys, partly visible ones before full ones (``block_sparse_utils.py``). The mask's function decides
in registers about the pairs of a partly visible tile: here with the instructions of a causal mask. Heads of a group
share the rows of a tile, and a list with the rows of 128 queries. A block has one tile of rows, launched in
ascending order (``flash_fwd_sm90.py``: with a mask function `SingleTileScheduler`). FlexAttention runs it with
``kernel_options={"BACKEND": "FLASH"}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.flash_attention import hopper_tile
from attnsim.models.implementations.fused.forward import (
    LOOPS,
    Operations,
    busy_rows,
    flash_peak_bytes,
    launched,
    listed_keys,
    operands,
    results,
    tiled_kernel,
    with_ends,
)
from attnsim.models.implementations.fused.order import launch_order
from attnsim.models.implementations.fused.tile import FlashTile, check_tile, with_tile
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.mask.tile_counts import TileCounts
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Seen, Tensor, uses_of
from attnsim.models.schedule.operation import TileOp, once
from attnsim.models.schedule.row_tiles import classes
from attnsim.models.schedule.schedule import Kernel, Schedule

NAME = "flash-attn.4-sparse"
COUNTS, LIST = "block counts", "block list"
"""Tensors of the mask: number of partly and fully visible tiles of a block of queries, and their list."""
COUNTS_BYTES, ENTRY_BYTES = 8, 4
"""Two int32 per block of queries; one int32 per visit."""
ROWS = 128
KEYS = (128, 64)
"""Rows of a tile, and its keys: the library's choice up to head_dim 128, and half of them for finer lists."""


@dataclass(frozen=True, slots=True)
class KeyTileLists:
    """Tensors from which a block learns the key tiles that its rows see.

    Parameters
    ----------
    first, each : Tensor
        Tensor read once by a tile of rows, before its first key tile; and tensor read for each key tile.
    elements : int
        Elements of `each` that are read for a key tile.
    axes : mapping of str to Axis
        Axes of these tensors, in addition to the kernel's.
    """

    first: Tensor
    each: Tensor
    elements: int
    axes: Mapping[str, Axis]


@dataclass(frozen=True, slots=True)
class ListedTile:
    """A tile of FlashAttention-3's loop over a list of key tiles."""

    forward: FlashTile
    lists: KeyTileLists

    @property
    def rows(self) -> int:
        """Queries per list."""
        return self.forward.rows

    @property
    def keys(self) -> int:
        """Keys per entry of a list."""
        return self.forward.keys

    def __str__(self) -> str:
        return str(self.forward)


class _Operations(Operations):
    """Operations whose producer reads the list entry of a key tile while the tile before is copied and multiplied."""

    def __init__(self, w: Workload, tile: FlashTile, lists: KeyTileLists) -> None:
        super().__init__(w, tile)
        self.lists = lists

    def look_up(self) -> tuple[TileOp, ...]:
        return (self.lists.each.load(self.lists.elements),)

    def looked_up(self) -> tuple[TileOp, ...]:
        return (self.lists.each.wait(),)


def counts_of(w: Workload, tile: FlashTile) -> TileCounts:
    """Numbers of key tiles that the blocks of queries of a head visit."""
    return w.mask.tile_counts(w.seq_q, w.seq_kv, tile.rows, tile.keys)


def choose_tile(w: Workload, gpu: Gpu, shape: TileRequest | None) -> FlashTile:
    """128 x 128, or the requested tile; other stages, packing, persistent blocks or orders have no kernel.

    Raises
    ------
    InputError
        If the kernel has no such tile, or it does not fit.
    """
    tile = hopper_tile(ROWS, KEYS[0], p_in_smem=64 < max(w.head_dim, w.head_dim_v) <= 96, pack_gqa=w.group > 1)
    tile = replace(tile, persistent=False)
    if shape is not None:
        if shape.rows != ROWS or shape.keys not in KEYS:
            known = " or ".join(f"{ROWS} x {keys}" for keys in KEYS)
            raise InputError(f"{NAME} has the tile {known}, not {shape}; take it or leave --tile out")
        tile = with_tile(tile, shape, gpu)
    check_tile(tile, w, gpu)
    return tile


def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """Schedule of the forward kernel.

    Raises
    ------
    InputError
        If the kernel has no such tile, or it does not fit.
    """
    tile = choose_tile(w, gpu, shape)
    counts = counts_of(w, tile)
    axes = {"lists": Axis(counts.tiles.row_tiles), "entries": Axis(int(counts.visits.sum()))}
    lists = KeyTileLists(Tensor(COUNTS, "lists", COUNTS_BYTES), Tensor(LIST, "entries", ENTRY_BYTES), 1, axes)
    return listed_schedule(w, gpu, NAME, ListedTile(tile, lists), counts, (), "flash_fwd_sparse")


def listed_schedule(
    w: Workload, gpu: Gpu, name: str, listed: ListedTile, counts: TileCounts, before: tuple[Kernel, ...], entry: str
) -> Schedule:
    """Schedule of a kernel with this loop, and of the kernels that make its lists."""
    kernel = _kernel(w, gpu, listed, counts, entry)
    lists = sum(
        use.unique_bytes for use in kernel.uses if use.tensor in (listed.lists.first.name, listed.lists.each.name)
    )
    visits, every, part = int(counts.visits.sum()), counts.tiles.row_tiles * counts.tiles.key_tiles, counts.partial
    note = f"{visits} of {every} tiles visited ({100 * visits / every:.3g} %), {int(part.sum())} of them in part"
    return Schedule("sparse", name, (*before, kernel), listed, flash_peak_bytes(w, lists), (note,))


def _kernel(w: Workload, gpu: Gpu, listed: ListedTile, counts: TileCounts, entry: str) -> Kernel:
    """The kernel: row tiles per head of K and V if heads are packed, otherwise per head.

    With packed rows, a block of queries has as many tiles as a group has heads; all walk its list.
    """
    tile, lists = listed.forward, listed.lists
    pack, tiles = w.group if tile.pack_gqa else 1, counts.tiles
    number = -(-w.seq_q * pack // tile.rows)
    block = np.arange(number) // pack
    missing_rows = np.where(np.arange(number) == number - 1, number * tile.rows - w.seq_q * pack, 0)
    shorter = counts.last_key_tile[block] * (tiles.key_tiles * tile.keys - w.seq_kv)
    (steps, masked, missing_keys, missing_rows), inverse = classes(
        counts.visits[block], counts.partial[block], shorter, missing_rows
    )
    heads = w.heads_kv if tile.pack_gqa else w.heads_q
    if tile.order != "ascending":  # the longest is last; longest-first order begins with it
        inverse = inverse[np.argsort(steps[inverse], kind="stable")]
    axes = {
        "b": Axis(w.batch),
        "h": Axis(w.heads_kv),
        "g": Axis(w.group // pack),
        "s": Axis(1),
        "i": Axis(w.seq_q * pack, tile.rows, cuts="lists entries"),
        "j": Axis(w.seq_kv, tile.keys),
        **lists.axes,
    }
    q, k, v = operands(w, seen=listed_keys(counts))
    q, stored = replace(q, seen=Seen("i", pack * busy_rows(w, counts))), results(w)
    ops = _Operations(w, tile, lists)
    body = LOOPS[tile.loop](ops, k, v, steps, masked, missing_keys)
    nest = once(f"read {lists.first.name}", [lists.first.load(), lists.first.wait()])
    nest += with_ends(ops, q, body, steps, missing_rows, [(stored, steps >= 0)])
    uses = uses_of((q, k, v, lists.first, lists.each, *stored), *launched(w, tile, axes))
    return tiled_kernel(w, tile, entry, nest, launch_order(w, gpu, tile, (inverse[None],), heads), uses)


RECORDS = (record(NAME, build),)
