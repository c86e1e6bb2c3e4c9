"""Branches of native sparse attention (NSA, arXiv 2502.11089) in XunhaoLai/native-sparse-attention-triton.

Attention over compressed keys, and the block scores derived from it (section 3.3):
``ops/triton/compressed_attention.py``, commit 9bea856c911e: `forward_kernel`, `backward_dkdv`, `backward_dq`. For the
choice of blocks: `score_kernel`, which recomputes the scores of all pairs and sums them over a group,
`_transform_score_kernel`, `torch.topk` and sorting. Queries before the first whole stretch of compressed keys see none;
tiles of rows begin after them.

Attention over chosen blocks of keys, one block per query and the heads of its group (section 3.4):
``ops/triton/topk_sparse_attention.py``: `forward_kernel`, `backward_dq` and `backward_dkdv`, which walks the queries of
each block of keys; they are found by sorting the list of blocks (`reorder_topk_idx`). Triton keeps `num_stages - 1`
tiles of K and V in shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.backward import dot_do_o, sums_of_groups
from attnsim.models.implementations.fused.forward import flash_peak_bytes
from attnsim.models.implementations.fused.tile import BackwardTile, FlashTile
from attnsim.models.implementations.implementation import Builder, TileRequest, preset, record
from attnsim.models.implementations.selecting.walks import (
    INDEX_BYTES,
    LIST,
    TritonBackwardTile,
    Walk,
    architecture,
    best_past,
    clear,
    compiled,
    forward,
    keys_outside,
    registers,
    rows_outside,
    top_k,
)
from attnsim.models.mask.mask import Mask
from attnsim.models.question.selection import Selection, compressed_pairs, visible_pairs, walked, walkers
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Tensor, declared
from attnsim.models.schedule.instructions import StepCounts, product, step_counts
from attnsim.models.schedule.operation import BLOCK, STEP, Nest, TileOp, loop, once
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.row_tiles import padded
from attnsim.models.schedule.schedule import Kernel, Launch, Path, Schedule, in_step

SELECTED, COMPRESSED = "nsa-triton.selected", "nsa-triton.compressed"
QUERIES = 64
"""Queries of a step of `backward_dkdv` (`BLOCK_SIZE_Q`)."""
LONG = 32768
"""Sequence length from which a block processes an additional query in turn (`num_q_loop`)."""
SORT_BYTES = by_hand(100, "bytes that sorting moves a pair of int32 key and int64 value: four passes of eight bits")
"""A histogram of the keys, then each pass reads and writes 12 bytes (cub's radix sort, which `torch.argsort` calls)."""
SCORE_READS = {"mma_sync": (2, 4), "wgmma": (1, 1)}
"""Times that `score_kernel` reads Q and K: eight warps of mma.sync are arranged 4 x 2 over the scores
(`warpsPerTileV2`)."""
SCORES, BLOCK_SCORES = "scores", "block scores"
AT_ONCE = 32768
"""Tokens up to which the scores of all heads are computed together (`parallel_topk_compute`)."""


@dataclass(frozen=True, slots=True)
class SelectedTile:
    """Tiles of the kernels that walk chosen blocks.

    Parameters
    ----------
    forward : FlashTile
        Forward tile; its rows are the query heads of a group, at least 16.
    queries, keys : BackwardTile
        Tiles of the pass for dQ and of that for dK and dV.
    turns : int
        Queries that a block processes one after the other.
    grid : str
        Axes of the grids of the forward and of the pass for dQ, slowest first.
    """

    forward: FlashTile
    queries: BackwardTile
    keys: BackwardTile
    turns: int
    grid: str = "t b h"

    def __str__(self) -> str:
        return f"{self.forward.rows} heads x {self.forward.keys}, {self.forward.warps} warps"


def power_of_two(number: int) -> int:
    """The next power of two, as required of Triton's tiles."""
    return 1 << max(0, number - 1).bit_length()


def forward_tile(w: Workload, selection: Selection, gpu: Gpu) -> FlashTile:
    """The tile of `forward_kernel`: the query heads of a group against a block."""
    heads, block, width = max(16, power_of_two(w.group)), power_of_two(selection.block), padded(w.head_dim_v)
    warps = 8 if max(w.head_dim, w.head_dim_v) > 64 else 4
    held = registers("forward", gpu, width)
    tile = FlashTile(heads, block, warps=warps, registers=held, across=warps, **preset("nsa-selected"))
    return compiled(tile, SELECTED, gpu, width)


def selected_tile(w: Workload, gpu: Gpu) -> SelectedTile:
    """The tiles of `_topk_sparse_attention_fwd` and `_bwd`."""
    tile = forward_tile(w, chosen(w), gpu)
    heads, block, width = tile.rows, tile.keys, padded(w.head_dim_v)
    wide, hopper = max(w.head_dim, w.head_dim_v) > 64, gpu.features.wgmma
    back = (4 if hopper else 8) if wide != (block > 64) else 8 if wide else 2
    queries = TritonBackwardTile(
        heads,
        block,
        warps=back,
        stages_q=2 if wide or block > 64 else 1,
        registers=registers("dq", gpu, width),
        across=back,
    )
    warps = (4 if hopper else 8) if wide else 2
    path: Path = "wgmma" if hopper and wide else "mma_sync"
    keys = TritonBackwardTile(
        QUERIES,
        block,
        warps=warps,
        stages_q=2 if path == "wgmma" else 1,
        path=path,
        across=warps if wide else 1,
    )
    return SelectedTile(
        tile,
        compiled(queries, f"{SELECTED} dq", gpu, width),
        compiled(keys, f"{SELECTED} backward", gpu, width),
        w.batch * w.seq_q // LONG + 1,
    )


def _selection(w: Workload, what: str, field: str, such: str) -> Selection:
    """The selection of a question.

    Raises
    ------
    InputError
        If it lacks this field, or the kernels do not support it.
    """
    selection = w.selection
    if selection is None or not getattr(selection, field):
        raise InputError(f"kernels of {what} need a selection: --selection '{such}'")
    if reason := selection.misfit(w.seq_kv):
        raise InputError(f"selection {selection} {reason}")
    if w.seq_q != w.seq_kv or not w.mask.is_causal:
        raise InputError(
            f"kernels of {what} are causal with as many keys as queries, not {w.mask}, {w.seq_q} x {w.seq_kv}"
        )
    return selection


chosen = partial(_selection, what="chosen blocks", field="top", such="top 16x64")
compressing = partial(_selection, what="compressed keys", field="compress", such="compress 32 step 16")
"""The selection of a question with chosen blocks, and of one with compressed keys."""


@dataclass(frozen=True, slots=True)
class CompressedTile:
    """Tiles of the kernels over compressed keys.

    Parameters
    ----------
    keys, queries : BackwardTile
        Tiles of the pass for dK and dV, and of that for dQ.
    scores : StepCounts, optional
        Instruction counts of the kernel that recomputes scores; None if blocks are not chosen or by another kernel.
    first : int, optional
        First query of the first tile of rows; None: the first that sees a compressed key.
    grid, keys_grid : str
        Axes of the grids of the forward and of the pass for dQ, and of that for dK and dV, slowest first.
    """

    forward: FlashTile
    keys: BackwardTile
    queries: BackwardTile
    scores: StepCounts | None
    first: int | None = None
    grid: str = "t b h g"
    keys_grid: str = "t b h g"

    def __str__(self) -> str:
        return str(self.forward) + (", scores of blocks" if self.scores else "")


def compressed_tile(w: Workload, gpu: Gpu, scores: bool) -> CompressedTile:
    """128 x 128 in 8 warps, with as many tiles of K and V in shared memory as `num_stages` requests and as fit."""
    hopper = gpu.features.wgmma
    path: Path = "wgmma" if hopper else "mma_sync"
    wide = max(w.head_dim, w.head_dim_v) > 64
    warps = 8 if wide or not hopper else 4
    groups = warps // 4 if hopper else 1
    tile = FlashTile(128, 128, warps=warps, loop="ring", stages=3 if hopper else 2, path=path, warpgroups=groups)
    d, dv = padded(w.head_dim), padded(w.head_dim_v)
    while tile.stages > 1 and tile.shared_memory_bytes(d, dv, w.element_bytes) > gpu.sm.shared_memory_per_block_bytes:
        tile = replace(tile, stages=tile.stages - 1)
    stages = 3 if hopper else 2
    keys = TritonBackwardTile(64, 128, warps=warps, stages_q=stages, path=path, scores_in_registers=True)
    queries = replace(keys, rows=128, keys=64)
    return CompressedTile(
        compiled(tile, COMPRESSED, gpu, dv),
        compiled(keys, f"{COMPRESSED} backward", gpu, dv),
        compiled(queries, f"{COMPRESSED} dq", gpu, dv),
        step_counts(f"{COMPRESSED}-scores", architecture(gpu), d) if scores else None,
    )


def over_compressed(w: Workload) -> Workload:
    """The question with compressed keys in place of keys."""
    return replace(w, seq_kv=compressing(w).compressed_keys(w.seq_kv), mask=Mask.full(), selection=None)


def first_query(w: Workload, tile: CompressedTile) -> int:
    """First query of the first tile of rows."""
    return compressing(w).compress - 1 if tile.first is None else tile.first


def key_tiles(w: Workload, begin: int, rows: int, keys: int) -> Ints:
    """Tiles of compressed keys that each tile of rows walks, ``[tiles]``."""
    s = compressing(w)
    first = np.arange(begin, w.seq_q, rows, dtype=np.int64)
    end = np.minimum(s.compressed_keys(w.seq_kv), (first + rows - s.compress) // s.step + 1)
    return -(-np.maximum(0, end) // keys)


def row_tiles(w: Workload, rows: int, keys: int) -> Ints:
    """Tiles of rows that each tile of compressed keys walks, ``[tiles]``."""
    s = compressing(w)
    first = np.arange(0, s.compressed_keys(w.seq_kv), keys, dtype=np.int64) * s.step + s.compress - 1
    return np.maximum(0, -(-(w.seq_q - first) // rows))


def cleared(w: Workload) -> list[Kernel]:
    """Kernels that clear the outputs of a forward pass."""
    rows = w.batch * w.heads_q * w.seq_q
    return [clear("clear O", "O", rows * w.head_dim_v * w.output_bytes), clear("clear LSE", "LSE", rows * 4)]


def compressed_forward(w: Workload, gpu: Gpu, tile: CompressedTile) -> list[Kernel]:
    """`_compressed_attention_fwd`; with `scores`, also the kernels that choose blocks."""
    return [*cleared(w), *compressed_attention(w, tile), *(block_choice(w, tile) if tile.scores else [])]


def compressed_attention(w: Workload, tile: CompressedTile) -> list[Kernel]:
    """Kernel of attention over compressed keys."""
    c, t, begin = over_compressed(w), tile.forward, first_query(w, tile)
    steps, seen = key_tiles(w, begin, t.rows, t.keys), w.seq_q - begin
    rows = np.minimum(t.rows, seen - np.arange(len(steps)) * t.rows)
    return [forward(c, t, Walk(steps, grid=tile.grid), rows, "compressed_fwd", seen, c.seq_kv)]


def block_choice(w: Workload, tile: CompressedTile) -> list[Kernel]:
    """Kernels that choose blocks, for all heads at once or, for long sequences, one head after the other."""
    s, heads = compressing(w), w.batch * w.heads_kv
    at_once = heads if w.batch * w.seq_q <= AT_ONCE else 1
    keys, blocks = s.compressed_keys(w.seq_kv), s.blocks(w.seq_kv)
    rows = at_once * w.seq_q
    scores, summed = rows * keys * 4, rows * blocks * 4
    offsets = s.block // s.step + s.compress // s.step - 1  # scores that touch a block
    top = min(s.top, blocks)
    each = [
        clear("clear scores", SCORES, scores),
        _scores(w, tile, at_once),
        clear("clear block scores", BLOCK_SCORES, summed),
        streaming(
            "sum scores",
            [Access(SCORES, scores), Access(BLOCK_SCORES, summed, True)],
            elements=rows * blocks,
            fp32_per_element=2 * offsets,
        ),
        *top_k(BLOCK_SCORES, rows, blocks, top),
        *best_past(rows, top),
    ]
    return each * (heads // at_once)


def _scores(w: Workload, tile: CompressedTile, heads: int) -> Kernel:
    """`score_kernel`: a block per 128 queries x 128 compressed keys, heads of a group in turn, the future included."""
    t, d, e = tile.forward, padded(w.head_dim), w.element_bytes
    i, j = Axis(w.seq_q, t.rows), Axis(compressing(w).compressed_keys(w.seq_kv), t.keys)
    axes = {"h": Axis(heads), "g": Axis(w.group), "i": i, "j": j}
    q, k = Tensor("Q", "h g i", w.head_dim * e), Tensor("K", "h j", w.head_dim * e)
    lse, scores = Tensor("LSE", "h g i", 4), Tensor(SCORES, "h i j", 4, written=True)
    rows = t.rows // t.warpgroups
    pairs = rows * t.keys
    of_q, of_k = SCORE_READS[t.path]
    dot = TileOp("mma", "S", flops=2 * pairs * d, smem_bytes=(of_k * t.keys + of_q * rows) * d * e)
    dot = product(dot) if t.path == "mma_sync" else dot
    assert tile.scores is not None
    vector, load = tile.scores.softmax(pairs, pairs, 0, 0), (q.load(t.rows), lse.load(t.rows))

    def head(load_next: bool) -> tuple[TileOp, ...]:
        return q.wait(), lse.wait(), STEP, *(load if load_next else ()), dot, vector

    def body() -> Nest:
        return [
            *once("keys", [BLOCK, k.load(t.keys), *load]),
            *once("wait K", [k.wait()]),
            *loop("head", w.group, head, load_next=w.group - 1),
            *once("store", [BLOCK, scores.store(t.rows * t.keys)]),
        ]

    kernel = declared(
        "score", axes, "h i j", (q, lse, k, scores), {}, body, threads=256, registers_per_thread=255, path=t.path,
        launches=(Launch.alike(heads * i.tiles * j.tiles),), warpgroups=t.warpgroups, dtype=w.dtype, step="head",
        buffers=(("Q", 2 * t.rows * d * e), ("K", t.keys * d * e)),
    )  # fmt: skip
    return in_step(kernel)


def _backward(
    w: Workload,
    name: str,
    down: Walk,
    across: Walk,
    tiles: tuple[BackwardTile, BackwardTile],
    rows: int,
    *first: Kernel,
) -> list[Kernel]:
    """Row sums, kernels that come `first`, dK and dV per query head by walks down, their sums, dQ by walks across."""
    size, expanded = w.batch * w.heads_q * w.element_bytes, " expanded" if w.group > 1 else ""
    return [
        dot_do_o(w),
        *first,
        clear("clear dK", f"dK{expanded}", size * w.seq_kv * w.head_dim),
        clear("clear dV", f"dV{expanded}", size * w.seq_kv * w.head_dim_v),
        in_step(keys_outside(w, tiles[0], down, f"{name}_bwd_dkdv")),
        *sums_of_groups(w),
        clear("clear dQ", "dQ", size * w.seq_q * w.head_dim),
        in_step(rows_outside(w, tiles[1], across, rows, f"{name}_bwd_dq")),
    ]


def compressed_backward(w: Workload, tile: CompressedTile) -> list[Kernel]:
    """`_compressed_attention_bwd`."""
    down = Walk(row_tiles(w, tile.keys.rows, tile.keys.keys), grid=tile.keys_grid)
    across = Walk(key_tiles(w, first_query(w, tile), tile.queries.rows, tile.queries.keys), grid=tile.grid)
    return _backward(over_compressed(w), "compressed", down, across, (tile.keys, tile.queries), tile.queries.rows)


def turns_of(steps: np.ndarray, turns: int) -> np.ndarray:
    """Steps of each query as ``[blocks, turns]``; the last block is padded with 0."""
    blocks = -(-len(steps) // turns)
    return np.concatenate([steps, np.zeros(blocks * turns - len(steps), dtype=np.int64)]).reshape(blocks, turns)


def selected_forward(w: Workload, tile: SelectedTile) -> list[Kernel]:
    """`_topk_sparse_attention_fwd`: outputs are cleared, then one kernel."""
    return [*cleared(w), *selected_attention(w, tile)]


def selected_attention(w: Workload, tile: SelectedTile) -> list[Kernel]:
    """Kernel of attention over chosen blocks."""
    walk = _of_queries(w, tile)
    rows = np.full(len(walk.steps), w.group)
    return [forward(w, tile.forward, walk, rows, "selected_fwd", w.seq_q, w.seq_kv)]


def _of_queries(w: Workload, tile: SelectedTile) -> Walk:
    """The chosen blocks of each query."""
    steps = walked(chosen(w), w.seq_q)
    return Walk(turns_of(steps, tile.turns), INDEX_BYTES, grid=tile.grid, scattered=2)


def selected_backward(w: Workload, tile: SelectedTile) -> list[Kernel]:
    """`_topk_sparse_attention_bwd`, with a sort of the queries of each block."""
    entries = w.batch * w.heads_kv * w.seq_q * chosen(w).top
    accesses = [
        Access(LIST, 2 * entries * INDEX_BYTES),
        Access("order", entries * SORT_BYTES // 2, True),
        Access("order", entries * SORT_BYTES // 2),
        Access("queries", entries * INDEX_BYTES, True),
    ]
    sort = streaming("sort queries", accesses, elements=entries)
    steps = -(-walkers(chosen(w), w.seq_q) // tile.keys.rows)
    down = Walk(steps, tile.keys.rows * INDEX_BYTES, scattered=2, list_name="queries")
    return _backward(w, "selected", down, _of_queries(w, tile), (tile.keys, tile.queries), w.group, sort)


def build_selected(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """The branch over chosen blocks; the choice is given."""
    tile = selected_tile(w, gpu)
    kernels = selected_forward(w, tile) if "fwd" in w.directions else []
    kernels += selected_backward(w, tile) if "bwd" in w.directions else []
    useful = w.matrix_flops(w.batch * visible_pairs(chosen(w), w.seq_q))
    memory = flash_peak_bytes(w)
    return Schedule("nsa-selected", SELECTED, tuple(kernels), tile, memory, useful_flops=useful)


def _compressed(name: str, scores: bool) -> Builder:
    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        tile = compressed_tile(w, gpu, scores)
        kernels = compressed_forward(w, gpu, tile) if "fwd" in w.directions else []
        kernels += compressed_backward(w, tile) if "bwd" in w.directions else []
        selection = compressing(w)
        useful = w.matrix_flops(w.batch * compressed_pairs(selection, w.seq_q))
        score_bytes = w.batch * w.heads_kv * w.seq_q * selection.compressed_keys(w.seq_kv) * 4 if scores else 0
        memory = flash_peak_bytes(over_compressed(w), score_bytes)
        return Schedule("nsa-compressed", name, tuple(kernels), tile, memory, useful_flops=useful)

    return build


RECORDS = (
    record(SELECTED, build_selected),
    record(COMPRESSED, _compressed(COMPRESSED, scores=False)),
    record("nsa-triton.compressed-scores", _compressed("nsa-triton.compressed-scores", scores=True)),
)
