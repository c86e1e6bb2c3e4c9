"""Parts of training masks: consecutive documents, and a prefix that all queries see."""

from __future__ import annotations

from dataclasses import dataclass

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
