"""The key tiles that each tile of query rows visits under a band mask, for all row tiles at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnsim.models.arrays import Ints
from attnsim.models.question.workload import Workload


@dataclass(frozen=True, slots=True)
class RowTiles:
    """What each row tile of one head visits, as arrays over the tiles in ascending order.

    Parameters
    ----------
    steps : ndarray
        Key tiles visited.
    masked : ndarray
        Key tiles visited that are only partly visible.
    ragged_keys : ndarray of bool
        Whether the visit includes the last, shorter key tile.
    ragged_rows : ndarray of bool
        Whether the row tile is the last, shorter one.
    rows, keys : int
        Tile size.
    last_rows, last_keys : int
        Size of the shorter tiles (the full size when there is none).
    touched_keys : int
        Keys in the key tiles that any row tile visits.
    """

    steps: Ints
    masked: Ints
    ragged_keys: NDArray[np.bool_]
    ragged_rows: NDArray[np.bool_]
    rows: int
    keys: int
    last_rows: int
    last_keys: int
    touched_keys: int


def row_tiles(
    w: Workload,
    rows: int,
    keys: int,
    pack: int = 1,
    split: int = 0,
    splits: int = 1,
    *,
    edges_only: bool = False,
    of_seen: bool = False,
    from_first_key: bool = False,
) -> RowTiles:
    """Count the key tiles that each row tile of one head visits.

    Parameters
    ----------
    w : Workload
    rows, keys : int
        Tile size.
    pack : int
        Query heads packed into the rows of a tile (row ``r`` is query ``r // pack``).
    split, splits : int
        Number of the range of key tiles that is visited, and into how many equal ranges keys are split (split-KV).
    edges_only : bool
        Whether only the tiles at the edges of a window count as masked. Most kernels mask every tile of a window.
    of_seen : bool
        Whether ranges split the keys that each row tile sees (FA3) instead of all keys (FA2).
    from_first_key : bool
        Whether the key tiles of a window begin at the first key that a row tile sees instead of at a multiple of
        `keys`.
    """
    total_rows = w.seq_q * pack
    count = -(-total_rows // rows)
    first = np.arange(count, dtype=np.int64) * rows
    last = np.minimum(first + rows, total_rows) - 1
    first_query, last_query = first // pack, last // pack
    low, high = visible_keys(w, first_query, last_query)
    # Key tiles are counted from here: from key 0, or from the first that the row tile sees.
    shifted = from_first_key and w.mask.is_windowed
    origin = low if shifted else np.zeros_like(low)
    key_tiles = -(-(w.seq_kv - origin) // keys)
    start, stop = (low - origin) // keys, -(-(high - origin) // keys)
    if splits > 1:
        begin, share = (start, -(-(stop - start) // splits)) if of_seen else (0, -(-key_tiles // splits))
        start, stop = np.maximum(start, begin + split * share), np.minimum(stop, begin + (split + 1) * share)
    steps = np.maximum(stop - start, 0)
    last_keys = int((w.seq_kv - origin - (key_tiles - 1) * keys)[-1])
    ragged_keys = (steps > 0) & (stop == key_tiles) & (last_keys < keys)
    if shifted:  # row tiles end at different keys: `last_keys` holds for the last one, the few others count as whole
        ragged_keys &= np.arange(count) == count - 1
    first_unmasked, end_unmasked = _begin(w, last_query) - origin, _end(w, first_query) - origin
    whole = np.minimum(stop, end_unmasked // keys) - np.maximum(start, -(-first_unmasked // keys))
    masked = steps if w.mask.is_windowed and not edges_only else steps - np.clip(whole, 0, steps)
    last_rows = total_rows - (count - 1) * rows
    ragged_rows = (np.arange(count) == count - 1) & (last_rows < rows)
    busy = steps > 0
    ends = np.minimum(origin + stop * keys, w.seq_kv)[busy]
    touched = int(ends.max() - (origin + start * keys)[busy].min()) if busy.any() else 0
    return RowTiles(steps, masked, ragged_keys, ragged_rows, rows, keys, last_rows, last_keys, touched)


def visible_keys(w: Workload, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Half-open key intervals that queries `first` to `last` (inclusive) see, as :meth:`Mask.columns` for arrays."""
    low, high = _begin(w, first), _end(w, last)
    empty = high <= low
    return np.where(empty, 0, low), np.where(empty, 0, high)


def _begin(w: Workload, query: Ints) -> Ints:
    """First key that queries see."""
    left = w.mask.left
    return np.zeros_like(query) if left is None else np.maximum(0, query + (w.seq_kv - w.seq_q) - left)


def _end(w: Workload, query: Ints) -> Ints:
    """The key after the last that queries see; 0 where they see none."""
    right = w.mask.right
    if right is None:
        return np.full_like(query, w.seq_kv)
    return np.clip(query + (w.seq_kv - w.seq_q) + right + 1, 0, w.seq_kv)


def visible_queries(w: Workload, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Half-open query intervals that see any of keys `first` to `last` (inclusive): the transpose, for backward."""
    shift, mask = w.seq_kv - w.seq_q, w.mask
    low = np.zeros_like(first) if mask.right is None else np.maximum(0, first - shift - mask.right)
    high = np.full_like(last, w.seq_q) if mask.left is None else np.minimum(w.seq_q, last - shift + mask.left + 1)
    empty = high <= low
    return np.where(empty, 0, low), np.where(empty, 0, high)


def classes(*columns: Ints | NDArray[np.bool_]) -> tuple[tuple[Ints, ...], Ints]:
    """Distinct rows of the table with these columns, and the row number of each entry."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values = column.astype(np.int64)
        key = key * (int(values.max(initial=0)) + 1) + values
    _, firsts, inverse = np.unique(key, return_index=True, return_inverse=True)
    return tuple(column[firsts].astype(np.int64) for column in columns), inverse.astype(np.int64)
