"""A smaller grid of the shape of a kernel's: fewer SMs, and where that is too much, fewer waves and shorter loops."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from attnsim.arrays import Bools, Floats, Ints
from attnsim.by_hand import by_hand
from attnsim.models.schedule.schedule import Kernel, Launch
from attnsim.simulator.players import executions
from attnsim.simulator.program import Program

WHOLE = by_hand(
    2, "times as many of a grid that is played whole, in about the time that a smaller grid and all beside it take"
)
SMS_BESIDE_MEMORY = by_hand(
    12, "least SMs of a smaller grid, times the root of the share of the time in which the memory is busy"
)
LEAST = by_hand(4, "least waves of a smaller grid, a first, a last and two between them, and turns of an outer loop")


@dataclass(frozen=True, slots=True)
class Chip:
    """SMs, and the blocks that share each."""

    sms: int
    resident: int

    @property
    def places(self) -> int:
        """Blocks that run at the same time."""
        return self.sms * self.resident


@dataclass(frozen=True, slots=True)
class Smaller:
    """A smaller grid.

    Parameters
    ----------
    kernel : Kernel
        With the classes that it launches. Each of its loops is in halves, the first turns and the second: its repeats
        are [classes, outer, 2 x segments].
    of : ndarray, shape [classes]
        The class of the whole kernel that each of them is.
    chip : Chip
        That it is for.
    every : bool
        Whether it has all waves of blocks.
    part : float
        Of the whole grid's time that it takes, where its longest blocks outlast the rest and all is cut alike; else 0.
    """

    kernel: Kernel
    of: Ints
    chip: Chip
    every: bool
    part: float = 0.0


def held(kernel: Kernel, program: Program, sms: int) -> tuple[float, float]:
    """Picoseconds for which all transfers hold the L2 or HBM, and all work a unit of SMs that share it evenly."""
    units = float((kernel.executions @ program.unit_times()).max()) * kernel.warpgroups / sms
    return float((kernel.executions @ program.memory_times()).max()), units


def least_times(kernel: Kernel, program: Program, chip: Chip) -> Floats:
    """Picoseconds that each segment takes at least while all places run it, shape [segments]."""
    shared = chip.resident * kernel.warpgroups * program.unit_times(), chip.places * program.memory_times()
    return np.asarray(np.column_stack([program.work(), *shared]).max(axis=1))


def smaller(kernel: Kernel, program: Program, chip: Chip, budget: float, memory: float) -> Smaller:
    """A grid of the same shape, of about so many executions; of up to twice as many where those are all of its SMs.

    Where the memory is busy for a small share of the time (`memory`), SMs are on their own, and few show what all do.
    """
    size, blocks = executions(kernel), kernel.blocks
    enough = int(chip.sms * budget / size)
    least = max(1, round(SMS_BESIDE_MEMORY * sqrt(memory)))
    few = Chip(max(min(least, chip.sms), enough), chip.resident)
    may = budget / size * chip.sms / few.sms  # be played of the executions of these SMs
    may = may if WHOLE * may < 1 else 1.0
    waves = blocks / chip.places
    # No less than it takes for an SM to have as many as the fullest of the whole: the last round is then as full.
    count = thin = max(round(blocks * few.sms / chip.sms), few.sms * (-(-blocks // chip.sms) - 1) + 1)
    # Whole waves are left out first: residents fall into step over many turns.
    count -= few.places * max(0, int(waves - max(LEAST, may * waves)))
    part = count / thin
    shorter = min(1.0, may / part)
    outlasting = np.zeros(len(kernel.repeats), bool)
    if blocks > chip.places and chip.resident > 1 and len(kernel.repeats) > 1:  # as rows that see every key do
        usual = kernel.by_class(least_times(kernel, program, chip))
        time = part * (kernel.class_counts @ usual) / chip.places
        outlasting = usual > (time / 2 if part < 1 else time)  # the second half is carried over where waves are missing
        outlasting &= kernel.class_counts[outlasting].sum() <= part * blocks  # else they are usual
    long = _places(kernel, outlasting)
    if blocks > chip.places:
        classes = _fewer(kernel, count, long, chip, few)
    else:
        classes = _of_some_sms(kernel, program, chip, few)
    launched = np.zeros(len(kernel.repeats), bool)
    launched[classes] = True
    of, classes = np.flatnonzero(launched), (launched.cumsum() - 1)[classes]
    repeats, outlasting = kernel.repeats[of], outlasting[of]
    if shorter < 1 or part < 1:
        repeats = _shortened(repeats, program.balanced(), shorter * np.where(outlasting, part, 1.0))
    halves = np.stack([repeats - repeats // 2, repeats // 2], axis=-1).reshape(*repeats.shape[:2], -1)
    small = replace(kernel, launches=(Launch(classes),), repeats=halves)
    if not len(long) or long[-1] >= blocks / 2:  # later ones begin where list scheduling says
        return Smaller(small, of, few, part == 1)
    counts = small.class_counts
    stands_for = np.where(outlasting, len(long) / counts[outlasting].sum(), chip.sms / few.sms)  # so many of its class
    played = float(stands_for * counts @ small.turns.sum(axis=1)) * small.warpgroups
    return Smaller(small, of, few, part == 1, played / size)


def _places(kernel: Kernel, among: Bools) -> Ints:
    """Places in launch order of the blocks of some classes."""
    if not among.any():
        return np.zeros(0, np.int64)
    found = (np.tile(among[one.rows].repeat(one.each, axis=0).reshape(-1), one.times) for one in kernel.launches)
    return np.flatnonzero(np.concatenate(list(found)))


def _fewer(kernel: Kernel, count: int, long: Ints, chip: Chip, few: Chip) -> Ints:
    """Classes of `count` blocks, evenly spaced in launch order; of the long ones at some places the SMs' share."""
    if len(kernel.repeats) == 1:
        return np.zeros(count, np.int64)
    if not len(long):
        return _classes(kernel, _spaced(count, kernel.blocks))
    some = max(1, round(len(long) * few.sms / chip.sms))
    others = kernel.blocks - len(long)
    rest = _spaced(max(1, round(count * others / kernel.blocks)), others)
    rest += (long - np.arange(len(long))).searchsorted(rest, side="right")  # long ones that stand before each
    return _classes(kernel, np.sort(np.concatenate([long[_spaced(some, len(long))], rest])))


