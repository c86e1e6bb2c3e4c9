"""Schedule of ``kernels/cuda/backward.cu``: FlashAttention-2's backward with the heads of a group in one block.

P is recomputed from the log-sum-exp (Dao, arXiv 2307.08691, algorithm 2). A block owns a tile of keys of one key/value
head and goes over all query heads of its group, so dK and dV are written once whatever the group; FlashAttention-2
expands them over the query heads and sums them in kernels of their own. dQ is summed with fp32 atomics in both.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import numpy as np

from attnsim.arrays import Bools, Ints
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.forward import block_begins
from attnsim.models.implementations.fused.loops import MASK_INSTRUCTIONS
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.implementations.own.backward_tiles import (
    CONVERT,
    MAIN,
    NAME,
    PIECE,
    ROW_DOTS,
    THREADS,
    OwnBackwardTile,
    choose_tile,
    operands_read,
    query_tiles,
    sums_bytes,
)
from attnsim.models.implementations.own.loading import around, loaded
from attnsim.models.implementations.own.resources import counts_of, kernel_label, registers_of
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.buffers import Buffers
from attnsim.models.schedule.instructions import DS_INSTRUCTIONS, LANES, StepCounts, product
from attnsim.models.schedule.nest import Nest, loop_nest
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.row_tiles import classes, visible_queries
from attnsim.models.schedule.schedule import Kernel, Launch, Schedule
from attnsim.models.schedule.uses import TensorUse


def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """Row dots, main kernel, conversion of dQ.

    Raises
    ------
    InputError
        When the kernels are not written for the workload or not compiled for the tile, or it does not fit.
    """
    tile = choose_tile(w, gpu, shape)
    w = w.bounded()
    kernels = (_row_dots(w, gpu, tile), _main(w, gpu, tile), _convert(w, gpu, tile))
    q, kv = w.batch * w.heads_q * w.seq_q, w.batch * w.heads_kv * w.seq_kv
    inputs_and_gradients = 2 * (2 * q + 2 * kv) * w.head_dim * w.element_bytes  # Q, O, K, V
    peak = inputs_and_gradients + 8 * q + sums_bytes(w, tile)
    return Schedule("sliding-window" if w.mask.is_windowed else "flash", NAME, kernels, tile, peak)


def _registers(entry: str, w: Workload, gpu: Gpu, tile: OwnBackwardTile) -> int:
    label = kernel_label(entry, tile.constants(w.dtype))
    return registers_of(label, gpu, THREADS)


def _row_dots(w: Workload, gpu: Gpu, tile: OwnBackwardTile) -> Kernel:
    width, at_once = w.head_dim * w.element_bytes, THREADS * PIECE // w.head_dim
    counts = around(kernel_label(ROW_DOTS, tile.constants(w.dtype)), gpu)

    def some(rows: int) -> tuple[TileOp, ...]:
        elements = rows * w.head_dim
        loads = TileOp("load", "O", bytes=rows * width), TileOp("load", "dO", bytes=rows * width)
        plain = None, None, TileOp("vector", "D", fp32=3 * elements)
        work = [one.work("D", elements) if one else other for one, other in zip(counts, plain, strict=True)]
        return *loaded(loads, work), TileOp("store", "D", bytes=rows * 4)

    def ops(rows: int) -> tuple[TileOp, ...]:
        parts = (some(min(at_once, rows - first)) for first in range(0, rows, at_once))
        return (
            TileOp("delay", "step"),
            *chain.from_iterable(parts),
            TileOp("store", "dQ accum", bytes=tile.sums_bytes),
        )

    rows = w.batch * w.heads_q * w.seq_q
    uses = (
        TensorUse("O", rows * width, 1),
        TensorUse("dO", rows * width, 1),
        TensorUse("D", rows * 4, 1, written=True),
        TensorUse("dQ accum", sums_bytes(w, tile), 1, written=True),
    )
    return _per_query_tile(ROW_DOTS, w, gpu, tile, ops, uses)


def _convert(w: Workload, gpu: Gpu, tile: OwnBackwardTile) -> Kernel:
    width, elements = w.head_dim * w.element_bytes, tile.rows * w.head_dim
    counts = counts_of(kernel_label(CONVERT, tile.constants(w.dtype)), gpu)
    work = counts.work("dQ", elements) if counts else TileOp("vector", "dQ", fp32=2 * elements)
    work = work._replace(smem_bytes=2 * elements * w.element_bytes)

    def ops(rows: int) -> tuple[TileOp, ...]:
        return (
            TileOp("load", "dQ accum", bytes=tile.sums_bytes),
            TileOp("wait", "dQ accum"),
            work,
            TileOp("delay", "step"),
            TileOp("store", "dQ", bytes=rows * width),
        )

    uses = (
        TensorUse("dQ accum", sums_bytes(w, tile), 1),
        TensorUse("dQ", w.batch * w.heads_q * w.seq_q * width, 1, written=True),
    )
    return _per_query_tile(CONVERT, w, gpu, tile, ops, uses, (("dQ", tile.rows * width),))


def _per_query_tile(
    name: str,
    w: Workload,
    gpu: Gpu,
    tile: OwnBackwardTile,
    ops: Callable[[int], tuple[TileOp, ...]],
    uses: tuple[TensorUse, ...],
    buffers: Buffers = (),
) -> Kernel:
    """A kernel of one block per tile of queries; `ops` says what it does with so many of them."""
    tiles = query_tiles(w, tile)
    sizes = np.full(tiles, tile.rows, dtype=np.int64)
    sizes[-1] = w.seq_q - (tiles - 1) * tile.rows
    (kinds,), inverse = classes(sizes)
    return Kernel(
        name=name,
        threads=THREADS,
        registers_per_thread=_registers(name, w, gpu, tile),
        segments=tuple(Segment(f"{rows} queries", ops(int(rows))) for rows in kinds),
        repeats=np.eye(len(kinds), dtype=np.int64)[:, None, :],
        launches=(Launch(inverse, w.batch * w.heads_q),),
        uses=uses,
        buffers=buffers,
        dtype="fp32",
        step="tile",
    )


def _main(w: Workload, gpu: Gpu, tile: OwnBackwardTile) -> Kernel:
    key_tiles = -(-w.seq_kv // tile.keys)
    first = np.arange(key_tiles, dtype=np.int64) * tile.keys
    low, high = visible_queries(w, first, np.minimum(first + tile.keys, w.seq_kv) - 1)
    start, stop = low // tile.rows, -(-high // tile.rows)
    steps, row_tiles = stop - start, query_tiles(w, tile)
    last_rows = w.seq_q - (row_tiles - 1) * tile.rows
    last_keys = w.seq_kv - (key_tiles - 1) * tile.keys
    ragged_rows = (stop == row_tiles) & (last_rows < tile.rows)
    ragged_keys = (np.arange(key_tiles) == key_tiles - 1) & (last_keys < tile.keys)
    masked, masked_last = _masked(w, tile, first, start, stop)
    (steps, masked, masked_last, ragged_rows, ragged_keys), inverse = classes(
        steps, masked, masked_last, ragged_rows, ragged_keys
    )
    counts = counts_of(kernel_label(MAIN, tile.constants(w.dtype)), gpu)
    segments, repeats = loop_nest(
        _Steps(w, tile, counts).nest((steps, masked, masked_last), (ragged_rows, last_rows), (ragged_keys, last_keys))
    )
    return Kernel(
        name=MAIN,
        threads=THREADS,
        registers_per_thread=_registers(MAIN, w, gpu, tile),
        segments=segments,
        repeats=repeats,
        launches=(Launch(inverse, w.batch * w.heads_kv),),
        uses=_uses(w, tile, key_tiles),
        warpgroups=2,
        slowed_by_extra=True,
        path="mma_sync",
        buffers=tile.buffers,
        dtype=w.dtype,
        step="query tile",
    )


def _masked(w: Workload, tile: OwnBackwardTile, first: Ints, start: Ints, stop: Ints) -> tuple[Ints, Ints]:
    """Of tiles of keys: the steps in which some pair is hidden, and whether the last one, of the first queries, is.

    Whole tiles of queries see every key of the tile, those beyond the end of a shorter one included.
    """
    ahead, left, right = w.seq_kv - w.seq_q, w.mask.left, w.mask.right
    begin = 0 * first if right is None else np.maximum(0, first + tile.keys - 1 - ahead - right)
    end = 0 * first + w.seq_q + tile.rows if left is None else np.maximum(0, first - ahead + left + 1)
    low, high = np.maximum(start, -(-begin // tile.rows)), np.minimum(stop, end // tile.rows)
    whole = np.maximum(high - low, 0) * (first + tile.keys <= w.seq_kv)
    return stop - start - whole, ((stop > start) & ((whole == 0) | (low > start))).astype(np.int64)


def _uses(w: Workload, tile: OwnBackwardTile, key_tiles: int) -> tuple[TensorUse, ...]:
    """K and V are read by one block each, Q, dO and the sums of dQ by all blocks of their key/value head."""
    width, q_heads, kv_heads = w.head_dim * w.element_bytes, w.batch * w.heads_q, w.batch * w.heads_kv
    of_keys = [(name, w.seq_kv * width, name.startswith("d")) for name in ("K", "V", "dK", "dV")]
    of_queries = [
        ("Q", w.seq_q * width, False),
        ("dO", w.seq_q * width, False),
        ("LSE", w.seq_q * 4, False),
        ("D", w.seq_q * 4, False),
        ("dQ accum", sums_bytes(w, tile) // q_heads, True),
    ]
    return (
        *(TensorUse(name, size, kv_heads, written=written) for name, size, written in of_keys),
        *(TensorUse(name, size, q_heads, key_tiles, written=written) for name, size, written in of_queries),
    )


class _Steps:
    """Tile operations of the main kernel."""

    def __init__(self, w: Workload, tile: OwnBackwardTile, counts: StepCounts | None) -> None:
        self.tile, self.turns, self.counts = tile, w.group, counts
        self.width = w.head_dim * w.element_bytes

    def nest(
        self, every: tuple[Ints, Ints, Ints], ragged_rows: tuple[Ints, int], ragged_keys: tuple[Ints, int]
    ) -> Nest:
        """Segments in program order, and how often each class runs them in each turn: a turn is a query head.

        Tiles of queries go from the last, which may be shorter, to the first; a step starts the copies of the next.
        `every` has a turn's steps, those that hide pairs, and whether its last step does.
        """
        steps, masked, masked_last = every
        before = masked - masked_last  # steps that hide pairs before the last
        ends = [(False, 1 - masked_last), (True, masked_last)]
        busy, one = steps > 0, np.ones(self.turns, dtype=np.int64)
        first_turn, last_turn = np.eye(self.turns, dtype=np.int64)[[0, -1]]

        def of(classes_of_blocks: Ints | Bools, turns: Ints) -> Ints:
            return np.multiply.outer(classes_of_blocks.astype(np.int64), turns)

        sizes_of_rows = [("", self.tile.rows, ragged_rows[0] == 0), (" (shorter)", ragged_rows[1], ragged_rows[0] == 1)]
        sizes_of_keys = [
            ("", self.tile.keys, ragged_keys[0] == 0),
            (" (last keys)", ragged_keys[1], ragged_keys[0] == 1),
        ]
        return [
            *((self.prologue(tag, keys), of(here & busy, first_turn)) for tag, keys, here in sizes_of_keys),
            *((self.first_loads(tag, rows), of(here & busy, first_turn)) for tag, rows, here in sizes_of_rows),
            (self.step("query tile", self.tile.rows, False), of(np.maximum(steps - 1, 0) - before, one)),
            (self.step("query tile", self.tile.rows, True), of(before, one)),
            *(
                (self.step(f"last query tile, next head{tag}", rows, hides), of(here & busy & hidden, one - last_turn))
                for tag, rows, here in sizes_of_rows
                for hides, hidden in ends
            ),
            *((self.step("last query tile", 0, hides), of(busy & hidden, last_turn)) for hides, hidden in ends),
            *((self.epilogue(tag, keys), of(here, last_turn)) for tag, keys, here in sizes_of_keys),
        ]

    def prologue(self, tag: str, keys: int) -> Segment:
        loads = (TileOp("load", name, bytes=keys * self.width) for name in ("K", "V"))
        return Segment(f"prologue{tag}", (block_begins(self.tile.head_dim, self.tile.head_dim), *loads))

    def loads(self, rows: int) -> tuple[TileOp, ...]:
        sizes = (("Q", self.width), ("dO", self.width), ("LSE", 4), ("D", 4))
        return tuple(TileOp("load", name, bytes=rows * size) for name, size in sizes) if rows else ()

    def first_loads(self, tag: str, rows: int) -> Segment:
        return Segment(f"first queries{tag}", (*self.loads(rows), TileOp("wait", "K"), TileOp("wait", "V")))

    def product(self, name: str, rows: int, columns: int, depth: int) -> TileOp:
        """A GEMM of the block, half of it on each warpgroup."""
        smem = operands_read(rows, columns) * depth * 2
        op = TileOp("mma", name, flops=rows * columns * depth, smem_bytes=smem // 2)
        return product(op) if self.counts else op

    def scores(self, hides: bool) -> tuple[TileOp, TileOp]:
        """P and dS of a warpgroup, which both go to shared memory, each beside a number of each row."""
        scores = self.tile.rows * self.tile.keys // 2
        if self.counts:
            p, ds = self.counts.gradients(scores)
            hidden = self.counts.hiding(scores, MASK_INSTRUCTIONS) * hides
            p = p._replace(int32=p.int32 + hidden, issues=p.issues + hidden // LANES)
        else:
            p = TileOp("vector", "P", scores=scores, exps=scores, fp32=MASK_INSTRUCTIONS * scores * hides)
            ds = TileOp("vector", "dS", fp32=DS_INSTRUCTIONS * scores)
        smem = scores * 2 + self.tile.row_numbers_bytes // 2
        return p._replace(smem_bytes=smem), ds._replace(smem_bytes=smem)

    def step(self, name: str, next_rows: int, hides: bool) -> Segment:
        m, n, d = self.tile.rows, self.tile.keys, self.tile.head_dim
        probabilities, gradients = self.scores(hides)
        ops = (
            *(TileOp("wait", tensor) for tensor in ("Q", "dO", "LSE", "D")),
            TileOp("delay", "step"),
            *self.loads(next_rows),
            self.product("S", m, n, d),
            probabilities,
            self.product("dP", m, n, d),
            gradients,
            self.product("dV", n, d, m),
            self.product("dK", n, d, m),
            self.product("dQ", m, d, n),
            TileOp("store", "dQ accum", bytes=self.tile.sums_bytes),
        )
        return Segment(f"{'masked ' * hides}{name}", ops)

    def epilogue(self, tag: str, keys: int) -> Segment:
        stores = (TileOp("store", name, bytes=keys * self.width) for name in ("dK", "dV"))
        return Segment(f"epilogue{tag}", (TileOp("delay", "block"), *stores))


RECORD = record(NAME, build)
