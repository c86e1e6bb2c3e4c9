"""Attention to compressed keys, and the scores of blocks that follow from it (NSA, arXiv 2502.11089, section 3.3).

``ops/triton/compressed_attention.py`` of XunhaoLai/native-sparse-attention-triton, commit 9bea856c911e:
`forward_kernel`, `backward_dkdv`, `backward_dq`; for the choice of blocks `score_kernel`, which computes the scores
of all pairs again and sums them over a group, `_transform_score_kernel`, `torch.topk` and sorting. Queries before the
first whole stretch of compressed keys see none; tiles of rows begin after them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attnsim.arrays import Ints
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.backward import sums_of_groups
from attnsim.models.implementations.fused.building import in_step
from attnsim.models.implementations.fused.tile import BackwardTile, FlashTile
from attnsim.models.implementations.selecting.selected import clear
from attnsim.models.implementations.selecting.top_k import top_k
from attnsim.models.implementations.selecting.triton_tiles import TritonBackwardTile, architecture, compiled
from attnsim.models.implementations.selecting.walks import Walk, forward, keys_outside, rows_outside
from attnsim.models.mask.mask import Mask
from attnsim.models.question.selection import Selection
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import StepCounts, product, step_counts
from attnsim.models.schedule.nest import loop_nest
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.schedule import Kernel, Launch, Path
from attnsim.models.schedule.uses import TensorUse
from attnsim.models.schedule.widths import padded

NAME = "nsa-triton.compressed"
SCORE_READS = {"mma_sync": (2, 4), "wgmma": (1, 1)}
"""Times that `score_kernel` reads Q and K: eight warps of mma.sync lie 4 x 2 over the scores (`warpsPerTileV2`)."""
SCORES, BLOCK_SCORES = "scores", "block scores"
AT_ONCE = 32768
"""Tokens up to which the scores of all heads are computed together (`parallel_topk_compute`)."""


@dataclass(frozen=True, slots=True)
class CompressedTile:
    """Tiles of the kernels over compressed keys.

    Parameters
    ----------
    forward : FlashTile
    keys, queries : BackwardTile
        Of the pass for dK and dV, and of that for dQ.
    scores : StepCounts, optional
        Of the kernel that computes scores again; None where blocks are not chosen or by another kernel.
    first : int, optional
        First query of the first tile of rows; None: the first that sees a compressed key.
    """

    forward: FlashTile
    keys: BackwardTile
    queries: BackwardTile
    scores: StepCounts | None
    first: int | None = None

    def __str__(self) -> str:
        return str(self.forward) + (", scores of blocks" if self.scores else "")


def choose_tile(w: Workload, gpu: Gpu, scores: bool) -> CompressedTile:
    """128 x 128 in 8 warps, as many tiles of K and V in shared memory as `num_stages` asks for and fit."""
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
        compiled(tile, NAME, gpu, dv),
        compiled(keys, f"{NAME} backward", gpu, dv),
        compiled(queries, f"{NAME} dq", gpu, dv),
        step_counts(f"{NAME}-scores", architecture(gpu), d) if scores else None,
    )


def compressing(w: Workload) -> Selection:
    """The selection of a question, with compressed keys.

    Raises
    ------
    InputError
    """
    selection = w.selection
    if selection is None or not selection.compress:
        raise InputError("kernels of compressed keys need a selection: --selection 'compress 32 step 16'")
    if reason := selection.misfit(w.seq_kv):
        raise InputError(f"selection {selection} {reason}")
    if w.seq_q != w.seq_kv or not w.mask.is_causal:
        raise InputError(
            f"kernels of compressed keys are causal with as many keys as queries, not {w.mask}, {w.seq_q} x {w.seq_kv}"
        )
    return selection


def over_compressed(w: Workload) -> Workload:
    """The same question with compressed keys in place of keys."""
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


def compressed_forward(w: Workload, gpu: Gpu, tile: CompressedTile) -> list[Kernel]:
    """`_compressed_attention_fwd`, and with `scores` what chooses blocks."""
    rows = w.batch * w.heads_q * w.seq_q
    return [
        clear("clear O", "O", rows * w.head_dim_v * w.output_bytes),
        clear("clear LSE", "LSE", rows * 4),
        *attention(w, tile),
        *(block_choice(w, tile) if tile.scores else []),
    ]


def attention(w: Workload, tile: CompressedTile) -> list[Kernel]:
    """The one kernel of attention to compressed keys."""
    c, t, e = over_compressed(w), tile.forward, w.element_bytes
    rows, kv = w.batch * w.heads_q, w.batch * w.heads_kv
    begin = first_query(w, tile)
    steps, seen = key_tiles(w, begin, t.rows, t.keys), w.seq_q - begin
    sizes = np.minimum(t.rows, seen - np.arange(len(steps)) * t.rows)
    sharers = len(steps) * w.group
    uses = (
        TensorUse("Q", seen * w.head_dim * e, rows),
        TensorUse("K", c.seq_kv * w.head_dim * e, kv, sharers),
        TensorUse("V", c.seq_kv * w.head_dim_v * e, kv, sharers),
        TensorUse("O", seen * w.head_dim_v * w.output_bytes, rows, written=True),
        TensorUse("LSE", seen * 4, rows, written=True),
    )
    return [forward(c, t, Walk(steps, rows), sizes, "compressed_fwd", uses)]


def block_choice(w: Workload, tile: CompressedTile) -> list[Kernel]:
    """What chooses blocks, for all heads at once or, of long sequences, for one after the other."""
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
        *(
            streaming(
                name, [Access("found", rows * top * 8), Access(written, rows * top * size, True)], elements=rows * top
            )
            for name, written, size in (("future", "is future", 1), ("drop", "found", 8), ("to int32", "selected", 4))
        ),
    ]
    return each * (heads // at_once)


def _scores(w: Workload, tile: CompressedTile, heads: int) -> Kernel:
    """`score_kernel`: a block for each 128 queries x 128 compressed keys, heads of a group in turn, the future too."""
    keys, t, e = compressing(w).compressed_keys(w.seq_kv), tile.forward, w.element_bytes
    across, down = -(-keys // t.keys), -(-w.seq_q // t.rows)
    d, groups = padded(w.head_dim), t.warpgroups
    rows = t.rows // groups
    pairs = rows * t.keys
    loads = TileOp("load", "Q", bytes=t.rows * w.head_dim * e), TileOp("load", "LSE", bytes=t.rows * 4)
    of_q, of_k = SCORE_READS[t.path]
    smem = (of_k * t.keys + of_q * rows) * d * e
    dot = TileOp("mma", "S", flops=2 * pairs * d, smem_bytes=smem)
    dot = product(dot) if t.path == "mma_sync" else dot
    head = (TileOp("wait", "Q"), TileOp("wait", "LSE"), TileOp("delay", "step"), dot)
    assert tile.scores is not None
    vector = tile.scores.softmax(pairs, pairs, 0, 0)
    nest = [
        (Segment("keys", (TileOp("delay", "block"), TileOp("load", "K", bytes=t.keys * w.head_dim * e), *loads)), 1),
        (Segment("wait K", (TileOp("wait", "K"),)), 1),
        (Segment("head", (*head[:3], *loads, dot, vector)), w.group - 1),
        (Segment("last head", (*head, vector)), 1),
        (Segment("store", (TileOp("delay", "block"), TileOp("store", SCORES, bytes=t.rows * t.keys * 4))), 1),
    ]
    segments, repeats = loop_nest([(segment, np.array([n])) for segment, n in nest])
    buffers = (("Q", 2 * t.rows * d * e), ("K", t.keys * d * e))
    blocks = heads * across * down
    kernel = Kernel(
        name="score",
        threads=256,
        registers_per_thread=255,
        segments=segments,
        repeats=repeats,
        launches=(Launch.alike(blocks),),
        uses=(
            TensorUse("Q", w.seq_q * w.head_dim * e, heads * w.group, across),
            TensorUse("LSE", w.seq_q * 4, heads * w.group, across),
            TensorUse("K", keys * w.head_dim * e, heads, down),
            TensorUse(SCORES, w.seq_q * keys * 4, heads, written=True),
        ),
        warpgroups=groups,
        path=t.path,
        buffers=buffers,
        dtype=w.dtype,
        step="head",
    )
    return in_step(kernel)


def compressed_backward(w: Workload, tile: CompressedTile) -> list[Kernel]:
    """`_compressed_attention_bwd`: row sums, dK and dV a query head, their sums, dQ."""
    c, e = over_compressed(w), w.element_bytes
    rows, kv, expanded = w.batch * w.heads_q, w.batch * w.heads_kv, " expanded" if w.group > 1 else ""
    out = rows * w.seq_q * w.head_dim_v * e
    down, across = (
        row_tiles(w, tile.keys.rows, tile.keys.keys),
        key_tiles(w, first_query(w, tile), tile.queries.rows, tile.queries.keys),
    )

    def stays(sharers: int) -> tuple[TensorUse, ...]:
        sizes = {"K": c.seq_kv * w.head_dim * e, "V": c.seq_kv * w.head_dim_v * e}
        return tuple(TensorUse(x, size, kv, sharers * w.group) for x, size in sizes.items())

    def passing(sharers: int) -> tuple[TensorUse, ...]:
        sizes = {"Q": w.head_dim * e, "dO": w.head_dim_v * e, "LSE, D": 8}
        return tuple(TensorUse(x, w.seq_q * size, rows, sharers) for x, size in sizes.items())

    gradients = (
        TensorUse(f"dK{expanded}", c.seq_kv * w.head_dim * e, rows, written=True),
        TensorUse(f"dV{expanded}", c.seq_kv * w.head_dim_v * e, rows, written=True),
    )
    dq = TensorUse("dQ", w.seq_q * w.head_dim * e, rows, written=True)
    dots = [Access("O", out), Access("dO", out), Access("D", rows * w.seq_q * 4, True)]
    by_keys, by_rows = (*stays(1), *passing(len(down)), *gradients), (*stays(len(across)), *passing(1), dq)
    return [
        streaming("dot_do_o", dots, elements=out // e, fp32_per_element=3),
        clear("clear dK", "dK expanded", rows * c.seq_kv * w.head_dim * e),
        clear("clear dV", "dV expanded", rows * c.seq_kv * w.head_dim_v * e),
        in_step(keys_outside(c, tile.keys, Walk(down, rows), "compressed_bwd_dkdv", by_keys)),
        *sums_of_groups(c),
        clear("clear dQ", "dQ", rows * w.seq_q * w.head_dim * e),
        in_step(rows_outside(c, tile.queries, Walk(across, rows), tile.queries.rows, "compressed_bwd_dq", by_rows)),
    ]
