"""List scheduling: thread blocks go in launch order, each to the slot that is free first; and the tail of the grid."""

from __future__ import annotations

import numpy as np

from attnsim.models.arrays import Floats
from attnsim.models.by_hand import by_hand

TOGETHER = by_hand(0.02, "blocks that end within this share of the longest remaining time are one event of the tail")


def list_scheduling(free: Floats, durations: Floats) -> tuple[float, Floats]:
    """Hand blocks out in order, each to the slot that is free first; of slots free at one time, to the lowest.

    All blocks that begin before the first of them ends are handed out in one step.

    Parameters
    ----------
    free : ndarray, shape [slots]
        When slots are free.
    durations : ndarray, shape [blocks]
        At least one.

    Returns
    -------
    float, ndarray of shape [slots]
        When the last block begins, and how long after that each slot is free.
    """
    free, begin = free.copy(), 0.0
    while len(durations):
        first = free.argsort(kind="stable")[: len(durations)]
        begins = free[first]
        ends = begins + durations[: len(first)]
        late = begins[1:] >= np.minimum.accumulate(ends)[:-1]
        count = int(late.argmax()) + 1 if late.any() else len(first)
        free[first[:count]] = ends[:count]
        begin, durations = float(begins[count - 1]), durations[count:]
    return begin, free - begin


def shared_out(remaining: Floats, work: float) -> tuple[float, Floats]:
    """Treat the blocks of a long launch that list scheduling left over as work that slots share evenly.

    A slot whose block outlasts that work takes no part in it. The others end as far apart as they did before.

    Parameters
    ----------
    remaining : ndarray, shape [slots]
        Time until each slot is free.
    work : float
        Summed time of the blocks left over.

    Returns
    -------
    float, ndarray of shape [slots]
        When the last block begins, and how long after that each slot is free.
    """
    slots, last = len(remaining), remaining.argsort(kind="stable")[::-1]
    times = work / np.arange(slots, 0, -1)  # if none, one, ... of the slots have no part
    outlasting = int((remaining[last[:-1]] > times[1:]).sum())
    after = remaining.copy()
    after[last[:outlasting]] -= times[outlasting]
    return float(times[outlasting]), after


def drain(remaining: Floats, running: int, alone: Floats, memory: float) -> float:
    """Time until the last block ends once no more are waiting.

    A block that is left alone on its SM runs faster, and where memory is the limit every block runs faster as fewer
    blocks ask for it: a block takes ``max(alone[k], running * memory)`` with k blocks on its SM and `running` on the
    chip. While memory delays every block, all of them advance at one pace. Once it delays none, each SM is on its own.
    In between, blocks are followed from the end of one to the end of the next.

    Parameters
    ----------
    remaining : ndarray, shape [resident, SMs]
        Time that each block would still need if `running` blocks kept running; 0 where a slot is empty.
    running : int
    alone : ndarray, shape [resident + 1]
        Time of a block by the number of blocks on its SM; never falls.
    memory : float
        Time that the transfers of one block hold the chip's L2 or HBM.
    """
    left, elapsed = remaining, 0.0
    planned = max(alone[-1], running * memory)
    while running := int((alive := left > 0).sum()):
        if running * memory <= alone[1]:
            spans = np.diff(np.sort(left, axis=0), axis=0, prepend=0.0)  # while all run, all but one, ...
            return elapsed + float((alone[:0:-1] @ spans).max() / planned)
        if running * memory >= alone[-1]:
            leave = np.sort(left[alive])[: max(1, running - int(alone[-1] / memory))]
            spans = np.diff(leave, prepend=0.0)
            elapsed += float(spans @ np.arange(running, running - len(leave), -1)) * memory / planned
            left = np.maximum(left - leave[-1], 0.0)
            continue
        pace = np.maximum(alone[alive.sum(axis=0)], running * memory) / planned
        ends = left * pace
        live = ends[alive]
        step = float(live[live <= live.min() + TOGETHER * live.max()].max())
        elapsed += step
        left = np.where(ends <= step, 0.0, np.maximum(left - step / pace, 0.0))
    return elapsed
