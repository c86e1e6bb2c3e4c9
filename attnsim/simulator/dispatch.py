"""List scheduling: thread blocks go in launch order, each to the place that is free first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from math import ceil

import numpy as np

from attnsim.arrays import Floats
from attnsim.by_hand import by_hand
from attnsim.models.schedule.schedule import Launch
from attnsim.simulator.players import faster

ONE_BY_ONE = by_hand(
    10_000, "blocks of a grid that are handed out one by one; those between are work that places share"
)


def ends_of_places(launches: Sequence[Launch], durations: Floats, places: int) -> Floats:
    """When the last block of each place ends, shape [places]; the first places are those that first get a block.

    Parameters
    ----------
    launches : sequence of Launch
    durations : ndarray, shape [classes]
        Of a block of each class, in picoseconds.
    places : int
        Blocks that run at the same time.
    """
    blocks = sum(len(launch) * launch.times for launch in launches)
    if len(durations) == 1:
        return np.asarray((blocks // places + (np.arange(places) < blocks % places)) * durations[0], float)
    unit = max(1.0, (blocks + places) * float(durations.max()) / 2**52)
    # Times are whole numbers, with the number of a place as the rest of a division.
    free, handed = np.arange(places, dtype=float), np.rint(durations / unit) * places
    one_by_one = faster(hand_out)
    for launch in launches:
        size = len(launch) * launch.times
        some = last = ONE_BY_ONE * size // blocks // 2  # of its beginning, and of its end
        rounds = 0
        if size > 4 * places:
            counts, kinds = launch.counts, handed[: len(launch.counts)]
            work = launch.times * float(counts @ kinds)
            # At the end at least what runs beside the longest block.
            last = max(last, ceil(places * kinds[counts > 0].max() / max(1.0, work / size)))
            rounds = (size - some - last) // places
        if rounds < 1:
            one_by_one(free, handed[launch.at(np.arange(size))])
            continue
        some = size - last - rounds * places
        first, final = handed[launch.at(np.arange(some))], handed[launch.at(np.arange(size - last, size))]
        left = work - float(first.sum() + final.sum())
        one_by_one(free, first)
        _share(free, left, max(1.0, left / (rounds * places)))
        one_by_one(free, final)
    ends = np.empty(places)
    ends[(free % places).astype(int)] = free // places * unit
    return ends


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


def drained(ends: Floats, sms: int, speeds: Speeds) -> Floats:
    """When places are done if blocks run faster while those around them are free, in ascending order.

    They share what they wait for: the memory, and an SM. As long as there are more blocks all places are busy, and what
    a block takes then is its length. From then on those of an SM are the faster the fewer they are, but all together
    ask no more of the memory than it gives.

    Parameters
    ----------
    ends : ndarray, shape [places]
        Of :func:`ends_of_places`; a place is on the SM that is the rest of its number.
    sms : int
    speeds : Speeds
    """
    left = np.sort((ends - ends.min()).reshape(-1, sms), axis=0)
    running = np.arange(len(left), 0, -1)[:, None]  # blocks of its SM until one ends
    speed = speeds.beside + (speeds.alone - speeds.beside) * (1 - (running - 1) / max(1, len(left) - 1))
    done = (_differences(left) / speed).cumsum(axis=0)  # where the memory holds nobody up
    less = running * speed - np.append(running[1:] * speed[1:], [[0.0]], axis=0)  # is done at a time once one ends
    order = done.argsort(axis=None)
    less = np.broadcast_to(less, left.shape).reshape(-1)[order]
    asked = speeds.memory * (less[::-1].cumsum()[::-1] / len(ends))
    return np.asarray(ends.min() + (_differences(done.reshape(-1)[order]) * np.maximum(1.0, asked)).cumsum())


def _share(free: Floats, work: float, usual: float) -> None:
    """Let places share work who are free before it is done; each keeps how far it is ahead, but for whole usual blocks.

    A lead of up to one and a half blocks is kept, as each round gives each place one; of more 0.5 to 1.5 are left.
    """
    order = free.argsort(kind="stable")
    times = free[order]
    needed = times[1:] * np.arange(1, len(times)) - times[:-1].cumsum()  # to bring all before a place up to it
    count = int((needed < work).sum()) + 1
    phase = times[:count] - times[0]
    phase -= usual * np.maximum(0, (phase - usual / 2) // usual)
    shared = (times[:count].sum() + work) / count + phase - phase.mean()
    free[order[:count]] = shared // len(free) * len(free) + times[:count] % len(free)


def _differences(values: Floats) -> Floats:
    """Of values from those before them, the first from 0: `np.diff` with a beginning, in a tenth of the time."""
    found = values.copy()
    found[1:] -= values[:-1]
    return found


def hand_out(free: Floats, durations: Floats) -> None:
    """Hand blocks out one by one; `free` is when each place is free, before and after."""
    heap = list(free)
    heapify(heap)
    for duration in durations:
        heapreplace(heap, heap[0] + duration)
    free[:] = np.array(heap)
