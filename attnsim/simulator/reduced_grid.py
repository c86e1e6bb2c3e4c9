"""Reduced grid of a kernel, of the same shape: fewer SMs and, if needed, fewer waves and shorter loops."""

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
    2, "largest ratio to the budget of a grid that is still played whole: a reduced grid takes about as long in all"
)
LEAST_SMS = by_hand(
    12, "least SMs of a reduced grid, times the root of the share of the time in which the memory is busy"
)
LEAST = by_hand(4, "least waves of a reduced grid: a first, a last, two between them; and least turns of an outer loop")


@dataclass(frozen=True, slots=True)
class Chip:
    """SMs, and resident blocks per SM."""

    sms: int
    resident: int

    @property
    def slots(self) -> int:
        """Blocks that run at the same time."""
        return self.sms * self.resident


@dataclass(frozen=True, slots=True)
class ReducedGrid:
    """A reduced grid.

    Parameters
    ----------
    kernel : Kernel
        Kernel with the classes that the reduced grid launches. Each loop is split into a first and a second half:
        repeats have shape [classes, outer, 2 x segments].
    of : ndarray, shape [classes]
        Class of the whole kernel that each class stands for.
    chip : Chip
        SMs and resident blocks of the reduced grid.
    all_waves : bool
        Whether all waves of blocks are kept.
    part : float
        Share of the whole grid's time that the reduced grid takes, if its longest blocks outlast the rest and all are
        cut alike; otherwise 0.
    """

    kernel: Kernel
    of: Ints
    chip: Chip
    all_waves: bool
    part: float = 0.0


def busy_ps(kernel: Kernel, program: Program, sms: int) -> tuple[float, float]:
    """Picoseconds for which all transfers hold L2 or HBM, and for which evenly shared work holds an SM unit."""
    units = float((kernel.executions @ program.unit_times()).max()) * kernel.warpgroups / sms
    return float((kernel.executions @ program.memory_times()).max()), units


def least_times(kernel: Kernel, program: Program, chip: Chip) -> Floats:
    """Least picoseconds of each segment while all slots run it, shape [segments]."""
    shared = chip.resident * kernel.warpgroups * program.unit_times(), chip.slots * program.memory_times()
    return np.asarray(np.column_stack([program.work(), *shared]).max(axis=1))


