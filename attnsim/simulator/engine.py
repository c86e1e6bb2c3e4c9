"""The discrete-event replay: warpgroups are SimPy processes that book the units of their SM.

Units are served first come, first served, in whole picoseconds. Each unit is one number: the time at which it will be
free. A process that needs a unit books it and sleeps until its work is done. A tile operation is therefore one sleep,
and there is no queue of waiting processes (``simpy.Resource`` costs five times as much for the same answer).

A warpgroup's own time may run ahead of the clock while no other process can observe or delay it: during a fixed delay,
or while it waits for a load whose arrival time is known. Before it books a unit, copies, or waits for a load that has
not been issued, it sleeps until the clock has caught up. If nothing else is due until then, it sets the clock itself.

SimPy's environment, with a short way to sleep.

Nearly all that a replay does is a process sleeping until its tile operation is done. In SimPy a process sleeps by
yielding a ``Timeout``, an event with a list of callbacks; here it yields the time, and it is the process itself that
waits in the queue. All else is SimPy's, the order in which things happen included: a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from heapq import heappop, heappush, heappushpop
from itertools import count
from typing import Any, final

import numpy as np
import simpy
from simpy.events import NORMAL, URGENT, EventPriority

from attnsim.arrays import Ints
from attnsim.simulator.program import (
    DELAY,
    LOAD,
    MARK,
    MMA,
    MMA_ASYNC,
    MMA_WAIT,
    PREFETCH,
    STORE,
    VECTOR,
    WAIT,
    Copy,
    Played,
    Program,
    Step,
)

Steps = Generator[int | simpy.Event, Any, None]
"""Steps of a process: it yields the time until which it sleeps, or an event to wait for, whose value it is sent."""


@final
class Sleeper(simpy.Process):
    """A SimPy process that may also sleep."""

    env: Clock

    def __init__(self, clock: Clock, steps: Steps) -> None:
        self.env, self.callbacks, self._generator = clock, [], steps  # type: ignore[assignment]
        clock.put(clock.now, URGENT, steps.send, self)

    def _resume(self, event: simpy.Event) -> None:
        """Continue after an event, at the point in the queue that SimPy gives it."""
        wanted: Any
        try:
            wanted = self._generator.send(event.value)
        except StopIteration:
            self.end()
            return
        if type(wanted) is int:
            self.env.put(wanted, NORMAL, self._generator.send, self)
        else:
            wanted.callbacks.append(self._resume)

    def end(self) -> None:
        """Trigger the event of the process's end, if anything waits for it."""
        if self.callbacks:
            self.succeed()


@final
class AllOf(simpy.Event):
    """Event that happens, without a value, once all of the given events have; ordered as SimPy orders it."""

    def __init__(self, clock: Clock, events: Sequence[simpy.Event]) -> None:
        self.env, self.callbacks, self.left = clock, [], len(events)
        for event in events:
            event.callbacks.append(self.happened)
        if not events:
            self.succeed()

    def happened(self, event: simpy.Event) -> None:
        """Count down when one of the events has happened."""
        self.left -= 1
        if self.left == 0:
            self.succeed()


class Clock(simpy.Environment):
    """Simulated time in whole picoseconds.

    Attributes
    ----------
    now : int
        Picoseconds since the beginning. A process may set a later time itself, instead of sleeping until then, if
        nothing is due until that time.
    due : list
        Heap of due entries, by time: an event, or a process with the function that resumes it.
    """

    now: int = 0

    def __init__(self) -> None:
        # SimPy's own also binds `timeout`, `process` and the like, which takes as long as a short replay.
        self.now, self._eid = 0, count()
        self.due: list[tuple[int, EventPriority, int, Callable[[None], Any] | None, Any]] = []

    def schedule(self, event: simpy.Event) -> None:  # type: ignore[override]
        """Put an event into the queue at the current time; SimPy calls this."""
        self.put(self.now, NORMAL, None, event)

    def put(self, at: int, priority: EventPriority, send: Callable[[None], Any] | None, event: simpy.Event) -> None:
        """Put an event into the queue, or a process that `send` resumes."""
        heappush(self.due, (at, priority, next(self._eid), send, event))

    def run(self, until: object = None) -> None:
        """Process due entries until none are left."""
        queue, number = self.due, self._eid
        while queue:
            self.now, _, _, send, event = heappop(queue)
            while send is not None:
                try:
                    wanted = send(None)
                except StopIteration:
                    event.end()
                    break
                if type(wanted) is not int:
                    wanted.callbacks.append(event._resume)
                    break
                self.now, _, _, send, event = heappushpop(queue, (wanted, NORMAL, next(number), send, event))
            else:
                callbacks, event.callbacks = event.callbacks, None
                if len(callbacks) > 1:  # no process it wakes may set the clock before all have resumed
                    self.schedule(simpy.Event(self))
                for callback in callbacks:
                    callback(event)


