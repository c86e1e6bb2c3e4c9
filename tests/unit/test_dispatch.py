"""List scheduling and the tail: many blocks at once against one block at a time."""

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnsim.simulator.dispatch import drain, list_scheduling, shared_out

TIMES = st.sampled_from([0.0, 0.1, 0.3, 1.0, 2.5])


def one_by_one(free: list[float], durations: list[float]) -> tuple[float, list[float]]:
    """Each block to the slot that is free first, the lowest of those free at one time."""
    queue = sorted((at, slot) for slot, at in enumerate(free))
    begin = queue[0][0]
    for duration in durations:
        begin, slot = queue[0]
        heapq.heapreplace(queue, (begin + duration, slot))
    return begin, [at - begin for at, _ in sorted(queue, key=lambda item: item[1])]


@given(
    free=st.lists(TIMES, min_size=1, max_size=9),
    alike=st.integers(1, 3),
    runs=st.lists(st.tuples(TIMES, st.integers(1, 12)), min_size=1, max_size=9),
)
def test_groups_change_nothing(free: list[float], alike: int, runs: list[tuple[float, int]]) -> None:
    durations = [duration for duration, count in runs for _ in range(count)]
    every = [at for at in free for _ in range(alike)]
    begin, after = list_scheduling(np.array(every), np.array(durations))
    assert (begin, after.tolist()) == one_by_one(every, durations)


def followed(remaining: np.ndarray, running: int, alone: list[float], memory: float) -> float:
    """Every end of a block an event of its own."""
    left, elapsed, planned = remaining.copy(), 0.0, max(alone[-1], running * memory)
    while (left > 0).any():
        on_sm = (left > 0).sum(axis=0)
        pace = np.array([max(alone[max(k, 1)], on_sm.sum() * memory) for k in on_sm]) / planned
        ends = np.where(left > 0, left * pace, np.inf)
        elapsed += ends.min()
        left = np.where(ends <= ends.min() * (1 + 1e-12), 0.0, np.maximum(left - ends.min() / pace, 0.0))
    return elapsed


@given(
    columns=st.lists(st.lists(st.floats(0, 5), min_size=3, max_size=3), min_size=1, max_size=6),
    more=st.lists(st.floats(0, 2), min_size=2, max_size=2),
    memory=st.sampled_from([0.0, 0.01, 0.1, 0.3, 1.0]),
)
def test_a_tail_takes_what_following_every_block_says(
    columns: list[list[float]], more: list[float], memory: float
) -> None:
    remaining = np.array(columns).T
    alone = np.concatenate([[0.0], np.cumsum([1.0, *more])])
    expected = followed(remaining, remaining.size, alone.tolist(), memory)
    assert drain(remaining, remaining.size, alone, memory) == pytest.approx(expected, rel=0.03, abs=1e-9)


def test_a_tail_that_memory_holds_up_or_nobody_is_exact() -> None:
    draw = np.random.default_rng(0)
    remaining = draw.random((4, 20))
    alone = np.array([0.0, 1.0, 1.5, 2.0, 2.5])
    for memory in (0.0, 1 / 80, 3.0):
        expected = followed(remaining, 80, alone.tolist(), memory)
        assert drain(remaining, 80, alone, memory) == pytest.approx(expected, rel=1e-9)


@given(remaining=st.lists(st.floats(0, 5), min_size=1, max_size=12), work=st.floats(0.01, 100))
def test_work_left_over_is_done_by_those_who_have_time(remaining: list[float], work: float) -> None:
    begins = np.array(remaining)
    time, after = shared_out(begins, work)
    outlasting = after != begins
    assert time * (~outlasting).sum() == pytest.approx(work)
    assert (after >= -1e-12).all()
    assert after[outlasting] + time == pytest.approx(begins[outlasting])  # they end when they would have ended
