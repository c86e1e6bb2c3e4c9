"""The mask against brute force over the N x N matrix."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnsim.errors import InputError
from attnsim.models.closed_forms.columns import Band, floor_sum, visible_pairs
from attnsim.models.mask.mask import Mask

reaches = st.none() | st.integers(0, 90)
masks = st.builds(Mask, reaches, reaches)
lengths = st.integers(1, 60)


def matrix(mask: Mask, seq_q: int, seq_kv: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """One entry per pair, from the words of the definition."""
    out = np.zeros((seq_q, seq_kv), dtype=bool)
    for i in range(seq_q):
        for j in range(seq_kv):
            before = (i + seq_kv - seq_q) - j
            out[i, j] = (mask.left is None or before <= mask.left) and (mask.right is None or -before <= mask.right)
    return out


@given(masks, lengths, lengths)
def test_visible_pairs_are_those_of_the_matrix(mask: Mask, seq_q: int, seq_kv: int) -> None:
    count = matrix(mask, seq_q, seq_kv).sum()
    assert mask.visible_pairs(seq_q, seq_kv) == count
    limits = (-1 if reach is None else reach for reach in (mask.left, mask.right))
    assert visible_pairs(seq_q, seq_kv, *limits) == count


@given(masks, lengths, lengths, st.integers(1, 20), st.data())
def test_columns_are_the_keys_that_a_row_tile_sees(
    mask: Mask, seq_q: int, seq_kv: int, rows: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, seq_q - 1))
    last = min(first + rows, seq_q)
    seen = np.flatnonzero(matrix(mask, seq_q, seq_kv)[first:last].any(axis=0))
    expected = (int(seen[0]), int(seen[-1]) + 1) if len(seen) else (0, 0)
    assert mask.columns(first, last - 1, seq_q, seq_kv) == expected


@given(masks, lengths, lengths, st.integers(1, 24), st.integers(1, 24))
def test_visits_are_the_tiles_with_anything_visible_between_first_and_last(
    mask: Mask, seq_q: int, seq_kv: int, rows: int, keys: int
) -> None:
    left, right = (-1 if reach is None else reach for reach in (mask.left, mask.right))
    visits = idle = 0
    for first in range(0, seq_q, rows):
        low, high = mask.columns(first, min(first + rows, seq_q) - 1, seq_q, seq_kv)
        visits += len(range(low // keys, -(-high // keys)))
        idle += high == low
    band = Band.of(seq_q, seq_kv, left, right, rows)
    assert band.visits(keys) == visits
    assert band.idle_tiles() == idle


@given(st.integers(0, 30), st.integers(1, 40), st.integers(0, 90), st.integers(0, 90))
def test_floor_sum_is_the_sum(n: int, m: int, a: int, b: int) -> None:
    arrays = (np.array([x, x]) for x in (n, m, a, b))
    assert floor_sum(*arrays).tolist() == [sum((a * i + b) // m for i in range(n))] * 2


def test_a_window_counts_the_query_itself() -> None:
    assert Mask.sliding_window(1).visible_pairs(7, 7) == 7
    assert Mask.sliding_window(3).visible_pairs(100, 100) == 3 * 100 - 3
    assert Mask.sliding_window(3, causal=False).visible_pairs(100, 100) == 5 * 100 - 6
    assert Mask.sliding_window(100).visible_pairs(100, 100) == Mask.causal().visible_pairs(100, 100) == 5050


@pytest.mark.parametrize(
    ("build", "words"),
    [(lambda: Mask(left=-1), "left is -1"), (lambda: Mask.sliding_window(0), "window is 0")],
)
def test_bad_masks_are_refused(build: object, words: str) -> None:
    assert callable(build)
    with pytest.raises(InputError, match=words):
        build()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("causal, window 512", []),
        ("left 512, causal", ["causal window 513"]),
        ("global 512", []),
        ("global at 3 512, window 4", ["global at 3 512"]),
        ("dilated 3 step 300, strided 511", ["dilated 3 step 300"]),
        ("blocks 64 0:0 8:8", ["blocks 64 0:0 8:8"]),
        ("block window 8x64, random 9x64", ["block window 8x64", "random 9x64 seed 0"]),
        ("prefix 513", ["prefix 513"]),
    ],
)
def test_what_reaches_beyond_the_sequence_is_told(text: str, told: list[str]) -> None:
    assert Mask.parse(text).beyond(512) == tuple(f"mask '{one}' reaches beyond the 512 keys" for one in told)
