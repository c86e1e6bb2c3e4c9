"""Parts of sparse masks: windows, strides and global tokens, with the look of their tiles.

A part is a set of pairs (position, key). The position of query ``i`` is ``i + seq_kv - seq_q``: the key aligned with it
when the last query is aligned with the last key. A chunk of a sequence therefore sees the same keys as its rows of the
whole. Each part answers three questions for arrays, without building N x N: which pairs are visible, which key
intervals a tile of rows may touch, and which tiles look alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from attnsim.arrays import Bools, Ints
from attnsim.errors import InputError

Spans = tuple[Ints, Ints, Ints]
"""Row tile, first key and one past the last key; intervals may overlap, and reach outside the sequence."""

NONE, ALL = 0, 1
"""Looks of a tile with no visible pair, and of one with all pairs visible; every other look is 2 or more."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """A head cut into tiles of `rows` queries x `keys` keys."""

    rows: int
    keys: int
    seq_q: int
    seq_kv: int

    @property
    def row_tiles(self) -> int:
        """Number of query tiles."""
        return -(-self.seq_q // self.rows)

    @property
    def key_tiles(self) -> int:
        """Number of key tiles."""
        return -(-self.seq_kv // self.keys)

    def first_position(self, row_tile: Ints) -> Ints:
        """Position of a row tile's first query."""
        return np.asarray(row_tile * self.rows + (self.seq_kv - self.seq_q))

    def last_position(self, row_tile: Ints) -> Ints:
        """Position of a row tile's last query."""
        return np.asarray(np.minimum((row_tile + 1) * self.rows, self.seq_q) - 1 + (self.seq_kv - self.seq_q))


class _Diagonal:
    """A pattern that depends on the distance of a pair only: its tiles are counted by diagonals."""

    __slots__ = ()

    def looked_at(self, tiles: Tiles) -> float:
        """0: no tile is examined individually."""
        return 0.0


class Part(Protocol):
    """A set of (position, key) pairs; a mask is a union of such sets inside a band."""

    @property
    def tokens(self) -> int:
        """Length of the shortest sequence that none of its figures reaches beyond."""
        ...

    def seen(self, positions: Ints, keys: Ints, seq_kv: int) -> Bools:
        """Visibility of pairs, element by element; `positions` and `keys` are broadcast against each other."""
        ...

    def spans(self, row_tile: Ints, tiles: Tiles) -> Spans:
        """Key intervals that contain all keys visible to the row tiles."""
        ...

    def look(self, row_tile: Ints, key_tile: Ints, tiles: Tiles) -> Ints:
        """A number for each tile: `NONE`, `ALL`, or one that only tiles with the same pairs share."""
        ...

    def looked_at(self, tiles: Tiles) -> float:
        """Upper bound of the tiles examined individually; slower ones count more than a tile of a whole block."""
        ...


@dataclass(frozen=True, slots=True)
class Window(_Diagonal):
    """Keys at most `left` before and `right` after the position; None is no limit.

    Longformer's sliding window (Beltagy et al., arXiv 2004.05150, section 3.1), with ``left = right = w / 2``.
    """

    left: int | None
    right: int | None

    def __post_init__(self) -> None:
        for name, reach in (("left", self.left), ("right", self.right)):
            if reach is not None and reach < 0:
                raise InputError(f"mask: window {name} is {reach}; allowed: 0 or more, or none for no limit")

    @property
    def tokens(self) -> int:
        """The larger reach plus one."""
        return max(self.left or 0, self.right or 0) + 1

    def seen(self, positions: Ints, keys: Ints, seq_kv: int) -> Bools:
        """Return whether the distance is within both reaches."""
        distance = keys - positions
        seen = np.ones(distance.shape, dtype=np.bool_)
        if self.left is not None:
            seen &= distance >= -self.left
        if self.right is not None:
            seen &= distance <= self.right
        return seen

    def spans(self, row_tile: Ints, tiles: Tiles) -> Spans:
        """One interval per row tile."""
        first, last = tiles.first_position(row_tile), tiles.last_position(row_tile)
        low = np.zeros_like(first) if self.left is None else first - self.left
        high = np.full_like(last, tiles.seq_kv) if self.right is None else last + self.right + 1
        return row_tile, low, high

    def look(self, row_tile: Ints, key_tile: Ints, tiles: Tiles) -> Ints:
        """Look of each tile: outside, inside, or cut by a border at a certain distance."""
        distance = key_tile * tiles.keys - tiles.first_position(row_tile)
        to_nearest, to_farthest = 1 - tiles.rows, tiles.keys - 1
        none = np.zeros(distance.shape, dtype=np.bool_)
        every = np.ones(distance.shape, dtype=np.bool_)
        if self.left is not None:
            none |= distance < -self.left - to_farthest
            every &= distance >= -self.left - to_nearest
        if self.right is not None:
            none |= distance > self.right - to_nearest
            every &= distance <= self.right - to_farthest
        return looks(none, every, distance + tiles.seq_kv)

    def __str__(self) -> str:
        if self.left == self.right and self.left is not None:
            return f"window {self.left + 1}"
        sides = ((self.left, "left"), (self.right, "right"))
        return " ".join(["window", *(f"{reach} {side}" for reach, side in sides if reach is not None)])


