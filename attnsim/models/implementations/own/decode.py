"""Schedule of ``kernels/cuda/decode.cu`` and ``decode_combine.cu``: split-KV decoding with the heads of a group packed.

A block is 16 packed rows and a range of the keys. Its warps divide the keys, each with its own ring of buffers and its
own softmax, so that no barrier interrupts the stream from HBM. Splitting the keys over blocks and combining
them afterwards is Flash-Decoding (Dao, Haziza, Massa, Sizov, 2023, https://pytorch.org/blog/flash-decoding).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.building import flash_schedule
from attnsim.models.implementations.fused.forward import MASK_INSTRUCTIONS, block_begins
from attnsim.models.implementations.fused.splits import MAX_SPLITS
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.implementations.own.resources import (
    ELEMENT,
    OPTIONS,
    TURN,
    Compiled,
    asked_for,
    check_compiled,
    counts_of,
    kernel_label,
    registers_of,
)
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Tensor, declared
from attnsim.models.schedule.instructions import StepCounts, product
from attnsim.models.schedule.operation import BLOCK, STEP, Nest, TileOp, by_size, loop, once
from attnsim.models.schedule.row_tiles import visible_keys
from attnsim.models.schedule.schedule import Buffers, Kernel, Schedule, check_shared_memory
from attnsim.models.schedule.splits import Splits

NAME = "attnsim.decode"
ROWS = 16
"""Packed rows of a block, row ``r`` being query ``r // group`` of head ``r % group``."""
SLICE = 16
"""Keys that a warp loads and multiplies at a time."""


