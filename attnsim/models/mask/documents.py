"""Parts of training masks: consecutive documents, and a prefix that all queries see.

Neighbourhood attention: tokens of a line, image or video see a window around them, shifted inside at the edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from attnsim.arrays import Bools, Ints
from attnsim.errors import InputError
from attnsim.models.mask.patterns import Spans, Tiles, check_counts, looks


@dataclass(frozen=True, slots=True)
class Documents:
    """Consecutive documents of these lengths; a query sees the keys of its own document.

    FlexAttention's document mask and FlashAttention's variable lengths (He et al., arXiv 2412.05496, section 4).
    """

    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.lengths:
            raise InputError("mask: document needs lengths; write document 1024 3000 4168")
        for length in self.lengths:
            check_counts("document", length=length)

    def _bounds(self, seq_kv: int) -> Ints:
        """First key of each document, and the end of the last one.

        Raises
        ------
        InputError
            If the documents are not as long as the sequence.
        """
        bounds = np.cumsum((0, *self.lengths))
        if int(bounds[-1]) != seq_kv:
            raise InputError(
                f"mask: documents of {' + '.join(map(str, self.lengths))} = {int(bounds[-1])} keys, the sequence has "
                f"{seq_kv}; make them add up to it"
            )
        return bounds

    def _of(self, token: Ints, bounds: Ints) -> Ints:
        """Number of the document of each token."""
        last = len(self.lengths) - 1
        return np.asarray(np.clip(np.searchsorted(bounds, token, side="right") - 1, 0, last))

    @property
    def tokens(self) -> int:
        """Tokens of all documents."""
        return sum(self.lengths)

    def seen(self, positions: Ints, keys: Ints, seq_kv: int) -> Bools:
        """Return whether position and key are in the same document."""
        bounds = self._bounds(seq_kv)
        return np.asarray(self._of(positions, bounds) == self._of(keys, bounds))

    def spans(self, row_tile: Ints, tiles: Tiles) -> Spans:
        """The documents of a row tile's queries."""
        bounds = self._bounds(tiles.seq_kv)
        first, last = tiles.first_position(row_tile), tiles.last_position(row_tile)
        return row_tile, bounds[self._of(first, bounds)], bounds[self._of(last, bounds) + 1]

    def look(self, row_tile: Ints, key_tile: Ints, tiles: Tiles) -> Ints:
        """Look of each tile, by the documents at both ends of its rows and keys."""
        bounds = self._bounds(tiles.seq_kv)
        row = [self._of(end(row_tile), bounds) for end in (tiles.first_position, tiles.last_position)]
        last_key = np.minimum((key_tile + 1) * tiles.keys, tiles.seq_kv) - 1
        key = [self._of(token, bounds) for token in (key_tile * tiles.keys, last_key)]
        none = (key[1] < row[0]) | (key[0] > row[1])
        every = (row[0] == row[1]) & (key[0] == key[1]) & (row[0] == key[0])
        return looks(none, every, row_tile * tiles.key_tiles + key_tile)

    def looked_at(self, tiles: Tiles) -> float:
        """All tiles that a document touches."""
        return sum((one / tiles.rows + 1) * (one / tiles.keys + 1) for one in self.lengths)

    def __str__(self) -> str:
        return f"document {' '.join(map(str, self.lengths))}"


@dataclass(frozen=True, slots=True)
class Prefix:
    """Keys up to the position, and for every query the first `tokens` keys (a prefix language model).

    Raffel et al., arXiv 1910.10683, section 3.2.1, figure 4; FlexAttention's prefix mask.
    """

    tokens: int

    def __post_init__(self) -> None:
        check_counts("prefix", tokens=self.tokens)

    def seen(self, positions: Ints, keys: Ints, seq_kv: int) -> Bools:
        """Return whether the key is in the prefix or not after the position."""
        return np.asarray((keys < self.tokens) | (keys <= positions))

    def spans(self, row_tile: Ints, tiles: Tiles) -> Spans:
        """From the first key to the row tile's last position, or to the end of the prefix."""
        end = np.maximum(tiles.last_position(row_tile) + 1, min(self.tokens, tiles.seq_kv))
        return row_tile, np.zeros_like(end), end

    def look(self, row_tile: Ints, key_tile: Ints, tiles: Tiles) -> Ints:
        """Look of each tile, by its distance from the diagonal and whether the prefix ends in it."""
        first, last = key_tile * tiles.keys, (key_tile + 1) * tiles.keys - 1
        position = tiles.first_position(row_tile)
        none = (first >= self.tokens) & (first > position + tiles.rows - 1)
        every = (last < self.tokens) | (last <= position)
        ends = (first < self.tokens) & (self.tokens <= last)
        return looks(none, every, 2 * (first - position + tiles.seq_kv) + ends)

    def looked_at(self, tiles: Tiles) -> float:
        """All tiles in the prefix, and half of the others."""
        columns = min(self.tokens / tiles.keys + 1, tiles.key_tiles)
        return tiles.row_tiles * (columns + tiles.key_tiles) / 2

    def __str__(self) -> str:
        return f"prefix {self.tokens}"


