"""The discrete-event replay: warpgroups as SimPy processes on the units of their SM.

Units are served first come, first served, in whole picoseconds, and each is one number: the time at which it will be
free. A process that needs a unit books it and sleeps until its work is done, so a tile operation is one sleep and
no queue of waiting processes is ever kept (``simpy.Resource`` costs five times as much for the same answer).

A warpgroup's own time runs ahead of the clock while nobody else can see or hinder what it does (it waits for data whose
landing is known, or for a fixed delay); it sleeps until the clock has caught up before it books a unit, copies or waits
for data longer than it has to anyway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import simpy

from attnsim.simulator.clock import Clock, Sleeper, Steps
from attnsim.simulator.program import (
    DELAY,
    LOAD,
    MMA,
    MMA_ASYNC,
    MMA_WAIT,
    PREFETCH,
    STORE,
    VECTOR,
    WAIT,
    Copy,
    Program,
    Step,
)

Note = Callable[[int, int, int, int, int, int], None]
"""Told of an operation: (kind, tensor, start, end, bytes, HBM picoseconds); see :mod:`attnsim.simulator.trace`."""

BLOCK = -1
"""Kind under which a thread block itself is noted, from its start to its end."""


class Memory:
    """The levels that SMs share: when L2 and HBM will be free, and the bytes asked of them per tensor.

    When one SM stands for many, a transfer holds the level for all of them. At the first instant all ask at once and
    the one played is the last to be served; from then on they come one after the other, so its own transfers pass at
    full speed as long as the level keeps up.
    """

    __slots__ = ("hbm_free", "l2_free", "loaded", "stored")

    def __init__(self, tensors: int) -> None:
        self.l2_free = 0
        self.hbm_free = 0
        self.loaded = [0] * tensors
        self.stored = [0] * tensors


@dataclass(slots=True)
class Sm:
    """One streaming multiprocessor: when each unit will be free, how long its warpgroups waited, blocks not ended."""

    tensor_free: int = 0
    vector_free: int = 0
    port_free: int = 0
    waited: int = 0
    running: int = 0


class Block:
    """The shared state of a thread block's warpgroups: which loads have been issued and when they land."""

    __slots__ = ("arrivals", "landing", "prefetched", "steps", "wakeups")

    def __init__(self, tensors: int, steps: Iterable[Step]) -> None:
        self.steps = steps
        self.prefetched: list[int] = []  # loads of each tensor issued before the block began, if any were
        self.landing: list[list[int]] = [[] for _ in range(tensors)]
        self.arrivals: dict[tuple[int, int], int] = {}
        self.wakeups: dict[tuple[int, int], simpy.Event] = {}

    def last_to_free(self, tensor: int, turn: int, members: int) -> bool:
        """Note that a warpgroup has freed the buffer of a tensor's `turn`-th load; whether all have now."""
        arrived = self.arrivals.get((tensor, turn), 0) + 1
        self.arrivals[tensor, turn] = arrived
        return arrived == members


def transfer(now: int, sm: Sm, memory: Memory, moved: list[int], tensor: int, copy: Copy) -> int:
    """Book a transfer on the SM's port, the L2 and the HBM, and its bytes; return when the last of them has arrived."""
    port, l2, own_l2, hbm, own_hbm, latency, size = copy
    moved[tensor] += size
    if now == 0:
        own_l2, own_hbm = l2, hbm
    free = sm.port_free
    sm.port_free = through = (free if free > now else now) + port
    if l2:
        free = memory.l2_free
        begin = free if free > now else now
        memory.l2_free = begin + l2
        end = begin + own_l2
        through = end if end > through else through
    if hbm:
        free = memory.hbm_free
        begin = free if free > now else now
        memory.hbm_free = begin + hbm
        end = begin + own_hbm
        through = end if end > through else through
    return through + latency


