"""How many tiles of each kind a mask has, and how many pairs: in time that grows with N and not with N x N.

Tiles of a band, a window, a dilation or a stride depend on their distance from the diagonal only. Those of one
diagonal are all alike, so one of each is examined and sums over diagonals give every row and column. Only tiles that
other parts touch, and the shorter ones at the ends, are looked at one by one and take the place of what the diagonals
say of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from attnsim.models.errors import InputError
from attnsim.models.mask import Mask
from attnsim.models.patterns import Bools, Dilated, Ints, Part, Spans, Strided, Tiles, Window
from attnsim.models.tile_patterns import EMPTY, FULL, BitMasks, TilePatterns, in_chunks

ROWS, KEYS = 64, 64
"""Tile on which pairs are counted: one of the kernel's, so that the count is made once."""


@dataclass(frozen=True, eq=False, slots=True)
class TileCounts:
    """What the row tiles of a head visit.

    Parameters
    ----------
    tiles : Tiles
    full, partial : ndarray, one entry a row tile
        Key tiles seen whole by all rows, and the others.
    last_key_tile : ndarray of bool
        Whether the visits include the last key tile, where that is shorter.
    fresh : int
        Visits to key tiles that the row tile before does not visit: reads that have no neighbour to share with.
    patterns : int
        Different bit masks among the partial tiles.
    pairs : int
        Visible (query, key) pairs.
    touched_keys : int
        Keys in tiles that any row tile visits.
    """

    tiles: Tiles
    full: Ints
    partial: Ints
    last_key_tile: Bools
    fresh: int
    patterns: int
    pairs: int
    touched_keys: int

    @property
    def visits(self) -> Ints:
        """Key tiles visited by each row tile."""
        return self.full + self.partial


@lru_cache(maxsize=64)
def tile_counts(mask: Mask, seq_q: int, seq_kv: int, rows: int, keys: int) -> TileCounts:
    """Count the tiles of a mask.

    Raises
    ------
    InputError
        When the rows of the tile are no multiple of its keys.
    """
    if rows % keys:
        raise InputError(f"tiles of {rows} x {keys} cannot be counted; the rows must be a multiple of the keys")
    tiles = Tiles(rows, keys, seq_q, seq_kv)
    return _Count(mask, tiles).result()


def _is_diagonal(part: Part) -> bool:
    return isinstance(part, (Window, Dilated, Strided))


