"""Selection of keys by content: best-scoring blocks or keys, with or without compressed keys.

The text form has parts separated by commas:

- ``top 16x64``: the 16 best blocks of 64 keys for each query and each head of K and V (``top 2048x1``, or
  ``top 2048``: keys);
- ``compress 32 step 16``: one compressed key for 32 keys, every 16;
- ``window 512``: a sliding window in addition;
- ``index 64x128``: an indexer of 64 heads of width 128 that scores keys;
- ``anywhere``: blocks drawn from the whole sequence, of which a causal query walks those not in its future.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnsim.arrays import Ints
from attnsim.errors import InputError, shown

_LARGEST = 1 << 20
_FIELDS = {
    "top": ("top", "block"),
    "compress": ("compress",),
    "step": ("step",),
    "window": ("window",),
    "index": ("index_heads", "index_dim"),
}
EXAMPLE = "'top 16x64, compress 32 step 16, window 512'"


@dataclass(frozen=True, slots=True)
class Selection:
    """Keys that a query attends to, selected at run time.

    Parameters
    ----------
    top : int
        Blocks for each query and head of K and V; 0 if none are selected.
    block : int
        Keys of a block; 1 selects single keys.
    compress, step : int
        Keys per compressed key, and the distance between the starts of successive ones; 0 without compressed keys.
    window : int
        Keys of an additional sliding window, including the query's own; 0 without one.
    index_heads, index_dim : int
        Heads and width of the indexer that scores keys; 0 without one.
    anywhere : bool
        Whether blocks are drawn from the whole sequence, as benchmarks do. Blocks in the future of a causal query are
        skipped, so that about half of them are walked.

    Raises
    ------
    InputError
        If it selects nothing, or a size is out of range.
    """

    top: int = 0
    block: int = 1
    compress: int = 0
    step: int = 0
    window: int = 0
    index_heads: int = 0
    index_dim: int = 0
    anywhere: bool = False

    def __post_init__(self) -> None:
        for name in ("top", "block", "compress", "step", "window", "index_heads", "index_dim"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
                raise InputError(f"selection: {name} is {value!r}; allowed: a whole number up to {_LARGEST}")
        if not (self.top or self.compress):
            raise InputError(f"selection selects nothing; write {EXAMPLE}")
        if self.block < 1:
            raise InputError("selection: a block has 0 keys; allowed: 1 or more")
        if bool(self.compress) != bool(self.step) or self.step > self.compress:
            raise InputError(f"selection: compress {self.compress} step {self.step}; allowed: a step of 1 to compress")
        if bool(self.index_heads) != bool(self.index_dim):
            raise InputError(f"selection: index {self.index_heads}x{self.index_dim}; write heads x width, index 64x128")

    @classmethod
    def parse(cls, text: str) -> Selection:
        """Read the text form."""
        found: dict[str, int] = {}
        for part in str(text).lower().split(","):
            read = {"anywhere": 1} if part.split() == ["anywhere"] else _numbers(part.split())
            if not read or read.keys() & found.keys():
                raise InputError(f"selection is {shown(text)}; write parts such as {EXAMPLE}, each once")
            found |= read
        return cls(**{**found, "anywhere": "anywhere" in found})  # type: ignore[arg-type]

    def compressed_keys(self, seq_kv: int) -> int:
        """Compressed keys of a sequence: one per whole stretch of `compress` keys, `step` apart."""
        return max(0, (seq_kv - self.compress) // self.step + 1) if self.compress else 0

    def blocks(self, seq_kv: int) -> int:
        """Blocks of a sequence; the last may be shorter."""
        return -(-seq_kv // self.block)

    def misfit(self, seq_kv: int) -> str:
        """Reason why `seq_kv` keys cannot be selected from, with the allowed values; "" if they can."""
        if self.block > seq_kv:
            return f"has blocks of {self.block} keys, the sequence has {seq_kv}; allowed: up to {seq_kv}"
        if self.block > 1 and self.top > self.blocks(seq_kv):
            return (
                f"selects {self.top} blocks of {self.block} keys, {seq_kv} keys have {self.blocks(seq_kv)}; "
                f"allowed: top 1 to {self.blocks(seq_kv)}"
            )
        if self.compress > seq_kv:
            return f"compresses {self.compress} keys into one, the sequence has {seq_kv}; allowed: up to {seq_kv}"
        return ""

    def __str__(self) -> str:
        size = "" if self.block == 1 else f"x{self.block}"
        parts = (
            f"top {self.top}{size}" if self.top else "",
            f"compress {self.compress} step {self.step}" if self.compress else "",
            f"window {self.window}" if self.window else "",
            f"index {self.index_heads}x{self.index_dim}" if self.index_heads else "",
            "anywhere" if self.anywhere else "",
        )
        return ", ".join(filter(None, parts))


def _numbers(words: list[str]) -> dict[str, int]:
    """Fields of a part's words, each with the number after it; empty if the part has another form."""
    read: dict[str, int] = {}
    for word, number in zip(words[::2], [*words[1::2], ""], strict=False):
        sizes = number.split("x")
        fields = _FIELDS.get(word, ())[: len(sizes)]
        digits = all(one.isascii() and one.isdigit() and len(one) < 8 for one in sizes)
        if len(fields) < len(sizes) or not digits or fields[0] in read:
            return {}
        read |= dict(zip(fields, map(int, sizes), strict=True))
    return read


