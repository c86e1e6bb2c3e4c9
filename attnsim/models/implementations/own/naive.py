"""Schedules of this project's unfused kernels (``kernels/cuda/naive_*.cu``), block by block.

S and P have 16 bits and rows of :func:`score_stride` elements. There are two forms, by passes over the N x N matrix:

* "fused", ``attnsim.naive``: the scale is in the first GEMM's epilogue, the mask in softmax: three kernels.
* "separate", ``attnsim.naive-passes``: scale and mask are separate kernels over S, in place; the mask's is left out
  if it hides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from attnsim.arrays import Ints
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.implementations.own.resources import (
    ELEMENT,
    TURN,
    check_compiled,
    counts_of,
    kernel_label,
    registers_of,
)
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Tensor, declared
from attnsim.models.schedule.gemm import GemmTile, Operand, gemm
from attnsim.models.schedule.instructions import LANES, together
from attnsim.models.schedule.operation import STEP, Nest, TileOp, by_size, loop, once
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.schedule import Kernel, Launch, Schedule

HEAD_DIMS = (64, 128, 256)
NAMES = {"fused": "attnsim.naive", "separate": "attnsim.naive-passes"}
"""Implementations by the value of `passes`."""
Constants = tuple[tuple[str, int | str], ...]
"""Compile-time constants of a kernel, in the order of its label."""
WARP_COLUMNS = 1024
"""Scores that a warp holds in registers: 32 lanes x 4 pieces of 16 bytes."""
SOFTMAX = "naive_softmax"
SUMS = "sums"
"""Part of a warp's one-time work: the log-sum-exp, after the store of P."""
PARTS = (TURN, "", SUMS)
"""Parts of a softmax that holds its rows: per piece of a row; once per warp; and once, after the store."""
PIECE_COLUMNS = 256
"""Scores of a row that a warp processes at once; it skips scores beyond the row's end."""
PASS_WARPS = 4
"""Warps of a block of `naive_scale` and `naive_mask`; each takes up to WARP_COLUMNS scores of a row."""
SOFTMAX_FP32, SOFTMAX_INT32 = 5, 3
"""Instructions per score on the FP32 lanes: convert, subtract, multiply, sum, scale; and on the integer lanes: compare
with the band, maximum, convert."""


@dataclass(frozen=True, slots=True)
class SoftmaxTile:
    """Rows and warps of a block of `naive_softmax`.

    Parameters
    ----------
    rows : int
        Rows per block.
    warps : int
        Warps per row.
    sweeps : int
        Times that S is read: once if the row stays in registers, otherwise twice.
    """

    rows: int
    warps: int
    sweeps: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows * self.warps * 32

    @property
    def shared_memory_bytes(self) -> int:
        """Bytes of a maximum and a sum of each warp, if a row has several."""
        return 2 * 4 * self.warps if self.warps > 1 else 0

    def constants(self, dtype: str) -> Constants:
        """Compile-time constants of `naive_softmax`."""
        return (("ELEMENT", ELEMENT[dtype]), ("ROWS", self.rows), ("WARPS", self.warps), ("SWEEPS", self.sweeps))


SOFTMAX_TILES = (SoftmaxTile(4, 1, 1), SoftmaxTile(1, 4, 1), SoftmaxTile(1, 16, 1), SoftmaxTile(1, 8, 2))
"""Tiles for short rows first."""


def softmax_tile(seq_kv: int) -> SoftmaxTile:
    """The tile with the fewest warps that hold a row; two sweeps if none do."""
    return next((tile for tile in SOFTMAX_TILES if seq_kv <= tile.warps * WARP_COLUMNS), SOFTMAX_TILES[-1])


def gemm_tile(columns: int) -> GemmTile:
    """Tile of a GEMM whose C has `columns` columns."""
    return GemmTile(128, 64 if columns <= 64 else 128, 32, stages=3, warps=4)


def gemm_constants(dtype: str, tile: GemmTile) -> Constants:
    """Compile-time constants of `naive_scores` and `naive_output`."""
    shape = (("BLOCK_M", tile.m), ("BLOCK_N", tile.n), ("BLOCK_K", tile.k))
    return (("ELEMENT", ELEMENT[dtype]), *shape, ("STAGES", tile.stages), ("WARPS", tile.warps))


def pass_constants(dtype: str) -> Constants:
    """Compile-time constants of `naive_scale` and `naive_mask`."""
    return (("ELEMENT", ELEMENT[dtype]), ("WARPS", PASS_WARPS))


