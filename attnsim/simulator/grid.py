"""From one SM to the whole grid: how long all thread blocks of a kernel take.

*Exact* plays every block on every SM. *Fast* plays a few blocks of each class on one SM, whose L2 and HBM bandwidth are
its share of the chip's, finds what one more block and one more turn of the inner loop cost, and hands the block classes
out over all SMs by list scheduling. Both use the same engine and the same compiled program.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from attnsim.models.by_hand import by_hand
from attnsim.models.schedule.schedule import Kernel, Launch, Segment
from attnsim.simulator.dispatch import drain, list_scheduling, shared_out
from attnsim.simulator.engine import Played, play
from attnsim.simulator.program import DELAY, LOAD, MMA, MMA_ASYNC, STORE, VECTOR, Program

PLAYED_TURNS = by_hand(
    3, "turns of an inner loop that the fast mode simulates before it extends the loop by its period"
)
"""A segment that does not wait for exactly what it loads is simulated as often as it is run."""
PERIOD_TURNS = by_hand(2, "further turns of an inner loop that the fast mode simulates to find the loop's period")
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
IN_STEP_WAVES = by_hand(
    1, "waves during which SMs that began together ask the memory for the same tensors at the same time"
)
QUEUEING = by_hand(10.0, "power of the smooth maximum of a round without contention and the time that the memory needs")
"""Near balance the SM and the memory wait for each other now and then."""
NEAR_MEMORY = by_hand(
    0.85, "share of the memory's time that a round has to last for the mixture of block classes to matter"
)
SETTLING = by_hand(0.5, "share of the first wave's delay that is still there in each further wave")
THINNED_SMS = by_hand(2, "SMs of the thinned chip, which stands for a whole chip of equal blocks")
THINNED_ROUNDS = by_hand(6, "rounds of blocks that the thinned chip simulates")
THINNED_TURNS = by_hand(24, "most turns of an inner loop for which the thinned chip is simulated")
THINNED_MEMORY = by_hand(
    0.5, "share of a round above which the memory is too busy for a thinned chip of unequal blocks"
)
"""A transfer of its few SMs holds the memory for all SMs that they stand for, and such large transfers queue."""
SAMPLED_ROUNDS = by_hand(14, "rounds of blocks in the sample that shows how unequal blocks share an SM")
SAMPLED_BLOCKS = by_hand(42, "most blocks in the sample that shows how unequal blocks share an SM")
SAMPLED_TURNS = by_hand(10, "turns to which the longest inner loop of the sampled blocks is shortened")
PHASE = by_hand(0.5, "part of a block by which the residents of an SM begin apart in the sample of unequal blocks")
DOMINANT = by_hand(
    0.97, "share of the blocks from which on one class stands for all: the others are last, shorter tiles"
)
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
    """The fast mode for one kernel: replays of one SM, remembered, and the dispatch built on them.

    Parameters
    ----------
    kernel : Kernel
    compiled : callable
        Gives the program when so many SMs share the memory.
    sms, slots_per_sm : int
    """

    def __init__(self, kernel: Kernel, compiled: Callable[[float], Program], sms: int, slots_per_sm: int) -> None:
        self.kernel = kernel
        self.sms, self.slots = sms, slots_per_sm
        self.compiled = compiled
        self.plays: dict[tuple[object, ...], Played] = {}
        turns = kernel.repeats.shape[1]
        kept = [0, turns // 2, turns - 1] if turns > 3 else list(range(turns))
        self.kept = kept
        played = kernel.repeats[:, kept]
        if int(played.max()) > PLAYED_TURNS:
            played = np.where(self.loops, np.minimum(played, PLAYED_TURNS), played)
        self.clipped = played.reshape(len(played), -1)
        self.beyond = kernel.turns - played.sum(axis=1)

    @cached_property
    def loops(self) -> NDArray[np.bool_]:
        """Which segments may be played less often than they are run."""
        return np.array([_is_balanced(segment) for segment in self.kernel.segments])

    def runs(self, repeats: NDArray[np.int64]) -> list[tuple[int, int]]:
        """The (segment, repeats) of a block with these flattened repeat counts."""
        segments = len(self.kernel.segments)
        return [(index % segments, n) for index, n in enumerate(repeats.tolist()) if n > 0]

    def played(self, repeats: NDArray[np.int64], resident: int, generations: int, active: float) -> Played:
        """Replay `generations` rounds of `resident` such blocks on one SM of `active`."""
        return self._played(repeats, resident, resident * generations, active)

    def _played(self, repeats: NDArray[np.int64], resident: int, blocks: int, active: float, sms: int = 1) -> Played:
        """Replay `blocks` such blocks on each of `sms` SMs, `resident` at a time, that stand for `active`."""
        key = (repeats.tobytes(), resident, blocks, active, sms)
        if key not in self.plays:
            program = self.compiled(active / sms)
            self.plays[key] = play(program, sms, resident, repeat(program.block(self.runs(repeats)), blocks * sms))
        return self.plays[key]

    def period(self, segment: int, resident: int, active: float) -> float:
        """Time that one more turn of a segment adds to a round of resident blocks."""
        before, after = self._lengthened(segment, resident, active)
        return (after.time - before.time) / PERIOD_TURNS

    def _lengthened(self, segment: int, resident: int, active: float) -> tuple[Played, Played]:
        """A round of blocks of a class that turns a segment most, and the same with some more turns of it."""
        turns = self.clipped.reshape(len(self.clipped), -1, len(self.kernel.segments)).sum(axis=1)
        repeats = self.clipped[int(np.argmax(turns[:, segment]))]
        longer = self._longer(repeats, segment)
        return self.played(repeats, resident, 1, active), self.played(longer, resident, 1, active)

    def _steady_period(self, segment: int, resident: int, active: float) -> float:
        """Period of a loop that has run long enough for SMs to be out of step: alone, or held up by the memory."""
        alone = self.period(segment, resident, 1.0)
        return float(_smooth_maximum(alone, active * resident * self.holds[segment].max()))

    def _longer(self, repeats: NDArray[np.int64], segment: int) -> NDArray[np.int64]:
        """A block with some more turns of a segment, where it turns most already."""
        places = np.arange(segment, len(repeats), len(self.kernel.segments))
        longer = repeats.copy()
        longer[places[np.argmax(repeats[places])]] += PERIOD_TURNS
        return longer

    @cached_property
    def alike(self) -> list[NDArray[np.int64]]:
        """Classes of which the same is played, group by group."""
        if len(self.clipped) == 1:
            return [np.zeros(1, dtype=np.int64)]
        _, group = np.unique(self.clipped @ _weights(self.clipped.shape[1]), return_inverse=True)
        order = np.argsort(group, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(group[order])) + 1)

    def round_time(self, block_class: int, resident: int, active: float) -> float:
        """Time of a first round of blocks of a class."""
        clipped = self.clipped[block_class]
        time = float(self.played(clipped, resident, 1, active).time)
        for segment in np.flatnonzero(self.beyond[block_class]):
            time += self.beyond[block_class, segment] * self.period(int(segment), resident, active)
        return time

    def _first_round(self, block_class: int, resident: int, active: float) -> float:
        """Time of a first round of blocks of a class, whose loops run long enough for SMs to be out of step."""
        clipped, beyond = self.clipped[block_class], self.beyond[block_class]
        periods = sum(beyond[n] * self._steady_period(int(n), resident, active) for n in np.flatnonzero(beyond))
        return float(self.played(clipped, resident, 1, active).time + periods)

    def class_times(self, resident: int, active: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Time of a first and of a following round of blocks, per class, with `resident` of them on an SM.

        Classes that differ only in how often they turn loops beyond what is played share their replays. By how much a
        following round of blocks with loops is shorter, since it begins while the one before ends, is asked of the
        longest class.
        """
        first, saved = (np.empty(len(self.clipped)) for _ in range(2))
        loops = np.zeros(len(first), dtype=np.bool_)
        for members in self.alike:
            clipped, beyond = self.clipped[members[0]], self.beyond[members]
            one = self.played(clipped, resident, 1, active).time
            first[members] = one
            loops[members] = beyond.any()
            if not beyond.any():
                saved[members] = 2 * one - self.played(clipped, resident, 2, active).time
            for segment in np.flatnonzero(beyond.any(axis=0)):
                first[members] += beyond[:, segment] * self._steady_period(int(segment), resident, active)
        if loops.any():
            longest = self.clipped[int(np.argmax(first * loops))]
            one, two = (self.played(longest, resident, rounds, active).time for rounds in (1, 2))
            saved[loops] = 2 * one - two
        return first, first - saved

    def time(self, part: float = 1.0) -> GridTime:
        """Time of the whole grid of a kernel that makes up so large a part of the call."""
        kernel, slots = self.kernel, self.sms * self.slots
        blocks, counts = kernel.blocks, kernel.class_counts
        whole = PLAYED_IN_FULL if len(counts) > 1 else EQUAL_PLAYED_IN_FULL
        if int(kernel.executions.sum()) * kernel.warpgroups <= whole * min(1.0, part / WHOLE_PART):
            return play_exact(kernel, self.compiled(1.0), self.sms, self.slots)
        resident = min(self.slots, -(-blocks // self.sms))
        total, waited = self._of_one_class()._extended(blocks, resident)
        total = max(total, float(self.memory_times @ counts))  # never faster than the memory as a whole
        return GridTime(total, waited, resident, blocks / slots, kernel.requested())

    def _of_one_class(self) -> FastGrid:
        """The grid of blocks of the usual class alone, if that stands for all."""
        kernel, counts = self.kernel, self.kernel.class_counts
        if len(counts) == 1:
            return self
        usual = int(np.argmax(counts))
        work = kernel.turns @ (self.work * [1, 1, 1, 1, self.sms, self.sms])
        tolerated = SHORTER * work[usual].max()
        longest, mean = work.max(axis=0), counts @ work / kernel.blocks
        if (longest > work[usual] + tolerated).any() or (mean < work[usual] - tolerated).any():
            return self
        launches = (Launch(np.zeros(1, np.int64), kernel.blocks),)
        one = replace(kernel, repeats=kernel.repeats[usual : usual + 1], launches=launches)
        grid = FastGrid(one, self.compiled, self.sms, self.slots)
        grid.work = self.work
        return grid

    def _extended(self, blocks: int, resident: int) -> tuple[float, float]:
        """Time of the grid, and time that a warpgroup waited, from plays of a few blocks."""
        counts = self.kernel.class_counts
        if len(counts) == 1 and (shared := self._share(blocks, resident)) is not None:
            return shared
        first, following = self._rounds(blocks, resident)
        longest = int(np.argmax(following))
        if counts[longest] >= DOMINANT * blocks or len(first) == 1:
            total = self._uniform(blocks, longest, first[longest], following[longest], resident)
        else:
            total = self._mixed(first, following, resident)
        shares = following / following.max() @ counts
        return total, self._waited(longest, resident) * float(shares) / (self.sms * resident)

    def _share(self, blocks: int, resident: int) -> tuple[float, float] | None:
        """The same of blocks of one class, from one SM's share of them; None where that is too long to be played.

        Blocks without loops are played for a few rounds, while SMs are in step. From then on a round takes what it
        takes with the memory to itself, or what the memory needs for all.
        """
        repeats, warpgroups = self.kernel.repeats[0].reshape(-1), self.kernel.warpgroups
        share, later, sms = -(-blocks // self.sms), 0, 1
        if int(repeats.max()) == 1 and not self.beyond.any():
            later = max(0, share // resident - SHARE_ROUNDS)
        elif (work := int(repeats.sum()) * warpgroups * share) > PLAYED_SHARE:
            return None
        else:
            sms = min(SHARE_SMS, blocks // share, PLAYED_SHARE // work)
        played = self._played(repeats, resident, share - later * resident, blocks / share, sms)
        time, waited = float(played.time), played.waited / sms
        if later:
            more_time, more_waited = self._later_round(repeats, resident)
            time, waited = time + later * more_time, waited + later * more_waited
        return time, waited / (resident * warpgroups)

    def _later_round(self, repeats: NDArray[np.int64], resident: int) -> tuple[float, float]:
        """Time of a later round of equal blocks without loops, and time that their warpgroups wait in it.

        Residents go through the units one behind the other: a round takes what one block does, or as long as the unit
        that is busiest.
        """
        one, warpgroups = self.played(repeats, 1, 1, 1.0), self.kernel.warpgroups
        tensor, vector, _, port, l2, hbm = (self.kernel.turns[0] @ self.work).tolist()
        working = max(one.time, resident * warpgroups * tensor, resident * warpgroups * vector)
        time = max(working, resident * port, self.sms * resident * max(l2, hbm))
        return time, resident * (one.waited + (warpgroups * (time - one.time) if time > working else 0))

    def _rounds(self, blocks: int, resident: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Time of a first and of a later round of blocks, per class.

        SMs that begin together ask the memory for the same things at the same time. Over the first rounds they fall out
        of step; from then on a round takes what it takes with the memory to itself, or what the memory needs for all
        blocks, whichever is longer. How much longer the first takes is asked of the longest class.
        """
        slots = self.sms * self.slots
        sharers = self._sharers(blocks, resident)
        if blocks <= IN_STEP_WAVES * slots:
            return self.class_times(resident, sharers)
        alone = self.class_times(resident, 1.0)[1]
        memory = self.sms * resident * self.memory_times
        counts = self.kernel.class_counts
        usual = int(np.argmax(counts))
        turns = int(self.kernel.repeats[usual].max())
        thinned = counts[usual] >= DOMINANT * blocks and resident > 1 and PLAYED_TURNS <= turns <= THINNED_TURNS
        if thinned and (len(alone) == 1 or memory[usual] <= THINNED_MEMORY * alone[usual]):
            later = np.maximum(alone / alone[usual] * self._thinned_round(usual, resident), memory)
        else:
            if (alone > NEAR_MEMORY * memory).any():
                alone *= self._mixing(alone, resident)
            later = _smooth_maximum(alone, memory)
        longest = int(np.argmax(later))
        longer = max(1.0, self._first_round(longest, resident, sharers) / float(later[longest]))
        settling = 2.0 - SETTLING ** (blocks // slots)
        return later * (1.0 + settling * (longer - 1.0)), later

    def _thinned_round(self, block_class: int, resident: int) -> float:
        """A later round of blocks of one class, as a few SMs show it that share the memory and fall out of step.

        Whether SMs stay in step (FlashAttention-1, whose bursts of K and V bring them back) or not is then played, not
        assumed.
        """
        repeats, size = self.kernel.repeats[block_class].reshape(-1), THINNED_SMS * resident
        ends = sorted(self._played(repeats, resident, resident * THINNED_ROUNDS, self.sms, THINNED_SMS).ends)
        return (ends[-1] - ends[-1 - 2 * size]) / 2

    def _mixing(self, alone: NDArray[np.float64], resident: int) -> float:
        """How much longer blocks of all classes take beside one another than beside their own kind, begun together.

        One SM plays a sample of the launch, loops scaled down and the first residents staggered, until the sample is
        used up; list scheduling with the times of equal blocks says how long that should have taken.
        """
        if resident == 1 or int(self.kernel.repeats.max()) < 2:  # nothing to overlap
            return 1.0
        count = min(SAMPLED_ROUNDS * resident, SAMPLED_BLOCKS)
        sample = self._classes_at(((np.arange(count) + _jitter(count)) / count * self.kernel.blocks).astype(np.int64))
        whole = self.kernel.repeats[:, self.kept].reshape(len(alone), -1)
        scale = min(1.0, SAMPLED_TURNS / int(whole.max()))
        loops = np.tile(self.loops, len(self.kept))
        fewer_turns = loops & (whole > 2)
        blocks = np.where(fewer_turns, np.maximum(2, np.round(whole * scale)), whole).astype(np.int64)[sample]
        for place in range(resident - 1):
            part = PHASE * (place + 1) * 2 / resident
            shorter = np.maximum(1, np.round(blocks[place] * part))
            blocks[place] = np.where(loops & (blocks[place] > 1), shorter, blocks[place])
        segments = len(self.kernel.segments)
        fewer = self.kernel.turns[sample] - blocks.reshape(count, -1, segments).sum(axis=1)
        expected = alone[sample].copy()
        for segment in np.flatnonzero(fewer.any(axis=0)):
            expected -= fewer[:, segment] * self.period(int(segment), resident, 1.0)
        program = self.compiled(1.0)
        played = play(program, 1, resident, (program.block(self.runs(block)) for block in blocks))
        free = [0.0] * resident
        expected_ends = []
        for duration in np.maximum(expected, 1.0).tolist():
            expected_ends.append(free[0] + duration)
            heapq.heapreplace(free, free[0] + duration)
        # From the end of the second round, when the start is forgotten, until the sample is used up.
        window = (2 * resident - 1, count - resident - 1)
        times = [sorted(ends)[window[1]] - sorted(ends)[window[0]] for ends in (played.ends, expected_ends)]
        return float(times[0] / times[1])

    def _classes_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Classes of the blocks at these places of the launch order."""
        out = np.empty(len(positions), dtype=np.int64)
        begin = 0
        for launch in self.kernel.launches:
            size = len(launch.classes) * launch.times
            here = (positions >= begin) & (positions < begin + size)
            out[here] = launch.classes[(positions[here] - begin) % len(launch.classes)]
            begin += size
        return out

    def _waited(self, block_class: int, resident: int) -> float:
        """Time that each warpgroup of a block of a class waits for data, in a first round of blocks.

        In a turn beyond those played it waits as it does with the memory to itself, and for what the memory holds it
        up.
        """
        members, sharers = resident * self.kernel.warpgroups, self._sharers(self.kernel.blocks, resident)
        waited = self.played(self.clipped[block_class], resident, 1, sharers).waited / members
        for segment in np.flatnonzero(self.beyond[block_class]).tolist():
            before, after = self._lengthened(segment, resident, 1.0)
            alone = (after.waited - before.waited) / PERIOD_TURNS / members
            held_up = self._steady_period(segment, resident, sharers) - self.period(segment, resident, 1.0)
            waited += int(self.beyond[block_class, segment]) * (alone + held_up)
        return max(0.0, waited)

    def _sharers(self, blocks: int, resident: int) -> float:
        """SMs' worth of blocks that share the memory with the SM played: all, or as many as there are blocks for."""
        return min(float(self.sms), blocks / resident)

    def _uniform(self, blocks: int, block_class: int, first: float, following: float, resident: int) -> float:
        if blocks <= self.sms * self.slots:
            return float(first)
        waves, rest = divmod(blocks, self.sms * self.slots)
        total = first + (waves - 1) * following
        if rest:
            remaining = -(-rest // self.sms)
            total += self._first_round(block_class, remaining, self._sharers(rest, remaining)) - (first - following)
        return float(total)

    def _mixed(self, first: NDArray[np.float64], following: NDArray[np.float64], resident: int) -> float:
        """List scheduling of the classes in launch order, then the tail, when SMs run out of blocks."""
        slots, longest = self.sms * resident, int(np.argmax(first))
        lead = float((first - following) @ self.kernel.class_counts) / self.kernel.blocks
        order, left_over = self._dispatched(following, slots)
        remaining = np.zeros(slots)
        empty = 0.0
        if len(order) > slots:
            # Residents of an SM take turns on its units, so the first of them ends a little before the last.
            ends = self.played(self.clipped[longest], resident, 1, float(self.sms)).ends
            free = np.repeat(np.array(ends, dtype=np.float64) - ends[-1], self.sms)
            empty, remaining = list_scheduling(free, following[order])
        else:
            remaining[: len(order)] = following[order]
        if left_over:
            more, remaining = shared_out(remaining, left_over)
            empty += more
        tail = self._drain(remaining.reshape(resident, self.sms), min(len(order), slots), longest)
        return empty + tail + lead

    def _drain(self, remaining: NDArray[np.float64], running: int, longest: int) -> float:
        """Time until the last block ends, the ratios those of a class."""
        resident = len(remaining)
        played = sorted({1, -(-resident // 2), resident})
        alone = np.interp(range(resident + 1), [0, *played], [0.0, *(self.round_time(longest, k, 1.0) for k in played)])
        return drain(remaining, running, alone, float(self.memory_times[longest]))

    @cached_property
    def work(self) -> NDArray[np.float64]:
        """Time that one run of each segment needs of its SM's units, of delays and of the chip's L2 and HBM.

        Shape [segments, 6].
        """
        rows = []
        for steps in self.compiled(1.0).segments:
            tensor = vector = delay = port = l2 = hbm = 0
            for kind, _, one, _, copy in steps:
                if kind in (LOAD, STORE):
                    port, l2, hbm = port + copy.port, l2 + copy.l2, hbm + copy.hbm
                elif kind in (MMA, MMA_ASYNC):
                    tensor += one
                elif kind == VECTOR:
                    vector += one
                elif kind == DELAY:
                    delay += one
            rows.append((tensor, vector, delay, port, l2, hbm))
        return np.array(rows, dtype=np.float64)

    @property
    def holds(self) -> NDArray[np.float64]:
        """Time that one run of each segment holds the chip's L2 and its HBM, shape [segments, 2]."""
        return self.work[:, 4:]

    @cached_property
    def memory_times(self) -> NDArray[np.float64]:
        """Time that one block's transfers hold the chip's L2 or HBM, whichever is longer, per class."""
        return np.asarray((self.kernel.turns @ self.holds).max(axis=1))

    def _dispatched(self, durations: NDArray[np.float64], slots: int) -> tuple[NDArray[np.int64], float]:
        """Classes of the blocks to hand out one by one, and the time of those left over, one after the other."""
        order: list[NDArray[np.int64]] = []
        left_over, room = 0.0, min(DISPATCHED_BLOCKS, DISPATCHED_WAVES * slots)
        for launch in self.kernel.launches:
            times = max(1, min(launch.times, room // len(launch.classes)))
            order.append(np.tile(launch.classes, times))
            room -= times * len(launch.classes)
            left_over += (launch.times - times) * float(durations[launch.classes].sum())
        return np.concatenate(order), left_over


@lru_cache
def _jitter(count: int) -> NDArray[np.float64]:
    """Places of samples, each within its own part of the launch; always the same."""
    return np.random.default_rng(0).random(count)


@lru_cache
def _weights(count: int) -> NDArray[np.int64]:
    """Weights under which no two lists of `count` repeats are likely to have the same sum."""
    return np.random.default_rng(0).integers(1, 1 << 40, count)


def _smooth_maximum(alone: float | NDArray[np.float64], memory: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """The longer of the two, a little more where they are near each other."""
    longer = np.maximum(np.maximum(alone, memory), 1.0)
    return longer * ((alone / longer) ** QUEUEING + (memory / longer) ** QUEUEING) ** (1 / QUEUEING)


def _is_balanced(segment: Segment) -> bool:
    """Whether a segment starts as many loads of each tensor as it waits for, so that it may be left out or repeated."""
    net: dict[str, int] = {}
    for op in segment.ops:
        if op.kind in ("load", "wait"):
            net[op.tensor] = net.get(op.tensor, 0) + (1 if op.kind == "load" else -1)
    return not any(net.values())
