"""List scheduling in groups against list scheduling block by block."""

import heapq

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from attnsim.simulator.dispatch import list_scheduling

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
    begin, after = list_scheduling(free, alike, np.array(durations))
    every = [at for at in free for _ in range(alike)]
    assert (begin, after.tolist()) == one_by_one(every, durations)
