"""Schedules of this project's unfused kernels (``kernels/cuda/naive_*.cu``), block by block what they do.

S and P have 16 bits and rows of :func:`score_stride` elements. Two forms, by passes over the N x N matrix:

* "fused", ``attnsim.naive``: the scale is in the first GEMM's epilogue, the mask in softmax: three kernels.
* "separate", ``attnsim.naive-passes``: scale and mask are kernels of their own over S, in place; the mask's is left out
  when it hides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.implementations.own.resources import ELEMENT, TURN, counts_of, kernel_label, registers_of
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.gemm import GemmTile, Operand, gemm
from attnsim.models.schedule.instructions import LANES, StepCounts, together
from attnsim.models.schedule.nest import Nest, loop_nest
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.schedule import Kernel, Launch, Schedule
from attnsim.models.schedule.uses import TensorUse

HEAD_DIMS = (64, 128, 256)
NAMES = {"fused": "attnsim.naive", "separate": "attnsim.naive-passes"}
"""Implementations by what `passes` asks for."""
Constants = tuple[tuple[str, int | str], ...]
"""Compile-time constants of a kernel, in the order of its label."""
WARP_COLUMNS = 1024
"""Scores that a warp holds in registers: 32 lanes x 4 pieces of 16 bytes."""
SOFTMAX = "naive_softmax"
SUMS = "sums"
"""Part of what a warp does once: the log-sum-exp, behind the store of P."""
PIECE_COLUMNS = 256
"""Scores of a row that a warp takes at once; those beyond the row's end it skips."""
PASS_WARPS = 4
"""Warps of a block of `naive_scale` and `naive_mask`; each takes up to WARP_COLUMNS scores of a row."""
SOFTMAX_FP32, SOFTMAX_INT32 = 5, 3
"""Instructions per score on the FP32 lanes: convert, subtract, multiply, sum, scale; and on the integer lanes: compare
with the band, maximum, convert."""


