"""Records every instruction that one block of a kernel executes in the interpreter.

A recorder compiles its own copy of the kernel, so that other runs of it pay nothing for recording.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from attnsim.ptx.clusters import RANK_SHIFT
from attnsim.ptx.control import fall_off
from attnsim.ptx.counters import Counters
from attnsim.ptx.faults import Fault
from attnsim.ptx.flow import Control, Flow, Go
from attnsim.ptx.lanes import Dim3, Mask, Values, lanes_of
from attnsim.ptx.machine import Machine, Step
from attnsim.ptx.program import Program, Run
from attnsim.ptx.run import Arguments, preset
from attnsim.ptx.syntax import Address, Function, Instruction

GLOBAL = ("ld", "st", "cp", "red", "atom")
"""Names of instructions that may access global memory."""


class Row(NamedTuple):
    """One instruction as one group of warps executed it.

    Parameters
    ----------
    position : int
        Number of the instruction in the function.
    lanes : tuple of int
        Active lanes of each warp of the block; of a predicated instruction, those whose predicate holds.
    shared_bytes : int
        Bytes loaded from and stored to shared memory.
    moved : tuple of (str, int)
        Bytes of global memory by argument.
    mbarrier : int
        Address of its mbarrier in shared memory; -1 for instructions without one.
    """

    position: int
    lanes: tuple[int, ...]
    shared_bytes: int = 0
    moved: tuple[tuple[str, int], ...] = ()
    mbarrier: int = -1


class Recorder:
    """Runs blocks of a kernel one by one and returns the instructions that each executed.

    Raises
    ------
    UnsupportedInstruction
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self._rows: list[Row] = []
        self._rank = 0
        self._program = Program(function)
        machine = self._program.machine
        for position, instruction in enumerate(function.instructions):
            if position in self._program.controls:
                found = self._watched_control(self._program.controls[position], instruction, machine)
                self._program.controls[position] = found
            else:
                self._program.steps[position] = self._watched(self._program.steps[position], position, machine)

    def block(self, index: int, grid: Dim3, block: Dim3, arguments: Arguments, shared_memory_bytes: int) -> list[Row]:
        """Run block `index` of a grid; returns the instructions that it executed, in order.

        Parameters
        ----------
        shared_memory_bytes : int
            Dynamic, of a block.

        Raises
        ------
        Fault
            If the block does something wrong; bounds and alignment are checked, races are not.
        """
        if not 0 <= index < math.prod(grid):
            raise IndexError(index)
        machine, self._rows, self._rank = self._program.machine, [], index % self.function.cluster
        machine.start(lanes_of(block, 1), shared_memory_bytes, False, Counters())
        try:
            preset(machine, self.function, arguments, grid, index, shared_memory_bytes)
            finish(self._program)
        finally:
            machine.forget()
        return self._rows

    def _own(self, addresses: Values) -> int:
        """Return the first address in the block's own memory; -1 if all are in other blocks of its cluster."""
        own = addresses[(addresses >> RANK_SHIFT == 0) | (addresses >> RANK_SHIFT == self._rank + 1)]
        return int(own[0] & ((1 << RANK_SHIFT) - 1)) if len(own) else -1

    def _watched(self, step: Step, position: int, machine: Machine) -> Step:
        """Wrap a step to record what it executed and moved."""
        instruction = self.function.instructions[position]
        predicate = machine.read(instruction.guard, "pred") if instruction.guard else None
        place = _mbarrier(instruction, machine)
        asks = instruction.name in GLOBAL

        def watched(mask: Mask) -> None:
            active = mask.where(predicate()) if predicate else mask
            if not active.count:
                return step(mask)
            counters = machine.counters
            before = counters.shared_bytes_loaded + counters.shared_bytes_stored
            if asks:
                counters.loads, counters.stores = Counter(), Counter()
            where = self._own(place(active)) if place else -1
            step(mask)
            after = counters.shared_bytes_loaded + counters.shared_bytes_stored
            moved = (*counters.loads.items(), *counters.stores.items()) if asks else ()
            self._rows.append(Row(position, tuple(active.by_warp.tolist()), after - before, moved, where))
            return None

        return watched

    def _watched_control(self, control: Control, instruction: Instruction, machine: Machine) -> Control:
        """Wrap a control instruction to record the lanes that passed it, or that arrived if it is a barrier."""
        if control is fall_off or instruction.name in ("bra", "brx", "ret", "exit", "trap"):
            return control
        place = _mbarrier(instruction, machine)

        def watched(run: Flow, position: int, mask: Mask) -> Go:
            going = control(run, position, mask)
            past = mask if place is None else going[1] if going else None
            if past is not None:
                where = self._own(place(past)) if place else -1
                self._rows.append(Row(position, tuple(past.by_warp.tolist()), mbarrier=where))
            return going

        return watched


def finish(program: Program) -> None:
    """Run a program on the batch that its machine is set up for, one instruction after another.

    Raises
    ------
    Fault
        The first fault, with its line.
    """
    machine = program.machine
    try:
        Run(program, grouped=False).finish()
    except Fault as fault:
        machine.reports.keep(fault)
    for found in machine.reports.found.values():
        if found.position is not None:
            found.place = f"{program.function.name}, {program.function.instructions[found.position].place}"
        raise found


def _mbarrier(instruction: Instruction, machine: Machine) -> Callable[[Mask], Values] | None:
    """Return a closure for the address of the mbarrier that an instruction names last; None without one."""
    named = instruction.name == "mbarrier" or any("mbarrier::complete_tx" in m for m in instruction.modifiers)
    places = [one for one in instruction.operands if isinstance(one, Address)]
    return machine.address(places[-1]) if named and places else None
