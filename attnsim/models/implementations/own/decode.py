"""Schedule of ``kernels/cuda/decode.cu`` and ``decode_combine.cu``: split-KV decoding with the heads of a group packed.

A block is 16 packed rows and a range of the keys; its warps share out the keys, each with a ring of buffers and a
softmax of its own, so that no barrier interrupts the stream from HBM. Splitting the keys over blocks and combining
them afterwards is Flash-Decoding (Dao, Haziza, Massa, Sizov, 2023, https://pytorch.org/blog/flash-decoding).
"""

from __future__ import annotations

import numpy as np

from attnsim.arrays import Ints
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.building import flash_schedule
from attnsim.models.implementations.fused.forward import block_begins
from attnsim.models.implementations.fused.loops import MASK_INSTRUCTIONS
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.implementations.own.decode_tiles import (
    NAME,
    ROWS,
    DecodeTile,
    choose_splits,
    choose_tile,
    queries,
    reachable,
    row_tiles,
    tile_range,
)
from attnsim.models.implementations.own.resources import ELEMENT, TURN, counts_of, kernel_label, registers_of
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import StepCounts, product
from attnsim.models.schedule.nest import Nest, loop_nest
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.row_tiles import classes
from attnsim.models.schedule.schedule import Kernel, Launch, Schedule
from attnsim.models.schedule.splits import Splits
from attnsim.models.schedule.uses import TensorUse

SPLIT, COMBINE = "decode_split", "decode_combine"
LSE, VALUES, WEIGHTS, MERGE, ODD = "LSE", "values", "weights", "merge", "odd"
"""Parts of the combine kernel: what a warp does up to its first load, from there until it waits for that, and then
until it waits for values; what only some of its warps run; a further round where their number is odd."""
COMBINE_WARPS = 4
COMBINE_AHEAD = 4 * COMBINE_WARPS
"""Splits of a row whose values the combine kernel has in flight at a time, four for each warp."""


def combine_constants(w: Workload) -> tuple[tuple[str, int | str], ...]:
    """Compile-time constants of the combine kernel."""
    return (("ELEMENT", ELEMENT[w.dtype]), ("HEAD_DIM", w.head_dim), ("WARPS", COMBINE_WARPS))


def combine_shared_memory_bytes(head_dim: int) -> int:
    """O of each warp in fp32, its maximum and its sum."""
    return COMBINE_WARPS * (head_dim + 2) * 4


def decode_schedule(w: Workload, gpu: Gpu, tile: DecodeTile, splits: int) -> Schedule:
    """The split kernel and, with more than one split, the combine kernel."""
    w = reachable(w)
    kernels = [_split_kernel(w, gpu, tile, splits)]
    if splits > 1:
        kernels.append(_combine_kernel(w, gpu, splits))
    return flash_schedule(w, NAME, kernels, tile, Splits(splits))


def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """The schedule with the tile and the splits that the operation chooses.

    Raises
    ------
    InputError
        When the kernel is not written for the workload or not compiled for the tile.
    """
    tile = choose_tile(w, gpu, shape)
    return decode_schedule(w, gpu, tile, choose_splits(w, gpu, tile))


