"""Control instructions: branches, exits, barriers, trap; and ``setmaxnreg``, which moves registers between warpgroups.

PTX ISA 9.0, "setmaxnreg"; an SM has 65,536 registers (CUDA Programming Guide, "Compute Capabilities").
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnsim.ptx.barriers import Arrival, Finish, Groups
from attnsim.ptx.clusters import Clusters
from attnsim.ptx.faults import Deadlock, Fault, Trapped
from attnsim.ptx.flow import Control, Flow, Go, control, suspended
from attnsim.ptx.lanes import WARPGROUP, Indices, Mask
from attnsim.ptx.machine import Machine, Step, operation, unsupported
from attnsim.ptx.syntax import Immediate, Instruction
from attnsim.ptx.warps import require_warpgroups


def cluster_barrier(instruction: Instruction, machine: Machine) -> Control:
    """``barrier.cluster.arrive`` and ``wait``; every thread that has not exited does both in turn.

    Without ``.relaxed``, everything that a thread did before it arrived is visible to all that have waited.
    """
    if instruction.guard or "relaxed" in instruction.modifiers:
        raise unsupported(instruction)
    clusters = machine.unit(Clusters)
    if "arrive" in instruction.modifiers:

        def arrive(run: Flow, position: int, mask: Mask) -> Go:
            clusters.arrive(mask)
            return position + 1, mask

        return arrive
    if "wait" not in instruction.modifiers:
        raise unsupported(instruction)

    def fault(mask: Mask) -> Fault:
        return Deadlock(f"{clusters.missing(mask)}; no thread can go on, and no copy is under way", mask.lane(0))

    return suspended(clusters.over, fault, clusters.go_on)


REGISTERS_PER_SM = 65536
FEWEST, MOST, STEP = 24, 256, 8


class RegisterBudget:
    """Registers per thread that each warpgroup of a batch has requested; 0 before its first request."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._asked = np.zeros(0, np.int64)

    def start(self) -> None:
        """Reset: no warpgroup has made a request."""
        self._asked = np.zeros(-(-self._machine.lanes.warps // 4), np.int64)

    def ask(self, registers: int, mask: Mask) -> None:
        """Set the registers per thread of these warpgroups.

        Raises
        ------
        Deadlock
            When a block's warpgroups request more than an SM has: the last one would wait forever.
        """
        self._asked[mask.warpgroups] = registers
        total = self._asked.reshape(self._machine.lanes.blocks, -1).sum(axis=1) * WARPGROUP
        if int(total.max()) > REGISTERS_PER_SM:
            raise Deadlock(
                f"the block's warpgroups ask for {int(total.max())} registers, an SM has {REGISTERS_PER_SM}",
                mask.lane(0),
            )


@operation("setmaxnreg")
def compile_register_hand_over(instruction: Instruction, machine: Machine) -> Step:
    """``setmaxnreg.inc/dec.sync.aligned.u32 count``: no effect on values, but the counts must add up."""
    (count,) = instruction.operands
    if not isinstance(count, Immediate):
        raise unsupported(instruction)
    registers, budget = int(count.text, 0), machine.unit(RegisterBudget)

    def step(mask: Mask) -> None:
        require_warpgroups(mask, "setmaxnreg")
        if registers % STEP or not FEWEST <= registers <= MOST:
            raise Fault(f"setmaxnreg {registers}; allowed: multiples of {STEP} from {FEWEST} to {MOST}", mask.lane(0))
        budget.ask(registers, mask)

    return step


Split = Callable[[Mask], tuple[Mask, Mask | None]]
"""Splits a mask: lanes whose predicate holds (all without a predicate), and the other lanes, None if there are none."""


def _split(instruction: Instruction, machine: Machine) -> Split:
    predicate = machine.read(instruction.guard, "pred") if instruction.guard else None

    def split(mask: Mask) -> tuple[Mask, Mask | None]:
        taken = mask.where(predicate()) if predicate else mask
        if taken is mask:
            return mask, None
        return taken, mask.without(taken) if taken.count else mask

    return split


@control("bra")
def _branch(instruction: Instruction, machine: Machine) -> Control:
    (target,) = instruction.targets
    split = _split(instruction, machine)

    def go_on(run: Flow, position: int, mask: Mask) -> Go:
        taken, rest = split(mask)
        if rest is None:
            return target, mask
        if not taken.count:
            return position + 1, mask
        run.join([(target, taken), (position + 1, rest)])
        return None

    return go_on


@control("brx")
def _indexed_branch(instruction: Instruction, machine: Machine) -> Control:
    index, targets = machine.read(instruction.operands[0], "u32"), instruction.targets
    split = _split(instruction, machine)

    def go_on(run: Flow, position: int, mask: Mask) -> Go:
        taken, rest = split(mask)
        if rest is not None:
            run.join([(position + 1, rest)])
        chosen = index()
        groups = [(target, taken.where(chosen == i)) for i, target in enumerate(targets)]
        run.join([(target, part) for target, part in groups if part.count])
        return None

    return go_on


@control("ret", "exit")
def _exit(instruction: Instruction, machine: Machine) -> Control:
    split = _split(instruction, machine)

    def go_on(run: Flow, position: int, mask: Mask) -> Go:
        leaving, rest = split(mask)
        run.exit(leaving)
        return None if rest is None else (position + 1, rest)

    return go_on


def fall_off(run: Flow, position: int, mask: Mask) -> Go:
    """Reaching the end of the function: the lanes exit."""
    run.exit(mask)
    return None


@control("bar", "barrier")
def _barrier(instruction: Instruction, machine: Machine) -> Control | None:
    """``bar.sync a (, b)``, ``bar.arrive a, b``, ``bar.red.op d, a (, b), p``, and ``barrier`` for ``bar``."""
    if instruction.modifiers[:1] == ("warp",):
        return None
    if instruction.modifiers[:1] == ("cluster",):
        return cluster_barrier(instruction, machine)
    kind = next((m for m in ("sync", "arrive", "red") if m in instruction.modifiers), None)
    if kind is None or instruction.guard:
        raise unsupported(instruction)
    operands = instruction.operands
    finish, votes = None, None
    if kind == "red":
        finish, votes = _vote(instruction, machine), machine.read(operands[-1], "pred")
        operands = operands[1:-1]
    barrier, count = machine.read(operands[0], "u32"), machine.read(operands[1], "u32") if len(operands) > 1 else None

    def go_on(run: Flow, position: int, mask: Mask) -> Go:
        ballot = votes().copy() if votes else None
        released: Groups = []
        numbers = barrier()
        for number, part, _ in mask.apart(numbers if len(numbers) == 1 else mask.of(numbers)):
            threads = int(part.first(count())) if count else None
            arrival = Arrival(number, threads, position + 1, part, kind != "arrive", ballot, finish)
            released += run.barriers.arrive(arrival)
        if len(released) == 1:
            return released[0]
        run.join(released)
        return None

    return go_on


def _vote(instruction: Instruction, machine: Machine) -> Finish:
    """Return the closure that writes the result of ``bar.red``: ``popc``, ``and`` or ``or`` of the predicates."""
    reduction = next(m for m in instruction.modifiers if m in ("popc", "and", "or"))
    write = machine.write(instruction.operands[0], "u32" if reduction == "popc" else "pred")

    def finish(yes: Indices, voted: Indices, mask: Mask) -> None:
        result = {"popc": yes.astype(np.uint32), "and": yes == voted, "or": yes > 0}[reduction]
        write(result[machine.lanes.block_of], mask)

    return finish


@control("trap")
def _trap(instruction: Instruction, machine: Machine) -> Control:
    split = _split(instruction, machine)

    def go_on(run: Flow, position: int, mask: Mask) -> Go:
        stopped, _ = split(mask)
        if stopped.count:
            raise Trapped("the kernel executed trap", int(stopped.index[0]))
        return position + 1, mask

    return go_on
