"""Choice of keys in DeepSeek sparse attention: DeepGEMM's scores of all keys in eight bits, and top-k.

``deep_gemm/include/deep_gemm/impls/sm90_fp8_mqa_logits.cuh``, its Blackwell version and the paged kernels: persistent
blocks walk the keys of a few queries. `fast_topk_transform_fused` of sgl-kernel
(``csrc/elementwise/topk.cu``) has a block of 1,024 threads per row: a histogram of eight bits of all scores, then
scores above the threshold bin are gathered and those in it refined in shared memory. In prefill a block first searches
for the request of its row among those of the call. A batch has few; but if a call is made in parts, each of its rows
counts as a request.

Sequences of a batch are consecutive; with causal masks, aligned at the end, query ``i`` of a sequence sees
``seq_kv - seq_q + i + 1`` keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.selecting.walks import INDEX_BYTES, LIST
from attnsim.models.question.selection import Selection
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Tensor, declared
from attnsim.models.schedule.operation import BLOCK, STEP, Nest, TileOp, loop, once
from attnsim.models.schedule.row_tiles import classes
from attnsim.models.schedule.schedule import Kernel, Launch, Path

COLUMNS = 128
"""Columns of an MMA of the indexer, the heads of a block's queries (`block_qh` of ``smxx_fp8_mqa_logits.hpp``)."""
KEYS = 256
"""Keys per step of the indexer (`block_kv`)."""
AHEAD = 3
"""Tiles of keys that the indexer has in shared memory (`num_kv_stages`)."""
SCALE_BYTES = 4
"""Bytes of the scale of an fp8 key, and of a head's weight."""
SCORE_BYTES = 4
SCORES_SHARE = 0.2
"""Share of the free memory that the scores of a call may use (SGLang's ``environ.py``)."""
UNCUT_SCORES = 8_000_000
"""Number of scores below which a call is never split."""
SUM_INSTRUCTIONS, ADDRESS_INSTRUCTIONS, EXCHANGES = 2, 4, 2
"""Instructions per lane, key and query: an addition and the scale; the 64-bit address of the score, and its comparison;
and exchanges of sums between four lanes with a quarter of the heads each, each with an addition."""
PAGED = "deepgemm.paged-mqa-logits"
PAGES, PAGE = "page numbers", 64
"""Page numbers of a sequence, int32, and the keys of a page (`BLOCK_KV` of ``sm90_fp8_paged_mqa_logits.cuh``)."""
MOST_QUERIES = 2
"""Most queries per sequence (`next_n` of ``csrc/jit_kernels/impls/smxx_fp8_paged_mqa_logits.hpp``)."""
CHUNK = 1024
"""Scores that the threads of a top-k block read per iteration, one each."""
DIGIT_INSTRUCTIONS = by_hand(12, "integer instructions a score and pass of top-k: its digit and its count")
WHOLE_SHARE = by_hand(
    0.25, "part of a block's latency that a row taken whole has: its launch, no barriers of a histogram"
)
"""Derived from calls of 2,080 and 2,112 keys, nearly all of whose rows are: 0.75 us per block on H200 and B200."""
GATHERED = 2
"""Passes over a row of scores: the histogram, and gathering."""
UNROLLED = 4
"""Unrolled iterations of its loops, whose reads are in flight together."""
REQUESTS = "first rows"
"""Tensor with the first row of each request (`cu_seqlens_q`)."""


@dataclass(frozen=True, slots=True)
class IndexTile:
    """Tile of the indexer: the columns are the heads of its queries.

    Parameters
    ----------
    at_once : int
        Queries per call.
    shares : int
        Equal shares of all sequences' key tiles, a block each (the paged kernel); 0: a block has `queries` queries of a
        batch and walks all their keys.
    """

    queries: int
    heads: int
    keys: int
    width: int
    path: Path
    at_once: int
    shares: int = 0

    def __str__(self) -> str:
        shares = f", {self.shares} shares" if self.shares else ""
        return f"{self.queries} queries of {self.heads} heads x {self.keys} keys{shares}"


