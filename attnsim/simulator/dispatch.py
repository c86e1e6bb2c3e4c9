"""List scheduling: thread blocks go in launch order, each to the place that is free first."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace

import numpy as np

from attnsim.models.arrays import Floats
from attnsim.models.by_hand import by_hand
from attnsim.models.schedule.schedule import Launch
from attnsim.simulator.players import faster

ONE_BY_ONE = by_hand(
    20_000, "blocks of a grid that are handed out one by one; those between are work that places share"
)


def makespan(launches: Sequence[Launch], durations: Floats, places: int) -> float:
    """When the last block of some launches ends.

    Parameters
    ----------
    launches : sequence of Launch
    durations : ndarray, shape [classes]
        Of a block of each class.
    places : int
        Blocks that run at the same time.
    """
    blocks = sum(len(launch.classes) * launch.times for launch in launches)
    if len(durations) == 1:
        return -(-blocks // places) * float(durations[0])
    free, one_by_one = np.zeros(places), faster(hand_out)
    for launch in launches:
        size = len(launch.classes) * launch.times
        some = ONE_BY_ONE * size // blocks // 2  # of its beginning, and of its end
        if size <= max(4 * places, 2 * some):
            one_by_one(free, durations[np.tile(launch.classes, launch.times)])
            continue
        order = np.tile(launch.classes, min(launch.times, -(-some // len(launch.classes))))
        first, final = durations[order[:some]], durations[order[-some:]]
        left = launch.times * float(durations[launch.classes].sum()) - float(first.sum() + final.sum())
        one_by_one(free, first)
        _share(free, left, left / (size - 2 * some))
        one_by_one(free, final)
    return float(free.max())


def _share(free: Floats, work: float, usual: float) -> None:
    """Let places share work who are free before it is done; each keeps its phase within the usual block."""
    order = free.argsort(kind="stable")
    times = free[order]
    needed = times[1:] * np.arange(1, len(times)) - times[:-1].cumsum()  # to bring all before a place up to it
    count = int((needed < work).sum()) + 1
    phase = times[:count] % usual
    free[order[:count]] = (times[:count].sum() + work) / count + phase - phase.mean()


def hand_out(free: Floats, durations: Floats) -> None:
    """Hand blocks out one by one; `free` is when each place is free, before and after."""
    heap = list(free)
    heapify(heap)
    for duration in durations:
        heapreplace(heap, heap[0] + duration)
    free[:] = np.array(heap)