class _Diagonals:
    """The whole tiles of the parts that depend on the distance, by diagonal ``key_tile - row_tile * (rows / keys)``.

    Diagonal ``d`` is at index ``d + base``; tiles outside the square of whole tiles have none.
    """

    def __init__(self, mask: Mask, tiles: Tiles, bit_masks: BitMasks) -> None:
        self.row_tiles, self.key_tiles = tiles.seq_q // tiles.rows, tiles.seq_kv // tiles.keys
        self.step = tiles.rows // tiles.keys
        self.base = max(0, self.row_tiles - 1) * self.step
        size = self.base + self.key_tiles if self.row_tiles and self.key_tiles else 0
        number = np.arange(size) - self.base
        row_tile = np.maximum(0, -(number // self.step))
        parts = tuple(part for part in mask.parts if _is_diagonal(part))
        if mask.parts and not parts:
            self.pattern = np.full(size, EMPTY, dtype=np.int64)
        else:
            alone = Mask(mask.left, mask.right, parts)
            self.pattern = TilePatterns(alone, tiles, bit_masks).of(row_tile, number + row_tile * self.step)
        first = np.maximum(0, -(number // self.step))
        last = np.minimum(self.row_tiles - 1, (self.key_tiles - 1 - number) // self.step)
        self.length = np.maximum(0, last - first + 1)

    def of(self, row_tile: Ints, key_tile: Ints) -> Ints:
        """Patterns of tiles; `EMPTY` outside the square."""
        inside = (row_tile < self.row_tiles) & (key_tile < self.key_tiles)
        index = np.where(inside, key_tile - row_tile * self.step + self.base, -1)
        return np.concatenate([self.pattern, [EMPTY]])[index]

    def by_row(self, chosen: Bools, row_tiles: int) -> Ints:
        """How many of the tiles of each row lie on chosen diagonals."""
        out = np.zeros(row_tiles, dtype=np.int64)
        begin = self.base - np.arange(self.row_tiles) * self.step
        sums = np.concatenate([[0], np.cumsum(chosen)])
        if len(chosen):
            out[: self.row_tiles] = sums[begin + self.key_tiles] - sums[begin]
        return out

    def by_key(self, chosen: Bools, key_tiles: int) -> Ints:
        """How many of the tiles of each column lie on chosen diagonals."""
        out = np.zeros(key_tiles, dtype=np.int64)
        padded = np.pad(chosen.astype(np.int64), (self.step, -len(chosen) % self.step))
        sums = padded.reshape(-1, self.step).cumsum(axis=0).reshape(-1)
        end = np.arange(self.key_tiles) + self.base + self.step
        if len(chosen):
            out[: self.key_tiles] = sums[end] - sums[end - self.row_tiles * self.step]
        return out

    def fresh(self) -> int:
        """Visits of all rows but the first to key tiles that the row before does not visit."""
        visited = self.pattern != EMPTY
        anew = visited & ~np.concatenate([visited[self.step :], np.zeros(min(self.step, len(visited)), np.bool_)])
        below_first = self.length - (np.arange(len(visited)) >= self.base)
        return int(below_first[anew].sum())


class _Count:
    """The counts of one mask, the diagonals' corrected tile by tile."""

    def __init__(self, mask: Mask, tiles: Tiles) -> None:
        self.mask, self.tiles = mask, tiles
        self.bit_masks = BitMasks(tiles)
        self.patterns = TilePatterns(mask, tiles, self.bit_masks)
        self.diagonals = _Diagonals(mask, tiles, self.bit_masks)
        pattern = self.diagonals.pattern
        self.full = self.diagonals.by_row(pattern == FULL, tiles.row_tiles)
        self.partial = self.diagonals.by_row(pattern >= 0, tiles.row_tiles)
        self.touches = self.diagonals.by_key(pattern != EMPTY, tiles.key_tiles)
        self.last_key_tile = np.zeros(tiles.row_tiles, dtype=np.bool_)
        self.fresh = self.diagonals.fresh()
        self.uses = np.zeros(0, dtype=np.int64)
        partial = pattern >= 0
        self._use(pattern[partial], self.diagonals.length[partial])
        self._correct()

    def _use(self, number: Ints, times: Ints) -> None:
        more = np.bincount(number, times, minlength=len(self.bit_masks)).astype(np.int64)
        self.uses = more + np.pad(self.uses, (0, len(more) - len(self.uses)))

    def _special(self, row_tile: Ints) -> list[Spans]:
        """Spans of the parts that are not diagonal, and the shorter tiles at the ends."""
        tiles = self.tiles
        spans = [part.spans(row_tile, tiles) for part in self.mask.parts if not _is_diagonal(part)]
        whole_keys, short = tiles.seq_kv // tiles.keys * tiles.keys, row_tile[row_tile >= tiles.seq_q // tiles.rows]
        spans.append((row_tile, np.full_like(row_tile, whole_keys), np.full_like(row_tile, tiles.seq_kv)))
        spans.append((short, np.zeros_like(short), np.full_like(short, tiles.seq_kv)))
        return spans

    def _correct(self) -> None:
        """Put what each special tile is in the place of what its diagonal says."""
        tiles, before = self.tiles, (np.zeros(0, np.int64), np.zeros(0, np.bool_))
        for row_tiles, row_tile, key_tile in in_chunks(tiles, Window(self.mask.left, self.mask.right), self._special):
            true, said = self.patterns.of(row_tile, key_tile), self.diagonals.of(row_tile, key_tile)
            own = slice(row_tiles.start, row_tiles.stop)
            for pattern, sign in ((true, 1), (said, -1)):
                row, key = row_tile - row_tiles.start, key_tile
                self.full[own] += sign * np.bincount(row[pattern == FULL], minlength=len(row_tiles))
                self.partial[own] += sign * np.bincount(row[pattern >= 0], minlength=len(row_tiles))
                self.touches += sign * np.bincount(key[pattern != EMPTY], minlength=tiles.key_tiles)
                self._use(pattern[pattern >= 0], np.full(int((pattern >= 0).sum()), sign))
            number, visited = row_tile * tiles.key_tiles + (tiles.key_tiles - 1 - key_tile), true != EMPTY
            self.last_key_tile[row_tile[visited & (key_tile == tiles.key_tiles - 1)]] = tiles.seq_kv % tiles.keys > 0
            known = np.concatenate([before[0], number]), np.concatenate([before[1], visited])
            self._correct_fresh(row_tiles, known)
            last = row_tile == row_tiles.stop - 1
            before = number[last], visited[last]

    def _correct_fresh(self, row_tiles: range, known: tuple[Ints, Bools]) -> None:
        """The same for visits that the row tile before does not make: of known tiles and of those below them."""
        width = self.tiles.key_tiles
        below = np.sort(np.concatenate([known[0], known[0] + width]), kind="stable")  # two ascending runs: a merge
        below = below[np.concatenate([[True], below[1:] != below[:-1]])[: len(below)]]
        below = below[(below >= max(1, row_tiles.start) * width) & (below < row_tiles.stop * width)]
        for sign in (1, -1):
            here, above = (self._visited(number, known if sign > 0 else None) for number in (below, below - width))
            self.fresh += sign * int((here & ~above).sum())

    def _visited(self, number: Ints, known: tuple[Ints, Bools] | None) -> Bools:
        """Whether tiles are visited: what is known of them, else what their diagonals say."""
        row_tile, from_end = np.divmod(number, self.tiles.key_tiles)
        visited = self.diagonals.of(row_tile, self.tiles.key_tiles - 1 - from_end) != EMPTY
        if known is not None and len(known[0]):
            place = np.minimum(np.searchsorted(known[0], number), len(known[0]) - 1)
            visited = np.where(known[0][place] == number, known[1][place], visited)
        return np.asarray(visited, dtype=np.bool_)

    def result(self) -> TileCounts:
        """The counts, and the totals that follow from them."""
        tiles = self.tiles
        short_rows, short_keys = -tiles.seq_q % tiles.rows, -tiles.seq_kv % tiles.keys
        pairs = int(self.full.sum()) * tiles.rows * tiles.keys - int(self.full[-1]) * short_rows * tiles.keys
        pairs += int(self.uses @ self.bit_masks.pairs()) if len(self.bit_masks) else 0
        touched = self.touches > 0
        return TileCounts(
            tiles,
            self.full,
            self.partial,
            self.last_key_tile,
            self.fresh + int(self.full[0] + self.partial[0]),
            int((self.uses > 0).sum()),
            pairs,
            int(touched.sum()) * tiles.keys - int(touched[-1]) * short_keys,
        )