def prefetch(now: int, sm: Sm, memory: Memory, program: Program, block: Block, note: Note | None = None) -> None:
    """Issue the loads that a block begins with, before it begins."""
    block.prefetched = [0] * len(program.tensors)
    for kind, tensor, _, _, copy in block.steps:
        if kind == LOAD:
            landed = transfer(now, sm, memory, memory.loaded, tensor, copy)
            block.landing[tensor].append(landed)
            if note is not None:
                note(LOAD, tensor, now, landed, copy.size, copy.hbm)
            block.prefetched[tensor] += 1
        elif kind != DELAY:
            return


def warpgroup(
    clock: Clock,
    sm: Sm,
    memory: Memory,
    program: Program,
    blocks: Iterable[Block],
    ahead: Callable[[], None],
    note: Note | None = None,
) -> Steps:
    """Play one warpgroup of thread blocks through their loop nests; `ahead` is called where it may prefetch."""
    members = program.warpgroups
    for block in blocks:
        waits = [0] * len(program.tensors)  # loads of each tensor this warpgroup has waited for
        frees = [0] * len(program.tensors)  # and those whose buffer it has freed
        prefetched = block.prefetched
        counted = members > 1 or prefetched
        issued: deque[int] = deque()  # ends of its asynchronous MMAs
        landings = block.landing
        last_load = -1
        at = now = clock.now  # its own time, and the clock's when it was last awake
        for kind, tensor, one, two, copy in block.steps:
            if kind == WAIT:
                turn = waits[tensor]
                waits[tensor] = turn + 1
                landing = landings[tensor]
                if turn >= len(landing):
                    if at > now:
                        now = yield at - now
                    if turn >= len(landing):
                        wakeup = block.wakeups.get((tensor, turn)) or clock.event()
                        block.wakeups[tensor, turn] = wakeup
                        now = yield wakeup
                        sm.waited += now - at
                        at = now
                landed = landing[turn]
                if landed > at:
                    if at > now:
                        now = yield at - now
                    sm.waited += landed - at
                    at = landed
                continue
            if kind == LOAD:
                if counted:
                    turn = frees[tensor]
                    frees[tensor] = turn + 1
                    if prefetched and turn < prefetched[tensor]:
                        continue
                if at > now:
                    now = yield at - now
                # The last warpgroup to free the buffer issues the copy.
                if members > 1 and not block.last_to_free(tensor, turn, members):
                    continue
                if now == last_load:  # copies issued at one instant take turns with those of other SMs
                    at = now = yield 0
                last_load = now
                landed = transfer(now, sm, memory, memory.loaded, tensor, copy)
                landing = landings[tensor]
                landing.append(landed)
                if note is not None:
                    note(LOAD, tensor, now, landed, copy.size, copy.hbm)
                if block.wakeups:
                    waiting = block.wakeups.pop((tensor, len(landing) - 1), None)
                    if waiting is not None:
                        waiting.succeed(now)
                continue
            if kind == DELAY:
                at += one
                continue
            if kind == MMA_WAIT:
                end = issued.popleft()
                at = end if end > at else at
                continue
            if at > now:
                now = yield at - now
            if kind == MMA or kind == MMA_ASYNC:
                begin = sm.tensor_free
                sm.tensor_free = end = (begin if begin > now else now) + one
                begin = sm.vector_free
                sm.vector_free = (begin if begin > now else now) + two
                if note is not None:
                    note(kind, tensor, end - one, end, 0, 0)
                if kind == MMA:
                    at = end
                else:
                    issued.append(end)
            elif kind == VECTOR:
                begin = sm.vector_free
                sm.vector_free = at = (begin if begin > now else now) + one
                begin = sm.tensor_free
                sm.tensor_free = (begin if begin > now else now) + two
                if note is not None:
                    note(kind, tensor, at - one, at, 0, 0)
            elif kind == STORE:
                if members > 1:
                    turn = frees[tensor]
                    frees[tensor] = turn + 1
                    if not block.last_to_free(tensor, turn, members):
                        continue
                end = transfer(now, sm, memory, memory.stored, tensor, copy)
                if note is not None:
                    note(STORE, tensor, now, end, copy.size, copy.hbm)
            elif kind == PREFETCH:
                ahead()
        if at > now:
            yield at - now