Note = Callable[[int, int, int, int, int, int, int], None]
"""Callback for each operation: (kind, warpgroup, tensor, start, end, bytes, HBM picoseconds); used by the trace.

Warpgroups are numbered per SM, in the order of its slots.
"""

BLOCK = -1
"""Kind under which a thread block itself is noted, from its start to its end."""


class Memory:
    """Shared memory levels: the time at which L2 and HBM will be free, and the bytes requested per tensor.

    Each played SM may stand for N SMs; its transfers then hold L2 and HBM for all N. At t = 0 all N requests arrive
    together and the played SM is served last. Afterwards requests interleave: the SM sees the full bandwidth as long as
    the level keeps up.
    """

    __slots__ = ("hbm_free", "l2_free", "loaded", "stored")

    def __init__(self, tensors: int) -> None:
        self.l2_free = 0
        self.hbm_free = 0
        self.loaded = [0] * tensors
        self.stored = [0] * tensors


class Block:
    """The shared state of a thread block's warpgroups: which loads have been issued and when they land."""

    __slots__ = ("arrivals", "landing", "next", "number", "prefetched", "spent", "steps", "wakeups")

    def __init__(self, tensors: int, marks: int, number: int, steps: Iterable[Step]) -> None:
        self.number, self.steps = number, steps
        self.spent = [0] * marks
        self.prefetched = [0] * tensors  # loads of each tensor issued before the block began
        self.landing: list[list[int]] = [[] for _ in range(tensors)]
        self.arrivals: dict[tuple[int, int], int] = {}
        self.wakeups: dict[tuple[int, int], simpy.Event] = {}
        self.next: Block | None = None  # the block after it, if its loads have begun

    def wakeup(self, clock: Clock, tensor: int, turn: int) -> simpy.Event:
        """Event that a tensor's `turn`-th load has been issued."""
        event = self.wakeups.get((tensor, turn)) or simpy.Event(clock)
        self.wakeups[tensor, turn] = event
        return event

    def wake(self, tensor: int, turn: int) -> None:
        """Wake the warpgroups that wait for a tensor's `turn`-th load."""
        event = self.wakeups.pop((tensor, turn), None)
        if event is not None:
            event.succeed()

    def last_to_free(self, tensor: int, turn: int, members: int) -> bool:
        """Note that a warpgroup has freed the buffer of a tensor's `turn`-th load; return whether all have."""
        load = (tensor, turn)
        self.arrivals[load] = arrived = self.arrivals.get(load, 0) + 1
        return arrived == members


