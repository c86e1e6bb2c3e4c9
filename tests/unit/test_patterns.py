"""Patterns, masks of them, and block lists, against brute force over the N x N matrix."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from attnsim.errors import InputError
from attnsim.models.mask.block_patterns import Blocks, BlockWindow, Random
from attnsim.models.mask.documents import Documents, Prefix
from attnsim.models.mask.mask import Mask, block_list
from attnsim.models.mask.patterns import ALL, NONE, Dilated, Global, Part, Strided, Tiles, Window
from attnsim.models.mask.tile_counts import tile_counts
from attnsim.models.mask.tile_looks import FULL
from attnsim.models.schedule.row_tiles import classes

Matrix = NDArray[np.bool_]

counts = st.integers(1, 9)
block_sizes = st.sampled_from([1, 3, 4, 5, 8, 16, 32, 40])
ranges = st.tuples(st.integers(0, 60), st.integers(1, 9)).map(lambda pair: (pair[0], pair[0] + pair[1]))
reaches = st.none() | st.integers(0, 60)
PARTS: dict[str, st.SearchStrategy[Part]] = {
    "window": st.builds(Window, reaches, reaches),
    "dilated": st.builds(Dilated, counts, st.integers(1, 90)),
    "strided": st.builds(Strided, st.integers(1, 120)),
    "global": st.builds(Global, st.lists(ranges, min_size=1, max_size=3).map(tuple)),
    "block window": st.builds(BlockWindow, st.integers(0, 2), block_sizes),
    "random": st.builds(Random, st.integers(1, 4), block_sizes, st.integers(0, 5)),
    "prefix": st.builds(Prefix, st.integers(1, 160)),
    "blocks": st.builds(
        Blocks,
        block_sizes,
        st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6).map(tuple),
    ),
}
parts = st.one_of(*PARTS.values())
masks = st.builds(Mask, reaches, reaches, st.lists(parts, max_size=3).map(tuple))
lengths = st.integers(1, 150)
tile_sizes = st.tuples(st.sampled_from([1, 5, 16, 32, 64]), st.sampled_from([1, 7, 16, 32, 64]))

DEFINITIONS: dict[type, Callable[..., bool]] = {
    Window: lambda part, p, j, n: (
        (part.left is None or p - j <= part.left) and (part.right is None or j - p <= part.right)
    ),
    Dilated: lambda part, p, j, n: abs(p - j) in range(0, part.window * part.step, part.step),
    Strided: lambda part, p, j, n: (p - j) % part.stride == 0,
    Global: lambda part, p, j, n: any(start <= x < stop for start, stop in part.ranges for x in (p, j)),
    BlockWindow: lambda part, p, j, n: abs(p // part.block - j // part.block) <= part.reach,
    Random: lambda part, p, j, n: j // part.block in part.draws(np.array([p // part.block]), n)[0],
    Prefix: lambda part, p, j, n: j < part.tokens or j <= p,
    Documents: lambda part, p, j, n: (
        sum(end <= p for end in np.cumsum(part.lengths)) == sum(end <= j for end in np.cumsum(part.lengths))
    ),
    Blocks: lambda part, p, j, n: (p // part.block, j // part.block) in part.pairs,
}
"""Each part in the words of its definition, for one position and one key."""


def of_part(part: Part, seq_q: int, seq_kv: int) -> Matrix:
    """One entry per pair."""
    seen = DEFINITIONS[type(part)]
    shift = seq_kv - seq_q
    return np.array([[seen(part, i + shift, j, seq_kv) for j in range(seq_kv)] for i in range(seq_q)])


def of_mask(mask: Mask, seq_q: int, seq_kv: int) -> Matrix:
    """The mask as a matrix, from its own element-wise definition."""
    return mask.seen(np.arange(seq_q)[:, None], np.arange(seq_kv)[None, :], seq_q, seq_kv)


# Parts


@pytest.mark.parametrize("name", PARTS)
def test_a_part_sees_what_its_definition_says(name: str) -> None:
    @settings(deadline=None)
    @given(PARTS[name], st.integers(1, 40), st.integers(1, 40))
    def check(part: Part, seq_q: int, seq_kv: int) -> None:
        positions, keys = np.arange(seq_q)[:, None] + seq_kv - seq_q, np.arange(seq_kv)[None, :]
        assert (part.seen(positions, keys, seq_kv) == of_part(part, seq_q, seq_kv)).all()

    check()


@pytest.mark.parametrize("name", PARTS)
def test_spans_hold_every_key_that_a_row_tile_sees(name: str) -> None:
    @settings(deadline=None)
    @given(PARTS[name], lengths, lengths, tile_sizes)
    def check(part: Part, seq_q: int, seq_kv: int, size: tuple[int, int]) -> None:
        tiles = Tiles(*size, seq_q, seq_kv)
        covered = np.zeros((tiles.row_tiles, seq_kv), dtype=bool)
        row_tiles = np.arange(tiles.row_tiles)
        for row_tile, low, high in zip(*part.spans(row_tiles, tiles), strict=True):
            covered[row_tile, max(low, 0) : max(high, 0)] = True
        seen = part.seen(np.arange(seq_q)[:, None] + seq_kv - seq_q, np.arange(seq_kv)[None, :], seq_kv)
        assert not (seen & ~covered[np.arange(seq_q) // tiles.rows]).any()

    check()


@pytest.mark.parametrize("name", PARTS)
def test_tiles_of_one_look_hold_the_same_pairs(name: str) -> None:
    @settings(deadline=None)
    @given(PARTS[name], lengths, lengths, tile_sizes)
    def check(part: Part, seq_q: int, seq_kv: int, size: tuple[int, int]) -> None:
        tiles = Tiles(*size, seq_q, seq_kv)
        grid = np.indices((tiles.row_tiles, tiles.key_tiles)).reshape(2, -1)
        looks = part.look(grid[0], grid[1], tiles)
        met: dict[int, Matrix] = {}
        for row_tile, key_tile, look in zip(*grid, looks.tolist(), strict=True):
            rows = row_tile * tiles.rows + np.arange(tiles.rows) + seq_kv - seq_q
            seen = part.seen(rows[:, None], key_tile * tiles.keys + np.arange(tiles.keys)[None, :], seq_kv)
            assert (met.setdefault(look, seen) == seen).all()
            assert look != NONE or not seen.any()
            assert look != ALL or seen.all()

    check()


def test_random_blocks_are_these_for_ever() -> None:
    """A change of the hash would change what every measurement with random blocks has measured."""
    drawn = Random(3, 64, seed=1).draws(np.array([0, 1, 2, 1000]), 1 << 20)
    assert drawn.tolist() == [[8035, 2680, 160], [12931, 6327, 1470], [592, 14024, 15348], [6725, 4134, 8246]]


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 200), st.integers(0, 9))
def test_random_blocks_of_a_row_are_different_blocks(count: int, blocks: int, seed: int) -> None:
    drawn = Random(count, 4, seed).draws(np.arange(5), 4 * blocks - 3)
    assert drawn.shape == (5, min(count, blocks))
    assert all(len(set(row)) == len(row) and min(row) >= 0 and max(row) < blocks for row in drawn.tolist())


def test_random_blocks_fall_everywhere_equally_often() -> None:
    drawn = Random(2, 1).draws(np.arange(20_000), 10)
    hits = np.bincount(drawn.reshape(-1), minlength=10)
    assert (np.abs(hits - 4000) < 4 * np.sqrt(4000 * 0.8)).all()


# Masks


@settings(deadline=None)
@given(masks, st.integers(1, 50), st.integers(1, 50))
def test_a_mask_is_the_union_of_its_parts_within_its_band(mask: Mask, seq_q: int, seq_kv: int) -> None:
    expected = of_part(Window(mask.left, mask.right), seq_q, seq_kv)
    if mask.parts:
        expected &= np.any([of_part(part, seq_q, seq_kv) for part in mask.parts], axis=0)
    assert (of_mask(mask, seq_q, seq_kv) == expected).all()
    assert mask.visible_pairs(seq_q, seq_kv) == expected.sum()


@settings(deadline=None)
@given(masks, st.integers(1, 60), st.integers(1, 60), st.data())
def test_columns_leave_out_no_key_that_is_seen(mask: Mask, seq_q: int, seq_kv: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, seq_q - 1))
    last = data.draw(st.integers(first + 1, seq_q))
    low, high = mask.columns(first, last - 1, seq_q, seq_kv)
    assert not np.delete(of_mask(mask, seq_q, seq_kv)[first:last], np.s_[low:high], axis=1).any()


@settings(deadline=None)
@given(masks, masks, st.integers(1, 50), st.integers(1, 50))
def test_union_and_intersection_are_those_of_the_matrices(one: Mask, other: Mask, seq_q: int, seq_kv: int) -> None:
    matrices = of_mask(one, seq_q, seq_kv), of_mask(other, seq_q, seq_kv)
    band = Mask(other.left, other.right)
    assert (of_mask(one & band, seq_q, seq_kv) == (matrices[0] & of_mask(band, seq_q, seq_kv))).all()
    for combine, expected in ((Mask.__and__, matrices[0] & matrices[1]), (Mask.__or__, matrices[0] | matrices[1])):
        try:
            combined = combine(one, other)
        except InputError:
            continue
        assert (of_mask(combined, seq_q, seq_kv) == expected).all()


def test_what_unites_and_what_does_not() -> None:
    window, tokens = Mask(left=5, right=5), Mask(parts=(Global.first(2),))
    assert (window | tokens).parts == (Window(5, 5), Global.first(2))
    assert window | Mask.full() == Mask.full()
    assert tokens | tokens == tokens and tokens & tokens == tokens
    causal = tokens & Mask.causal()
    assert causal == Mask(right=0, parts=(Global.first(2),))
    assert causal | Mask(right=0, parts=(Strided(4),)) == Mask(right=0, parts=(Global.first(2), Strided(4)))
    with pytest.raises(InputError, match="needs a band around some parts only"):
        causal | tokens
    with pytest.raises(InputError, match="intersects patterns"):
        tokens & Mask(parts=(Strided(4),))


def test_the_published_patterns() -> None:
    longformer = Mask.longformer(window=8, global_tokens=1)
    assert of_mask(longformer, 20, 20)[10].nonzero()[0].tolist() == [0, 6, 7, 8, 9, 10, 11, 12, 13, 14]
    assert of_mask(longformer, 20, 20)[0].all()
    dilated = Mask.longformer(window=4, global_tokens=1, dilation=3)
    assert of_mask(dilated, 20, 20)[10].nonzero()[0].tolist() == [0, 4, 7, 10, 13, 16]
    bigbird = Mask.bigbird(block=4, window_blocks=3, global_blocks=1, random_blocks=1)
    blocks = of_mask(bigbird, 64, 64).reshape(16, 4, 16, 4)
    some, every = np.logical_or.reduce(blocks, axis=(1, 3)), np.logical_and.reduce(blocks, axis=(1, 3))
    assert (some == every).all()
    assert set(some.sum(axis=1)[2:-1].tolist()) == {4, 5}  # 3 near, 1 global, 1 random that may be one of them
    strided = Mask.sparse_transformer(4)
    assert of_mask(strided, 20, 20)[17].nonzero()[0].tolist() == [1, 5, 9, 13, 14, 15, 16, 17]
    listed = Mask.blocks(4, ((0, 1), (2, 0)))
    assert np.argwhere(of_mask(listed, 12, 12).reshape(3, 4, 3, 4).any(axis=(1, 3))).tolist() == [[0, 1], [2, 0]]


# Text


@settings(deadline=None)
@given(masks)
def test_the_text_of_a_mask_is_read_back(mask: Mask) -> None:
    assert Mask.parse(str(mask)) == mask


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Causal,  window 512", "causal window 512"),
        ("causal window 512, global 16", "causal, window 512, global 16"),
        ("causal, window 4k, global 1K", "causal, window 4096, global 1024"),
        ("window 5 left", "window 5 left"),
        ("window 5 left 2 right, strided 7", "window 5 left 2 right, strided 7"),
        ("left 9, right 3, dilated 4 step 2", "right 3, left 9, dilated 4 step 2"),
        ("global at 7 0-3 9-9", "global at 0-3 7 9"),
        ("random 3x64", "random 3x64 seed 0"),
        ("random 10% x64", "random 10 % x64 seed 0"),
        ("Random 12.5 %x32 seed 3", "random 12.5 % x32 seed 3"),
        ("blocks 64 1:0 0:0, block window 1x64", "blocks 64 0:0 1:0, block window 1x64"),
        ("window 9, window 5 left 20 right", "window 9, window 5 left 20 right"),
        ("full", "full"),
    ],
)
def test_forms_of_text(text: str, shown: str) -> None:
    assert str(Mask.parse(text)) == shown
    assert Mask.parse(shown) == Mask.parse(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("globl 16", "'globl 16' is not understood; write causal, left N"),
        ("causal, right 3", "limits the right side twice"),
        ("window 0", "window left is -1"),
        ("window 4kb", "'window 4kb' is not understood"),
        ("dilated 4 step 0", "dilated step is 0; allowed: 1 or more"),
        ("random 0x64", "random count is 0"),
        ("random 0 % x64", "random count is 0"),
        ("random 101 % x64", "random is 101 % of the blocks; allowed: more than 0 and up to 100 %"),
        ("random 1x64 seed 4294967296", "random seed is 4294967296"),
        ("global 0", "global tokens is 0"),
        ("global at 5-3", "global tokens are 5 to 3"),
        ("blocks 64", "blocks needs pairs"),
        ("block window 1x0", "block window block is 0"),
        ("", "'' is not understood"),
        ("full, causal", "'full' is not understood"),
    ],
)
def test_bad_text_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        Mask.parse(text)
    assert "\n" not in str(refused.value)


# Block lists


@settings(deadline=None)
@given(masks, lengths, lengths, st.sampled_from([16, 64]), st.sampled_from([32, 64]))
def test_a_block_list_is_the_mask(mask: Mask, seq_q: int, seq_kv: int, rows: int, keys: int) -> None:
    listed = block_list(mask, rows, keys, seq_q, seq_kv)
    matrix = of_mask(mask, seq_q, seq_kv)
    assert (listed.dense() == matrix).all()
    assert len(listed.row_start) == listed.tiles.row_tiles + 1 and listed.row_start[-1] == listed.visits
    assert len({mask_bits.tobytes() for mask_bits in listed.bits}) == len(listed.bits)
    assert all(mask_bits.any() and not (mask_bits == 0xFFFFFFFF).all() for mask_bits in listed.bits)
    assert set(np.unique(listed.pattern).tolist()) <= set(range(FULL, len(listed.bits)))
    for row_tile in range(listed.tiles.row_tiles):
        begin, end = listed.row_start[row_tile : row_tile + 2]
        visited = listed.key_tile[begin:end]
        assert (np.diff(visited) < 0).all()
        for key_tile, pattern in zip(visited.tolist(), listed.pattern[begin:end].tolist(), strict=True):
            own = matrix[row_tile * rows : (row_tile + 1) * rows, key_tile * keys : (key_tile + 1) * keys]
            assert own.any() and (pattern == FULL) == (own.all() and own.shape[1] == keys)


@settings(deadline=None)
@given(masks, lengths, lengths, st.sampled_from([(1, 1), (5, 5), (15, 5), (16, 16), (32, 8), (64, 64)]))
@example(Mask.parse("dilated 56 step 48"), 587, 64, (128, 64))  # row tiles reach past all key tiles
@example(Mask.parse("dilated 56 step 48"), 400, 32, (128, 32))
def test_counts_are_those_of_the_tiles(mask: Mask, seq_q: int, seq_kv: int, size: tuple[int, int]) -> None:
    found, matrix = mask.tile_counts(seq_q, seq_kv, *size), of_mask(mask, seq_q, seq_kv)
    rows, keys = size
    touched = np.zeros(seq_kv, dtype=bool)
    for row_tile, first in enumerate(range(0, seq_q, rows)):
        full = partial = 0
        for start in range(0, seq_kv, keys):
            own = matrix[first : first + rows, start : start + keys]
            full += bool(own.all() and own.shape[1] == keys)
            partial += bool(own.any() and not (own.all() and own.shape[1] == keys))
            touched[start : start + keys] |= own.any()
        last = seq_kv % keys > 0 and matrix[first : first + rows, seq_kv // keys * keys :].any()
        counted = found.full[row_tile], found.partial[row_tile], found.last_key_tile[row_tile]
        assert counted == (full, partial, last)
    seen = np.zeros((found.tiles.row_tiles + 1, found.tiles.key_tiles), dtype=bool)
    np.logical_or.at(seen, (np.arange(seq_q)[:, None] // rows + 1, np.arange(seq_kv)[None, :] // keys), matrix)
    assert found.fresh == (seen[1:] & ~seen[:-1]).sum()
    assert found.pairs == matrix.sum()
    assert found.touched_keys == touched.sum()
    assert found.visits_of_pairs.tolist() == mask.tile_counts(seq_q, seq_kv, 2 * rows, keys).visits.tolist()


def test_a_list_in_several_chunks_is_the_list_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = Mask.parse("causal, window 40, global at 3 90, random 2x16 seed 3, strided 200")
    whole, counted = block_list(mask, 16, 32, 700, 900), mask.tile_counts(700, 900, 32, 16)
    monkeypatch.setattr("attnsim.models.mask.tile_looks.ROW_TILES_AT_ONCE", 7)
    monkeypatch.setattr("attnsim.models.mask.tile_looks.TILES_AT_ONCE", 20)
    pieces = block_list.__wrapped__(mask, 16, 32, 700, 900)
    for name in ("row_start", "key_tile"):
        assert (getattr(whole, name) == getattr(pieces, name)).all()
    assert (whole.dense() == pieces.dense()).all()
    again = tile_counts.__wrapped__(mask.band, mask.parts, 700, 900, 32, 16)
    assert (again.full == counted.full).all() and again.fresh == counted.fresh
    assert again.pairs == counted.pairs == whole.dense().sum()


def test_a_band_needs_few_patterns() -> None:
    assert len(block_list(Mask.sliding_window(512), 64, 64, 1 << 14, 1 << 14).bits) == 2
    assert len(block_list(Mask.bigbird(), 64, 64, 1 << 14, 1 << 14).bits) == 0


def test_a_million_tokens_are_listed_without_their_matrix() -> None:
    tokens = 1 << 20
    mask = Mask.parse("causal, window 512, global 16")
    listed = block_list(mask, 64, 64, tokens, tokens)
    assert listed.visits == mask.tile_counts(tokens, tokens, 64, 64).visits.sum() < 11 * tokens // 64
    window = Mask.sliding_window(512)
    assert window.tile_counts(tokens, tokens, 64, 64).pairs == window.visible_pairs(tokens, tokens)


def test_lists_that_make_no_sense_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="48 keys; a block list needs a multiple of 32"):
        block_list(Mask.causal(), 64, 48, 100, 100)
    monkeypatch.setattr("attnsim.models.mask.mask.LARGEST_LIST", 10)
    with pytest.raises(InputError, match="more than 10 tiles of 64 x 64"):
        block_list(Mask.parse("window 300, global 7"), 64, 64, 1000, 1000)


@pytest.mark.parametrize("text", ["document 100 30 170", "causal, document 1 99 200", "document 64 64 172, global 3"])
@pytest.mark.parametrize("seq_q", [300, 37])
def test_documents_see_their_own_keys(text: str, seq_q: int) -> None:
    mask = Mask.parse(text)
    assert str(mask) == text
    want = of_mask(mask, seq_q, 300)
    for rows, keys in ((128, 64), (64, 32), (32, 32)):
        assert (block_list(mask, rows, keys, seq_q, 300).dense() == want).all()
        assert mask.tile_counts(seq_q, 300, rows, keys).pairs == want.sum()


def test_documents_that_do_not_fill_the_sequence_are_refused() -> None:
    with pytest.raises(InputError, match=r"3 \+ 5 = 8 keys, the sequence has 10"):
        Mask.parse("document 3 5").visible_pairs(10, 10)


def test_a_prefix_is_seen_by_all() -> None:
    assert of_mask(Mask.parse("prefix 3"), 5, 5).sum(axis=1).tolist() == [3, 3, 3, 4, 5]


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.booleans()), min_size=1, max_size=20))
@example([((1 << 33) + 1, 1 << 33, True), (1, 1 << 33, True), ((1 << 33) + 1, 1 << 33, True)])
def test_classes_are_the_distinct_rows_whatever_their_size(rows: list[tuple[int, int, bool]]) -> None:
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    found, number = classes(*columns)
    distinct = list(zip(*(column.tolist() for column in found), strict=True))
    assert distinct == sorted(set(rows)) and [distinct[at] for at in number] == rows