MOST_DIMENSIONS = 3

PAIRS = 40
"""Pairs of a tile that are examined in the time of one look at a whole block (4096 in 30 us, 0.25 us)."""


@dataclass(frozen=True, slots=True)
class Neighborhood:
    """Tokens in a row-major layout (last dimension fastest), each with a window of equal size.

    Hassani et al., arXiv 2504.16922 (generalized neighbourhood attention): in each dimension, the tokens of one
    `stride` share the window of their middle token; a window that would cross an edge is shifted inside.

    Parameters
    ----------
    layout : tuple of int
        Tokens along each of one to three dimensions.
    window : tuple of int
        Keys along each dimension.
    stride : tuple of int
        Tokens along each dimension that share a window; 1 gives each its own, the window's size gives blocks.
    """

    layout: tuple[int, ...]
    window: tuple[int, ...]
    stride: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.layout) <= MOST_DIMENSIONS or not len(self.layout) == len(self.window) == len(self.stride):
            raise InputError(f"mask: {self}; allowed: one to three dimensions, as many in layout, window and stride")
        for size, window, stride in zip(self.layout, self.window, self.stride, strict=True):
            check_counts("neighborhood", layout=size, window=window, stride=stride)
            if window > size or stride > window:
                raise InputError(
                    f"mask: {self} has a window of {window} and a stride of {stride} along {size} tokens; "
                    "allowed: a window up to the tokens, a stride up to the window"
                )

    def first_seen(self, dimension: int, place: Ints) -> Ints:
        """First key along a dimension that tokens at the given coordinate see."""
        size, window, stride = self.layout[dimension], self.window[dimension], self.stride[dimension]
        middle = np.minimum(place // stride * stride + stride // 2, size - 1)
        return np.asarray(np.clip(middle - window // 2, 0, size - window))

    def check(self, seq_kv: int) -> None:
        """Refuse a sequence whose length differs from the layout's."""
        if prod(self.layout) != seq_kv:
            raise InputError(
                f"mask: neighborhood {_text(self.layout)} has {prod(self.layout)} tokens, the sequence has {seq_kv}; "
                "make them equal"
            )

    @property
    def tokens(self) -> int:
        """Tokens of the layout."""
        return prod(self.layout)

    @property
    def keys_seen(self) -> int:
        """Keys that each token sees: windows are shifted at an edge, not cut."""
        return prod(self.window)

    def seen(self, positions: Ints, keys: Ints, seq_kv: int) -> Bools:
        """Return whether the key lies in the position's window along every dimension."""
        self.check(seq_kv)
        inside = np.ones(np.broadcast_shapes(positions.shape, keys.shape), dtype=np.bool_)
        for dimension in reversed(range(len(self.layout))):
            size = self.layout[dimension]
            start = self.first_seen(dimension, positions % size)
            key = keys % size
            inside &= (key >= start) & (key < start + self.window[dimension])
            positions, keys = positions // size, keys // size
        return np.asarray(inside)

    def _outer(self, positions: Ints) -> tuple[Ints, Ints]:
        """Half-open interval of keys that covers the windows of positions, by the window along the first dimension."""
        below = prod(self.layout[1:])
        start = self.first_seen(0, positions // below)
        return start * below, (start + self.window[0]) * below

    def spans(self, row_tile: Ints, tiles: Tiles) -> Spans:
        """One interval per row tile, by the windows along the first dimension."""
        self.check(tiles.seq_kv)
        return row_tile, self._outer(tiles.first_position(row_tile))[0], self._outer(tiles.last_position(row_tile))[1]

    def look(self, row_tile: Ints, key_tile: Ints, tiles: Tiles) -> Ints:
        """A distinct look for each tile, except for tiles outside the windows along the first dimension."""
        _, low, high = self.spans(row_tile, tiles)
        first = key_tile * tiles.keys
        none = (first >= high) | (first + tiles.keys <= low)
        return looks(none, np.zeros_like(none), row_tile * tiles.key_tiles + key_tile)

    def looked_at(self, tiles: Tiles) -> float:
        """All tiles within the windows along the first dimension, weighted by their pairs."""
        wide = self.window[0] * prod(self.layout[1:]) / tiles.keys + 2
        return tiles.row_tiles * wide * tiles.rows * tiles.keys / PAIRS

    def __str__(self) -> str:
        stride = "" if set(self.stride) == {1} else f" stride {_text(self.stride)}"
        return f"neighborhood {_text(self.layout)} window {_text(self.window)}{stride}"


def _text(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def sizes(text: str) -> tuple[int, ...]:
    """Parse ``30x48x80`` into numbers."""
    return tuple(map(int, text.split("x")))
