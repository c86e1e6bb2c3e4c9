"""Time of a kernel's whole grid: all blocks are played within a budget; beyond it, a reduced grid is extrapolated.

The reduced grid has fewer SMs and, if that is still too much to play, fewer waves of blocks and shorter loops. Each
transfer on it holds L2 and HBM for all the SMs that are left out. The time of one iteration of each segment is taken
from the reduced grid. List scheduling of both grids then gives how much longer the whole grid takes
(docs/design/replay.md).

List scheduling: thread blocks start in launch order, each in the slot that becomes free first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from math import ceil
from statistics import fmean

import numpy as np

from attnsim.arrays import Floats, Ints
from attnsim.by_hand import by_hand
from attnsim.models.schedule.schedule import Kernel, Launch
from attnsim.simulator.players import Ended, executions, faster, play
from attnsim.simulator.program import Program
from attnsim.simulator.reduced_grid import WHOLE, Chip, ReducedGrid, busy_ps, least_times, reduce_grid

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


BUDGET = by_hand(20_000, "segment executions by warpgroups that a call may play in the default mode")
JITTER = by_hand((1.0, 1.001, 0.999, 1.002), "relative latencies of the replays of a grid that may depend on timing")
SENSITIVE = by_hand(0.005, "relative difference of the first two of these replays above which all are run")


@dataclass(frozen=True, slots=True)
class GridTime:
    """Time of a kernel's grid.

    Parameters
    ----------
    time_ps : float
        From the start of the first block to the last byte.
    waited_ps : float
        Time warpgroups waited for data, averaged over the resident blocks.
    blocks_per_sm : int
        Resident blocks while the grid is full.
    waves : float
        Blocks over slots.
    loaded, stored : tuple of int
        Bytes by tensor, counted during the replay; empty if a reduced grid was played.
    spread : float
        Half the range of the jittered replays relative to their mean, which is the time; 0 if jitter hardly changes it.
    """

    time_ps: float
    waited_ps: float
    blocks_per_sm: int
    waves: float
    loaded: tuple[int, ...] = ()
    stored: tuple[int, ...] = ()
    spread: float = 0.0


def grid_time(
    kernel: Kernel, program: Program, sms: int, slots_per_sm: int, budget: float = np.inf, progress: Ended | None = None
) -> GridTime:
    """Time of the whole grid.

    Parameters
    ----------
    program : Program
        Costs of the operations if every SM is played.
    sms : int
        SMs of the GPU.
    slots_per_sm : int
        Blocks that fit an SM.
    budget : float
        Segment executions by warpgroups that may be played. A grid of up to `WHOLE` times the budget is played whole.
        Of a larger grid, all blocks of some SMs are played. Without a limit, every block is played.
    progress : callable, optional
        Called now and then with the number of blocks that have ended.
    """
    chip = Chip(min(sms, kernel.blocks), min(slots_per_sm, -(-kernel.blocks // sms)))
    waves = kernel.blocks / (sms * slots_per_sm)
    size = executions(kernel)
    if size > WHOLE * budget:
        time, waited = _extended(kernel, program, chip, budget)
        return GridTime(time, waited, chip.resident, waves)
    # Unequal blocks that share an SM fall into step or out of it; a few picoseconds may decide which.
    again = JITTER[1:] if size <= budget and chip.resident > 1 and len(kernel.repeats) > 1 else ()
    plays = [play(kernel, program, chip.sms, chip.resident, _progress_of(0, kernel, progress) if again else progress)]
    for latency in again:
        ended = _progress_of(len(plays), kernel, progress)
        plays.append(play(kernel, program.delayed(latency), chip.sms, chip.resident, ended))
        if abs(plays[1].time / plays[0].time - 1) < SENSITIVE:
            plays = plays[:1]
            break
    times = [float(one.time) for one in plays]
    waited = fmean(one.waited for one in plays) / (min(chip.slots, kernel.blocks) * kernel.warpgroups)
    spread = (max(times) - min(times)) / 2 / fmean(times)
    return GridTime(fmean(times), waited, chip.resident, waves, plays[0].loaded, plays[0].stored, spread)


def _progress_of(number: int, kernel: Kernel, progress: Ended | None) -> Ended | None:
    """Progress callback for replay `number` of several: each replay reports half of the blocks that are left."""
    if progress is None:
        return None
    return lambda ended: progress(kernel.blocks - ((2 * kernel.blocks - ended) >> (number + 1)))


def _extended(kernel: Kernel, program: Program, chip: Chip, budget: float) -> tuple[float, float]:
    """Extrapolate from a reduced grid: the whole grid's time, and how long its warpgroups waited, in ps."""
    least = busy_ps(kernel, program, chip.sms)
    made = reduce_grid(kernel, program, chip, budget, least[0] / max(*least, 1.0))
    small, few = made.kernel, made.chip
    launched = small.launches[0].classes
    placed = kernel.blocks <= chip.slots  # every block has a slot from the start
    rows = _rows(small.blocks, few, placed, made.all_waves)
    halves = program.in_halves()
    shared = halves.shared_by(chip.sms / few.sms)
    played = play(small, shared, few.sms, few.resident, None, rows)
    if made.part:
        end = few.slots * played.time / small.blocks / 2  # slots end one after the other, over the time of a block
        time = (played.time - end) / made.part + end
        more = chip.sms / few.sms / made.part
    else:
        spent = played.spent / kernel.warpgroups
        # At the end of a block its warpgroups wait for the slowest one.
        idle = (played.ends[-few.slots :].sum() - spent.sum()) / small.blocks
        whole, fewer = (lasts + idle for lasts in _durations(kernel, made, program, chip, spent, launched, rows))
        if placed:
            time = float(played.time * whole[kernel.class_counts > 0].max() / fewer.max())
        else:
            whole, used = _all_busy(kernel, whole, chip, *least)
            fewer, _ = _all_busy(small, fewer, few, *busy_ps(small, shared, few.sms))
            speeds = _speeds(made, halves, fewer, used)
            lengths = whole[made.of[launched]]
            longer = lengths.mean() / fewer[launched].mean()
            listed = drained(slot_ends(kernel.launches, whole, chip.slots), chip.sms, speeds)[-1]
            # No slot runs two blocks in the time of one, so the blocks that share an SM at the end are as played.
            if made.all_waves and len(kernel.repeats) > 1 and lengths.max() < 2 * lengths.min():
                time = float(max(listed, played.time * longer))
            else:
                ends = drained(slot_ends(small.launches, fewer, few.slots), few.sms, speeds)
                # Which SM ends last is chance.
                some = few.sms if len(kernel.repeats) > 1 and small.blocks > few.slots else 1
                unexplained = (played.ends[-some:] - ends[-some:]).mean()  # by list scheduling
                if made.all_waves:  # with all waves, the difference scales with the duration of a block
                    unexplained *= longer
                time = float(listed + unexplained + played.time - played.ends[-1])
        more = float(kernel.class_counts @ whole) / float(small.class_counts @ fewer)
    waited = played.waited * more / (min(chip.slots, kernel.blocks) * kernel.warpgroups)
    return max(time, *least), waited


