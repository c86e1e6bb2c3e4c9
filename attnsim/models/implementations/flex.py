"""FlexAttention, compiled by Triton: ``torch/_inductor/template_heuristics`` and ``kernel/flex_attention.py`` (2.7).

The tiles are the defaults of the templates, which PyTorch uses unless autotuning is requested. Few queries are decoded
by a separate kernel that splits the keys over blocks.

Kernels that walk a mask made at run time in blocks: FlexAttention's BlockMask and flex-block-attn's table.

FlexAttention (``torch/_inductor/kernel/flex_attention.py`` of PyTorch 2.7, `forward_inner`): a thread block has 128
queries and reads the lists of partly visible blocks of 128 x 128 (`kv_num_blocks`, `kv_indices`) and of full ones
(`full_kv_num_blocks`, `full_kv_indices`). In partly visible blocks the mask's function is computed for every score; a
block is always walked whole. flex-block-attn (``flex_block_attn/flex_block_attn_h100.cu`` of
Tencent-Hunyuan, commit 4ca54be, `fwd_attend_ker`, on ThunderKittens) has whole blocks only, of 64 keys or multiples;
its producer and its one to three consumer warpgroups read a byte for each tile of keys, walked or not. Making the mask
is not part of either.

FlexAttention's backward, `flex_attention_backward`, is one grid: first the blocks for dK and dV, then those for dQ. For
each head of K and V, the blocks of keys walk the queries that see them, the heads of a group in turn (`q_num_blocks`,
`full_q_num_blocks`). Then, for each of its query heads, the blocks of queries walk the keys that they see. Partly
visible blocks come first. Its tiles are those of the backward without a BlockMask, for dQ with rows and keys exchanged
(`BLOCK_M2`, `BLOCK_N2`). Every step looks up its block and the one after.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.backward import KEYS_OUTSIDE, BackwardOps, dot_do_o, two_pass_backward
from attnsim.models.implementations.fused.building import (
    Attended,
    each_way,
    fitting,
    one_query,
    override,
)
from attnsim.models.implementations.fused.forward import (
    WAIT_Q,
    Operations,
    flash_forward,
    flash_peak_bytes,
    listed_keys,
    operands,
    results,
    tiled_kernel,
)
from attnsim.models.implementations.fused.splits import combine
from attnsim.models.implementations.fused.tile import BackwardTile, FlashTile, fits
from attnsim.models.implementations.implementation import TileRequest, preset, record
from attnsim.models.implementations.selecting.walks import LIST as SELECTED
from attnsim.models.implementations.selecting.walks import Walk, keys_outside, rows_outside
from attnsim.models.mask.mask import Mask
from attnsim.models.mask.tile_counts import TileCounts
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Tensor, uses_of
from attnsim.models.schedule.operation import BLOCK, STEP, TileOp, by_size, loop, once
from attnsim.models.schedule.row_tiles import classes
from attnsim.models.schedule.schedule import Kernel, Launch, Path, Schedule, bytes_of
from attnsim.models.schedule.splits import UNCUT, Splits

FLEX = "torch.flex"
FEW_QUERIES = 128
"""Queries below which the decoding kernel runs (`_use_flex_decoding`)."""

Shape = tuple[int, int, int]
"""Rows, keys, warps."""
_AMPERE: dict[int, Shape] = {64: (128, 64, 4), 128: (128, 64, 8), 256: (32, 64, 4)}
_HOPPER: dict[int, Shape] = {64: (128, 128, 4), 128: (128, 64, 8), 256: (64, 32, 4)}
_BLACKWELL: dict[int, Shape] = {64: (128, 128, 4), 128: (128, 64, 8), 256: (64, 32, 4)}
"""`sm_100_default_flex_config` of 2.9, fp16 as bf16."""
_OTHERS: Shape = (128, 64, 4)
_WIDE: Shape = (64, 32, 4)
"""Above head_dim 256 (`get_flex_attn_fwd_configs`)."""
_STAGES = 3


def _path(gpu: Gpu, rows: int) -> Path:
    """Instruction path that Triton chooses for a warpgroup of 64 rows: wgmma, or tcgen05 on data-centre Blackwell."""
    if rows < 64:
        return "mma_sync"
    return "tcgen05" if gpu.features.tcgen05 else "wgmma" if gpu.features.wgmma else "mma_sync"


def choose_tile(w: Workload, gpu: Gpu) -> FlashTile:
    """Default of the forward template, with fewer stages, keys or rows if it does not fit."""
    d = max(w.head_dim, w.head_dim_v)
    listed = _BLACKWELL if gpu.features.tcgen05 else _HOPPER if gpu.features.wgmma else _AMPERE
    rows, keys, warps = listed.get(d, _OTHERS if d <= 256 else _WIDE)
    if gpu.features.wgmma and d == 128 and w.dtype == "fp16":
        keys = 128
    for height in (rows, rows // 2):
        for width in (keys, keys // 2):
            for stages in range(_STAGES, 0, -1):
                path = _path(gpu, height)
                groups = 1 if path == "tcgen05" else max(1, warps // 4)
                tile = FlashTile(height, width, warps=warps, loop="staged", stages=stages, path=path, warpgroups=groups)
                tile = replace(tile, rescale="through_registers") if path == "tcgen05" else tile
                if fits(tile, w, gpu):
                    return tile
    return tile


def decode_tile(w: Workload, gpu: Gpu) -> FlashTile:
    """Decoding template: the heads of a group in at least 16 rows."""
    rows = max(16, 1 << (w.seq_q * w.group - 1).bit_length())
    keys = 128 if max(w.head_dim, w.head_dim_v) <= 64 else 64
    return fitting(FlashTile(min(rows, 128), keys, loop="staged", stages=_STAGES, pack_gqa=True), w, gpu)


def choose_backward(w: Workload, gpu: Gpu) -> BackwardTile:
    """The backward template's default."""
    d, hopper = max(w.head_dim, w.head_dim_v), gpu.features.wgmma
    rows, keys, warps = (64, 128, 8) if d == 128 else (32, 128, 4) if d == 64 and not hopper else (64, 64, 4)
    if gpu.features.tcgen05:  # `get_flex_attn_bwd_configs` of 2.9, "sm10x"
        rows, keys, warps = (64, 128, 4) if d <= 128 else (64, 64, 4)
    if d > 256:
        rows, keys, warps = 16, 16, 4
    if gpu.sm.shared_memory_per_block_bytes < 128 << 10:
        keys = min(keys, 64)
    return BackwardTile(rows, keys, warps=warps, stages_q=1, v_in_registers=d > 128, path=_path(gpu, rows))


