"""How long a round of resident blocks takes on a full chip: the first round, and every later one.

SMs that begin together ask the memory for the same tensors at the same time, so the first round is the slowest. Over
the first rounds they fall out of step. A later round takes what it takes without contention, or what the memory needs
for the blocks of all SMs, whichever is longer.
"""

from __future__ import annotations

import heapq
from functools import lru_cache

import numpy as np

from attnsim.models.arrays import Floats, Ints
from attnsim.models.by_hand import by_hand
from attnsim.simulator.engine import play
from attnsim.simulator.one_sm import PLAYED_TURNS, OneSm, smooth_maximum

IN_STEP_WAVES = by_hand(
    1, "waves during which SMs that began together ask the memory for the same tensors at the same time"
)
NEAR_MEMORY = by_hand(
    0.85, "share of the memory's time that a round has to last for the mixture of block classes to matter"
)
SETTLING = by_hand(0.5, "share of the first wave's delay that is still there in each further wave")
DOMINANT = by_hand(
    0.97, "share of the blocks from which on one class stands for all: the others are last, shorter tiles"
)
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


class Rounds:
    """Rounds of blocks of one kernel on a chip of `sms` SMs with `slots` resident blocks each."""

    def __init__(self, one_sm: OneSm, sms: int, slots: int) -> None:
        self.one_sm, self.kernel = one_sm, one_sm.kernel
        self.sms, self.slots = sms, slots

    def sharers(self, blocks: int, resident: int) -> float:
        """SMs that share L2 and HBM: all, or as many as there are blocks for."""
        return min(float(self.sms), blocks / resident)

    def times(self, blocks: int, resident: int) -> tuple[Floats, Floats]:
        """Time of a first and of a later round of blocks, per class.

        How much longer the first round takes is played for the longest class and holds for all.
        """
        one_sm, slots = self.one_sm, self.sms * self.slots
        sharers = self.sharers(blocks, resident)
        if blocks <= IN_STEP_WAVES * slots:
            return one_sm.class_times(resident, sharers)
        alone = one_sm.class_times(resident, 1.0)[1]
        memory = self.sms * resident * one_sm.memory_times
        counts = self.kernel.class_counts
        usual = int(np.argmax(counts))
        turns = int(self.kernel.repeats[usual].max())
        thinned = counts[usual] >= DOMINANT * blocks and resident > 1 and PLAYED_TURNS <= turns <= THINNED_TURNS
        if thinned and (len(alone) == 1 or memory[usual] <= THINNED_MEMORY * alone[usual]):
            later = np.maximum(alone / alone[usual] * self._thinned_chip(usual, resident), memory)
        else:
            if (alone > NEAR_MEMORY * memory).any():
                alone *= self._mixing(alone, resident)
            later = smooth_maximum(alone, memory)
        longest = int(np.argmax(later))
        longer = max(1.0, one_sm.settled_first_round(longest, resident, sharers) / float(later[longest]))
        settling = 2.0 - SETTLING ** (blocks // slots)
        return later * (1.0 + settling * (longer - 1.0)), later

    def without_loops(self, resident: int) -> tuple[float, float]:
        """Time of a later round of equal blocks without loops, and time that their warpgroups wait in it.

        Residents follow one another through the units: a round takes as long as one block, or as long as the busiest
        unit needs for all of them.
        """
        one_sm, warpgroups = self.one_sm, self.kernel.warpgroups
        one = one_sm.play_rounds(self.kernel.repeats[0].reshape(-1), 1, 1, 1.0)
        tensor, vector, _, port, l2, hbm = (self.kernel.turns[0] @ one_sm.work).tolist()
        working = max(one.time, resident * warpgroups * tensor, resident * warpgroups * vector)
        time = max(working, resident * port, self.sms * resident * max(l2, hbm))
        return time, resident * (one.waited + (warpgroups * (time - one.time) if time > working else 0))

    def _thinned_chip(self, block_class: int, resident: int) -> float:
        """Time of a later round of blocks of one class, played on a few SMs that share the memory.

        Whether SMs fall out of step is simulated, not assumed: the bursts of K and V in FlashAttention-1, for example,
        bring them back into step.
        """
        repeats, size = self.kernel.repeats[block_class].reshape(-1), THINNED_SMS * resident
        blocks = resident * THINNED_ROUNDS
        ends = sorted(self.one_sm.play_blocks(repeats, resident, blocks, self.sms, THINNED_SMS).ends)
        return (ends[-1] - ends[-1 - 2 * size]) / 2

    def _mixing(self, alone: Floats, resident: int) -> float:
        """Slow-down of blocks that share an SM with other block classes, relative to sharing it with equal blocks.

        One SM plays a sample of the launch with its loops scaled down and its first residents staggered. List
        scheduling with the times of equal blocks says how long the sample should have taken.
        """
        one_sm = self.one_sm
        if resident == 1 or int(self.kernel.repeats.max()) < 2:  # nothing to overlap
            return 1.0
        count = min(SAMPLED_ROUNDS * resident, SAMPLED_BLOCKS)
        sample = self._classes_at(((np.arange(count) + _jitter(count)) / count * self.kernel.blocks).astype(np.int64))
        whole = self.kernel.repeats[:, one_sm.kept].reshape(len(alone), -1)
        scale = min(1.0, SAMPLED_TURNS / int(whole.max()))
        loops = np.tile(one_sm.loops, len(one_sm.kept))
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
            expected -= fewer[:, segment] * one_sm.period(int(segment), resident, 1.0)
        program = one_sm.compiled(1.0)
        played = play(program, 1, resident, (program.block(one_sm.runs(block)) for block in blocks))
        free = [0.0] * resident
        expected_ends = []
        for duration in np.maximum(expected, 1.0).tolist():
            expected_ends.append(free[0] + duration)
            heapq.heapreplace(free, free[0] + duration)
        # From the end of the second round, when the start no longer matters, until the sample is used up.
        window = (2 * resident - 1, count - resident - 1)
        times = [sorted(ends)[window[1]] - sorted(ends)[window[0]] for ends in (played.ends, expected_ends)]
        return float(times[0] / times[1])

    def _classes_at(self, positions: Ints) -> Ints:
        """Classes of the blocks at these places of the launch order."""
        out = np.empty(len(positions), dtype=np.int64)
        begin = 0
        for launch in self.kernel.launches:
            size = len(launch.classes) * launch.times
            here = (positions >= begin) & (positions < begin + size)
            out[here] = launch.classes[(positions[here] - begin) % len(launch.classes)]
            begin += size
        return out


@lru_cache
def _jitter(count: int) -> Floats:
    """Where each sample lies within its own part of the launch, from 0 to 1; always the same."""
    return np.random.default_rng(0).random(count)
