"""Parts of sparse masks made of whole blocks of positions x keys: BigBird's, and lists of blocks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from attnsim.arrays import Bools, Ints
from attnsim.bounds import check_cost
from attnsim.errors import InputError
from attnsim.models.mask.patterns import Spans, Tiles, check_counts, expand, looks

COMPARED_CELLS = 40
"""Most blocks of a pattern that a tile may cut and still be compared by content."""

CELLS = 50
"""Cells of a tile that are looked up in the time of the rest of its look (4096 in 40 us, 1 in 0.25 us)."""

DRAWN_TOGETHER = 64
"""Row blocks that are drawn together."""

COMPARED_DRAWS = 32
"""Most random blocks of a row that are compared one by one; more are looked up in a table of all blocks."""


Member = Callable[[Ints, Ints], Bools]
"""(Row block, key block) to whether they are visible, for arrays."""


class _WholeBlocks(ABC):
    """A pattern that shows all of a block of positions x keys or nothing of it."""

    __slots__ = ()
    block: int

    @abstractmethod
    def _member_at(self, seq_kv: int) -> Member:
        """Function that tells which pairs of blocks are visible among `seq_kv` keys."""

    def seen(self, positions: Ints, keys: Ints, seq_kv: int) -> Bools:
        """Return whether the key's block is visible from the position's block."""
        return self._member_at(seq_kv)(positions // self.block, keys // self.block)

    @abstractmethod
    def pairs_of_blocks(self, tiles: Tiles) -> float:
        """Upper bound of the visible pairs of blocks."""

    def look(self, row_tile: Ints, key_tile: Ints, tiles: Tiles) -> Ints:
        """Look of each tile, by the blocks that the tile cuts."""
        return _look(self._member_at(tiles.seq_kv), self.block, row_tile, key_tile, tiles)

    def looked_at(self, tiles: Tiles) -> float:
        """Tiles of all visible pairs of blocks, each weighted by the blocks that it cuts."""
        cut = (tiles.rows, tiles.seq_kv - tiles.seq_q), (tiles.keys, 0)
        cells = math.prod(_most_cut(size, offset, self.block) for size, offset in cut)
        each = -(-self.block // tiles.rows) * -(-self.block // tiles.keys)
        found = min(each * self.pairs_of_blocks(tiles), tiles.row_tiles * tiles.key_tiles)
        return found * (1 + cells / CELLS)


@dataclass(frozen=True, slots=True)
class BlockWindow(_WholeBlocks):
    """Blocks of keys at most `reach` before or after the position's own.

    BigBird's sliding window as its kernels block it (Zaheer et al., arXiv 2007.14062, appendix D).
    """

    reach: int
    block: int

    def __post_init__(self) -> None:
        check_counts("block window", block=self.block)
        if self.reach < 0:
            raise InputError(f"mask: block window reach is {self.reach}; allowed: 0 or more blocks to each side")

    @property
    def tokens(self) -> int:
        """Tokens up to the end of the farthest block."""
        return self.reach * self.block + 1

    def _member_at(self, seq_kv: int) -> Member:
        return lambda row_block, key_block: np.asarray(np.abs(key_block - row_block) <= self.reach)

    def spans(self, row_tile: Ints, tiles: Tiles) -> Spans:
        """One interval per row tile."""
        first, last = (p // self.block for p in (tiles.first_position(row_tile), tiles.last_position(row_tile)))
        return row_tile, (first - self.reach) * self.block, (last + self.reach + 1) * self.block

    def pairs_of_blocks(self, tiles: Tiles) -> float:
        """Pairs of blocks within reach; at most those with a tile of their own."""
        blocks, wide = -(-tiles.seq_q // self.block), 2 * self.reach + 1
        near = -(-wide * self.block // tiles.keys) + 2
        return min(blocks * wide, tiles.row_tiles * near)

    def __str__(self) -> str:
        return f"block window {self.reach}x{self.block}"


@dataclass(frozen=True, slots=True)
class Random(_WholeBlocks):
    """`count` distinct blocks of keys, of `block` tokens each, for every block of as many positions.

    BigBird's random attention (Zaheer et al., arXiv 2007.14062, section 2). The blocks are drawn from all key blocks by
    Floyd's sampling without replacement (Bentley and Floyd, CACM 30(9), 1987). Each draw is a hash of (seed, row block,
    number of the draw): two rounds of SplitMix64's mixing function (Steele, Lea, Flood, OOPSLA 2014, figure 15), scaled
    to the range by the upper 32 bits. The same seed and length give the same blocks on every machine and with every
    version of NumPy.

    Parameters
    ----------
    count : int
        Blocks per row block; 0 if `percent` gives the number.
    block : int
        Tokens of a block.
    percent : float
        Percentage of all key blocks, rounded and at least one block, in place of `count`; 0 if `count` gives the
        number.
    """

    count: int
    block: int
    seed: int = 0
    percent: float = 0.0

    def __post_init__(self) -> None:
        counted = {} if self.percent and not self.count else {"count": self.count}
        check_counts("random", **counted, block=self.block)
        if not 0 <= self.percent <= (0 if self.count else 100):
            allowed = "more than 0 and up to 100 % of the key blocks, or a number of them"
            raise InputError(f"mask: random is {self.percent:g} % of the blocks; allowed: {allowed}")
        if not 0 <= self.seed < 1 << 32:
            raise InputError(f"mask: random seed is {self.seed}; allowed: 0 to {(1 << 32) - 1}")

    def draws(self, row_block: Ints, seq_kv: int) -> Ints:
        """Key blocks drawn for each row block, shape ``[len(row_block), blocks drawn]``."""
        blocks, count = -(-seq_kv // self.block), self._drawn(seq_kv)
        per_row = 8 * count + (blocks if count > COMPARED_DRAWS else 0)
        check_cost(f"mask {self} at {seq_kv} keys", memory_bytes=per_row * len(row_block))
        drawn = np.empty((len(row_block), count), dtype=np.int64)
        table = _Table(len(row_block), blocks) if count > COMPARED_DRAWS else None
        for number in range(count):
            last = blocks - count + number
            upper = _hashed(self.seed, row_block, number) >> np.uint64(32)
            drawn[:, number] = upper * np.uint64(last + 1) >> np.uint64(32)
            draw = drawn[:, number]
            taken = table.has(draw) if table else (drawn[:, :number] == draw[:, None]).any(axis=1)
            draw[taken] = last
            if table:
                table.add(draw)
        return drawn

    def _drawn(self, seq_kv: int) -> int:
        """Number of key blocks drawn for each row block."""
        blocks = -(-seq_kv // self.block)
        return min(self.count or max(1, round(self.percent * blocks / 100)), blocks)

    def pairs_of_blocks(self, tiles: Tiles) -> float:
        """Number of drawn pairs of blocks."""
        return -(-tiles.seq_q // self.block) * self._drawn(tiles.seq_kv)

    def _aligned_draws(self, row_block: Ints, seq_kv: int) -> tuple[int, Ints]:
        """First row block of an aligned range that holds the given row blocks, and the draws of the range.

        The range is aligned so that tiles that are visited block after block share one cached result.
        """
        lowest, highest = (int(row_block.min()), int(row_block.max())) if row_block.size else (0, -1)
        lowest = lowest // DRAWN_TOGETHER * DRAWN_TOGETHER
        return lowest, _draws(self, lowest, -(-(highest + 1) // DRAWN_TOGETHER) * DRAWN_TOGETHER, seq_kv)

    @property
    def tokens(self) -> int:
        """Tokens of the drawn blocks."""
        return max(1, self.count) * self.block

    def _member_at(self, seq_kv: int) -> Member:
        def member(row_block: Ints, key_block: Ints) -> Bools:
            lowest, drawn = self._aligned_draws(row_block, seq_kv)
            if drawn.shape[1] > COMPARED_DRAWS:
                seen, width = _seen(self, lowest, lowest + len(drawn), seq_kv), -(-seq_kv // self.block)
                return np.asarray(seen[row_block - lowest, np.minimum(key_block, width)])
            seen = np.zeros(np.broadcast_shapes(row_block.shape, key_block.shape), dtype=np.bool_)
            for draw in drawn.T:
                seen |= draw[row_block - lowest] == key_block
            return seen

        return member

    def spans(self, row_tile: Ints, tiles: Tiles) -> Spans:
        """One interval for each drawn block of each row block that a row tile cuts."""
        entry, row_block = _row_blocks(row_tile, self.block, tiles)
        lowest, drawn = self._aligned_draws(row_block, tiles.seq_kv)
        drawn = drawn[row_block - lowest]
        start = drawn.reshape(-1) * self.block
        return np.repeat(row_tile[entry], drawn.shape[1]), start, start + self.block

    def __str__(self) -> str:
        return f"random {self.count or f'{self.percent:g} % '}x{self.block} seed {self.seed}"


@lru_cache(maxsize=4)
def _draws(part: Random, first: int, stop: int, seq_kv: int) -> Ints:
    """Cached draws of a range of row blocks, which are requested repeatedly while its tiles are visited."""
    return part.draws(np.arange(first, stop), seq_kv)


@lru_cache(maxsize=1)
def _seen(part: Random, first: int, stop: int, seq_kv: int) -> Bools:
    """Whether each row block of a range sees each key block; a last column, for the block past the end, is false."""
    drawn = _draws(part, first, stop, seq_kv)
    table = _Table(len(drawn), -(-seq_kv // part.block) + 1)
    for draw in drawn.T:
        table.add(draw)
    return table.seen


class _Table:
    """Blocks drawn for each row as a table, for lookups if there are many."""

    def __init__(self, rows: int, blocks: int) -> None:
        self.row, self.seen = np.arange(rows), np.zeros((rows, blocks), dtype=np.bool_)

    def has(self, block: Ints) -> Bools:
        """Return whether each row has the given block."""
        return np.asarray(self.seen[self.row, block])

    def add(self, block: Ints) -> None:
        """Add one block to each row."""
        self.seen[self.row, block] = True


@dataclass(frozen=True, slots=True)
class Blocks(_WholeBlocks):
    """A list of blocks: pairs (row block, key block) of `block` positions x `block` keys, in any order."""

    block: int
    pairs: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        check_counts("blocks", block=self.block)
        if not self.pairs or any(index < 0 for pair in self.pairs for index in pair):
            raise InputError("mask: blocks needs pairs ROW:KEY of block numbers from 0 on; write blocks 64 0:0 1:0 1:1")
        object.__setattr__(self, "pairs", tuple(sorted(set(self.pairs))))

    @property
    def tokens(self) -> int:
        """Tokens up to the last listed block."""
        return max(map(max, self.pairs)) * self.block + 1

    def _member_at(self, seq_kv: int) -> Member:
        row, key = (np.array(column, dtype=np.int64) for column in zip(*self.pairs, strict=True))

        def member(row_block: Ints, key_block: Ints) -> Bools:
            width = max(int(key.max()), int(key_block.max(initial=0))) + 1
            return np.isin(row_block * width + key_block, row * width + key)

        return member

    def spans(self, row_tile: Ints, tiles: Tiles) -> Spans:
        """One interval for each listed block of each row block that a row tile cuts."""
        row, key = (np.array(column, dtype=np.int64) for column in zip(*self.pairs, strict=True))
        entry, row_block = _row_blocks(row_tile, self.block, tiles)
        begin, end = np.searchsorted(row, row_block, side="left"), np.searchsorted(row, row_block, side="right")
        which, number = expand(end - begin)
        start = key[begin[which] + number] * self.block
        return row_tile[entry[which]], start, start + self.block

    def pairs_of_blocks(self, tiles: Tiles) -> float:
        """Number of listed blocks."""
        return len(self.pairs)

    def __str__(self) -> str:
        return f"blocks {self.block} {' '.join(f'{row}:{key}' for row, key in self.pairs)}"


def _hashed(seed: int, row_block: Ints, draw: int) -> NDArray[np.uint64]:
    counter = (row_block.astype(np.uint64) << np.uint64(16)) + np.uint64(draw)
    return _mixed(_mixed(counter) ^ np.uint64(seed * 0x9E3779B97F4A7C15 % (1 << 64)))


def _mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64: the golden gamma, then the finaliser of MurmurHash3 with Stafford's constants (variant 13)."""
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _row_blocks(row_tile: Ints, block: int, tiles: Tiles) -> tuple[Ints, Ints]:
    """(Entry of `row_tile`, row block) for every row block that a row tile cuts."""
    begin, end = tiles.first_position(row_tile) // block, tiles.last_position(row_tile) // block
    entry, number = expand(end - begin + 1)
    return entry, begin[entry] + number


