"""Run a kernel on the CPU from its PTX."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from attnsim.errors import InputError
from attnsim.ptx.counters import Counters
from attnsim.ptx.faults import Deadlock, Fault, Reports
from attnsim.ptx.lanes import WARP, Dim3, Lanes, lanes_of, position
from attnsim.ptx.parse import parse
from attnsim.ptx.program import Program, Run
from attnsim.ptx.start import Arguments, preset
from attnsim.ptx.syntax import Function

MOST_THREADS = 1024
"""Of a block, on every GPU."""

LANES = 16384
"""Lanes that run together: enough to hide Python's overhead, at 100 registers 6 MiB of them."""


def run(
    ptx: str,
    entry: str,
    grid: tuple[int, ...] | int,
    block: tuple[int, ...] | int,
    arguments: Arguments,
    shared_memory_bytes: int = 0,
    *,
    checks: bool = True,
    lanes: int = LANES,
) -> Counters:
    """Run every block of a grid; arrays are changed in place.

    Parameters
    ----------
    ptx : str
    entry : str
        Name of the kernel.
    grid, block : int or tuple of 1 to 3 int
    arguments : mapping of str to ndarray or NumPy scalar
        In the order of the kernel's parameters. Arrays are C-contiguous; their keys name them in counts and faults.
    shared_memory_bytes : int
        Dynamic shared memory of a block.
    checks : bool
        Whether to look for races, reads of uninitialised shared memory, and missing waits for cp.async. Bounds and
        alignment are checked always.
    lanes : int
        Threads to run together; bounds the memory that the interpreter takes.

    Returns
    -------
    Counters

    Notes
    -----
    A compiled kernel is kept, with its registers, so two threads of Python must not run the same one at once.

    Raises
    ------
    Fault
        The first thing that the kernel did wrong, and where; ``others`` are those that came after.
    UnsupportedInstruction
        By name.
    InputError
        When entry or arguments do not fit the PTX.
    """
    grid3, block3 = _three(grid, "grid"), _three(block, "block")
    if math.prod(block3) > MOST_THREADS:
        raise InputError(f"block is {block3}, {math.prod(block3)} threads; allowed: up to {MOST_THREADS}")
    program = _program(ptx, entry)
    blocks, lanes_per_block = math.prod(grid3), -(-math.prod(block3) // WARP) * WARP
    batches = -(-blocks // max(lanes // lanes_per_block, 1))
    cluster = program.function.cluster
    if grid3[0] % cluster:
        raise InputError(f"grid is {grid3}; {entry} has clusters of {cluster} blocks: give a multiple of that in x")
    per_batch = math.ceil(blocks // cluster / batches) * cluster
    counters, found = Counters(), Reports()
    for first in range(0, blocks, per_batch):
        batch_lanes = lanes_of(block3, min(per_batch, blocks - first), cluster)
        batch = _Batch(first, batch_lanes, grid3, shared_memory_bytes, checks)
        counted, faults = batch.play(program, arguments)
        counters += counted
        found.left_out |= program.machine.reports.left_out
        for fault in faults:
            fault.place = _place(fault, program.function, batch.lanes, grid3, first)
            if fault.position is not None:
                fault.line = program.function.instructions[fault.position].line
            found.keep(fault)
        if any(isinstance(fault, Deadlock) for fault in faults):  # as would each batch, and it takes long
            break
    if found.found:
        raise found.first()
    return counters


@dataclass(frozen=True, slots=True)
class _Batch:
    """Blocks that run together, from the grid's block `first` on."""

    first: int
    lanes: Lanes
    grid: Dim3
    dynamic_bytes: int
    checks: bool

    def play(self, program: Program, arguments: Arguments) -> tuple[Counters, list[Fault]]:
        """Play the batch; where something goes wrong play it once more, for all its faults.

        The second time goes one instruction after another, and past faults that a kernel can go on from.
        """
        machine = program.machine
        try:
            for grouped in (True, False):
                counters = Counters()
                machine.start(self.lanes, self.dynamic_bytes, self.checks, counters)
                preset(machine, program.function, arguments, self.grid, self.first, self.dynamic_bytes)
                try:
                    Run(program, grouped).finish()
                except Fault as fault:
                    if grouped and fault.position is None:
                        machine.memory.restore()
                        continue
                    machine.reports.keep(fault)
                break
        finally:
            machine.forget()
        return counters, list(machine.reports.found.values())


@functools.lru_cache(maxsize=32)
def _program(ptx: str, entry: str) -> Program:
    functions = parse(ptx)
    if entry not in functions:
        raise InputError(f"{entry}: no such entry point; the PTX has {', '.join(functions) or 'none'}")
    return Program(functions[entry])


def _three(sizes: tuple[int, ...] | int, what: str) -> Dim3:
    shape = sizes if isinstance(sizes, tuple) else (sizes,)
    if not 1 <= len(shape) <= 3 or min(shape) < 1:
        raise InputError(f"{what} is {shape}; give one to three sizes of 1 or more")
    x, y, z = (*shape, 1, 1)[:3]
    return int(x), int(y), int(z)


def _place(fault: Fault, function: Function, lanes: Lanes, grid: Dim3, first: int) -> str:
    """Kernel, instruction, block and thread of a fault."""
    where = ""
    if fault.position is not None:
        where = f", instruction {fault.position} {function.instructions[fault.position].place}"
    if fault.lane is None:
        return f"{function.name}{where}"
    block = position(first + int(lanes.block_of[fault.lane]), grid)
    thread = position(int(lanes.thread_of[fault.lane]), lanes.block)
    return f"{function.name}{where}, block {block}, thread {thread}"