@dataclass(frozen=True, slots=True)
class Dilated(_Diagonal):
    """`window` keys to each side, the position's own included, `step` apart.

    Longformer's dilated sliding window (Beltagy et al., arXiv 2004.05150, section 3.1, figure 2c).
    """

    window: int
    step: int

    def __post_init__(self) -> None:
        check_counts("dilated", window=self.window, step=self.step)

    @property
    def reach(self) -> int:
        """Distance of the farthest key."""
        return (self.window - 1) * self.step

    @property
    def tokens(self) -> int:
        """The reach plus one."""
        return self.reach + 1

    def seen(self, positions: Ints, keys: Ints, seq_kv: int) -> Bools:
        """Return whether the distance is a multiple of the step and within the reach."""
        distance = keys - positions
        return np.asarray((distance % self.step == 0) & (np.abs(distance) <= self.reach))

    def spans(self, row_tile: Ints, tiles: Tiles) -> Spans:
        """One interval per row tile, or one per step if the steps skip whole tiles."""
        if self.step <= tiles.rows + tiles.keys:
            return Window(self.reach, self.reach).spans(row_tile, tiles)
        count = np.full(len(row_tile), 2 * self.window - 1)
        return _stepped(row_tile, np.full(len(row_tile), 1 - self.window), count, self.step, tiles)

    def look(self, row_tile: Ints, key_tile: Ints, tiles: Tiles) -> Ints:
        """Look of each tile: inside the enclosing window, the phase of the step; at its border, the window's look."""
        inside = Window(self.reach, self.reach).look(row_tile, key_tile, tiles)
        phase = Strided(self.step).look(row_tile, key_tile, tiles)
        return np.where(inside > ALL, inside + self.step, np.where(inside == ALL, phase, NONE))

    def __str__(self) -> str:
        return f"dilated {self.window} step {self.step}"


