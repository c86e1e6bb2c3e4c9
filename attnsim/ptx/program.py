"""Compiles a kernel to closures and runs it over a batch of blocks: branches, reconvergence, barriers, exits.

Lanes at the same instruction form a group. The group with the lowest instruction number runs until it reaches the next
group and joins it. A GPU reconverges at the same place if the code has no backward jumps into the middle of a loop.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from attnsim import bounds
from attnsim.errors import InputError
from attnsim.ptx import (  # noqa: F401  (each registers the instructions that it knows)
    clusters,
    control,
    copies,
    floats,
    fragments,
    integers,
    mbarriers,
    tcgen05,
    warps,
    wgmma,
    wmma,
)
from attnsim.ptx.barriers import Barriers, Groups
from attnsim.ptx.basic_blocks import Batchable, Line, Tape, basic_blocks, code_of, in_turn
from attnsim.ptx.bulk_copies import BulkCopies, BulkStores
from attnsim.ptx.clusters import Clusters
from attnsim.ptx.counters import Costs, charge, cost
from attnsim.ptx.faults import Deadlock, Fault, StepLimit, UnsupportedInstruction
from attnsim.ptx.flow import CONTROLS, Control, Stalls
from attnsim.ptx.lanes import Mask
from attnsim.ptx.machine import OPERATIONS, Machine, Step, unsupported
from attnsim.ptx.syntax import Function, Instruction
from attnsim.ptx.tensor_memory import TensorMemory
from attnsim.ptx.wgmma import Watch

STEPS_LIMIT = 5_000_000
LOOKED_UP_EVERY = 5_000
"""Instructions between two looks at the clock."""
"""Instructions of one batch after which a kernel is taken to be in an endless loop."""

_NOT_READ = (ValueError, LookupError, TypeError, AttributeError, AssertionError, StopIteration)
"""Exceptions that an instruction's compiler raises on a form of it that it does not handle."""


class Program:
    """A compiled kernel.

    Raises
    ------
    UnsupportedInstruction
        For the first instruction that is not known; the message names it.
    InputError
        If numba is not installed.

    Attributes
    ----------
    steps : list of Step
        One step per instruction; steps of control instructions do nothing.
    runs : dict of int to BasicBlock
        Steps of each basic block, by its first instruction.
    controls : dict of int to Control
        The control instructions.
    next_control : list of int
        For each instruction the nearest control instruction from there on.
    exits : frozenset of int
        The instructions that end a thread unconditionally.
    costs : Costs
        Prefix sums of the instructions' costs.
    """

    def __init__(self, function: Function) -> None:
        if find_spec("numba") is None:  # the compiled loops would take hours
            raise InputError("numba is not installed, and the interpreter's loops need it: pip install numba")
        self.function, self.machine = function, Machine(function)
        self.controls: dict[int, Control] = {}
        instructions = function.instructions
        watch = Watch(function, self.machine)
        lines = [self._line(position, watch) for position in range(len(instructions))]
        self.steps = [*(line.step for line in lines), _nothing]
        self.runs = basic_blocks(lines, self.controls, self.machine)
        end = len(instructions)
        self.controls[end] = control.fall_off
        self.next_control = [end] * (end + 1)
        for position in range(end - 1, -1, -1):
            self.next_control[position] = position if position in self.controls else self.next_control[position + 1]
        returns = (n for n, i in enumerate(instructions) if i.name in ("ret", "exit") and not i.guard)
        self.exits = frozenset([end, *returns])
        self.costs = Costs(instructions)
        self.machine.unit(TensorMemory)
        self.machine.unit(Clusters)

    def _line(self, position: int, watch: Watch) -> Line:
        """Compile one instruction; a control instruction is registered in `controls`, and its step does nothing."""
        instruction = self.function.instructions[position]
        try:
            compiler = CONTROLS.get(instruction.name)
            if compiler and (found := compiler(instruction, self.machine)):
                self.controls[position] = found
                return Line(instruction, _nothing)
            if code := code_of(instruction, self.machine):
                alone: Step = Tape([code], self.machine)
            elif instruction.name in OPERATIONS:
                alone = OPERATIONS[instruction.name](instruction, self.machine)
            else:
                raise unsupported(instruction)
            note = watch.note(instruction)
            step = in_turn([note, alone]) if note else alone
            if instruction.guard:
                return Line(instruction, _guarded(step, instruction, self.machine))
            batchable = alone if isinstance(alone, Batchable) else None
            return Line(instruction, step, batchable, note, code)
        except UnsupportedInstruction as fault:
            fault.place = f"{self.function.name}, instruction {position} {instruction.place}"
            raise
        except _NOT_READ as error:  # operands or modifiers that its compiler does not expect
            refused = unsupported(instruction)
            refused.place = f"{self.function.name}, instruction {position} {instruction.place}"
            raise refused from error