@dataclass(frozen=True, slots=True)
class SoftmaxTile:
    """How a block of `naive_softmax` goes over its rows.

    Parameters
    ----------
    rows : int
        Of a block.
    warps : int
        That share a row.
    sweeps : int
        Times that S is read: once where the row stays in registers, else twice.
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
        """A maximum and a sum of each warp, where a row has several."""
        return 2 * 4 * self.warps if self.warps > 1 else 0

    def constants(self, dtype: str) -> Constants:
        """What `naive_softmax` is compiled with."""
        return (("ELEMENT", ELEMENT[dtype]), ("ROWS", self.rows), ("WARPS", self.warps), ("SWEEPS", self.sweeps))


@dataclass(frozen=True, slots=True)
class NaiveTile:
    """Tile of the GEMM that makes the scores."""

    scores: GemmTile

    def __str__(self) -> str:
        return f"GEMM {self.scores}"


SOFTMAX_TILES = (SoftmaxTile(4, 1, 1), SoftmaxTile(1, 4, 1), SoftmaxTile(1, 16, 1), SoftmaxTile(1, 8, 2))
"""From short rows to long ones."""


def softmax_tile(seq_kv: int) -> SoftmaxTile:
    """The fewest warps that hold a row, or two sweeps where none do."""
    return next((tile for tile in SOFTMAX_TILES if seq_kv <= tile.warps * WARP_COLUMNS), SOFTMAX_TILES[-1])


def gemm_tile(columns: int) -> GemmTile:
    """Tile of a GEMM whose C has so many columns."""
    return GemmTile(128, 64 if columns <= 64 else 128, 32, stages=3, warps=4)


def gemm_constants(dtype: str, tile: GemmTile) -> Constants:
    """What `naive_scores` and `naive_output` are compiled with."""
    shape = (("BLOCK_M", tile.m), ("BLOCK_N", tile.n), ("BLOCK_K", tile.k))
    return (("ELEMENT", ELEMENT[dtype]), *shape, ("STAGES", tile.stages), ("WARPS", tile.warps))


def pass_constants(dtype: str) -> Constants:
    """What `naive_scale` and `naive_mask` are compiled with."""
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
    """S and P."""
    return 2 * w.batch * w.heads_q * w.seq_q * score_stride(w.seq_kv) * w.element_bytes


def peak_memory_bytes(w: Workload) -> int:
    """Q, K, V, O, the log-sum-exp, S and P: all alive together."""
    query, key = w.batch * w.heads_q * w.seq_q, w.batch * w.heads_kv * w.seq_kv
    return 2 * (query + key) * w.head_dim * w.element_bytes + 4 * query + scratch_bytes(w)


def own_naive(w: Workload, gpu: Gpu, passes: str) -> Schedule:
    """The kernels of unfused attention as this project launches them.

    Parameters
    ----------
    w : Workload
    gpu : Gpu
        Its registers per thread are the compiler's for it; nothing else depends on it.
    passes : {"fused", "separate"}

    Raises
    ------
    InputError
        When there are no kernels of this shape.
    """
    if w.head_dim not in HEAD_DIMS or w.head_dim_v != w.head_dim or w.dropout or w.dtype not in ELEMENT:
        raise InputError(
            f"{NAMES[passes]} has no kernels of {w}{', dropout' if w.dropout else ''}; allowed: head_dim "
            f"{', '.join(map(str, HEAD_DIMS))}, V as wide as Q, fp16 or bf16, no dropout"
        )
    heads = w.batch * w.heads_q
    q, k, v = Operand("Q"), Operand("K", shared_by=w.group), Operand("V", shared_by=w.group)

    def product(name: str, shape: tuple[int, int, int], a: Operand, b: Operand, c: Operand) -> Kernel:
        tile = gemm_tile(shape[1])
        kernel = gemm(name, heads, shape, a, b, c, dtype=w.dtype, tile=tile)
        return _with_registers(kernel, gemm_constants(w.dtype, tile), gpu)

    kernels = [product("naive_scores", (w.seq_q, w.seq_kv, w.head_dim), q, k, Operand("S"))]
    if passes == "separate":
        names = ("naive_scale", "naive_mask") if hides(w) else ("naive_scale",)
        kernels += [_pass(name, w, gpu) for name in names]
    kernels.append(_softmax(w if passes == "fused" else replace(w, mask=Mask()), gpu))
    kernels.append(product("naive_output", (w.seq_q, w.head_dim, w.seq_kv), Operand("P"), v, Operand("O")))
    return Schedule(
        algorithm="naive",
        implementation=NAMES[passes],
        kernels=tuple(kernels),
        tile=NaiveTile(gemm_tile(w.seq_kv)),
        peak_memory_bytes=peak_memory_bytes(w),
        notes=("works on all seq_q x seq_kv scores whatever the mask",),
    )


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
    tile, rows = softmax_tile(w.seq_kv), _rows(w)
    whole, rest = divmod(rows, tile.rows)
    launched = [(count, blocks) for count, blocks in ((tile.rows, whole), (rest, int(rest > 0))) if blocks]
    if tile.sweeps == 1:
        label = kernel_label(SOFTMAX, tile.constants(w.dtype))
        counts = tuple(counts_of(label, gpu, part) for part in (TURN, "", SUMS))
        segments = tuple(_held_rows(w, count, tile, counts) for count, _ in launched)
        repeats = np.eye(len(segments), dtype=np.int64)[:, None, :]
    else:
        segments, repeats = loop_nest(_two_sweeps(w.seq_kv, tile))
    kernel = Kernel(
        name=SOFTMAX,
        threads=tile.threads,
        registers_per_thread=0,
        segments=segments,
        repeats=repeats,
        launches=tuple(Launch.alike(blocks, kind) for kind, (_, blocks) in enumerate(launched)),
        uses=(
            TensorUse("S", 2 * w.seq_kv, rows, passes_per_block=tile.sweeps),
            TensorUse("P", 2 * w.seq_kv, rows, written=True),
            TensorUse("LSE", 4, rows, written=True),
        ),
        buffers=(("maxima, sums", tile.shared_memory_bytes),) if tile.warps > 1 else (),
        dtype="fp32",
        step="rows, 4 a block" if tile.sweeps == 1 else "weights",
    )
    return _with_registers(kernel, tile.constants(w.dtype), gpu)


def _work(name: str, scores: int, exps: int) -> TileOp:
    """What is done with so many scores, of which so many exponentials are computed."""
    fp32, int32 = SOFTMAX_FP32 * scores, SOFTMAX_INT32 * scores
    return TileOp("vector", name, exps=exps, fp32=fp32, int32=int32, issues=(fp32 + int32 + exps) // LANES)


def _pieces(w: Workload) -> tuple[int, float]:
    """Columns of the pieces of a row, and of those that hide some key from it, in the mean of all rows."""
    first = np.arange(0, w.seq_kv, PIECE_COLUMNS)
    place = np.arange(w.seq_q)[:, None] + w.seq_kv - w.seq_q
    left, right = w.mask.left, w.mask.right
    hidden = np.zeros((w.seq_q, len(first)), bool)
    if right is not None:
        hidden |= np.minimum(first + PIECE_COLUMNS, w.seq_kv) - 1 > place + right
    if left is not None:
        hidden |= first < place - left
    return PIECE_COLUMNS * len(first), PIECE_COLUMNS * float(hidden.sum()) / w.seq_q


def _held_rows(w: Workload, rows: int, tile: SoftmaxTile, counts: Sequence[StepCounts | None]) -> Segment:
    """The whole of a block whose rows stay in registers; counts of pieces, of what each warp does, and behind P."""
    seq_kv, exps, lanes = w.seq_kv, rows * exponentiated(w.seq_kv), rows * tile.warps * LANES
    pieces, each, behind = counts
    worked = _work("P", rows * seq_kv, exps)
    if pieces and each:
        columns, hidden = _pieces(w)
        masked = pieces.hiding(round(rows * hidden), 0)
        of_pieces = pieces.softmax(rows * columns, exps, 0, masked)._replace(scores=0)
        worked = together("P", of_pieces, each.work("P", lanes))
    return Segment(
        f"rows, {rows} a block",
        (
            TileOp("load", "S", bytes=2 * rows * seq_kv),
            TileOp("wait", "S"),
            worked,
            TileOp("delay", "step"),
            TileOp("store", "P", bytes=2 * rows * seq_kv),
            *((behind.work("LSE", lanes),) if behind else ()),
            TileOp("store", "LSE", bytes=4 * rows),
        ),
    )


def _two_sweeps(seq_kv: int, tile: SoftmaxTile) -> Nest:
    """Segments of a block whose row is read twice, and how often each runs."""
    chunk = tile.warps * WARP_COLUMNS
    whole, rest = divmod(seq_kv, chunk)

    def first(columns: int) -> tuple[TileOp, ...]:
        exps = exponentiated(columns) + tile.threads  # each thread rescales its sum
        return (TileOp("load", "S", bytes=2 * columns), TileOp("wait", "S"), _work("S", columns, exps))

    def second(columns: int) -> tuple[TileOp, ...]:
        worked = _work("P", columns, exponentiated(columns))
        loaded = (TileOp("load", "S", bytes=2 * columns), TileOp("wait", "S"), worked)
        return (*loaded, TileOp("store", "P", bytes=2 * columns))

    meeting = (TileOp("vector", "P", exps=tile.threads), TileOp("delay", "step"))
    return [
        (Segment("maximum and sum", first(chunk)), whole),
        (Segment("maximum and sum, last", first(rest)), int(rest > 0)),
        (Segment("across the row", meeting), 1),
        (Segment("weights", second(chunk)), whole),
        (Segment("weights, last", second(rest)), int(rest > 0)),
        (Segment("log-sum-exp", (TileOp("store", "LSE", bytes=4),)), 1),
    ]


def _build(w: Workload, gpu: Gpu, shape: TileRequest | None, passes: str) -> Schedule:
    return own_naive(w, gpu, passes)


def exponentiated(columns: int) -> int:
    """Exponentials of a stretch of a row: whole pieces of eight."""
    return -(-columns // 8) * 8


RECORDS = tuple(
    record(name, partial(_build, passes=passes), peak_bytes=peak_memory_bytes) for passes, name in NAMES.items()
)
