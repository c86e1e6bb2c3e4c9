"""Grids of millions of blocks are held and counted by what repeats in them: the same blocks as one by one."""

from __future__ import annotations

import numpy as np
import pytest

from attnsim.models.mask.mask import Mask
from attnsim.models.question.selection import Selection, compressed_pairs, visible_pairs, walked
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.row_tiles import classes, row_tiles
from attnsim.models.schedule.schedule import Launch


@pytest.mark.parametrize("each", [1, 2, 3])
@pytest.mark.parametrize("shape", [(5,), (4, 3), (1, 7)])
def test_blocks_are_those_of_the_grid_written_out(shape: tuple[int, ...], each: int) -> None:
    rows = np.random.default_rng(1).integers(6, size=shape)
    launch = Launch(rows, times=2, each=each)
    written = np.repeat(rows, each, axis=0).reshape(-1)
    assert len(launch) == len(written) and launch.classes.tolist() == written.tolist()
    assert launch.at(np.arange(2 * len(written))).tolist() == np.tile(written, 2).tolist()
    assert launch.counts.tolist() == np.bincount(written).tolist()


def test_a_grid_is_the_same_however_it_is_held() -> None:
    rows = np.array([2, 0, 1])
    held = Launch(rows, each=4)
    assert held.same(Launch(np.repeat(rows, 4))) and held.same(Launch(rows.copy(), each=4))
    assert not held.same(Launch(rows, 2, each=4)) and not held.same(Launch(rows[::-1], each=4))
    assert not held.same(Launch(rows, each=2))


def test_ranges_of_keys_are_equal_but_for_the_last() -> None:
    """Ten tiles of 64 keys in three ranges: four, four and two; of what two causal row tiles see, half each."""
    full = Workload(1, 1, 128, 64, seq_kv=640)
    assert [row_tiles(full, 64, 64, split=n, splits=3).steps.tolist() for n in range(3)] == [[4, 4], [4, 4], [2, 2]]
    causal = Workload(1, 1, 128, 64, seq_kv=640, mask=Mask.causal())  # 9 and 10 tiles
    halves = [row_tiles(causal, 64, 64, split=n, splits=2, of_seen=True).steps.tolist() for n in range(2)]
    assert halves == [[5, 5], [4, 5]]


def test_classes_are_the_distinct_rows_of_a_table() -> None:
    for far in (1, 1 << 20):  # counted, and sorted where the values lie far apart
        (one, two), of = classes(np.array([5, 3, 5, 3] * 2) * far, np.array([1, 1, 2, 1] * 2))
        assert (one.tolist(), two.tolist(), of.tolist()) == ([3 * far, 5 * far, 5 * far], [1, 1, 2], [1, 0, 2, 0] * 2)


@pytest.mark.parametrize("text", ["top 16x64, compress 32 step 16, window 512", "top 3x512", "top 2x128, anywhere"])
def test_pairs_of_a_selection_are_those_of_its_queries(text: str) -> None:
    s = Selection.parse(text)
    for seq in (1025, 2048, 5000, 8191):
        query = np.arange(seq)
        if not s.anywhere:
            assert walked(s, seq).tolist() == np.minimum(s.top, query // s.block + 1).tolist()
            own = query % s.block + 1  # keys of its own block that are not in its future
            assert visible_pairs(s, seq) == ((walked(s, seq) - 1) * s.block + own).sum()
        else:
            assert visible_pairs(s, seq) == walked(s, seq).sum() * s.block
        if s.compress:
            last = np.arange(s.compressed_keys(seq)) * s.step + s.compress - 1
            assert compressed_pairs(s, seq) == (query[:, None] >= last).sum()
