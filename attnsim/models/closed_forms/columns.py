"""Closed forms of whole arrays of forward calls at once, for sweeps: a million points in seconds.

Number of tiles that a masked attention visits: arithmetic on the shape, for any sequence length.

Everything here follows from the definition of :class:`attnsim.models.mask.mask.Mask` (query ``i`` sees keys from
``i + shift - left`` to ``i + shift + right``, ``shift = seq_kv - seq_q``) and takes arrays of workloads at
once. It shares no code with :mod:`attnsim.models.schedule.row_tiles`, which walks over the tiles, so that each
can check the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnsim.arrays import Ints
from attnsim.errors import InputError
from attnsim.models.question.operations import Operations

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


UNFUSED = Operations.parse("copies, mask, softmax")
"""Operations of unfused attention that columns have closed forms for."""

WIDTHS = np.array([32, 64, 96, 128, 192, 256, 512])
"""Head dimensions that flash kernels are compiled for (FlashAttention's list)."""


@dataclass(frozen=True, slots=True)
class ShapeTable:
    """Forward calls as columns of equal length (or of length one, which stands for all rows).

    Parameters
    ----------
    left, right : ndarray of int
        Reach of the mask; -1 is no limit.
    rows, keys : ndarray of int
        Tile of queries x keys; 0 is unfused attention with the operations `UNFUSED`.
    """

    batch: Ints
    heads_q: Ints
    heads_kv: Ints
    seq_q: Ints
    seq_kv: Ints
    head_dim: Ints
    head_dim_v: Ints
    element_bytes: Ints
    left: Ints
    right: Ints
    rows: Ints
    keys: Ints

    def columns(self) -> tuple[Ints, ...]:
        """The columns in the order of the fields."""
        return tuple(getattr(self, f.name) for f in fields(self))

    def spread(self) -> ShapeTable:
        """Broadcast all columns to int64 columns of one length."""
        values = (np.atleast_1d(np.asarray(column, dtype=np.int64)) for column in self.columns())
        return ShapeTable(*(np.array(column) for column in np.broadcast_arrays(*values)))

    def take(self, chosen: NDArray[np.bool_]) -> ShapeTable:
        """Rows where `chosen` is true."""
        return ShapeTable(*(column[chosen] for column in self.columns()))


@dataclass(frozen=True, slots=True)
class CostTable:
    """Costs of each row; FLOPs, exponentials and bytes equal those of its :class:`~attnsim.models.schedule.Schedule`.

    Parameters
    ----------
    flops_useful, flops_executed, flops_dense : ndarray of int
        FLOPs of visible pairs; of whole tiles at the head_dim the kernel is compiled for; of all pairs.
    exponentials : ndarray of int
        As executed: whole tiles, and one per row and tile for the rescaling of O.
    load_bytes, store_bytes : ndarray of int
        Bytes requested of global memory.
    compulsory_bytes, no_reuse_bytes : ndarray of int
        HBM traffic with perfect reuse, and with no L2 hit at all.
    peak_memory_bytes : ndarray of int
        Inputs, outputs and scratch alive together.
    """

    flops_useful: Ints
    flops_executed: Ints
    flops_dense: Ints
    exponentials: Ints
    load_bytes: Ints
    store_bytes: Ints
    compulsory_bytes: Ints
    no_reuse_bytes: Ints
    peak_memory_bytes: Ints


Gemms = Callable[[NDArray[np.bool_], Ints, Ints, Ints, Ints, Ints], Ints]
"""Function of (rows of a table, batch, m, n, k, bytes per element of A) of the products. Returns how often A is read,
the columns of B that are requested, and executed FLOPs, ``[3, rows]``.
"""


def costs(table: ShapeTable, gemms: Gemms | None = None) -> CostTable:
    """Closed forms of every row of `table`: the sums that a schedule of the call gives.

    Parameters
    ----------
    gemms : callable, optional
        The products of unfused attention; by default on tiles of 128 x 128, of 64 columns if a result has no more.

    Raises
    ------
    InputError
        If a count exceeds 64-bit integers.
    """
    t = table.spread()
    dense = 2.0 * t.batch * t.heads_q * t.seq_q * t.seq_kv * (t.head_dim + t.head_dim_v)
    if dense.size and dense.max() > 2.0**59:
        row = int(dense.argmax())
        raise InputError(f"row {row}: {dense[row]:.2g} FLOPs do not fit 64-bit counts; predict it on its own")
    fused = t.rows > 0
    out = np.zeros((6, len(fused)), dtype=np.int64)
    if fused.any():
        out[:, fused] = _flash(t.take(fused))
    if not fused.all():
        out[:, ~fused] = _naive(t.take(~fused), partial(gemms or _gemms, ~fused))
    executed, exps, loads, stores, compulsory, peak = out
    pairs = visible_pairs(t.seq_q, t.seq_kv, t.left, t.right)
    per_pair = 2 * t.batch * t.heads_q * (t.head_dim + t.head_dim_v)
    return CostTable(
        flops_useful=per_pair * pairs,
        flops_executed=executed,
        flops_dense=per_pair * t.seq_q * t.seq_kv,
        exponentials=exps,
        load_bytes=loads,
        store_bytes=stores,
        compulsory_bytes=compulsory,
        no_reuse_bytes=loads + stores,
        peak_memory_bytes=peak,
    )


def _flash(t: ShapeTable) -> NDArray[np.int64]:
    """FlashAttention-2's forward (arXiv 2307.08691, algorithm 1) without packed heads or splits, ``[6, rows]``.

    Per head, with ``v`` visits of key tiles: ``v keys`` rows of K and V less those missing in the last tile; Q, O and
    log-sum-exps once.
    """
    d, dv, e = t.head_dim, t.head_dim_v, t.element_bytes
    rows, keys = t.rows, t.keys
    if max(d.max(), dv.max()) > WIDTHS[-1]:
        raise InputError(f"head_dim is {max(d.max(), dv.max())}; flash kernels exist up to 512; take rows = 0 (naive)")
    band = Band.of(t.seq_q, t.seq_kv, t.left, t.right, rows)
    heads, kv = t.batch * t.heads_q, t.batch * t.heads_kv
    visits = band.visits(keys)
    kv_rows = visits * keys - band.reach_end(keys) * (-t.seq_kv % keys)
    q_rows = band.busy_rows()
    seen = band.touched(keys)
    d_pad, dv_pad = (WIDTHS[np.searchsorted(WIDTHS, width)] for width in (d, dv))
    stores = heads * t.seq_q * (dv * np.maximum(2, e) + 4)
    q_bytes = heads * q_rows * d * e
    inputs = (heads * t.seq_q + kv * t.seq_kv) * d * e + kv * t.seq_kv * dv * e
    return np.stack(
        [
            heads * visits * 2 * rows * keys * (d_pad + dv_pad),
            heads * visits * rows * (keys + 1),
            q_bytes + heads * kv_rows * (d + dv) * e,
            stores,
            q_bytes + kv * seen * (d + dv) * e + stores,
            inputs + stores,
        ]
    )


def _naive(t: ShapeTable, gemms: Callable[..., Ints]) -> NDArray[np.int64]:
    """Unfused attention with the operations `UNFUSED`, S and P in 16 bits, ``[6, rows]``."""
    d, dv, e, seq_q, seq_kv = t.head_dim, t.head_dim_v, t.element_bytes, t.seq_q, t.seq_kv
    heads, kv = t.batch * t.heads_q, t.batch * t.heads_kv
    s = np.maximum(2, e)
    pairs = heads * seq_q * seq_kv
    q, k, v, o = heads * seq_q * d * e, kv * seq_kv * d * e, kv * seq_kv * dv * e, heads * seq_q * dv * e
    # limits beyond the lengths are dropped, as in Mask.within
    limited = (t.left >= 0) & (t.left < seq_kv - 1) | (t.right >= 0) & ((t.right < seq_q - 1) | (seq_q == 1))
    masked = limited.astype(np.int64)
    mask = masked * seq_q * seq_kv * s
    across, keys, flops = gemms(heads, seq_q, seq_kv, d, e)
    across_o, values, flops_o = gemms(heads, seq_q, dv, seq_kv, s)
    products = q * across + heads * keys * d * e + pairs * s * across_o + heads * values * seq_kv * e
    loads = q + k + v + products + pairs * s * (1 + masked) + mask
    stores = q + k + v + pairs * s * (2 + masked) + o
    return np.stack(
        [
            flops + flops_o,
            pairs * np.where(seq_kv <= 1024, 2, 3),  # special functions of PyTorch's softmax, by a warp or by a block
            loads,
            stores,
            2 * (q + k + v) + mask + 2 * pairs * s + o,
            pairs * 2 * s + q + k + v + o,
        ]
    )


def _gemms(rows: NDArray[np.bool_], batch: Ints, m: Ints, n: Ints, k: Ints, e: Ints) -> Ints:
    wide = np.where(n <= 64, 64, 128)
    down, across = -(-m // 128), -(-n // wide)
    return np.stack([across, down * n, batch * down * across * -(-k // 32) * 2 * 128 * wide * 32])
