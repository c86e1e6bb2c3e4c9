"""Attention of DeepSeek sparse attention in decoding: chosen latents of a paged cache in eight bits, shared out evenly.

FlashMLA, ``csrc/kernels/sm90/decode/sparse/splitkv_mla.cuh`` of deepseek-ai, commit b7f1ecc: a token is 656 bytes, 512
numbers in fp8, four scales and the rotary part in bf16. One warpgroup reads and converts 64 tokens at a time to bf16,
two multiply, 64 heads of a query a block; of 128 heads two blocks are a cluster, of which each converts half the tokens
for both. All queries' tokens are cut into as many shares as there are SMs for a query's heads
(``get_decoding_sched_meta.cu``, which runs once a step and is not counted); `combine` merges what a cut left in fp32.
"""

from __future__ import annotations

import numpy as np

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.splits import MERGE_INSTRUCTIONS
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.implementations.selecting.dsa import scheduled
from attnsim.models.implementations.selecting.dsa_pair import KV
from attnsim.models.implementations.selecting.dsa_tiles import (
    HEADS,
    TOKENS,
    DsaTile,
    TokensTile,
    choosing,
    chosen_keys,
    instructions,
)
from attnsim.models.implementations.selecting.walks import INDEX_BYTES, LIST
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.nest import loop_nest
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.schedule import Kernel, Launch, Schedule
from attnsim.models.schedule.uses import TensorUse

NAME = "flashmla.sparse-decode"
WIDTHS = (576, 512)
"""Of the latent with its rotary part, and of the latent: the only ones compiled."""
TOKEN_BYTES = 656
OVERHEAD = 5
"""Steps that a request counts for beside its own (`fixed_overhead_num_blocks`)."""
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


