"""The key tiles that each tile of query rows visits under a band mask, for all row tiles at once.

The head dimensions that fused kernels are compiled for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnsim.arrays import Ints
from attnsim.errors import InputError
from attnsim.models.question.workload import Workload


@dataclass(frozen=True, slots=True)
class RowTiles:
    """Key tiles that each row tile of one head visits: arrays over the row tiles, by sequence in ascending order.

    Sequences of equal length appear once.

    Parameters
    ----------
    part : ndarray
        Number of the sequence, an entry of :attr:`Workload.parts`.
    steps : ndarray
        Key tiles visited.
    masked : ndarray
        Key tiles visited that are only partly visible.
    missing_keys : ndarray
        Keys missing from the last key tile, if it is visited.
    missing_rows : ndarray
        Rows missing from the last tile of a sequence; all of them if a grid has a block where the sequence has no tile.
    rows, keys : int
        Tile size.
    touched_keys : ndarray, shape [parts]
        Keys in the key tiles that any row tile of a sequence visits.
    """

    part: Ints
    steps: Ints
    masked: Ints
    missing_keys: Ints
    missing_rows: Ints
    rows: int
    keys: int
    touched_keys: Ints


def row_tiles(
    w: Workload,
    rows: int,
    keys: int,
    pack: int = 1,
    split: int = 0,
    splits: Ints | int = 1,
    *,
    edges_only: bool = False,
    of_seen: bool = False,
    from_first_key: bool = False,
    chunk: int = 0,
) -> RowTiles:
    """Count the key tiles that each row tile of one head visits.

    Parameters
    ----------
    rows, keys : int
        Tile size.
    pack : int
        Query heads packed into the rows of a tile (row ``r`` is query ``r // pack``).
    split, splits : int
        Number of the visited range of key tiles, and the number of equal ranges the keys are split into (split-KV), per
        sequence if they differ.
    edges_only : bool
        Whether only the tiles at the edges of a window count as masked. Most kernels mask every tile of a window.
    of_seen : bool
        Whether ranges split the keys that each row tile sees (FA3) instead of all keys (FA2).
    from_first_key : bool
        Whether the key tiles of a window begin at the first key that a row tile sees instead of at a multiple of
        `keys`.
    chunk : int
        Key tiles of a range, if ranges are not equal.
    """
    queries, seq_kv = np.array([one[:2] for one in w.parts], dtype=np.int64).T
    tiles = -(-queries * pack // rows)
    begin = np.cumsum(tiles) - tiles
    part = np.repeat(np.arange(len(tiles)), tiles)
    number = np.arange(len(part), dtype=np.int64) - begin[part]
    total_rows, cached, shift = (queries * pack)[part], seq_kv[part], (seq_kv - queries)[part]
    first = number * rows
    last = np.minimum(first + rows, total_rows) - 1
    first_query, last_query = first // pack, last // pack
    low, high = _visible(w, first_query, last_query, cached, shift)
    # Key tiles are counted from this key: key 0, or the first key that the row tile sees.
    shifted = from_first_key and w.mask.is_windowed
    origin = low if shifted else np.zeros_like(low)
    key_tiles = -(-(cached - origin) // keys)
    start, stop = (low - origin) // keys, -(-(high - origin) // keys)
    ranges = np.broadcast_to(splits, len(tiles))[part]
    if (ranges > 1).any():
        begun, share = (start, -(-(stop - start) // ranges)) if of_seen else (0, -(-key_tiles // ranges))
        share = chunk or share
        cut_start, cut_stop = np.maximum(start, begun + split * share), np.minimum(stop, begun + (split + 1) * share)
        start, stop = np.where(ranges > 1, cut_start, start), np.where(ranges > 1, cut_stop, stop)
    steps = np.maximum(stop - start, 0)
    ends = number == tiles[part] - 1
    missing_keys = np.where((steps > 0) & (stop == key_tiles), key_tiles * keys - (cached - origin), 0)
    if shifted:  # row tiles end at different keys: only the last key tile is shorter, others count as whole
        missing_keys *= ends
    first_unmasked = _begin(w, last_query, shift) - origin
    end_unmasked = _end(w, first_query, cached, shift) - origin
    whole = np.minimum(stop, end_unmasked // keys) - np.maximum(start, -(-first_unmasked // keys))
    masked = steps if w.mask.is_windowed and not edges_only else steps - np.clip(whole, 0, steps)
    missing_rows = np.where(ends, (number + 1) * rows - total_rows, 0)
    busy = steps > 0
    reached = np.maximum.reduceat(np.where(busy, np.minimum(origin + stop * keys, cached), 0), begin)
    begun_at = np.minimum.reduceat(np.where(busy, origin + start * keys, cached), begin)
    return RowTiles(part, steps, masked, missing_keys, missing_rows, rows, keys, np.maximum(reached - begun_at, 0))


def visible_keys(w: Workload, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Half-open key intervals that queries `first` to `last` (inclusive) see, as :meth:`Mask.columns` for arrays."""
    return _visible(w, first, last, w.seq_kv, w.seq_kv - w.seq_q)


def _visible(w: Workload, first: Ints, last: Ints, keys: Ints | int, shift: Ints | int) -> tuple[Ints, Ints]:
    low, high = _begin(w, first, shift), _end(w, last, keys, shift)
    empty = high <= low
    return np.where(empty, 0, low), np.where(empty, 0, high)


def _begin(w: Workload, query: Ints, shift: Ints | int) -> Ints:
    """First key that queries see."""
    left = w.mask.left
    return np.zeros_like(query) if left is None else np.maximum(0, query + shift - left)


def _end(w: Workload, query: Ints, keys: Ints | int, shift: Ints | int) -> Ints:
    """One past the last key that queries see; 0 if they see none."""
    right = w.mask.right
    if right is None:
        return np.zeros_like(query) + keys
    return np.asarray(np.clip(query + shift + right + 1, 0, keys), dtype=np.int64)


def visible_queries(
    w: Workload, first: Ints, last: Ints, queries: Ints | None = None, shift: Ints | None = None
) -> tuple[Ints, Ints]:
    """Half-open query intervals that see any of keys `first` to `last` (inclusive): the transpose, for backward.

    If sequences differ, `queries` and `shift` (keys less queries) give those of each entry's sequence.
    """
    count = w.seq_q if queries is None else queries
    ahead, mask = w.seq_kv - w.seq_q if shift is None else shift, w.mask
    low = np.zeros_like(first) if mask.right is None else np.maximum(0, first - ahead - mask.right)
    high = np.zeros_like(last) + count if mask.left is None else np.minimum(count, last - ahead + mask.left + 1)
    empty = high <= low
    return np.where(empty, 0, low), np.where(empty, 0, high)


def classes(*columns: Ints | NDArray[np.bool_]) -> tuple[tuple[Ints, ...], Ints]:
    """Distinct rows of the table with these columns, in order, and the row number of each entry."""
    if len(columns[0]) == 1:
        return tuple(column.astype(np.int64) for column in columns), np.zeros(1, dtype=np.int64)
    key, most = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        values = np.ascontiguousarray(column, dtype=np.int64)
        base = int(values.max(initial=0)) + 1
        if base > 1 << 31:  # for large values, for the same reason
            values = np.unique(values, return_inverse=True)[1].astype(np.int64)
            base = len(values)
        key, most = key * base + values, most * base
        if most > 1 << 31:  # for many columns, before it overflows
            key = np.unique(key, return_inverse=True)[1].astype(np.int64)
            most = len(key)
    if most > 4 * len(key):
        _, firsts, inverse = np.unique(key, return_index=True, return_inverse=True)
    # Counting is cheaper than sorting; of several entries at one index the last one written stays, which is the first.
    else:
        first = np.full(most, -1)
        first[key[::-1]] = np.arange(len(key))[::-1]
        there = first >= 0
        firsts, inverse = first[there], (there.cumsum() - 1)[key]
    return tuple(column[firsts].astype(np.int64) for column in columns), inverse.astype(np.int64, copy=False)


FLASH_WIDTHS = (32, 64, 96, 128, 192, 256, 512)
"""Head dimensions of FlashAttention's kernels."""


def padded(head_dim: int) -> int:
    """The width that a fused kernel computes `head_dim` columns with.

    Raises
    ------
    InputError
        When no kernel is wide enough.
    """
    for width in FLASH_WIDTHS:
        if head_dim <= width:
            return width
    raise InputError(
        f"head_dim is {head_dim}; fused kernels are played up to 512; take --implementation torch.eager (unfused)"
    )
