"""Attention of DeepSeek sparse attention to chosen keys of the latent: FlashMLA's sparse forward.

On Hopper (``csrc/sm90/prefill/sparse/phase1.cuh``) a block has 64 heads of a query and gathers the latents of its keys
64 at a time; on Blackwell two have 128 together (``dsa_pair.py``), to which SGLang pads queries
(`_forward_flashmla_sparse`). A tile without a key is multiplied and not read, and there are as many tiles as the list
has places for, however few keys exist.
"""

from __future__ import annotations

import numpy as np

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.selecting.dsa_pair import KV, pair_attention
from attnsim.models.implementations.selecting.dsa_tiles import (
    HEADS,
    PAIR_TOKENS,
    TOKENS,
    TokensTile,
    blocks_of,
    chosen_keys,
    instructions,
    list_tiles,
)
from attnsim.models.implementations.selecting.walks import INDEX_BYTES, LIST
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.nest import Nest, loop_nest
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.schedule import Kernel, Launch
from attnsim.models.schedule.uses import TensorUse


def tokens_tile(w: Workload, gpu: Gpu) -> TokensTile:
    """64 heads of a query x 64 keys, or of a pair of blocks x 128, at the widths of the latent."""
    widths = (w.latent.width, w.latent.rank) if w.latent else (w.head_dim, w.head_dim_v)
    path = instructions(gpu)
    return TokensTile(HEADS, PAIR_TOKENS if path == "tcgen05" else TOKENS, widths, path)


def attention(w: Workload, tile: TokensTile) -> Kernel:
    """`sparse_attn_fwd`: latents of chosen keys are gathered two tiles ahead; a value is the key's first part."""
    if tile.blocks > 1:
        return pair_attention(w, tile)
    (d, dv), e, groups = tile.widths, w.element_bytes, 2
    steps, read = list_tiles(w, tile)
    heads, scores = blocks_of(w, tile), tile.heads * tile.keys // groups
    gather = (
        TileOp("load", LIST, bytes=tile.keys * INDEX_BYTES),
        TileOp("load", KV, bytes=tile.keys * d * e),
    )
    # Each warpgroup reads the tile of keys.
    s = TileOp("mma", "S", flops=2 * scores * d, smem_bytes=(tile.keys + tile.heads // groups) * d * e)
    o = TileOp("mma", "O", flops=2 * scores * dv, smem_bytes=tile.keys * dv * e + scores * e)
    p = TileOp("vector", "P", scores=scores, exps=scores + tile.heads // groups, fp32=tile.heads * dv // groups)
    step, waits = TileOp("delay", "step"), (TileOp("wait", LIST), TileOp("wait", KV))
    filled, last = min(2, read), w.heads_q - (heads - 1) * tile.heads
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
        (Segment("tile", (*waits, step, s, p, o, *gather)), (read - filled) * every),
        (Segment("last tiles", (*waits, step, s, p, o)), filled * every),
    ]
    if steps > read:
        nest.append((Segment("tile without a key", (step, s, p, o)), (steps - read) * every))
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
        segments=segments,
        repeats=repeats,
        launches=(Launch(order, queries),),
        uses=(
            TensorUse("Q", w.heads_q * d * e, queries),
            TensorUse(KV, chosen_keys(w, min(read * tile.keys, w.seq_kv)) * d * e, w.batch, w.seq_q * heads),
            TensorUse(LIST, read * tile.keys * INDEX_BYTES, queries, heads),
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