def _nothing(mask: Mask) -> None:
    pass


def _guarded(step: Step, instruction: Instruction, machine: Machine) -> Step:
    """Return a predicated step, which counts its own cost since it may not run in every lane."""
    assert instruction.guard is not None
    predicate, price = machine.read(instruction.guard, "pred"), cost(instruction)

    def guarded(mask: Mask) -> None:
        active = mask.where(predicate())
        if active.count:
            charge(machine.counters, price, active.count)
            step(active)

    return guarded


class Run:
    """One run of a program over a batch of blocks.

    Parameters
    ----------
    grouped : bool, optional
        Execute instructions of one kind together. A fault in one of them then has no position.
    """

    def __init__(self, program: Program, grouped: bool = True) -> None:
        self.program = program
        self._grouped = grouped
        self.machine = program.machine
        self.barriers = Barriers(self.machine)
        self.stalls = Stalls(self._happen)
        self._groups: dict[int, Mask] = {0: Mask(self.machine.live)}
        self._masks: dict[bytes, Mask] = {}
        self._steps = 0

    def finish(self) -> None:
        """Run until every lane has exited.

        Raises
        ------
        Fault
            If the kernel does something wrong; with the place where it happened.
        """
        with np.errstate(all="ignore"):
            while self._groups or self._resume():
                position = min(self._groups)
                self._advance(position, self._groups.pop(position))
            if self.barriers.waiting:
                raise self.barriers.deadlock()
        self.machine.unit(BulkCopies).require_landed()
        self.machine.unit(BulkStores).finish()
        self.machine.unit(TensorMemory).require_released()

    def _happen(self) -> bool:
        """Complete the oldest asynchronous copies and products; returns False if there were none."""
        landed = self.machine.unit(BulkCopies).land_oldest()
        return self.machine.unit(TensorMemory).arrive_oldest() or landed

    def _resume(self) -> bool:
        """Resume stalled lanes; returns True if any lane can run."""
        try:
            self.join(self.stalls.resume())
        except Deadlock as fault:
            if self.barriers.waiting:
                fault.what += f"; {self.barriers.deadlock().what}"
            raise
        return bool(self._groups)

    def join(self, groups: Groups) -> None:
        """Add groups of lanes to run; lanes at an exit end at once."""
        for position, mask in groups:
            if position in self.program.exits:
                self.program.costs.charge(self.machine.counters, position, position + 1, mask)
                self.exit(mask)
                continue
            here = self._groups.get(position)
            self._groups[position] = self._same(mask if here is None else here | mask)

    def _same(self, mask: Mask) -> Mask:
        """Return the cached mask of these lanes, with the properties already computed for it."""
        return self._masks.setdefault(mask.lanes.tobytes(), mask)

    def exit(self, mask: Mask) -> None:
        """Record the exit of these lanes."""
        self.machine.live = self.machine.live & ~mask.lanes
        self.machine.unit(Clusters).leave(mask)
        if self.barriers.waiting:
            self.join(self.barriers.after_exit())

    def _advance(self, position: int, mask: Mask) -> None:
        """Run one group until it ends, splits, stalls, or reaches or passes the next group."""
        program, machine = self.program, self.machine
        steps, runs, end = program.steps, program.runs, len(program.steps)
        while True:
            following = min(self._groups, default=end)
            stop = min(program.next_control[position], following)
            start = position
            at: int | None = start
            try:
                if self._grouped:
                    at = None
                    here = start
                    while here < stop:
                        here, together = runs[here]
                        for step in together:
                            step(mask)
                else:
                    for at in range(start, stop):
                        self._alone(at, steps[at], mask)
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
            position, mask = go[0], mask if go[1] is mask else self._same(go[1])
            if position >= min(self._groups, default=end):
                return self.join([go])

    def _alone(self, at: int, step: Step, mask: Mask) -> None:
        """Run one instruction; lanes whose access is bad are reported, and the other lanes proceed."""
        reports = self.machine.reports
        reports.position = at
        while mask.count:
            try:
                return step(mask)
            except Fault as fault:
                if fault.lanes is None:
                    raise
                reports(fault)
                bad = np.zeros_like(mask.lanes)
                bad[fault.lanes] = True
                mask = Mask(mask.lanes & ~bad)

    def _count(self, steps: int, position: int, mask: Mask) -> None:
        self._steps += steps
        if self._steps // LOOKED_UP_EVERY > (self._steps - steps) // LOOKED_UP_EVERY:
            bounds.look()
        if self._steps > STEPS_LIMIT:
            what = f"no end after {STEPS_LIMIT} instructions: an endless loop, or one that waits for other blocks"
            fault = StepLimit(what, mask.lane(0))
            fault.position = position
            raise fault
