"""The discrete-event replay: warpgroups as SimPy processes on the units of their SM.

Units are served first come, first served, in whole picoseconds, and each is one number: the time at which it will be
free. A process that needs a unit books it and sleeps until its work is done, so a tile operation is one timeout and
no queue of waiting processes is ever kept (``simpy.Resource`` costs five times as much for the same answer).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

import simpy

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
    Program,
)

Runs = Sequence[tuple[int, int]]
"""(segment, repeats) of one thread block, in program order."""

Process = Generator[simpy.Event, object, None]

Note = Callable[[int, int, int, int, int, int], None]
"""Told of an operation: (kind, tensor, start, end, bytes, HBM picoseconds); see :mod:`attnsim.simulator.trace`."""

BLOCK = -1
"""Kind under which a thread block itself is noted, from its start to its end."""


@dataclass(slots=True)
class Memory:
    """The levels that SMs share: when L2 and HBM will be free, and the bytes asked of them per tensor.

    `sharers` is 1 when every SM is played. When one SM stands for `sharers`, a transfer holds the level for all.
    At the first instant all SMs ask at once and the one played is the last to be served; from then on they come one
    after the other, so its own transfers pass at full speed as long as the level keeps up.
    """

    tensors: int
    sharers: float = 1.0
    l2_free: int = 0
    hbm_free: int = 0
    loaded: list[int] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loaded = [0] * self.tensors
        self.stored = [0] * self.tensors


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

    __slots__ = ("arrivals", "landing", "prefetched", "runs", "wakeups")

    def __init__(self, tensors: int, runs: Runs) -> None:
        self.runs = runs
        self.prefetched = [0] * tensors  # loads of each tensor issued before the block began
        self.landing: list[list[int]] = [[] for _ in range(tensors)]
        self.arrivals: list[list[int]] = [[] for _ in range(tensors)]
        self.wakeups: dict[tuple[int, int], simpy.Event] = {}

    def last_to_free(self, tensor: int, turn: int, members: int) -> bool:
        """Note that a warpgroup has freed the buffer of a tensor's `turn`-th load; whether all have now."""
        arrivals = self.arrivals[tensor]
        while turn >= len(arrivals):
            arrivals.append(0)
        arrivals[turn] += 1
        return arrivals[turn] == members


def transfer(now: int, sm: Sm, memory: Memory, port: int, l2: int, hbm: int) -> int:
    """Book a transfer on the SM's port, the L2 and the HBM; return when its last byte is through."""
    sm.port_free = through = max(sm.port_free, now) + port
    turn = memory.sharers if now else 1.0
    if l2:
        start = max(memory.l2_free, now)
        memory.l2_free = start + l2
        through = max(through, start + int(l2 / turn))
    if hbm:
        start = max(memory.hbm_free, now)
        memory.hbm_free = start + hbm
        through = max(through, start + int(hbm / turn))
    return through


def prefetch(now: int, sm: Sm, memory: Memory, program: Program, block: Block, note: Note | None = None) -> None:
    """Issue the loads that a block begins with, before it begins."""
    for segment, repeats in block.runs:
        for _ in range(repeats):
            for kind, tensor, one, two, three, four, size in program.segments[segment]:
                if kind == LOAD:
                    landed = transfer(now, sm, memory, one, two, three) + four
                    block.landing[tensor].append(landed)
                    if note is not None:
                        note(LOAD, tensor, now, landed, size, three)
                    block.prefetched[tensor] += 1
                    memory.loaded[tensor] += size
                elif kind != DELAY:
                    return


