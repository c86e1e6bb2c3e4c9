"""Kernels that walk the blocks of a mask made at run time: FlexAttention's BlockMask and flex-block-attn's table.

FlexAttention (``torch/_inductor/kernel/flex_attention.py`` of PyTorch 2.7, `forward_inner`): a block of threads has 128
queries and reads how many blocks of 128 x 128 they see in part (`kv_num_blocks`, `kv_indices`) and whole
(`full_kv_num_blocks`, `full_kv_indices`). In those seen in part the mask's function is computed for every score; a
block is walked whole however little of it is seen. flex-block-attn (``flex_block_attn/flex_block_attn_h100.cu`` of
Tencent-Hunyuan, commit 4ca54be, `fwd_attend_ker`, on ThunderKittens) has whole blocks only, of 64 keys or multiples;
its producer and its one to three consumer warpgroups read a byte for each tile of keys, walked or not. Making the mask
is not part of either.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.flex import choose_backward, choose_tile
from attnsim.models.implementations.flex_mask_backward import backward
from attnsim.models.implementations.fused.building import override
from attnsim.models.implementations.fused.forward import flash_peak_bytes, tiled_kernel
from attnsim.models.implementations.fused.listed import keys_uses
from attnsim.models.implementations.fused.loops import Operations
from attnsim.models.implementations.fused.tile import BackwardTile, FlashTile
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.mask.mask import Mask
from attnsim.models.mask.tile_counts import TileCounts
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.nest import Nest
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.row_tiles import classes
from attnsim.models.schedule.schedule import Kernel, Launch, Schedule
from attnsim.models.schedule.uses import TensorUse

NAME, SCANNED = "torch.flex-mask", "tencent.flex-block-attn"
BLOCK = 128
"""Queries and keys of a block of the mask (`_DEFAULT_SPARSE_BLOCK_SIZE`)."""
COUNTS, LIST, TABLE = "block counts", "block list", "block table"
COUNTS_BYTES, ENTRY_BYTES = 8, 4
WIDTH = 128
"""The one head_dim of flex-block-attn."""
SCANNED_TILES = {384: (192, 128), 256: (128, 128), 128: (64, 128), 64: (64, 64)}
"""Its tile, queries x keys, by the size of the mask's blocks, the largest first."""
SCAN_CLKS = by_hand(40, "clocks of reading a byte of the table and branching on it: a hit in L1")
PATTERN_INSTRUCTIONS = by_hand(4, "FP32-lane instructions a score and pattern of a mask's function: index, look up, or")


@dataclass(frozen=True, slots=True)
class MaskTile:
    """A tile that walks blocks of a mask.

    Parameters
    ----------
    forward : FlashTile
    block : int
        Queries and keys of a block.
    scanned : bool
        Whether a table of all blocks is read, in place of lists of those that are seen.
    backward : BackwardTile, optional
    """

    forward: FlashTile
    block: int = BLOCK
    scanned: bool = False
    backward: BackwardTile | None = None

    @property
    def rows(self) -> int:
        """Queries of a list."""
        return self.forward.rows

    @property
    def keys(self) -> int:
        """Keys of an entry of it."""
        return self.block

    def __str__(self) -> str:
        return f"{self.forward}, blocks of {self.block}"


class _Operations(Operations):
    """The mask's function costs by its patterns."""

    def softmax(self, masked: bool, first: bool = False) -> TileOp:
        """Online softmax; masked: with the mask's function."""
        plain, more = super().softmax(masked, first), masked * function_instructions(self.w.mask)
        return plain._replace(fp32=plain.fp32 + more * self.rows * self.tile.keys)


def function_instructions(mask: Mask) -> int:
    """FP32-lane instructions of a mask's function beside one comparison."""
    return PATTERN_INSTRUCTIONS * len(mask.parts)


def counts_of(w: Workload, tile: MaskTile) -> TileCounts:
    """Blocks that the blocks of queries of a head see, in part and whole."""
    return w.mask.tile_counts(w.seq_q, w.seq_kv, max(tile.block, tile.rows), tile.block)


def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """FlexAttention's one kernel of each pass.

    Raises
    ------
    InputError
        When the tile does not fit, does not divide a block of the mask, or is of a kernel not written.
    """
    own = replace(choose_tile(w, gpu), loop="ring")
    tile = override(own, shape, w, gpu)
    if tile.pack_gqa or tile.persistent or tile.stages != own.stages:
        raise InputError(f"{NAME} packs no query heads, keeps no blocks and copies one tile ahead; leave the rest out")
    if BLOCK % tile.keys or BLOCK % tile.rows:
        raise InputError(f"{NAME}: the tile {tile.rows} x {tile.keys} does not divide blocks of {BLOCK}; take 128 x 64")
    return _schedule(w, gpu, MaskTile(tile, backward=choose_backward(w, gpu)), NAME, "flex_attention")