def _of_some_sms(kernel: Kernel, program: Program, chip: Chip, few: Chip) -> Ints:
    """Classes of all blocks of some SMs, where each has a place from the start: it keeps those beside it.

    The SMs are evenly spaced, but for one: that with most work, which is done last, in place of its nearest.
    """
    classes = _classes(kernel, np.arange(kernel.blocks))
    work = np.zeros(chip.places)
    work[: kernel.blocks] = kernel.by_class(program.work())[classes]
    most = int(work.reshape(-1, chip.sms).sum(axis=0).argmax())
    sms = _spaced(few.sms, chip.sms)
    sms[np.abs(sms - most).argmin()] = most
    places = sms + chip.sms * np.arange(chip.resident)[:, None]
    return np.asarray(classes[places[places < kernel.blocks]])


def _classes(kernel: Kernel, places: Ints) -> Ints:
    """Of the blocks at some places in launch order."""
    blocks = np.array([len(launch) * launch.times for launch in kernel.launches])
    of = np.searchsorted(blocks.cumsum(), places, side="right")
    place = places - (blocks.cumsum() - blocks)[of]
    found = np.empty_like(places)
    for number in np.unique(of).tolist():
        found[of == number] = kernel.launches[number].at(place[of == number])
    return found


def _spaced(count: int, among: int) -> Ints:
    """A place in each of `count` equal parts of a launch, never in step with what repeats in it."""
    golden = (sqrt(5) - 1) / 2
    number = np.arange(count)
    return np.minimum(((number + number * golden % 1.0) * (among / count)).astype(np.int64), among - 1)


def _shortened(repeats: Ints, loops: Bools, part: Floats) -> Ints:
    """Repeats with loops cut to a part of their turns, given per class; the outer loop first, to no less than four.

    Of the outer loop the turn in the middle of each equal part is kept: its first and its last are not as most are.
    """
    outer = repeats.shape[1]
    turns = min(outer, max(LEAST, round(outer * float(part.max()))))
    part = np.minimum(part * outer / turns, 1.0)[:, None, None]
    repeats = repeats[:, (2 * np.arange(turns) + 1) * outer // (2 * turns)]
    cut = np.minimum(repeats, np.maximum(2, np.round(repeats * part))).astype(np.int64)
    return np.where(loops, cut, repeats)
