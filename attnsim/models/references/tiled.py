"""Softmax attention tile by tile in float64, in the loop orders of the fused kernels.

Each form keeps, for each row, the highest score m, the sum l of exp(S - m) and the output O over the keys seen so far,
and updates the three with each further tile (online softmax: Milakov & Gimelshein, arXiv 1805.02867; Rabe & Staats,
arXiv 2112.05682). The result depends neither on the order nor on how the keys are distributed before the parts are
combined. Every schedule of :mod:`attnsim.models.implementations` therefore computes the same attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from attnsim.arrays import Floats
from attnsim.errors import InputError
from attnsim.models.mask.mask import Mask
from attnsim.models.references.softmax import capped, default_scale, expanded, read_inputs

Order = Literal["descending", "ascending"]


@dataclass(frozen=True, slots=True, eq=False)
class RunningSoftmax:
    """Running state of the online softmax over the keys seen so far.

    Parameters
    ----------
    highest : ndarray ``[..., rows]``
        m, -inf if no key has been seen.
    total : ndarray ``[..., rows]``
        l, the sum of ``exp(s - m)``.
    o : ndarray ``[..., rows, head_dim_v]``
        O, not yet divided by l.
    """

    highest: Floats
    total: Floats
    o: Floats

    @classmethod
    def empty(cls, shape: tuple[int, ...], head_dim_v: int) -> RunningSoftmax:
        """State before the first key, for rows of this shape."""
        return cls(np.full(shape, -np.inf), np.zeros(shape), np.zeros((*shape, head_dim_v)))

    def with_tile(self, s: Floats, v: Floats) -> RunningSoftmax:
        """State after a further tile of keys (Dao, arXiv 2307.08691, algorithm 1, lines 9 and 10).

        Parameters
        ----------
        s : ndarray ``[..., rows, keys]``
            Scaled scores, -inf where masked.
        v : ndarray ``[..., keys, head_dim_v]``
        """
        highest = np.maximum(self.highest, s.max(axis=-1))
        shift = _finite(highest)
        p = np.exp(s - shift[..., None])
        rescale = np.exp(self.highest - shift)
        return RunningSoftmax(highest, self.total * rescale + p.sum(axis=-1), self.o * rescale[..., None] + p @ v)

    def finished(self) -> tuple[Floats, Floats]:
        """O and log-sum-exp; 0 and -inf for rows that saw no key."""
        return self.o / _divisor(self.total)[..., None], self.lse

    @property
    def lse(self) -> Floats:
        """Log-sum-exp of the scores seen."""
        return np.where(self.total > 0, self.highest + np.log(_divisor(self.total)), -np.inf)


def flash_reference(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    mask: Mask | None = None,
    *,
    rows: int = 128,
    keys: int = 64,
    order: Order = "descending",
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: ArrayLike | None = None,
) -> tuple[Floats, Floats]:
    """O and log-sum-exp with queries in the outer loop (FlashAttention-2, arXiv 2307.08691, algorithm 1).

    Parameters
    ----------
    q, k, v, mask, scale, softcap, sinks
        As for :func:`attnsim.models.references.softmax.attention`.
    rows, keys : int
        Tile of queries x keys; only tiles that the mask's band touches are visited.
    order : {"descending", "ascending"}
        Key tiles of a row tile from the last visible to the first, as FlashAttention-2 and -3 go, or the other way.
    """
    t = _Tiles.of(q, k, v, mask, rows, keys, scale, softcap, sinks)
    o, lse = t.outputs()
    for row in t.row_tiles():
        low, high = t.mask.columns(row.start, row.stop - 1, t.seq_q, t.seq_kv)
        state = t.empty(row)
        visited = range(low // keys * keys, high, keys)
        for first in visited if order == "ascending" else reversed(visited):
            column = slice(first, min(first + keys, t.seq_kv))
            state = state.with_tile(t.scores(row, column), t.v[:, :, column])
        o[:, :, row], lse[:, :, row] = state.finished()
    return o, lse


def flash1_reference(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    mask: Mask | None = None,
    *,
    rows: int = 16,
    keys: int = 256,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: ArrayLike | None = None,
) -> tuple[Floats, Floats]:
    """O and log-sum-exp with keys in the outer loop (FlashAttention, arXiv 2205.14135, algorithm 1).

    Each outer turn reads O, m and l of every row, updates them and writes them back; O is kept divided by l, as the
    paper keeps it (line 12), not only at the end.

    Parameters
    ----------
    q, k, v, mask, rows, keys, scale, softcap, sinks
        As for :func:`flash_reference`.
    """
    t = _Tiles.of(q, k, v, mask, rows, keys, scale, softcap, sinks)
    o, _ = t.outputs()
    first = t.empty(slice(0, t.seq_q))
    highest, total = first.highest, first.total
    for column in t.key_tiles():
        for row in t.row_tiles():
            before = total[:, :, row]
            state = RunningSoftmax(highest[:, :, row], before, o[:, :, row] * before[..., None])
            state = state.with_tile(t.scores(row, column), t.v[:, :, column])
            highest[:, :, row], total[:, :, row] = state.highest, state.total
            o[:, :, row], _ = state.finished()
    return o, RunningSoftmax(highest, total, o).lse


def split_kv_reference(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    mask: Mask | None = None,
    *,
    splits: int = 2,
    keys: int = 64,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: ArrayLike | None = None,
) -> tuple[Floats, Floats]:
    """O and log-sum-exp with the key tiles shared out over `splits` blocks and combined (Flash-Decoding).

    Parameters
    ----------
    q, k, v, mask, keys, scale, softcap, sinks
        As for :func:`flash_reference`; all queries are one row tile.
    splits : int
        Ranges of consecutive key tiles, the last ones empty where there are fewer tiles.
    """
    t = _Tiles.of(q, k, v, mask, max(1, np.shape(q)[2]), keys, scale, softcap, sinks)
    if splits < 1:
        raise InputError(f"splits is {splits}; allowed: 1 or more")
    columns = list(t.key_tiles())
    share = -(-len(columns) // splits)
    every = slice(0, t.seq_q)
    parts = []
    for number in range(splits):
        state = t.empty(every, sinks=number == 0)
        for column in columns[number * share : (number + 1) * share]:
            state = state.with_tile(t.scores(every, column), t.v[:, :, column])
        parts.append(state.finished())
    return combined(np.stack([o for o, _ in parts]), np.stack([lse for _, lse in parts]))


def combined(o: Floats, lse: Floats) -> tuple[Floats, Floats]:
    """O and log-sum-exp over all keys from those of disjoint parts, in any order.

    The weight of a part is ``exp(lse - whole)``, so its relative error is the rounding of `lse` itself: kernels that
    hand over fp32 values lose 6e-8 of the score's size, where m and l apart would lose nothing.

    Parameters
    ----------
    o : ndarray ``[parts, ..., rows, head_dim_v]``
        Each divided by its own sum.
    lse : ndarray ``[parts, ..., rows]``
    """
    highest = lse.max(axis=0)
    weight = np.exp(lse - _finite(highest))
    return RunningSoftmax(highest, weight.sum(axis=0), (weight[..., None] * o).sum(axis=0)).finished()


@dataclass(frozen=True, slots=True, eq=False)
class _Tiles:
    """Q, K and V cut into tiles; K and V repeated for the query heads that share them."""

    q: Floats
    k: Floats
    v: Floats
    mask: Mask
    rows: int
    keys: int
    scale: float
    softcap: float
    sinks: Floats | None

    @classmethod
    def of(
        cls,
        q: ArrayLike,
        k: ArrayLike,
        v: ArrayLike,
        mask: Mask | None,
        rows: int,
        keys: int,
        scale: float | None,
        softcap: float,
        sinks: ArrayLike | None,
    ) -> _Tiles:
        q64, k64, v64 = read_inputs(q, k, v)
        if rows < 1 or keys < 1:
            raise InputError(f"the tile is {rows} x {keys}; allowed: 1 x 1 or larger")
        factor, given = default_scale(q64, scale), None if sinks is None else np.asarray(sinks, dtype=np.float64)
        expand = expanded(k64, q64), expanded(v64, q64)
        return cls(q64, *expand, mask or Mask(), rows, keys, factor, softcap, given)

    @property
    def seq_q(self) -> int:
        return int(self.q.shape[2])

    @property
    def seq_kv(self) -> int:
        return int(self.k.shape[2])

    def row_tiles(self) -> list[slice]:
        return [slice(i, min(i + self.rows, self.seq_q)) for i in range(0, self.seq_q, self.rows)]

    def key_tiles(self) -> list[slice]:
        return [slice(j, min(j + self.keys, self.seq_kv)) for j in range(0, self.seq_kv, self.keys)]

    def empty(self, row: slice, sinks: bool = True) -> RunningSoftmax:
        """No key seen: of sinks one that has no value."""
        state = RunningSoftmax.empty((*self.q.shape[:2], row.stop - row.start), self.v.shape[3])
        if self.sinks is None or not sinks:
            return state
        return RunningSoftmax(np.zeros_like(state.total) + self.sinks[:, None], np.ones_like(state.total), state.o)

    def outputs(self) -> tuple[Floats, Floats]:
        return np.zeros((*self.q.shape[:3], self.v.shape[3])), np.full(self.q.shape[:3], -np.inf)

    def scores(self, row: slice, column: slice) -> Floats:
        """Scaled scores of a tile, -inf where masked."""
        s = capped(self.q[:, :, row] @ self.k[:, :, column].swapaxes(-1, -2) * self.scale, self.softcap)
        at = np.arange(row.start, row.stop)[:, None], np.arange(column.start, column.stop)[None, :]
        s[..., ~self.mask.seen(*at, self.seq_q, self.seq_kv)] = -np.inf
        return s


def _finite(highest: Floats) -> Floats:
    """Shift of the scores: their maximum, or 0 for rows that have seen no key."""
    return np.where(np.isneginf(highest), 0.0, highest)


def _divisor(total: Floats) -> Floats:
    return np.where(total > 0, total, 1.0)
