"""FlashMask on Hopper (arXiv 2410.01359): ``csrc/flashmask_v2`` of PaddlePaddle/flash-attention.

A mask has at most two intervals of rows for each key, below and above the diagonal, given by one or two vectors of
int32 (``startend_row_indices``). A kernel finds the maximum and the minimum of each vector in every tile of keys
(``flash_mask.hpp``, `scanMaxMinChunkedKernel`). FlashAttention-3's loop then skips invisible tiles, and compares rows
with bounds in partly visible ones. Tiles are those of ``tile_size.h``, `tile_size_fwd_sm90`; a small
kernel sets the counter of its persistent blocks first (`prepare_flashmask`). Heads of a group are not packed. Bounds
are assumed to be read for every visited tile.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.flash_attention import hopper_tile
from attnsim.models.implementations.flash_attention_sparse import KeyTileLists, ListedTile, counts_of, listed_schedule
from attnsim.models.implementations.fused.tile import FlashTile, check_tile
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.mask.documents import Documents, Prefix
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Tensor
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.row_tiles import padded
from attnsim.models.schedule.schedule import Kernel, Schedule

NAME = "paddle.flash-mask"
BOUNDS, BLOCK_BOUNDS, COUNTER = "row bounds", "block bounds", "tile counter"
PREPARE = "prepare_flashmask"
ENTRY_BYTES = 4
ALIGNED = 4
"""Multiple that the number of key tiles is padded to in a vector of their bounds."""
SCANNED_TOGETHER = 4
"""Sequences per block of the scan, one warp each."""
ROWS = 128
KEYS = {128: 128, 256: 64}
"""Keys of a tile by its rows and the width it is compiled for."""


@dataclass(frozen=True, slots=True)
class BoundedTile(ListedTile):
    """A tile of the loop whose key tiles follow from `vectors` vectors of bounds."""

    vectors: int


def vectors_of(w: Workload) -> int:
    """Number of vectors of the mask: one if it is causal, otherwise two.

    Raises
    ------
    InputError
        If a key is hidden from more rows than an interval below the diagonal and one above it.
    """
    mask = w.mask.within(w.seq_q, w.seq_kv)
    if len(mask.parts) > 1 or not all(isinstance(part, Documents | Prefix) for part in mask.parts):
        raise InputError(
            f"{NAME} hides each key from one interval of rows below and one above the diagonal; the mask is {w.mask}; "
            "allowed: full, causal, window, document or prefix; take flash-attn.4-sparse for other patterns"
        )
    return 1 if mask.is_causal else 2


def choose_tile(w: Workload, gpu: Gpu, shape: TileRequest | None) -> FlashTile:
    """The library's tile for the width.

    Raises
    ------
    InputError
        If another tile is requested, or it does not fit.
    """
    d = padded(max(w.head_dim, w.head_dim_v))
    if d not in KEYS:
        raise InputError(
            f"{NAME} has tiles of 192 rows or 96 keys at head_dim {w.head_dim}, whose visits are not counted: rows "
            "must be a multiple of keys; take head_dim 97 to 128 or 193 to 256, or flash-attn.4-sparse"
        )
    if shape is not None and (shape.rows, shape.keys) != (ROWS, KEYS[d]):
        raise InputError(f"{NAME} has the tile {ROWS} x {KEYS[d]} at head_dim {w.head_dim}, not {shape}; leave it out")
    tile = hopper_tile(ROWS, KEYS[d])
    check_tile(tile, w, gpu)
    return tile


def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """The counter, one scan per vector, and the loop.

    Raises
    ------
    InputError
        See :func:`vectors_of` and :func:`choose_tile`.
    """
    vectors = vectors_of(w)
    tile = choose_tile(w, gpu, shape)
    counts = counts_of(w, tile)
    blocks = counts.tiles.key_tiles
    scanned = 2 * -(-blocks // ALIGNED) * ALIGNED * ENTRY_BYTES
    scans = Tensor(BLOCK_BOUNDS, "sequences", vectors * scanned)
    bounds = Tensor(BOUNDS, "sequences j", vectors * ENTRY_BYTES)
    lists = KeyTileLists(scans, bounds, tile.keys, {"sequences": Axis(w.batch)})
    counter = streaming(PREPARE, [Access(COUNTER, ENTRY_BYTES, True)], elements=1, threads=32, fp32_per_element=0)
    before = (counter, *(_scan(w, vector, blocks, scanned) for vector in range(vectors)))
    return listed_schedule(w, gpu, NAME, BoundedTile(tile, lists, vectors), counts, before, "flashmask_fwd")


def _scan(w: Workload, vector: int, blocks: int, scanned: int) -> Kernel:
    moved = [Access(BOUNDS, w.batch * w.seq_kv * ENTRY_BYTES), Access(BLOCK_BOUNDS, w.batch * scanned, True)]
    # Name of the kernel that scans a vector: rows masked below, or above the diagonal.
    return streaming(
        f"scan_max_min {('lt_start', 'ut_end')[vector]}",
        moved,
        elements=w.batch * w.seq_kv,
        threads=32 * SCANNED_TOGETHER,
        fp32_per_element=0,
        int32_per_element=2,
        blocks=blocks * -(-w.batch // SCANNED_TOGETHER),
    )


RECORDS = (record(NAME, build),)
