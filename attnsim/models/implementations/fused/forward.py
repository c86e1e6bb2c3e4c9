"""FlashAttention forward kernels on any tile: one block per tile of query rows (and range of keys).

Loop orders of fused forward kernels on any tile: FlashAttention-2's, FlashAttention-3's, and two multi-stage ones.

FlashAttention-2 (Dao, arXiv 2307.08691): single-buffered copies that overlap the other GEMM. FlashAttention-3 (Shah et
al., arXiv 2407.08608): warpgroups with double-buffered copies, the GEMM of one step issued before the softmax of the
next. Both follow ``csrc/flash_attn/src/flash_fwd_kernel.h`` and ``hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp`` of
Dao-AILab/flash-attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.order import ABSENT_CLKS, launch_order, section_heads
from attnsim.models.implementations.fused.tile import GRIDS_OF_THE_LONGEST, FlashTile
from attnsim.models.mask.mask import Mask
from attnsim.models.mask.tile_counts import TileCounts
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Seen, Tensor, uses_of
from attnsim.models.schedule.instructions import product
from attnsim.models.schedule.operation import STEP, Nest, TileOp, by_size, loop, once
from attnsim.models.schedule.row_tiles import RowTiles, classes, padded, row_tiles
from attnsim.models.schedule.schedule import Buffers, Kernel, Launch, TensorUse
from attnsim.models.schedule.splits import UNCUT, Splits

MASK_INSTRUCTIONS = by_hand(2, "FP32-lane instructions per score of a masked tile: compare and select")
DROPOUT_BITS, DROPOUT_INSTRUCTIONS = 8, 2
"""Random bits per score; and instructions per score to widen, compare and mask two scores at a time
(`Dropout::apply_dropout`)."""
PHILOX_BITS = 128
PHILOX_ROUNDS = 7
MULTIPLICATIONS, PIPE_TURNS, LOGIC = 2, 2, 4
"""Per Philox round: multiplications, pipe cycles of each, and instructions on the integer lanes."""
LANES = 32
POLYNOMIAL_INSTRUCTIONS = by_hand(6, "FP32-lane instructions of an exponential that is computed as a polynomial")
"""Rounding down (2), three multiply-adds of degree 3, exponent (``flash_attn/cute/utils.py`` of
Dao-AILab/flash-attention, `ex2_emulation`)."""

WAIT_Q, NEXT_TILE = TileOp("wait", "Q"), TileOp("prefetch")
PAGES = "page numbers"
"""Tensor of the numbers of the pages that a sequence has, 4 bytes each."""


def pages(w: Workload, keys: int) -> int:
    """Pages of `keys` keys; a cache without a page size has pages of one key (SGLang's `page_size = 1`)."""
    return -(-keys // (w.page_size or 1))


def page_bytes(w: Workload, keys: int) -> int:
    """Bytes of page numbers read per visit to a tile of `keys` keys; K and V have the same."""
    return 4 * pages(w, keys)


def dropped(op: TileOp, scores: int, bits: int, each: int) -> TileOp:
    """The operation with the dropout of `scores` scores: random numbers are made in registers, no data is moved.

    Philox in seven rounds gives 128 bits (``csrc/flash_attn/src/philox.cuh`` of Dao-AILab/flash-attention). A round is
    two multiplications of 32 bits to 64, which take the FP32 lanes twice, two exclusive ors and the two additions of
    its key. FlashAttention-1 uses 16 of the bits per score (`apply_dropout_16bits` of ``fmha/softmax.h``, v1.0.9),
    FlashAttention-2 8 (``dropout.h``). The backward pass makes the same numbers again.

    Parameters
    ----------
    op : TileOp
        Counted by pipe or not.
    bits : int
        Random bits per score.
    each : int
        Further integer instructions per score: extraction, comparison, selection.
    """
    calls = scores * bits // PHILOX_BITS
    multiplied, integer = calls * PHILOX_ROUNDS * MULTIPLICATIONS, calls * PHILOX_ROUNDS * LOGIC + scores * each
    return op._replace(
        fp32=op.fp32 + PIPE_TURNS * multiplied,
        int32=op.int32 + integer,
        issues=op.issues + (multiplied + integer) // LANES * (op.issues > 0),
    )


class Operations:
    """Tile operations of a flash kernel: per warpgroup for arithmetic, per block for loads."""

    def __init__(self, w: Workload, tile: FlashTile) -> None:
        self.w, self.tile = w, tile
        self.rows = tile.rows // tile.warpgroups
        self.d, self.dv = tile.compiled(w)
        self.readers = tile.readers // tile.warpgroups

    def look_up(self) -> tuple[TileOp, ...]:
        """Loads that determine the next key tile, once for each; none if key tiles are consecutive."""
        return ()

    def page_numbers(self) -> tuple[TileOp, ...]:
        """Load of a tile's page numbers and the wait for them, by warps that copy by these."""
        if not self.tile.looks_up_pages:
            return ()
        return TileOp("load", PAGES, bytes=page_bytes(self.w, self.tile.keys)), TileOp("wait", PAGES)

    def looked_up(self) -> tuple[TileOp, ...]:
        """Wait for the loads of :meth:`look_up`."""
        return ()

    def scores(self, kind: Literal["mma", "mma_async"] = "mma") -> TileOp:
        """S = Q K^T."""
        tile, e = self.tile, self.w.element_bytes
        q_reads = 0 if tile.q_in_registers else self.rows * self.d * e * tile.across
        return self._product(kind, "S", self.d, self.readers * tile.read_columns(tile.keys) * self.d * e + q_reads)

    def output(self, kind: Literal["mma", "mma_async"] = "mma") -> TileOp:
        """O += P V."""
        tile, e = self.tile, self.w.element_bytes
        p_reads = self.rows * tile.keys * e * tile.across if tile.p_in_smem else 0
        return self._product(kind, "O", self.dv, self.readers * tile.keys * tile.read_columns(self.dv) * e + p_reads)

    def _product(self, kind: Literal["mma", "mma_async"], tensor: str, columns: int, smem_bytes: int) -> TileOp:
        """A product with its instructions if the kernel's are counted; for wgmma the step's count includes them."""
        op = TileOp(kind, tensor, flops=2 * self.rows * self.tile.keys * columns, smem_bytes=smem_bytes)
        return product(op) if self.tile.counts and self.tile.path == "mma_sync" else op

    def softmax(self, masked: bool, first: bool = False) -> TileOp:
        """Online softmax of one tile and the rescaling of O; `first` marks the block's first tile."""
        tile, scores = self.tile, self.rows * self.tile.keys
        polynomials = tile.polynomials(scores)
        each_tile = tile.rescale in ("always", "through_registers")
        rescales = each_tile or (first and tile.rescale == "first")
        rescaled, mask = self.rows * rescales, MASK_INSTRUCTIONS * scores * masked
        if tile.counts and masked:
            mask = tile.counts.hiding(scores, MASK_INSTRUCTIONS)
        lanes = 1 if each_tile else 4  # each of the four lanes of a row computes its factor
        exps = scores - polynomials + lanes * rescaled
        # With accumulators in tensor memory, S is read in fp32 and P written; so is O, if it is rescaled in registers.
        tmem = scores * (4 + self.w.element_bytes) if tile.path == "tcgen05" else 0
        tmem += 8 * rescaled * self.dv * (tile.rescale == "through_registers")
        if tile.counts:
            op = tile.counts.softmax(scores, exps, rescaled * self.dv, mask, polynomials)._replace(tmem_bytes=tmem)
        else:
            fp32 = rescaled * self.dv + POLYNOMIAL_INSTRUCTIONS * polynomials + mask
            op = TileOp("vector", "P", tmem_bytes=tmem, scores=scores, exps=exps, fp32=fp32)
        return dropped(op, scores, DROPOUT_BITS, DROPOUT_INSTRUCTIONS) if self.w.dropout else op


def fa2(ops: Operations, k: Tensor, v: Tensor, steps: Ints, masked: Ints, missing: Ints) -> Nest:
    """FA2: wait K, start V, S = Q K^T, wait V, start the next K, softmax, O += P V; ragged tiles are masked."""
    keys = ops.tile.keys
    always = ops.w.mask.right is not None or ops.w.mask.is_windowed

    def turn(short: int, first: bool, load_next: bool, masked: bool) -> Iterator[TileOp]:
        yield from (k.wait(), STEP, v.load(keys - short), ops.scores(), v.wait())
        if load_next:
            yield from (*ops.page_numbers(), k.load(keys))
        yield from (ops.softmax(masked, first), ops.output())

    masked = np.maximum(masked, always | (missing > 0))
    return [
        *by_size("load K", missing, lambda n: (*ops.page_numbers(), k.load(keys - n), WAIT_Q), steps > 0),
        *loop("step", steps, turn, shorter=missing, first=1, load_next=steps - 1, masked=masked),
    ]


def fill(ops: Operations, k: Tensor, v: Tensor, filled: Ints, missing: Ints) -> Nest:
    """Fill the pipeline with `filled` tiles, the shorter one first, then wait for Q."""

    def turn(short: int) -> Iterator[TileOp]:
        keys = ops.tile.keys - short
        yield from (*ops.look_up(), *ops.looked_up(), k.load(keys), v.load(keys))

    return [*loop("fill", filled, turn, shorter=missing), *once("wait Q", [WAIT_Q], filled > 0)]


def staged(ops: Operations, k: Tensor, v: Tensor, steps: Ints, masked: Ints, missing: Ints) -> Nest:
    """Software pipeline: `stages` tiles in flight; a buffer is refilled as soon as its GEMM has read it."""
    keys, stages = ops.tile.keys, ops.tile.stages

    def turn(refill: bool, masked: bool) -> Iterator[TileOp]:
        yield from (k.wait(), STEP, ops.scores())
        if refill:
            yield k.load(keys)
        yield from (ops.softmax(masked), v.wait(), ops.output())
        if refill:
            yield v.load(keys)

    return [
        *fill(ops, k, v, np.minimum(steps, stages), missing),
        *loop("step", steps, turn, refill=steps - stages, masked=masked),
        *(once("next tile", [NEXT_TILE], steps > 0) if ops.tile.persistent else ()),
    ]


def ring(ops: Operations, k: Tensor, v: Tensor, steps: Ints, masked: Ints, missing: Ints) -> Nest:
    """Software pipeline with one barrier per step: wait K and V, start both of the tile `stages - 1` ahead, compute."""
    keys, ahead = ops.tile.keys, ops.tile.stages - 1

    def turn(first: bool, load_next: bool, masked: bool) -> Iterator[TileOp]:
        yield from (k.wait(), v.wait(), STEP)
        if load_next:
            yield from (k.load(keys), v.load(keys))
        yield from (ops.scores(), ops.softmax(masked, first), ops.output())

    return [
        *fill(ops, k, v, np.minimum(steps, ahead), missing),
        *loop("step", steps, turn, first=1, load_next=steps - ahead, masked=masked),
    ]


def fa3(ops: Operations, k: Tensor, v: Tensor, steps: Ints, masked: Ints, missing: Ints) -> Nest:
    """FA3: issue S_j = Q K_j^T and O += P_{j-1} V_{j-1} back to back; softmax of j runs under the second."""
    keys, stages = ops.tile.keys, ops.tile.stages

    def first_turn(refill_k: bool, masked: bool) -> Iterator[TileOp]:
        yield from (k.wait(), STEP)
        if refill_k:
            yield from ops.look_up()
        yield ops.scores()
        if refill_k:
            yield from (*ops.looked_up(), k.load(keys))
        yield ops.softmax(masked)

    def turn(refill_k: bool, refill_v: bool, masked: bool) -> Iterator[TileOp]:
        yield from (k.wait(), STEP)
        if refill_k:
            yield from ops.look_up()
        yield from (ops.scores("mma_async"), v.wait(), ops.output("mma_async"), TileOp("mma_wait", "S"))
        if refill_k:
            yield from (*ops.looked_up(), k.load(keys))
        yield from (ops.softmax(masked), TileOp("mma_wait", "O"))
        if refill_v:
            yield v.load(keys)

    refills = steps - stages
    return [
        *fill(ops, k, v, np.minimum(steps, stages), missing),
        *loop("first step", np.minimum(steps, 1), first_turn, refill_k=refills, masked=masked),
        *loop("step", steps - 1, turn, refill_k=refills - 1, refill_v=refills, masked=masked - 1),
        *once("last P V", [*(NEXT_TILE,) * ops.tile.persistent, v.wait(), ops.output()], steps > 0),
    ]


LOOPS: dict[str, Callable[..., Nest]] = {"fa2": fa2, "fa3": fa3, "staged": staged, "ring": ring}
"""Functions of (operations, K, V, key tiles, masked ones, keys missing from the last), the last three per class of
blocks."""


BY_WIDTH = by_hand(0.5, "part of a block's latency at head_dim 128 that grows with head_dim, K's and V's alike")
"""Derived from decode steps of more blocks than SMs and up to 32 keys, whose waves each cost the latency of a block:
from head_dim 64 to 256 it grows by 1.5 in FlashAttention-3 as vLLM and SGLang call it and in XQA."""


def flash_peak_bytes(w: Workload, partial: int = 0) -> int:
    """Inputs, outputs, log-sum-exp, the backward's dQ accumulator and gradients, and partial outputs."""
    e = w.element_bytes
    q = w.heads_q * w.queries
    # Pages of all sequences.
    kv = w.heads_kv * (sum(one.times * pages(w, one.keys) for one in w.parts) * w.page_size if w.page_size else w.keys)
    inputs = q * w.head_dim * e + kv * (w.head_dim + w.head_dim_v) * w.cache_bytes
    out = q * w.head_dim_v * w.output_bytes + 4 * q
    if "bwd" in w.directions:
        expanded = w.heads_q * w.keys * (w.head_dim + w.head_dim_v) * e if w.group > 1 else 0
        return 2 * (inputs + out) + q * padded(w.head_dim) * 4 + 4 * q + expanded
    return inputs + out + partial


def flash_forward(
    w: Workload,
    gpu: Gpu,
    tile: FlashTile,
    name: str = "flash_fwd",
    splits: Splits = UNCUT,
    lse: bool = True,
    fetch_clks: int = 0,
    fragments: int = 1,
) -> Kernel:
    """The forward kernel of `w` on `tile`.

    Parameters
    ----------
    gpu : Gpu
        Only for the size of the L2 sections in longest-first order.
    splits : Splits, optional
        Split-KV: one block per row tile and range of keys, fp32 partial outputs.
    lse : bool
        Whether the log-sum-exp of each row is written, in fp32.
    fetch_clks : int
        Latency of finding a block's tile, in clocks, if a scheduler has to search for it.
    fragments : int
        As in :func:`block_begins`.
    """
    w = w.bounded()
    pack = w.group if tile.pack_gqa else 1
    whole, kinds = _kinds(w, tile, splits, pack)
    axes = _axes(w, tile, splits)
    q, k, v = operands(w, seen=_window(w, whole))
    listed = Tensor(PAGES, "b p", 4)
    stored = [
        (results(w, lse, f"b h g s i {of}", of == "merged"), kinds.partial == (of == "merged"))
        for of in ("merged", "direct")
        if axes[of].tiles_of.any()
    ]
    ops = Operations(w, tile)
    body = LOOPS[tile.loop](ops, k, v, kinds.steps, kinds.masked, kinds.missing_keys)
    nest = with_ends(ops, q, body, kinds.steps, kinds.missing_rows, stored, fetch_clks, fragments)
    if w.page_size and not tile.looks_up_pages:
        nest += once("page numbers", [listed.load(pages(w, tile.keys))], kinds.steps)
    passed = (
        [Tensor("O sums", "b h g i", 4 * w.head_dim_v, written=way) for way in (False, True)] if tile.slices else []
    )
    if passed:
        nest += once(
            "Q and O again", [q.load(tile.rows), passed[0].load(tile.rows), passed[1].store(tile.rows)], kinds.steps
        )
    tensors = [q, k, v, *passed, *(one for tensors, _ in stored for one in tensors)]
    tensors += [listed] if w.page_size or tile.looks_up_pages else []
    uses = uses_of(tensors, *launched(w, tile, axes))
    launches = launch_order(w, gpu, tile, kinds.blocks, w.heads_q // pack, kinds.absent)
    return tiled_kernel(w, tile, name, nest, launches, uses)


def operands(w: Workload, **of_keys: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Q, K and V of a head of K and V with query heads g; `of_keys` are further properties of K and V."""
    e = w.element_bytes
    k, v = (Tensor(x, "b h j", n * w.cache_bytes, **of_keys) for x, n in (("K", w.head_dim), ("V", w.head_dim_v)))
    return Tensor("Q", "b h g i", w.head_dim * e), k, v


def results(w: Workload, lse: bool = True, axes: str = "b h g i", partial: bool = False) -> tuple[Tensor, ...]:
    """O, and the log-sum-exp of each row if written; for a range of keys both in fp32, for a combine kernel."""
    suffix, size = (" partial", 4) if partial else ("", w.output_bytes)
    out = Tensor(f"O{suffix}", axes, w.head_dim_v * size, written=True)
    return (out, Tensor(f"LSE{suffix}", axes, 4, written=True)) if lse or partial else (out,)


def _axes(w: Workload, tile: FlashTile, splits: Splits) -> dict[str, Axis]:
    """Axes: batch, heads of K and V, query heads of each, ranges of keys, queries and keys; pages; merged rows."""
    pack, merged = (w.group if tile.pack_gqa else 1), splits.merged(len(w.parts))
    queries, keys, times = zip(*w.parts, strict=True)
    return {
        "b": Axis(times),
        "h": Axis(w.heads_kv),
        "g": Axis(w.group // pack),
        "s": Axis(tuple(np.maximum(merged, 1).tolist()), cuts="j p"),
        "i": Axis(tuple(n * pack for n in queries), tile.rows),
        "j": Axis(keys, tile.keys),
        "p": Axis(tuple(pages(w, n) for n in keys)),
        "merged": Axis(tuple((merged > 0).tolist())),
        "direct": Axis(tuple((merged == 0).tolist())),
    }


def launched(w: Workload, tile: FlashTile, axes: dict[str, Axis]) -> tuple[dict[str, Axis], str]:
    """Axes and grid in the order of :func:`launch_order`; sections of heads are separate axes."""
    if tile.order == "longest_first" and len(w.parts) == 1 and axes["s"].tiles == 1:
        group = axes["g"].tiles
        heads = w.batch * w.heads_kv * group
        section = section_heads(w, tile, heads)
        of_heads = {"sections": Axis(-(-heads // section), cuts="b h"), "kv": Axis(section // group, cuts="b h")}
        return axes | of_heads, "sections i kv g"
    by_head = tile.order in ("planned", "longest_first") or (tile.order == "ascending" and not tile.persistent)
    return axes, "h g b s i" if len(w.parts) > 1 and by_head else "b h g s i"


def _window(w: Workload, whole: RowTiles) -> Seen | None:
    """Keys in a window that any row tile of a head touches, and mean number of row tiles that touch each."""
    if not w.mask.is_windowed:
        return None
    visits = np.bincount(whole.part, whole.steps).astype(np.int64) * whole.keys
    return Seen("i", whole.touched_keys, np.maximum(1.0, visits / np.maximum(1, whole.touched_keys)))


def tiled_kernel(
    w: Workload,
    tile: Any,
    name: str,
    nest: Nest,
    launches: tuple[Launch, ...],
    uses: tuple[TensorUse, ...],
    buffers: Buffers = (),
) -> Kernel:
    """A forward kernel on a tile of any kind; by default with the tile's buffers."""
    return Kernel.of(
        nest,
        name=name,
        threads=tile.threads,
        registers_per_thread=tile.registers,
        launches=launches,
        uses=uses,
        warpgroups=tile.warpgroups,
        path=tile.path,
        max_blocks_per_sm=tile.max_blocks_per_sm,
        persistent=tile.persistent,
        buffers=buffers or tile.buffers(*tile.compiled(w), w.element_bytes),
        dtype=w.dtype,
        step="key tile",
        role="attention",
    )


@dataclass(frozen=True, eq=False)
class _Kinds:
    """Classes of blocks, and the class of each block.

    Parameters
    ----------
    steps, masked, missing_keys, missing_rows : ndarray of int, ``[classes]``
        As in :class:`RowTiles`.
    partial : ndarray of int, ``[classes]``
        Whether its result is one of several that a combine kernel merges.
    blocks : tuple of ndarray, shape [splits, row tiles]
        Classes of the blocks of a head, for each sequence.
    absent : int or None
        Class of blocks without a row tile, if the grid has any.
    """

    steps: Ints
    masked: Ints
    missing_keys: Ints
    missing_rows: Ints
    partial: Ints
    blocks: tuple[Ints, ...]
    absent: int | None


def _kinds(w: Workload, tile: FlashTile, splits: Splits, pack: int) -> tuple[RowTiles, _Kinds]:
    """Row tiles over unsplit keys, and the classes of all blocks."""
    cut = partial(
        row_tiles, w, tile.rows, tile.keys, pack, edges_only=tile.edges_only, from_first_key=tile.from_first_key
    )
    whole = cut()
    ranges = np.array(splits.each or [splits.count] * len(w.parts))
    pieces = [whole]
    if splits.partial:
        count = range(splits.count)
        pieces = [cut(s, ranges, of_seen=splits.of_seen, chunk=splits.chunk) for s in count]
    number = np.repeat(np.arange(len(pieces)), len(whole.part))
    part = np.tile(whole.part, len(pieces))
    merged = splits.merged(len(w.parts))[part] > 0
    in_loop = "steps" if tile.masks_all and w.mask != Mask.full() else "masked"
    columns = [
        np.concatenate([getattr(piece, column) for piece in pieces])
        for column in ("steps", in_loop, "missing_keys", "missing_rows")
    ]
    columns.append(merged.astype(np.int64))
    tiles = np.bincount(whole.part)
    of_longest = tile.order in GRIDS_OF_THE_LONGEST or (tile.order == "ascending" and not tile.persistent)
    too_few = tile.order == "sections_by_sequence" or (of_longest and tiles.min() < tiles.max())
    if too_few:
        columns = [np.append(column, last) for column, last in zip(columns, (0, 0, 0, tile.rows, 0), strict=True)]
    found, inverse = classes(*columns)
    if len(tiles) == 1:
        blocks: tuple[Ints, ...] = (inverse[: len(number)].reshape(len(pieces), -1),)
    else:
        launched = np.flatnonzero(number < ranges[part])
        order = launched[np.argsort(part[launched], kind="stable")]
        ends, each = np.cumsum([0, *np.bincount(part[order])]).tolist(), inverse[order]
        blocks = tuple(
            each[begin:end].reshape(-1, count)
            for begin, end, count in zip(ends, ends[1:], tiles.tolist(), strict=False)
        )
    steps, masked, missing_keys, missing_rows, of_several = found
    absent = int(inverse[-1]) if too_few else None
    return whole, _Kinds(steps, masked, missing_keys, missing_rows, of_several, blocks, absent)


def block_begins(head_dim: int, head_dim_v: int, fragments: int = 1) -> TileOp:
    """Latency of a block's beginning; a part of it grows with a thread's columns of Q, the first K and O.

    That part also grows with the `fragments` of 16 rows that a thread has, relative to those of the fitted latency.
    """
    return TileOp("delay", waits="block", share=1 + BY_WIDTH * (fragments * (head_dim + head_dim_v) / 256 - 1))


def partial_rows(w: Workload, splits: Splits) -> int:
    """Rows per head in partial results that a combine kernel merges."""
    merged = splits.merged(len(w.parts)).tolist()
    return sum(one.queries * one.times * of for one, of in zip(w.parts, merged, strict=True))


def with_ends(
    ops: Operations,
    q: Tensor,
    body: Nest,
    steps: Ints,
    missing_rows: Ints,
    stored: Sequence[tuple[Sequence[Tensor], NDArray[np.bool_]]],
    fetch_clks: int = 0,
    fragments: int = 1,
) -> Nest:
    """Put the prologue and epilogue, for full and for ragged row tiles, around a loop body.

    A prologue waits for page table, Q and K in turn, independent of the number of valid rows. A block without a row
    exits. `stored` gives the tensors that blocks store, and the blocks that do.
    """
    tile = ops.tile
    fetch = (TileOp("delay", "fetch", clks=fetch_clks),) if fetch_clks else ()
    begins, absent = block_begins(*tile.compiled(ops.w), fragments), missing_rows == tile.rows

    def ends(tensors: Sequence[Tensor], missing: int) -> Iterator[TileOp]:
        rows = tile.rows - missing
        yield TileOp("delay", waits="block", share=rows / tile.rows if tile.by_row else 1.0)
        yield from (tensor.store(rows) for tensor in tensors)

    nest = by_size("prologue", missing_rows, lambda n: (*fetch, begins, q.load(tile.rows - n)), steps > 0) + body
    for tensors, here in stored:
        nest += by_size("epilogue", missing_rows, partial(ends, tensors), here & ~absent)
    return nest + once("no rows", [TileOp("delay", "exit", clks=ABSENT_CLKS)], absent)


def listed_keys(counts: TileCounts) -> Seen:
    """How row tiles touch the keys of a head, each those in its list: `seen` of a tensor along keys.

    A visit to a key tile hits the L2 if the row tile before visits it too. Otherwise (a random block, a stride) the key
    tile is revisited later.
    """
    touched, visits = counts.touched_keys, int(counts.visits.sum())
    near, later = visits / max(1, counts.fresh), counts.fresh * counts.tiles.keys / max(1, touched)
    return Seen("i", touched, max(1.0, near), max(1.0, later))


def busy_rows(w: Workload, counts: TileCounts) -> int:
    """Rows per head in row tiles that visit any key tile."""
    busy = counts.visits > 0
    short = -w.seq_q % counts.tiles.rows
    return int(busy.sum()) * counts.tiles.rows - (short if busy[-1] else 0)