def _partly_seen(w: Workload, keys: int, begin: Ints, end: Ints) -> Ints:
    """Key tiles in ``[begin, end)`` that some row of the row tile does not see whole."""
    first, last = queries(w)
    shift = w.seq_kv - w.seq_q
    low = np.zeros_like(last) if w.mask.left is None else np.maximum(0, last + shift - w.mask.left)
    high = np.full_like(first, w.seq_kv)
    if w.mask.right is not None:
        high = np.clip(first + shift + w.mask.right + 1, 0, w.seq_kv)
    before, after = np.clip(-(-low // keys), begin, end), np.clip(high // keys, begin, end)
    partly: Ints = np.minimum(end - begin, before - begin + end - after)
    return partly


def _split_kernel(w: Workload, gpu: Gpu, tile: DecodeTile, splits: int) -> Kernel:
    first, stop = tile_range(w, tile.keys)
    split = np.arange(splits, dtype=np.int64)[:, None]
    begin, end = (first + (stop - first) * part // splits for part in (split, split + 1))
    key_tiles = -(-w.seq_kv // tile.keys)
    last_keys = w.seq_kv - (key_tiles - 1) * tile.keys
    last_rows = w.seq_q * w.group - (row_tiles(w) - 1) * ROWS
    shorter = (np.arange(row_tiles(w)) == row_tiles(w) - 1) & (last_rows < ROWS)
    (steps, masked, ragged_keys, ragged_rows), inverse = classes(
        (end - begin).ravel(),
        _partly_seen(w, tile.keys, begin, end).ravel(),
        ((end > begin) & (end == key_tiles) & (last_keys < tile.keys)).ravel(),
        np.tile(shorter, splits),
    )
    label = kernel_label(SPLIT, tile.constants(w.dtype))
    nest = _nest(
        w, tile, counts_of(label, gpu), splits, (steps, masked, ragged_keys, ragged_rows), last_keys, last_rows
    )
    segments, repeats = loop_nest(nest)
    kv_heads, rows = w.batch * w.heads_kv, w.batch * w.heads_q
    e, d = w.element_bytes, w.head_dim
    return Kernel(
        name=SPLIT,
        threads=tile.threads,
        registers_per_thread=registers_of(label, gpu, tile.threads),
        segments=segments,
        repeats=repeats,
        launches=(Launch(inverse, kv_heads),),
        uses=(
            TensorUse("Q", w.seq_q * d * e, rows, splits),
            TensorUse("K", w.seq_kv * d * e, kv_heads, row_tiles(w)),
            TensorUse("V", w.seq_kv * d * e, kv_heads, row_tiles(w)),
            *_outputs(w, splits),
        ),
        path="mma_sync",
        buffers=tile.buffers,
        dtype=w.dtype,
        step="key tile",
    )


def _outputs(w: Workload, splits: int) -> tuple[TensorUse, TensorUse]:
    rows, width = w.batch * w.heads_q * splits, w.seq_q * w.head_dim
    if splits > 1:
        o, lse = "O partial", "LSE partial"
        return TensorUse(o, width * 4, rows, written=True), TensorUse(lse, w.seq_q * 4, rows, written=True)
    return (
        TensorUse("O", width * w.output_bytes, rows, written=True),
        TensorUse("LSE", w.seq_q * 4, rows, written=True),
    )


def _nest(
    w: Workload,
    tile: DecodeTile,
    counts: StepCounts | None,
    splits: int,
    block: tuple[Ints, Ints, Ints, Ints],
    last_keys: int,
    last_rows: int,
) -> Nest:
    """The loop nest and, by block class, how often each segment runs.

    Key tiles are walked from the last, the shorter one, to the first.
    """
    steps, masked, ragged_keys, ragged_rows = block
    d, e = w.head_dim, w.element_bytes
    partial, width = (" partial", 4 * d) if splits > 1 else ("", w.output_bytes * d)

    def copies(keys: int) -> tuple[TileOp, TileOp]:
        return TileOp("load", "K", bytes=keys * d * e), TileOp("load", "V", bytes=keys * d * e)

    def begin(rows: int) -> tuple[TileOp, ...]:
        return block_begins(d, d), TileOp("load", "Q", bytes=rows * d * e)

    def finish(rows: int) -> tuple[TileOp, ...]:
        return (
            TileOp("delay", "block"),  # with the merging of the warps' states
            TileOp("store", f"O{partial}", bytes=rows * width),
            TileOp("store", f"LSE{partial}", bytes=rows * 4),
        )

    filled = np.minimum(steps, tile.stages)
    refilling = steps - filled
    masked_last = np.minimum(masked, filled)
    masked_refilling = masked - masked_last
    return [
        (Segment("prologue", begin(ROWS)), 1 - ragged_rows),
        (Segment("prologue (last rows)", begin(last_rows)), ragged_rows),
        (Segment("fill (last keys)", copies(last_keys)), ragged_keys),
        (Segment("fill", copies(tile.keys)), filled - ragged_keys),
        (Segment("wait Q", (TileOp("wait", "Q"),)), np.ones_like(steps)),
        (_step("masked step", w, tile, counts, refill=True, mask=True), masked_refilling),
        (_step("step", w, tile, counts, refill=True, mask=False), refilling - masked_refilling),
        (_step("masked step, no load", w, tile, counts, refill=False, mask=True), masked_last),
        (_step("step, no load", w, tile, counts, refill=False, mask=False), filled - masked_last),
        (Segment("epilogue", finish(ROWS)), 1 - ragged_rows),
        (Segment("epilogue (last rows)", finish(last_rows)), ragged_rows),
    ]


def _step(name: str, w: Workload, tile: DecodeTile, counts: StepCounts | None, *, refill: bool, mask: bool) -> Segment:
    """One tile of keys: every warp multiplies 16 rows by keys of its own, and rescales an O of its own.

    Each row's factor is computed by four lanes.
    """
    d, e = w.head_dim, w.element_bytes
    flops = 2 * ROWS * tile.keys * d
    scores, states = ROWS * tile.keys, tile.warps * ROWS
    exps, rescaled = scores + 4 * states, states * d
    if counts:
        softmax = counts.softmax(scores, exps, rescaled, counts.hiding(scores, MASK_INSTRUCTIONS) * mask)
    else:
        softmax = TileOp("vector", "P", scores=scores, exps=exps, fp32=rescaled + MASK_INSTRUCTIONS * scores * mask)
    first = TileOp("mma", "S", flops=flops, smem_bytes=(tile.keys + _query_rows_read(w, tile)) * d * e)
    second = TileOp("mma", "O", flops=flops, smem_bytes=tile.keys * d * e)
    load_k, load_v = (TileOp("load", tensor, bytes=tile.keys * d * e) for tensor in "KV")
    return Segment(
        name,
        (
            TileOp("wait", "K"),
            TileOp("delay", "step"),
            product(first) if counts else first,
            *((load_k,) if refill else ()),
            softmax,
            TileOp("wait", "V"),
            product(second) if counts else second,
            *((load_v,) if refill else ()),
        ),
    )


def _query_rows_read(w: Workload, tile: DecodeTile) -> int:
    """Rows of Q read from shared memory in a step: none while registers hold them, all by each warp at 256 columns."""
    return tile.warps * ROWS if w.head_dim > 128 else 0


def _combine_kernel(w: Workload, gpu: Gpu, splits: int) -> Kernel:
    """One block a row: its warps share out the splits, in rounds of `COMBINE_AHEAD`."""
    rows, d = w.batch * w.heads_q * w.seq_q, w.head_dim
    first, threads = min(splits, COMBINE_AHEAD), 32 * COMBINE_WARPS
    rounds, rest = divmod(splits - first, COMBINE_AHEAD)
    alone = (rounds + (rest > 0)) % 2  # of the further rounds, which the loop does two a turn
    rounds, rest = (rounds - 1, COMBINE_AHEAD) if alone and not rest else (rounds, rest)

    label = kernel_label(COMBINE, combine_constants(w))
    parts = TURN, ODD, LSE, VALUES, WEIGHTS, "", MERGE
    turn, odd, begun, ahead, weighing, each, merge = (counts_of(label, gpu, part) for part in parts)

    def values(n: int, counts: StepCounts | None = turn) -> tuple[TileOp, TileOp, TileOp]:
        return (
            TileOp("load", "O partial", bytes=n * d * 4),
            TileOp("wait", "O partial"),
            counts.work("O", threads) if counts else TileOp("vector", "O", fp32=2 * n * d),
        )

    fetch, arrive, add = values(first)
    lse: tuple[TileOp, ...] = (TileOp("load", "LSE partial", bytes=splits * 4),)
    if begun and ahead and weighing and each:
        lse = begun.work("addresses of LSE", threads), *lse, ahead.work("addresses of O", threads)
        weights, add = weighing.work("weights", threads, threads), each.work("O", threads)
    else:
        weights = TileOp("vector", "weights", exps=threads, fp32=4 * threads)  # by whole warps, shuffles in between
    merged = TileOp("vector", "merge", fp32=2 * COMBINE_WARPS * d)
    merged = (merge.work("merge", d // 2) if merge else merged)._replace(exps=COMBINE_WARPS * d // 2)
    nest: Nest = [
        (Segment("first splits", (*lse, fetch, TileOp("wait", "LSE partial"), weights, arrive, add)), 1),
        (Segment(f"{COMBINE_AHEAD} splits", values(COMBINE_AHEAD)), rounds),
        (Segment("last splits", values(rest, odd if alone else turn)), int(rest > 0)),
        (
            Segment(
                "merge",
                (
                    merged,
                    TileOp("delay", "step"),
                    TileOp("store", "O", bytes=d * w.output_bytes),
                    TileOp("store", "LSE", bytes=4),
                ),
            ),
            1,
        ),
    ]
    segments, repeats = loop_nest(nest)
    return Kernel(
        name=COMBINE,
        threads=threads,
        registers_per_thread=registers_of(label, gpu, threads),
        buffers=(("O, maxima, sums", combine_shared_memory_bytes(d)),),
        segments=segments,
        repeats=repeats,
        launches=(Launch.alike(rows),),
        uses=(
            TensorUse("O partial", rows * d * 4, splits),
            TensorUse("LSE partial", rows * 4, splits),
            TensorUse("O", rows * d * w.output_bytes, 1, written=True),
            TensorUse("LSE", rows * 4, 1, written=True),
        ),
        dtype="fp32",
        step="splits",
    )


RECORD = record(NAME, build)