def build_scanned(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """flex-block-attn's one kernel of a forward pass.

    Raises
    ------
    InputError
        When a width, a length or the mask is none that it has.
    """
    if (w.head_dim, w.head_dim_v) != (WIDTH, WIDTH):
        raise InputError(f"{SCANNED} has head_dim {WIDTH} only, not {w.head_dim} and {w.head_dim_v}")
    tile = _scanned_tile(w)
    if shape is not None and (shape.rows, shape.keys) != (tile.forward.rows, tile.forward.keys):
        raise InputError(
            f"{SCANNED} has the tile {tile.forward.rows} x {tile.forward.keys} for blocks of {tile.block}, not "
            f"{shape}; leave --tile out"
        )
    return _schedule(w, gpu, tile, SCANNED, "fwd_attend")


def _scanned_tile(w: Workload) -> MaskTile:
    """The tile of the largest blocks that a mask consists of (`attention_forward`, which goes by their size)."""
    for block, (rows, keys) in SCANNED_TILES.items():
        if w.seq_q % block or w.seq_kv % block:
            continue
        groups = rows // 64
        flash = FlashTile(
            rows, keys, warps=4 * groups, loop="ring", stages=2, warpgroups=groups, extra_threads=128, registers=128,
            path="wgmma", max_blocks_per_sm=1,
        )  # fmt: skip
        tile = MaskTile(flash, block, scanned=True)
        if not counts_of(w, tile).partial.any():
            return tile
    sizes = ", ".join(str(block) for block in SCANNED_TILES)
    raise InputError(
        f"{SCANNED} takes whole blocks of {sizes} queries and keys; {w.seq_q} x {w.seq_kv} with the mask {w.mask} has "
        f"none such; take torch.flex-mask"
    )


def _schedule(w: Workload, gpu: Gpu, tile: MaskTile, name: str, entry: str) -> Schedule:
    counts = counts_of(w, tile)
    kernels = [_kernel(w, gpu, tile, counts, entry)] if "fwd" in w.directions else []
    if tile.backward and "bwd" in w.directions:
        kernels += backward(w, tile.backward, counts, tile.block, function_instructions(w.mask))
    every = counts.tiles.row_tiles * counts.tiles.key_tiles
    visits, part = int(counts.visits.sum()), int(counts.partial.sum())
    note = f"{visits} of {every} blocks of {tile.block} visited ({100 * visits / every:.3g} %), {part} of them in part"
    table = every if tile.scanned else counts.tiles.row_tiles * COUNTS_BYTES + visits * ENTRY_BYTES
    return Schedule("sparse", name, tuple(kernels), tile, flash_peak_bytes(w, table), (note,))


def _kernel(w: Workload, gpu: Gpu, masked: MaskTile, counts: TileCounts, entry: str) -> Kernel:
    tile, block = masked.forward, masked.block
    turns, share = block // tile.keys, block // tile.rows
    row = np.arange(-(-w.seq_q // tile.rows))
    last_rows = w.seq_q - (len(row) - 1) * tile.rows
    short = (row == len(row) - 1) & (last_rows < tile.rows)
    table = counts.partial[row // share] * turns, (counts.visits - counts.partial)[row // share] * turns, short
    (part, full, short), inverse = classes(*table)
    ops = _Operations(w, tile, lse=True)
    loads = (ops.load("K", tile.keys), ops.load("V", tile.keys))
    busy, steps = part + full > 0, part + full
    across = counts.tiles.key_tiles
    begin: tuple[TileOp, ...] = (TileOp("load", COUNTS, bytes=COUNTS_BYTES), TileOp("wait", COUNTS))
    look_up: tuple[TileOp, ...] = TileOp("load", LIST, bytes=ENTRY_BYTES), TileOp("wait", LIST)
    looks = steps // turns
    if masked.scanned:
        begin = (TileOp("load", TABLE, bytes=across), TileOp("wait", TABLE))
        look_up, looks = (TileOp("delay", "scan", clks=SCAN_CLKS),), np.full_like(steps, across * turns)

    def step(masked: bool, more: bool) -> Segment:
        name = f"{'partial' if masked else 'full'} tile{'' if more else ', last'}"
        waits = (TileOp("wait", "K"), TileOp("wait", "V"), TileOp("delay", "step"))
        return Segment(name, (*waits, *(loads if more else ()), ops.scores(), ops.softmax(masked), ops.output()))

    nest: Nest = []
    for size, here in ((tile.rows, short == 0), (last_rows, short == 1)):
        nest.append((Segment(f"begin ({size} rows)", (*begin, TileOp("delay", "block"), ops.load_q(size))), here))
    nest += [
        (Segment("look up", look_up), looks),
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
    if tile.order == "longest_first":
        inverse = inverse[np.argsort(-steps[inverse], kind="stable")]
    lists = (
        TensorUse(COUNTS, counts.tiles.row_tiles * COUNTS_BYTES, 1, running),
        TensorUse(LIST, max(1, int(counts.visits.sum())) * ENTRY_BYTES, 1, running),
    )
    uses = (
        TensorUse("Q", w.seq_q * w.head_dim * e, heads),
        *keys_uses(w, counts, len(row) * w.group, running),
        *((TensorUse(TABLE, counts.tiles.row_tiles * across, 1, running),) if masked.scanned else lists),
        TensorUse("O", w.seq_q * w.head_dim_v * w.output_bytes, heads, written=True),
        TensorUse("LSE", w.seq_q * 4, heads, written=True),
    )
    return tiled_kernel(w, tile, entry, nest, (Launch(inverse, heads),), uses)


RECORDS = (record(NAME, build), record(SCANNED, build_scanned))
