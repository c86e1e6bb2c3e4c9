"""Choice of the engine that replays a kernel: SimPy, which defines the replay, or its faster compiled twin.

Both return the same integers; the choice only affects the running time. The twin is 20 to 40 times as fast. Loading it
takes half a second, and compiling it, once per machine, about five; a process that asks one question finishes sooner
with SimPy. Traces and timelines always use SimPy, which alone records what every unit does.
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
from attnsim.simulator.program import Played, Program

PLAYED_BY_SIMPY = by_hand(
    100_000, "segment executions that a process plays by SimPy: about as long as loading the compiled twin takes"
)

F = TypeVar("F")

Ended = Callable[[int], None]
"""Called now and then with the number of blocks that have ended."""

REPORTED_BLOCKS = by_hand(256, "blocks that SimPy begins between two progress reports")

_left = PLAYED_BY_SIMPY
_plays: int | None = None


def expect(plays: int) -> None:
    """Say how often this process plays each kernel; the twin plays a long one from its first play on."""
    global _plays  # noqa: PLW0603 (of this process)
    _plays = plays


def play(
    kernel: Kernel,
    program: Program,
    sms: int,
    slots_per_sm: int,
    progress: Ended | None = None,
    rows: Ints | None = None,
) -> Played:
    """Play every block of `kernel` on `sms` SMs with `slots_per_sm` resident blocks each.

    `rows` gives the row in which each block's times are summed, in launch order; without it, each block has its own
    row.
    """
    global _left  # noqa: PLW0603 (of this process)
    _left -= executions(kernel)
    ahead = (_plays - 1) * executions(kernel) if _plays else 0
    if _left < ahead and (player := twin()) is not None:
        played: Played = player.play(kernel, program, sms, slots_per_sm, progress, rows)
        return played
    return by_simpy(kernel, program, sms, slots_per_sm, progress, rows)


def by_simpy(
    kernel: Kernel,
    program: Program,
    sms: int,
    slots_per_sm: int,
    progress: Ended | None = None,
    rows: Ints | None = None,
) -> Played:
    """Play `kernel` by SimPy; parameters and result are those of :func:`play`."""
    blocks = [program.block(kernel.runs(block_class)) for block_class in range(len(kernel.repeats))]
    order, slots = launch_order(kernel), sms * slots_per_sm
    taken = order if progress is None else _reporting(order, lambda number: progress(max(0, number - slots)))
    return engine.play(program, sms, slots_per_sm, (blocks[block_class] for block_class in taken), rows=rows)


def _reporting(classes: Iterator[int], progress: Ended) -> Iterator[int]:
    """Pass block classes on, and report now and then how many have passed."""
    for number, block_class in enumerate(classes):
        if number and number % REPORTED_BLOCKS == 0:
            progress(number)
        yield block_class


def launch_order(kernel: Kernel) -> Iterator[int]:
    """Block classes in launch order, one by one."""
    for launch in kernel.launches:
        for _ in range(launch.times):
            yield from launch.classes.tolist()


def executions(kernel: Kernel) -> int:
    """Segment executions by warpgroups over the whole grid: the cost of a replay."""
    return int(kernel.executions.sum()) * kernel.warpgroups


@cache
def twin() -> ModuleType | None:
    """The compiled twin; None without numba, or if numba does not support this NumPy or cannot load LLVM."""
    try:
        from attnsim.simulator import twin
    except (ImportError, OSError):
        return None
    return twin


def faster(plain: F) -> F:
    """Compile `plain` if this process uses the compiled twin; otherwise return it unchanged."""
    found: F = jit(plain) if _left < 0 and twin() is not None else plain
    return found
