"""Named barriers of a block (``bar.sync``, ``bar.arrive``, ``bar.red``): arrivals, waiting warps, completion."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from attnsim.ptx.faults import Deadlock, DivergentBarrier, UnsupportedInstruction
from attnsim.ptx.lanes import WARP, Bools, Indices, Mask
from attnsim.ptx.machine import Machine
from attnsim.ptx.ordering import Clock

Groups = list[tuple[int, Mask]]
"""Groups of lanes that may proceed: the number of the instruction that they proceed with, and their mask."""

Finish = Callable[[Indices, Indices, Mask], None]
"""Writes the result of ``bar.red`` for these lanes, from the number of yes votes and of votes of each block."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """Lanes that come to a barrier.

    Parameters
    ----------
    barrier : int
        Its number, 0 to 15.
    threads : int or None
        Threads that the barrier expects; None for all of the block.
    resume : int
        Number of the instruction that the lanes proceed with.
    mask : Mask
        The lanes.
    waits : bool
        False for ``bar.arrive``.
    votes : ndarray of bool ``[lanes]`` or ``[1]``, optional
        Each lane's vote, for ``bar.red``.
    finish : Finish, optional
        Writes the result of the votes.
    """

    barrier: int
    threads: int | None
    resume: int
    mask: Mask
    waits: bool = True
    votes: Bools | None = None
    finish: Finish | None = None


@dataclass(slots=True)
class _State:
    """State of one barrier in every block: warps arrived and expected (-1: all), votes, its clock, waiting lanes."""

    arrived: Indices
    expected: Indices
    yes: Indices
    voted: Indices
    clock: Clock
    waiting: list[Arrival] = field(default_factory=list)


class Barriers:
    """Barriers of a batch of blocks.

    A barrier without a thread count completes when every warp of the block that has not exited has arrived
    (CUDA C++ Programming Guide, "Independent Thread Scheduling": ``__syncthreads`` waits for all non-exited threads).
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._lanes = machine.lanes
        self._ordering = machine.shared.ordering
        self._states: dict[int, _State] = defaultdict(self._untouched)

    def _untouched(self) -> _State:
        blocks, ordering = self._lanes.blocks, self._ordering
        arrived, expected, yes, voted = np.zeros((4, blocks), np.int64)
        clock = ordering.clock() if ordering else np.zeros((blocks, 0, 0), np.int32)
        return _State(arrived, expected, yes, voted, clock)

    @property
    def waiting(self) -> bool:
        """True if any warp waits at a barrier."""
        return any(state.waiting for state in self._states.values())

    def arrive(self, arrival: Arrival) -> Groups:
        """Record the arrival of lanes at a barrier; returns the lanes of all blocks that may now proceed.

        Raises
        ------
        DivergentBarrier
            If a warp arrives without some of its threads, or the warps name different thread counts.
        """
        mask = arrival.mask
        self._require_whole_warps(mask)
        plain = arrival.waits and arrival.threads is None and arrival.votes is None
        if plain and not self.waiting and self._is_complete(mask):
            self._complete(self._count(mask.lanes) > 0)
            return [(arrival.resume, mask)]
        if arrival.threads is not None and arrival.threads % WARP:
            raise UnsupportedInstruction(f"a barrier of {arrival.threads} threads, which is no multiple of {WARP}")
        state = self._states[arrival.barrier]
        arrived = mask.by_block(self._lanes.blocks)
        expected = -1 if arrival.threads is None else arrival.threads // WARP
        self._require_one_count(state, arrived, expected, arrival)
        state.arrived += arrived
        state.expected[arrived > 0] = expected
        if self._ordering:
            self._ordering.publish(state.clock, mask)
        if arrival.votes is not None:
            state.voted += self._count(mask.lanes)
            state.yes += self._count(mask.lanes & arrival.votes)
        if arrival.waits:
            state.waiting.append(arrival)
            return self._release(state)
        return [(arrival.resume, mask), *self._release(state)]

    def after_exit(self) -> Groups:
        """Complete barriers that only exited threads were missing from; returns the lanes that may now proceed."""
        return [group for state in self._states.values() if state.waiting for group in self._release(state)]

    def deadlock(self) -> Deadlock:
        """Return the fault for a state in which every remaining warp waits at a barrier."""
        number, state = next((n, s) for n, s in self._states.items() if s.waiting)
        first = state.waiting[0]
        lane = int(first.mask.index[0])
        block = int(self._lanes.block_of[lane])
        arrived, needed = int(state.arrived[block]), int(self._needed(state)[block])
        fault = Deadlock(f"barrier {number} waits for {needed} warps, {arrived} arrived, no other will", lane)
        fault.position = first.resume - 1
        return fault

    def _release(self, state: _State) -> Groups:
        """Release the blocks in which all expected warps have arrived."""
        complete = (state.arrived > 0) & (state.arrived >= self._needed(state))
        if not complete.any():
            return []
        self._complete(complete, partly=True)
        leaving = np.ones(1, bool) if complete.all() else complete[self._lanes.block_of]
        released: Groups = []
        kept = []
        for arrival in state.waiting:
            going = arrival.mask.where(leaving)
            staying = arrival.mask.without(going)
            if going.count:
                released.append((arrival.resume, going))
                if self._ordering:
                    self._ordering.acquire(state.clock, going)
                if arrival.finish:
                    arrival.finish(state.yes, state.voted, going)
            if staying.count:
                kept.append(replace(arrival, mask=staying))
        state.waiting = kept
        for counts in (state.arrived, state.yes, state.voted, state.clock):
            counts[complete] = 0
        return released

    def _complete(self, blocks: Bools, partly: bool = False) -> None:
        """Count and complete the barriers of these blocks; with `partly`, only the arrived warps have met."""
        self._machine.counters.barriers += int(np.count_nonzero(blocks))
        if not (partly and self._ordering):
            self._machine.shared.barrier(None if blocks.all() else blocks)

    def _needed(self, state: _State) -> Indices:
        """Warps that the barrier of each block expects, ``[blocks]``."""
        if (state.expected >= 0).all():
            return state.expected
        live = self._machine.live.reshape(self._lanes.blocks, -1, WARP).any(axis=2)
        return np.where(state.expected < 0, np.count_nonzero(live, axis=1), state.expected)

    def _require_one_count(self, state: _State, arrived: Indices, expected: int, arrival: Arrival) -> None:
        """Require that all arriving warps name the same thread count, and that no more warps than that arrive."""
        total = state.arrived + arrived
        if (state.expected == expected).all() and not 0 <= expected < total.max():
            return
        here = arrived > 0
        differs = here & (state.arrived > 0) & (state.expected != expected)
        if differs.any() or 0 <= expected < int(total[here].max()):
            block = int(np.flatnonzero(differs if differs.any() else here & (total > expected))[0])
            others = f", {state.expected[block]} for those before" if differs.any() else ""
            raise DivergentBarrier(
                f"barrier {arrival.barrier} is for {expected} warps{others}; {total[block]} have come",
                arrival.mask.lane(0),
            )

    def _require_whole_warps(self, mask: Mask) -> None:
        """Require that every warp arrives with all its threads that have not exited."""
        if mask.whole_warps:
            return
        live = self._machine.live.reshape(-1, WARP)
        missing = live & ~mask.lanes.reshape(-1, WARP) & (mask.by_warp > 0)[:, None]
        if missing.any():
            warp, lane = (int(i) for i in np.argwhere(missing)[0])
            first = int(np.flatnonzero(mask.lanes.reshape(-1, WARP)[warp])[0])
            raise DivergentBarrier(
                f"a barrier in divergent code: {int(mask.by_warp[warp])} of the warp's {int(live[warp].sum())} threads "
                f"came, lane {lane} did not",
                warp * WARP + first,
            )

    def _is_complete(self, mask: Mask) -> bool:
        """True if every live lane of each participating block is in the mask."""
        if mask.full:
            return True
        absent = self._machine.live & ~mask.lanes
        return not (absent & (self._count(mask.lanes) > 0)[self._lanes.block_of]).any()

    def _count(self, lanes: Bools) -> Indices:
        """Lanes of each block that are in the mask, ``[blocks]``."""
        counts: Indices = np.count_nonzero(lanes.reshape(self._lanes.blocks, -1), axis=1)
        return counts
