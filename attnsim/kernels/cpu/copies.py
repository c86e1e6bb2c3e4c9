"""``cp.async``: copies from global to shared memory that land only when they are waited for."""

from __future__ import annotations

import numpy as np

from attnsim.kernels.cpu.bulk_copies import compile_bulk_copy
from attnsim.kernels.cpu.lanes import Mask, Values
from attnsim.kernels.cpu.machine import Machine, Step, operation, unsupported
from attnsim.kernels.cpu.ptx import Immediate, Instruction, Operand, Register
from attnsim.kernels.cpu.registers import Read, row_type
from attnsim.kernels.cpu.spaces import space_name


@operation("cp")
def compile_copy(instruction: Instruction, machine: Machine) -> Step:
    """``cp.async``: the copy, ``commit_group``, ``wait_group`` and ``wait_all``."""
    modifiers = instruction.modifiers
    if "bulk" in modifiers:
        return compile_bulk_copy(instruction, machine)
    if modifiers[0] != "async" or "mbarrier" in modifiers or "reduce" in modifiers:
        raise unsupported(instruction)
    if "commit_group" in modifiers:
        return machine.shared.commit_copies
    if "wait_group" in modifiers:
        (count,) = instruction.operands
        pending = machine.read(count, "s64")
        return lambda mask: machine.shared.wait_copies(int(pending()[0]), mask)
    if "wait_all" in modifiers:
        return lambda mask: machine.shared.wait_copies(-1, mask)
    return _begin_copy(instruction, machine)


def _begin_copy(instruction: Instruction, machine: Machine) -> Step:
    operands = instruction.operands[:-1] if "L2::cache_hint" in instruction.modifiers else instruction.operands
    target, source = machine.address(operands[0]), machine.address(operands[1])
    size = operands[2]
    if not isinstance(size, Immediate) or space_name(instruction) != "shared":
        raise unsupported(instruction)
    width = int(size.text, 0)
    valid = _valid_bytes(operands[3], width, machine) if len(operands) > 3 else None

    def step(mask: Mask) -> None:
        begin = target(mask)
        if valid is None:
            rows = machine.memory.load(source(mask), width, mask)
        else:
            rows = _load_valid(machine, source(mask), mask.of(valid()), width, mask)
        machine.shared.begin_copy(begin, rows, width, mask)

    return step


def _valid_bytes(operand: Operand, width: int, machine: Machine) -> Read:
    """How many bytes each lane reads: the source size, or none where the predicate says to ignore the source."""
    if isinstance(operand, Register) and operand.type == "pred":
        ignore = machine.read(operand, "pred")
        return lambda: np.where(ignore(), np.uint32(0), np.uint32(width))
    return machine.read(operand, "u32")


def _load_valid(machine: Machine, addresses: Values, valid: Values, width: int, mask: Mask) -> Values:
    """Rows ``[active]``: `valid` bytes from global memory, the rest zero and not requested."""
    whole = valid >= width
    if whole.all():
        return machine.memory.load(addresses, width, mask)
    values = np.zeros(len(addresses), row_type(width))
    if whole.any():
        values[whole] = machine.memory.load(addresses[whole], width, mask.select(whole))
    for length in np.unique(valid[~whole & (valid > 0)]).tolist():
        chosen = valid == length
        loaded = machine.memory.load_bytes(addresses[chosen], length, mask.select(chosen))
        values.view(np.uint8).reshape(-1, width)[chosen, :length] = loaded
    return values
