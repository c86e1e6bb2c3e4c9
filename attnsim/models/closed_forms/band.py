"""How many tiles a masked attention visits: arithmetic on the shape, however long the sequence.

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
from attnsim.models.mask.mask import Mask

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
    """A band mask with one axis cut into tiles; counts which tiles of the other axis each one visits.

    All fields may be arrays (many workloads at once).

    Parameters
    ----------
    rows : ndarray
        Tile size along the axis that is cut up, one tile a thread block.
    total : ndarray
        Length of that axis; with `pack` query heads in a tile, length times `pack`.
    other : ndarray
        Length of the other axis.
    shift, left, right : ndarray
        Entry ``i`` sees the other axis from ``i + shift - left`` to ``i + shift + right``.
    pack : ndarray
        Rows of a tile per position on the axis (grouped query heads).
    """

    rows: Ints
    total: Ints
    other: Ints
    shift: Ints
    left: Ints
    right: Ints
    pack: Ints

    @classmethod
    def of_queries(
        cls,
        seq_q: ArrayLike,
        seq_kv: ArrayLike,
        left: ArrayLike,
        right: ArrayLike,
        rows: ArrayLike,
        *,
        pack: ArrayLike = 1,
    ) -> Band:
        """Blocks over tiles of queries, as in the forward pass; a negative reach is no limit."""
        nq, nk, before, after, r, p = _integers(seq_q, seq_kv, left, right, rows, pack)
        return cls(r, nq * p, nk, nk - nq, _reach(before), _reach(after), p)

    @classmethod
    def of_keys(cls, seq_q: ArrayLike, seq_kv: ArrayLike, left: ArrayLike, right: ArrayLike, keys: ArrayLike) -> Band:
        """Blocks over tiles of keys, as in the backward pass: the transpose."""
        nq, nk, before, after, k = _integers(seq_q, seq_kv, left, right, keys)
        return cls(k, nk, nq, nq - nk, _reach(after), _reach(before), np.ones_like(k))

    @property
    def tiles(self) -> Ints:
        """Tiles along the axis."""
        return -(-self.total // self.rows)

    @property
    def last_rows(self) -> Ints:
        """Rows of the last tile."""
        return self.total - (self.tiles - 1) * self.rows

    def busy_rows(self) -> Ints:
        """Rows in tiles that see anything.

        Only leading tiles can see nothing: those whose last position lies more than `right` before the other axis
        begins. The last position always sees its counterpart.
        """
        return self.total - self.idle_tiles() * self.rows

    def idle_tiles(self) -> Ints:
        """Leading tiles that see nothing."""
        return self._before(-self.shift - self.right, self.tiles - 1)

    def touched(self, size: ArrayLike = 1) -> Ints:
        """Entries of the other axis in tiles of `size` that any tile visits: from the first visited tile to the end."""
        (step,) = _integers(size)
        first = self.idle_tiles() * self.rows // self.pack
        low = np.maximum(0, first + self.shift - self.left)
        return np.asarray(self.other - low // step * step, dtype=np.int64)

    def reach_end(self, size: ArrayLike) -> Ints:
        """Number of tiles that visit the last tile (of `size`) of the other axis."""
        (step,) = _integers(size)
        before_last = (self.other - 1) // step * step
        return self.tiles - self._before(before_last - self.shift - self.right, self.tiles - 1)

    def visits(self, size: ArrayLike) -> tuple[Ints, Ints]:
        """Tiles (of `size`) of the other axis that are visited: by all tiles but the last together, and by the last.

        With first and last position ``f`` and ``l`` of a tile the visits are ``ceil(h / size) - floor(g /
        size)``, ``h = clip(l + shift + right + 1, 0, other)``, ``g = max(0, f + shift - left)``; both are
        piecewise arithmetic in the tile number, so that :func:`floor_sum` adds them up.
        """
        (step,) = _integers(size)
        regular = self.tiles - 1
        c = self.shift + self.right + 1
        start, stop = self._before(1 - c, regular), self._before(self.other - c, regular)
        unit = self.pack * step
        # l = floor(((i + 1) rows - 1) / pack), hence ceil((l + c) / step) = floor((x + (c + step - 1) pack) /
        # unit)
        offset = (start + 1) * self.rows - 1 + (c + step - 1) * self.pack
        inside = floor_sum(stop - start, unit, self.rows, np.where(stop > start, offset, 0))
        ends = inside + (regular - stop) * -(-self.other // step)
        g = self.shift - self.left
        # f + g <= 0 until f reaches -g: tile i with i rows >= -g pack
        from_here = np.clip(-(g * self.pack) // self.rows, 0, regular)
        offset = from_here * self.rows + g * self.pack
        from_here = np.where(offset < 0, np.minimum(from_here + 1, regular), from_here)
        offset = np.where(from_here < regular, from_here * self.rows + g * self.pack, 0)
        begins = floor_sum(regular - from_here, unit, self.rows, np.maximum(offset, 0))
        first_of_last = regular * self.rows // self.pack
        last = -(-self.other // step) - np.maximum(0, first_of_last + g) // step
        return ends - begins, np.asarray(last, dtype=np.int64)

    def reads(self, size: int) -> tuple[Ints, Ints]:
        """Tiles (of `size`) visited by all tiles together, and entries in them."""
        regular, last = self.visits(size)
        visits = regular + last
        return visits, visits * size - self.reach_end(size) * (-self.other % size)

    def read(self, size: int) -> tuple[int, int, int]:
        """The same as numbers, and entries that any visits."""
        visits, entries = self.reads(size)
        return int(visits), int(entries), int(self.touched(size))

    def _before(self, bound: Ints, limit: Ints) -> Ints:
        """Tiles, of the first `limit`, whose last position is below `bound`."""
        return np.asarray(np.clip(np.maximum(bound, 0) * self.pack // self.rows, 0, limit), dtype=np.int64)


def visible_pairs(seq_q: ArrayLike, seq_kv: ArrayLike, left: ArrayLike, right: ArrayLike) -> Ints:
    """(query, key) pairs of one head that survive the mask: tiles of one query and one key."""
    regular, last = Band.of_queries(seq_q, seq_kv, left, right, 1).visits(1)
    return regular + last


def reaches(mask: Mask) -> tuple[int, int]:
    """Reach of a mask's band to the left and to the right; -1 is no limit."""
    return -1 if mask.left is None else mask.left, -1 if mask.right is None else mask.right


def _reach(limit: Ints) -> Ints:
    return np.asarray(np.where(limit < 0, UNLIMITED, limit), dtype=np.int64)


def _integers(*values: ArrayLike) -> tuple[Ints, ...]:
    arrays = np.broadcast_arrays(*(np.asarray(value, dtype=np.int64) for value in values))
    return tuple(np.array(array) for array in arrays)
