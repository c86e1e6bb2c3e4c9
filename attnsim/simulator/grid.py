"""From one SM to the whole grid: how long all thread blocks of a kernel take.

*Exact* plays every block on every SM. *Fast* plays a few blocks of each class on one SM, whose L2 and HBM bandwidth are
its share of the chip's (:mod:`attnsim.simulator.one_sm`), finds how long a round of blocks takes on a full chip
(:mod:`attnsim.simulator.rounds`), and hands the block classes out over all SMs (:mod:`attnsim.simulator.dispatch`).
Both use the same engine and the same compiled program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from attnsim.models.arrays import Floats, Ints
from attnsim.models.by_hand import by_hand
from attnsim.models.schedule.schedule import Kernel, Launch
from attnsim.simulator.dispatch import drain, list_scheduling, shared_out
from attnsim.simulator.engine import play
from attnsim.simulator.one_sm import OneSm
from attnsim.simulator.program import Program
from attnsim.simulator.rounds import DOMINANT, Rounds

DISPATCHED_WAVES = by_hand(24, "most waves of blocks that are handed out by explicit list scheduling")
DISPATCHED_BLOCKS = by_hand(6000, "most blocks that are handed out by explicit list scheduling")
"""Blocks beyond these limits are treated as work that all slots share evenly."""
PLAYED_IN_FULL = by_hand(
    4500, "most segment executions by warpgroups of a grid of unequal blocks that is simulated exactly"
)
"""The tail, which is hard to extend, decides the time of such a grid."""
EQUAL_PLAYED_IN_FULL = by_hand(
    500, "most segment executions by warpgroups of a grid of equal blocks that is simulated exactly"
)
WHOLE_PART = by_hand(0.2, "share of the call's time from which on a kernel may be simulated exactly up to these limits")
"""A kernel that takes a smaller share of the call has a proportionally smaller limit."""
PLAYED_SHARE = by_hand(400, "most segment executions in one SM's share of a uniform grid that is simulated exactly")
"""The result stands for every SM."""
SHARE_SMS = by_hand(
    4, "most SMs that are simulated side by side in place of one SM's share, so that they may fall out of step"
)
"""Their executions together stay below `PLAYED_SHARE`."""
SHARE_ROUNDS = by_hand(1, "rounds of blocks without loops that are simulated before those that take equally long")
SHORTER = by_hand(
    0.02, "part of a block's work by which the mean may be shorter, on any unit, for one class to stand for all"
)


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
    requested : mapping
        Bytes requested by ("load" or "store", tensor): counted while playing, or summed over the stream when extended.
    """

    time_ps: float
    waited_ps: float
    blocks_per_sm: int
    waves: float
    requested: Mapping[tuple[str, str], int]


def launch_order(kernel: Kernel) -> Iterator[int]:
    """Block classes in launch order, one by one."""
    for launch in kernel.launches:
        for _ in range(launch.times):
            yield from launch.classes.tolist()


