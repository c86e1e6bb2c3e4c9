"""Tiles that a mask may touch, and their patterns: one tile of each kind is examined element by element.

Each part of a mask gives the key intervals that a row tile may touch, and gives every tile in them a *look*: a number
that only tiles with the same visible pairs share. Tiles whose looks agree for every part are alike, so one of
them is examined. A window over a million tokens has a handful of kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from attnsim.arrays import Bools, Ints
from attnsim.models.mask.patterns import ALL, DIAGONAL, NONE, Part, Spans, Tiles, Window, expand

FULL, EMPTY = -1, -2
"""Pattern of a fully visible tile, and of an invisible one; other patterns are numbers of bit masks."""

ROW_TILES_AT_ONCE = 4096
"""Row tiles that are classified together, unless they have too many tiles."""

TILES_AT_ONCE = 1 << 21
"""Most tiles classified together, unless one row tile alone has more."""

PAIRS_AT_ONCE = 1 << 21
"""Most pairs examined together."""


class BitMasks:
    """Distinct bit masks of partly visible tiles, numbered in the order of their appearance."""

    def __init__(self, tiles: Tiles) -> None:
        self.tiles = tiles
        self._numbers: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def patterns(self, seen: Bools, whole: Ints) -> Ints:
        """Patterns of tiles by their visible pairs, ``[tiles, rows, keys]``; a fully visible tile has `whole`."""
        packed = np.packbits(seen.reshape(len(seen), -1), axis=1, bitorder="little")
        pairs = np.bitwise_count(packed).sum(axis=1, dtype=np.int64)
        out = np.where(pairs == whole, FULL, EMPTY)
        for place in np.flatnonzero((pairs > 0) & (pairs < whole)):
            out[place] = self._numbers.setdefault(packed[place].tobytes(), len(self._numbers))
        return out

    def _packed(self) -> NDArray[np.uint8]:
        """All bit masks, with bits in the order of their pairs."""
        size = -(-self.tiles.rows * self.tiles.keys // 8)
        return np.frombuffer(b"".join(self._numbers), dtype=np.uint8).reshape(len(self), size)

    def words(self) -> NDArray[np.uint32]:
        """All bit masks, shape ``[masks, rows, keys / 32]``: bit ``b`` of word ``c`` is key ``32 c + b``."""
        shape = len(self), self.tiles.rows, self.tiles.keys // 32
        return self._packed().view("<u4").astype(np.uint32).reshape(shape)

    def pairs(self) -> Ints:
        """Visible pairs of each bit mask."""
        return np.asarray(np.bitwise_count(self._packed()).sum(axis=1, dtype=np.int64))


class TilePatterns:
    """Patterns of a mask's tiles.

    Parameters
    ----------
    parts : tuple of Part
        Patterns within the band; none is all of it.
    bit_masks : BitMasks
        Numbering of the bit masks.
    """

    def __init__(self, band: Window, parts: tuple[Part, ...], tiles: Tiles, bit_masks: BitMasks) -> None:
        self.tiles, self.bit_masks = tiles, bit_masks
        self._parts = parts or (band,)
        self._limits = (band,) if parts and band != Window(None, None) else ()
        self._by_looks: dict[tuple[int, ...], int] = {}

    def of(self, row_tile: Ints, key_tile: Ints) -> Ints:
        """`FULL`, `EMPTY` or the number of the bit mask of each tile."""
        tiles = self.tiles
        looks = [part.look(row_tile, key_tile, tiles) for part in self._parts]
        every, none = looks[0] == ALL, looks[0] == NONE
        for look in looks[1:]:
            every |= look == ALL
            none &= look == NONE
        columns: list[Ints | Bools] = [np.where(every, ALL, look) for look in looks]
        for limit in self._limits:
            columns.insert(0, limit.look(row_tile, key_tile, tiles))
            every &= columns[0] == ALL
            none |= columns[0] == NONE
        if tiles.seq_q % tiles.rows:
            columns.append(row_tile == tiles.row_tiles - 1)
        if tiles.seq_kv % tiles.keys:
            columns.append(key_tile == tiles.key_tiles - 1)
            every &= ~columns[-1]
        out = np.where(none, EMPTY, FULL)
        place = np.flatnonzero(~(every | none))
        if len(place):
            out[place] = self._by_look([column[place] for column in columns], row_tile[place], key_tile[place])
        return out

    def _by_look(self, columns: Sequence[Ints | Bools], row_tile: Ints, key_tile: Ints) -> Ints:
        """Patterns of tiles by their looks; one tile of each new combination of looks is examined."""
        firsts, inverse = _distinct(columns)
        combinations = list(zip(*(column[firsts].tolist() for column in columns), strict=True))
        new = [place for place, looks in enumerate(combinations) if looks not in self._by_looks]
        step = max(1, PAIRS_AT_ONCE // (self.tiles.rows * self.tiles.keys))
        for begin in range(0, len(new), step):
            places = new[begin : begin + step]
            found = self._examined(row_tile[firsts[places]], key_tile[firsts[places]]).tolist()
            self._by_looks.update((combinations[place], number) for place, number in zip(places, found, strict=True))
        return np.array([self._by_looks[looks] for looks in combinations], dtype=np.int64)[inverse]

    def _examined(self, row_tile: Ints, key_tile: Ints) -> Ints:
        """Patterns of tiles, from every pair in them."""
        tiles = self.tiles
        seen = self._seen(row_tile, key_tile)
        in_rows = row_tile[:, None] * tiles.rows + np.arange(tiles.rows) < tiles.seq_q
        in_keys = key_tile[:, None] * tiles.keys + np.arange(tiles.keys) < tiles.seq_kv
        if not (in_rows.all() and in_keys.all()):
            seen &= in_rows[:, :, None] & in_keys[:, None, :]
        return self.bit_masks.patterns(seen, in_rows.sum(axis=1) * tiles.keys)

    def _seen(self, row_tile: Ints, key_tile: Ints) -> Bools:
        """Visible pairs of tiles, shape ``[tiles, rows, keys]``, as if the sequences did not end within them.

        Distance-dependent parts are evaluated once for each distance in a tile.
        """
        tiles = self.tiles
        position, key = tiles.first_position(row_tile)[:, None], key_tile[:, None] * tiles.keys
        distance, origin = key - position + np.arange(1 - tiles.rows, tiles.keys), np.zeros(1, dtype=np.int64)
        near, within = np.zeros(distance.shape, dtype=np.bool_), np.ones(distance.shape, dtype=np.bool_)
        for part in self._parts:
            if isinstance(part, DIAGONAL):
                near |= part.seen(origin, distance, tiles.seq_kv)
        for limit in self._limits:
            within &= limit.seen(origin, distance, tiles.seq_kv)
        # Row r of a tile is a window of its distances that begins one distance before the window of row r - 1.
        seen, within = sliding_window_view([near, within], tiles.keys, axis=-1)[:, :, ::-1]
        positions, keys = (position + np.arange(tiles.rows))[:, :, None], (key + np.arange(tiles.keys))[:, None, :]
        for part in self._parts:
            if not isinstance(part, DIAGONAL):
                seen = seen | part.seen(positions, keys, tiles.seq_kv)
        return np.asarray(seen & within)


def _distinct(columns: Sequence[Ints | Bools]) -> tuple[Ints, Ints]:
    """First index of each distinct row of the table with these columns, and the distinct row's number at each index."""
    key, span = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        values = column.astype(np.int64)
        width = int(values.max(initial=0)) + 1
        if span * width >= 1 << 62:
            key = np.unique(key, return_inverse=True)[1]
            values = np.unique(values, return_inverse=True)[1]
            span, width = (int(numbers.max(initial=0)) + 1 for numbers in (key, values))
        key, span = key * width + values, span * width
    _, firsts, inverse = np.unique(key, return_index=True, return_inverse=True)
    return firsts, inverse


