"""Who plays a kernel: SimPy, which defines the replay, or its compiled twin, 20 to 40 times as fast.

Both give the same integers, so who plays is a matter of time alone. To load the twin takes half a second, and to
compile it, once on a machine, some five; a process that asks one question is done before that. Traces and timelines are
SimPy's: only it notes what every unit does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType
from typing import TypeVar

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.jit import jit
from attnsim.models.schedule.schedule import Kernel
from attnsim.simulator import engine
from attnsim.simulator.played import Played
from attnsim.simulator.program import Program

PLAYED_BY_SIMPY = by_hand(
    100_000, "segment executions that a process has SimPy play, in about the time that loading the compiled twin takes"
)

F = TypeVar("F")

Ended = Callable[[int], None]
"""Called now and then with the number of blocks that have ended."""

TELLING = by_hand(256, "blocks that SimPy begins between two calls of who watches a play")

_left = PLAYED_BY_SIMPY
_again = 0


def expect(plays: int) -> None:
    """Say how often this process plays each kernel; the twin plays a long one from its first play on."""
    global _again  # noqa: PLW0603 (of this process)
    _again = plays - 1


def play(
    kernel: Kernel,
    program: Program,
    sms: int,
    slots_per_sm: int,
    told: Ended | None = None,
    rows: Ints | None = None,
) -> Played:
    """Play every block of `kernel` on `sms` SMs with `slots_per_sm` resident blocks each.

    What blocks spend is summed by `rows`, one of each in launch order; without, each has a row of its own.
    """
    global _left  # noqa: PLW0603 (of this process)
    _left -= executions(kernel)
    if _left < _again * executions(kernel) and (player := twin()) is not None:
        played: Played = player.play(kernel, program, sms, slots_per_sm, told, rows)
        return played
    return by_simpy(kernel, program, sms, slots_per_sm, told, rows)


def by_simpy(
    kernel: Kernel,
    program: Program,
    sms: int,
    slots_per_sm: int,
    told: Ended | None = None,
    rows: Ints | None = None,
) -> Played:
    """The same by SimPy."""
    blocks = [program.block(kernel.runs(block_class)) for block_class in range(len(kernel.repeats))]
    order, slots = launch_order(kernel), sms * slots_per_sm
    taken = order if told is None else _telling(order, lambda number: told(max(0, number - slots)))
    return engine.play(program, sms, slots_per_sm, (blocks[block_class] for block_class in taken), rows=rows)


def _telling(classes: Iterator[int], told: Ended) -> Iterator[int]:
    """Pass classes of blocks on, and tell now and then how many have been."""
    for number, block_class in enumerate(classes):
        if number and number % TELLING == 0:
            told(number)
        yield block_class


def launch_order(kernel: Kernel) -> Iterator[int]:
    """Block classes in launch order, one by one."""
    for launch in kernel.launches:
        for _ in range(launch.times):
            yield from launch.classes.tolist()


def executions(kernel: Kernel) -> int:
    """How often warpgroups run a segment, over the whole grid: what a play costs."""
    return int(kernel.executions.sum()) * kernel.warpgroups


@cache
def twin() -> ModuleType | None:
    """The compiled twin; None where there is no numba, or one that does not know this NumPy or cannot load LLVM."""
    try:
        from attnsim.simulator import twin
    except (ImportError, OSError):
        return None
    return twin


def faster(plain: F) -> F:
    """`plain` compiled where this process plays by the twin, else as it is."""
    found: F = jit(plain) if _left < 0 and twin() is not None else plain
    return found