def warpgroup(
    env: simpy.Environment,
    sm: Sm,
    memory: Memory,
    program: Program,
    block: Block,
    ahead: Callable[[], None],
    note: Note | None = None,
) -> Process:
    """Play one warpgroup of a thread block through its loop nest; `ahead` is called where it may prefetch."""
    timeout = env.timeout
    members = program.warpgroups
    waits = [0] * len(program.tensors)  # loads of each tensor this warpgroup has waited for
    frees = [0] * len(program.tensors)  # and those whose buffer it has freed
    issued: deque[int] = deque()  # ends of its asynchronous MMAs
    last_load = -1
    for segment, repeats in block.runs:
        steps = program.segments[segment]
        for _ in range(repeats):
            for kind, tensor, one, two, three, four, size in steps:
                if kind == VECTOR:
                    now = int(env.now)
                    start = sm.vector_free if sm.vector_free > now else now
                    sm.vector_free = end = start + one
                    sm.tensor_free = (sm.tensor_free if sm.tensor_free > now else now) + two
                    if note is not None:
                        note(kind, tensor, start, end, 0, 0)
                    yield timeout(end - now)
                elif kind == MMA or kind == MMA_ASYNC:
                    now = int(env.now)
                    start = sm.tensor_free if sm.tensor_free > now else now
                    sm.tensor_free = end = start + one
                    sm.vector_free = (sm.vector_free if sm.vector_free > now else now) + two
                    if note is not None:
                        note(kind, tensor, start, end, 0, 0)
                    if kind == MMA:
                        yield timeout(end - now)
                    else:
                        issued.append(end)
                elif kind == WAIT:
                    turn = waits[tensor]
                    waits[tensor] = turn + 1
                    landing = block.landing[tensor]
                    now = int(env.now)
                    if turn >= len(landing):
                        wakeup = block.wakeups.setdefault((tensor, turn), env.event())
                        yield wakeup
                    late = landing[turn] - int(env.now)
                    if late > 0:
                        yield timeout(late)
                    sm.waited += int(env.now) - now
                elif kind == LOAD:
                    turn = frees[tensor]
                    frees[tensor] = turn + 1
                    if turn < block.prefetched[tensor]:
                        continue
                    # The last warpgroup to free the buffer issues the copy.
                    if members > 1 and not block.last_to_free(tensor, turn, members):
                        continue
                    if env.now == last_load:  # copies issued at one instant take turns with those of other SMs
                        yield timeout(0)
                    last_load = int(env.now)
                    landing = block.landing[tensor]
                    landing.append(transfer(last_load, sm, memory, one, two, three) + four)
                    if note is not None:
                        note(LOAD, tensor, last_load, landing[-1], size, three)
                    memory.loaded[tensor] += size
                    waiting = block.wakeups.pop((tensor, len(landing) - 1), None)
                    if waiting is not None:
                        waiting.succeed()
                elif kind == MMA_WAIT:
                    late = issued.popleft() - int(env.now)
                    if late > 0:
                        yield timeout(late)
                elif kind == STORE:
                    if members > 1:
                        turn = frees[tensor]
                        frees[tensor] = turn + 1
                        if not block.last_to_free(tensor, turn, members):
                            continue
                    end = transfer(int(env.now), sm, memory, one, two, three)
                    if note is not None:
                        note(STORE, tensor, int(env.now), end, size, three)
                    memory.stored[tensor] += size
                elif kind == DELAY:
                    yield timeout(one)
                elif kind == PREFETCH:
                    ahead()


class Slot:
    """One place for a resident thread block on an SM: it runs blocks from the queue until that is empty."""

    def __init__(
        self,
        env: simpy.Environment,
        sm: Sm,
        memory: Memory,
        program: Program,
        queue: Iterator[Runs],
        ends: list[int],
        note: Note | None = None,
    ) -> None:
        self.env, self.sm, self.memory, self.program = env, sm, memory, program
        self.queue, self.ends, self.note = queue, ends, note
        self.next: Block | None = None

    def take(self) -> Block | None:
        """The next block of the queue."""
        runs = next(self.queue, None)
        return None if runs is None else Block(len(self.program.tensors), runs)

    def ahead(self) -> None:
        """Take the next block already and start its loads; the first warpgroup to get here does it for all."""
        if self.next is None:
            self.next = self.take()
            if self.next is not None:
                prefetch(int(self.env.now), self.sm, self.memory, self.program, self.next, self.note)

    def process(self) -> Process:
        """Run blocks one after the other."""
        env = self.env
        block = self.take()
        while block is not None:
            self.sm.running += 1
            self.next, began = None, int(env.now)
            groups = [
                warpgroup(env, self.sm, self.memory, self.program, block, self.ahead, self.note)
                for _ in range(self.program.warpgroups)
            ]
            if len(groups) == 1:
                yield from groups[0]
            else:
                yield env.all_of([env.process(group) for group in groups])
            self.sm.running -= 1
            self.ends.append(int(env.now))
            if self.note is not None:
                self.note(BLOCK, 0, began, int(env.now), 0, 0)
            block = self.next or self.take()


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
    requested : dict of (str, str) to int
        Bytes by ("load" or "store", tensor).
    """

    time: int
    ends: tuple[int, ...]
    waited: int
    requested: dict[tuple[str, str], int]


def play(
    program: Program,
    sms: int,
    slots_per_sm: int,
    queue: Iterator[Runs],
    noted: Callable[[int], Note | None] = lambda sm: None,
) -> Played:
    """Replay the blocks of `queue` on `sms` SMs with `slots_per_sm` resident blocks each.

    Blocks are handed out breadth-first: one to each SM, then a second one to each, as the hardware does. `noted` gives
    for the number of an SM what is told of its operations.
    """
    env = simpy.Environment(0)
    memory = Memory(len(program.tensors), program.sharers)
    machines = [Sm() for _ in range(sms)]
    ends: list[int] = []
    for _ in range(slots_per_sm):
        for number, sm in enumerate(machines):
            env.process(Slot(env, sm, memory, program, queue, ends, noted(number)).process())
    env.run()
    if next(queue, None) is not None or any(sm.running for sm in machines):
        raise RuntimeError("a thread block waits for a load that its loop nest never starts")
    drained = max(memory.l2_free, memory.hbm_free, *(sm.port_free for sm in machines))
    requested = {
        (kind, tensor): size
        for kind, sizes in (("load", memory.loaded), ("store", memory.stored))
        for tensor, size in zip(program.tensors, sizes, strict=True)
        if size
    }
    return Played(max(int(env.now), drained), tuple(ends), sum(sm.waited for sm in machines), requested)
