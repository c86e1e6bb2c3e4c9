"""Masks: a diagonal band, and within it a union of patterns; their text, and lists of their tiles.

Text form of masks: ``causal, window 512, global 16, random 3x64 seed 1``.

Items are separated by commas. ``causal``, ``left N`` and ``right N`` narrow the band; the others are united within it.
Numbers of tokens may have a suffix, as elsewhere: ``window 4k``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from attnsim.arrays import Bools, Ints
from attnsim.errors import InputError
from attnsim.models.mask.block_patterns import Blocks, BlockWindow, Random
from attnsim.models.mask.documents import Documents, Neighborhood, Prefix, sizes
from attnsim.models.mask.patterns import Dilated, Global, Part, Spans, Strided, Tiles, Window
from attnsim.models.mask.tile_counts import KEYS, ROWS, TileCounts, tile_counts
from attnsim.models.mask.tile_looks import EMPTY, FULL, BitMasks, TilePatterns, in_chunks

BAND = ("causal", "left N", "right N")


FORMS: dict[str, tuple[str, Callable[[re.Match[str]], Part]]] = {
    "window N": (r"window (\d+)", lambda m: Window(int(m[1]) - 1, int(m[1]) - 1)),
    "window N left M right": (
        r"window(?! *$)(?: (\d+) left)?(?: (\d+) right)?",
        lambda m: Window(_number(m[1]), _number(m[2])),
    ),
    "dilated N step S": (r"dilated (\d+) step (\d+)", lambda m: Dilated(int(m[1]), int(m[2]))),
    "strided S": (r"strided (\d+)", lambda m: Strided(int(m[1]))),
    "global N": (r"global (\d+)", lambda m: Global.first(int(m[1]))),
    "global at I J-K": (r"global at((?: \d+(?:-\d+)?)+)", lambda m: Global(_ranges(m[1]))),
    "block window RxB": (r"block window (\d+)x(\d+)", lambda m: BlockWindow(int(m[1]), int(m[2]))),
    "random RxB seed S": (
        r"random (\d+)x(\d+)(?: seed (\d+))?",
        lambda m: Random(int(m[1]), int(m[2]), int(m[3] or 0)),
    ),
    "random P % xB seed S": (
        r"random (\d+(?:\.\d+)?) ?% ?x ?(\d+)(?: seed (\d+))?",
        lambda m: Random(0, int(m[2]), int(m[3] or 0), float(m[1])),
    ),
    "document N N": (r"document((?: \d+)*)", lambda m: Documents(tuple(map(int, m[1].split())))),
    "prefix N": (r"prefix (\d+)", lambda m: Prefix(int(m[1]))),
    "neighborhood L window W stride S": (
        r"neighborhood (\d+(?:x\d+)*) window (\d+(?:x\d+)*)(?: stride (\d+(?:x\d+)*))?",
        lambda m: Neighborhood(sizes(m[1]), sizes(m[2]), sizes(m[3]) if m[3] else (1,) * len(sizes(m[2]))),
    ),
    "blocks B R:K": (r"blocks (\d+)((?: \d+:\d+)*)", lambda m: Blocks(int(m[1]), _pairs(m[2]))),
}
"""Parts by the form shown to a reader: regular expression of the text, and constructor."""


def parse(text: str) -> tuple[int | None, int | None, tuple[Part, ...]]:
    """Parse left reach, right reach and parts of a mask from text.

    Raises
    ------
    InputError
        Quoting the unknown item, and the known forms.
    """
    limits: dict[str, int] = {}
    parts: list[Part] = []
    words = re.sub(r"\bcausal (?=window)", "causal, ", " ".join(text.lower().split()))
    words = re.sub(r"(?<= )(\d+)([km])\b", lambda found: str(int(found[1]) << (10 if found[2] == "k" else 20)), words)
    items = [item.strip() for item in words.split(",")]
    if items == ["full"]:
        return None, None, ()
    for item in items:
        band = re.fullmatch(r"(causal)|(left|right) (\d+)", item)
        if band is None:
            parts.append(_part(text, item))
            continue
        side, reach = band[2] or "right", int(band[3] or 0)
        if side in limits:
            raise InputError(f"mask {text!r} limits the {side} side twice; keep one")
        limits[side] = reach
    return limits.get("left"), limits.get("right"), tuple(parts)


def _part(text: str, item: str) -> Part:
    for pattern, make in FORMS.values():
        found = re.fullmatch(pattern, item)
        if found:
            return make(found)
    raise InputError(f"mask {text!r}: {item!r} is not understood; write {', '.join((*BAND, *FORMS))}, or full alone")


def written(left: int | None, right: int | None, parts: tuple[Part, ...]) -> str:
    """Text form of a mask."""
    if not parts:
        return _band(left, right)
    limits = ["causal" if right == 0 else f"right {right}"] if right is not None else []
    limits += [f"left {left}"] if left is not None else []
    return ", ".join((*limits, *map(str, parts)))


def _band(left: int | None, right: int | None) -> str:
    if left is None:
        return "full" if right is None else "causal" if right == 0 else f"right {right}"
    return f"causal window {left + 1}" if right == 0 else str(Window(left, right))


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _ranges(text: str) -> tuple[tuple[int, int], ...]:
    ends = (piece.partition("-")[::2] for piece in text.split())
    return tuple((int(start), int(stop or start) + 1) for start, stop in ends)


def _pairs(text: str) -> tuple[tuple[int, int], ...]:
    pairs = (pair.split(":") for pair in text.split())
    return tuple((int(row), int(key)) for row, key in pairs)


@dataclass(frozen=True, slots=True)
class Mask:
    """A diagonal band, and within it a union of patterns.

    Query ``i`` sees key ``j`` if ``-left <= j - (i + seq_kv - seq_q) <= right`` and, if there are parts, any of them
    shows the pair. The offset aligns the last query with the last key (bottom-right alignment, as FlashAttention and
    PyTorch's ``is_causal`` with a cache do).

    Full, causal and sliding-window attention are bands, and so is every intersection of them. ``&`` intersects with a
    band, ``|`` unites; an intersection of patterns with patterns is refused. A single window is always kept as a band.

    Parameters
    ----------
    left : int or None
        Keys visible before the diagonal; None is all of them.
    right : int or None
        Keys visible after the diagonal; None is all of them.
    parts : tuple of Part
        Patterns of :mod:`attnsim.models.mask.patterns` and :mod:`attnsim.models.mask.block_patterns`; none is all of
        the band.
    """

    left: int | None = None
    right: int | None = None
    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        for name, reach in (("left", self.left), ("right", self.right)):
            if reach is not None and reach < 0:
                raise InputError(f"mask: {name} is {reach}; allowed: 0 or more, or none for no limit")
        if self.parts:
            self._simplify()

    def _simplify(self) -> None:
        """Drop repeated parts, and parts that the band can express."""
        parts = tuple(dict.fromkeys(self.parts))
        if any(part == Window(None, None) for part in parts):
            parts = ()
        if len(parts) == 1 and isinstance(parts[0], Window):
            object.__setattr__(self, "left", _tighter(self.left, parts[0].left))
            object.__setattr__(self, "right", _tighter(self.right, parts[0].right))
            parts = ()
        object.__setattr__(self, "parts", parts)

    @classmethod
    def full(cls) -> Mask:
        """Every query sees every key."""
        return cls()

    @classmethod
    def causal(cls) -> Mask:
        """Query ``i`` sees keys up to ``i + seq_kv - seq_q``."""
        return cls(right=0)

    @classmethod
    def sliding_window(cls, window: int, causal: bool = True) -> Mask:
        """`window` keys to the left, including the diagonal; as many to the right unless `causal`."""
        if window < 1:
            raise InputError(f"window is {window}; allowed: 1 or more keys, the query's own included")
        return cls(left=window - 1, right=0 if causal else window - 1)

    @classmethod
    def longformer(cls, window: int = 512, global_tokens: int = 16, dilation: int = 1, causal: bool = False) -> Mask:
        """Half of `window` keys to each side, `dilation` apart, and global tokens at the beginning.

        Beltagy et al., arXiv 2004.05150, section 3.1; the window of 512 is that of its pre-trained models (section 5).
        """
        half = window // 2
        near: Part = Window(half, half) if dilation == 1 else Dilated(half + 1, dilation)
        return cls(right=0 if causal else None, parts=(near, Global.first(global_tokens)))

    @classmethod
    def bigbird(
        cls, block: int = 64, window_blocks: int = 3, global_blocks: int = 2, random_blocks: int = 3, seed: int = 0
    ) -> Mask:
        """Window, global and random blocks.

        Zaheer et al., arXiv 2007.14062, section 2, blocked as in appendix D; the defaults are BigBird-ITC-base's
        (table 8): block 64, 3 window blocks, 2 global blocks, 3 random blocks.
        """
        near = BlockWindow(window_blocks // 2, block)
        return cls(parts=(near, Global.first(global_blocks * block), Random(random_blocks, block, seed)))

    @classmethod
    def sparse_transformer(cls, stride: int = 128) -> Mask:
        """Causal: the last `stride` keys and every key a multiple of `stride` back (both heads merged).

        Child et al., arXiv 1904.10509, section 4.3, "strided attention"; stride 128 is section 5.4's for images.
        """
        return cls(right=0, parts=(Window(stride - 1, stride - 1), Strided(stride)))

    @classmethod
    def blocks(cls, block: int, pairs: tuple[tuple[int, int], ...]) -> Mask:
        """Only the listed blocks (row block, key block) of `block` x `block`."""
        return cls(parts=(Blocks(block, pairs),))

    @classmethod
    def parse(cls, text: str) -> Mask:
        """Parse a mask from its text form, such as ``causal, window 512, global 16, random 3x64 seed 1``.

        ``causal``, ``left N`` and ``right N`` narrow the band; every other item adds a part to the union. The grammar
        is in :mod:`attnsim.models.mask.mask`, and ``Mask.parse(str(mask)) == mask``.

        Raises
        ------
        InputError
            Quoting the unknown item, and the known forms.
        """
        return cls(*parse(text))

    def __and__(self, other: Mask) -> Mask:
        if self.parts and other.parts and set(self.parts) != set(other.parts):
            raise InputError(f"mask: ({self}) & ({other}) intersects patterns; a pattern can be cut by a band only")
        band = _tighter(self.left, other.left), _tighter(self.right, other.right)
        return Mask(*band, self.parts or other.parts)

    def __or__(self, other: Mask) -> Mask:
        bands = {(mask.left, mask.right) for mask in (self, other)}
        if len(bands) == 1:
            return Mask(self.left, self.right, self.parts + other.parts if self.parts and other.parts else ())
        united: list[Part] = []
        for mask in (self, other):
            if mask.is_band:
                united.append(mask.band)
            elif (mask.left, mask.right) == (None, None):
                united += mask.parts
            else:
                raise InputError(
                    f"mask: ({self}) | ({other}) needs a band around some parts only; unite patterns, then &"
                )
        return Mask(parts=tuple(united))

    @property
    def band(self) -> Window:
        """The diagonal band that the parts are united within."""
        return Window(self.left, self.right)

    @property
    def is_band(self) -> bool:
        """Whether the mask is only a diagonal band, as dense kernels play."""
        return not self.parts

    @property
    def is_causal(self) -> bool:
        """Whether no query sees past its own position."""
        return self.right == 0

    @property
    def is_windowed(self) -> bool:
        """Whether the band hides keys far to the left."""
        return self.left is not None

    def within(self, seq_q: int, seq_kv: int) -> Mask:
        """Drop limits that these lengths never reach, as FlashAttention's entry points do."""
        left = None if self.left is not None and self.left >= seq_kv - 1 else self.left
        right = None if self.right is not None and self.right >= seq_q - 1 and seq_q > 1 else self.right
        return Mask(left, right, self.parts)

    def beyond(self, seq_kv: int) -> tuple[str, ...]:
        """Warnings, in words, for each item of the mask that reaches beyond a sequence of `seq_kv` keys."""
        reaches = {str(Mask(self.left, self.right)): self.band.tokens} | {str(part): part.tokens for part in self.parts}
        return tuple(f"mask '{one}' reaches beyond the {seq_kv:,} keys" for one, n in reaches.items() if n > seq_kv)

    def seen(self, rows: Ints, keys: Ints, seq_q: int, seq_kv: int) -> Bools:
        """Visibility of pairs, element by element: `rows` and `keys` are broadcast against each other."""
        positions = rows + (seq_kv - seq_q)
        seen = self.band.seen(positions, keys, seq_kv)
        if self.parts:
            union = np.zeros(seen.shape, dtype=np.bool_)
            for part in self.parts:
                union |= part.seen(positions, keys, seq_kv)
            seen &= union
        return seen

    def columns(self, first_row: int, last_row: int, seq_q: int, seq_kv: int) -> tuple[int, int]:
        """Half-open interval of keys in the band that rows `first_row` to `last_row` (inclusive) see."""
        shift = seq_kv - seq_q
        low = 0 if self.left is None else max(0, first_row + shift - self.left)
        high = seq_kv if self.right is None else min(seq_kv, last_row + shift + self.right + 1)
        return (low, high) if high > low else (0, 0)

    def tile_counts(self, seq_q: int, seq_kv: int, rows: int, keys: int) -> TileCounts:
        """Count the tiles of `keys` keys that each tile of `rows` queries visits."""
        return tile_counts(self.band, self.parts, seq_q, seq_kv, rows, keys)

    def visible_pairs(self, seq_q: int, seq_kv: int) -> int:
        """Number of visible (query, key) pairs, without building the matrix."""
        match self.parts:
            case (Neighborhood() as every,) if self.left is None and self.right is None:
                every.check(seq_kv)
                return seq_q * every.keys_seen
            case (_, *_):
                return self.tile_counts(seq_q, seq_kv, ROWS, KEYS).pairs
        shift = seq_kv - seq_q
        upper = seq_q * seq_kv if self.right is None else _clipped_sum(shift + self.right + 1, seq_q, seq_kv)
        lower = 0 if self.left is None else _clipped_sum(shift - self.left, seq_q, seq_kv)
        return upper - lower

    def __str__(self) -> str:
        return written(self.left, self.right, self.parts)


def _tighter(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _clipped_sum(offset: int, rows: int, limit: int) -> int:
    """Sum over i in [0, rows) of clip(i + offset, 0, limit)."""
    first = min(max(-offset, 0), rows)  # rows before this one contribute nothing
    full = min(max(limit - offset, first), rows)  # rows from this one on contribute `limit`
    rising = full - first
    return rising * (first + offset) + rising * (rising - 1) // 2 + (rows - full) * limit


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
