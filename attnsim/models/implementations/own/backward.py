"""Schedule of ``kernels/cuda/backward.cu``: FlashAttention-2's backward with the heads of a group in one block.

P is recomputed from the log-sum-exp (Dao, arXiv 2307.08691, algorithm 2). A block owns a tile of keys of one key/value
head and processes all query heads of its group, so dK and dV are written once for any group size; FlashAttention-2
expands them over the query heads and sums them in separate kernels. Both sum dQ with fp32 atomics. The
operation that launches the kernels also takes their tiles from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from attnsim.arrays import Ints
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.forward import MASK_INSTRUCTIONS, block_begins
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.implementations.own.resources import (
    ELEMENT,
    Compiled,
    asked_for,
    check_compiled,
    counts_of,
    kernel_label,
    loaded,
    phases,
    registers_of,
)
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Tensor, declared
from attnsim.models.schedule.instructions import DS_INSTRUCTIONS, LANES, StepCounts, product
from attnsim.models.schedule.operation import BLOCK, STEP, Nest, TileOp, by_size, loop, once
from attnsim.models.schedule.row_tiles import visible_queries
from attnsim.models.schedule.schedule import Buffers, Kernel, Schedule, check_shared_memory

NAME = "attnsim.flash-backward"
ROW_DOTS, MAIN, CONVERT = "backward_row_dots", "backward_main", "backward_convert"
WARPS = 8
THREADS = 32 * WARPS
STAGES = 2
PIECE = 8
"""Elements that a thread loads at a time."""


@dataclass(frozen=True, slots=True)
class OwnBackwardTile(Compiled):
    """One compilation of the kernels.

    Parameters
    ----------
    rows, keys : int
        Queries of a step, and keys of a block.
    """

    head_dim: int
    rows: int
    keys: int
    warps: int = WARPS

    @property
    def buffers(self) -> Buffers:
        """Shared-memory buffers of a block of the main kernel and their bytes."""
        return (
            ("K, V", 2 * self.keys * self.head_dim * 2),
            ("P, dS", 2 * self.rows * self.keys * 2),
            ("Q, dO", STAGES * 2 * self.rows * self.head_dim * 2),
            ("LSE, D", STAGES * 2 * self.rows * 4),
        )

    @property
    def sums_bytes(self) -> int:
        """Bytes of the fp32 sums of dQ of a tile of queries, including missing rows of the last tile."""
        return self.rows * self.head_dim * 4

    @property
    def row_numbers_bytes(self) -> int:
        """Bytes of shared memory that all threads read to have one number per row of a tile of scores."""
        return THREADS * (2 * self.rows // (16 * _downs(self.rows, self.keys))) * 4

    def constants(self, dtype: str) -> tuple[tuple[str, int | str], ...]:
        """Compile-time constants of the kernels."""
        return (
            ("ELEMENT", ELEMENT[dtype]),
            ("HEAD_DIM", self.head_dim),
            ("BLOCK_M", self.rows),
            ("BLOCK_N", self.keys),
            ("SHARED_BYTES", self.shared_memory_bytes),
        )

    def __str__(self) -> str:
        return f"backward {self.rows} x {self.keys}, {WARPS} warps"


TILES = {
    64: (OwnBackwardTile(64, 128, 128), OwnBackwardTile(64, 64, 128)),
    128: (OwnBackwardTile(128, 64, 128), OwnBackwardTile(128, 32, 64)),
    256: (OwnBackwardTile(256, 64, 64), OwnBackwardTile(256, 32, 64)),
}
"""Tiles by head_dim, starting with the one that reads shared memory least: its scores, dK and dV take 192 registers."""


def choose_tile(w: Workload, gpu: Gpu, shape: TileRequest | None = None) -> OwnBackwardTile:
    """The first tile of `TILES` that fits the shared memory of a block.

    Raises
    ------
    InputError
        If the kernels do not support the workload or the tile, or nothing fits.
    """
    check_compiled(NAME, w, TILES)
    if not w.mask.is_band:
        raise InputError(f"{NAME} takes bands (full, causal, a window), not the mask {w.mask}")
    tiles = asked_for(TILES[w.head_dim], shape, NAME, w.head_dim)
    for tile in tiles:
        if tile.shared_memory_bytes <= gpu.sm.shared_memory_per_block_bytes:
            return tile
    least = tiles[-1]
    what = f"the smallest tile of {NAME} at head_dim {w.head_dim}, {least.rows} x {least.keys},"
    check_shared_memory(what, least.buffers, gpu, "take a smaller head_dim")
    return least


def query_tiles(w: Workload, tile: OwnBackwardTile) -> int:
    """Tiles of queries of a head."""
    return -(-w.seq_q // tile.rows)


def sums_bytes(w: Workload, tile: OwnBackwardTile) -> int:
    """Bytes of the fp32 sums of dQ, in whole tiles."""
    return w.batch * w.heads_q * query_tiles(w, tile) * tile.sums_bytes


def operands_read(rows: int, columns: int) -> int:
    """Rows of A and columns of B that the warps read for an output of `rows` x `columns`, on the grid that reads least.

    The rule of ``kernels/cuda/warp_grid.cuh``: rectangles of whole 16 x 16 tiles. Warps side by side read the same rows
    of A, warps one below another the same columns of B.
    """
    return _read(rows, columns, _downs(rows, columns))


def _read(rows: int, columns: int, downs: int) -> int:
    return WARPS // downs * rows + downs * columns


def _downs(rows: int, columns: int) -> int:
    """Rows of the warp grid; the taller of two grids that read equally much."""
    fit = [n for n in (1, 2, 4, 8) if rows % (16 * n) == 0 and columns % (16 * (WARPS // n)) == 0]
    return min(fit, key=lambda n: (_read(rows, columns, n), -n))


def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """Row dots, main kernel, conversion of dQ.

    Raises
    ------
    InputError
        If the kernels do not support the workload or the tile, or it does not fit.
    """
    tile = choose_tile(w, gpu, shape)
    w = w.bounded()
    kernels = (_row_dots(w, gpu, tile), _main(w, gpu, tile), _convert(w, gpu, tile))
    q, kv = w.batch * w.heads_q * w.seq_q, w.batch * w.heads_kv * w.seq_kv
    inputs_and_gradients = 2 * (2 * q + 2 * kv) * w.head_dim * w.element_bytes  # Q, O, K, V
    peak = inputs_and_gradients + 8 * q + sums_bytes(w, tile)
    return Schedule("sliding-window" if w.mask.is_windowed else "flash", NAME, kernels, tile, peak)


def _axes(w: Workload, tile: OwnBackwardTile) -> dict[str, Axis]:
    """Sequences b, heads h of K and V, query heads g of each, queries i, keys j."""
    axes = {"b": Axis(w.batch), "h": Axis(w.heads_kv), "g": Axis(w.group)}
    return axes | {"i": Axis(w.seq_q, tile.rows), "j": Axis(w.seq_kv, tile.keys)}


def _of_queries(w: Workload, tile: OwnBackwardTile) -> dict[str, Tensor]:
    """Tensors with a row for each query, and the sums of dQ, in whole tiles."""
    width = w.head_dim * w.element_bytes
    sizes = {"Q": width, "O": width, "dO": width, "LSE": 4, "D": 4, "dQ": width}
    sums = Tensor("dQ accum", "b h g i", tile.sums_bytes, by_tile=True)
    return {name: Tensor(name, "b h g i", size) for name, size in sizes.items()} | {sums.name: sums}


def _row_dots(w: Workload, gpu: Gpu, tile: OwnBackwardTile) -> Kernel:
    """The kernel for D, which also clears the sums of dQ."""
    tensors, at_once = _of_queries(w, tile), THREADS * PIECE // w.head_dim
    o, do = tensors["O"], tensors["dO"]
    d, sums = (replace(tensors[name], written=True) for name in ("D", "dQ accum"))
    counts = phases(kernel_label(ROW_DOTS, tile.constants(w.dtype)), gpu)

    def ops(rows: int) -> Iterator[TileOp]:
        yield STEP
        for first in range(0, rows, at_once):
            n = min(at_once, rows - first)
            elements = n * w.head_dim
            plain = None, None, TileOp("vector", "D", fp32=3 * elements)
            work = [one.work("D", elements) if one else other for one, other in zip(counts, plain, strict=True)]
            yield from (*loaded((o.load(n), do.load(n)), work), d.store(n))
        yield sums.store()

    return _per_query_tile(ROW_DOTS, w, gpu, tile, ops, (o, do, d, sums))


def _convert(w: Workload, gpu: Gpu, tile: OwnBackwardTile) -> Kernel:
    """The conversion of dQ from its sums."""
    tensors, elements = _of_queries(w, tile), tile.rows * w.head_dim
    sums, dq = tensors["dQ accum"], replace(tensors["dQ"], written=True)
    counts = counts_of(kernel_label(CONVERT, tile.constants(w.dtype)), gpu)
    work = counts.work("dQ", elements) if counts else TileOp("vector", "dQ", fp32=2 * elements)
    work = work._replace(smem_bytes=2 * elements * w.element_bytes)

    def ops(rows: int) -> Iterator[TileOp]:
        yield from (sums.load(), sums.wait(), work, STEP, dq.store(rows))

    return _per_query_tile(CONVERT, w, gpu, tile, ops, (sums, dq), (("dQ", tile.rows * dq.bytes),))


def _per_query_tile(
    name: str,
    w: Workload,
    gpu: Gpu,
    tile: OwnBackwardTile,
    ops: Callable[[int], Iterable[TileOp]],
    tensors: Iterable[Tensor],
    buffers: Buffers = (),
) -> Kernel:
    """A kernel with one block per tile of queries; `ops` returns its operations for a number of queries."""
    axes = _axes(w, tile)
    return declared(
        name,
        axes,
        "b h g i",
        tensors,
        {"missing": axes["i"].missing},
        lambda missing: by_size("queries", missing, lambda n: ops(tile.rows - n)),
        threads=THREADS,
        registers_per_thread=registers_of(kernel_label(name, tile.constants(w.dtype)), gpu, THREADS),
        buffers=buffers,
        dtype="fp32",
        step="tile",
    )


def _main(w: Workload, gpu: Gpu, tile: OwnBackwardTile) -> Kernel:
    """A block for each tile of keys: the query heads of a group in turn, each with query tiles from last to first."""
    axes, m, n, d = _axes(w, tile), tile.rows, tile.keys, w.head_dim
    k, v, dk, dv = (
        Tensor(name, "b h j", d * w.element_bytes, written=name.startswith("d")) for name in ("K", "V", "dK", "dV")
    )
    tensors = _of_queries(w, tile)
    passing = [tensors[name] for name in ("Q", "dO", "LSE", "D")]
    sums = replace(tensors["dQ accum"], written=True)
    counts = counts_of(kernel_label(MAIN, tile.constants(w.dtype)), gpu)
    begins = block_begins(d, d)

    def gemm(name: str, rows: int, columns: int, depth: int) -> TileOp:
        """A product of the block, half of it on each warpgroup."""
        smem = operands_read(rows, columns) * depth * 2
        op = TileOp("mma", name, flops=rows * columns * depth, smem_bytes=smem // 2)
        return product(op) if counts else op

    def first_loads(missing: int) -> Iterator[TileOp]:
        yield from (*(tensor.load(m - missing) for tensor in passing), k.wait(), v.wait())

    def step(hides: bool, missing: int = 0) -> Iterator[TileOp]:
        """A tile of queries, where pairs are hidden or not; the next one, short of `missing` queries, is asked for."""
        probabilities, gradients = _scores(tile, counts, hides)
        yield from (*(tensor.wait() for tensor in passing), STEP)
        if missing < m:
            yield from (tensor.load(m - missing) for tensor in passing)
        yield from (gemm("S", m, n, d), probabilities, gemm("dP", m, n, d), gradients)
        yield from (gemm("dV", n, d, m), gemm("dK", n, d, m), gemm("dQ", m, d, n), sums.store())

    def body(**facts: Ints) -> Nest:
        missing_keys, missing_rows, steps, cut, whole = (fact[:, None] for fact in facts.values())
        head, busy, hidden = np.arange(w.group), steps > 0, (steps <= cut) | (steps > whole)
        begun, last_head = busy & (head == 0), head == w.group - 1
        nest = [
            *by_size("prologue", missing_keys, lambda x: (begins, k.load(n - x), v.load(n - x)), begun),
            *by_size("first queries", missing_rows, first_loads, begun),
            *loop("query tile", steps - 1, lambda cut, whole: step(cut or not whole), cut=cut, whole=whole),
        ]
        for hides in sorted(set(hidden[busy].tolist())):
            here, tag = busy & (hidden == hides), " (hides pairs)" * hides
            next_head = f"last query tile, next head{tag}"
            nest += by_size(next_head, missing_rows, partial(step, hides), here & ~last_head)
            nest += once(f"last query tile{tag}", step(hides, m), here & last_head)
        return nest + by_size("epilogue", missing_keys, lambda x: (BLOCK, dk.store(n - x), dv.store(n - x)), last_head)

    return declared(
        MAIN,
        axes,
        "b h j",
        (k, v, dk, dv, *passing, sums),
        _visits(w, axes),
        body,
        warpgroups=2,
        is_backward=True,
        step="query tile",
        **tile.resources(kernel_label(MAIN, tile.constants(w.dtype)), gpu, w.dtype),
    )


def _visits(w: Workload, axes: dict[str, Axis]) -> dict[str, Ints]:
    """For each tile of keys: query tiles of a head, the first of them that a window `cut`s, and the `whole` ones.

    Whole tiles of queries see every key of the tile, including keys beyond the end of a shorter one.
    """
    i, j, ahead, left, right = axes["i"], axes["j"], w.seq_kv - w.seq_q, w.mask.left, w.mask.right
    first = np.arange(j.tiles, dtype=np.int64) * j.tile
    low, high = visible_queries(w, first, np.minimum(first + j.tile, w.seq_kv) - 1)
    start, stop = low // i.tile, -(-high // i.tile)
    begin = 0 * first if right is None else np.maximum(0, first + j.tile - 1 - ahead - right)
    end = 0 * first + w.seq_q + i.tile if left is None else np.maximum(0, first - ahead + left + 1)
    return {
        "missing_keys": j.missing,
        "missing_rows": (stop == i.tiles) * i.missing[-1],
        "steps": stop - start,
        "cut": np.clip(stop - end // i.tile, 0, stop - start),
        "whole": np.clip(stop + begin // -i.tile, 0, stop - start) * (j.missing == 0),
    }


def _scores(tile: OwnBackwardTile, counts: StepCounts | None, hides: bool) -> tuple[TileOp, TileOp]:
    """P and dS of a warpgroup, which both go to shared memory, each with one number per row."""
    scores = tile.rows * tile.keys // 2
    if counts:
        p, ds = counts.gradients(scores)
        hidden = counts.hiding(scores, MASK_INSTRUCTIONS) * hides
        p = p._replace(int32=p.int32 + hidden, issues=p.issues + hidden // LANES)
    else:
        p = TileOp("vector", "P", scores=scores, exps=scores, fp32=MASK_INSTRUCTIONS * scores * hides)
        ds = TileOp("vector", "dS", fp32=DS_INSTRUCTIONS * scores)
    smem = scores * 2 + tile.row_numbers_bytes // 2
    return p._replace(smem_bytes=smem), ds._replace(smem_bytes=smem)


RECORD = record(NAME, build)
