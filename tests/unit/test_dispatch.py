"""List scheduling against handing out one block at a time."""

import heapq
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnsim.jit import jit
from attnsim.models.schedule.schedule import Launch
from attnsim.simulator import grid
from attnsim.simulator.grid import Speeds, drained, hand_out, slot_ends

LAUNCHES = st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=9), st.integers(1, 5)), min_size=1)


def launched(*launches: tuple[list[int], int]) -> list[Launch]:
    return [Launch(np.array(classes), times) for classes, times in launches]


def one_by_one(launches: list[Launch], durations: np.ndarray, slots: int) -> list[float]:
    """When slots end if each block goes to the one that is free first, the first of several."""
    free = [(0.0, slot) for slot in range(slots)]
    for launch in launches:
        for block_class in launch.classes.tolist() * launch.times:
            end, slot = free[0]
            heapq.heapreplace(free, (end + durations[block_class], slot))
    return [end for end, _ in sorted(free, key=lambda one: one[1])]


@settings(deadline=None)  # on a busy machine a launch takes longer than the usual limit
@given(launches=LAUNCHES, durations=st.lists(st.integers(0, 9), min_size=3, max_size=3), slots=st.integers(1, 9))
def test_a_short_launch_is_handed_out_one_by_one(
    launches: list[tuple[list[int], int]], durations: list[int], slots: int
) -> None:
    """Place by slot: which blocks share an SM in the end matters."""
    blocks, times = launched(*launches), np.array(durations, float)
    np.testing.assert_array_equal(slot_ends(blocks, times, slots), one_by_one(blocks, times, slots))


def test_times_too_long_to_be_whole_keep_their_places() -> None:
    """An hour in picoseconds, times 4,224 slots: more than a float holds."""
    launches, times = launched(([0, 1, 1, 0, 1], 2000)), np.array([1.2e15, 2.3e15])
    np.testing.assert_allclose(slot_ends(launches, times, 4224), one_by_one(launches, times, 4224), rtol=1e-9)


@given(blocks=st.integers(1, 99), slots=st.integers(1, 9))
def test_equal_blocks_take_whole_waves(blocks: int, slots: int) -> None:
    launches, times = launched(([0], blocks)), np.array([3.0])
    np.testing.assert_array_equal(slot_ends(launches, times, slots), one_by_one(launches, times, slots))


