"""Tiles of DeepSeek sparse attention's three kernels, and what each of their blocks walks.

Sequences of a batch lie one after the other; with causal masks, aligned at the end, query ``i`` of a sequence sees
``seq_kv - seq_q + i + 1`` keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnsim.models.arrays import Ints
from attnsim.models.by_hand import by_hand
from attnsim.models.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.question.selection import Selection
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Path

QUERIES = by_hand(4, "queries of a block of the indexer, read off its waves: 512 queries are one wave of 132 SMs")
"""With 64 heads 256 columns of an MMA (``smxx_fp8_mqa_logits.hpp``, `block_qh`, which differs between commits)."""
KEYS = 256
"""Keys of its step (`block_kv`)."""
SCALE_BYTES = 4
"""Of a key in fp8, and of a head's weight."""
CHUNK = 4096
"""Scores that the 1,024 threads of a top-k block read at a time, four each."""
TOKENS = 64
"""Selected keys of a step of sparse latent attention (`B_TOPK`)."""
HEADS = 64
"""Query heads of a block (`B_H`)."""


@dataclass(frozen=True, slots=True)
class IndexTile:
    """Tile of the indexer: the columns are the heads of its queries.

    Parameters
    ----------
    queries, heads, keys, width : int
    path : str
    shares : int
        Equal shares of all sequences' key tiles that as many blocks walk (the paged kernel); 0: a block has `queries`
        queries of a batch and walks all their keys.
    """

    queries: int
    heads: int
    keys: int
    width: int
    path: Path
    shares: int = 0

    def __str__(self) -> str:
        shares = f", {self.shares} shares" if self.shares else ""
        return f"{self.queries} queries of {self.heads} heads x {self.keys} keys{shares}"


@dataclass(frozen=True, slots=True)
class TopKTile:
    """A block has a row of scores, and reads so many at a time."""

    top: int
    chunk: int

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

    def __str__(self) -> str:
        shares = f", {self.shares} shares" if self.shares else ""
        return f"{self.heads} heads x {self.keys} chosen keys{shares}"


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


def seen_keys(w: Workload) -> Ints:
    """Keys that each query of a sequence sees, ``[seq_q]``."""
    return np.clip(np.arange(w.seq_q, dtype=np.int64) + w.seq_kv - w.seq_q + 1, 0, w.seq_kv)


def index_steps(w: Workload, tile: IndexTile) -> Ints:
    """Tiles of keys of each block of the indexer, ``[blocks]``: from its first query's keys to its last one's.

    Of the paged kernel an equal share of all (`smxx_paged_mqa_logits_metadata`).
    """
    if tile.shares:
        return np.diff(share_bounds(w, tile))
    total = w.batch * w.seq_q
    first = np.arange(0, total, tile.queries, dtype=np.int64)
    last = np.minimum(first + tile.queries, total) - 1
    begin = first // w.seq_q * w.seq_kv
    end = last // w.seq_q * w.seq_kv + seen_keys(w)[last % w.seq_q]
    return np.asarray(-(-(end - begin) // tile.keys))


def share_bounds(w: Workload, tile: IndexTile) -> Ints:
    """First key tile of each block of the paged indexer, counted through all sequences, and their number."""
    every = w.batch * -(-w.seq_kv // tile.keys)
    each, left = divmod(every, tile.shares)
    return np.concatenate([[0], np.cumsum(each + (np.arange(tile.shares) < left))]).astype(np.int64)


def queries_read(w: Workload, tile: IndexTile) -> Ints:
    """Times that each block of the indexer reads its queries, ``[blocks]``: once for each sequence of its share."""
    if not tile.shares:
        return np.minimum(index_steps(w, tile), 1)
    bounds, each = share_bounds(w, tile), -(-w.seq_kv // tile.keys)
    begin, end = bounds[:-1], bounds[1:]
    return np.where(end > begin, (end - 1) // each - begin // each + 1, 0)


def top_k_turns(w: Workload, tile: TopKTile) -> Ints:
    """Turns of a pass over each row's scores, ``[seq_q]``; none where all keys are taken."""
    seen = seen_keys(w)
    return np.where(seen > tile.top, -(-seen // tile.chunk), 0)
