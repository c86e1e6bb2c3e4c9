"""How long all thread blocks of a kernel take: played whole up to a budget, beyond it by a smaller grid of its shape.

The small grid has fewer SMs, and where that is still too much to play, fewer waves of blocks and shorter loops. A
transfer on it holds L2 and HBM for all the SMs that are not there. What a turn of each segment takes there it takes on
the whole grid, and list scheduling of both grids says how much longer the whole takes (docs/design/replay.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt
from statistics import mean

import numpy as np

from attnsim.models.arrays import Bools, Floats, Ints
from attnsim.models.by_hand import by_hand
from attnsim.models.schedule.schedule import Kernel, Launch
from attnsim.simulator.dispatch import makespan
from attnsim.simulator.players import Told, executions, play
from attnsim.simulator.program import Program

BUDGET = by_hand(20_000, "segment executions by warpgroups that a call may play in the default mode")
SMS_BESIDE_MEMORY = by_hand(12, "least SMs of a smaller grid, times the share of the time in which the memory is busy")
FOR_TURNS = by_hand(2 / 3, "power of the executions left to a place that its turns of loops get; the rest are waves")
JITTER = by_hand((1.0, 1.001, 0.999, 1.002), "latencies, relative, of plays of a grid that may be sensitive to them")
SENSITIVE = by_hand(0.005, "difference of the first two of these plays from which on all are played")

Compiled = Callable[[float], Program]
"""The program of an SM whose transfers hold L2 and HBM for so many SMs."""


@dataclass(frozen=True, slots=True)
class GridTime:
    """Time of a kernel's grid.

    Parameters
    ----------
    time_ps : float
    waited_ps : float
        Time warpgroups waited for data, averaged over the resident blocks.
    blocks_per_sm : int
        Resident blocks while the grid is full.
    waves : float
        Blocks over slots.
    loaded, stored : tuple of int
        Bytes by tensor, counted while playing; empty where a smaller grid was played.
    spread : float
        Half the range of the plays whose mean the time is, relative to it; 0 where latencies hardly move it.
    """

    time_ps: float
    waited_ps: float
    blocks_per_sm: int
    waves: float
    loaded: tuple[int, ...] = ()
    stored: tuple[int, ...] = ()
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class Chip:
    """SMs, and the blocks that share each."""

    sms: int
    resident: int

    @property
    def places(self) -> int:
        """Blocks that run at the same time."""
        return self.sms * self.resident


def grid_time(
    kernel: Kernel, compiled: Compiled, sms: int, slots_per_sm: int, budget: float = np.inf, told: Told | None = None
) -> GridTime:
    """Time of the whole grid.

    Parameters
    ----------
    kernel : Kernel
    compiled : callable
    sms, slots_per_sm : int
        Of the GPU; blocks that fit an SM.
    budget : float
        Segment executions by warpgroups that may be played; without an end, every block is played, once.
    told : callable, optional
        Called now and then with the number of blocks that have ended.
    """
    chip = Chip(min(sms, kernel.blocks), min(slots_per_sm, -(-kernel.blocks // sms)))
    waves = kernel.blocks / (sms * slots_per_sm)
    if executions(kernel) > budget:
        time, waited = _extended(kernel, compiled, chip, budget)
        return GridTime(time, waited, chip.resident, waves)
    program = compiled(1.0)
    plays = [play(kernel, program, chip.sms, chip.resident, told)]
    # Unequal blocks that share an SM fall into step or out of it, now and then for a difference of a few picoseconds.
    if chip.resident > 1 and len(kernel.repeats) > 1 and budget < np.inf:
        for latency in JITTER[1:]:
            plays.append(play(kernel, program.delayed(latency), chip.sms, chip.resident))
            if abs(plays[1].time / plays[0].time - 1) < SENSITIVE:
                plays = plays[:1]
                break
    times = [float(one.time) for one in plays]
    waited = mean(one.waited for one in plays) / (chip.places * kernel.warpgroups)
    spread = (max(times) - min(times)) / 2 / mean(times)
    return GridTime(mean(times), waited, chip.resident, waves, plays[0].loaded, plays[0].stored, spread)


def _extended(kernel: Kernel, compiled: Compiled, chip: Chip, budget: float) -> tuple[float, float]:
    """Time of a grid from a smaller one, and how long its warpgroups waited for data."""
    program = compiled(1.0)
    memory = float((kernel.executions @ program.memory_times()).max())
    small, few, outlasting = _smaller(kernel, program, chip, budget, memory)
    played = play(small, compiled(chip.sms / few.sms).in_halves(), few.sms, few.resident)
    launched = np.concatenate([np.tile(launch.classes, launch.times) for launch in small.launches])
    spent = played.spent / kernel.warpgroups
    whole, fewer = _durations((kernel, small), program, spent, launched, few.places, outlasting)
    last = float(played.ends[-1])
    beside = last - makespan(small.launches, fewer, few.places)  # what list scheduling does not see
    if small.blocks == round(kernel.blocks * few.sms / chip.sms):  # of all waves: it is of the length of a block
        beside *= whole[launched].mean() / fewer[launched].mean()
    time = max(makespan(kernel.launches, whole, chip.places) + beside + played.time - last, memory)
    return float(time), float(time * played.waited / (few.places * kernel.warpgroups) / last)


def _smaller(kernel: Kernel, program: Program, chip: Chip, budget: float, memory: float) -> tuple[Kernel, Chip, Ints]:
    """A grid of the same shape of about so many executions, the SMs that it is for, and classes that outlast it.

    Each of its loops is in halves, the first turns and the second: its repeats are [classes, outer, 2 x segments].
    `memory` is for how long all transfers hold the L2 or HBM, in picoseconds.
    """
    size, blocks = executions(kernel), kernel.blocks
    enough = int(chip.sms * budget / size)
    if enough < SMS_BESIDE_MEMORY:  # where the memory is hardly busy SMs are on their own, and few show what all do
        units = float((kernel.executions @ program.unit_times()).max()) * kernel.warpgroups / chip.sms
        least = max(1, round(SMS_BESIDE_MEMORY * (memory / max(memory, units, 1.0))))
        enough = max(min(least, chip.sms), enough)
    few = Chip(enough, chip.resident)
    count = thin = max(1, round(blocks * few.sms / chip.sms))
    part = shorter = 1.0
    if size * few.sms / chip.sms > budget:
        # Loops stay longer than the launch, since residents fall into step over many turns; whole waves are left out.
        room, waves = budget / (few.places * kernel.warpgroups), blocks / chip.places
        turns = size / kernel.warpgroups / blocks
        kept = min(turns, max(room**FOR_TURNS, room / waves))
        shorter = kept / turns
        count -= few.places * max(0, (thin - max(few.places, round(thin * room / kept / waves))) // few.places)
        part = count / thin
    repeats, outlasting = kernel.repeats, np.zeros(len(kernel.repeats), bool)
    if part < 1:  # blocks that outlast the small grid (rows that see every key) are all kept, and shortened as it is
        work = kernel.turns @ program.work()
        outlasting = work > part * (kernel.class_counts @ work) / chip.places
    if shorter < 1 or part < 1:
        repeats = _shortened(repeats, program.balanced(), shorter * np.where(outlasting, part, 1.0))
    halves = np.stack([repeats - repeats // 2, repeats // 2], axis=-1).reshape(*repeats.shape[:2], -1)
    small = replace(kernel, launches=_fewer(kernel, thin, count, outlasting), repeats=halves)
    return small, few, np.flatnonzero(outlasting)


def _fewer(kernel: Kernel, thin: int, count: int, always: Bools) -> tuple[Launch, ...]:
    """`count` blocks, evenly spaced in launch order; where some classes are always kept, of them as of `thin`."""
    if len(kernel.repeats) == 1:
        return (Launch(np.zeros(1, np.int64), count),)
    among = thin if always.any() else count
    places, classes, begin = _spaced(among, kernel.blocks), [], 0
    for launch in kernel.launches:
        size = len(launch.classes) * launch.times
        low, high = np.searchsorted(places, (begin, begin + size))
        classes.append(launch.classes[(places[low:high] - begin) % len(launch.classes)])
        begin += size
    found = np.concatenate(classes)
    chosen = always[found]
    chosen[_spaced(count, among)] = True
    return (Launch(found[chosen]),)


def _spaced(count: int, among: int) -> Ints:
    """A place in each of `count` equal parts of a launch, never in step with what repeats in it."""
    golden = (sqrt(5) - 1) / 2
    number = np.arange(count)
    if count == among:
        return number
    return np.minimum(((number + number * golden % 1.0) * (among / count)).astype(np.int64), among - 1)


def _shortened(repeats: Ints, loops: Bools, part: Floats) -> Ints:
    """Repeats with loops cut to a part of their turns, given per class; the outer loop first, to no less than four."""
    outer = repeats.shape[1]
    turns = min(outer, max(4, round(outer * float(part.max()))))
    part = np.minimum(part * outer / turns, 1.0)[:, None, None]
    if turns < outer:
        repeats = repeats[:, np.linspace(0, outer - 1, turns).round().astype(int)]
    cut = np.minimum(repeats, np.maximum(2, np.round(repeats * part))).astype(np.int64)
    return np.where(loops & (repeats > 2), cut, repeats)


def _durations(
    kernels: tuple[Kernel, Kernel], program: Program, spent: Floats, launched: Ints, places: int, outlasting: Ints
) -> tuple[Floats, Floats]:
    """Time of a block of each class of the whole kernel and of the small one, from what blocks of the small one spent.

    A run of a loop takes its turns of the second half, and what the first ones take beyond that.

    Parameters
    ----------
    kernels : pair of Kernel
        The small one with its loops in halves.
    program : Program
    spent : ndarray, shape [blocks, 2 x segments]
        Of the small kernel, by half of a loop.
    launched : ndarray, shape [blocks]
        Their classes.
    places : int
        Blocks of the small kernel that run at the same time; the first and the last so many are not usual.
    outlasting : ndarray
        Classes that take the same part of the time in both, whatever their halves say.
    """
    kernel, small = kernels
    turns = small.turns.reshape(len(small.repeats), -1, 2).sum(axis=2)
    begun = (small.repeats[:, :, ::2] > 0).sum(axis=1)  # runs of each segment

    def of(blocks: slice) -> tuple[Floats, Ints, Ints]:
        counts = np.bincount(launched[blocks], minlength=len(turns))
        time = np.einsum("bs->s", spent[blocks])  # as a sum over this axis, in less time
        return time.reshape(-1, 2), (counts @ small.turns).reshape(-1, 2), counts @ begun

    time, count, runs = of(slice(places, max(places, len(launched) - places)))
    unseen = ~count.any(axis=1)
    if unseen.any():
        for usual, every in zip((time, count, runs), of(slice(None)), strict=True):
            usual[unseen] = every[unseen]
    total, turned = time.sum(axis=1), count.sum(axis=1)
    mean_turn = total / np.maximum(turned, 1)
    if not turned.all():  # a segment that no block has run takes as long beside the others as its work says
        work = program.work()
        mean_turn = np.where(turned > 0, mean_turn, work * total.sum() / max(1.0, float(turned @ work)))
    loop = count[:, 1] >= np.maximum(2 * runs, 1)
    turn = np.where(loop, time[:, 1] / np.maximum(count[:, 1], 1), mean_turn)
    first = np.where(loop, (total - turn * turned) / np.maximum(runs, 1), 0.0)
    whole = np.maximum(kernel.turns @ turn + (kernel.repeats > 0).sum(axis=1) @ first, 1.0)
    fewer = np.maximum(turns @ turn + begun @ first, 1.0)
    for c in np.intersect1d(outlasting, launched) if len(outlasting) else ():
        fewer[c] = spent[launched == c].sum() / (launched == c).sum()
        whole[c] = fewer[c] * (kernel.turns[c] @ mean_turn) / (turns[c] @ mean_turn)
    return whole, fewer
