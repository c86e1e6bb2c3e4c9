"""List scheduling against handing out one block at a time."""

import heapq
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnsim.models.jit import jit
from attnsim.models.schedule.schedule import Launch
from attnsim.simulator import dispatch
from attnsim.simulator.dispatch import Speeds, drained, ends_of_places, hand_out, in_heap, in_queues

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
    assert ends_of_places(blocks, times, places)[-1] == pytest.approx(one_by_one(blocks, times, places), rel=1e-12)


@given(blocks=st.integers(1, 99), places=st.integers(1, 9))
def test_equal_blocks_take_whole_waves(blocks: int, places: int) -> None:
    launches, times = launched(([0], blocks)), np.array([3.0])
    assert ends_of_places(launches, times, places)[-1] == one_by_one(launches, times, places)


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
    assert ends_of_places(launches, times, 16)[-1] == pytest.approx(one_by_one(launches, times, 16), rel=1e-4)
    assert sum(handed) < 700
    if long > 2e3:
        assert ends_of_places(launches, times, 16)[-1] == long


ENDS = st.lists(st.floats(0.1, 9), min_size=2, max_size=20).map(sorted).map(np.array)


SPEEDS = st.builds(
    lambda beside, more, memory: Speeds(beside * more, beside, memory),
    st.floats(1, 9),
    st.floats(1, 4),
    st.floats(0, 1),
)


@given(ends=ENDS, speeds=SPEEDS)
def test_a_grid_that_drains_faster_is_done_earlier(ends: np.ndarray, speeds: Speeds) -> None:
    """Never before the memory has moved all, never later than by list scheduling, never sooner by a slower block."""
    done = drained(ends, speeds)
    assert speeds.memory * ends.mean() <= done * (1 + 1e-9) and done <= ends[-1] * (1 + 1e-9)
    assert drained(ends, Speeds(1.0, 1.0, speeds.memory)) == pytest.approx(ends[-1])
    assert done <= drained(ends, Speeds(speeds.beside, speeds.beside, speeds.memory)) * (1 + 1e-9)
    assert drained(ends, replace(speeds, memory=0.0)) <= done * (1 + 1e-9)


def test_two_places_of_which_one_is_alone_for_half_of_the_time() -> None:
    ends = np.array([1.0, 3.0])
    assert [drained(ends, Speeds(alone, 1.0, 1.0)) for alone in (1.0, 1.6, 9.0)] == [3.0, 2.25, 2.0]
    assert drained(ends, Speeds(4.0, 1.0, 0.5)) == 1.5  # twice the places' share, at half the memory's use


def test_a_block_is_as_fast_as_its_neighbours_leave_it() -> None:
    """Of three places, two on an SM's units: the second is beside another half the time, the last is alone."""
    ends = np.array([1.0, 2.5, 4.5])
    assert drained(ends, Speeds(2.0, 1.0, 0.0)) == pytest.approx(1.0 + 1.5 / 1.5 + 2.0 / 2.0)


@settings(deadline=None)  # it is compiled once
@given(free=st.lists(st.floats(0, 9), min_size=1, max_size=9), durations=st.lists(st.floats(0, 9), max_size=40))
def test_compiled_code_hands_out_the_same(free: list[float], durations: list[float]) -> None:
    plain, heaped, queued = np.array(free), np.array(free), np.array(free)
    hand_out(plain, np.array(durations))
    jit(in_heap)(heaped, np.array(durations))
    jit(in_queues)(queued, np.array(durations), np.unique(durations))
    assert sorted(plain.tolist()) == sorted(heaped.tolist()) == sorted(queued.tolist())


def test_a_long_block_in_the_middle_of_a_long_launch_keeps_its_place() -> None:
    """It outlasts the launch: places that shared it as work would be done far too early."""
    launches, times = launched(([0] * 25_000 + [1] + [0] * 15_000, 1)), np.array([1.0, 3000.0])
    assert one_by_one(launches, times, 10) == 2500 + 3000
    assert ends_of_places(launches, times, 10)[-1] == pytest.approx(5500, abs=1)