def _look(member: Member, block: int, row_tile: Ints, key_tile: Ints, tiles: Tiles) -> Ints:
    """Looks of tiles in a pattern of whole blocks; `member` tells which (row block, key block) are visible.

    Tiles are alike if they have the same offset to the blocks and the blocks that they cut are equally visible. If a
    tile cuts more blocks than fit a number, its own number is its look, and every tile is examined individually.
    """
    first, start = tiles.first_position(row_tile), key_tile * tiles.keys
    row_phase, key_phase = first % block, start % block
    down = _most_cut(tiles.rows, tiles.seq_kv - tiles.seq_q, block)
    across = _most_cut(tiles.keys, 0, block)
    compared = down * across <= COMPARED_CELLS and block**2 << down * across < 1 << 62
    content = row_phase * block + key_phase
    none, every = np.ones(first.shape, dtype=np.bool_), np.ones(first.shape, dtype=np.bool_)
    for i in range(down):
        for j in range(across):
            cut = (row_phase + tiles.rows > i * block) & (key_phase + tiles.keys > j * block)
            seen = cut & member(first // block + i, start // block + j)
            none &= ~seen
            every &= seen | ~cut
            content = content * 2 + seen if compared else content
    return looks(none, every, content if compared else row_tile * tiles.key_tiles + key_tile)


def _most_cut(size: int, offset: int, block: int) -> int:
    """Most blocks that an interval of `size`, starting at a multiple of `size` plus `offset`, can cut."""
    step = math.gcd(size, block)
    return -(-(size + block - step + offset % step) // block)