@dataclass(frozen=True, slots=True)
class DecodeTile(Compiled):
    """One compilation of the split kernel.

    Parameters
    ----------
    warps : int
        Warps, each with `SLICE` keys of a step.
    stages : int
        Slices of K and of V in a warp's ring.
    residents : int
        Resident blocks per SM from which the tile pays.
    """

    head_dim: int
    warps: int
    stages: int
    residents: int

    @property
    def rows(self) -> int:
        """Packed rows of a block."""
        return ROWS

    @property
    def keys(self) -> int:
        """Keys of a block's step."""
        return SLICE * self.warps

    @property
    def buffers(self) -> Buffers:
        """Shared-memory buffers of a block and their bytes."""
        return (("Q", ROWS * self.head_dim * 2), ("K", self.ring_bytes // 2), ("V", self.ring_bytes // 2))

    @property
    def ring_bytes(self) -> int:
        """Bytes of K and V that a block can have in flight."""
        return 2 * self.stages * self.keys * self.head_dim * 2

    def blocks_per_sm(self, gpu: Gpu) -> int:
        """Resident blocks per SM by shared memory, which is the limiting resource here."""
        fits = self.shared_memory_bytes <= gpu.sm.shared_memory_per_block_bytes
        return self.blocks_in_shared_memory(gpu) if fits else 0

    def constants(self, dtype: str, options: bool = False) -> tuple[tuple[str, int | str], ...]:
        """Compile-time constants of the kernel; with `options`, of the compilation that supports options of a call."""
        head_dim, warps, stages = ("HEAD_DIM", self.head_dim), ("WARPS", self.warps), ("STAGES", self.stages)
        return (("ELEMENT", ELEMENT[dtype]), head_dim, warps, stages, *(OPTIONS if options else ()))

    def __str__(self) -> str:
        return f"{ROWS} x {self.keys}, {self.warps} warps, {self.stages} stages, GQA packed"


TILES = {
    64: (DecodeTile(64, 4, 4, 2), DecodeTile(64, 4, 2, 1)),
    128: (DecodeTile(128, 4, 3, 2), DecodeTile(128, 4, 2, 1)),
    256: (DecodeTile(256, 4, 3, 1), DecodeTile(256, 4, 2, 1), DecodeTile(256, 2, 2, 1)),
}
"""Tiles by head_dim, most bytes in flight first."""
IN_FLIGHT = by_hand(4.0, "copies kept in flight over what Little's law asks for (bandwidth x latency)")
"""Latency about doubles when HBM is busy, and a warp computes on a part of its ring instead of waiting for it."""


def choose_tile(w: Workload, gpu: Gpu, shape: TileRequest | None = None) -> DecodeTile:
    """The first tile of `TILES` with its wanted number of resident blocks on `gpu`; otherwise the first that fits.

    Raises
    ------
    InputError
        If the kernel does not support the workload or the tile, or nothing fits.
    """
    check_takes(w)
    tiles = asked_for(TILES[w.head_dim], shape, NAME, w.head_dim)
    for tile in tiles:
        if tile.blocks_per_sm(gpu) >= tile.residents:
            return tile
    smallest = tiles[-1]
    check_shared_memory(f"{NAME} at head_dim {w.head_dim}", smallest.buffers, gpu)
    return smallest


def check_takes(w: Workload) -> None:
    """Refuse a workload that the kernel does not support."""
    check_compiled(NAME, w, TILES)
    if not w.mask.is_band:
        raise InputError(f"{NAME} takes bands (full, causal, a window), not the mask {w.mask}; take attnsim.sparse")


def choose_splits(w: Workload, gpu: Gpu, tile: DecodeTile) -> int:
    """Number of ranges of keys: the fewest within 5 % of the best bandwidth.

    The criterion is the share of the time in which enough blocks run to keep HBM busy. One or two per SM do.
    ``split_count``, FlashAttention's rule for compute-bound kernels, would fill every slot and pay for it with partial
    results. Hence a last wave takes its share of the slots' time, but at least that of the blocks that HBM needs; and
    all blocks wait for those with one key tile more.
    """
    w = reachable(w)
    blocks = w.batch * w.heads_kv * row_tiles(w)
    slots = gpu.sm.count * max(1, tile.blocks_per_sm(gpu))
    first, stop = tile_range(w, tile.keys)
    key_tiles = max(1, int((stop - first).max()))
    counts = np.arange(1, min(MAX_SPLITS, key_tiles) + 1)
    waves = blocks * counts / slots
    last = waves - np.floor(waves)
    busy = waves / (np.floor(waves) + np.where(last > 0, np.maximum(last, _saturating(tile, gpu) / slots), 0))
    even = key_tiles / (counts * -(-key_tiles // counts))
    return int(counts[np.argmax(busy * even >= 0.95 * (busy * even).max())])


def _saturating(tile: DecodeTile, gpu: Gpu) -> float:
    """Blocks that keep HBM busy: `IN_FLIGHT` times bandwidth x latency in their rings, and at least one per SM."""
    latency_s = gpu.hbm.latency_clk / gpu.clock.full_hz
    needed = IN_FLIGHT * gpu.hbm.bandwidth_bytes_per_s * latency_s / tile.ring_bytes
    return min(max(needed, gpu.sm.count), gpu.sm.count * max(1, tile.blocks_per_sm(gpu)))


def reachable(w: Workload) -> Workload:
    """The workload without limits of its mask that hide nothing: a single query sees all keys before it."""
    mask = w.mask.within(w.seq_q, w.seq_kv)
    right = None if mask.right is not None and mask.right >= w.seq_q - 1 else mask.right
    return replace(w, mask=replace(mask, right=right))


def row_tiles(w: Workload) -> int:
    """Tiles of packed rows of a key head."""
    return -(-w.seq_q * w.group // ROWS)


def check_splits(splits: int) -> None:
    """Refuse a number of splits that the combine kernel's warps cannot hold."""
    if isinstance(splits, bool) or not isinstance(splits, int | np.integer) or not 1 <= splits <= MAX_SPLITS:
        raise InputError(f"splits is {splits!r}; allowed: a whole number from 1 to {MAX_SPLITS}, or None to choose")


def queries(w: Workload) -> tuple[Ints, Ints]:
    """First and last query of each row tile."""
    first = np.arange(row_tiles(w), dtype=np.int64) * ROWS
    return first // w.group, (np.minimum(first + ROWS, w.seq_q * w.group) - 1) // w.group


def tile_range(w: Workload, keys: int) -> tuple[Ints, Ints]:
    """Half-open range of key tiles that each row tile sees."""
    low, high = visible_keys(w, *queries(w))
    return low // keys, -(-high // keys)


SPLIT, COMBINE = "decode_split", "decode_combine"
LSE, VALUES, WEIGHTS, MERGE, ODD = "LSE", "values", "weights", "merge", "odd"
"""Parts of the combine kernel: up to a warp's first load; from there until it waits for that load; then until it waits
for values; work of some warps only; an additional round if their number is odd."""
COMBINE_WARPS = 4
COMBINE_AHEAD = 4 * COMBINE_WARPS
"""Splits of a row whose values the combine kernel has in flight at a time, four for each warp."""


def combine_constants(w: Workload) -> tuple[tuple[str, int | str], ...]:
    """Compile-time constants of the combine kernel."""
    return (("ELEMENT", ELEMENT[w.dtype]), ("HEAD_DIM", w.head_dim), ("WARPS", COMBINE_WARPS))


def combine_shared_memory_bytes(head_dim: int) -> int:
    """Bytes of O of each warp in fp32, its maximum and its sum."""
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
        If the kernel does not support the workload or the tile.
    """
    tile = choose_tile(w, gpu, shape)
    return decode_schedule(w, gpu, tile, choose_splits(w, gpu, tile))


def _partly_seen(w: Workload, keys: int, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Key tiles at the lower and the upper edge of ``[begin, end)`` that some row of a row tile sees only partly."""
    first, last = queries(w)
    shift = w.seq_kv - w.seq_q
    low = np.zeros_like(last) if w.mask.left is None else np.maximum(0, last + shift - w.mask.left)
    high = np.full_like(first, w.seq_kv)
    if w.mask.right is not None:
        high = np.clip(first + shift + w.mask.right + 1, 0, w.seq_kv)
    return np.clip(-(-low // keys), begin, end) - begin, end - np.clip(high // keys, begin, end)


def _split_kernel(w: Workload, gpu: Gpu, tile: DecodeTile, splits: int) -> Kernel:
    """A block for each head, range of keys and tile of packed rows; its key tiles are walked from the last one on.

    Every warp multiplies 16 rows by its own keys and rescales its own O; four lanes compute a row's factor.
    """
    d, e, keys = w.head_dim, w.element_bytes, tile.keys
    label, compiled = (kernel_label(SPLIT, tile.constants(w.dtype, one)) for one in (False, bool(w.options)))
    axes = {
        "b": Axis(w.batch),
        "h": Axis(w.heads_kv),
        "s": Axis(splits, cuts="j"),
        "i": Axis(w.seq_q * w.group, ROWS),
        "j": Axis(w.seq_kv, keys),
    }
    part, width = (" partial", 4) if splits > 1 else ("", w.output_bytes)
    results = "b h s i" if splits > 1 else "b h i"
    q, k, v = Tensor("Q", "b h i", d * e), Tensor("K", "b h j", d * e), Tensor("V", "b h j", d * e)
    o = Tensor(f"O{part}", results, d * width, written=True)
    lse = Tensor(f"LSE{part}", results, 4, written=True)

    flops, scores, states = 2 * ROWS * keys * d, ROWS * keys, tile.warps * ROWS
    exps, rescaled = scores + 4 * states, states * d
    # Rows of Q read from shared memory per step: none if registers hold them; all by each warp at 256 columns.
    s = TileOp("mma", "S", flops=flops, smem_bytes=(keys + (tile.warps * ROWS if w.head_dim > 128 else 0)) * d * e)
    pv = TileOp("mma", "O", flops=flops, smem_bytes=keys * d * e)
    counts = counts_of(label, gpu)
    if counts:
        s, pv = product(s), product(pv)

    def softmax(masked: bool) -> TileOp:
        if counts:
            return counts.softmax(scores, exps, rescaled, counts.hiding(scores, MASK_INSTRUCTIONS) * masked)
        return TileOp("vector", "P", scores=scores, exps=exps, fp32=rescaled + MASK_INSTRUCTIONS * scores * masked)

    def turn(load_next: bool, masked: bool) -> Iterator[TileOp]:
        yield from (k.wait(), STEP, s)
        if load_next:
            yield k.load(keys)
        yield from (softmax(masked), v.wait(), pv)
        if load_next:
            yield v.load(keys)

    def block(steps: Ints, lower: Ints, upper: Ints, missing_keys: Ints, missing_rows: Ints) -> Nest:
        filled = np.minimum(steps, tile.stages)
        return [
            *by_size("prologue", missing_rows, lambda n: (block_begins(d, d), q.load(ROWS - n))),
            *loop("fill", filled, lambda n: (k.load(keys - n), v.load(keys - n)), shorter=missing_keys),
            *once("wait Q", [q.wait()]),
            *loop("step", steps - lower, turn, load_next=steps - filled, masked=upper),
            *loop("step at the lower edge", lower, partial(turn, masked=True), load_next=lower - filled),
            *by_size("merge of warps", missing_rows, lambda n: (BLOCK, o.store(ROWS - n), lse.store(ROWS - n))),
        ]

    first, stop = tile_range(w, keys)
    split = np.arange(splits, dtype=np.int64)[:, None]
    begin, end = (first + (stop - first) * number // splits for number in (split, split + 1))
    lower, upper = _partly_seen(w, keys, begin, end)
    facts = {
        "steps": end - begin,
        "lower": lower,
        "upper": upper,
        "missing_keys": ((end > begin) & (end == axes["j"].tiles)) * axes["j"].missing[-1],
        "missing_rows": axes["i"].missing,
    }
    return declared(
        SPLIT,
        axes,
        "b h s i",
        (q, k, v, o, lse),
        facts,
        block,
        step="key tile",
        **tile.resources(compiled, gpu, w.dtype),
    )


def _combine_kernel(w: Workload, gpu: Gpu, splits: int) -> Kernel:
    """One block per row: its warps divide the splits, in rounds of `COMBINE_AHEAD`."""
    d, threads = w.head_dim, 32 * COMBINE_WARPS
    axes = {"r": Axis(w.batch * w.heads_q * w.seq_q), "s": Axis(splits, COMBINE_AHEAD)}
    o_partial, lse_partial = Tensor("O partial", "s r", d * 4), Tensor("LSE partial", "s r", 4)
    o, lse = Tensor("O", "r", d * w.output_bytes, written=True), Tensor("LSE", "r", 4, written=True)
    label = kernel_label(COMBINE, combine_constants(w))
    parts = TURN, ODD, LSE, VALUES, WEIGHTS, "", MERGE
    pair, odd, begun, ahead, weighing, each, merge = (counts_of(label, gpu, part) for part in parts)
    further = axes["s"].tiles - 1  # rounds of the loop, two per iteration; the last of an odd number is separate
    last = COMBINE_AHEAD - int(axes["s"].missing[-1])

    def add(n: int, counts: StepCounts | None) -> tuple[TileOp, TileOp, TileOp]:
        work = counts.work("O", threads) if counts else TileOp("vector", "O", fp32=2 * n * d)
        return o_partial.load(n), o_partial.wait(), work

    fetch, arrive, weighed = add(min(splits, COMBINE_AHEAD), pair)
    lses: tuple[TileOp, ...] = (lse_partial.load(splits),)
    weights = TileOp("vector", "weights", exps=threads, fp32=4 * threads)  # by whole warps, with shuffles between
    if begun and ahead and weighing and each:
        lses = begun.work("addresses of LSE", threads), *lses, ahead.work("addresses of O", threads)
        weights, weighed = weighing.work("weights", threads, threads), each.work("O", threads)
    merged = merge.work("merge", d // 2) if merge else TileOp("vector", "merge", fp32=2 * COMBINE_WARPS * d)
    merged = merged._replace(exps=COMBINE_WARPS * d // 2)
    apart = further > 0 and (further % 2 or last < COMBINE_AHEAD)
    nest = [
        *once("first splits", (*lses, fetch, lse_partial.wait(), weights, arrive, weighed)),
        *once(f"{COMBINE_AHEAD} splits", add(COMBINE_AHEAD, pair), further - apart),
        *once("last splits", add(last, odd if further % 2 else pair), apart),
        *once("merge", (merged, STEP, o.store(), lse.store())),
    ]
    return declared(
        COMBINE,
        axes,
        "r",
        (o_partial, lse_partial, o, lse),
        {},
        lambda: nest,
        threads=threads,
        registers_per_thread=registers_of(label, gpu, threads),
        buffers=(("O, maxima, sums", combine_shared_memory_bytes(d)),),
        dtype="fp32",
        step="splits",
    )


RECORD = record(NAME, build)