def flex(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """FlexAttention with a mask that its block mask represents exactly: no scores are computed outside."""
    w_main = one_query(w)

    def forward() -> Attended:
        few = w.seq_q < FEW_QUERIES and w.passes in ("fwd", "decode")
        tile = override(decode_tile(w, gpu) if few else choose_tile(w, gpu), shape, w_main, gpu)
        splits = Splits(_split_count(w, gpu, tile)) if few else UNCUT
        main = flash_forward(w_main, gpu, tile, splits=splits)
        return [main, *([combine(w, splits.count, 4, 128)] if splits.partial else [])], tile, splits

    return each_way(w, FLEX, shape, forward, lambda: choose_backward(w, gpu), two_pass_backward)


def _split_count(w: Workload, gpu: Gpu, tile: FlashTile) -> int:
    """Two blocks per SM, each with at least one key tile (`get_split_k`)."""
    heads = w.batch * w.heads_kv
    return max(1, min(2 * (gpu.sm.count // heads), -(-w.seq_kv // tile.keys)))


NAME, SCANNED = "torch.flex-mask", "tencent.flex-block-attn"
LOOKED_UP = 8
"""Bytes of two list entries."""
MASK_BLOCK = 128
"""Queries and keys of a block of the mask (`_DEFAULT_SPARSE_BLOCK_SIZE`)."""
COUNTS, LIST, TABLE = "block counts", "block list", "block table"
COUNTS_BYTES, ENTRY_BYTES = 8, 4
WIDTH = 128
"""The only head_dim of flex-block-attn."""
SCANNED_TILES = {384: (192, 128), 256: (128, 128), 128: (64, 128), 64: (64, 64)}
"""Tiles of flex-block-attn, queries x keys, by the size of the mask's blocks, the largest first."""
SCAN_CLKS = by_hand(40, "clocks of reading a byte of the table and branching on it: a hit in L1")
PATTERN_INSTRUCTIONS = by_hand(4, "FP32-lane instructions a score and pattern of a mask's function: index, look up, or")


@dataclass(frozen=True, slots=True)
class MaskTile:
    """A tile that walks blocks of a mask.

    Parameters
    ----------
    block : int
        Queries and keys of a block.
    scanned : bool
        Whether a table of all blocks is read, instead of lists of the visible ones.
    """

    forward: FlashTile
    block: int = MASK_BLOCK
    scanned: bool = False
    backward: BackwardTile | None = None

    @property
    def rows(self) -> int:
        """Queries per list."""
        return self.forward.rows

    @property
    def keys(self) -> int:
        """Keys per list entry."""
        return self.block

    def __str__(self) -> str:
        return f"{self.forward}, blocks of {self.block}"


class _Operations(Operations):
    """Operations with the mask's function, whose cost depends on its patterns."""

    def softmax(self, masked: bool, first: bool = False) -> TileOp:
        """Online softmax; if masked, with the mask's function."""
        plain, more = super().softmax(masked, first), masked * function_instructions(self.w.mask)
        return plain._replace(fp32=plain.fp32 + more * self.rows * self.tile.keys)


def function_instructions(mask: Mask) -> int:
    """FP32-lane instructions of a mask's function, beyond one comparison."""
    return PATTERN_INSTRUCTIONS * len(mask.parts)


def counts_of(w: Workload, tile: MaskTile) -> TileCounts:
    """Partly and fully visible blocks of the blocks of queries of a head."""
    return w.mask.tile_counts(w.seq_q, w.seq_kv, max(tile.block, tile.rows), tile.block)


def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """FlexAttention's single kernel for each pass.

    Raises
    ------
    InputError
        If the tile does not fit, does not divide a block of the mask, or has no kernel.
    """
    own = replace(choose_tile(w, gpu), loop="ring")
    tile = override(own, shape, w, gpu)
    if tile.pack_gqa or tile.persistent or tile.stages != own.stages:
        raise InputError(f"{NAME} packs no query heads, keeps no blocks and copies one tile ahead; leave the rest out")
    if MASK_BLOCK % tile.keys or MASK_BLOCK % tile.rows:
        raise InputError(
            f"{NAME}: the tile {tile.rows} x {tile.keys} does not divide blocks of {MASK_BLOCK}; take 128 x 64"
        )
    return _schedule(w, gpu, MaskTile(tile, backward=choose_backward(w, gpu)), NAME, "flex_attention")


def build_scanned(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """flex-block-attn's forward kernel.

    Raises
    ------
    InputError
        If it does not support a width, a length or the mask.
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
    """Tile for the largest block size that the mask consists of (`attention_forward` chooses by it)."""
    for block, (rows, keys) in SCANNED_TILES.items():
        if w.seq_q % block or w.seq_kv % block:
            continue
        groups = rows // 64
        flash = FlashTile(rows, keys, warps=4 * groups, warpgroups=groups, **preset("flex-block-attn"))
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
    turns, share, across = block // tile.keys, block // tile.rows, counts.tiles.key_tiles
    axes = {
        "b": Axis(w.batch),
        "h": Axis(w.heads_kv),
        "g": Axis(w.group),
        "j": Axis(w.seq_kv, tile.keys),
        "i": Axis(w.seq_q, tile.rows, cuts="lists entries"),
        "lists": Axis(counts.tiles.row_tiles),
        "blocks": Axis(across),
        "entries": Axis(max(1, int(counts.visits.sum()))),
    }
    number, heads = axes["i"].tiles, w.batch * w.heads_q
    part, full = ((n * turns)[np.arange(number) // share] for n in (counts.partial, counts.visits - counts.partial))
    (part, full, missing), inverse = classes(part, full, axes["i"].missing)
    steps = part + full
    (q, k, v), stored = operands(w, seen=listed_keys(counts)), results(w)
    read, listed = Tensor(COUNTS, "lists", COUNTS_BYTES), Tensor(LIST, "entries", ENTRY_BYTES)
    table = Tensor(TABLE, "lists blocks", 1)
    ops = _Operations(w, tile)

    def begin(short: int) -> Iterator[TileOp]:
        yield from (table.load(across), table.wait()) if masked.scanned else (read.load(), read.wait())
        yield from (BLOCK, q.load(tile.rows - short))

    def turn(load_next: bool, masked: bool) -> Iterator[TileOp]:
        yield from (k.wait(), v.wait(), STEP)
        if load_next:
            yield from (k.load(tile.keys), v.load(tile.keys))
        yield from (ops.scores(), ops.softmax(masked), ops.output())

    if masked.scanned:
        looked = once("look at a block", [TileOp("delay", "scan", clks=SCAN_CLKS)], across * turns)
    else:
        looked = once("look up", [listed.load(), listed.wait()], steps // turns)
    nest = [
        *by_size("begin", missing, begin),
        *looked,
        *once("first tile", [k.load(tile.keys), v.load(tile.keys), WAIT_Q], steps > 0),
        *loop("tile", steps, turn, load_next=steps - 1, masked=part),
        *by_size("end", missing, lambda n: (BLOCK, *(one.store(tile.rows - n) for one in stored))),
    ]
    if tile.order == "longest_first":
        inverse = inverse[np.argsort(-steps[inverse], kind="stable")]
    uses = uses_of((q, k, v, *((table,) if masked.scanned else (read, listed)), *stored), axes, "b h g i")
    return tiled_kernel(w, tile, entry, nest, (Launch(inverse, heads),), uses)


def walks_of(w: Workload, tile: BackwardTile, counts: TileCounts, block: int, function: int) -> tuple[Walk, Walk]:
    """Walks of the blocks for dK and dV (of a head of K and V), and of the blocks for dQ (of a head)."""

    def walk(visits: Ints, partial: Ints, tiles: int, height: int, width: int, times: int) -> Walk:
        """Tiles of `height` outside, of `width` passing, each list walked `times` times over."""
        place = np.arange(tiles) * height // block
        each = times * -(-block // width)
        return Walk(each * visits[place], LOOKED_UP, each * partial[place], function)

    queries, keys = -(-w.seq_q // tile.keys), -(-w.seq_kv // tile.keys)
    return (
        walk(counts.key_visits, counts.key_partial, keys, tile.keys, tile.rows, w.group),
        walk(counts.visits, counts.partial, queries, tile.keys, tile.rows, 1),
    )


def backward(w: Workload, tile: BackwardTile, counts: TileCounts, block: int, function: int) -> list[Kernel]:
    """Row sums of dO and O, then the single kernel."""
    by_keys, by_rows = walks_of(w, tile, counts, block, function)
    one = replace(w, heads_q=w.heads_kv)  # a block sums over the heads of a group
    keys = keys_outside(one, tile, by_keys, "keys")
    # The tile of the blocks for dQ.
    rows = rows_outside(w, replace(tile, rows=tile.keys, keys=tile.rows), by_rows, tile.keys, "rows")
    outer = max(keys.repeats.shape[1], rows.repeats.shape[1])
    repeats = np.zeros(
        (len(keys.repeats) + len(rows.repeats), outer, len(keys.segments) + len(rows.segments)), np.int64
    )
    repeats[: len(keys.repeats), : keys.repeats.shape[1], : len(keys.segments)] = keys.repeats
    repeats[len(keys.repeats) :, : rows.repeats.shape[1], len(keys.segments) :] = rows.repeats
    of_rows = np.tile(rows.launches[0].rows + len(keys.repeats), w.group)
    axes = {"b": Axis(w.batch), "h": Axis(w.heads_kv), "g": Axis(w.group), "i": Axis(w.seq_q), "j": Axis(w.seq_kv)}
    heads, kv = w.batch * w.heads_q, w.batch * w.heads_kv
    entries = (int(by_keys.steps.sum()) * kv + int(by_rows.steps.sum()) * heads) * LOOKED_UP
    axes["byte"] = Axis(max(1, entries // heads))
    # Tiles of keys, then of queries, each with its own results.
    tiles = len(by_keys.steps) + w.group * len(by_rows.steps)
    axes |= {"t": Axis(tiles, cuts="byte row key"), "row": axes["i"], "key": axes["j"]}
    ops = BackwardOps(one, tile, KEYS_OUTSIDE)
    results = *(replace(tensor, axes="b h key") for tensor in ops.outputs), replace(ops.dq, axes="b h g row")
    tensors = (ops.q, ops.do, *ops.statistics, ops.k, ops.v, Tensor(SELECTED, "byte", 1), *results)
    merged = replace(
        keys,
        name="flex_attention_backward",
        buffers=max(keys.buffers, rows.buffers, key=bytes_of),
        segments=(*keys.segments, *rows.segments),
        repeats=repeats,
        launches=(Launch(np.concatenate([keys.launches[0].rows, of_rows]), kv),),
        uses=uses_of(tensors, axes, "b h t"),
    )
    return [dot_do_o(w), merged]


RECORDS = (record(FLEX, flex), record(NAME, build), record(SCANNED, build_scanned))
