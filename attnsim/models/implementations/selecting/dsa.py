"""DeepSeek sparse attention as SGLang launches it: indexer, top-k, attention to the chosen keys of the latent.

DeepSeek-V3.2 (arXiv 2512.02556, section 2.1). The indexer is DeepGEMM's `sm90_fp8_mqa_logits` and its twin on
Blackwell, whose blocks walk the keys of a few queries and write scores in fp32. Top-k is `fast_topk_transform_fused` of
sgl-kernel (``csrc/elementwise/topk.cu``), a block of 1,024 threads a row: a histogram of eight bits of all scores, then
what is above is gathered and what is in the last bin refined in shared memory. Attention is FlashMLA's sparse forward
(``csrc/sm90/prefill/sparse/phase1.cuh``), 64 heads of one query a block, which gathers the latents of its 2,048 keys
one by one, however few exist.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnsim.models.by_hand import by_hand
from attnsim.models.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.implementations.selecting.dsa_tiles import (
    CHUNK,
    HEADS,
    KEYS,
    QUERIES,
    SCALE_BYTES,
    TOKENS,
    DsaTile,
    IndexTile,
    TokensTile,
    TopKTile,
    choosing,
    chosen_keys,
    index_steps,
    instructions,
    queries_read,
    top_k_turns,
)
from attnsim.models.implementations.selecting.walks import INDEX_BYTES, LIST
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.nest import Nest, loop_nest
from attnsim.models.schedule.occupancy import check_shared_memory
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.schedule import Kernel, Launch, Schedule
from attnsim.models.schedule.uses import TensorUse

INDEX_INSTRUCTIONS = by_hand(2, "FP32-lane instructions a score of the indexer: clamp at 0, add to the sum over heads")
DIGIT_INSTRUCTIONS = by_hand(4, "integer instructions a score and pass of top-k, before the fitted `extra`")
PAGED = "deepgemm.paged-mqa-logits"
PAGES, PAGE = "page numbers", 64
"""Numbers of a sequence's pages, int32, and the keys of a page (`BLOCK_KV` of ``sm90_fp8_paged_mqa_logits.cuh``)."""
MOST_QUERIES = 2
"""Queries of a sequence (`next_n` of ``csrc/jit_kernels/impls/smxx_fp8_paged_mqa_logits.hpp``)."""
KV = "KV"
"""Tensor of the latents."""
GATHERED = 2
"""Passes over a row of scores: the histogram, and gathering."""


