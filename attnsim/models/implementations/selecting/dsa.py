"""DeepSeek sparse attention as SGLang launches it: indexer, top-k, attention over the chosen keys of the latent.

DeepSeek-V3.2 (arXiv 2512.02556, section 2.1). The kernels are in the other files of this folder. The scores of all
queries over all keys, in fp32, may exceed the memory: indexer and top-k are then called for some queries at a time.

Attention of DeepSeek sparse attention over chosen keys of the latent: FlashMLA's sparse kernels.

On Hopper (``csrc/sm90/prefill/sparse/phase1.cuh``) a block has 64 heads of a query and gathers the latents of its keys
64 at a time. On Blackwell a cluster of two blocks has 128 heads of a query and joint MMAs; SGLang pads queries to it
(`_forward_flashmla_sparse`). A tile without a key is multiplied but not read, and there are as many tiles
as the list has entries for, however few keys exist.

In decoding (``csrc/kernels/sm90/decode/sparse/splitkv_mla.cuh`` of deepseek-ai, commit b7f1ecc) a token of the paged
cache is 656 bytes: 512 numbers in fp8, four scales and the rotary part in bf16. One warpgroup reads 64 tokens at a time
and converts them to bf16, two multiply; a block has 64 heads of a query. For 128 heads two blocks are a cluster, of
which each converts half the tokens for both. All queries' tokens are split into as many shares as there are SMs for a
query's heads (``get_decoding_sched_meta.cu``, which runs once per step and is not counted); `combine` merges partial
results in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.splits import MERGE_INSTRUCTIONS
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.implementations.selecting.dsa_choice import (
    CHUNK,
    MOST_QUERIES,
    PAGED,
    SCORE_BYTES,
    TopKTile,
    choosing,
    index_tile,
    indexers,
    instructions,
    paged_tile,
    rows_at_once,
    top_ks,
)
from attnsim.models.implementations.selecting.walks import INDEX_BYTES, LIST
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Tensor, declared
from attnsim.models.schedule.operation import BLOCK, STEP, Nest, TileOp, by_size, loop, once
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.row_tiles import classes
from attnsim.models.schedule.schedule import Kernel, Launch, Path, Schedule, check_shared_memory, renamed

TOKENS = 64
"""Selected keys per step of sparse latent attention (`B_TOPK`)."""
PAIR_TOKENS = 128
"""Selected keys per step of a pair of blocks."""
HEADS = 64
"""Query heads of a block (`B_H`)."""
AHEAD, WARPGROUPS = 2, 2
"""Tiles of keys that a block of Hopper's kernels has in shared memory, and the warpgroups that multiply."""
TMEM_WIDTH = 384
"""Columns of Q in tensor memory (`D_tQ`)."""
KV, V = "KV", "V"
"""Tensors of the latents: read as keys, and the part of them that is re-read as values."""
DECODE = "flashmla.sparse-decode"
WIDTHS = (576, 512)
"""Widths of the latent with and without its rotary part: the only ones that decoding is compiled for."""
TOKEN_BYTES = 656
OVERHEAD = 5
"""Steps that a request is charged in addition to its own (`fixed_overhead_num_blocks`)."""
CONVERSION_CLKS = by_hand(50, "clocks of an SM to convert a token: fp8 to half, to fp32, times its scale, to bf16")
"""The library's own count by the throughputs of the CUDA C++ programming guide, against 34 clocks of MMAs
(``docs/20250929-hopper-fp8-sparse-deep-dive.md``)."""
PEER_BYTES_PER_CLK = by_hand(
    16, "bytes a clock that an SM sends to another of its cluster: 3.27 TB/s of 114 SMs at 1755 MHz"
)
"""Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture" (arXiv 2402.13499), figure 8, on an H800
PCIe: clusters of two."""
LANES = 128
"""FP32 lanes of an SM that those clocks keep busy."""


@dataclass(frozen=True, slots=True)
class TokensTile:
    """Tile of attention over chosen keys: heads of one query x keys.

    Parameters
    ----------
    widths : (int, int)
        Width of the latent with its rotary key, and of the latent.
    shares : int
        Equal shares of all sequences' chosen keys (decoding over a cache in eight bits); 0: a block has a whole query.
    """

    heads: int
    keys: int
    widths: tuple[int, int]
    path: Path
    shares: int = 0

    @property
    def blocks(self) -> int:
        """Blocks of a cluster, which multiply together with tcgen05."""
        return 2 if self.path == "tcgen05" else 1

    def __str__(self) -> str:
        shares = f", {self.shares} shares" if self.shares else ""
        pair = ", two blocks together" if self.blocks > 1 else ""
        return f"{self.heads} heads x {self.keys} chosen keys{pair}{shares}"


