"""Thread block clusters: blocks that run at the same time and access each other's shared memory.

PTX ISA 9.0, "Cluster of Cooperative Thread Arrays", "mapa" and "barrier.cluster". An address from ``mapa`` is encoded
here as the address in the other block's memory, with that block's rank plus one in the bits from 24 on.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnsim.ptx.faults import DivergentBarrier, MisusedMbarrier, OutOfBounds
from attnsim.ptx.lanes import WARP, Bools, Indices, Mask, Values
from attnsim.ptx.machine import Machine, Step, operation, unsupported
from attnsim.ptx.syntax import Instruction

RANK_SHIFT = 24
"""Bits of an address within one block's shared memory; no GPU has more than 228 KiB."""


class Clusters:
    """The clusters of a batch: their barriers, and accesses to the shared memory of other blocks.

    A block may be run without the others of its cluster, to record what it does. It then receives its own remote
    arrivals and copies, in place of those that the other blocks would send.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def start(self) -> None:
        """Reset: no lane has arrived."""
        lanes = self._machine.lanes
        self._size, self._ordering = self._machine.cluster, self._machine.shared.ordering
        self._alone = lanes.cluster < self._size
        together = 1 if self._alone else self._size
        self._of, self._together = lanes.block_of // together, together
        self._arrived, self._open = np.zeros((2, lanes.count), bool)
        self._due = np.zeros(lanes.count, np.int64)
        self._phase = np.zeros(-(-lanes.blocks // together), np.int64)
        self._visits: list[tuple[int, int, int]] = []  # to a block, by an agent, at its time
        if self._ordering:
            self._published, self._over = self._ordering.clock(), self._ordering.clock()

    def arrive(self, mask: Mask) -> None:
        """``barrier.cluster.arrive`` of these lanes; a phase ends when all live lanes of the cluster have arrived.

        Raises
        ------
        DivergentBarrier
            When a lane arrives twice without a wait in between.
        """
        again = self._open[mask.index]
        if again.any():
            lane = mask.lane(int(np.flatnonzero(again)[0]))
            raise DivergentBarrier(
                "barrier.cluster.arrive for the second time, with no barrier.cluster.wait between", lane
            )
        self._open |= mask.lanes
        self._arrived |= mask.lanes
        self._due[mask.index] = self._phase[self._of[mask.index]] + 1
        if self._ordering:
            self._ordering.publish(self._published, mask)
        self._settle()

    def over(self, mask: Mask) -> Mask:
        """``barrier.cluster.wait``: returns the lanes whose cluster has arrived completely.

        Raises
        ------
        DivergentBarrier
            When a lane waits that has not arrived.
        """
        absent = ~self._open[mask.index]
        if absent.any():
            lane = mask.lane(int(np.flatnonzero(absent)[0]))
            raise DivergentBarrier("barrier.cluster.wait with no barrier.cluster.arrive before", lane)
        return mask.select(self._phase[self._of[mask.index]] >= self._due[mask.index])

    def go_on(self, mask: Mask) -> None:
        """Pass the barrier: these lanes acquire the clocks of all that arrived."""
        self._open &= ~mask.lanes
        if self._ordering:
            self._ordering.acquire(self._over, mask)

    def missing(self, mask: Mask) -> str:
        """Describe the barrier that these lanes wait at, for a message."""
        here = self._machine.live & (self._of == self._of[mask.lane(0)])
        absent = int(np.count_nonzero(here & ~self._arrived))
        return f"waits at a barrier of its cluster for {absent} of {np.count_nonzero(here)} threads"

    def block(self, lanes: Indices, ranks: Indices) -> Indices:
        """Blocks of these ranks in the lanes' clusters, ``[lanes]``, for an access to their shared memory."""
        own = self._machine.lanes.block_of[lanes]
        if self._alone:
            return own
        blocks = own // self._size * self._size + ranks
        self._touch(lanes, blocks)
        return blocks

    def _touch(self, lanes: Indices, blocks: Indices) -> None:
        """Record remote accesses of these lanes to the shared memory of these blocks.

        Raises
        ------
        MisusedMbarrier
            When a block has ended, whose memory may be another's by now.
        OutOfBounds
            When the cluster has no such block.
        """
        size, own = self._size, self._machine.lanes.block_of[lanes]
        outside = blocks // size != own // size
        if outside.any():
            lane = int(lanes[np.flatnonzero(outside)[0]])
            raise OutOfBounds(f"a block of the cluster beyond its {size}", lane)
        living = self._living()[blocks]
        if not living.all():
            lane = int(lanes[np.flatnonzero(~living)[0]])
            raise MisusedMbarrier(
                "the other block of the cluster has ended, with no barrier of the cluster before", lane
            )
        if self._ordering:
            agents, times = self._ordering.time_of(lanes // WARP)
            others = blocks != own
            self._visits += zip(blocks[others].tolist(), agents[others].tolist(), times[others].tolist(), strict=True)

    def receivers(self, mask: Mask, bits: Values | None) -> Iterator[tuple[Values, Indices]]:
        """Yield lanes of `mask` and their receiving blocks: their own block, or each rank that `bits` names."""
        own = self._machine.lanes.block_of[mask.index]
        if bits is None:
            yield np.ones(mask.count, bool), own
            return
        if (bits >> self._size).any():
            raise OutOfBounds(f"a copy to a block of the cluster beyond its {self._size}", mask.lane(0))
        for rank in range(self._size):
            here = (bits >> rank & 1) > 0
            if here.any():
                yield here, self.block(mask.index[here], np.full(np.count_nonzero(here), rank))

    def leave(self, mask: Mask) -> None:
        """Record the exit of these lanes.

        Raises
        ------
        MisusedMbarrier
            When a block ends although none of its warps has synchronised with a block that accessed its memory. Had
            that block been slower, its access would have hit memory that is gone.
        """
        if self._size == 1:
            return
        self._settle()
        if self._alone:
            return
        lanes = self._machine.lanes
        living = self._living()
        for block in np.unique(lanes.block_of[mask.index][~living[lanes.block_of[mask.index]]]).tolist():
            visits = [(agent, time) for place, agent, time in self._visits if place == block]
            if not visits or self._ordering is None:
                continue
            warps = np.arange(lanes.warps_per_block) + block * lanes.warps_per_block
            known = self._ordering.knowledge(warps).max(axis=0)
            for agent, time in visits:
                if known[agent] < time:
                    who = self._ordering.agents.described(agent)
                    raise MisusedMbarrier(
                        f"the block ends, with no barrier of the cluster after {who} has reached into its memory",
                        block * lanes.lanes_per_block,
                    )

    def _living(self) -> Bools:
        """True for blocks with a live lane, ``[blocks]``."""
        return np.bincount(self._machine.lanes.block_of[self._machine.live], minlength=self._machine.lanes.blocks) > 0

    def _settle(self) -> None:
        """End the phase of every cluster whose live lanes have all arrived."""
        clusters = len(self._phase)
        arrived = np.bincount(self._of[self._arrived], minlength=clusters)
        absent = np.bincount(self._of[self._machine.live & ~self._arrived], minlength=clusters)
        over = (arrived > 0) & (absent == 0)
        if over.any():
            self._phase[over] += 1
            self._arrived &= ~over[self._of]
            if self._ordering:
                published = self._published.reshape(clusters, self._together, *self._published.shape[1:]).max(axis=1)
                blocks = np.flatnonzero(np.repeat(over, self._together))
                self._over[blocks] = published[blocks // self._together]


@operation("mapa")
def compile_mapa(instruction: Instruction, machine: Machine) -> Step:
    """``mapa.shared::cluster.u32 d, a, b``: the address in block b of the cluster that corresponds to a."""
    if tuple(instruction.modifiers) != ("shared::cluster", "u32"):
        raise unsupported(instruction)
    target, place, rank = instruction.operands
    address, block, write = machine.read(place, "u32"), machine.read(rank, "u32"), machine.write(target, "u32")
    own = np.uint32((1 << RANK_SHIFT) - 1)

    def step(mask: Mask) -> None:
        ranks = block()
        if (mask.of(ranks) >= machine.cluster).any():
            raise OutOfBounds(f"a block of the cluster beyond its {machine.cluster}", mask.lane(0))
        write(address() & own | (ranks + np.uint32(1)) << np.uint32(RANK_SHIFT), mask)

    return step
