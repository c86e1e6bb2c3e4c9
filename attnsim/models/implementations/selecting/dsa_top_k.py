"""Top-k of DeepSeek sparse attention: `fast_topk_transform_fused` of sgl-kernel, a block of 1,024 threads a row.

``csrc/elementwise/topk.cu``: a histogram of eight bits of all scores, then what is above is gathered and what is in the
last bin refined in shared memory. In prefill a block first looks for the request that its row is of, among as many as
the call has: a batch has few, but where a call is made in parts, each of its rows counts as a request of its own.
"""

from __future__ import annotations

import numpy as np

from attnsim.by_hand import by_hand
from attnsim.models.implementations.selecting.dsa_tiles import TopKTile, chunks, top_k_turns
from attnsim.models.implementations.selecting.walks import INDEX_BYTES, LIST
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.nest import loop_nest
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.schedule import Kernel, Launch
from attnsim.models.schedule.uses import TensorUse

DIGIT_INSTRUCTIONS = by_hand(4, "integer instructions a score and pass of top-k, before the fitted `extra`")
WHOLE_SHARE = by_hand(
    0.25, "part of a block's latency that a row taken whole has: its launch, no barriers of a histogram"
)
"""Read off calls of 2,080 and 2,112 keys, nearly all of whose rows are: 0.75 us a block on H200 and B200."""
GATHERED = 2
"""Passes over a row of scores: the histogram, and gathering."""
UNROLLED = 4
"""Turns of its loops that the compiler takes together, and whose reads are in flight together."""
REQUESTS = "first rows"
"""Where the rows of each request begin (`cu_seqlens_q`)."""


def top_ks(w: Workload, tile: TopKTile) -> tuple[Kernel, ...]:
    """A call of top-k for every part of the queries whose scores the memory has room for."""
    return tuple(_top_k(w, tile, rows) for rows in chunks(w, tile.at_once))


def requests(w: Workload, tile: TopKTile, rows: range) -> int:
    """Requests that a block looks for its own among: none in decoding, the batch, or the rows of a part."""
    if w.seq_q == 1:
        return 0
    return w.batch if tile.at_once >= w.batch * w.seq_q else len(rows)


def _top_k(w: Workload, tile: TopKTile, rows: range) -> Kernel:
    """Two passes over a row, then its places through the page table.

    No barrier lies within a pass, whose loop the compiler unrolls: a thread asks for four scores, and a warp that has
    its own asks for its next ones while others wait. Of a row that is taken whole only the page table is read.
    """
    turns = top_k_turns(w, tile, rows)
    kinds, inverse = np.unique(turns, return_inverse=True)
    chunk = TileOp("load", "scores", bytes=tile.chunk * 4)
    work = TileOp("vector", "digits", int32=DIGIT_INSTRUCTIONS * tile.chunk)
    wait = TileOp("wait", "scores")
    table = TileOp("load", "page table", bytes=tile.top * INDEX_BYTES)
    end = (table, TileOp("wait", "page table"), TileOp("store", LIST, bytes=tile.top * INDEX_BYTES))
    ones, ahead = np.ones_like(kinds), np.minimum(GATHERED * kinds, UNROLLED)
    among = requests(w, tile, rows)
    looked = UNROLLED * tile.chunk
    look = TileOp("load", REQUESTS, bytes=min(among, looked) * INDEX_BYTES)
    nest = [
        (Segment("begin", (TileOp("delay", "block"),)), np.minimum(kinds, 1)),
        (Segment("begin whole", (TileOp("delay", "block", share=WHOLE_SHARE),)), (kinds == 0).astype(np.int64)),
        (Segment("first scores", (chunk,)), ahead),
        (Segment("turn", (wait, chunk, work)), GATHERED * kinds - ahead),
        (Segment("last turns", (wait, work)), ahead),
        (Segment("store", end), ones),
    ]
    if among:
        nest.insert(0, (Segment("find request", (look, TileOp("wait", REQUESTS))), -(-among // looked) * ones))
    segments, repeats = loop_nest(nest)
    whole = tile.at_once >= w.batch * w.seq_q
    table_use = (w.seq_kv, w.batch, w.seq_q) if whole else (tile.top, len(rows), 1)
    return Kernel(
        name="top-k",
        threads=1024,
        registers_per_thread=32,
        buffers=(("candidates", 128 << 10),),
        segments=segments,
        repeats=repeats,
        launches=(Launch(inverse.reshape(-1).astype(np.int64)),),
        uses=(
            TensorUse("scores", w.seq_kv * 4, len(rows), passes_per_block=GATHERED),
            TensorUse("page table", table_use[0] * INDEX_BYTES, *table_use[1:]),
            *((TensorUse(REQUESTS, among * INDEX_BYTES, 1, len(rows)),) if among else ()),
            TensorUse(LIST, tile.top * INDEX_BYTES, len(rows), written=True),
        ),
        dtype="fp32",
        step="turn",
    )