def _all_busy(kernel: Kernel, durations: Floats, chip: Chip, memory: float, units: float) -> tuple[Floats, float]:
    """Durations of blocks while all slots are busy, by class, and the memory's utilisation in that time.

    The replay includes times at which some slots were free and other blocks ran faster. Therefore durations are scaled
    up until the blocks together take at least the time of all their transfers (`memory`) and of all their work on a
    unit (`units`), in picoseconds.
    """
    time = float(kernel.class_counts @ durations) / min(chip.slots, kernel.blocks)
    least = max(time, memory, units)
    return durations * (least / time), memory / least


def _speeds(made: ReducedGrid, program: Program, fewer: Floats, memory: float) -> Speeds:
    """Speed of the reduced grid's longest block alone on an SM, and beside as many copies of it as fit the SM."""
    longest = int(fewer.argmax())
    repeats = made.kernel.repeats[longest : longest + 1]

    def speed(blocks: int) -> float:
        some = replace(made.kernel, repeats=repeats, launches=(Launch.alike(blocks),))
        return float(fewer[longest] / play(some, program, 1, blocks).time)

    alone = speed(1)
    return Speeds(alone, speed(made.chip.resident) if made.chip.resident > 1 else alone, memory)


def _rows(blocks: int, chip: Chip, placed: bool, all_waves: bool) -> Ints:
    """Row under which the times of each block are summed: 0 for typical blocks, 1 for others.

    - If every block has a slot from the start, typical blocks are those of the fullest SMs, which finish last.
    - Otherwise blocks of the first and the last round are not typical.
    - If waves are left out, no block of the first half is typical: resident blocks fall into step or out of it over
      many waves, and the omitted waves come after the first half.
    """
    number, slots = np.arange(blocks), chip.slots
    if placed:
        return (number % chip.sms >= (blocks % chip.sms or chip.sms)).astype(np.int64)
    first = slots if all_waves else max(slots, blocks // 2)
    return ((number < first) | (number >= max(slots, blocks - slots))).astype(np.int64)


def _durations(
    kernel: Kernel, made: ReducedGrid, program: Program, chip: Chip, spent: Floats, launched: Ints, rows: Ints
) -> tuple[Floats, Floats]:
    """Duration of a block of each class, of the whole kernel and of the reduced one, from the times of the reduced one.

    Each iteration of a loop takes the time of one in its second half; the first half's excess is added once per run.
    Blocks of the first and the last round count only for segments that no typical block has run.

    Parameters
    ----------
    chip : Chip
        Slots of the whole kernel.
    spent : ndarray, shape [rows, 2 x segments]
        Picoseconds spent by the reduced kernel, by half of a loop.
    launched, rows : ndarray, shape [blocks]
        Class of each block of the reduced kernel, and its row in `spent`.
    """
    small = made.kernel
    segments = len(program.begins) - 1
    classes, halves, turns = small.runs_of
    first_half = halves % 2 == 0

    def seen(blocks: Ints | slice, of_rows: slice) -> tuple[Floats, Floats, Floats]:
        """Time of each half of each segment, its turns, and the runs of each segment."""
        weights = np.bincount(launched[blocks], minlength=len(small.repeats))[classes]
        count = np.bincount(halves, weights * turns, 2 * segments)
        runs = np.bincount(halves[first_half] // 2, weights[first_half], segments)
        return spent[of_rows].sum(axis=0).reshape(-1, 2), count.astype(float).reshape(-1, 2), runs.astype(float)

    time, count, runs = seen(rows == 0, slice(0, 1))
    unseen = ~count.any(axis=1)
    if unseen.any():
        for usual, every in zip((time, count, runs), seen(slice(None), slice(None)), strict=True):
            usual[unseen] = every[unseen]
    total, turned = time.sum(axis=1), count.sum(axis=1)
    mean_turn = total / np.maximum(turned, 1)
    if not turned.all():  # a segment that no block has run
        least = least_times(kernel, program, chip)
        mean_turn = np.where(turned > 0, mean_turn, least * total.sum() / max(1.0, float(turned @ least)))
    loop = count[:, 1] >= np.maximum(2 * runs, 1)
    turn = np.where(loop, time[:, 1] / np.maximum(count[:, 1], 1), mean_turn)
    first = np.where(loop, (total - turn * turned) / np.maximum(runs, 1), 0.0)
    in_halves = np.repeat(turn, 2), np.stack([first, np.zeros(segments)], axis=1).reshape(-1)
    return np.maximum(kernel.by_class(turn, first), 1.0), np.maximum(small.by_class(*in_halves), 1.0)
