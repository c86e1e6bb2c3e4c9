"""List scheduling: thread blocks go in launch order, each to the place that is free first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from math import ceil

import numpy as np

from attnsim.models.arrays import Floats
from attnsim.models.by_hand import by_hand
from attnsim.models.schedule.schedule import Launch
from attnsim.simulator.players import faster

ONE_BY_ONE = by_hand(
    20_000, "blocks of a grid that are handed out one by one; those between are work that places share"
)
QUEUES = by_hand(8, "different times of blocks up to which compiled code keeps a queue for each, and no heap")


def ends_of_places(launches: Sequence[Launch], durations: Floats, places: int) -> Floats:
    """When the last block of each place ends, in ascending order.

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
        free = np.full(places, blocks // places)
        free[places - blocks % places :] += 1
        return np.asarray(free * durations[0], float)
    free, one_by_one = np.zeros(places), _hand_out(durations)
    for launch in launches:
        kinds = durations[launch.classes]
        size, work = len(kinds) * launch.times, launch.times * float(kinds.sum())
        # Of its beginning, and of its end: at least what runs beside the longest block.
        some = ONE_BY_ONE * size // blocks // 2
        last = max(some, ceil(places * kinds.max() / max(1.0, work / size)))
        if size <= max(4 * places, some + last):
            one_by_one(free, _repeated(kinds, launch.times))
            continue
        some_turns = _repeated(kinds, min(launch.times, -(-last // len(kinds))))
        first, final = some_turns[:some], some_turns[-last:]
        left = work - float(first.sum() + final.sum())
        one_by_one(free, first)
        _share(free, left, left / (size - some - last))
        one_by_one(free, final)
    return np.sort(free)


def _repeated(values: Floats, times: int) -> Floats:
    return np.broadcast_to(values, (times, len(values))).reshape(-1)


@dataclass(frozen=True, slots=True)
class Speeds:
    """How fast a block runs where it waits for few others, relative to how it runs while all places are busy.

    Parameters
    ----------
    alone, beside : float
        On an SM of its own, and beside as many as fit the SM; the memory free.
    memory : float
        Share of the time in which the memory is busy while all places are.
    """

    alone: float
    beside: float
    memory: float


def drained(ends: Floats, speeds: Speeds) -> float:
    """When all is done if blocks run faster while the places around them are free.

    They share what they wait for: the memory, and an SM. As long as there are more blocks all places are busy, and what
    a block takes then is its length. From then on, at n of N places, those beside it on its SM are busy with the chance
    that any is, and all together ask no more of the memory than it gives.

    Parameters
    ----------
    ends : ndarray, shape [places]
        Of :func:`ends_of_places`.
    speeds : Speeds
    """
    places = len(ends)
    busy = np.arange(places - 1, 0, -1)
    idle = 1 - (busy - 1) / max(1, places - 1)  # of the places beside one that is busy
    on_its_sm = speeds.beside + (speeds.alone - speeds.beside) * idle
    speed = np.maximum(1.0, np.minimum(on_its_sm, places / busy / max(speeds.memory, 1 / places)))
    return float(ends[0] + np.diff(ends) @ (1 / speed))


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


def in_heap(free: Floats, durations: Floats) -> None:
    """The same, compiled in half the time: the heap is an array, with one beside the last that is never chosen."""
    places = len(free)
    heap = np.full(places + 1, np.inf)
    heap[:places] = np.sort(free)
    for duration in durations:
        end, place, child = heap[0] + duration, 0, 1
        while child < places:
            child += heap[child + 1] < heap[child]
            if heap[child] >= end:
                break
            heap[place] = heap[child]
            place, child = child, 2 * child + 1
        heap[place] = end
    free[:] = heap[:places]


def in_queues(free: Floats, durations: Floats, kinds: Floats) -> None:
    """The same where durations are of few kinds: blocks of one end in the order in which they begin."""
    queues, places = len(kinds), len(free)
    ends = np.empty((queues + 1, places + len(durations) + 1))  # the last queue is of those that are free before
    first, last = np.zeros(queues + 1, np.int64), np.zeros(queues + 1, np.int64)
    ends[:, 0] = ends[queues, places] = np.inf
    ends[queues, :places] = np.sort(free)
    last[queues] = places
    for duration in durations:
        earliest = kind = 0
        for queue in range(1, queues + 1):
            if ends[queue, first[queue]] < ends[earliest, first[earliest]]:
                earliest = queue
        while kinds[kind] != duration:
            kind += 1
        ends[kind, last[kind]] = ends[earliest, first[earliest]] + duration
        first[earliest] += 1
        last[kind] += 1
        ends[kind, last[kind]] = np.inf
    at = 0
    for queue in range(queues + 1):
        left = ends[queue, first[queue] : last[queue]]
        free[at : at + len(left)] = left
        at += len(left)


def _hand_out(durations: Floats) -> Callable[[Floats, Floats], None]:
    """The quickest of them."""
    queued, kinds = faster(in_queues), np.array(sorted(set(durations.tolist())))
    if queued is in_queues:
        return hand_out
    if len(kinds) > QUEUES:
        return faster(in_heap)
    return lambda free, handed: queued(free, handed, kinds)
