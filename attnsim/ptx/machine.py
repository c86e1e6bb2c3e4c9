"""The state that compiled instructions work on: registers and memories of one batch of blocks.

Dataflow of a kernel: registers read and written, addresses of variables, agents that access shared memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from attnsim.ptx import compiled
from attnsim.ptx.counters import Counters
from attnsim.ptx.faults import Reports, UnsupportedInstruction
from attnsim.ptx.lanes import WARP, Bools, Indices, Lanes, Mask, Meetings, Values, lanes_of
from attnsim.ptx.memory import GlobalMemory, LocalMemory
from attnsim.ptx.registers import DTYPES, Read, Registers, Rows, Write
from attnsim.ptx.shared import SharedMemory
from attnsim.ptx.syntax import Address, Function, Instruction, Operand, TensorAddress, Vector, register_names

_NO_RESULT = ("st", "red", "stmatrix", "cp", "bra", "brx", "ret", "exit", "trap", "prefetch", "bar", "barrier", "fence")
"""Instructions whose first operand is not a result (that of ``bar.red`` is)."""

_ENDS = ("bra", "brx", "ret", "exit", "trap")
_LATE = ("wgmma", "tcgen05")
"""Asynchronous instructions, which access registers after later instructions have begun."""


def written(one: Instruction) -> frozenset[str]:
    """Registers that an instruction writes: those of its first operand if it is a result."""
    if not one.operands or (one.name in _NO_RESULT and "red" not in one.modifiers):
        return frozenset()
    first = one.operands[0]
    return frozenset() if isinstance(first, Address | TensorAddress) else frozenset(register_names([first]))


def read(one: Instruction) -> frozenset[str]:
    """Registers that an instruction reads: those of the other operands and of the guard."""
    operands = one.operands[1:] if written(one) else one.operands
    return frozenset(register_names((*operands, *([one.guard] if one.guard else []))))


def passing(function: Function) -> dict[str, int]:
    """Return the registers that are live in one basic block only, with the number of that block.

    Such a register is written before it is read there, and no other block names it.
    """
    heads = {target for one in function.instructions for target in one.targets}
    basic_block, home, others = 0, dict[str, int](), set[str]()
    for position, one in enumerate(function.instructions):
        basic_block += position in heads
        reads, writes = read(one), written(one)
        for name in reads | writes:
            new = name in writes - reads and not one.guard and name not in home
            if one.name in _LATE or not (new or home.get(name) == basic_block):
                others.add(name)
            home.setdefault(name, basic_block)
        basic_block += one.name in _ENDS
    return {name: where for name, where in home.items() if name not in others}


def lay_out(function: Function, space: str) -> tuple[dict[str, int], int]:
    """Return the addresses of a kernel's shared or local variables by name, and their total size in bytes.

    Variables lie in order of declaration; dynamic shared memory comes last and has size 0.
    """
    variables = sorted((v for v in function.variables if v.space == space), key=lambda v: v.size_bytes == 0)
    addresses, end = {}, 0
    for variable in variables:
        end = -(-end // variable.align) * variable.align
        addresses[variable.name] = end
        end += variable.size_bytes
    return addresses, end


def meetings(function: Function) -> Meetings:
    """Return which agents other than warps access a kernel's shared memory."""
    instructions = function.instructions
    return Meetings(
        pairwise=any(
            i.name in ("mbarrier", "wgmma", "tcgen05", "mapa")
            or "bulk" in i.modifiers
            or (i.name in ("bar", "barrier") and _counts_threads(i))
            for i in instructions
        ),
        stores=any("bulk_group" in i.modifiers for i in instructions),
        products=any(i.name == "tcgen05" for i in instructions),
    )


def _counts_threads(instruction: Instruction) -> bool:
    """True if a barrier names a thread count, so that it may be for part of the block."""
    return "warp" not in instruction.modifiers and len(instruction.operands) > (
        3 if "red" in instruction.modifiers else 1
    )


Step = Callable[[Mask], None]
"""One compiled instruction."""

Compile = Callable[[Instruction, "Machine"], Step]

OPERATIONS: dict[str, Compile] = {}
"""Compilers of instructions by the first part of the opcode."""


class Unit(Protocol):
    """A unit that only some kernels need, such as mbarriers."""

    def start(self) -> None:
        """Reset to the state before the first instruction of a batch."""
        ...


AnyUnit = TypeVar("AnyUnit", bound=Unit)