@dataclass(frozen=True, slots=True)
class Strided(_Diagonal):
    """Every key whose distance is a multiple of `stride`.

    The second head of Sparse Transformer's strided attention (Child et al., arXiv 1904.10509, section 4.3).
    """

    stride: int

    def __post_init__(self) -> None:
        check_counts("strided", stride=self.stride)

    @property
    def tokens(self) -> int:
        """Two keys, one stride apart."""
        return self.stride + 1

    def seen(self, positions: Ints, keys: Ints, seq_kv: int) -> Bools:
        """Return whether the distance is a multiple of the stride."""
        return np.asarray((keys - positions) % self.stride == 0)

    def spans(self, row_tile: Ints, tiles: Tiles) -> Spans:
        """All keys, or one interval for every multiple of the stride if these skip whole tiles."""
        first, last = tiles.first_position(row_tile), tiles.last_position(row_tile)
        if self.stride <= tiles.rows + tiles.keys:
            return row_tile, np.zeros_like(first), np.full_like(first, tiles.seq_kv)
        begin = -(last // self.stride)
        count = (tiles.seq_kv - 1 - first) // self.stride - begin + 1
        return _stepped(row_tile, begin, count, self.stride, tiles)

    def look(self, row_tile: Ints, key_tile: Ints, tiles: Tiles) -> Ints:
        """Look of each tile, by the phase of the stride."""
        phase = (key_tile * tiles.keys - tiles.first_position(row_tile)) % self.stride
        return np.full_like(phase, ALL) if self.stride == 1 else phase + ALL + 1

    def __str__(self) -> str:
        return f"strided {self.stride}"


@dataclass(frozen=True, slots=True)
class Global:
    """Tokens that see every key and that every query sees.

    Longformer's global attention (Beltagy et al., arXiv 2004.05150, section 3.1, figure 2d).

    Parameters
    ----------
    ranges : tuple of (int, int)
        Half-open ranges of tokens; sorted, and merged if they meet.
    """

    ranges: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        joined: list[tuple[int, int]] = []
        for start, stop in sorted(self.ranges):
            if start < 0 or stop <= start:
                raise InputError(f"mask: global tokens are {start} to {stop - 1}; allowed: ranges from 0 on, not empty")
            if joined and start <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
            else:
                joined.append((start, stop))
        if not joined:
            raise InputError("mask: global needs tokens; write global 16, or global at 0 5 100-103")
        object.__setattr__(self, "ranges", tuple(joined))

    @classmethod
    def first(cls, tokens: int) -> Global:
        """The first `tokens` tokens."""
        check_counts("global", tokens=tokens)
        return cls(((0, tokens),))

    def _place(self, token: Ints) -> Ints:
        """Number of range starts and stops at or before each of `token`: odd inside a range."""
        return np.searchsorted(np.array(self.ranges).reshape(-1), token, side="right")

    def _within(self, start: Ints, stop: Ints) -> Ints:
        """Number of global tokens in each interval."""
        bounds = np.array([start, stop])
        place = self._place(bounds)
        # Stops less starts of the ranges that have begun; the bound is the stop of a range that has not ended.
        begun = np.append(0, np.cumsum(np.array(self.ranges) * (-1, 1)))
        low, high = begun[place] + (place & 1) * bounds
        return np.asarray(high - low)

    @property
    def tokens(self) -> int:
        """Tokens up to the last global one."""
        return self.ranges[-1][1]

    def seen(self, positions: Ints, keys: Ints, seq_kv: int) -> Bools:
        """Return whether the position or the key is a global token."""
        rows, columns = (self._place(token) % 2 == 1 for token in (positions, keys))
        return np.asarray(rows | columns)

    def spans(self, row_tile: Ints, tiles: Tiles) -> Spans:
        """The global tokens for all row tiles; every key for row tiles that hold a global token."""
        count = len(row_tile)
        holds = row_tile[self._within(tiles.first_position(row_tile), tiles.last_position(row_tile) + 1) > 0]
        pieces = [(row_tile, np.full(count, start), np.full(count, stop)) for start, stop in self.ranges]
        pieces.append((holds, np.zeros_like(holds), np.full_like(holds, tiles.seq_kv)))
        row, low, high = (np.concatenate(column) for column in zip(*pieces, strict=True))
        return row, low, high

    def look(self, row_tile: Ints, key_tile: Ints, tiles: Tiles) -> Ints:
        """Look of each tile, by the numbers of row tile and key tile if they hold both global and other tokens."""
        size = np.array([[tiles.rows], [tiles.keys]])
        start = np.array([tiles.first_position(row_tile), key_tile * tiles.keys])
        tokens = self._within(start, start + size)
        by_row, by_key = np.where(tokens > 0, np.array([row_tile, key_tile]) + 1, 0)
        number = by_row * (tiles.key_tiles + 1) + by_key
        return looks(number == 0, (tokens == size).any(axis=0), number)

    def looked_at(self, tiles: Tiles) -> float:
        """Tiles in columns and rows that hold global tokens."""
        cut = [(min(stop, tiles.seq_kv) - start) for start, stop in self.ranges if start < tiles.seq_kv]
        columns, rows = (sum(size / each + 1 for size in cut) for each in (tiles.keys, tiles.rows))
        return columns * tiles.row_tiles + min(rows, tiles.row_tiles) * tiles.key_tiles

    def __str__(self) -> str:
        if len(self.ranges) == 1 and self.ranges[0][0] == 0:
            return f"global {self.ranges[0][1]}"
        shown = (f"{start}" if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in self.ranges)
        return f"global at {' '.join(shown)}"


DIAGONAL = (Window, Dilated, Strided)
"""Parts that depend on the distance ``key - position`` only."""


def check_counts(pattern: str, **counts: int) -> None:
    """Refuse a pattern with a number below 1."""
    for name, value in counts.items():
        if value < 1:
            raise InputError(f"mask: {pattern} {name} is {value}; allowed: 1 or more")


def looks(none: Bools, every: Bools, number: Ints) -> Ints:
    """`NONE` and `ALL` where these hold; elsewhere the caller's number (0 or more), offset past both."""
    return np.where(none, NONE, np.where(every, ALL, number + ALL + 1))


def _stepped(row_tile: Ints, begin: Ints, count: Ints, step: int, tiles: Tiles) -> Spans:
    """Interval of a row tile's own positions, shifted by ``begin, begin + 1, ...`` steps, `count` times."""
    row, turn = expand(count)
    offset = (begin[row] + turn) * step
    first, last = tiles.first_position(row_tile), tiles.last_position(row_tile)
    return row_tile[row], first[row] + offset, last[row] + offset + 1


def expand(count: Ints) -> tuple[Ints, Ints]:
    """Pairs ``(i, 0), (i, 1), ...`` for each entry ``i``, `count[i]` of them (none if it is negative)."""
    count = np.maximum(count, 0)
    entry = np.repeat(np.arange(len(count)), count)
    begin = np.cumsum(count) - count
    return entry, np.arange(len(entry)) - begin[entry]
