"""FlexAttention with a BlockMask: tables of blocks seen in part and of blocks seen whole, walked one after the other.

``torch/_inductor/kernel/flex_attention.py`` of PyTorch 2.7, `forward_inner`: a block of threads has 128 queries and
reads how many blocks of 128 x 128 they see in part (`kv_num_blocks`, `kv_indices`) and whole (`full_kv_num_blocks`,
`full_kv_indices`). In those seen in part the mask's function is computed for every score; a block is walked whole
however little of it is seen. Making the mask is a call of its own (`create_block_mask`) and not part of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attnsim.models.by_hand import by_hand
from attnsim.models.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.flex import choose_tile
from attnsim.models.implementations.fused.building import override
from attnsim.models.implementations.fused.forward import flash_peak_bytes, tiled_kernel
from attnsim.models.implementations.fused.listed import keys_uses
from attnsim.models.implementations.fused.loops import Operations
from attnsim.models.implementations.fused.tile import FlashTile
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.mask.mask import Mask
from attnsim.models.mask.tile_counts import TileCounts
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.nest import Nest
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.row_tiles import classes
from attnsim.models.schedule.schedule import Kernel, Launch, Schedule, TensorUse

NAME = "torch.flex-mask"
BLOCK = 128
"""Queries and keys of a block of the mask (`_DEFAULT_SPARSE_BLOCK_SIZE`)."""
COUNTS, LIST = "block counts", "block list"
COUNTS_BYTES, ENTRY_BYTES = 8, 4
PATTERN_INSTRUCTIONS = by_hand(4, "FP32-lane instructions a score and pattern of a mask's function: index, look up, or")


@dataclass(frozen=True, slots=True)
class MaskTile:
    """A tile of FlexAttention that walks blocks of 128 keys."""

    flash: FlashTile

    @property
    def rows(self) -> int:
        """Queries of a list."""
        return self.flash.rows

    @property
    def keys(self) -> int:
        """Keys of an entry of it."""
        return BLOCK

    def __str__(self) -> str:
        return f"{self.flash}, blocks of {BLOCK}"


class _Operations(Operations):
    """The mask's function costs by its patterns."""

    def softmax(self, masked: bool, first: bool = False) -> TileOp:
        """Online softmax; masked: with the mask's function."""
        plain, more = super().softmax(masked, first), masked * function_instructions(self.w.mask)
        return plain._replace(fp32=plain.fp32 + more * self.rows * self.tile.keys)


def function_instructions(mask: Mask) -> int:
    """FP32-lane instructions of a mask's function beside one comparison."""
    return PATTERN_INSTRUCTIONS * len(mask.parts)


def counts_of(w: Workload, tile: FlashTile) -> TileCounts:
    """Blocks that the row tiles of a head see, in part and whole."""
    return w.mask.tile_counts(w.seq_q, w.seq_kv, max(BLOCK, tile.rows), BLOCK)


def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """The one kernel of a forward pass.

    Raises
    ------
    InputError
        When the tile does not fit, or does not divide a block of the mask.
    """
    tile = override(replace(choose_tile(w, gpu), loop="ring"), shape, w, gpu)
    if BLOCK % tile.keys or BLOCK % tile.rows:
        raise InputError(f"{NAME}: the tile {tile.rows} x {tile.keys} does not divide blocks of {BLOCK}; take 128 x 64")
    counts = counts_of(w, tile)
    kernel = _kernel(w, gpu, tile, counts)
    every = counts.tiles.row_tiles * counts.tiles.key_tiles
    visits, part = int(counts.visits.sum()), int(counts.partial.sum())
    note = f"{visits} of {every} blocks of {BLOCK} visited ({100 * visits / every:.3g} %), {part} of them in part"
    lists = counts.tiles.row_tiles * COUNTS_BYTES + visits * ENTRY_BYTES
    return Schedule("sparse", NAME, (kernel,), MaskTile(tile), flash_peak_bytes(w, lists), (note,))


def _kernel(w: Workload, gpu: Gpu, tile: FlashTile, counts: TileCounts) -> Kernel:
    turns, share = BLOCK // tile.keys, BLOCK // tile.rows
    row = np.arange(-(-w.seq_q // tile.rows))
    last_rows = w.seq_q - (len(row) - 1) * tile.rows
    short = (row == len(row) - 1) & (last_rows < tile.rows)
    table = counts.partial[row // share] * turns, (counts.visits - counts.partial)[row // share] * turns, short
    (part, full, short), inverse = classes(*table)
    ops = _Operations(w, tile, lse=True)
    entry = TileOp("load", LIST, bytes=ENTRY_BYTES)
    loads = (ops.load("K", tile.keys), ops.load("V", tile.keys))
    look_up = (entry, TileOp("wait", LIST))

    def step(masked: bool, more: bool) -> Segment:
        name = f"{'partial' if masked else 'full'} tile{'' if more else ', last'}"
        waits = (TileOp("wait", "K"), TileOp("wait", "V"), TileOp("delay", "step"))
        return Segment(name, (*waits, *(loads if more else ()), ops.scores(), ops.softmax(masked), ops.output()))

    busy, steps = part + full > 0, part + full
    nest: Nest = []
    begin = (TileOp("load", COUNTS, bytes=COUNTS_BYTES), TileOp("wait", COUNTS), TileOp("delay", "block"))
    for size, here in ((tile.rows, short == 0), (last_rows, short == 1)):
        nest.append((Segment(f"begin ({size} rows)", (*begin, ops.load_q(size))), here))
    nest += [
        (Segment("look up", look_up), steps // turns),
        (Segment("first tile", (*loads, TileOp("wait", "Q"))), busy),
        (step(True, True), part - ((full == 0) & busy)),
        (step(False, True), np.maximum(full - 1, 0)),
        (step(True, False), (full == 0) & busy),
        (step(False, False), full > 0),
    ]
    for size, here in ((tile.rows, short == 0), (last_rows, short == 1)):
        nest.append((Segment(f"end ({size} rows)", (TileOp("delay", "block"), *ops.stores(size, partial=False))), here))
    heads, e = w.batch * w.heads_q, w.element_bytes
    running = min(heads * len(row), gpu.sm.count)
    uses = (
        TensorUse("Q", w.seq_q * w.head_dim * e, heads),
        *keys_uses(w, counts, len(row) * w.group, running),
        TensorUse(COUNTS, counts.tiles.row_tiles * COUNTS_BYTES, 1, running),
        TensorUse(LIST, max(1, int(counts.visits.sum())) * ENTRY_BYTES, 1, running),
        TensorUse("O", w.seq_q * w.head_dim_v * w.output_bytes, heads, written=True),
        TensorUse("LSE", w.seq_q * 4, heads, written=True),
    )
    return tiled_kernel(w, tile, "flex_attention", nest, (Launch(inverse, heads),), uses)


RECORDS = (record(NAME, build),)
