"""List scheduling: thread blocks start in launch order, each in the slot that becomes free first."""

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
    10_000, "blocks of a grid that are assigned one by one; the work of the others is divided among the slots"
)


def slot_ends(launches: Sequence[Launch], durations: Floats, slots: int) -> Floats:
    """Time at which the last block of each slot ends, shape [slots], in the order in which slots get a first block.

    Parameters
    ----------
    durations : ndarray, shape [classes]
        Duration of a block of each class, in picoseconds.
    slots : int
        Blocks that run at the same time.
    """
    blocks = sum(len(launch) * launch.times for launch in launches)
    if len(durations) == 1:
        return np.asarray((blocks // slots + (np.arange(slots) < blocks % slots)) * durations[0], float)
    unit = max(1.0, (blocks + slots) * float(durations.max()) / 2**52)
    # A time is a whole number of units times `slots`, plus the number of the slot.
    free, handed = np.arange(slots, dtype=float), np.rint(durations / unit) * slots
    one_by_one = faster(hand_out)
    for launch in launches:
        size = len(launch) * launch.times
        some = last = ONE_BY_ONE * size // blocks // 2  # blocks at its beginning, and at its end
        rounds = 0
        if size > 4 * slots:
            counts, kinds = launch.counts, handed[: len(launch.counts)]
            work = launch.times * float(counts @ kinds)
            # The end includes at least the blocks that run at the same time as the longest block.
            last = max(last, ceil(slots * kinds[counts > 0].max() / max(1.0, work / size)))
            rounds = (size - some - last) // slots
        if rounds < 1:
            one_by_one(free, handed[launch.at(np.arange(size))])
            continue
        some = size - last - rounds * slots
        first, final = handed[launch.at(np.arange(some))], handed[launch.at(np.arange(size - last, size))]
        left = work - float(first.sum() + final.sum())
        one_by_one(free, first)
        _share(free, left, max(1.0, left / (rounds * slots)))
        one_by_one(free, final)
    ends = np.empty(slots)
    ends[(free % slots).astype(int)] = free // slots * unit
    return ends


@dataclass(frozen=True, slots=True)
class Speeds:
    """Speed of a block while few others run, relative to its speed while all slots are busy.

    Parameters
    ----------
    alone : float
        Speed of the only block of an SM while the memory is idle.
    full_sm : float
        Speed beside as many resident blocks as fit the SM while the memory is idle.
    memory : float
        Utilisation of the memory while all slots are busy.
    """

    alone: float
    full_sm: float
    memory: float


def drained(ends: Floats, sms: int, speeds: Speeds) -> Floats:
    """Times at which slots finish if blocks run faster while other slots are free, in ascending order.

    Until the last block has started, all slots are busy and a block takes its full duration. After that, blocks of an
    SM run the faster the fewer they are, but all blocks together never exceed the memory bandwidth.

    Parameters
    ----------
    ends : ndarray, shape [slots]
        Result of :func:`slot_ends`. Slot i is on SM i mod `sms`.
    """
    left = np.sort((ends - ends.min()).reshape(-1, sms), axis=0)
    running = np.arange(len(left), 0, -1)[:, None]  # blocks of its SM until one ends
    speed = speeds.full_sm + (speeds.alone - speeds.full_sm) * (1 - (running - 1) / max(1, len(left) - 1))
    done = (_differences(left) / speed).cumsum(axis=0)  # if memory bandwidth were unlimited
    less = running * speed - np.append(running[1:] * speed[1:], [[0.0]], axis=0)  # lost rate once a block ends
    order = done.argsort(axis=None)
    less = np.broadcast_to(less, left.shape).reshape(-1)[order]
    asked = speeds.memory * (less[::-1].cumsum()[::-1] / len(ends))
    return np.asarray(ends.min() + (_differences(done.reshape(-1)[order]) * np.maximum(1.0, asked)).cumsum())


def _share(free: Floats, work: float, usual: float) -> None:
    """Distribute `work` over the slots that are free before it is done; each slot keeps its lead over the others.

    A lead of up to one and a half blocks is kept, as each round gives each slot one block. A larger lead is reduced by
    whole usual blocks to between 0.5 and 1.5 of one.
    """
    order = free.argsort(kind="stable")
    times = free[order]
    needed = times[1:] * np.arange(1, len(times)) - times[:-1].cumsum()  # work that fills all slots up to the next
    count = int((needed < work).sum()) + 1
    phase = times[:count] - times[0]
    phase -= usual * np.maximum(0, (phase - usual / 2) // usual)
    shared = (times[:count].sum() + work) / count + phase - phase.mean()
    free[order[:count]] = shared // len(free) * len(free) + times[:count] % len(free)


def _differences(values: Floats) -> Floats:
    """Differences between successive values, the first from 0: `np.diff` with a start value, in a tenth of the time."""
    found = values.copy()
    found[1:] -= values[:-1]
    return found


def hand_out(free: Floats, durations: Floats) -> None:
    """Assign blocks to slots one by one; `free` holds when each slot is free and is updated in place."""
    heap = list(free)
    heapify(heap)
    for duration in durations:
        heapreplace(heap, heap[0] + duration)
    free[:] = np.array(heap)