def tokens_tile(w: Workload, gpu: Gpu) -> TokensTile:
    """64 heads of a query x 64 keys, or for a pair of blocks x 128, at the widths of the latent."""
    path = instructions(gpu)
    return TokensTile(HEADS, PAIR_TOKENS if path == "tcgen05" else TOKENS, _widths(w), path)


def decode_tile(w: Workload, gpu: Gpu) -> TokensTile:
    """64 heads x 64 tokens, and shares for the SMs.

    Raises
    ------
    InputError
        If the kernel is not compiled for the heads or widths.
    """
    if w.heads_q not in (HEADS, 2 * HEADS):
        raise InputError(f"{DECODE} is compiled for {HEADS} or {2 * HEADS} query heads, not {w.heads_q}; pad them")
    if (widths := _widths(w)) != WIDTHS:
        raise InputError(
            f"{DECODE} is compiled for a latent of {WIDTHS[0]} and {WIDTHS[1]}, not {widths[0]} and {widths[1]}"
        )
    parts = max(1, gpu.sm.count // w.seq_q // (w.heads_q // HEADS))
    return TokensTile(HEADS, TOKENS, WIDTHS, instructions(gpu), shares=parts)


def _widths(w: Workload) -> tuple[int, int]:
    return (w.latent.width, w.latent.rank) if w.latent else (w.head_dim, w.head_dim_v)


def chosen_keys(w: Workload, each: int) -> int:
    """Keys of a sequence that any of its queries chooses.

    Neighbouring queries are assumed to choose the same keys but one, as in a window: the measured times do not grow
    with the sequence up to a million keys, as they would if random keys came from HBM.
    """
    return min(w.seq_kv, each + w.seq_q - 1)


def list_tiles(w: Workload, tile: TokensTile) -> tuple[int, int]:
    """Tiles of a query's list, and those of them that have a key: entries beyond a sequence's keys are empty."""
    top = choosing(w).top
    return -(-top // tile.keys), -(-min(top, w.seq_kv) // tile.keys)


def blocks_of(w: Workload, tile: TokensTile) -> int:
    """Blocks per query."""
    return -(-w.heads_q // (tile.heads * tile.blocks)) * tile.blocks


def _products(tile: TokensTile, e: int) -> tuple[TileOp, TileOp, TileOp]:
    """S, P and O of a tile of Hopper's kernels: each warpgroup has half of the heads, and reads the tile of keys."""
    d, dv = tile.widths
    rows = tile.heads // WARPGROUPS
    scores = rows * tile.keys
    return (
        TileOp("mma", "S", flops=2 * scores * d, smem_bytes=(tile.keys + rows) * d * e),
        TileOp("vector", "P", scores=scores, exps=scores + rows, fp32=rows * dv),
        TileOp("mma", "O", flops=2 * scores * dv, smem_bytes=tile.keys * dv * e + scores * e),
    )


def attention(w: Workload, tile: TokensTile) -> Kernel:
    """`sparse_attn_fwd`; on Blackwell, the work of one block of a pair."""
    (d, dv), e, pair = tile.widths, w.element_bytes, tile.blocks > 1
    steps, read = list_tiles(w, tile)
    axes = {
        "b": Axis(w.batch),
        "i": Axis(w.seq_q),
        "j": Axis(chosen_keys(w, min(read * tile.keys, w.seq_kv))),
        "r": Axis(blocks_of(w, tile) * tile.heads if pair else w.heads_q, tile.heads),
        "t": Axis(read * tile.keys),
    }
    q, kv, v = Tensor("Q", "b i r", d * e), Tensor(KV, "b j", d * e), Tensor(V, "b j", dv * e, just_written=True)
    listed = Tensor(LIST, "b i t", INDEX_BYTES)
    o, lse = Tensor("O", "b i r", dv * w.output_bytes, written=True), Tensor("LSE", "b i r", 8, written=True)
    values = (v,) if pair else ()
    opening, tiles = (_paired if pair else _alone)(tile, e, steps, read, q, listed, kv, *values)

    def body(missing: Ints) -> Nest:
        return [
            *by_size("begin", missing, lambda n: (BLOCK, q.load(tile.heads - n), *opening)),
            *tiles,
            *by_size("end", missing, lambda n: (BLOCK, o.store(tile.heads - n), lse.store(tile.heads - n))),
        ]

    if pair:
        latents, q_width, threads, registers = tile.keys * (d + dv) // 2, _q_in_shared_memory(d), 512, 128
    else:
        latents, q_width, threads, registers = AHEAD * tile.keys * d, d, 384, 168
    return declared(
        "sparse_attn", axes, "b i r", (q, kv, *values, listed, o, lse), {"missing": axes["r"].missing}, body,
        threads=threads, registers_per_thread=registers, warpgroups=1 if pair else WARPGROUPS, path=tile.path,
        buffers=(("Q", tile.heads * q_width * e), (KV, latents * e)), dtype=w.dtype, step="tile", role="attention",
    )  # fmt: skip


def _alone(
    tile: TokensTile, e: int, steps: int, read: int, q: Tensor, listed: Tensor, kv: Tensor
) -> tuple[tuple[TileOp, ...], Nest]:
    """A block on Hopper: latents of chosen keys are gathered two tiles ahead; a value is the key's first part."""
    gather, gathered = (listed.load(tile.keys), kv.load(tile.keys)), (listed.wait(), kv.wait())
    products, filled = _products(tile, e), min(AHEAD, read)

    def turn(load_next: bool, has_keys: bool) -> tuple[TileOp, ...]:
        return *(gathered if has_keys else ()), STEP, *products, *(gather if load_next else ())

    return (), [
        *loop("fill", filled, lambda: gather),
        *once("wait Q", [q.wait()]),
        *loop("tile", steps, turn, load_next=read - filled, has_keys=read),
    ]


def _paired(
    tile: TokensTile, e: int, steps: int, read: int, q: Tensor, listed: Tensor, kv: Tensor, v: Tensor
) -> tuple[tuple[TileOp, ...], Nest]:
    """A block of a pair (``csrc/sm100/prefill/sparse/fwd/head128/phase1.cuh``).

    It gathers half of the keys, and then half of the width of all of them, as values. Keys and values have one buffer
    each, refilled when its product is done; the tensor core multiplies the next scores before a tile's values.
    """
    (d, dv), half, scores = tile.widths, tile.keys // 2, tile.heads * tile.keys
    s_bytes, o_bytes = (half * d + tile.heads * _q_in_shared_memory(d)) * e, (half * dv + scores) * e
    s = TileOp("mma_async", "S", flops=2 * scores * d, smem_bytes=s_bytes)
    p = TileOp("vector", "P", scores=scores, exps=scores + tile.heads, tmem_bytes=scores * (4 + e))
    o = TileOp("mma_async", "O", flops=2 * scores * dv, smem_bytes=o_bytes)
    wait_s, wait_o = TileOp("mma_wait", "S"), TileOp("mma_wait", "O")
    keys, have_keys, values = (listed.load(tile.keys), kv.load(half)), (listed.wait(), kv.wait()), v.load(half)

    def turn(first: bool, load_next: bool, has_keys: bool, score_next: bool) -> Iterator[TileOp]:
        yield from (wait_s, STEP, *keys, p) if load_next else (wait_s, STEP, p)
        if not first:
            yield from (wait_o, values) if has_keys else (wait_o,)
        if score_next:
            yield from (*have_keys, s) if load_next else (s,)
        yield from (v.wait(), o) if has_keys else (o,)
        if not score_next:
            yield wait_o

    opening = (*keys, values, q.wait(), *have_keys, s)
    return opening, loop("tile", steps, turn, first=1, load_next=read - 1, has_keys=read, score_next=steps - 1)


def _q_in_shared_memory(width: int) -> int:
    """Columns of Q that are not in tensor memory."""
    return max(0, width - TMEM_WIDTH)


def shares(w: Workload, parts: int) -> list[list[int]]:
    """Steps of each request in each share, in order; without empty shares (`get_mla_metadata_kernel`)."""
    steps = -(-choosing(w).top // TOKENS)
    payload = -(-w.batch * (steps + OVERHEAD) // parts) + OVERHEAD
    found: list[list[int]] = []
    request = begun = 0
    while request < w.batch:
        left, share = payload, []
        while request < w.batch:
            remaining = steps - begun
            if left >= remaining + OVERHEAD:
                share.append(remaining)
                left -= remaining + OVERHEAD
                request, begun = request + 1, 0
                continue
            if left > OVERHEAD:
                share.append(left - OVERHEAD)
                begun += left - OVERHEAD
            break
        found.append(share)
    return found


def pieces(w: Workload, parts: int) -> Ints:
    """Number of shares that each request is split into, ``[batch]``."""
    steps = -(-choosing(w).top // TOKENS)
    count, done = np.zeros(w.batch, dtype=np.int64), 0
    for piece in (one for share in shares(w, parts) for one in share):
        count[done // steps] += 1
        done += piece
    return count


def decode(w: Workload, tile: TokensTile) -> list[Kernel]:
    """`flash_fwd_splitkv_mla_fp8_sparse_kernel`, and `combine` if a request is split."""
    (d, dv), e, blocks = tile.widths, w.element_bytes, w.heads_q // tile.heads
    cut, whole = pieces(w, tile.shares), -(-choosing(w).top // tile.keys)
    axes = {
        "b": Axis(w.batch, cuts="one part"),
        "one": Axis(int((cut == 1).sum())),
        "part": Axis(int(cut[cut > 1].sum())),
        "i": Axis(w.seq_q, cuts="r t"),
        "t": Axis(w.seq_q * whole * tile.keys),
        "r": Axis(w.seq_q * w.heads_q),
        "h": Axis(blocks, cuts="r j"),
        "j": Axis(chosen_keys(w, whole * tile.keys)),
    }
    q, kv = Tensor("Q", "b r", d * e), Tensor(KV, "b j", TOKEN_BYTES)
    listed = Tensor(LIST, "b t", INDEX_BYTES)
    o, partial_o = (
        Tensor("O", "one r", dv * w.output_bytes, written=True),
        Tensor("O partial", "part r", dv * 4, written=True),
    )
    lse, partial_lse = Tensor("LSE", "one r", 4, written=True), Tensor("LSE partial", "part r", 4, written=True)
    gather = listed.load(tile.keys), kv.load(tile.keys // blocks)
    convert = TileOp("vector", "KV in bf16", fp32=CONVERSION_CLKS * LANES * tile.keys // blocks // WARPGROUPS)
    # Each block of a cluster sends its converted half to the other, which waits for it.
    sent = (blocks - 1) * tile.keys // blocks * d * e
    send = (TileOp("delay", "to the peer", clks=int(sent / PEER_BYTES_PER_CLK)),) if sent else ()
    products, end = _products(tile, e), BLOCK._replace(share=0.5)

    def turn(load_next: bool) -> tuple[TileOp, ...]:
        return listed.wait(), kv.wait(), STEP, convert, *send, *products, *(gather if load_next else ())

    def body(steps: Ints, requests: Ints, uncut: Ints) -> Nest:
        return [
            *once("begin", [BLOCK]),
            *loop("request", requests, lambda: (q.load(tile.heads), q.wait())),
            *loop("fill", np.minimum(steps, AHEAD), lambda: gather),
            *loop("tile", steps, turn, load_next=steps - AHEAD),
            *loop("whole", uncut, lambda: (end, o.store(tile.heads), lse.store(tile.heads))),
            *loop("piece", requests - uncut, lambda: (end, partial_o.store(tile.heads), partial_lse.store(tile.heads))),
        ]

    given = [(sum(share), len(share), share.count(whole)) for share in shares(w, tile.shares)]
    kinds, order = classes(*np.array(given, dtype=np.int64).T)
    stored = ((o, lse) if axes["one"].size else ()) + ((partial_o, partial_lse) if axes["part"].size else ())
    kernel = declared(
        "sparse_decode", axes, "b i h", (q, kv, listed, *stored),
        dict(zip(("steps", "requests", "uncut"), kinds, strict=True)), body,
        launches=(Launch(order, each=w.seq_q * blocks),), threads=384, registers_per_thread=168, warpgroups=WARPGROUPS,
        buffers=(("Q", tile.heads * d * e), (KV, AHEAD * tile.keys * d * e), ("P", tile.heads * tile.keys * e)),
        path=tile.path, dtype=w.dtype, step="tile", role="attention",
    )  # fmt: skip
    return [kernel, *([_combine(w, dv, cut)] if axes["part"].size else [])]


def _combine(w: Workload, dv: int, cut: Ints) -> Kernel:
    """`combine`: merges the pieces of split requests, weighted by their log-sum-exps."""
    out, split, merged = w.seq_q * w.heads_q, int(cut[cut > 1].sum()), int((cut > 1).sum())
    accesses = [
        Access("O partial", split * out * dv * 4),
        Access("LSE partial", split * out * 4),
        Access("O", merged * out * dv * w.output_bytes, True),
        Access("LSE", merged * out * 4, True),
    ]
    return streaming("combine", accesses, elements=split * out * dv, fp32_per_element=MERGE_INSTRUCTIONS)


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