def pass_blocks(w: Workload) -> int:
    """Blocks of `naive_scale` and `naive_mask`."""
    return -(-_rows(w) * -(-w.seq_kv // WARP_COLUMNS) // PASS_WARPS)


def score_stride(seq_kv: int) -> int:
    """Elements from one row of S or P to the next: whole pieces of 16 bytes, which cp.async needs."""
    return -(-seq_kv // 8) * 8


def hides(w: Workload) -> bool:
    """Whether the mask hides any key from any query."""
    return w.visible_pairs < w.all_pairs


def scratch_bytes(w: Workload) -> int:
    """Bytes of S and P."""
    return 2 * w.batch * w.heads_q * w.seq_q * score_stride(w.seq_kv) * w.element_bytes


def peak_memory_bytes(w: Workload) -> int:
    """Peak memory: Q, K, V, O, the log-sum-exp, S and P."""
    query, key = w.batch * w.heads_q * w.seq_q, w.batch * w.heads_kv * w.seq_kv
    return 2 * (query + key) * w.head_dim * w.element_bytes + 4 * query + scratch_bytes(w)


def own_naive(w: Workload, gpu: Gpu, passes: str) -> Schedule:
    """The kernels of unfused attention as this project launches them.

    Parameters
    ----------
    gpu : Gpu
        GPU for which the compiler reported registers per thread; nothing else depends on it.
    passes : {"fused", "separate"}

    Raises
    ------
    InputError
        If there are no kernels of this shape.
    """
    check_compiled(NAMES[passes], w, HEAD_DIMS)
    heads = w.batch * w.heads_q
    q, k, v = Operand("Q"), Operand("K", shared_by=w.group), Operand("V", shared_by=w.group)

    def product(name: str, shape: tuple[int, int, int], a: Operand, b: Operand, c: Operand) -> Kernel:
        tile = gemm_tile(shape[1])
        kernel = gemm(name, heads, shape, a, b, c, dtype=w.dtype, tile=tile, last=())
        return _with_registers(kernel, gemm_constants(w.dtype, tile), gpu)

    kernels = [product("naive_scores", (w.seq_q, w.seq_kv, w.head_dim), q, k, Operand("S"))]
    if passes == "separate":
        names = ("naive_scale", "naive_mask") if hides(w) else ("naive_scale",)
        kernels += [_pass(name, w, gpu) for name in names]
    kernels.append(_softmax(w if passes == "fused" else replace(w, mask=Mask()), gpu))
    kernels.append(product("naive_output", (w.seq_q, w.head_dim, w.seq_kv), Operand("P"), v, Operand("O")))
    tile, notes = f"GEMM {gemm_tile(w.seq_kv)}", ("works on all seq_q x seq_kv scores whatever the mask",)
    return Schedule("naive", NAMES[passes], tuple(kernels), tile, peak_memory_bytes(w), notes)


def _rows(w: Workload) -> int:
    return w.batch * w.heads_q * w.seq_q


def _with_registers(kernel: Kernel, constants: Constants, gpu: Gpu) -> Kernel:
    label = kernel_label(kernel.name, constants)
    return replace(kernel, registers_per_thread=registers_of(label, gpu, kernel.threads))


def _pass(name: str, w: Workload, gpu: Gpu) -> Kernel:
    """`naive_scale` or `naive_mask`: S read and written in place."""
    pairs = _rows(w) * w.seq_kv
    kernel = streaming(
        name,
        [Access("S", 2 * pairs), Access("S", 2 * pairs, written=True)],
        elements=pairs,
        fp32_per_element=4,  # two conversions, the operation, the limit or the comparison
        threads=PASS_WARPS * 32,
        blocks=pass_blocks(w),
    )
    return _with_registers(kernel, pass_constants(w.dtype), gpu)


def _softmax(w: Workload, gpu: Gpu) -> Kernel:
    """P and LSE of the rows of S: rows that stay in registers, or one that is read twice."""
    tile = softmax_tile(w.seq_kv)
    axes = {"r": Axis(_rows(w), tile.rows), "j": Axis(w.seq_kv, tile.warps * WARP_COLUMNS)}
    s, p = Tensor("S", "r j", 2, times=tile.sweeps), Tensor("P", "r j", 2, written=True)
    lse = Tensor("LSE", "r", 4, written=True)

    def blocks(missing_rows: Ints) -> Nest:
        if tile.sweeps == 1:
            return by_size("rows", missing_rows, lambda n: _held_rows(w, gpu, tile, tile.rows - n, (s, p, lse)))
        return _two_sweeps(axes["j"], tile, (s, p, lse))

    last = int(axes["r"].short > 0)
    kernel = declared(
        SOFTMAX,
        axes,
        "r",
        (s, p, lse),
        {"missing_rows": np.unique([0, axes["r"].short])},
        blocks,
        launches=tuple(Launch.alike(n, kind) for kind, n in enumerate((axes["r"].tiles - last, last)) if n),
        threads=tile.threads,
        registers_per_thread=0,
        dtype="fp32",
        buffers=(("maxima, sums", tile.shared_memory_bytes),) if tile.warps > 1 else (),
        step="rows, 4 a block" if tile.sweeps == 1 else "weights",
    )
    return _with_registers(kernel, tile.constants(w.dtype), gpu)


def _work(name: str, scores: int, exps: int) -> TileOp:
    """Instructions for `scores` scores, with `exps` exponentials."""
    fp32, int32 = SOFTMAX_FP32 * scores, SOFTMAX_INT32 * scores
    return TileOp("vector", name, exps=exps, fp32=fp32, int32=int32, issues=(fp32 + int32 + exps) // LANES)


def _pieces(w: Workload) -> tuple[int, float]:
    """Columns of the pieces of a row, and mean number of pieces per row that hide some key."""
    first = np.arange(0, w.seq_kv, PIECE_COLUMNS)
    place = np.arange(w.seq_q)[:, None] + w.seq_kv - w.seq_q
    left, right = w.mask.left, w.mask.right
    hidden = np.zeros((w.seq_q, len(first)), bool)
    if right is not None:
        hidden |= np.minimum(first + PIECE_COLUMNS, w.seq_kv) - 1 > place + right
    if left is not None:
        hidden |= first < place - left
    return PIECE_COLUMNS * len(first), PIECE_COLUMNS * float(hidden.sum()) / w.seq_q


def _held_rows(
    w: Workload, gpu: Gpu, tile: SoftmaxTile, rows: int, tensors: tuple[Tensor, Tensor, Tensor]
) -> Iterator[TileOp]:
    """A block whose rows stay in registers; counts are per piece, once per warp, and after P."""
    s, p, lse = tensors
    scores, exps, lanes = rows * w.seq_kv, rows * exponentiated(w.seq_kv), rows * tile.warps * LANES
    pieces, each, behind = (counts_of(kernel_label(SOFTMAX, tile.constants(w.dtype)), gpu, part) for part in PARTS)
    worked = _work("P", scores, exps)
    if pieces and each:
        columns, hidden = _pieces(w)
        masked = pieces.hiding(round(rows * hidden), 0)
        of_pieces = pieces.softmax(rows * columns, exps, 0, masked)._replace(scores=0)
        worked = together("P", of_pieces, each.work("P", lanes))
    yield from (s.load(scores), s.wait(), worked, STEP, p.store(scores))
    if behind:
        yield behind.work("LSE", lanes)
    yield lse.store(rows)


def _two_sweeps(columns: Axis, tile: SoftmaxTile, tensors: tuple[Tensor, Tensor, Tensor]) -> Nest:
    """A block whose row is read twice: for its maximum and sum, and for its weights."""
    s, p, lse = tensors
    turns, whole = columns.tiles, columns.tiles - (columns.short > 0)

    def size(whole: bool) -> int:
        return columns.tile - columns.short * (not whole)

    def first(whole: bool) -> tuple[TileOp, ...]:
        exps = exponentiated(size(whole)) + tile.threads  # each thread rescales its sum
        return s.load(size(whole)), s.wait(), _work("S", size(whole), exps)

    def second(whole: bool) -> tuple[TileOp, ...]:
        work = _work("P", size(whole), exponentiated(size(whole)))
        return s.load(size(whole)), s.wait(), work, p.store(size(whole))

    return [
        *loop("maximum and sum", turns, first, whole=whole),
        *once("across the row", (TileOp("vector", "P", exps=tile.threads), STEP)),
        *loop("weights", turns, second, whole=whole),
        *once("log-sum-exp", [lse.store()]),
    ]


def _build(w: Workload, gpu: Gpu, shape: TileRequest | None, passes: str) -> Schedule:
    return own_naive(w, gpu, passes)


def exponentiated(columns: int) -> int:
    """Exponentials for a stretch of a row: whole pieces of eight."""
    return -(-columns // 8) * 8


RECORDS = tuple(
    record(name, partial(_build, passes=passes), peak_bytes=peak_memory_bytes) for passes, name in NAMES.items()
)
