"""One SM that plays a few blocks of a kernel: what a round of resident blocks takes, and one more turn of a loop.

The fast mode does not run the loops of a block to their end. It plays a few turns of each, finds by how much a further
turn lengthens the round (the loop's *period*), and adds the turns that it has not played. Replays are remembered, since
classes of blocks that differ only in those turns share them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache
from itertools import repeat

import numpy as np

from attnsim.models.arrays import Bools, Floats, Ints
from attnsim.models.by_hand import by_hand
from attnsim.models.schedule.schedule import Kernel, Segment
from attnsim.simulator.engine import Played, play
from attnsim.simulator.program import DELAY, LOAD, MMA, MMA_ASYNC, STORE, VECTOR, Program

PLAYED_TURNS = by_hand(
    3, "turns of an inner loop that the fast mode simulates before it extends the loop by its period"
)
"""A segment that does not wait for exactly what it loads is simulated as often as it is run."""
PERIOD_TURNS = by_hand(2, "further turns of an inner loop that the fast mode simulates to find the loop's period")
QUEUEING = by_hand(10.0, "power of the smooth maximum of a round without contention and the time that the memory needs")
"""Near balance the SM and the memory wait for each other now and then."""


class OneSm:
    """Replays of one SM, remembered.

    `resident` is always the number of blocks on the SM, and `active` the number of SMs that share L2 and HBM, the one
    that is played included. Times are picoseconds.

    Parameters
    ----------
    kernel : Kernel
    compiled : callable
        The program of an SM with which so many SMs share L2 and HBM.
    """

    def __init__(self, kernel: Kernel, compiled: Callable[[float], Program]) -> None:
        self.kernel = kernel
        self.compiled = compiled
        self.plays: dict[tuple[object, ...], Played] = {}
        turns = kernel.repeats.shape[1]
        self.kept = [0, turns // 2, turns - 1] if turns > 3 else list(range(turns))
        """Outer turns of a block that are played: the first, one from the middle, the last."""
        played = kernel.repeats[:, self.kept]
        if int(played.max()) > PLAYED_TURNS:
            played = np.where(self.loops, np.minimum(played, PLAYED_TURNS), played)
        self.clipped: Ints = played.reshape(len(played), -1)
        """How often each segment is played, per class, shape [classes, kept turns x segments]."""
        self.beyond: Ints = kernel.turns - played.sum(axis=1)
        """Executions of each segment that are not played, shape [classes, segments]."""

    @cached_property
    def loops(self) -> Bools:
        """Which segments may be played less often than they are run."""
        return np.array([_is_balanced(segment) for segment in self.kernel.segments])

    @cached_property
    def alike(self) -> list[Ints]:
        """Classes that share their replays, group by group."""
        if len(self.clipped) == 1:
            return [np.zeros(1, dtype=np.int64)]
        _, group = np.unique(self.clipped @ _hash_weights(self.clipped.shape[1]), return_inverse=True)
        order = np.argsort(group, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(group[order])) + 1)

    @cached_property
    def work(self) -> Floats:
        """Time that one run of each segment keeps each unit busy, shape [segments, 6].

        The units are the SM's tensor cores and vector lanes, delays, the SM's port to the L2, the chip's L2 and HBM.
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
    def holds(self) -> Floats:
        """Time that one run of each segment holds the chip's L2 and its HBM, shape [segments, 2]."""
        return self.work[:, 4:]

    @cached_property
    def memory_times(self) -> Floats:
        """Time that one block's transfers hold the chip's L2 or HBM, whichever is longer, per class."""
        return np.asarray((self.kernel.turns @ self.holds).max(axis=1))

    def runs(self, repeats: Ints) -> list[tuple[int, int]]:
        """The (segment, repeats) of a block with these flattened repeat counts."""
        segments = len(self.kernel.segments)
        return [(index % segments, n) for index, n in enumerate(repeats.tolist()) if n > 0]

    def play_rounds(self, repeats: Ints, resident: int, rounds: int, active: float) -> Played:
        """Replay some rounds of equal blocks."""
        return self.play_blocks(repeats, resident, resident * rounds, active)

    def play_blocks(self, repeats: Ints, resident: int, blocks: int, active: float, sms: int = 1) -> Played:
        """Replay `blocks` equal blocks on each of `sms` SMs, side by side, that together stand for `active`."""
        key = (repeats.tobytes(), resident, blocks, active, sms)
        if key not in self.plays:
            program = self.compiled(active / sms)
            self.plays[key] = play(program, sms, resident, repeat(program.block(self.runs(repeats)), blocks * sms))
        return self.plays[key]

    def period(self, segment: int, resident: int, active: float) -> float:
        """Time that one more turn of a segment adds to a round of resident blocks."""
        before, after = self._lengthened(segment, resident, active)
        return (after.time - before.time) / PERIOD_TURNS

    def steady_period(self, segment: int, resident: int, active: float) -> float:
        """Period of a loop that has run long enough for SMs to be out of step.

        It is the period without contention, or the time that the memory needs for all SMs.
        """
        alone = self.period(segment, resident, 1.0)
        return float(smooth_maximum(alone, active * resident * self.holds[segment].max()))

    def _lengthened(self, segment: int, resident: int, active: float) -> tuple[Played, Played]:
        """A round of blocks of the class that plays most turns of a segment, and the same with more turns of it."""
        turns = self.clipped.reshape(len(self.clipped), -1, len(self.kernel.segments)).sum(axis=1)
        repeats = self.clipped[int(np.argmax(turns[:, segment]))]
        places = np.arange(segment, len(repeats), len(self.kernel.segments))
        longer = repeats.copy()
        longer[places[np.argmax(repeats[places])]] += PERIOD_TURNS
        return self.play_rounds(repeats, resident, 1, active), self.play_rounds(longer, resident, 1, active)

    def first_round(self, block_class: int, resident: int, active: float) -> float:
        """Time of a first round of blocks of a class, with SMs in step throughout."""
        clipped = self.clipped[block_class]
        time = float(self.play_rounds(clipped, resident, 1, active).time)
        for segment in np.flatnonzero(self.beyond[block_class]):
            time += self.beyond[block_class, segment] * self.period(int(segment), resident, active)
        return time

    def settled_first_round(self, block_class: int, resident: int, active: float) -> float:
        """Time of a first round of blocks of a class, with SMs out of step in the turns that are not played."""
        clipped, beyond = self.clipped[block_class], self.beyond[block_class]
        periods = sum(beyond[n] * self.steady_period(int(n), resident, active) for n in np.flatnonzero(beyond))
        return float(self.play_rounds(clipped, resident, 1, active).time + periods)

    def class_times(self, resident: int, active: float) -> tuple[Floats, Floats]:
        """Time of a first and of a following round of blocks, per class.

        A following round is shorter, since it begins while the one before it ends. For blocks with loops the saving is
        played for the longest class and holds for all.
        """
        first, saved = (np.empty(len(self.clipped)) for _ in range(2))
        loops = np.zeros(len(first), dtype=np.bool_)
        for members in self.alike:
            clipped, beyond = self.clipped[members[0]], self.beyond[members]
            one = self.play_rounds(clipped, resident, 1, active).time
            first[members] = one
            loops[members] = beyond.any()
            if not beyond.any():
                saved[members] = 2 * one - self.play_rounds(clipped, resident, 2, active).time
            for segment in np.flatnonzero(beyond.any(axis=0)):
                first[members] += beyond[:, segment] * self.steady_period(int(segment), resident, active)
        if loops.any():
            longest = self.clipped[int(np.argmax(first * loops))]
            one, two = (self.play_rounds(longest, resident, rounds, active).time for rounds in (1, 2))
            saved[loops] = 2 * one - two
        return first, first - saved

    def waited(self, block_class: int, resident: int, active: float) -> float:
        """Time that each warpgroup of a block of a class waits for data, in a first round of blocks.

        For each loop turn that is not simulated, add the wait measured without contention and the extra delay due to
        shared memory bandwidth.
        """
        members = resident * self.kernel.warpgroups
        waited = self.play_rounds(self.clipped[block_class], resident, 1, active).waited / members
        for segment in np.flatnonzero(self.beyond[block_class]).tolist():
            before, after = self._lengthened(segment, resident, 1.0)
            alone = (after.waited - before.waited) / PERIOD_TURNS / members
            held_up = self.steady_period(segment, resident, active) - self.period(segment, resident, 1.0)
            waited += int(self.beyond[block_class, segment]) * (alone + held_up)
        return max(0.0, waited)


def smooth_maximum(alone: float | Floats, memory: float | Floats) -> Floats:
    """The longer of two times, and slightly more where they are nearly equal."""
    longer = np.maximum(np.maximum(alone, memory), 1.0)
    return longer * ((alone / longer) ** QUEUEING + (memory / longer) ** QUEUEING) ** (1 / QUEUEING)


@lru_cache
def _hash_weights(count: int) -> Ints:
    """Weights of a hash of `count` repeats: two lists that differ have different weighted sums, almost surely."""
    return np.random.default_rng(0).integers(1, 1 << 40, count)


def _is_balanced(segment: Segment) -> bool:
    """Whether a segment starts as many loads of each tensor as it waits for, so that it may be left out or repeated."""
    net: dict[str, int] = {}
    for op in segment.ops:
        if op.kind in ("load", "wait"):
            net[op.tensor] = net.get(op.tensor, 0) + (1 if op.kind == "load" else -1)
    return not any(net.values())