class Slot:
    """One place for a resident thread block on an SM: it runs blocks from the queue until that is empty."""

    def __init__(
        self,
        clock: Clock,
        sm: Sm,
        memory: Memory,
        program: Program,
        queue: Iterator[Iterable[Step]],
        ends: list[int],
        note: Note | None = None,
    ) -> None:
        self.clock, self.sm, self.memory, self.program = clock, sm, memory, program
        self.queue, self.ends, self.note = queue, ends, note
        self.next: Block | None = None

    def take(self) -> Block | None:
        """The next block of the queue."""
        steps = next(self.queue, None)
        return None if steps is None else Block(len(self.program.tensors), steps)

    def ahead(self) -> None:
        """Take the next block already and start its loads; the first warpgroup to get here does it for all."""
        if self.next is None:
            self.next = self.take()
            if self.next is not None:
                prefetch(self.clock.now, self.sm, self.memory, self.program, self.next, self.note)

    def blocks(self) -> Iterator[Block]:
        """Blocks one after the other; who asks for the next has ended the last."""
        while (block := self.next or self.take()) is not None:
            self.sm.running += 1
            self.next, began = None, self.clock.now
            yield block
            self.sm.running -= 1
            self.ends.append(self.clock.now)
            if self.note is not None:
                self.note(BLOCK, 0, began, self.clock.now, 0, 0)

    def warpgroup(self, blocks: Iterable[Block]) -> Steps:
        """A warpgroup of these blocks."""
        return warpgroup(self.clock, self.sm, self.memory, self.program, blocks, self.ahead, self.note)

    def process(self) -> Steps:
        """Run blocks one after the other."""
        if self.program.warpgroups == 1:
            return self.warpgroup(self.blocks())
        return self.side_by_side()

    def side_by_side(self) -> Steps:
        """The same with several warpgroups, of which all have to end before the next block begins."""
        clock = self.clock
        for block in self.blocks():
            groups = [Sleeper(clock, self.warpgroup((block,))) for _ in range(self.program.warpgroups)]
            yield clock.all_of(groups)


@dataclass(frozen=True, slots=True)
class Played:
    """What a replay of blocks on some SMs showed.

    Parameters
    ----------
    time : int
        Picoseconds from the first block's start until the last byte was stored.
    ends : tuple of int
        When each block ended.
    waited : int
        Picoseconds that warpgroups waited for data, summed over SMs.
    loaded, stored : tuple of int
        Bytes by tensor.
    """

    time: int
    ends: tuple[int, ...]
    waited: int
    loaded: tuple[int, ...]
    stored: tuple[int, ...]


def play(
    program: Program,
    sms: int,
    slots_per_sm: int,
    queue: Iterator[Iterable[Step]],
    noted: Callable[[int], Note | None] = lambda sm: None,
) -> Played:
    """Replay the blocks of `queue`, each given by its steps, on `sms` SMs with `slots_per_sm` resident blocks each.

    Blocks are handed out breadth-first: one to each SM, then a second one to each, as the hardware does. `noted` gives
    for the number of an SM what is told of its operations.
    """
    clock = Clock()
    memory = Memory(len(program.tensors))
    machines = [Sm() for _ in range(sms)]
    ends: list[int] = []
    for _ in range(slots_per_sm):
        for number, sm in enumerate(machines):
            Sleeper(clock, Slot(clock, sm, memory, program, queue, ends, noted(number)).process())
    clock.run()
    if next(queue, None) is not None or any(sm.running for sm in machines):
        raise RuntimeError("a thread block waits for a load that its loop nest never starts")
    drained = max(memory.l2_free, memory.hbm_free, *(sm.port_free for sm in machines))
    waited = sum(sm.waited for sm in machines)
    return Played(max(clock.now, drained), tuple(ends), waited, tuple(memory.loaded), tuple(memory.stored))