def play_exact(kernel: Kernel, program: Program, sms: int, slots_per_sm: int) -> GridTime:
    """Play every block of the grid."""
    blocks = [program.block(kernel.runs(block_class)) for block_class in range(len(kernel.repeats))]
    active = min(sms, kernel.blocks)
    resident = min(slots_per_sm, -(-kernel.blocks // sms))
    played = play(program, active, resident, (blocks[c] for c in launch_order(kernel)))
    return GridTime(
        float(played.time),
        played.waited / (active * resident * program.warpgroups),
        resident,
        kernel.blocks / (sms * slots_per_sm),
        {
            (kind, tensor): size
            for kind, sizes in (("load", played.loaded), ("store", played.stored))
            for tensor, size in zip(program.tensors, sizes, strict=True)
            if size
        },
    )


class FastGrid:
    """The fast mode for one kernel.

    Parameters
    ----------
    kernel : Kernel
    compiled : callable
        The program of an SM with which so many SMs share L2 and HBM.
    sms, slots_per_sm : int
    """

    def __init__(self, kernel: Kernel, compiled: Callable[[float], Program], sms: int, slots_per_sm: int) -> None:
        self.kernel = kernel
        self.sms, self.slots = sms, slots_per_sm
        self.one_sm = OneSm(kernel, compiled)
        self.rounds = Rounds(self.one_sm, sms, slots_per_sm)

    def time(self, part: float = 1.0) -> GridTime:
        """Time of the whole grid of a kernel that takes this share of the call's time."""
        kernel, slots = self.kernel, self.sms * self.slots
        blocks, counts = kernel.blocks, kernel.class_counts
        whole = PLAYED_IN_FULL if len(counts) > 1 else EQUAL_PLAYED_IN_FULL
        if int(kernel.executions.sum()) * kernel.warpgroups <= whole * min(1.0, part / WHOLE_PART):
            return play_exact(kernel, self.one_sm.compiled(1.0), self.sms, self.slots)
        resident = min(self.slots, -(-blocks // self.sms))
        total, waited = self._of_one_class()._extended(blocks, resident)
        total = max(total, float(self.one_sm.memory_times @ counts))  # never faster than the memory as a whole
        return GridTime(total, waited, resident, blocks / slots, kernel.requested())

    def _of_one_class(self) -> FastGrid:
        """The grid with every block of the most frequent class, if that class stands for all; else this one."""
        kernel, counts, one_sm = self.kernel, self.kernel.class_counts, self.one_sm
        if len(counts) == 1:
            return self
        usual = int(np.argmax(counts))
        work = kernel.turns @ (one_sm.work * [1, 1, 1, 1, self.sms, self.sms])
        tolerated = SHORTER * work[usual].max()
        longest, mean = work.max(axis=0), counts @ work / kernel.blocks
        if (longest > work[usual] + tolerated).any() or (mean < work[usual] - tolerated).any():
            return self
        launches = (Launch(np.zeros(1, np.int64), kernel.blocks),)
        one = replace(kernel, repeats=kernel.repeats[usual : usual + 1], launches=launches)
        grid = FastGrid(one, one_sm.compiled, self.sms, self.slots)
        grid.one_sm.work = one_sm.work
        return grid

    def _extended(self, blocks: int, resident: int) -> tuple[float, float]:
        """Time of the grid, and time that a warpgroup waited, from replays of a few blocks."""
        counts = self.kernel.class_counts
        if len(counts) == 1 and (shared := self._share(blocks, resident)) is not None:
            return shared
        first, following = self.rounds.times(blocks, resident)
        longest = int(np.argmax(following))
        if counts[longest] >= DOMINANT * blocks or len(first) == 1:
            total = self._uniform(blocks, longest, first[longest], following[longest], resident)
        else:
            total = self._mixed(first, following, resident)
        shares = following / following.max() @ counts
        waited = self.one_sm.waited(longest, resident, self.rounds.sharers(blocks, resident))
        return total, waited * float(shares) / (self.sms * resident)

    def _share(self, blocks: int, resident: int) -> tuple[float, float] | None:
        """The same for blocks of one class, from a replay of one SM's share of them; None where that is too long.

        Blocks without loops are played for a few rounds, while SMs are in step; later rounds follow from their work.
        """
        repeats, warpgroups = self.kernel.repeats[0].reshape(-1), self.kernel.warpgroups
        share, later, sms = -(-blocks // self.sms), 0, 1
        if int(repeats.max()) == 1 and not self.one_sm.beyond.any():
            later = max(0, share // resident - SHARE_ROUNDS)
        elif (work := int(repeats.sum()) * warpgroups * share) > PLAYED_SHARE:
            return None
        else:
            sms = min(SHARE_SMS, blocks // share, PLAYED_SHARE // work)
        played = self.one_sm.play_blocks(repeats, resident, share - later * resident, blocks / share, sms)
        time, waited = float(played.time), played.waited / sms
        if later:
            more_time, more_waited = self.rounds.without_loops(resident)
            time, waited = time + later * more_time, waited + later * more_waited
        return time, waited / (resident * warpgroups)

    def _uniform(self, blocks: int, block_class: int, first: float, following: float, resident: int) -> float:
        """Time of blocks of one class: whole waves, then a last wave that may leave slots empty."""
        if blocks <= self.sms * self.slots:
            return float(first)
        waves, rest = divmod(blocks, self.sms * self.slots)
        total = first + (waves - 1) * following
        if rest:
            remaining = -(-rest // self.sms)
            sharers = self.rounds.sharers(rest, remaining)
            total += self.one_sm.settled_first_round(block_class, remaining, sharers) - (first - following)
        return float(total)

    def _mixed(self, first: Floats, following: Floats, resident: int) -> float:
        """Time of blocks of several classes: list scheduling in launch order, then the tail as SMs fall idle."""
        slots, longest = self.sms * resident, int(np.argmax(first))
        lead = float((first - following) @ self.kernel.class_counts) / self.kernel.blocks
        order, left_over = self._dispatched(following, slots)
        remaining = np.zeros(slots)
        empty = 0.0
        if len(order) > slots:
            # Residents of an SM take turns on its units, so the first of them ends a little before the last.
            ends = self.one_sm.play_rounds(self.one_sm.clipped[longest], resident, 1, float(self.sms)).ends
            free = np.repeat(np.array(ends, dtype=np.float64) - ends[-1], self.sms)
            empty, remaining = list_scheduling(free, following[order])
        else:
            remaining[: len(order)] = following[order]
        if left_over:
            more, remaining = shared_out(remaining, left_over)
            empty += more
        tail = self._drain(remaining.reshape(resident, self.sms), min(len(order), slots), longest)
        return empty + tail + lead

    def _dispatched(self, durations: Floats, slots: int) -> tuple[Ints, float]:
        """Classes of the blocks that are handed out one by one, and the summed time of the blocks left over."""
        order: list[Ints] = []
        left_over, room = 0.0, min(DISPATCHED_BLOCKS, DISPATCHED_WAVES * slots)
        for launch in self.kernel.launches:
            times = max(1, min(launch.times, room // len(launch.classes)))
            order.append(np.tile(launch.classes, times))
            room -= times * len(launch.classes)
            left_over += (launch.times - times) * float(durations[launch.classes].sum())
        return np.concatenate(order), left_over

    def _drain(self, remaining: Floats, running: int, longest: int) -> float:
        """Time until the last block ends; how much faster blocks run alone on an SM is played for the longest class."""
        resident = len(remaining)
        played = sorted({1, -(-resident // 2), resident})
        times = [self.one_sm.first_round(longest, k, 1.0) for k in played]
        alone = np.interp(range(resident + 1), [0, *played], [0.0, *times])
        return drain(remaining, running, alone, float(self.one_sm.memory_times[longest]))
