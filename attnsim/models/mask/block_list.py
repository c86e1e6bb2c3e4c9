"""List of tiles that a block-sparse kernel visits under a mask, made without building N x N."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from attnsim.arrays import Bools, Ints
from attnsim.errors import InputError
from attnsim.models.mask.mask import Mask
from attnsim.models.mask.patterns import Spans, Tiles
from attnsim.models.mask.tile_looks import EMPTY, FULL, BitMasks, TilePatterns, in_chunks

WORD = 32
"""Keys in a word of a bit mask."""

LARGEST_LIST = 1 << 26
"""Visits of the longest list that is written out: half a gigabyte."""


@dataclass(frozen=True, eq=False, slots=True)
class BlockList:
    """Key tiles that each row tile visits, from the last to the first, and bit masks of the partly visible ones.

    Parameters
    ----------
    tiles : Tiles
        Sizes of tile and head.
    row_start : ndarray of int32, shape [row_tiles + 1]
        First visit of each row tile.
    key_tile : ndarray of int32, shape [visits]
        Key tile of each visit, descending within a row tile.
    pattern : ndarray of int32, shape [visits]
        `FULL` (-1), or the number of the visit's bit mask.
    bits : ndarray of uint32, shape [patterns, rows, keys / 32]
        Distinct bit masks; bit ``b`` of word ``c`` is key ``32 c + b`` of the tile. Rows and keys beyond the end of
        the sequence are 0.
    """

    tiles: Tiles
    row_start: NDArray[np.int32]
    key_tile: NDArray[np.int32]
    pattern: NDArray[np.int32]
    bits: NDArray[np.uint32]

    @property
    def visits(self) -> int:
        """Tiles visited by all row tiles of a head."""
        return len(self.key_tile)

    def dense(self) -> Bools:
        """Unpack the list to a matrix ``[seq_q, seq_kv]``: for checks on short sequences."""
        tiles = self.tiles
        out = np.zeros((tiles.row_tiles, tiles.key_tiles, tiles.rows, tiles.keys), dtype=np.bool_)
        row_tile = np.repeat(np.arange(tiles.row_tiles), np.diff(self.row_start))
        packed = self.bits.view(np.uint8) if self.bits.size else np.zeros((1, tiles.rows, tiles.keys // 8), np.uint8)
        seen = np.unpackbits(packed, axis=-1, bitorder="little").astype(np.bool_)
        out[row_tile, self.key_tile] = np.where((self.pattern == FULL)[:, None, None], True, seen[self.pattern])
        matrix = out.swapaxes(1, 2).reshape(tiles.row_tiles * tiles.rows, tiles.key_tiles * tiles.keys)
        return matrix[: tiles.seq_q, : tiles.seq_kv]


@lru_cache(maxsize=4)
def block_list(mask: Mask, rows: int, keys: int, seq_q: int, seq_kv: int) -> BlockList:
    """The visits of all row tiles of a head, in the kernel's order.

    Raises
    ------
    InputError
        When the tile's keys do not fill words, or the list would be too long to write out.
    """
    if keys % WORD:
        raise InputError(f"the tile has {keys} keys; a block list needs a multiple of {WORD}, one word of a bit mask")
    tiles = Tiles(rows, keys, seq_q, seq_kv)
    band = mask.band
    bit_masks = BitMasks(tiles)
    patterns = TilePatterns(band, mask.parts, tiles, bit_masks)

    def spans_of(row_tile: Ints) -> list[Spans]:
        return [part.spans(row_tile, tiles) for part in mask.parts or (band,)]

    counts, key_tiles, found = [], [], []
    visits = 0
    for row_tiles, row_tile, key_tile in in_chunks(tiles, band, spans_of):
        pattern = patterns.of(row_tile, key_tile)
        some = pattern != EMPTY
        visits += int(some.sum())
        if visits > LARGEST_LIST:
            raise InputError(
                f"mask {mask} has more than {LARGEST_LIST} tiles of {rows} x {keys} at {seq_q} x {seq_kv}, too many "
                "for a block list; take a sparser mask or a shorter sequence"
            )
        counts.append(np.bincount(row_tile[some] - row_tiles.start, minlength=len(row_tiles)))
        key_tiles.append(key_tile[some].astype(np.int32))
        found.append(pattern[some].astype(np.int32))
    row_start = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
    return BlockList(
        tiles, row_start.astype(np.int32), np.concatenate(key_tiles), np.concatenate(found), bit_masks.words()
    )
