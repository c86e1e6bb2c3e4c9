"""List scheduling against handing out one block at a time."""

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnsim.models.jit import jit
from attnsim.models.schedule.schedule import Launch
from attnsim.simulator import dispatch
from attnsim.simulator.dispatch import hand_out, in_queues, makespan

LAUNCHES = st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=9), st.integers(1, 5)), min_size=1)


def launched(*launches: tuple[list[int], int]) -> list[Launch]:
    return [Launch(np.array(classes), times) for classes, times in launches]


def one_by_one(launches: list[Launch], durations: np.ndarray, places: int) -> float:
    """Each block to the place that is free first."""
    free = [0.0] * places
    for launch in launches:
        for block_class in launch.classes.tolist() * launch.times:
            heapq.heapreplace(free, free[0] + durations[block_class])
    return max(free)


@given(launches=LAUNCHES, durations=st.lists(st.floats(0, 9), min_size=3, max_size=3), places=st.integers(1, 9))
def test_a_short_launch_is_handed_out_one_by_one(
    launches: list[tuple[list[int], int]], durations: list[float], places: int
) -> None:
    blocks, times = launched(*launches), np.array(durations)
    assert makespan(blocks, times, places) == pytest.approx(one_by_one(blocks, times, places), rel=1e-12)


@given(blocks=st.integers(1, 99), places=st.integers(1, 9))
def test_equal_blocks_take_whole_waves(blocks: int, places: int) -> None:
    launches, times = launched(([0], blocks)), np.array([3.0])
    assert makespan(launches, times, places) == one_by_one(launches, times, places)


@pytest.mark.parametrize("long", [4.0, 400.0, 2e4])
def test_the_middle_of_a_long_launch_is_shared_by_those_free_before_it_is_done(
    long: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 0.01 % of all one by one, also beside a block that takes longer than all others together."""
    monkeypatch.setattr(dispatch, "ONE_BY_ONE", 600)
    handed: list[int] = []

    def counted(free: np.ndarray, durations: np.ndarray) -> None:
        handed.append(len(durations))
        hand_out(free, durations)

    monkeypatch.setattr(dispatch, "faster", lambda plain: plain)
    monkeypatch.setattr(dispatch, "hand_out", counted)
    draw = np.random.default_rng(1)
    launches, times = launched(([3], 1), (draw.integers(3, size=400).tolist(), 30)), np.array([1.0, 1.7, 0.3, long])
    assert makespan(launches, times, 16) == pytest.approx(one_by_one(launches, times, 16), rel=1e-4)
    assert sum(handed) < 700
    if long > 2e3:
        assert makespan(launches, times, 16) == long


@settings(deadline=None)  # it is compiled once
@given(free=st.lists(st.floats(0, 9), min_size=1, max_size=9), durations=st.lists(st.floats(0, 9), max_size=40))
def test_compiled_code_hands_out_the_same(free: list[float], durations: list[float]) -> None:
    plain, fast, queued = np.array(free), np.array(free), np.array(free)
    hand_out(plain, np.array(durations))
    jit(hand_out)(fast, np.array(durations))
    jit(in_queues)(queued, np.array(durations), np.unique(durations))
    assert plain.tolist() == fast.tolist()
    assert sorted(plain.tolist()) == sorted(queued.tolist())
