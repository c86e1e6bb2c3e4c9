"""The discrete-event replay: warpgroups as SimPy processes on the units of their SM.

Units are served first come, first served, in whole picoseconds, and each is one number: the time at which it will be
free. A process that needs a unit books it and sleeps until its work is done, so a tile operation is one timeout and
no queue of waiting processes is ever kept (``simpy.Resource`` costs five times as much for the same answer).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import simpy

from attnsim.simulator.program import DELAY, LOAD, MMA, MMA_ASYNC, MMA_WAIT, STORE, VECTOR, WAIT, Program

Runs = Sequence[tuple[int, int]]
"""(segment, repeats) of one thread block, in program order."""

Process = Generator[simpy.Event, object, None]


@dataclass(slots=True)
class Memory:
    """The levels that SMs share: when L2 and HBM will be free, and the bytes asked of them per tensor."""

    tensors: int
    l2_free: int = 0
    hbm_free: int = 0
    loaded: list[int] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loaded = [0] * self.tensors
        self.stored = [0] * self.tensors


@dataclass(slots=True)
class Sm:
    """One streaming multiprocessor: when each unit will be free, and how long its warpgroups waited for data."""

    tensor_free: int = 0
    vector_free: int = 0
    port_free: int = 0
    waited: int = 0


class Block:
    """The shared state of a thread block's warpgroups: which loads have been issued and when they land."""

    __slots__ = ("arrivals", "landing", "wakeups")

    def __init__(self, tensors: int) -> None:
        self.landing: list[list[int]] = [[] for _ in range(tensors)]
        self.arrivals: list[list[int]] = [[] for _ in range(tensors)]
        self.wakeups: dict[tuple[int, int], simpy.Event] = {}

    def last_to_free(self, tensor: int, turn: int, members: int) -> bool:
        """Note that a warpgroup has freed the buffer of a tensor's `turn`-th load; whether all have now."""
        arrivals = self.arrivals[tensor]
        if turn == len(arrivals):
            arrivals.append(0)
        arrivals[turn] += 1
        return arrivals[turn] == members


def transfer(now: int, sm: Sm, memory: Memory, port: int, l2: int, hbm: int) -> int:
    """Book a transfer on the SM's port, the L2 and the HBM; return when its last byte is through."""
    sm.port_free = through = max(sm.port_free, now) + port
    if l2:
        memory.l2_free = free = max(memory.l2_free, now) + l2
        through = max(through, free)
    if hbm:
        memory.hbm_free = free = max(memory.hbm_free, now) + hbm
        through = max(through, free)
    return through


def warpgroup(
    env: simpy.Environment, sm: Sm, memory: Memory, program: Program, runs: Runs, block: Block
) -> Process:
    """Play one warpgroup of a thread block through its loop nest."""
    timeout = env.timeout
    members = program.warpgroups
    waits = [0] * len(program.tensors)  # loads of each tensor this warpgroup has waited for
    frees = [0] * len(program.tensors)  # and those whose buffer it has freed
    issued: deque[int] = deque()  # ends of its asynchronous MMAs
    last_load = -1
    for segment, repeats in runs:
        steps = program.segments[segment]
        for _ in range(repeats):
            for kind, tensor, one, two, three, four, size in steps:
                if kind == VECTOR:
                    now = env.now
                    start = sm.vector_free if sm.vector_free > now else now
                    sm.vector_free = end = start + one
                    sm.tensor_free = (sm.tensor_free if sm.tensor_free > start else start) + two
                    yield timeout(end - now)
                elif kind == MMA or kind == MMA_ASYNC:
                    now = env.now
                    start = sm.tensor_free if sm.tensor_free > now else now
                    sm.tensor_free = end = start + one
                    sm.vector_free = (sm.vector_free if sm.vector_free > start else start) + two
                    if kind == MMA:
                        yield timeout(end - now)
                    else:
                        issued.append(end)
                elif kind == WAIT:
                    turn = waits[tensor]
                    waits[tensor] = turn + 1
                    landing = block.landing[tensor]
                    now = env.now
                    if turn >= len(landing):
                        wakeup = block.wakeups.setdefault((tensor, turn), env.event())
                        yield wakeup
                    late = landing[turn] - env.now
                    if late > 0:
                        yield timeout(late)
                    sm.waited += env.now - now
                elif kind == LOAD:
                    if members > 1:  # the last warpgroup to free the buffer issues the copy
                        turn = frees[tensor]
                        frees[tensor] = turn + 1
                        if not block.last_to_free(tensor, turn, members):
                            continue
                    if env.now == last_load:  # copies issued at one instant take turns with those of other SMs
                        yield timeout(0)
                    last_load = env.now
                    landing = block.landing[tensor]
                    landing.append(transfer(env.now, sm, memory, one, two, three) + four)
                    memory.loaded[tensor] += size
                    waiting = block.wakeups.pop((tensor, len(landing) - 1), None)
                    if waiting is not None:
                        waiting.succeed()
                elif kind == MMA_WAIT:
                    late = issued.popleft() - env.now
                    if late > 0:
                        yield timeout(late)
                elif kind == STORE:
                    if members > 1:
                        turn = frees[tensor]
                        frees[tensor] = turn + 1
                        if not block.last_to_free(tensor, turn, members):
                            continue
                    transfer(env.now, sm, memory, one, two, three)
                    memory.stored[tensor] += size
                elif kind == DELAY:
                    yield timeout(one)


def slot(
    env: simpy.Environment, sm: Sm, memory: Memory, program: Program, queue: Iterable[Runs], ends: list[int]
) -> Process:
    """One place for a resident thread block: run blocks from the queue until it is empty."""
    for runs in queue:
        block = Block(len(program.tensors))
        if program.warpgroups == 1:
            yield from warpgroup(env, sm, memory, program, runs, block)
        else:
            members = [
                env.process(warpgroup(env, sm, memory, program, runs, block)) for _ in range(program.warpgroups)
            ]
            yield env.all_of(members)
        ends.append(int(env.now))


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


def play(program: Program, sms: int, slots_per_sm: int, queue: Iterator[Runs]) -> Played:
    """Replay the blocks of `queue` on `sms` SMs with `slots_per_sm` resident blocks each.

    Blocks are handed out breadth-first: one to each SM, then a second one to each, as the hardware does.
    """
    env = simpy.Environment(0)
    memory = Memory(len(program.tensors))
    machines = [Sm() for _ in range(sms)]
    ends: list[int] = []
    for _ in range(slots_per_sm):
        for sm in machines:
            env.process(slot(env, sm, memory, program, queue, ends))
    env.run()
    drained = max(memory.l2_free, memory.hbm_free, *(sm.port_free for sm in machines))
    requested = {
        (kind, tensor): size
        for kind, sizes in (("load", memory.loaded), ("store", memory.stored))
        for tensor, size in zip(program.tensors, sizes, strict=True)
        if size
    }
    return Played(max(int(env.now), drained), tuple(ends), sum(sm.waited for sm in machines), requested)