SpansOf = Callable[[Ints], Sequence[Spans]]
"""Function that returns the key intervals that row tiles may touch; they may overlap."""


def in_chunks(
    tiles: Tiles, band: Window, spans_of: SpansOf, looked_at: float = 0.0
) -> Iterator[tuple[range, Ints, Ints]]:
    """Yield every tile that spans touch within a band, once, in chunks; the more tiles expected, the smaller.

    Yields
    ------
    row_tiles : range
        Row tiles of the chunk; chunks ascend and leave none out.
    row_tile, key_tile : ndarray
        Tiles of the chunk, by row tile and from the last key tile to the first.
    """
    step = max(1, min(ROW_TILES_AT_ONCE, int(TILES_AT_ONCE * tiles.row_tiles / max(1.0, looked_at))))
    for first in range(0, tiles.row_tiles, step):
        stop = min(first + step, tiles.row_tiles)
        yield from _chunk(tiles, band, spans_of, range(first, stop))


def _chunk(tiles: Tiles, band: Window, spans_of: SpansOf, row_tiles: range) -> Iterator[tuple[range, Ints, Ints]]:
    """Tiles of some row tiles, halved until they are few enough."""
    begin, size = _runs(tiles, band, spans_of, np.arange(row_tiles.start, row_tiles.stop, dtype=np.int64))
    if int(size.sum()) > TILES_AT_ONCE and len(row_tiles) > 1:
        half = len(row_tiles) // 2
        yield from _chunk(tiles, band, spans_of, row_tiles[:half])
        yield from _chunk(tiles, band, spans_of, row_tiles[half:])
        return
    entry, number = expand(size)
    row_tile, from_end = np.divmod(begin[entry] + number, tiles.key_tiles)
    yield row_tiles, row_tile, tiles.key_tiles - 1 - from_end


def _runs(tiles: Tiles, band: Window, spans_of: SpansOf, row_tile: Ints) -> tuple[Ints, Ints]:
    """Disjoint ascending runs (begin, size) of tile numbers ``row_tile * key_tiles + (key_tiles - 1 - key_tile)``."""
    _, low, high = band.spans(row_tile, tiles)
    row, start, stop = (np.concatenate(column) for column in zip(*spans_of(row_tile), strict=True))
    place = row - row_tile[0]
    start, stop = np.maximum(start, np.maximum(low, 0)[place]), np.minimum(stop, np.minimum(high, tiles.seq_kv)[place])
    some = stop > start
    row, start, stop = row[some], start[some], stop[some]
    past_row = (row + 1) * tiles.key_tiles
    begin, end = past_row - -(-stop // tiles.keys), past_row - start // tiles.keys
    if (begin[1:] < begin[:-1]).any():
        order = np.argsort(begin, kind="stable")
        begin, end = begin[order], end[order]
    # Runs that meet or overlap are merged.
    reach = np.maximum.accumulate(end)
    heads = np.flatnonzero(np.concatenate([[True], begin[1:] > reach[:-1]])[: len(begin)])
    return begin[heads], np.concatenate([reach[heads[1:] - 1], reach[-1:]]) - begin[heads]