class Machine:
    """Registers and memories of a kernel, reused for every batch of blocks.

    Attributes
    ----------
    lanes : Lanes
        Lanes of the batch.
    live : ndarray of bool ``[lanes]``
        Threads that have not exited.
    addresses : dict of str to int
        Addresses of the kernel's shared and local variables.
    parameters : dict of str to bytes
        Bytes of each kernel parameter.
    reports : Reports
        Receives the recoverable faults.
    cluster : int
        Blocks of a cluster.
    """

    def __init__(self, function: Function) -> None:
        (shared, shared_bytes), (local, local_bytes) = lay_out(function, "shared"), lay_out(function, "local")
        self.addresses = shared | local
        self._mentions = Counter(
            name
            for i in function.instructions
            for name in register_names((*i.operands, *([i.guard] if i.guard else [])))
        )
        self.cluster = function.cluster
        self.registers = Registers(passing(function))
        self.reports = Reports()
        self.memory = GlobalMemory()
        self.shared = SharedMemory(shared_bytes, meetings(function), self.reports)
        self.local = LocalMemory(local_bytes)
        self.counters = Counters()
        self.parameters: dict[str, bytes] = {}
        self.lanes = lanes_of((WARP, 1, 1), 1)
        self.live: Bools = np.zeros(0, bool)
        self._units: dict[Callable[[Machine], Unit], Unit] = {}

    def unit(self, kind: Callable[[Machine], AnyUnit]) -> AnyUnit:
        """Return the machine's unit of that kind, created on first use."""
        if kind not in self._units:
            self._units[kind] = kind(self)
        return cast(AnyUnit, self._units[kind])

    def start(self, lanes: Lanes, dynamic_bytes: int, checks: bool, counters: Counters) -> None:
        """Reset registers, memories and units for a batch."""
        self.lanes, self.counters = lanes, counters
        self.live = lanes.thread_of < lanes.threads
        self.reports.start()
        self.registers.start(lanes.count)
        self.memory.clear(counters)
        self.shared.start(lanes, dynamic_bytes, checks, counters)
        self.local.start(lanes, counters)
        for unit in self._units.values():
            unit.start()

    def forget(self) -> None:
        """Release the batch's arrays and registers."""
        self.registers.start(0)
        self.memory.clear(self.counters)

    def mentions(self, registers: Sequence[Operand]) -> int:
        """Number of instructions that name each of these registers, summed."""
        return sum(self._mentions[name] for name in register_names(registers))

    def read(self, operand: Operand, ptx_type: str) -> Read:
        """Return a closure that reads an operand's value."""
        return self.registers.read(operand, DTYPES[ptx_type])

    def write(self, operand: Operand, ptx_type: str) -> Write:
        """Return a closure that writes a value to a destination."""
        return self.registers.write(operand, DTYPES[ptx_type])

    def address(self, operand: Operand) -> Callable[[Mask], Values]:
        """Return a closure for the active lanes' addresses, int64 ``[active]``."""
        return self.address_rows([operand])

    def address_rows(self, operands: Sequence[Operand]) -> Callable[[Mask], Values]:
        """Return a closure for the active lanes' addresses of many operands, int64 ``[operands * active]``."""
        places = [operand for operand in operands if isinstance(operand, Address)]
        if len(places) < len(operands):
            raise UnsupportedInstruction(f"address {', '.join(map(str, operands))}")
        bases, offsets = [place.base for place in places], np.array([place.offset for place in places], np.int64)
        for ptx_type in ("u32", "s64"):
            rows = self.registers.rows(bases, DTYPES[ptx_type])
            if rows:
                return self._from_rows(rows, offsets, DTYPES[ptx_type])
        read = self.registers.read_rows(bases, DTYPES["s64"])
        return lambda mask: mask.take(read() + offsets[:, None]).reshape(-1)

    def _from_rows(self, rows: Rows, offsets: Indices, dtype: np.dtype[Any]) -> Callable[[Mask], Values]:
        def addresses(mask: Mask) -> Values:
            found = np.empty(len(offsets) * mask.count, np.int64)
            file, state = self.registers.files[dtype.str], self.registers.state
            compiled.addresses(file, state, rows.numbers, rows.rows, offsets, mask.index, found)
            return found

        return addresses


def operation(*names: str) -> Callable[[Compile], Compile]:
    """Register the compiler of instructions with these names."""

    def register(function: Compile) -> Compile:
        OPERATIONS.update(dict.fromkeys(names, function))
        return function

    return register


def items(operand: Operand) -> tuple[Operand, ...]:
    """Return the elements of a vector operand, or the operand alone."""
    return operand.items if isinstance(operand, Vector) else (operand,)


def value_type(instruction: Instruction) -> str:
    """Return the type of an instruction: its last modifier that is a type."""
    for modifier in reversed(instruction.modifiers):
        if modifier in DTYPES:
            return modifier
    raise UnsupportedInstruction(f"'{instruction.text}' has no type that the interpreter knows")


def unsupported(instruction: Instruction) -> UnsupportedInstruction:
    """Return the exception for an instruction, or a form of one, that the interpreter does not know."""
    opcode = ".".join((instruction.name, *instruction.modifiers))
    return UnsupportedInstruction(f"'{opcode}' is not known to the interpreter ('{instruction.text}')")
