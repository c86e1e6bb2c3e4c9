"""Instructions on mbarriers, and the fences that go with them."""

from __future__ import annotations

import numpy as np

from attnsim.ptx.faults import Fault
from attnsim.ptx.flow import Control, control, suspended
from attnsim.ptx.lanes import Mask
from attnsim.ptx.machine import Machine, Step, operation, unsupported
from attnsim.ptx.phases import Mbarriers
from attnsim.ptx.registers import Read
from attnsim.ptx.spaces import space_name
from attnsim.ptx.syntax import Immediate, Instruction, Symbol

_NONE, _ONE = Immediate("0"), Immediate("1")


@operation("mbarrier")
def compile_mbarrier(instruction: Instruction, machine: Machine) -> Step:
    """``mbarrier.init``, ``inval``, ``arrive``, ``arrive.expect_tx`` and ``expect_tx``.

    The last three also in another block of the cluster, by an address from ``mapa``; such arrivals return no state.
    """
    kind, operands = instruction.modifiers[0], instruction.operands
    if kind in ("arrive", "expect_tx"):
        return _arrive(instruction, machine)
    _require_own_memory(instruction)
    barriers, address = machine.unit(Mbarriers), machine.address(operands[0])
    if kind == "inval":
        return lambda mask: barriers.invalidate(address(mask), mask)
    if kind != "init":
        raise unsupported(instruction)
    count = machine.read(operands[1], "u32")
    return lambda mask: barriers.init(address(mask), mask.of(count()), mask)


def _arrive(instruction: Instruction, machine: Machine) -> Step:
    """``arrive state, [a] (, count)``, ``arrive.expect_tx state, [a], bytes`` and ``expect_tx [a], bytes``."""
    modifiers, arrives = instruction.modifiers, instruction.modifiers[0] == "arrive"
    if arrives and ("noComplete" in modifiers or "relaxed" in modifiers):
        raise unsupported(instruction)
    if "shared::cluster" not in modifiers and space_name(instruction) != "shared":
        raise unsupported(instruction)
    state, place, *rest = instruction.operands if arrives else (Symbol("_"), *instruction.operands)
    number = rest[0] if rest else _ONE
    once = _ONE if arrives else _NONE
    count, announced = (once, number) if "expect_tx" in modifiers else (number, _NONE)
    barriers, address = machine.unit(Mbarriers), machine.address(place)
    counts, expected = machine.read(count, "u32"), machine.read(announced, "u32")
    write = machine.registers.write_active(state, np.dtype(np.uint64))

    def step(mask: Mask) -> None:
        write(barriers.arrive(address(mask), mask.of(counts()), mask.of(expected()), mask), mask)

    return step


@control("mbarrier")
def compile_wait(instruction: Instruction, machine: Machine) -> Control | None:
    """``mbarrier.try_wait(.parity) p, [a], phase``: the lanes whose phase is not over are suspended until it is."""
    if "wait" not in instruction.modifiers[0]:
        return None
    _require_own_memory(instruction)
    if instruction.modifiers[0] != "try_wait" or instruction.guard or "relaxed" in instruction.modifiers:
        raise unsupported(instruction)
    parity = "parity" in instruction.modifiers
    target, place, phase = instruction.operands[:3]
    barriers, write, address = machine.unit(Mbarriers), machine.write(target, "pred"), machine.address(place)
    asked: Read = machine.read(phase, "u32" if parity else "u64")
    yes = np.ones(1, bool)
    missed: dict[Mask, tuple[list[int], int]] = {}

    def ready(mask: Mask) -> Mask:
        numbers, ends = missed.get(mask, ([], -1))
        if barriers.ends(numbers) == ends:  # asked before, and nothing has changed since
            return mask.none
        found, numbers = barriers.over(address(mask), mask.of(asked()), parity, mask)
        missed.clear()
        if not found.count:
            missed[mask] = numbers, barriers.ends(numbers)
        return found

    def fault(mask: Mask) -> Fault:
        return barriers.deadlock(int(address(mask)[0]), mask.lane(0))

    def learn(mask: Mask) -> None:
        barriers.learn(address(mask), mask)
        write(yes, mask)

    return suspended(ready, fault, learn)


def _require_own_memory(instruction: Instruction) -> None:
    if "shared::cluster" in instruction.modifiers or space_name(instruction) != "shared":
        raise unsupported(instruction)


@operation("fence", "membar")
def compile_fence(instruction: Instruction, machine: Machine) -> Step:
    """Fences; those towards the asynchronous proxy matter here, the others do not: every store is visible at once."""
    modifiers = instruction.modifiers
    barriers, shared = machine.unit(Mbarriers), machine.shared
    if "mbarrier_init" in modifiers:
        return barriers.show
    if "async" not in modifiers or "global" in modifiers:
        return lambda mask: None

    def pass_on(mask: Mask) -> None:
        barriers.show(mask)
        if shared.ordering:
            shared.ordering.fence(mask)

    return pass_on
