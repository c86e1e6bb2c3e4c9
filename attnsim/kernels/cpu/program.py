"""A kernel compiled to closures, and its run over a batch of blocks: branches, reconvergence, barriers, exits.

Lanes at different instructions are groups; the group with the lowest instruction number runs until it meets the next
one and joins it. For code without backward jumps into the middle of a loop that is where a GPU reconverges too.
"""

from __future__ import annotations

import numpy as np

from attnsim.kernels.cpu import (  # noqa: F401  (each registers the instructions that it knows)
    atomics,
    bits,
    comparisons,
    control,
    conversions,
    copies,
    floats,
    fragments,
    integers,
    mbarrier,
    register_budget,
    transfers,
    warps,
    wgmma,
)
from attnsim.kernels.cpu.barriers import Barriers, Groups
from attnsim.kernels.cpu.bulk_copies import BulkCopies
from attnsim.kernels.cpu.costs import Costs, charge, cost
from attnsim.kernels.cpu.faults import Deadlock, Fault, UnsupportedInstruction
from attnsim.kernels.cpu.flow import CONTROLS, Control, Stalls
from attnsim.kernels.cpu.lanes import Mask
from attnsim.kernels.cpu.machine import OPERATIONS, Machine, Step, unsupported
from attnsim.kernels.cpu.ptx import Function, Instruction
from attnsim.kernels.cpu.tensor_cores import Watch

STEPS_LIMIT = 5_000_000
"""Instructions of one batch after which a kernel is taken to be in an endless loop."""


class Program:
    """A compiled kernel.

    Parameters
    ----------
    function : Function

    Raises
    ------
    UnsupportedInstruction
        By name, for the first instruction that is not known.

    Attributes
    ----------
    machine : Machine
    steps : list of Step
        One per instruction; those of control instructions do nothing.
    controls : dict of int to Control
        The control instructions.
    next_control : list of int
        For each instruction the nearest control instruction from there on.
    exits : frozenset of int
        The instructions that end a thread whatever its predicates.
    costs : Costs
        Costs up to each instruction.
    """

    def __init__(self, function: Function) -> None:
        self.function, self.machine = function, Machine(function)
        self.controls: dict[int, Control] = {}
        watch, instructions = Watch(function, self.machine), function.instructions
        self.steps = [*(self._step(position, watch) for position in range(len(instructions))), _nothing]
        end = len(instructions)
        self.controls[end] = control.fall_off
        self.next_control = [end] * (end + 1)
        for position in range(end - 1, -1, -1):
            self.next_control[position] = position if position in self.controls else self.next_control[position + 1]
        returns = (n for n, i in enumerate(instructions) if i.name in ("ret", "exit") and not i.guard)
        self.exits = frozenset([end, *returns])
        self.costs = Costs(instructions)

    def _step(self, position: int, watch: Watch) -> Step:
        """Compile one instruction; a control instruction is noted, and its step does nothing."""
        instruction = self.function.instructions[position]
        try:
            compiler = CONTROLS.get(instruction.name)
            if compiler and (found := compiler(instruction, self.machine)):
                self.controls[position] = found
                return _nothing
            if instruction.name not in OPERATIONS:
                raise unsupported(instruction)
            step = watch.over(instruction, OPERATIONS[instruction.name](instruction, self.machine))
            return _guarded(step, instruction, self.machine) if instruction.guard else step
        except UnsupportedInstruction as fault:
            fault.place = f"{self.function.name}, instruction {position} '{instruction.text}'"
            raise


def _nothing(mask: Mask) -> None:
    pass


def _guarded(step: Step, instruction: Instruction, machine: Machine) -> Step:
    """A step under its predicate, which counts its own cost since it may not run in every lane."""
    assert instruction.guard is not None
    predicate, price = machine.read(instruction.guard, "pred"), cost(instruction)

    def guarded(mask: Mask) -> None:
        active = mask.where(predicate())
        if active.count:
            charge(machine.counters, price, active.count)
            step(active)

    return guarded


class Run:
    """One run of a program over a batch of blocks."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.machine = program.machine
        self.barriers = Barriers(self.machine)
        self.stalls = Stalls(self.machine.unit(BulkCopies).land_oldest)
        self._groups: dict[int, Mask] = {0: Mask(self.machine.live)}
        self._everyone = self._groups[0]
        self._steps = 0

    def finish(self) -> None:
        """Run until every lane has exited.

        Raises
        ------
        Fault
            With the place where it happened.
        """
        with np.errstate(all="ignore"):
            while self._groups or self._resume():
                position = min(self._groups)
                self._advance(position, self._groups.pop(position))
            if self.barriers.waiting:
                raise self.barriers.deadlock()
        self.machine.unit(BulkCopies).require_landed()

    def _resume(self) -> bool:
        """Whether lanes that had stalled go on."""
        try:
            self.join(self.stalls.resume())
        except Deadlock as fault:
            if self.barriers.waiting:
                fault.what += f"; {self.barriers.deadlock().what}"
            raise
        return bool(self._groups)

    def join(self, groups: Groups) -> None:
        """Add lanes that are to go on; those that come to an exit are not kept waiting for it."""
        for position, mask in groups:
            if position in self.program.exits:
                self.program.costs.charge(self.machine.counters, position, position + 1, mask)
                self.exit(mask)
                continue
            here = self._groups.get(position)
            joined = mask if here is None else here | mask
            self._groups[position] = self._everyone if joined.count == self._everyone.count else joined

    def exit(self, mask: Mask) -> None:
        """These lanes have ended."""
        self.machine.live = self.machine.live & ~mask.lanes
        if self.barriers.waiting:
            self.join(self.barriers.after_exit())

    def _advance(self, position: int, mask: Mask) -> None:
        """Run one group until it ends, splits, waits, or meets or passes the next group."""
        program, machine = self.program, self.machine
        steps, end = program.steps, len(program.steps)
        while True:
            following = min(self._groups, default=end)
            stop = min(program.next_control[position], following)
            start = position
            at = start
            try:
                for at in range(start, stop):
                    steps[at](mask)
                at = stop
                if stop == following:
                    program.costs.charge(machine.counters, start, stop, mask)
                    return self.join([(stop, mask)])
                program.costs.charge(machine.counters, start, stop + 1, mask)
                go = program.controls[stop](self, stop, mask)
            except Fault as fault:
                fault.position = at
                raise
            self._count(stop + 1 - start, stop, mask)
            if go is None:
                return None
            position, mask = go
            if position >= min(self._groups, default=end):
                return self.join([go])

    def _count(self, steps: int, position: int, mask: Mask) -> None:
        self._steps += steps
        if self._steps > STEPS_LIMIT:
            what = f"no end after {STEPS_LIMIT} instructions: an endless loop, or one that waits for other blocks"
            fault = Deadlock(what, mask.lane(0))
            fault.position = position
            raise fault
