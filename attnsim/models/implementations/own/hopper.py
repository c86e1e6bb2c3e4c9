"""Schedule of ``kernels/cuda/hopper.cu``: FlashAttention-3's loop order on sm_90a."""

from __future__ import annotations

from dataclasses import replace

from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.flash_attention import hopper_tile
from attnsim.models.implementations.fused.building import flash_schedule
from attnsim.models.implementations.fused.forward import flash_forward
from attnsim.models.implementations.fused.tile import FlashTile, FusedTiles, Order
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.implementations.own.resources import ELEMENT, asked_for, counts_of, kernel_label, registers_of
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.row_tiles import padded
from attnsim.models.schedule.schedule import Schedule, bytes_of

NAME = "attnsim.flash-hopper"
ENTRY = "flash_hopper"
TILES = {64: (128, 128), 128: (176, 128)}
"""Keys of a tile by head_dim, without a mask and with one: FlashAttention-3's (``tile_size_fwd_sm90`` in
``hopper/tile_size.h`` of Dao-AILab/flash-attention). S of 176 keys needs 88 registers in addition to O of 128 columns
and P, of 240; with three warpgroups of 160 registers, only 128 keys fit."""
HEAD_DIMS = tuple(TILES)
STAGES = 2
ALIGNMENT = 1024
"""Alignment in bytes of tiles with the 128-byte swizzle; a block requests as much in addition to its buffers."""


def consumers(head_dim: int) -> int:
    """Computing warpgroups, 64 rows each: three fit with O of 64 columns, two with 128."""
    return 3 if head_dim == 64 else 2


def sees_all(w: Workload) -> bool:
    """Return whether every query sees every key, so that all row tiles take equally long."""
    mask = w.mask.within(w.seq_q, w.seq_kv)
    return mask.left is None and mask.right is None


def shared_memory_bytes(head_dim: int, keys: int) -> int:
    """Bytes of Q, the rings of K and V, two barriers for Q and four per stage, and padding for alignment."""
    rows = 64 * consumers(head_dim)
    return 2 * head_dim * (rows + 2 * STAGES * keys) + 8 * (2 + 4 * STAGES) + ALIGNMENT


def cluster(w: Workload) -> int:
    """Blocks of a cluster, which share K and V by multicast.

    Like FlashAttention-3, two at head_dim 128 without a mask if the number of row tiles is even
    (`run_mha_fwd_` in ``hopper/flash_fwd_launch_template.h``); otherwise one.
    """
    row_tiles = -(-w.seq_q // (64 * consumers(w.head_dim)))
    return 2 if sees_all(w) and w.head_dim == 128 and row_tiles % 2 == 0 else 1


def constants(dtype: str, head_dim: int, masked: bool, clustered: int) -> tuple[tuple[str, int | str], ...]:
    """Compile-time constants of the kernel: format, width, with or without a mask, blocks of a cluster."""
    return (
        ("ELEMENT", ELEMENT[dtype]),
        ("HEAD_DIM", head_dim),
        ("BLOCK_N", TILES[head_dim][masked]),
        ("CONSUMERS", consumers(head_dim)),
        ("STAGES", STAGES),
        ("MASKED", int(masked)),
        ("CLUSTER", clustered),
    )


def longest_first(w: Workload) -> bool:
    """Return whether row tiles differ in length, so that the long ones have to start first."""
    return w.mask.within(w.seq_q, w.seq_kv).right is not None


def tile_of(w: Workload) -> FlashTile:
    """The tile; an SM holds one block of it.

    If all row tiles take equally long, blocks are persistent: with n blocks, block i processes the row tiles i mod n
    (FlashAttention-3's `StaticPersistentTileScheduler`). Otherwise each row tile is a block, and the GPU assigns blocks
    as SMs become free, longest first.
    """
    order: Order = "longest_first" if longest_first(w) else "ascending"
    # Keys of a tile.
    tile = hopper_tile(64 * consumers(w.head_dim), TILES[w.head_dim][not sees_all(w)], order=order)
    return replace(tile, persistent=sees_all(w), edges_only=True)


def blocks(w: Workload, gpu: Gpu) -> int:
    """Blocks of the grid: one for each row tile; if persistent, one for each SM."""
    tile = tile_of(w)
    tiles = -(-w.seq_q // tile.rows) * w.batch * w.heads_q
    together = cluster(w)
    return min(tiles, max(together, gpu.sm.count // together * together)) if tile.persistent else tiles


def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """Schedule of the forward kernel.

    Raises
    ------
    InputError
        If the kernel is not compiled for the width or the tile.
    """
    if w.head_dim not in HEAD_DIMS or w.head_dim_v != w.head_dim:
        raise InputError(f"{NAME} has head_dim 64 and 128, not {w.head_dim}/{w.head_dim_v}; take attnsim.flash")
    tile = tile_of(w)
    asked_for([tile], shape, NAME, w.head_dim)
    label = kernel_label(ENTRY, constants(w.dtype, w.head_dim, not sees_all(w), cluster(w)))
    tile = replace(tile, registers=registers_of(label, gpu, tile.threads), counts=counts_of(label, gpu))
    kernel = flash_forward(w, gpu, tile, ENTRY)
    buffers = tile.buffers(padded(w.head_dim), padded(w.head_dim), w.element_bytes)
    rest = shared_memory_bytes(w.head_dim, tile.keys) - bytes_of(buffers)
    kernel = replace(kernel, buffers=(*buffers, ("barriers, alignment", rest)), multicast=cluster(w))
    return flash_schedule(w, NAME, [kernel], FusedTiles(tile))


RECORD = record(NAME, build)