class Sm:
    """One streaming multiprocessor, which runs blocks of the queue.

    It keeps the time at which each of its units will be free, how long its warpgroups have waited, and how many of its
    slots are still running.
    """

    __slots__ = (
        "clock", "ended", "issue_free", "memory", "note", "port_free", "program", "queue", "running", "tensor_free",
        "vector_free", "waited",
    )  # fmt: skip

    def __init__(
        self,
        clock: Clock,
        memory: Memory,
        program: Program,
        queue: Iterator[tuple[int, Iterable[Step]]],
        ended: list[tuple[int, Block]],
        note: Note | None,
    ) -> None:
        self.clock, self.memory, self.program = clock, memory, program
        self.queue, self.ended, self.note = queue, ended, note
        self.tensor_free = self.vector_free = self.issue_free = self.port_free = self.waited = self.running = 0

    def begin_slot(self) -> None:
        """Start a slot, which runs blocks of the queue one after the other until the queue is empty."""
        first = self.running * self.program.warpgroups
        self.running += 1
        blocks = self.blocks(first)
        one = self.program.warpgroups == 1
        Sleeper(self.clock, warpgroup(self, blocks, first) if one else self.side_by_side(blocks, first))

    def take(self) -> Block | None:
        """Take the next block of the queue; None if the queue is empty."""
        taken = next(self.queue, None)
        return None if taken is None else Block(len(self.program.tensors), self.program.marks, *taken)

    def blocks(self, first: int) -> Iterator[Block]:
        """Yield blocks in turn, for warpgroups from `first` on; asking for the next block ends the last one."""
        block = self.take()
        while block is not None:
            began = self.clock.now
            yield block
            self.ended.append((self.clock.now, block))
            if self.note is not None:
                self.note(BLOCK, first, 0, began, self.clock.now, 0, 0)
            block = block.next or self.take()
        self.running -= 1

    def side_by_side(self, blocks: Iterator[Block], first: int) -> Steps:
        """Run blocks of several warpgroups in turn; all warpgroups of a block end before the next block begins."""
        numbers = range(first, first + self.program.warpgroups)
        for block in blocks:
            yield AllOf(self.clock, [Sleeper(self.clock, warpgroup(self, (block,), number)) for number in numbers])

    def ahead(self, block: Block, number: int) -> None:
        """Take the next block early and start its loads; the first warpgroup to arrive does so for the block."""
        if block.next is None:
            block.next = self.take()
            if block.next is not None:
                prefetch(self, block.next, number)


def transfer(now: int, sm: Sm, memory: Memory, moved: list[int], tensor: int, copy: Copy) -> int:
    """Book a transfer on the SM's port, the L2 and HBM, and count its bytes; return when the last byte has arrived."""
    port, l2, own_l2, hbm, own_hbm, latency, size = copy
    moved[tensor] += size
    free = sm.port_free
    sm.port_free = through = (free if free > now else now) + port
    if l2:
        free = memory.l2_free
        begin = free if free > now else now
        memory.l2_free = begin + l2
        end = begin + (own_l2 if now else l2)
        through = end if end > through else through
    if hbm:
        free = memory.hbm_free
        begin = free if free > now else now
        memory.hbm_free = begin + hbm
        end = begin + (own_hbm if now else hbm)
        through = end if end > through else through
    return through + latency


def prefetch(sm: Sm, block: Block, number: int) -> None:
    """Issue the loads at the beginning of a block before the block itself begins; `number` is the issuing warpgroup."""
    now, memory, note = sm.clock.now, sm.memory, sm.note
    for kind, tensor, _, _, _, copy in block.steps:
        if kind == LOAD:
            landed = transfer(now, sm, memory, memory.loaded, tensor, copy)
            block.landing[tensor].append(landed)
            if note is not None:
                note(LOAD, number, tensor, now, landed, copy.size, copy.hbm)
        elif kind not in (DELAY, MARK):
            break
    block.prefetched = [len(landing) for landing in block.landing]