def shares(w: Workload, parts: int) -> list[list[int]]:
    """Steps of each request in each share, in order; empty shares are left out (`get_mla_metadata_kernel`)."""
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
    """Shares that each request is cut into, ``[batch]``."""
    steps = -(-choosing(w).top // TOKENS)
    count, done = np.zeros(w.batch, dtype=np.int64), 0
    for piece in (one for share in shares(w, parts) for one in share):
        count[done // steps] += 1
        done += piece
    return count


def choose_tile(w: Workload, gpu: Gpu) -> TokensTile:
    """64 heads x 64 tokens, and shares for the SMs.

    Raises
    ------
    InputError
        When the heads or widths are none that the kernel is compiled for.
    """
    if w.heads_q not in (HEADS, 2 * HEADS):
        raise InputError(f"{NAME} is compiled for {HEADS} or {2 * HEADS} query heads, not {w.heads_q}; pad them")
    widths = (w.latent.width, w.latent.rank) if w.latent else (w.head_dim, w.head_dim_v)
    if widths != WIDTHS:
        raise InputError(
            f"{NAME} is compiled for a latent of {WIDTHS[0]} and {WIDTHS[1]}, not {widths[0]} and {widths[1]}"
        )
    parts = max(1, gpu.sm.count // w.seq_q // (w.heads_q // HEADS))
    return TokensTile(HEADS, TOKENS, WIDTHS, instructions(gpu), shares=parts)


def attention(w: Workload, tile: TokensTile) -> list[Kernel]:
    """`flash_fwd_splitkv_mla_fp8_sparse_kernel`, and `combine` where a request is cut."""
    (d, dv), e, blocks = tile.widths, w.element_bytes, w.heads_q // tile.heads
    cut = pieces(w, tile.shares)
    whole = -(-choosing(w).top // tile.keys)
    given = shares(w, tile.shares)
    columns = np.array([(sum(one), len(one), sum(n == whole for n in one)) for one in given], dtype=np.int64)
    kinds, inverse = np.unique(columns, axis=0, return_inverse=True)
    steps, requests, final = kinds.T
    scores, groups = tile.heads * tile.keys // 2, 2
    gather = (
        TileOp("load", LIST, bytes=tile.keys * INDEX_BYTES),
        TileOp("load", KV, bytes=tile.keys // blocks * TOKEN_BYTES),
    )
    convert = TileOp("vector", "KV in bf16", fp32=CONVERSION_CLKS * LANES * tile.keys // blocks // groups)
    # Of a cluster each block sends the half that it has converted to the other one, which waits for it.
    sent = (blocks - 1) * tile.keys // blocks * d * e
    send = (TileOp("delay", "to the peer", clks=int(sent / PEER_BYTES_PER_CLK)),) if sent else ()
    s = TileOp("mma", "S", flops=2 * scores * d, smem_bytes=(tile.keys + tile.heads // groups) * d * e)
    o = TileOp("mma", "O", flops=2 * scores * dv, smem_bytes=tile.keys * dv * e + scores * e)
    p = TileOp("vector", "P", scores=scores, exps=scores + tile.heads // groups, fp32=tile.heads * dv // groups)
    waits = (TileOp("wait", LIST), TileOp("wait", KV), TileOp("delay", "step"))
    q, filled = TileOp("load", "Q", bytes=tile.heads * d * e), np.minimum(steps, 2)
    rows = tile.heads
    segments, repeats = loop_nest(
        [
            (Segment("begin", (TileOp("delay", "block"),)), np.ones_like(steps)),
            (Segment("request", (q, TileOp("wait", "Q"))), requests),
            (Segment("fill", gather), filled),
            (Segment("tile", (*waits, convert, *send, s, p, o, *gather)), steps - filled),
            (Segment("last tiles", (*waits, convert, *send, s, p, o)), filled),
            (Segment("whole", _stores("", rows, dv * w.output_bytes)), final),
            (Segment("piece", _stores(" partial", rows, dv * 4)), requests - final),
        ]
    )
    single, split = int((cut == 1).sum()), int(cut[cut > 1].sum())
    out = w.seq_q * w.heads_q
    uses = [
        TensorUse("Q", out * d * e, w.batch, max(1.0, float(cut.mean()))),
        TensorUse(KV, chosen_keys(w, whole * tile.keys) * TOKEN_BYTES, w.batch, w.seq_q),
        TensorUse(LIST, w.seq_q * whole * tile.keys * INDEX_BYTES, w.batch, blocks),
    ]
    for suffix, n, size in (("", single, w.output_bytes), (" partial", split, 4)):
        if n:
            uses.append(TensorUse(f"O{suffix}", n * out * dv * size, 1, written=True))
            uses.append(TensorUse(f"LSE{suffix}", n * out * 4, 1, written=True))
    kernel = Kernel(
        name="sparse_decode",
        threads=384,
        registers_per_thread=168,
        segments=segments,
        repeats=repeats,
        launches=(Launch(inverse.reshape(-1), each=w.seq_q * blocks),),
        uses=tuple(uses),
        warpgroups=groups,
        path=tile.path,
        buffers=(("Q", tile.heads * d * e), (KV, 2 * tile.keys * d * e), ("P", tile.heads * tile.keys * e)),
        dtype=w.dtype,
        step="tile",
        role="attention",
        copies_by_extra=True,
    )
    return [kernel, *([_combine(w, dv, cut)] if split else [])]


def _stores(suffix: str, rows: int, width: int) -> tuple[TileOp, ...]:
    latency = TileOp("delay", "block", share=0.5)
    return latency, TileOp("store", f"O{suffix}", bytes=rows * width), TileOp("store", f"LSE{suffix}", bytes=rows * 4)


def _combine(w: Workload, dv: int, cut: Ints) -> Kernel:
    """`combine`: the pieces of requests that are cut, weighed by their log-sum-exps."""
    out, split, merged = w.seq_q * w.heads_q, int(cut[cut > 1].sum()), int((cut > 1).sum())
    accesses = [
        Access("O partial", split * out * dv * 4),
        Access("LSE partial", split * out * 4),
        Access("O", merged * out * dv * w.output_bytes, True),
        Access("LSE", merged * out * 4, True),
    ]
    return streaming("combine", accesses, elements=split * out * dv, fp32_per_element=MERGE_INSTRUCTIONS)


def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """Attention to the chosen keys of a cache in eight bits."""
    choosing(w)
    tile = choose_tile(w, gpu)
    return scheduled("dsa-attention", NAME, tuple(attention(w, tile)), DsaTile(tokens=tile), w, gpu, _cache_bytes(w))


def _cache_bytes(w: Workload) -> int:
    return w.batch * w.seq_kv * TOKEN_BYTES


RECORDS = (record(NAME, build, peak_bytes=_cache_bytes),)
