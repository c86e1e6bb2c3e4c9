"""Number of tiles that a masked attention visits: arithmetic on the shape, for any sequence length.

Everything here follows from the definition of :class:`attnsim.models.mask.mask.Mask` (query ``i`` sees keys from
``i + shift - left`` to ``i + shift + right``, ``shift = seq_kv - seq_q``) and takes arrays of workloads at
once. It shares no code with :mod:`attnsim.models.schedule.row_tiles`, which walks over the tiles, so that each
can check the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from attnsim.arrays import Ints

UNLIMITED = 1 << 40
"""Reach of a mask that hides nothing on that side; far above any length, far below overflow."""


def floor_sum(n: Ints, m: Ints, a: Ints, b: Ints) -> Ints:
    """Sum of ``floor((a i + b) / m)`` over ``0 <= i < n``, for arrays of non-negative integers.

    The Euclid-like recursion on lattice points under a line (Graham, Knuth, Patashnik, *Concrete
    Mathematics*, 2nd ed., section 3.5, equation 3.32; the loop follows AtCoder Library's ``floor_sum``): the
    number of turns is logarithmic in `m`, and one or two where a tile's rows are a multiple of its keys.
    """
    n, m, a, b = (np.array(x) for x in np.broadcast_arrays(n, m, a, b))
    total = np.zeros_like(n)
    while np.any(n > 0):
        total += n * (n - 1) // 2 * (a // m) + n * (b // m)
        a, b = a % m, b % m
        highest = a * n + b
        n, b = np.where(n > 0, highest // m, 0), highest % m
        m, a = np.where(a > 0, a, 1), m
    return total


@dataclass(frozen=True, slots=True)
class Band:
    """A band mask with its queries cut into tiles; counts which tiles of keys each one visits.

    All fields may be arrays (many workloads at once).

    Parameters
    ----------
    rows : ndarray
        Queries of a tile, one a thread block.
    queries, keys : ndarray
        Lengths.
    shift, left, right : ndarray
        Query ``i`` sees keys from ``i + shift - left`` to ``i + shift + right``.
    """

    rows: Ints
    queries: Ints
    keys: Ints
    shift: Ints
    left: Ints
    right: Ints

    @classmethod
    def of(cls, seq_q: ArrayLike, seq_kv: ArrayLike, left: ArrayLike, right: ArrayLike, rows: ArrayLike) -> Band:
        """Band with tiles of queries, as in the forward pass; a negative reach means no limit."""
        nq, nk, before, after, r = _integers(seq_q, seq_kv, left, right, rows)
        return cls(r, nq, nk, nk - nq, _reach(before), _reach(after))

    @property
    def tiles(self) -> Ints:
        """Tiles of queries."""
        return -(-self.queries // self.rows)

    def busy_rows(self) -> Ints:
        """Rows in tiles that see any key.

        Only leading tiles can see none: those whose last query lies more than `right` before the first key. The last
        query always sees the last key.
        """
        return self.queries - self.idle_tiles() * self.rows

    def idle_tiles(self) -> Ints:
        """Leading tiles that see no key."""
        return self._before(-self.shift - self.right, self.tiles - 1)

    def touched(self, size: ArrayLike) -> Ints:
        """Keys in key tiles of `size` that any query tile visits: from the first visited tile to the end."""
        (step,) = _integers(size)
        low = np.maximum(0, self.idle_tiles() * self.rows + self.shift - self.left)
        return np.asarray(self.keys - low // step * step, dtype=np.int64)

    def reach_end(self, size: ArrayLike) -> Ints:
        """Number of query tiles that visit the last key tile of `size`."""
        (step,) = _integers(size)
        before_last = (self.keys - 1) // step * step
        return self.tiles - self._before(before_last - self.shift - self.right, self.tiles - 1)

    def visits(self, size: ArrayLike) -> Ints:
        """Visits of tiles (of `size`) of the keys, of all tiles of queries together.

        With first and last query ``f`` and ``l`` of a tile they are ``ceil(h / size) - floor(g / size)``,
        ``h = clip(l + shift + right + 1, 0, keys)``, ``g = max(0, f + shift - left)``; both are piecewise arithmetic in
        the tile number, so that :func:`floor_sum` adds them up over all tiles but the last.
        """
        (step,) = _integers(size)
        regular = self.tiles - 1
        c = self.shift + self.right + 1
        start, stop = self._before(1 - c, regular), self._before(self.keys - c, regular)
        # l = (i + 1) rows - 1, hence ceil((l + c) / step) = floor((l + c + step - 1) / step)
        offset = (start + 1) * self.rows + c + step - 2
        inside = floor_sum(stop - start, step, self.rows, np.where(stop > start, offset, 0))
        ends = inside + (regular - stop) * -(-self.keys // step)
        g = self.shift - self.left
        # f + g <= 0 until f reaches -g: tile i with i rows >= -g
        from_here = np.clip(-g // self.rows, 0, regular)
        offset = from_here * self.rows + g
        from_here = np.where(offset < 0, np.minimum(from_here + 1, regular), from_here)
        offset = np.where(from_here < regular, from_here * self.rows + g, 0)
        begins = floor_sum(regular - from_here, step, self.rows, np.maximum(offset, 0))
        last = -(-self.keys // step) - np.maximum(0, regular * self.rows + g) // step
        return np.asarray(ends - begins + last, dtype=np.int64)

    def _before(self, bound: Ints, limit: Ints) -> Ints:
        """Number of the first `limit` tiles whose last query is below `bound`."""
        return np.asarray(np.clip(np.maximum(bound, 0) // self.rows, 0, limit), dtype=np.int64)


def visible_pairs(seq_q: ArrayLike, seq_kv: ArrayLike, left: ArrayLike, right: ArrayLike) -> Ints:
    """(query, key) pairs of one head that the mask shows: visits of tiles of one query and one key."""
    return Band.of(seq_q, seq_kv, left, right, 1).visits(1)


def _reach(limit: Ints) -> Ints:
    return np.asarray(np.where(limit < 0, UNLIMITED, limit), dtype=np.int64)


def _integers(*values: ArrayLike) -> tuple[Ints, ...]:
    arrays = np.broadcast_arrays(*(np.asarray(value, dtype=np.int64) for value in values))
    return tuple(np.array(array) for array in arrays)
