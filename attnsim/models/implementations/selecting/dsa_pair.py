"""Attention to chosen keys on Blackwell: two blocks, a cluster, have 128 heads of a query, whose MMAs are one.

FlashMLA, ``csrc/sm100/prefill/sparse/fwd/head128/phase1.cuh``: for a product of 128 heads by 128 keys each block
gathers half of the keys, and again half of the width of all of them, as values. Keys and values have one buffer each,
filled again when its product is done; the tensor core multiplies the next scores before a tile's values. A tile without
a key is multiplied and not read.
"""

from __future__ import annotations

import numpy as np

from attnsim.models.implementations.selecting.dsa_tiles import TokensTile, blocks_of, chosen_keys, list_tiles
from attnsim.models.implementations.selecting.walks import INDEX_BYTES, LIST
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.nest import loop_nest
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.schedule import Kernel, Launch
from attnsim.models.schedule.uses import TensorUse

TMEM_WIDTH = 384
"""Of Q's width, what is in tensor memory (`D_tQ`)."""
KV, V = "KV", "V"
"""Tensors of the latents: read as keys, and the part of them that is read again as values."""


def pair_attention(w: Workload, tile: TokensTile) -> Kernel:
    """`sparse_attn_fwd_kernel` of ``head128``; of one block, half of the cluster's work."""
    (d, dv), e = tile.widths, w.element_bytes
    steps, read = list_tiles(w, tile)
    scores, k_bytes, v_bytes = tile.heads * tile.keys, tile.keys // 2 * d * e, tile.keys * dv // 2 * e
    keys = TileOp("load", LIST, bytes=tile.keys * INDEX_BYTES), TileOp("load", KV, bytes=k_bytes)
    have_keys = TileOp("wait", LIST), TileOp("wait", KV)
    values, have_values = (TileOp("load", V, bytes=v_bytes),), (TileOp("wait", V),)
    q_width = max(0, d - TMEM_WIDTH)  # in shared memory
    s_bytes, o_bytes = (tile.keys // 2 * d + tile.heads * q_width) * e, (tile.keys // 2 * dv + scores) * e
    s = TileOp("mma_async", "S", flops=2 * scores * d, smem_bytes=s_bytes)
    o = TileOp("mma_async", "O", flops=2 * scores * dv, smem_bytes=o_bytes)
    have_s, have_o = TileOp("mma_wait", "S"), TileOp("mma_wait", "O")
    p = TileOp("vector", "P", scores=scores, exps=scores + tile.heads, tmem_bytes=scores * (4 + e))
    step, block = TileOp("delay", "step"), TileOp("delay", "block")

    def tile_of(more: bool, mine: bool, first: bool = False) -> tuple[TileOp, ...]:
        """Softmax of a tile and its values, whose keys are `mine`; the next one's scores, which has keys if `more`."""
        before = () if first else (have_o, *(values if mine else ()))
        return (
            have_s, step, *(keys if more else ()), p, *before, *(have_keys if more else ()), s,
            *(have_values if mine else ()), o,
        )  # fmt: skip

    q = TileOp("load", "Q", bytes=tile.heads * d * e)
    last = (have_s, step, p, *((have_o,) if steps > 1 else ()))
    last_values = (*(values if steps > 1 else ()), *have_values) if read == steps else ()
    stores = TileOp("store", "O", bytes=tile.heads * dv * w.output_bytes), TileOp("store", "LSE", bytes=tile.heads * 8)
    bare = max(0, steps - 1 - max(read, 1))
    nest = [
        ("begin", (block, q, *keys, *values, TileOp("wait", "Q"), *have_keys, s), 1),
        ("first tile", tile_of(read > 1, True, first=True), int(steps > 1)),
        ("tile", tile_of(True, True), max(0, read - 2)),
        ("last tile with keys", tile_of(False, True), int(1 < read < steps)),
        ("tile without a key", tile_of(False, False), bare),
        ("last tile", (*last, *last_values, o, have_o), 1),
        ("end", (block, *stores), 1),
    ]
    segments, repeats = loop_nest([(Segment(name, ops), np.array([n])) for name, ops, n in nest if n])
    blocks, queries = blocks_of(w, tile), w.batch * w.seq_q
    each = chosen_keys(w, min(read * tile.keys, w.seq_kv))
    buffers = (("Q", tile.heads * q_width * e), (KV, k_bytes + v_bytes))
    return Kernel(
        name="sparse_attn",
        threads=512,
        registers_per_thread=128,
        segments=segments,
        repeats=repeats,
        launches=(Launch(np.zeros(blocks, dtype=np.int64), queries),),
        uses=(
            TensorUse("Q", blocks * tile.heads * d * e, queries),
            TensorUse(KV, each * d * e, w.batch, w.seq_q * blocks),
            TensorUse(V, each * dv * e, w.batch, w.seq_q * blocks, just_written=True),
            TensorUse(LIST, read * tile.keys * INDEX_BYTES, queries, blocks),
            TensorUse("O", blocks * tile.heads * dv * w.output_bytes, queries, written=True),
            TensorUse("LSE", blocks * tile.heads * 8, queries, written=True),
        ),
        path=tile.path,
        buffers=buffers,
        dtype=w.dtype,
        step="tile",
        role="attention",
        copies_by_extra=True,
    )