def index_tile(w: Workload, gpu: Gpu, heads: int, width: int) -> IndexTile:
    """The indexer's fixed tile, with fewer queries for more heads."""
    return IndexTile(max(1, QUERIES * 64 // heads), heads, KEYS, width, instructions(gpu))


def paged_tile(w: Workload, gpu: Gpu, heads: int, width: int) -> IndexTile:
    """The paged indexer's tile: all queries of a sequence, and a share for each SM.

    Raises
    ------
    InputError
        When a sequence has more queries than the kernel is compiled for.
    """
    if w.seq_q > MOST_QUERIES:
        raise InputError(
            f"{PAGED} is compiled for 1 or {MOST_QUERIES} queries a sequence, not {w.seq_q}; take deepgemm.mqa-logits"
        )
    return IndexTile(w.seq_q, heads, KEYS, width, instructions(gpu), shares=gpu.sm.count)


def indexer(w: Workload, tile: IndexTile, gpu: Gpu) -> Kernel:
    """`fp8_mqa_logits`: Q of a block stays, tiles of 256 keys with their scales pass three deep.

    Of the paged kernel, `fp8_paged_mqa_logits`, a block goes through the sequences of its share, reading the queries of
    each and the numbers of the pages that its keys lie in.
    """
    steps = index_steps(w, tile)
    both, inverse = np.unique(np.stack([steps, queries_read(w, tile)]), axis=1, return_inverse=True)
    kinds, reads = both
    groups = 2 if tile.path == "tcgen05" else 4
    columns = tile.queries * tile.heads
    scores = columns * tile.keys // groups
    q_bytes, k_bytes = (n * (tile.width + SCALE_BYTES) for n in (columns, tile.keys))
    load = TileOp("load", "K", bytes=k_bytes)
    pages = (TileOp("load", PAGES, bytes=tile.keys // PAGE * INDEX_BYTES),) if tile.shares else ()
    smem = (columns + tile.keys // groups) * tile.width
    dot = TileOp("mma", "S", flops=2 * scores * tile.width, smem_bytes=smem)
    tmem = scores * 4 if tile.path == "tcgen05" else 0
    sums = TileOp("vector", "sum over heads", fp32=INDEX_INSTRUCTIONS * scores, tmem_bytes=tmem)
    out = TileOp("store", "scores", bytes=tile.queries * tile.keys * 4)

    def step(more: bool) -> Segment:
        name = "key tile" if more else "last key tiles"
        loads = (*pages, load) if more else ()
        return Segment(name, (TileOp("wait", "K"), TileOp("delay", "step"), dot, *loads, sums, out))

    filled = np.minimum(kinds, 3)
    segments, repeats = loop_nest(
        [
            (Segment("begin", (TileOp("delay", "block"), TileOp("load", "Q", bytes=q_bytes))), kinds > 0),
            (Segment("fill", (*pages, load)), filled),
            (Segment("wait Q", (TileOp("wait", "Q"),)), kinds > 0),
            (Segment("next Q", (TileOp("load", "Q", bytes=q_bytes), TileOp("wait", "Q"))), np.maximum(reads - 1, 0)),
            (step(True), kinds - filled),
            (Segment("next block", (TileOp("prefetch"),)), kinds > 0),
            (step(False), filled),
        ]
    )
    total = w.batch * w.seq_q
    seeing = min(total, int(queries_read(w, tile).sum()) * tile.queries)  # a block without keys reads no Q
    read = int(steps.sum()) * tile.keys / (w.batch * w.seq_kv)
    numbers = (TensorUse(PAGES, -(-w.seq_kv // PAGE) * INDEX_BYTES, w.batch),) if tile.shares else ()
    deep = 3 if 3 * (q_bytes + k_bytes) <= gpu.sm.shared_memory_per_block_bytes else 1
    buffers = (("Q", deep * q_bytes), ("K", 3 * k_bytes))
    return Kernel(
        name="indexer",
        threads=groups * 128 + 128,
        registers_per_thread=96,
        shared_memory_bytes=sum(size for _, size in buffers),
        segments=segments,
        repeats=repeats,
        launches=(Launch(inverse.reshape(-1).astype(np.int64)),),
        uses=(
            TensorUse("Q", seeing * tile.heads * (tile.width + SCALE_BYTES), 1),
            TensorUse("K", w.seq_kv * (tile.width + SCALE_BYTES), w.batch, max(1.0, read)),
            *numbers,
            TensorUse("scores", total * w.seq_kv * 4, 1, written=True),
        ),
        warpgroups=groups,
        path=tile.path,
        persistent=True,
        buffers=buffers,
        dtype="fp8",
        step="key tile",
    )


def top_k(w: Workload, tile: TopKTile) -> Kernel:
    """`fast_topk_transform_fused`: two passes over a row, then its places through the page table.

    No barrier lies within a pass: a warp that has its scores asks for its next ones while others wait. So 16 KiB are in
    flight all the time, and only the slower of their latency and the digits is seen.
    """
    turns = top_k_turns(w, tile)
    kinds, inverse = np.unique(turns, return_inverse=True)
    chunk = TileOp("load", "scores", bytes=tile.chunk * 4)
    work = TileOp("vector", "digits", int32=DIGIT_INSTRUCTIONS * tile.chunk)
    wait = TileOp("wait", "scores")
    table = TileOp("load", "page table", bytes=tile.top * INDEX_BYTES)
    end = (table, TileOp("wait", "page table"), TileOp("store", LIST, bytes=tile.top * INDEX_BYTES))
    ones = np.ones_like(kinds)
    segments, repeats = loop_nest(
        [
            (Segment("begin", (TileOp("delay", "block"),)), ones),
            (Segment("first scores", (chunk,)), np.minimum(kinds, 1)),
            (Segment("turn", (wait, chunk, work)), np.maximum(GATHERED * kinds - 1, 0)),
            (Segment("last turn", (wait, work)), np.minimum(kinds, 1)),
            (Segment("store", end), ones),
        ]
    )
    rows = w.batch * w.seq_q
    return Kernel(
        name="top-k",
        threads=1024,
        registers_per_thread=32,
        shared_memory_bytes=128 << 10,
        segments=segments,
        repeats=repeats,
        launches=(Launch(inverse.reshape(-1).astype(np.int64), w.batch),),
        uses=(
            TensorUse("scores", w.seq_kv * 4, rows, passes_per_block=GATHERED),
            TensorUse("page table", w.seq_kv * INDEX_BYTES, w.batch, w.seq_q),
            TensorUse(LIST, tile.top * INDEX_BYTES, rows, written=True),
        ),
        dtype="fp32",
        step="turn",
    )


def tokens_tile(w: Workload, gpu: Gpu) -> TokensTile:
    """64 heads of a query x 64 keys, at the widths of the latent."""
    widths = (w.latent.width, w.latent.rank) if w.latent else (w.head_dim, w.head_dim_v)
    return TokensTile(HEADS, TOKENS, widths, instructions(gpu))


def attention(w: Workload, tile: TokensTile) -> Kernel:
    """`sparse_attn_fwd`: latents of chosen keys are gathered two tiles ahead; a value is the key's first part."""
    top, (d, dv), e = choosing(w).top, tile.widths, w.element_bytes
    steps, groups, heads = -(-top // tile.keys), 2, -(-w.heads_q // tile.heads)
    scores = tile.heads * tile.keys // groups
    gather = (
        TileOp("load", LIST, bytes=tile.keys * INDEX_BYTES),
        TileOp("load", KV, bytes=tile.keys * d * e),
    )
    # With wgmma each warpgroup reads the tile of keys; of tcgen05 one thread multiplies all heads, and it is read once.
    readers, tmem = (1, scores * (4 + e)) if tile.path == "tcgen05" else (groups, 0)
    operands = readers * tile.keys // groups
    s = TileOp("mma", "S", flops=2 * scores * d, smem_bytes=(operands + tile.heads // groups) * d * e)
    o = TileOp("mma", "O", flops=2 * scores * dv, smem_bytes=operands * dv * e + scores * e)
    exps, fp32 = scores + tile.heads // groups, tile.heads * dv // groups
    p = TileOp("vector", "P", scores=scores, exps=exps, fp32=fp32, tmem_bytes=tmem)

    def step(more: bool) -> Segment:
        body = (TileOp("wait", LIST), TileOp("wait", KV), TileOp("delay", "step"), s, p, o)
        return Segment("tile" if more else "last tiles", (*body, *(gather if more else ())))

    filled, last = min(2, steps), w.heads_q - (heads - 1) * tile.heads
    kinds = [tile.heads, last] if heads > 1 and last < tile.heads else [last]
    eye = np.eye(len(kinds), dtype=np.int64)
    every = np.ones(len(kinds), dtype=np.int64)
    nest: Nest = []
    for number, rows in enumerate(kinds):
        q = TileOp("load", "Q", bytes=rows * d * e)
        nest.append((Segment(f"begin ({rows} heads)", (TileOp("delay", "block"), q)), eye[number]))
    nest += [
        (Segment("fill", gather), filled * every),
        (Segment("wait Q", (TileOp("wait", "Q"),)), every),
        (step(True), (steps - filled) * every),
        (step(False), filled * every),
    ]
    for number, rows in enumerate(kinds):
        stores = TileOp("store", "O", bytes=rows * dv * w.output_bytes), TileOp("store", "LSE", bytes=rows * 8)
        nest.append((Segment(f"end ({rows} heads)", (TileOp("delay", "block"), *stores)), eye[number]))
    segments, repeats = loop_nest(nest)
    queries = w.batch * w.seq_q
    order = np.zeros(heads, dtype=np.int64)
    order[-1] = len(kinds) - 1
    buffers = (("Q", tile.heads * d * e), ("KV", 2 * tile.keys * d * e))
    return Kernel(
        name="sparse_attn",
        threads=384,
        registers_per_thread=168,
        shared_memory_bytes=sum(size for _, size in buffers),
        segments=segments,
        repeats=repeats,
        launches=(Launch(order, queries),),
        uses=(
            TensorUse("Q", w.heads_q * d * e, queries),
            TensorUse(KV, chosen_keys(w, steps * tile.keys) * d * e, w.batch, w.seq_q * heads),
            TensorUse(LIST, steps * tile.keys * INDEX_BYTES, queries, heads),
            TensorUse("O", w.heads_q * dv * w.output_bytes, queries, written=True),
            TensorUse("LSE", w.heads_q * 8, queries, written=True),
        ),
        warpgroups=groups,
        path=tile.path,
        buffers=buffers,
        dtype=w.dtype,
        step="tile",
        role="attention",
        copies_by_extra=True,
    )


def build_indexer(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """Scores of all keys; the question's heads and width are the indexer's."""
    choosing(w)
    tile = index_tile(w, gpu, w.heads_q, w.head_dim)
    kernel = indexer(w, tile, gpu)
    return scheduled("dsa-indexer", "deepgemm.mqa-logits", (kernel,), DsaTile(index=tile), w, gpu)


def build_paged(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """Scores of all keys of a paged cache, whose shares are cut by a kernel of its own once a step, not counted."""
    choosing(w)
    tile = paged_tile(w, gpu, w.heads_q, w.head_dim)
    kernel = indexer(w, tile, gpu)
    return scheduled("dsa-indexer", PAGED, (kernel,), DsaTile(index=tile), w, gpu)


def build_top_k(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """The best keys of each query."""
    tile = TopKTile(choosing(w).top, CHUNK)
    kernel = top_k(w, tile)
    return scheduled("dsa-topk", "sgl-kernel.topk", (kernel,), DsaTile(top_k=tile), w, gpu)


def build_attention(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """Attention to chosen keys."""
    tile = tokens_tile(w, gpu)
    kernel = attention(w, tile)
    return scheduled("dsa-attention", "flashmla.sparse", (kernel,), DsaTile(tokens=tile), w, gpu)


def build_whole(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """The three kernels one after the other; decoding a query or two a sequence, the indexer is the paged one."""
    s = choosing(w)
    paged = w.passes == "decode" and w.seq_q <= MOST_QUERIES
    index = (paged_tile if paged else index_tile)(w, gpu, s.index_heads, s.index_dim)
    best, tokens = TopKTile(s.top, CHUNK), tokens_tile(w, gpu)
    names = {"Q": "Q index", "K": "K index"}
    kernel = indexer(w, index, gpu)
    segments = tuple(
        replace(one, ops=tuple(op._replace(tensor=names.get(op.tensor, op.tensor)) for op in one.ops))
        for one in kernel.segments
    )
    uses = tuple(replace(use, tensor=names.get(use.tensor, use.tensor)) for use in kernel.uses)
    kernels = (replace(kernel, segments=segments, uses=uses), top_k(w, best), attention(w, tokens))
    return scheduled("dsa", "sglang.dsa", kernels, DsaTile(index, best, tokens), w, gpu)


def scheduled(
    algorithm: str,
    name: str,
    kernels: tuple[Kernel, ...],
    tile: DsaTile,
    w: Workload,
    gpu: Gpu,
    cache: int | None = None,
) -> Schedule:
    """Kernels whose blocks fit, there being no other tile; `cache`: its bytes where they are not the question's."""
    for kernel in kernels:
        check_shared_memory(kernel.name, kernel.buffers, kernel.shared_memory_bytes, gpu, "no other tile is compiled")
    return Schedule(algorithm, name, kernels, tile, _held(w.kv_cache_bytes if cache is None else cache, *kernels))


def _held(cache: int, *kernels: Kernel) -> int:
    """Memory of a call: every tensor once, and the whole cache, of which kernels read what is chosen."""
    sizes = {use.tensor: use.unique_bytes for kernel in kernels for use in kernel.uses}
    if KV in sizes:
        sizes[KV] = max(sizes[KV], cache)
    return sum(sizes.values())


def _scores_bytes(w: Workload) -> int:
    return w.batch * w.seq_q * w.seq_kv * 4


def _cache_bytes(w: Workload) -> int:
    return w.kv_cache_bytes


RECORDS = (
    record("deepgemm.mqa-logits", build_indexer, peak_bytes=_scores_bytes),
    record(PAGED, build_paged, peak_bytes=_scores_bytes),
    record("sgl-kernel.topk", build_top_k, peak_bytes=_scores_bytes),
    record("flashmla.sparse", build_attention, peak_bytes=_cache_bytes),
    record("sglang.dsa", build_whole, peak_bytes=lambda w: _scores_bytes(w) + _cache_bytes(w)),
)
