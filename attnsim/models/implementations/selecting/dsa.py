"""DeepSeek sparse attention as SGLang launches it: indexer, top-k, attention over the chosen keys of the latent.

DeepSeek-V3.2 (arXiv 2512.02556, section 2.1). The kernels are in the other files of this folder. The scores of all
queries over all keys, in fp32, may exceed the memory: indexer and top-k are then called for some queries at a time.
"""

from __future__ import annotations

from functools import partial

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.implementations.selecting.dsa_attention import (
    DECODE,
    KV,
    TOKEN_BYTES,
    V,
    attention,
    decode,
    decode_tile,
    tokens_tile,
)
from attnsim.models.implementations.selecting.dsa_choice import (
    CHUNK,
    MOST_QUERIES,
    PAGED,
    SCORE_BYTES,
    TopKTile,
    choosing,
    index_tile,
    indexers,
    paged_tile,
    rows_at_once,
    top_ks,
)
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Kernel, Schedule, check_shared_memory, renamed


def is_paged(w: Workload) -> bool:
    """Return whether the indexer is the paged one, whose scores are never split: one or two queries per sequence."""
    return w.passes == "decode" and w.seq_q <= MOST_QUERIES


def top_k_tile(w: Workload, gpu: Gpu) -> TopKTile:
    """A row per block, and as many rows per call as the indexer writes."""
    return TopKTile(choosing(w).top, CHUNK, w.batch * w.seq_q if is_paged(w) else rows_at_once(w, gpu))


def build_indexer(w: Workload, gpu: Gpu, shape: TileRequest | None, name: str = "deepgemm.mqa-logits") -> Schedule:
    """Scores of all keys; the question's heads and width are the indexer's.

    For a paged cache, a separate kernel computes the shares once per step; it is not counted.
    """
    choosing(w)
    tile = (paged_tile if name == PAGED else index_tile)(w, gpu, w.heads_q, w.head_dim)
    return scheduled("dsa-indexer", name, indexers(w, tile, gpu), str(tile), w, gpu)


def build_top_k(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """The best keys of each query."""
    tile = top_k_tile(w, gpu)
    return scheduled("dsa-topk", "sgl-kernel.topk", top_ks(w, tile), str(tile), w, gpu)


def build_attention(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """Attention over chosen keys."""
    tile = tokens_tile(w, gpu)
    kernel = attention(w, tile)
    return scheduled("dsa-attention", "flashmla.sparse", (kernel,), str(tile), w, gpu)


def build_decode(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """Attention over the chosen keys of a cache in eight bits."""
    choosing(w)
    tile = decode_tile(w, gpu)
    kernels = tuple(decode(w, tile))
    return scheduled("dsa-attention", DECODE, kernels, str(tile), w, gpu, _eight_bit_cache_bytes(w))


def build_whole(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """The three kernels one after the other."""
    s = choosing(w)
    index = (paged_tile if is_paged(w) else index_tile)(w, gpu, s.index_heads, s.index_dim)
    best, tokens = top_k_tile(w, gpu), tokens_tile(w, gpu)
    found = indexers(w, index, gpu)
    # The attention kernel has Q and K of its own.
    indexing = (renamed(one, {"Q": "Q index", "K": "K index"}) for one in found)
    kernels = (*indexing, *top_ks(w, best), attention(w, tokens))
    return scheduled("dsa", "sglang.dsa", kernels, f"{index}; {best}; {tokens}", w, gpu)


def scheduled(
    algorithm: str,
    name: str,
    kernels: tuple[Kernel, ...],
    tile: str,
    w: Workload,
    gpu: Gpu,
    cache: int | None = None,
) -> Schedule:
    """Schedule of kernels whose blocks must fit, with no other tile; `cache`: its bytes if not the question's."""
    for kernel in kernels:
        check_shared_memory(kernel.name, kernel.buffers, gpu, "no other tile is compiled")
    return Schedule(algorithm, name, kernels, tile, _held(w.kv_cache_bytes if cache is None else cache, *kernels))


def _held(cache: int, *kernels: Kernel) -> int:
    """Memory of a call: every tensor once, and the whole cache, of which kernels read the chosen part.

    Scores for keys of other sequences, which are never written, are left out.
    """
    sizes: dict[str, int] = {}
    for use in (use for kernel in kernels for use in kernel.uses):
        sizes[use.tensor] = max(sizes.get(use.tensor, 0), use.unique_bytes)
    sizes.pop(V, None)
    if KV in sizes:
        sizes[KV] = max(sizes[KV], cache)
    return sum(sizes.values())


def _scores_bytes(w: Workload) -> int:
    """Bytes of all queries' scores if the indexer is never split; otherwise of one query, the least held."""
    return (w.batch * w.seq_q if is_paged(w) else 1) * w.seq_kv * SCORE_BYTES


def _cache_bytes(w: Workload) -> int:
    return w.kv_cache_bytes


def _eight_bit_cache_bytes(w: Workload) -> int:
    return w.batch * w.seq_kv * TOKEN_BYTES


RECORDS = (
    record("deepgemm.mqa-logits", build_indexer, peak_bytes=_scores_bytes),
    record(PAGED, partial(build_indexer, name=PAGED), peak_bytes=_scores_bytes),
    record("sgl-kernel.topk", build_top_k, peak_bytes=_scores_bytes),
    record("flashmla.sparse", build_attention, peak_bytes=_cache_bytes),
    record("sglang.dsa", build_whole, peak_bytes=lambda w: _scores_bytes(w) + _cache_bytes(w)),
    record(DECODE, build_decode, peak_bytes=_eight_bit_cache_bytes),
)