def reduce_grid(kernel: Kernel, program: Program, chip: Chip, budget: float, memory: float) -> ReducedGrid:
    """Reduce a grid to about `budget` segment executions; to `WHOLE` times as many if all its SMs are kept.

    If the memory is busy for a small share of the time (`memory`), SMs hardly affect each other, and few SMs suffice.
    """
    size, blocks = executions(kernel), kernel.blocks
    enough = int(chip.sms * budget / size)
    least = max(1, round(LEAST_SMS * sqrt(memory)))
    few = Chip(max(min(least, chip.sms), enough), chip.resident)
    may = budget / size * chip.sms / few.sms  # share of these SMs' executions that may be played
    may = may if WHOLE * may < 1 else 1.0
    waves = blocks / chip.slots
    # At least enough blocks for one SM to have as many as the whole grid's fullest SM: the last round is then as full.
    count = thin = max(round(blocks * few.sms / chip.sms), few.sms * (-(-blocks // chip.sms) - 1) + 1)
    # Whole waves are left out before loops are cut: resident blocks fall into step over many iterations.
    count -= few.slots * max(0, int(waves - max(LEAST, may * waves)))
    part = count / thin
    shorter = min(1.0, may / part)
    outlasting = np.zeros(len(kernel.repeats), bool)
    if blocks > chip.slots and chip.resident > 1 and len(kernel.repeats) > 1:  # such as rows that see every key
        usual = kernel.by_class(least_times(kernel, program, chip))
        time = part * (kernel.class_counts @ usual) / chip.slots
        outlasting = usual > (time / 2 if part < 1 else time)  # if waves are left out, the second half is extrapolated
        outlasting &= kernel.class_counts[outlasting].sum() <= part * blocks  # otherwise they are ordinary blocks
    long = _positions(kernel, outlasting)
    if blocks > chip.slots:
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
    if not len(long) or long[-1] >= blocks / 2:  # list scheduling starts blocks that begin later
        return ReducedGrid(small, of, few, part == 1)
    counts = small.class_counts
    # Blocks of its class that each block represents.
    stands_for = np.where(outlasting, len(long) / counts[outlasting].sum(), chip.sms / few.sms)
    played = float(stands_for * counts @ small.turns.sum(axis=1)) * small.warpgroups
    return ReducedGrid(small, of, few, part == 1, played / size)


def _positions(kernel: Kernel, among: Bools) -> Ints:
    """Positions in launch order of the blocks of some classes."""
    if not among.any():
        return np.zeros(0, np.int64)
    found = (np.tile(among[one.rows].repeat(one.each, axis=0).reshape(-1), one.times) for one in kernel.launches)
    return np.flatnonzero(np.concatenate(list(found)))


def _fewer(kernel: Kernel, count: int, long: Ints, chip: Chip, few: Chip) -> Ints:
    """Classes of `count` blocks, evenly spaced in launch order; `long` blocks keep the share of SMs that is kept."""
    if len(kernel.repeats) == 1:
        return np.zeros(count, np.int64)
    if not len(long):
        return _classes(kernel, _spaced(count, kernel.blocks))
    some = max(1, round(len(long) * few.sms / chip.sms))
    others = kernel.blocks - len(long)
    rest = _spaced(max(1, round(count * others / kernel.blocks)), others)
    rest += (long - np.arange(len(long))).searchsorted(rest, side="right")  # long blocks before each position
    return _classes(kernel, np.sort(np.concatenate([long[_spaced(some, len(long))], rest])))


def _of_some_sms(kernel: Kernel, program: Program, chip: Chip, few: Chip) -> Ints:
    """Classes of all blocks of some SMs, if every block has a slot from the start; neighbours on an SM stay together.

    The SMs are evenly spaced, with one exception: the SM with the most work, which finishes last, replaces the nearest
    one.
    """
    classes = _classes(kernel, np.arange(kernel.blocks))
    work = np.zeros(chip.slots)
    work[: kernel.blocks] = kernel.by_class(program.work())[classes]
    most = int(work.reshape(-1, chip.sms).sum(axis=0).argmax())
    sms = _spaced(few.sms, chip.sms)
    sms[np.abs(sms - most).argmin()] = most
    positions = sms + chip.sms * np.arange(chip.resident)[:, None]
    return np.asarray(classes[positions[positions < kernel.blocks]])


def _classes(kernel: Kernel, positions: Ints) -> Ints:
    """Classes of the blocks at the given positions in launch order."""
    blocks = np.array([len(launch) * launch.times for launch in kernel.launches])
    of = np.searchsorted(blocks.cumsum(), positions, side="right")
    position = positions - (blocks.cumsum() - blocks)[of]
    found = np.empty_like(positions)
    for number in np.unique(of).tolist():
        found[of == number] = kernel.launches[number].at(position[of == number])
    return found


def _spaced(count: int, among: int) -> Ints:
    """One position in each of `count` equal parts of a launch, never in step with a period of the launch order."""
    golden = (sqrt(5) - 1) / 2
    number = np.arange(count)
    return np.minimum(((number + number * golden % 1.0) * (among / count)).astype(np.int64), among - 1)


def _shortened(repeats: Ints, loops: Bools, part: Floats) -> Ints:
    """Shorten loops to a part of their iterations, given per class: the outer loop first, to no less than `LEAST`.

    Of the outer loop, the middle iteration of each equal part is kept: the first and the last one are not typical.
    """
    outer = repeats.shape[1]
    turns = min(outer, max(LEAST, round(outer * float(part.max()))))
    part = np.minimum(part * outer / turns, 1.0)[:, None, None]
    repeats = repeats[:, (2 * np.arange(turns) + 1) * outer // (2 * turns)]
    cut = np.minimum(repeats, np.maximum(2, np.round(repeats * part))).astype(np.int64)
    return np.where(loops, cut, repeats)
