"""Counts of a mask's tiles by kind, and of its pairs, in time that grows with N and not with N x N.

A tile of a band, a window, a dilation or a stride depends only on its distance from the diagonal. All tiles at one
distance are alike: one of them is examined, and sums over the diagonals count every row and column of tiles. Two kinds
of tiles are then examined individually and correct those sums: tiles that other parts touch (global tokens, random
blocks), and the shorter tiles at the ends of the sequences.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from attnsim.arrays import Bools, Ints
from attnsim.bounds import check_cost
from attnsim.errors import InputError
from attnsim.models.mask.patterns import DIAGONAL, Part, Spans, Tiles, Window
from attnsim.models.mask.tile_looks import EMPTY, FULL, BitMasks, TilePatterns, in_chunks

ROWS, KEYS = 64, 64
"""Tile size for counting pairs: the sparse kernel uses it too, so that its count is already known."""

LOOKED_AT_S = 1e-6
"""Seconds spent on each tile of whole blocks: some 0.25 us on each of about four sizes of tiles, measured on a core of
2025.
"""


@dataclass(frozen=True, eq=False, slots=True)
class TileCounts:
    """Numbers of key tiles that the row tiles of a head visit.

    Parameters
    ----------
    full, partial : ndarray, one entry a row tile
        Key tiles whose pairs are all visible, and key tiles that are partly visible.
    shared : ndarray, one entry a row tile
        Key tiles that both this row tile and the one before it visit.
    last_key_tile : ndarray of bool
        Whether the row tile visits the last key tile, and that one is shorter than the others.
    patterns : int
        Distinct bit masks among the partial tiles.
    pairs : int
        Visible (query, key) pairs.
    touched_keys : int
        Keys in tiles that any row tile visits.
    key_visits, key_partial : ndarray, one entry a key tile
        Row tiles that visit each key tile, and those that see it partly.
    """

    tiles: Tiles
    full: Ints
    partial: Ints
    shared: Ints
    last_key_tile: Bools
    patterns: int
    pairs: int
    touched_keys: int
    key_visits: Ints
    key_partial: Ints

    @property
    def visits(self) -> Ints:
        """Key tiles visited by each row tile."""
        return self.full + self.partial

    @property
    def fresh(self) -> int:
        """Visits to key tiles that the row tile before does not visit: no neighbouring block reads the same keys."""
        return int(self.visits.sum() - self.shared.sum())

    @property
    def visits_of_pairs(self) -> Ints:
        """Key tiles visited by each pair of row tiles, as if one tile twice as tall; common ones count once."""
        found, second = self.visits[0::2].copy(), (self.visits - self.shared)[1::2]
        found[: len(second)] += second
        return found


@lru_cache(maxsize=64)
def tile_counts(band: Window, parts: tuple[Part, ...], seq_q: int, seq_kv: int, rows: int, keys: int) -> TileCounts:
    """Count the tiles of a mask: a band, and within it the union of some parts (none is all of the band).

    Raises
    ------
    InputError
        If the rows of the tile are not a multiple of its keys.
    """
    if rows % keys:
        raise InputError(f"tiles of {rows} x {keys} cannot be counted; the rows must be a multiple of the keys")
    tiles = Tiles(rows, keys, seq_q, seq_kv)
    check_counting([parts], tiles)
    return _Count(band, parts, tiles).result()


def check_counting(masks: Iterable[tuple[Part, ...]], tiles: Tiles) -> None:
    """Refuse masks with too many tiles to be examined individually, before memory is allocated."""
    time_s = LOOKED_AT_S * sum(part.looked_at(tiles) for parts in masks for part in parts)
    check_cost(f"counting the tiles of a mask at {tiles.seq_q} x {tiles.seq_kv}", time_s=time_s)


class _Diagonals:
    """Patterns of tiles under distance-dependent parts, by diagonal ``key_tile - row_tile * (rows / keys)``.

    Diagonal ``d`` is at index ``d + base``. Tiles at the ends of the sequences are assumed as large as the others.
    """

    def __init__(self, band: Window, parts: tuple[Part, ...], tiles: Tiles, bit_masks: BitMasks) -> None:
        self.tiles, self.step = tiles, tiles.rows // tiles.keys
        self.base = (tiles.row_tiles - 1) * self.step
        number = np.arange(self.base + tiles.key_tiles) - self.base
        first = np.maximum(0, -(number // self.step))
        last = np.minimum(tiles.row_tiles - 1, (tiles.key_tiles - 1 - number) // self.step)
        self.length = np.maximum(0, last - first + 1)
        diagonal = tuple(part for part in parts if isinstance(part, DIAGONAL))
        if parts and not diagonal:
            self.pattern = np.full(len(number), EMPTY, dtype=np.int64)
        else:
            # In a sequence one tile longer, none of these tiles is the last one, which may be shorter.
            longer = Tiles(tiles.rows, tiles.keys, tiles.seq_q + tiles.rows, tiles.seq_kv + tiles.rows)
            alone = TilePatterns(band, diagonal, longer, bit_masks)
            self.pattern = alone.of(first, number + first * self.step)
        outside = np.zeros(self.step, dtype=np.bool_)
        self._visited = np.concatenate([outside, self.pattern != EMPTY, outside])

    def of(self, row_tile: Ints, key_tile: Ints) -> Ints:
        """Patterns of tiles."""
        return np.asarray(self.pattern[key_tile - row_tile * self.step + self.base])

    def visited(self, row_tile: Ints, key_tile: Ints) -> Bools:
        """Return whether tiles are visited; row tiles -1 and `row_tiles` are allowed, and visit nothing."""
        return np.asarray(self._visited[key_tile - row_tile * self.step + (self.base + self.step)])

    def by_row(self, chosen: Bools) -> Ints:
        """Number of tiles of each row that lie on chosen diagonals."""
        sums = np.concatenate([[0], np.cumsum(chosen)])
        begin, end = sums[self.base :: -self.step], sums[self.base + self.tiles.key_tiles :: -self.step]
        return np.asarray(end[: len(begin)] - begin)

    def shared(self) -> Ints:
        """Key tiles that each row tile and the one before it both visit, as if the first also had a predecessor."""
        return self.by_row(self._visited[self.step : -self.step] & self._visited[2 * self.step :])

    def by_key(self, chosen: Bools) -> Ints:
        """Number of tiles of each key tile that lie on chosen diagonals."""
        size = self.step + self.base + self.tiles.key_tiles
        padded = np.zeros(-(-size // self.step) * self.step, dtype=np.int64)
        padded[self.step : size] = chosen
        sums = padded.reshape(-1, self.step).cumsum(axis=0).reshape(-1)
        return np.asarray(sums[self.base + self.step : size] - sums[: self.tiles.key_tiles])

    def uses(self) -> Ints:
        """Number of tiles with each bit mask."""
        partial = self.pattern >= 0
        return np.bincount(self.pattern[partial], self.length[partial]).astype(np.int64)


class _Count:
    """Counts of one mask: sums over diagonals, then corrected tile by tile."""

    def __init__(self, band: Window, parts: tuple[Part, ...], tiles: Tiles) -> None:
        self.band, self.tiles = band, tiles
        self.others = [part for part in parts if not isinstance(part, DIAGONAL)]
        self.short_rows, self.short_keys = -tiles.seq_q % tiles.rows, -tiles.seq_kv % tiles.keys
        self.bit_masks = BitMasks(tiles)
        self.patterns = TilePatterns(band, parts, tiles, self.bit_masks)
        self.diagonals = _Diagonals(band, parts, tiles, self.bit_masks)
        self.full = self.diagonals.by_row(self.diagonals.pattern == FULL)
        self.partial = self.diagonals.by_row(self.diagonals.pattern >= 0)
        self.shared = np.append(self.diagonals.shared(), 0)  # one entry for the row tile after the last
        self.touches = self.diagonals.by_key(self.diagonals.pattern != EMPTY)
        self.key_partial = self.diagonals.by_key(self.diagonals.pattern >= 0)
        self.uses = self.diagonals.uses()
        self.last_key_tile = np.zeros(tiles.row_tiles, dtype=np.bool_)
        self.last_gains = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        if self.others or self.short_rows or self.short_keys:
            self._correct()

    def _special(self, row_tile: Ints) -> list[Spans]:
        """Key intervals of tiles to be examined: of parts that are not diagonal, and of shorter tiles at the ends."""
        tiles = self.tiles
        spans = [part.spans(row_tile, tiles) for part in self.others]
        ends = np.full_like(row_tile, tiles.seq_kv)
        if self.short_keys:
            spans.append((row_tile, ends // tiles.keys * tiles.keys, ends))
        if self.short_rows:
            last = row_tile == tiles.row_tiles - 1
            spans.append((row_tile[last], np.zeros_like(row_tile[last]), ends[last]))
        return spans

    def _correct(self) -> None:
        """Replace the diagonals' counts of each special tile by its actual counts."""
        last_key_tile = self.tiles.key_tiles - 1
        looked_at = sum(part.looked_at(self.tiles) for part in self.others)
        for _, row_tile, key_tile in in_chunks(self.tiles, self.band, self._special, looked_at):
            true, expected = self.patterns.of(row_tile, key_tile), self.diagonals.of(row_tile, key_tile)
            if self.short_keys:
                self.last_key_tile[row_tile[(key_tile == last_key_tile) & (true != EMPTY)]] = True
            wrong = np.flatnonzero(true != expected)
            self._put(row_tile[wrong], key_tile[wrong], true[wrong], expected[wrong])

    def _put(self, row_tile: Ints, key_tile: Ints, true: Ints, expected: Ints) -> None:
        """Correct the counts of tiles from their diagonals' patterns (`expected`) to their own (`true`)."""
        np.add.at(self.full, row_tile, _gain(true == FULL, expected == FULL))
        np.add.at(self.partial, row_tile, _gain(true >= 0, expected >= 0))
        uses = _gain(*(np.bincount(one[one >= 0], minlength=len(self.bit_masks)) for one in (true, expected)))
        uses[: len(self.uses)] += self.uses
        self.uses = uses
        visits = _gain(true != EMPTY, expected != EMPTY)
        np.add.at(self.touches, key_tile, visits)
        np.add.at(self.key_partial, key_tile, _gain(true >= 0, expected >= 0))
        self._put_shared(row_tile, key_tile, visits)

    def _put_shared(self, row_tile: Ints, key_tile: Ints, gain: Ints) -> None:
        """Correct the counts of key tiles that two neighbouring row tiles both visit.

        Let `v` be 1 if the diagonals say that a tile is visited. Let `g` be its `gain`: 1 if it is visited although
        they say it is not, -1 in the opposite case. A tile and the one above it (`v'`, `g'`) are shared if ``(v + g)
        (v' + g') = v v' + g v' + v g' + g g'`` is 1. ``v v'`` has been counted; the first loop adds ``g v'`` for the
        tile above and ``v g'`` for the tile below, the last lines add ``g g'``.
        """
        for row, neighbour in ((row_tile, row_tile - 1), (row_tile + 1, row_tile + 1)):
            np.add.at(self.shared, row, gain * self.diagonals.visited(neighbour, key_tile))
        width = self.tiles.key_tiles
        number = row_tile * width + (width - 1 - key_tile)
        known, gains = (np.concatenate(both) for both in zip(self.last_gains, (number, gain), strict=True))
        above = np.searchsorted(known, number - width)
        np.add.at(self.shared, row_tile, gain * np.where(known[above] == number - width, gains[above], 0))
        last = row_tile == row_tile[-1:]
        self.last_gains = number[last], gain[last]

    def result(self) -> TileCounts:
        """The counts, and the totals derived from them."""
        tiles = self.tiles
        pairs = int(self.full.sum()) * tiles.rows * tiles.keys - int(self.full[-1]) * self.short_rows * tiles.keys
        pairs += int(self.uses @ self.bit_masks.pairs())
        touched = self.touches > 0
        self.shared[0] = 0
        return TileCounts(
            tiles,
            self.full,
            self.partial,
            self.shared[:-1],
            self.last_key_tile,
            int((self.uses > 0).sum()),
            pairs,
            int(touched.sum()) * tiles.keys - int(touched[-1]) * self.short_keys,
            self.touches,
            self.key_partial,
        )


def _gain(true: Ints | Bools, expected: Ints | Bools) -> Ints:
    return np.asarray(np.subtract(true, expected, dtype=np.int64))
