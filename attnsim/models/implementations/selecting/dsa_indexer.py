"""The indexer of DeepSeek sparse attention: DeepGEMM's scores of all keys, summed over heads, in eight bits.

``deep_gemm/include/deep_gemm/impls/sm90_fp8_mqa_logits.cuh``, its twin on Blackwell and the paged kernels: blocks stay
on their SMs and walk the keys of a few queries.
"""

from __future__ import annotations

import numpy as np

from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.selecting.dsa_tiles import (
    COLUMNS,
    KEYS,
    SCALE_BYTES,
    IndexTile,
    chunks,
    index_steps,
    instructions,
    queries_read,
    rows_at_once,
)
from attnsim.models.implementations.selecting.walks import INDEX_BYTES
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.nest import loop_nest
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.schedule import Kernel, Launch
from attnsim.models.schedule.uses import TensorUse

SUM_INSTRUCTIONS, ADDRESS_INSTRUCTIONS, EXCHANGES = 2, 4, 2
"""Of a lane, a key and a query: an addition and the scale; the address of the score in 64 bits, and the comparison for
it; of four lanes that have a quarter of the heads each, exchanges of their sums, each with an addition."""
PAGED = "deepgemm.paged-mqa-logits"
PAGES, PAGE = "page numbers", 64
"""Numbers of a sequence's pages, int32, and the keys of a page (`BLOCK_KV` of ``sm90_fp8_paged_mqa_logits.cuh``)."""
MOST_QUERIES = 2
"""Queries of a sequence (`next_n` of ``csrc/jit_kernels/impls/smxx_fp8_paged_mqa_logits.hpp``)."""


def index_tile(w: Workload, gpu: Gpu, heads: int, width: int) -> IndexTile:
    """The indexer's fixed tile, with fewer queries for more heads."""
    return IndexTile(max(1, COLUMNS // heads), heads, KEYS, width, instructions(gpu), at_once=rows_at_once(w, gpu))


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
    return IndexTile(w.seq_q, heads, KEYS, width, instructions(gpu), w.batch * w.seq_q, shares=gpu.sm.count)


def summing(tile: IndexTile, keys: int) -> dict[str, int]:
    """Instructions to sum the heads of so many keys, counted in ``sm90_fp8_mqa_logits.cuh`` and its twin.

    With wgmma four lanes share a key's heads, with tcgen05 a lane has all and multiplies two at a time: for each score
    a maximum and a multiply-add, then for each query the sums, their exchange, and addresses.
    """
    scores, sums = tile.heads * tile.queries * keys, tile.queries * keys
    lanes, at_once = (1, 2) if tile.path == "tcgen05" else (4, 1)
    shared = EXCHANGES * lanes * sums if lanes > 1 else 0
    added, addressed = SUM_INSTRUCTIONS * lanes * sums + shared, ADDRESS_INSTRUCTIONS * lanes * sums
    issued = scores + scores // at_once + added + addressed + shared
    return {"fp32": scores + added, "int32": scores + addressed, "load_stores": shared, "issues": issued // 32}


def indexers(w: Workload, tile: IndexTile, gpu: Gpu) -> tuple[Kernel, ...]:
    """A call of the indexer for every part of the queries whose scores the memory has room for."""
    return tuple(_indexer(w, tile, gpu, rows) for rows in chunks(w, tile.at_once))


def _indexer(w: Workload, tile: IndexTile, gpu: Gpu, rows: range) -> Kernel:
    """`fp8_mqa_logits`: Q of a block stays, tiles of 256 keys with their scales pass three deep.

    Of the paged kernel, `fp8_paged_mqa_logits`, a block goes through the sequences of its share, reading the queries of
    each and the numbers of the pages that its keys lie in.
    """
    steps = index_steps(w, tile, rows)
    both, inverse = np.unique(np.stack([steps, queries_read(w, tile, rows)]), axis=1, return_inverse=True)
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
    sums = TileOp("vector", "sum over heads", tmem_bytes=tmem, **summing(tile, tile.keys // groups))
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
    sequences = (rows[-1] // w.seq_q) - rows[0] // w.seq_q + 1
    seeing = min(len(rows), int(queries_read(w, tile, rows).sum()) * tile.queries)  # a block without keys reads no Q
    read = int(steps.sum()) * tile.keys / (sequences * w.seq_kv)
    numbers = (TensorUse(PAGES, -(-w.seq_kv // PAGE) * INDEX_BYTES, w.batch),) if tile.shares else ()
    deep = 3 if 3 * (q_bytes + k_bytes) <= gpu.sm.shared_memory_per_block_bytes else 1
    buffers = (("Q", deep * q_bytes), ("K", 3 * k_bytes))
    return Kernel(
        name="indexer",
        threads=groups * 128 + 128,
        registers_per_thread=96,
        segments=segments,
        repeats=repeats,
        launches=(Launch(inverse.reshape(-1).astype(np.int64)),),
        uses=(
            TensorUse("Q", seeing * tile.heads * (tile.width + SCALE_BYTES), 1),
            TensorUse("K", w.seq_kv * (tile.width + SCALE_BYTES), sequences, max(1.0, read)),
            *numbers,
            TensorUse("scores", len(rows) * w.seq_kv * 4, 1, written=True),
        ),
        warpgroups=groups,
        path=tile.path,
        persistent=True,
        buffers=buffers,
        dtype="fp8",
        step="key tile",
    )
