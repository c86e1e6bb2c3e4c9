"""Tiles of DeepSeek sparse attention's three kernels, and what each of their blocks walks.

Sequences of a batch lie one after the other; with causal masks, aligned at the end, query ``i`` of a sequence sees
``seq_kv - seq_q + i + 1`` keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnsim.arrays import Ints
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.question.selection import Selection
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Path

COLUMNS = 128
"""Columns of an MMA of the indexer, the heads of a block's queries (`block_qh` of ``smxx_fp8_mqa_logits.hpp``)."""
KEYS = 256
"""Keys of its step (`block_kv`)."""
SCALE_BYTES = 4
"""Of a key in fp8, and of a head's weight."""
SCORE_BYTES = 4
SCORES_SHARE = 0.2
"""Of the free memory that the scores of a call take (SGLang's ``environ.py``)."""
UNCUT_SCORES = 8_000_000
"""Scores fewer than which are never cut."""
CHUNK = 1024
"""Scores that the threads of a top-k block read in a turn, one each."""
TOKENS = 64
"""Selected keys of a step of sparse latent attention (`B_TOPK`)."""
PAIR_TOKENS = 128
"""Those of a pair of blocks."""
HEADS = 64
"""Query heads of a block (`B_H`)."""


@dataclass(frozen=True, slots=True)
class IndexTile:
    """Tile of the indexer: the columns are the heads of its queries.

    Parameters
    ----------
    queries, heads, keys, width : int
    path : str
    at_once : int
        Queries of a call.
    shares : int
        Equal shares of all sequences' key tiles that as many blocks walk (the paged kernel); 0: a block has `queries`
        queries of a batch and walks all their keys.
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
    """A block has a row of scores, and reads so many at a time; a call has `at_once` rows."""

    top: int
    chunk: int
    at_once: int

    def __str__(self) -> str:
        return f"top {self.top}, {self.chunk} scores a turn"


@dataclass(frozen=True, slots=True)
class TokensTile:
    """Tile of attention to chosen keys: so many heads of one query x keys.

    Parameters
    ----------
    heads, keys : int
    widths : (int, int)
        Of the latent with its rotary key, and of the latent.
    path : str
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


@dataclass(frozen=True, slots=True)
class DsaTile:
    """Tiles of those kernels that a schedule has; None for the others."""

    index: IndexTile | None = None
    top_k: TopKTile | None = None
    tokens: TokensTile | None = None

    def __str__(self) -> str:
        return "; ".join(str(tile) for tile in (self.index, self.top_k, self.tokens) if tile is not None)


def instructions(gpu: Gpu) -> Path:
    """wgmma on Hopper, tcgen05 on data-centre Blackwell."""
    return "tcgen05" if gpu.features.tcgen05 else "wgmma"


def choosing(w: Workload) -> Selection:
    """The selection of a question: single keys.

    Raises
    ------
    InputError
    """
    selection = w.selection
    if selection is None or not selection.top or selection.block != 1:
        raise InputError("kernels of chosen keys need a selection: --selection 'top 2048, index 64x128'")
    if not w.mask.is_causal or w.mask.is_windowed:
        raise InputError(f"kernels of chosen keys are causal, the mask is {w.mask}; take --causal")
    return selection


def chosen_keys(w: Workload, each: int) -> int:
    """Keys of a sequence that any of its queries chooses.

    Neighbouring queries are taken to choose the same keys but one, as a window would: the times that are measured do
    not grow with the sequence up to a million keys, which keys drawn anywhere would bring from HBM.
    """
    return min(w.seq_kv, each + w.seq_q - 1)


def list_tiles(w: Workload, tile: TokensTile) -> tuple[int, int]:
    """Tiles of a query's list, and those of them that have a key: places beyond a sequence's keys are empty."""
    top = choosing(w).top
    return -(-top // tile.keys), -(-min(top, w.seq_kv) // tile.keys)


def blocks_of(w: Workload, tile: TokensTile) -> int:
    """Blocks of a query."""
    return -(-w.heads_q // (tile.heads * tile.blocks)) * tile.blocks


def seen_keys(w: Workload, queries: Ints) -> Ints:
    """Keys that some queries see, counted through all sequences."""
    return np.clip(queries % w.seq_q + w.seq_kv - w.seq_q + 1, 0, w.seq_kv)


def rows_at_once(w: Workload, gpu: Gpu) -> int:
    """Queries whose scores over the keys of all sequences are held together: as many as a fifth of the memory takes.

    As SGLang's `Indexer` cuts its calls (``dsa_indexer.py``: `SGLANG_DSA_MQA_LOGITS_FREE_MEM_FRACTION`,
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

    Of the paged kernel an equal share of all (`smxx_paged_mqa_logits_metadata`).
    """
    if tile.shares:
        return np.diff(share_bounds(w, tile))
    first = np.arange(rows.start, rows.stop, tile.queries, dtype=np.int64)
    last = np.minimum(first + tile.queries, rows.stop) - 1
    begin = first // w.seq_q * w.seq_kv
    end = last // w.seq_q * w.seq_kv + seen_keys(w, last)
    return np.asarray(-(-(end - begin) // tile.keys))


def share_bounds(w: Workload, tile: IndexTile) -> Ints:
    """First key tile of each block of the paged indexer, counted through all sequences, and their number."""
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


def top_k_turns(w: Workload, tile: TopKTile, rows: range) -> Ints:
    """Turns of a pass over each row's scores, ``[rows]``; none where all keys are taken."""
    seen = seen_keys(w, np.arange(rows.start, rows.stop, dtype=np.int64))
    return np.where(seen > tile.top, -(-seen // tile.chunk), 0)
