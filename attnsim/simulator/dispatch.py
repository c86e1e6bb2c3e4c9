"""List scheduling: thread blocks handed out in launch order, each to the slot that is free first."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace

import numpy as np
from numpy.typing import NDArray


def list_scheduling(
    free: Sequence[float], alike: int, durations: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64]]:
    """Hand blocks out in order, each to the slot that is free first, the lowest of those free at one time.

    Blocks of one duration and slots free at one time are handled together: SMs that begin together and run equal blocks
    stay together.

    Parameters
    ----------
    free : sequence of float
        When slots are free, given once for every `alike` slots that follow each other.
    alike : int
    durations : ndarray, shape [blocks]
        At least one.

    Returns
    -------
    float, ndarray of shape [slots]
        When the last block begins, and how long after that each slot is free.
    """
    starts = np.flatnonzero(np.diff(durations, prepend=np.inf))
    if 2 * len(starts) > len(durations):
        return _one_by_one(free, alike, durations)
    slots: dict[float, list[int]] = {}
    for place, at in enumerate(free):
        slots.setdefault(at, []).extend(range(place * alike, (place + 1) * alike))
    times = sorted(slots)
    lengths = np.diff(starts, append=len(durations))
    begin = times[0]
    for duration, waiting in zip(durations[starts].tolist(), lengths.tolist(), strict=True):
        left = waiting
        while left > 0:
            begin = times[0]
            end = begin + duration
            taken = slots.pop(begin)
            if left < len(taken):  # the other slots stay free
                taken.sort()
                taken, slots[begin] = taken[:left], taken[left:]
                if end not in slots:
                    heappush(times, end)
            elif end in slots:
                heappop(times)
            else:
                heapreplace(times, end)
            left -= len(taken)
            if end in slots:
                slots[end] += taken
            else:
                slots[end] = taken
    after = np.empty(len(free) * alike)
    for at, members in slots.items():
        after[members] = at - begin
    return begin, after


def _one_by_one(free: Sequence[float], alike: int, durations: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """The same for blocks of which hardly any is as long as the one before."""
    slots = sorted((at, place * alike + n) for place, at in enumerate(free) for n in range(alike))
    begin = slots[0][0]
    for duration in durations.tolist():
        begin, slot = slots[0]
        heapreplace(slots, (begin + duration, slot))
    after = np.empty(len(slots))
    for at, slot in slots:
        after[slot] = at - begin
    return begin, after
