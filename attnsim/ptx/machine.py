"""What compiled instructions work on: the registers and memories of one batch of blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from attnsim.ptx import compiled
from attnsim.ptx.counters import Counters
from attnsim.ptx.dataflow import lay_out, meetings, passing
from attnsim.ptx.faults import Reports, UnsupportedInstruction
from attnsim.ptx.lanes import WARP, Bools, Indices, Lanes, Mask, Values, lanes_of
from attnsim.ptx.memory import GlobalMemory, LocalMemory
from attnsim.ptx.registers import DTYPES, Read, Registers, Rows, Write
from attnsim.ptx.shared import SharedMemory
from attnsim.ptx.syntax import Address, Function, Instruction, Operand, Vector, register_names

Step = Callable[[Mask], None]
"""One compiled instruction."""

Compile = Callable[[Instruction, "Machine"], Step]

OPERATIONS: dict[str, Compile] = {}
"""How each instruction is compiled, by the first part of its opcode."""


class Unit(Protocol):
    """Something that only some kernels need, such as mbarriers."""

    def start(self) -> None:
        """As before any instruction of a batch."""
        ...


AnyUnit = TypeVar("AnyUnit", bound=Unit)


class Machine:
    """Registers and memories of a kernel, for whichever batch of blocks runs.

    Parameters
    ----------
    function : Function

    Attributes
    ----------
    lanes : Lanes
        Of the batch.
    live : ndarray of bool ``[lanes]``
        Threads that have not exited.
    addresses : dict of str to int
        Of the kernel's shared and local variables.
    parameters : dict of str to bytes
    reports : Reports
        Takes the faults after which a kernel can go on.
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
        """The machine's unit of that kind, made when it is first asked for."""
        if kind not in self._units:
            self._units[kind] = kind(self)
        return cast(AnyUnit, self._units[kind])

    def start(self, lanes: Lanes, dynamic_bytes: int, checks: bool, counters: Counters) -> None:
        """Get ready for a batch: registers and memories as before any instruction."""
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
        """Let go of the batch's arrays and registers."""
        self.registers.start(0)
        self.memory.clear(self.counters)

    def mentions(self, registers: Sequence[Operand]) -> int:
        """How many instructions name these registers, added up."""
        return sum(self._mentions[name] for name in register_names(registers))

    def read(self, operand: Operand, ptx_type: str) -> Read:
        """A closure that returns an operand's value."""
        return self.registers.read(operand, DTYPES[ptx_type])

    def write(self, operand: Operand, ptx_type: str) -> Write:
        """A closure that stores a value into a destination."""
        return self.registers.write(operand, DTYPES[ptx_type])

    def address(self, operand: Operand) -> Callable[[Mask], Values]:
        """A closure that returns the active lanes' addresses, int64 ``[active]``."""
        return self.address_rows([operand])

    def address_rows(self, operands: Sequence[Operand]) -> Callable[[Mask], Values]:
        """A closure that returns the active lanes' addresses by many operands, int64 ``[operands * active]``."""
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
    """Elements of a vector operand, or the operand alone."""
    return operand.items if isinstance(operand, Vector) else (operand,)


def value_type(instruction: Instruction) -> str:
    """The type that an instruction works in: the last modifier that is one."""
    for modifier in reversed(instruction.modifiers):
        if modifier in DTYPES:
            return modifier
    raise UnsupportedInstruction(f"'{instruction.text}' has no type that the interpreter knows")


def unsupported(instruction: Instruction) -> UnsupportedInstruction:
    """The exception for an instruction, or a form of one, that the interpreter does not know."""
    opcode = ".".join((instruction.name, *instruction.modifiers))
    return UnsupportedInstruction(f"'{opcode}' is not known to the interpreter ('{instruction.text}')")