ALWAYS = 3
"""Blocks that are always selected, in this order: the first, the one before the query's own, its own (arXiv 2502.11089,
section 4.1). The other selected blocks are unknown before a kernel runs, but their number is known. They are assumed
evenly spread over the visible blocks.
"""


def walked(selection: Selection, seq: int) -> Ints:
    """Blocks that each query of a causal sequence walks, ``[seq]``.

    They are the best among those up to the query's own. Of blocks drawn anywhere, they are its share, at least one,
    spread over the queries of a block so that their sum is the expected one.
    """
    blocks, size = selection.blocks(seq), selection.block
    if not selection.anywhere:
        return np.repeat(np.minimum(selection.top, np.arange(1, blocks + 1, dtype=np.int64)), size)[:seq]
    query = np.arange(seq, dtype=np.int64)
    own = query // size
    top = min(selection.top, blocks)
    share = 2 * size * top * (own + 1) + (2 * (query % size) + 1) * blocks
    return np.asarray(np.maximum(1, share // (2 * size * blocks)))


def walks(selection: Selection, seq: int) -> int:
    """Sum of :func:`walked` over all queries, by arithmetic on blocks of queries."""
    blocks, size = selection.blocks(seq), selection.block
    own = np.arange(blocks, dtype=np.int64)
    rows = np.minimum(size, seq - own * size)
    if not selection.anywhere:
        return int((rows * np.minimum(selection.top, own + 1)).sum())
    # Over all queries of a block floor(x + (j + 1/2) / size) sums up to size x, rounded.
    top = min(selection.top, blocks)
    whole = np.maximum(size, (2 * size * top * (own + 1) + blocks) // (2 * blocks))
    last = int(walked(selection, seq)[(blocks - 1) * size :].sum())
    return int(whole[:-1].sum()) + last


def walkers(selection: Selection, seq: int) -> Ints:
    """Queries that walk each block, ``[blocks]``: those that always do, and a share of the others, rounded up."""
    blocks, size = selection.blocks(seq), selection.block
    own = np.arange(blocks, dtype=np.int64)
    rows = np.minimum(size, seq - own * size)
    if selection.anywhere:  # the first block stands for the lowest one drawn, so that every query walks it
        share = min(1.0, selection.top / blocks)
        after = np.maximum(0, seq - own * size) * share
        return np.ceil(np.where(own == 0, seq, after) - 1e-9).astype(np.int64)
    some = own + 1 > selection.top  # these queries have blocks to choose from; the others walk all
    found = np.cumsum(np.where(some, 0, rows)[::-1].astype(np.float64))[::-1]
    found[0] += rows[some].sum()
    for place in range(1, ALWAYS):  # the block before the query's own, and that
        if selection.top > place:
            np.add.at(found, own[some] + place + 1 - ALWAYS, rows[some])
    spread = np.zeros(blocks)
    free = some & (selection.top > ALWAYS)
    spread[own[free] + 1 - ALWAYS] = (rows * (selection.top - ALWAYS) / np.maximum(1, own + 1 - ALWAYS))[free]
    found[1:] += np.cumsum(spread[::-1])[::-1][1:]
    return np.ceil(found - 1e-6).astype(np.int64)


def visible_pairs(selection: Selection, seq: int) -> int:
    """Pairs of query and selected key per head: whole blocks, and the visible part of the query's own block."""
    found = walks(selection, seq) * selection.block
    if selection.anywhere:
        return found
    whole, last = divmod(seq, selection.block)
    return found - seq * selection.block + (whole * selection.block * (selection.block + 1) + last * (last + 1)) // 2


def of_last_query(selection: Selection, seq: int) -> int:
    """Keys that a sequence's last query attends to: compressed ones, those of chosen blocks, and the window's."""
    last = (seq - 1) % selection.block + 1
    chosen = (min(selection.top, selection.blocks(seq)) - 1) * selection.block + last
    return selection.compressed_keys(seq) + chosen + min(selection.window, seq)


def compressed_pairs(selection: Selection, seq: int) -> int:
    """Pairs of query and compressed key per head: compressed keys whose last key is not in the query's future."""
    last = np.arange(selection.compressed_keys(seq), dtype=np.int64) * selection.step + selection.compress - 1
    return int((seq - last).sum())
