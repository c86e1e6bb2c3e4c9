"""List scheduling: thread blocks handed out in launch order, each to the slot that is free first."""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace

import numpy as np
from numpy.typing import NDArray


def list_scheduling(free: list[float], durations: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """Hand blocks out in order, each to the slot that is free first, the lowest of those free at one time.

    Blocks of one duration and slots free at one time are handled together: SMs that begin together and run equal blocks
    stay together.

    Parameters
    ----------
    free : list of float
        When each slot is free.
    durations : ndarray, shape [blocks]
        At least one.

    Returns
    -------
    float, ndarray of shape [slots]
        When the last block begins, and how long after that each slot is free.
    """
    slots: dict[float, list[int]] = {}
    for slot, at in enumerate(free):
        slots.setdefault(at, []).append(slot)
    times = sorted(slots)
    starts = np.flatnonzero(np.diff(durations, prepend=np.inf))
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
    after = np.empty(len(free))
    for at, members in slots.items():
        after[members] = at - begin
    return begin, after
