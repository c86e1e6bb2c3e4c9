"""Runs a kernel on the CPU from its PTX: sets up a batch of blocks, and runs batch after batch."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim import bounds
from attnsim.errors import InputError
from attnsim.ptx.bulk_copies import BulkCopies
from attnsim.ptx.counters import Counters
from attnsim.ptx.faults import Deadlock, Fault, Reports, UnsupportedInstruction
from attnsim.ptx.flow import PARAMETER_WINDOW
from attnsim.ptx.lanes import WARP, Dim3, Lanes, Values, lanes_of, position
from attnsim.ptx.machine import Machine
from attnsim.ptx.parse import parse
from attnsim.ptx.program import Program, Run
from attnsim.ptx.shared import MAP_BYTES, TensorMap
from attnsim.ptx.syntax import Function, Parameter

Arguments = Mapping[str, NDArray[Any] | np.generic | TensorMap]


def preset(
    machine: Machine, function: Function, arguments: Arguments, grid: Dim3, first: int, dynamic_bytes: int
) -> None:
    """Set the parameters, addresses and special registers of the batch that begins with block `first`."""
    machine.parameters = _parameters(machine, function, arguments)
    addresses = dict(machine.addresses)
    for variable in function.variables:
        if variable.space in ("global", "const"):
            content = np.frombuffer(variable.content, np.uint8).copy()
            addresses[variable.name] = machine.memory.place(variable.name, content)
    for name, address in addresses.items():
        machine.registers.preset(name, np.array([address], np.uint64))
    for name, values in _special_registers(machine.lanes, grid, first, function.cluster).items():
        machine.registers.preset(name, values)
    machine.registers.preset("%dynamic_smem_size", np.array([dynamic_bytes], np.uint32))
    machine.registers.preset("%total_smem_size", np.array([machine.shared.bytes_per_block], np.uint32))
    for name in machine.registers.without_preset():
        place = next(i.place for i in function.instructions if name in i.text)
        raise UnsupportedInstruction(f"{place}: '{name}' is not known to the interpreter")


def _parameters(machine: Machine, function: Function, arguments: Arguments) -> dict[str, bytes]:
    """Return the bytes of each kernel parameter; arrays are placed in global memory and passed as addresses."""
    if len(arguments) != len(function.parameters):
        raise InputError(
            f"{function.name} takes {len(function.parameters)} arguments, {len(arguments)} given: "
            f"{', '.join(arguments)}"
        )
    values = {}
    for parameter, (name, argument) in zip(function.parameters, arguments.items(), strict=True):
        if isinstance(argument, TensorMap):
            _place_map(machine, function, parameter, name, argument)
            continue
        value = np.uint64(machine.memory.place(name, argument)) if isinstance(argument, np.ndarray) else argument
        values[parameter.name] = _bytes_of(function.name, parameter, name, value)
    return values


def _place_map(machine: Machine, function: Function, parameter: Parameter, name: str, tensor_map: TensorMap) -> None:
    """Place a tensor map: kernels only point to it, so it has an address but no bytes."""
    if parameter.size_bytes != MAP_BYTES:
        raise InputError(f"{function.name}: {name} is a tensor map, its parameter takes {parameter.size_bytes} bytes")
    address = PARAMETER_WINDOW + MAP_BYTES * function.parameters.index(parameter)
    machine.memory.place(name, tensor_map.array)
    machine.unit(BulkCopies).place(address, name, tensor_map)
    machine.registers.preset(parameter.name, np.array([address], np.uint64))


def _bytes_of(kernel: str, parameter: Parameter, name: str, value: np.generic) -> bytes:
    if not isinstance(value, np.generic):
        raise InputError(f"{kernel}: {name} is {type(value).__name__}; give an array or a NumPy scalar (np.int32(5))")
    data = value.tobytes()
    if len(data) != parameter.size_bytes:
        raise InputError(f"{kernel}: {name} has {len(data)} bytes, its parameter takes {parameter.size_bytes}")
    return data


def _special_registers(lanes: Lanes, grid: Dim3, first: int, size: int) -> dict[str, Values]:
    """Return the special registers that locate a thread (PTX ISA 9.0, chapter 10)."""

    def of(values: Values | int) -> Values:
        return np.atleast_1d(np.asarray(values)).astype(np.uint32)

    thread, block = position(lanes.thread_of, lanes.block), position(first + lanes.block_of, grid)
    registers: dict[str, Values] = {}
    for axis, t, b, nt, nb in zip("xyz", thread, block, lanes.block, grid, strict=True):
        registers[f"%tid.{axis}"] = of(t if nt > 1 else 0)
        registers[f"%ctaid.{axis}"] = of(b if (b != b[0]).any() else b[0])
        registers[f"%ntid.{axis}"] = of(nt)
        registers[f"%nctaid.{axis}"] = of(nb)
    rank = (first + lanes.block_of) % size  # in a cluster of blocks in a row
    registers |= {
        "%cluster_ctarank": of(rank if size > 1 else 0),
        "%cluster_ctaid.x": of(rank if size > 1 else 0),
        "%cluster_nctarank": of(size),
        "%cluster_nctaid.x": of(size),
    }
    own = np.uint32(1) << of(lanes.lane_of)
    below = own - np.uint32(1)
    return registers | {
        "%laneid": of(lanes.lane_of),
        "%warpid": of(lanes.warp_of),
        "%nwarpid": of(lanes.warps_per_block),
        "%lanemask_eq": own,
        "%lanemask_lt": below,
        "%lanemask_le": below | own,
        "%lanemask_gt": ~(below | own),
        "%lanemask_ge": ~below,
        "WARP_SZ": np.array([WARP], np.uint64),
    }


MOST_THREADS = 1024
"""Largest number of threads of a block, on every GPU."""

LANES = 16384
"""Lanes that run together: enough to hide Python's overhead; 100 registers take 6 MiB."""


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
    entry : str
        Name of the kernel.
    grid, block : int or tuple of 1 to 3 int
    arguments : mapping of str to ndarray or NumPy scalar
        In the order of the kernel's parameters. Arrays are C-contiguous; their keys name them in counts and faults.
    shared_memory_bytes : int
        Dynamic shared memory of a block.
    checks : bool
        Check for races, reads of uninitialised shared memory, and missing waits for cp.async. Bounds and alignment are
        always checked.
    lanes : int
        Threads to run together; limits the interpreter's memory.

    Returns
    -------
    Counters

    Notes
    -----
    A compiled kernel is kept, with its registers, so two threads of Python must not run the same one at once.

    Raises
    ------
    Fault
        The first fault of the kernel, with its place; ``others`` are the later ones.
    UnsupportedInstruction
        If the kernel has an instruction that is not known; the message names it.
    InputError
        If entry or arguments do not fit the PTX.
    """
    grid3, block3 = sizes(grid, "grid"), sizes(block, "block")
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
        bounds.reached(min(first + per_batch, blocks), blocks)
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
    """Blocks that run together, starting with block `first` of the grid."""

    first: int
    lanes: Lanes
    grid: Dim3
    dynamic_bytes: int
    checks: bool

    def play(self, program: Program, arguments: Arguments) -> tuple[Counters, list[Fault]]:
        """Run the batch; after a fault, run it once more to find all its faults.

        The second run executes one instruction after another, and continues after recoverable faults.
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


def sizes(given: Sequence[int] | int, what: str) -> Dim3:
    """Check sizes of a grid or a block, and extend them to x, y and z; raises InputError unless 1 to 3 sizes >= 1."""
    shape = (given,) if isinstance(given, int) else tuple(given)
    if not 1 <= len(shape) <= 3 or min(shape) < 1:
        raise InputError(f"{what} is {' x '.join(map(str, shape)) or 'empty'}; give one to three sizes of 1 or more")
    x, y, z = (*shape, 1, 1)[:3]
    return int(x), int(y), int(z)


def _place(fault: Fault, function: Function, lanes: Lanes, grid: Dim3, first: int) -> str:
    """Describe the place of a fault: kernel, instruction, block and thread."""
    where = ""
    if fault.position is not None:
        where = f", instruction {fault.position} {function.instructions[fault.position].place}"
    if fault.lane is None:
        return f"{function.name}{where}"
    block = position(first + int(lanes.block_of[fault.lane]), grid)
    thread = position(int(lanes.thread_of[fault.lane]), lanes.block)
    return f"{function.name}{where}, block {block}, thread {thread}"