@dataclass(frozen=True, slots=True)
class TopKTile:
    """A block has a row of scores, and reads `chunk` at a time; a call has `at_once` rows."""

    top: int
    chunk: int
    at_once: int

    def __str__(self) -> str:
        return f"top {self.top}, {self.chunk} scores a turn"


def instructions(gpu: Gpu) -> Path:
    """wgmma on Hopper, tcgen05 on data-centre Blackwell."""
    return "tcgen05" if gpu.features.tcgen05 else "wgmma"


def choosing(w: Workload) -> Selection:
    """The selection of a question: single keys.

    Raises
    ------
    InputError
        If the question has no selection of single keys, or its mask is not causal.
    """
    selection = w.selection
    if selection is None or not selection.top or selection.block != 1:
        raise InputError("kernels of chosen keys need a selection: --selection 'top 2048, index 64x128'")
    if not w.mask.is_causal or w.mask.is_windowed:
        raise InputError(f"kernels of chosen keys are causal, the mask is {w.mask}; take --causal")
    return selection


def index_tile(w: Workload, gpu: Gpu, heads: int, width: int) -> IndexTile:
    """The indexer's fixed tile, with fewer queries for more heads."""
    return IndexTile(max(1, COLUMNS // heads), heads, KEYS, width, instructions(gpu), at_once=rows_at_once(w, gpu))


def paged_tile(w: Workload, gpu: Gpu, heads: int, width: int) -> IndexTile:
    """The paged indexer's tile: all queries of a sequence, and a share for each SM.

    Raises
    ------
    InputError
        If a sequence has more queries than the kernel is compiled for.
    """
    if w.seq_q > MOST_QUERIES:
        raise InputError(
            f"{PAGED} is compiled for 1 or {MOST_QUERIES} queries a sequence, not {w.seq_q}; take deepgemm.mqa-logits"
        )
    return IndexTile(w.seq_q, heads, KEYS, width, instructions(gpu), w.batch * w.seq_q, shares=gpu.sm.count)


def seen_keys(w: Workload, queries: Ints) -> Ints:
    """Keys that the given queries see; queries are numbered through all sequences."""
    return np.clip(queries % w.seq_q + w.seq_kv - w.seq_q + 1, 0, w.seq_kv)


def rows_at_once(w: Workload, gpu: Gpu) -> int:
    """Queries whose scores over the keys of all sequences are held together: as many as fit a fifth of the memory.

    As SGLang's `Indexer` splits its calls (``dsa_indexer.py``: `SGLANG_DSA_MQA_LOGITS_FREE_MEM_FRACTION`,
    `_MQA_LOGITS_STATIC_SKIP_ELEMS`), on a GPU whose memory is free.
    """
    rows, keys = w.batch * w.seq_q, w.batch * w.seq_kv
    if rows * keys < UNCUT_SCORES:
        return rows
    return min(rows, max(1, int(SCORES_SHARE * gpu.hbm.capacity_bytes) // (keys * SCORE_BYTES)))


def chunks(w: Workload, at_once: int) -> list[range]:
    """The queries of each call, of all sequences one after the other."""
    rows = w.batch * w.seq_q
    return [range(first, min(first + at_once, rows)) for first in range(0, rows, at_once)]


def index_steps(w: Workload, tile: IndexTile, rows: range) -> Ints:
    """Tiles of keys of each block of the indexer, ``[blocks]``: from its first query's keys to its last one's.

    For the paged kernel, an equal share of all tiles (`smxx_paged_mqa_logits_metadata`).
    """
    if tile.shares:
        return np.diff(share_bounds(w, tile))
    first = np.arange(rows.start, rows.stop, tile.queries, dtype=np.int64)
    last = np.minimum(first + tile.queries, rows.stop) - 1
    begin = first // w.seq_q * w.seq_kv
    end = last // w.seq_q * w.seq_kv + seen_keys(w, last)
    return np.asarray(-(-(end - begin) // tile.keys))


def share_bounds(w: Workload, tile: IndexTile) -> Ints:
    """First key tile of each block of the paged indexer, numbered through all sequences, and their total."""
    every = w.batch * -(-w.seq_kv // tile.keys)
    each, left = divmod(every, tile.shares)
    return np.concatenate([[0], np.cumsum(each + (np.arange(tile.shares) < left))]).astype(np.int64)


def queries_read(w: Workload, tile: IndexTile, rows: range) -> Ints:
    """Times that each block of the indexer reads its queries, ``[blocks]``: once for each sequence of its share."""
    if not tile.shares:
        return np.minimum(index_steps(w, tile, rows), 1)
    bounds, each = share_bounds(w, tile), -(-w.seq_kv // tile.keys)
    begin, end = bounds[:-1], bounds[1:]
    return np.where(end > begin, (end - 1) // each - begin // each + 1, 0)


def summing(tile: IndexTile, keys: int) -> dict[str, Any]:
    """Instructions to sum the heads of `keys` keys, counted in ``sm90_fp8_mqa_logits.cuh`` and its Blackwell version.

    With wgmma four lanes share a key's heads; with tcgen05 a lane has all and multiplies two at a time. Each score
    takes a maximum and a multiply-add; each query then takes the sums, their exchange, and addresses.
    """
    scores, sums = tile.heads * tile.queries * keys, tile.queries * keys
    lanes, at_once = (1, 2) if tile.path == "tcgen05" else (4, 1)
    shared = EXCHANGES * lanes * sums if lanes > 1 else 0
    added, addressed = SUM_INSTRUCTIONS * lanes * sums + shared, ADDRESS_INSTRUCTIONS * lanes * sums
    issued = scores + scores // at_once + added + addressed + shared
    return {"fp32": scores + added, "int32": scores + addressed, "load_stores": shared, "issues": issued // 32}


def indexers(w: Workload, tile: IndexTile, gpu: Gpu) -> tuple[Kernel, ...]:
    """One call of the indexer for each part of the queries whose scores fit the memory."""
    return tuple(_indexer(w, tile, gpu, rows) for rows in chunks(w, tile.at_once))


def _indexer(w: Workload, tile: IndexTile, gpu: Gpu, rows: range) -> Kernel:
    """`fp8_mqa_logits`: Q of a block stays, tiles of 256 keys with their scales pass three deep.

    In the paged kernel, `fp8_paged_mqa_logits`, a block processes the sequences of its share, reading the queries of
    each and the page numbers of its keys.
    """
    walked, reads = index_steps(w, tile, rows), queries_read(w, tile, rows)
    columns, width = tile.queries * tile.heads, tile.width + SCALE_BYTES
    sequences = rows[-1] // w.seq_q - rows[0] // w.seq_q + 1
    axes = {
        "b": Axis(sequences, cuts="i r"),
        "t": Axis(max(1, len(walked) // sequences), cuts="i r"),
        "i": Axis(len(rows)),
        "j": Axis(w.seq_kv),
        "p": Axis(-(-w.seq_kv // PAGE)),
        "r": Axis(min(len(rows), int(reads.sum()) * tile.queries)),  # blocks without keys read no Q
    }
    q, k = Tensor("Q", "r", tile.heads * width), Tensor("K", "b j", width)
    pages, scores = Tensor(PAGES, "b p", INDEX_BYTES), Tensor("scores", "i j", SCORE_BYTES, written=True)
    groups = 2 if tile.path == "tcgen05" else 4
    products = columns * tile.keys // groups
    smem = (columns + tile.keys // groups) * tile.width
    dot = TileOp("mma", "S", flops=2 * products * tile.width, smem_bytes=smem)
    tmem = products * 4 if tile.path == "tcgen05" else 0
    sums = TileOp("vector", "sum over heads", tmem_bytes=tmem, **summing(tile, tile.keys // groups))
    load_q = q.load(tile.queries)
    load_k = (*((pages.load(tile.keys // PAGE),) if tile.shares else ()), k.load(tile.keys))

    def turn(load_next: bool) -> tuple[TileOp, ...]:
        return k.wait(), STEP, dot, *(load_k if load_next else ()), sums, scores.store(tile.queries * tile.keys)

    def body(steps: Ints, reads: Ints) -> Nest:
        filled = np.minimum(steps, AHEAD)
        return [
            *once("begin", [BLOCK, load_q], steps > 0),
            *loop("fill", filled, lambda: load_k),
            *once("wait Q", [q.wait()], steps > 0),
            *loop("next Q", reads - 1, lambda: (load_q, q.wait())),
            *loop("key tile", steps - filled, lambda: turn(True)),
            *once("next block", [TileOp("prefetch")], steps > 0),
            *loop("last key tiles", filled, lambda: turn(False)),
        ]

    kinds, order = classes(walked, reads)
    deep = AHEAD if AHEAD * (load_q.bytes + k.load(tile.keys).bytes) <= gpu.sm.shared_memory_per_block_bytes else 1
    return declared(
        "indexer", axes, "b t", (q, k, *((pages,) if tile.shares else ()), scores),
        dict(zip(("steps", "reads"), kinds, strict=True)), body, launches=(Launch(order),), persistent=True,
        threads=groups * 128 + 128, registers_per_thread=96, warpgroups=groups, path=tile.path,
        buffers=(("Q", deep * load_q.bytes), ("K", AHEAD * k.load(tile.keys).bytes)), dtype="fp8", step="key tile",
    )  # fmt: skip


def top_k_turns(w: Workload, tile: TopKTile, rows: range) -> Ints:
    """Iterations of a pass over each row's scores, ``[rows]``; none if all keys are taken."""
    seen = seen_keys(w, np.arange(rows.start, rows.stop, dtype=np.int64))
    return np.where(seen > tile.top, -(-seen // tile.chunk), 0)


def top_ks(w: Workload, tile: TopKTile) -> tuple[Kernel, ...]:
    """One call of top-k for each part of the queries whose scores fit the memory."""
    return tuple(_top_k(w, tile, rows) for rows in chunks(w, tile.at_once))


def requests(w: Workload, tile: TopKTile, rows: range) -> int:
    """Requests that a block searches for its own: none in decoding, the batch, or the rows of a part."""
    if w.seq_q == 1:
        return 0
    return w.batch if tile.at_once >= w.batch * w.seq_q else len(rows)


def _top_k(w: Workload, tile: TopKTile, rows: range) -> Kernel:
    """Two passes over a row, then its indices through the page table.

    There is no barrier within a pass, whose loop is unrolled: a thread requests four scores, and a warp that has
    received its own requests its next ones while others wait. For a row that is taken whole only the page table is
    read.
    """
    among, whole = requests(w, tile, rows), tile.at_once >= w.batch * w.seq_q
    axes = {
        "b": Axis(w.batch if whole else len(rows)),
        "i": Axis(w.seq_q if whole else 1),
        "j": Axis(w.seq_kv),
        "p": Axis(w.seq_kv if whole else tile.top),
        "r": Axis(among),
        "t": Axis(tile.top),
    }
    scores, table = Tensor("scores", "b i j", SCORE_BYTES, times=GATHERED), Tensor("page table", "b p", INDEX_BYTES)
    first_rows, found = Tensor(REQUESTS, "r", INDEX_BYTES), Tensor(LIST, "b i t", INDEX_BYTES, written=True)
    digits = TileOp("vector", "digits", int32=DIGIT_INSTRUCTIONS * tile.chunk)
    looked = UNROLLED * tile.chunk

    def turn(load_next: bool) -> tuple[TileOp, ...]:
        return scores.wait(), *((scores.load(tile.chunk),) if load_next else ()), digits

    def body(turns: Ints) -> Nest:
        both = GATHERED * turns
        ahead = np.minimum(both, UNROLLED)
        look = first_rows.load(min(among, looked)), first_rows.wait()
        return [
            *loop("find request", -(-among // looked), lambda: look),
            *once("begin", [BLOCK], turns > 0),
            *once("begin whole", [BLOCK._replace(share=WHOLE_SHARE)], turns == 0),
            *loop("first scores", ahead, lambda: [scores.load(tile.chunk)]),
            *loop("turn", both, turn, load_next=both - ahead),
            *once("store", [table.load(tile.top), table.wait(), found.store(tile.top)]),
        ]

    return declared(
        "top-k",
        axes,
        "b i",
        (scores, table, *((first_rows,) if among else ()), found),
        {"turns": top_k_turns(w, tile, rows)},
        body,
        threads=1024,
        registers_per_thread=32,
        buffers=(("candidates", 128 << 10),),
        dtype="fp32",
        step="turn",
    )