@pytest.mark.parametrize("long", [4.0, 400.0, 2e4])
def test_the_middle_of_a_long_launch_is_shared_by_those_free_before_it_is_done(
    long: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 0.01 % of all one by one, also beside a block that takes longer than all others together."""
    monkeypatch.setattr(grid, "ONE_BY_ONE", 600)
    handed: list[int] = []

    def counted(free: np.ndarray, durations: np.ndarray) -> None:
        handed.append(len(durations))
        hand_out(free, durations)

    monkeypatch.setattr(grid, "faster", lambda plain: plain)
    monkeypatch.setattr(grid, "hand_out", counted)
    draw = np.random.default_rng(1)
    launches = launched(([3], 1), (draw.integers(3, size=400).tolist(), 30))
    times = 1e9 * np.array([1.0, 1.7, 0.3, long])
    assert slot_ends(launches, times, 16).max() == pytest.approx(max(one_by_one(launches, times, 16)), rel=1e-4)
    assert sum(handed) < 700
    if long > 2e3:
        assert slot_ends(launches, times, 16).max() == pytest.approx(1e9 * long, rel=1e-9)


@pytest.mark.parametrize("times", [[3.0, 3.0, 3.0], [3.0, 3.001, 2.99], [3.0, 3.0, 2.9]])
@pytest.mark.parametrize("blocks", [2384, 2385, 2401, 2000])
def test_the_last_wave_of_blocks_that_are_about_equal_is_as_full_as_one_by_one(
    blocks: int, times: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Places that got a block more before the middle of a launch are still a block ahead after it."""
    monkeypatch.setattr(grid, "ONE_BY_ONE", 600)
    monkeypatch.setattr(grid, "faster", lambda plain: plain)
    launches, durations = launched(((np.arange(blocks) % 3).tolist(), 1)), 1e9 * np.array(times)
    shared, alone = (np.sort(of(launches, durations, 48)) for of in (slot_ends, one_by_one))
    np.testing.assert_allclose(shared, alone, rtol=2e-3)


ENDS = st.integers(1, 4).flatmap(
    lambda resident: st.lists(st.floats(0.1, 9), min_size=5 * resident, max_size=5 * resident).map(np.array)
)
"""Of slots on five SMs."""


SPEEDS = st.builds(
    lambda beside, more, memory: Speeds(beside * more, beside, memory),
    st.floats(1, 9),
    st.floats(1, 4),
    st.floats(0, 1),
)


@given(ends=ENDS, speeds=SPEEDS)
def test_a_grid_that_drains_faster_is_done_earlier(ends: np.ndarray, speeds: Speeds) -> None:
    """Never before the memory has moved all or without waiting for it; with free memory never sooner by slower blocks.

    Where the memory is asked for more than it gives, a block that is alone and fast takes some from those that are not:
    they may be done later than by list scheduling.
    """
    done = drained(ends, 5, speeds)
    assert speeds.memory * ends.mean() <= done[-1] * (1 + 1e-9)
    np.testing.assert_allclose(drained(ends, 5, Speeds(1.0, 1.0, speeds.memory)), np.sort(ends))
    free, slower = replace(speeds, memory=0.0), Speeds(speeds.full_sm, speeds.full_sm, 0.0)
    assert (drained(ends, 5, free) <= done * (1 + 1e-9)).all()
    assert (drained(ends, 5, free) <= np.sort(ends) * (1 + 1e-9)).all()
    assert (drained(ends, 5, free) <= drained(ends, 5, slower) * (1 + 1e-9)).all()


def test_two_places_of_which_one_is_alone_for_half_of_the_time() -> None:
    ends = np.array([1.0, 3.0])
    assert [drained(ends, 2, Speeds(alone, alone, 1.0))[-1] for alone in (1.0, 1.6, 9.0)] == [3.0, 2.25, 2.0]
    assert drained(ends, 2, Speeds(4.0, 4.0, 0.5))[-1] == 1.5  # twice the slots' share, at half the memory's use


def test_a_block_is_as_fast_as_those_beside_it_on_its_sm_leave_it() -> None:
    """Two SMs of two slots, the last blocks on one SM or on two."""
    speeds = Speeds(2.0, 1.0, 0.0)
    np.testing.assert_allclose(drained(np.array([1.0, 4.0, 1.0, 5.0]), 2, speeds), [1.0, 1.0, 4.0, 4.5])
    np.testing.assert_allclose(drained(np.array([4.0, 5.0, 1.0, 1.0]), 2, speeds), [1.0, 1.0, 2.5, 3.0])


@settings(deadline=None)  # it is compiled once
@given(free=st.lists(st.floats(0, 9), min_size=1, max_size=9), durations=st.lists(st.floats(0, 9), max_size=40))
def test_compiled_code_hands_out_the_same(free: list[float], durations: list[float]) -> None:
    plain, compiled = np.array(free), np.array(free)
    hand_out(plain, np.array(durations))
    jit(hand_out)(compiled, np.array(durations))
    np.testing.assert_array_equal(plain, compiled)


def test_a_long_block_in_the_middle_of_a_long_launch_keeps_its_place() -> None:
    """It outlasts the launch: slots that shared it as work would be done far too early."""
    launches, times = launched(([0] * 25_000 + [1] + [0] * 15_000, 1)), np.array([1.0, 3000.0])
    assert max(one_by_one(launches, times, 10)) == 2500 + 3000
    assert slot_ends(launches, times, 10).max() == pytest.approx(5500, abs=1)


@pytest.mark.parametrize("usual", [[1.0, 1.0], [1.0, 1.02]])
def test_blocks_that_begin_first_and_are_long_put_no_later_ones_off(usual: list[float]) -> None:
    """Their slots are hundreds of blocks ahead, and get none until the others come up (27 % too long before)."""
    launches, times = launched(([2], 96), ([0, 1], 45_000)), 1e7 * np.array([*usual, 470.0])
    assert slot_ends(launches, times, 216).max() == pytest.approx(max(one_by_one(launches, times, 216)), rel=2e-3)