def warpgroup(sm: Sm, blocks: Iterable[Block], number: int) -> Steps:
    """Play warpgroup `number` of the SM through the loop nests of its thread blocks."""
    clock, memory, note = sm.clock, sm.memory, sm.note
    due, members, tensors = clock.due, sm.program.warpgroups, len(sm.program.tensors)
    for block in blocks:
        waits = [0] * tensors  # loads of each tensor this warpgroup has waited for
        prefetched = block.prefetched
        frees = [0] * tensors  # loads of each tensor whose buffer it has freed
        issued: list[int] = []  # ends of its asynchronous MMAs
        landings = block.landing
        last_load = -1
        since = at = now = clock.now  # its own time, and the clock's when it was last awake
        # A long branch slows down its test: CPython compares integers quickly only where the jump after it is short.
        for kind, tensor, one, two, issue, copy in block.steps:
            if kind == WAIT:
                turn = waits[tensor]
                waits[tensor] = turn + 1
                landing = landings[tensor]
                landed = landing[turn] if turn < len(landing) else None
                if landed is not None and landed <= at:
                    continue
                if at > now:
                    if due and due[0][0] <= at:
                        yield at
                    else:  # nothing else is due before
                        clock.now = at
                    now = at
                if landed is None:
                    if turn >= len(landing):
                        yield block.wakeup(clock, tensor, turn)
                        now = clock.now
                    landed = max(landing[turn], now)
                sm.waited += landed - at
                at = landed
                continue
            if kind == DELAY:
                at += one
                continue
            if kind == MMA_WAIT:
                end = issued.pop(0)
                at = end if end > at else at
                continue
            if kind == MARK:
                block.spent[tensor] += at - since
                since = at
                continue
            if kind == LOAD:
                turn = frees[tensor]
                frees[tensor] = turn + 1
                if turn < prefetched[tensor]:
                    continue
            if at > now:
                if due and due[0][0] <= at:
                    yield at
                else:  # nothing else is due before
                    clock.now = at
                now = at
            if kind == LOAD:
                # The last warpgroup to free the buffer issues the copy.
                if members > 1 and not block.last_to_free(tensor, turn, members):
                    continue
                if now == last_load and due and due[0][0] <= now:
                    yield now  # copies issued at one instant take turns with those of other SMs
                last_load = now
                landed = transfer(now, sm, memory, memory.loaded, tensor, copy)
                landing = landings[tensor]
                landing.append(landed)
                if note is not None:
                    note(LOAD, number, tensor, now, landed, copy.size, copy.hbm)
                if block.wakeups:
                    block.wake(tensor, len(landing) - 1)
            elif kind == MMA or kind == MMA_ASYNC:
                begin = sm.tensor_free
                sm.tensor_free = end = (begin if begin > now else now) + one
                begin = sm.vector_free
                sm.vector_free = (begin if begin > now else now) + two
                if issue:
                    begin = sm.issue_free
                    sm.issue_free = begin = (begin if begin > now else now) + issue
                    end = begin if begin > end else end
                if note is not None:
                    note(kind, number, tensor, end - one, end, 0, 0)
                if kind == MMA:
                    at = end
                else:
                    issued.append(end)
            elif kind == VECTOR:
                begin = sm.vector_free
                sm.vector_free = at = (begin if begin > now else now) + one
                begin = sm.tensor_free
                sm.tensor_free = (begin if begin > now else now) + two
                if issue:
                    begin = sm.issue_free
                    sm.issue_free = begin = (begin if begin > now else now) + issue
                    at = begin if begin > at else at
                if note is not None:
                    note(kind, number, tensor, at - one, at, 0, 0)
                at += copy.latency
            elif kind == STORE:
                if members > 1:
                    turn = frees[tensor]
                    frees[tensor] = turn + 1
                    if not block.last_to_free(tensor, turn, members):
                        continue
                end = transfer(now, sm, memory, memory.stored, tensor, copy)
                if note is not None:
                    note(STORE, number, tensor, now, end, copy.size, copy.hbm)
            elif kind == PREFETCH:
                sm.ahead(block, number)
        if at > now:
            yield at


def play(
    program: Program,
    sms: int,
    slots_per_sm: int,
    queue: Iterator[Iterable[Step]],
    noted: Callable[[int], Note | None] = lambda sm: None,
    rows: Ints | None = None,
) -> Played:
    """Replay the blocks of `queue`, each given by its steps, on `sms` SMs with `slots_per_sm` resident blocks each.

    Blocks are assigned breadth-first, as the hardware does: one to each SM, then a second one to each. `noted` returns
    the callback for the operations of an SM, by the SM's number. `rows` gives the row in which each block's times are
    summed, in launch order; without it, each block has its own row.
    """
    clock = Clock()
    memory = Memory(len(program.tensors))
    ended: list[tuple[int, Block]] = []
    numbered = enumerate(queue)
    machines = [Sm(clock, memory, program, numbered, ended, noted(number)) for number in range(sms)]
    for _ in range(slots_per_sm):
        for sm in machines:
            sm.begin_slot()
    clock.run()
    if next(numbered, None) is not None or any(sm.running for sm in machines):
        raise RuntimeError("a thread block waits for a load that its loop nest never starts")
    drained = max(memory.l2_free, memory.hbm_free, *(sm.port_free for sm in machines))
    waited = sum(sm.waited for sm in machines)
    ends, order = np.array([end for end, _ in ended]), np.array([block.number for _, block in ended])
    rows = np.arange(len(ended)) if rows is None else rows
    spent = np.zeros((rows.max() + 1, program.marks), np.int64)
    np.add.at(spent, rows[order], [block.spent for _, block in ended])
    return Played(max(clock.now, drained, 1), ends, order, waited, tuple(memory.loaded), tuple(memory.stored), spent)
