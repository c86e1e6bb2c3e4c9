"""How a selection spreads over a sequence: blocks that each query walks, queries that each block is walked by.

Which blocks score highest is not known before a kernel runs; how many are walked is. The first block, the query's own
and the one before are always chosen (arXiv 2502.11089, section 4.1), the others evenly among those that a query may
see.
"""

from __future__ import annotations

import numpy as np

from attnsim.arrays import Ints
from attnsim.models.question.selection import Selection

ALWAYS = 3
"""Blocks that are always chosen, in this order: the first, the one before the query's own, its own."""


def walked(selection: Selection, seq: int) -> Ints:
    """Blocks that each query of a causal sequence walks, ``[seq]``.

    The best among those up to the query's own; of blocks drawn anywhere its share of them, at least one, spread over
    the queries of a block so that their sum is the expected one.
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
    """Their sum, as arithmetic on blocks of queries."""
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
    """Queries that walk each block, ``[blocks]``: those that always do, and their share of the others, rounded up."""
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
    """Pairs of query and selected key of a head: whole blocks, and of the query's own what is not in its future."""
    found = walks(selection, seq) * selection.block
    if selection.anywhere:
        return found
    whole, last = divmod(seq, selection.block)
    return found - seq * selection.block + (whole * selection.block * (selection.block + 1) + last * (last + 1)) // 2


def of_last_query(selection: Selection, seq: int) -> int:
    """Pairs of a sequence's last query with keys: compressed, of chosen blocks, and of the window."""
    last = (seq - 1) % selection.block + 1
    chosen = (min(selection.top, selection.blocks(seq)) - 1) * selection.block + last
    return selection.compressed_keys(seq) + chosen + min(selection.window, seq)


def compressed_pairs(selection: Selection, seq: int) -> int:
    """Pairs of query and compressed key of a head: those whose last key is not in the query's future."""
    last = np.arange(selection.compressed_keys(seq), dtype=np.int64) * selection.step + selection.compress - 1
    return int((seq - last).sum())
