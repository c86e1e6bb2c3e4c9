"""``cp.async``: copies from global to shared memory that land only when they are waited for.

Instructions that move data: ld, st, mov, cvta.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import numpy as np

from attnsim.ptx.basic_blocks import Batchable, unless_ordered
from attnsim.ptx.bulk_copies import compile_bulk_copy, compile_bulk_store
from attnsim.ptx.flow import WINDOWS, space_name, space_of
from attnsim.ptx.lanes import Mask, Values
from attnsim.ptx.machine import Machine, Step, items, operation, unsupported, value_type
from attnsim.ptx.registers import DTYPES, UNSIGNED, row_type
from attnsim.ptx.syntax import Address, Immediate, Instruction, Operand, Register, Symbol, Vector, size_of


@operation("cp")
def compile_copy(instruction: Instruction, machine: Machine) -> Step:
    """``cp.async``: the copy, ``commit_group``, ``wait_group`` and ``wait_all``."""
    modifiers = instruction.modifiers
    if "bulk" in modifiers:
        stores = {"bulk_group", "commit_group", "wait_group"} & set(modifiers)
        return (compile_bulk_store if stores else compile_bulk_copy)(instruction, machine)
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
    size = instruction.operands[2]
    if not isinstance(size, Immediate) or space_name(instruction) != "shared":
        raise unsupported(instruction)
    return _Copy(instruction, machine, int(size.text, 0))


class _Copy(Batchable):
    """One cp.async. The size of its source is read in each lane."""

    def __init__(self, instruction: Instruction, machine: Machine, width: int) -> None:
        operands = instruction.operands[:-1] if "L2::cache_hint" in instruction.modifiers else instruction.operands
        self._target, self._source, self._valid = operands[0], operands[1], operands[3:4]
        self._width, self._machine = width, machine
        ignored = [isinstance(o, Register) and o.type == "pred" for o in self._valid]
        super().__init__((instruction.name, instruction.modifiers, width, *ignored), "copies", targets=0)
        self._step = self._of([self])

    def together(self, others: Sequence[Self]) -> Step:
        members = [self, *others]
        # One may be ordered by another that copies to the same place.
        return unless_ordered(self._of(members), members, self._machine)

    def _of(self, members: Sequence[Self]) -> Step:
        machine, width, count = self._machine, self._width, len(members)
        target = machine.address_rows([m._target for m in members])
        source = machine.address_rows([m._source for m in members])
        valid = _valid_bytes([o for m in members for o in m._valid], width, machine)

        def step(mask: Mask) -> None:
            begin, all_of_them = target(mask), mask.times(count) if count > 1 else mask
            if valid is None:
                rows = machine.memory.load(source(mask), width, all_of_them)
            else:
                rows = _load_valid(machine, source(mask), valid(mask), width, all_of_them)
            machine.shared.begin_copy(begin, rows, width, all_of_them, count)

        return step


def _valid_bytes(operands: Sequence[Operand], width: int, machine: Machine) -> Callable[[Mask], Values] | None:
    """Return a closure for the bytes that each lane reads, ``[active]``; None if every lane reads all of them.

    The instruction gives a source size, or a predicate that says to ignore the source (0 bytes).
    """
    if not operands:
        return None
    ignoring = isinstance(operands[0], Register) and operands[0].type == "pred"
    read = machine.registers.read_rows(operands, DTYPES["pred" if ignoring else "u32"])

    def valid(mask: Mask) -> Values:
        rows = mask.take(read()).reshape(-1)
        return np.where(rows, np.uint32(0), np.uint32(width)) if ignoring else rows

    return valid


def _load_valid(machine: Machine, addresses: Values, valid: Values, width: int, mask: Mask) -> Values:
    """Rows ``[active]``: `valid` bytes from global memory, the rest zero and not requested."""
    whole = valid >= width
    if whole.all():
        return machine.memory.load(addresses, width, mask)
    values = np.zeros(len(addresses), row_type(width))
    if whole.any():
        values[whole] = machine.memory.load(addresses[whole], width, mask.select(whole))
    part = ~whole & (valid > 0)
    for length in np.unique(valid[part]).tolist() if part.any() else ():
        chosen = valid == length
        loaded = machine.memory.load_bytes(addresses[chosen], length, mask.select(chosen))
        values.view(np.uint8).reshape(-1, width)[chosen, :length] = loaded
    return values


@operation("ld", "ldu")
def compile_load(instruction: Instruction, machine: Machine) -> Step:
    """``ld.space.type d, [a]``, also of vectors."""
    if space_name(instruction) == "param":
        return _load_parameter(instruction, machine)
    dtype = DTYPES[value_type(instruction)]
    space, address = space_of(instruction, machine), machine.address(instruction.operands[1])
    destinations = items(instruction.operands[0])
    writes = [machine.registers.write_active(d, dtype) for d in destinations]
    width, count = dtype.itemsize * len(writes), len(writes)
    if count == 1:
        (write,) = writes
        return lambda mask: write(space.load(address(mask), width, mask).view(dtype), mask)

    def step(mask: Mask) -> None:
        rows = space.load(address(mask), width, mask).view(dtype).reshape(-1, count)
        for write, column in zip(writes, np.ascontiguousarray(rows.T), strict=True):
            write(column, mask)

    return step


def _load_parameter(instruction: Instruction, machine: Machine) -> Step:
    dtype, source = DTYPES[value_type(instruction)], instruction.operands[1]
    if not isinstance(source, Address) or not isinstance(source.base, Symbol):
        raise unsupported(instruction)
    name, offset = source.base.name, source.offset
    writes = [machine.registers.write(d, dtype) for d in items(instruction.operands[0])]

    def step(mask: Mask) -> None:
        values = np.frombuffer(machine.parameters[name], dtype, len(writes), offset)
        for i, write in enumerate(writes):
            write(values[i : i + 1], mask)

    return step


@operation("st")
def compile_store(instruction: Instruction, machine: Machine) -> Step:
    """``st.space.type [a], b``, also of vectors."""
    bits = UNSIGNED[DTYPES[value_type(instruction)].itemsize]
    space, address = space_of(instruction, machine), machine.address(instruction.operands[0])
    reads = [machine.registers.read(s, bits) for s in items(instruction.operands[1])]
    width = bits.itemsize * len(reads)
    if len(reads) == 1:
        (read,) = reads
        return lambda mask: space.store(address(mask), mask.of(read()), width, mask)

    def step(mask: Mask) -> None:
        rows = np.stack([mask.of(read()) for read in reads], axis=1).view(row_type(width))
        space.store(address(mask), rows.reshape(-1), width, mask)

    return step


@operation("mov")
def compile_move(instruction: Instruction, machine: Machine) -> Step:
    """``mov``: a copy, or packing and unpacking of vectors."""
    target, source = instruction.operands
    ptx_type = value_type(instruction)
    dtype = DTYPES[ptx_type]
    if isinstance(target, Vector):
        part = UNSIGNED[dtype.itemsize // len(target.items)]
        whole, writes = machine.registers.read(source, dtype), [machine.registers.write(t, part) for t in target.items]

        def unpack(mask: Mask) -> None:
            columns = np.ascontiguousarray(whole()).view(part).reshape(-1, len(writes))
            for write, column in zip(writes, np.ascontiguousarray(columns.T), strict=True):
                write(column, mask)

        return unpack
    if isinstance(source, Vector):
        part = UNSIGNED[dtype.itemsize // len(source.items)]
        reads = [machine.registers.read(item, part) for item in source.items]
        write = machine.registers.write(target, dtype)

        def pack(mask: Mask) -> None:
            parts = np.broadcast_arrays(*(read() for read in reads))
            write(np.stack(parts, axis=1).view(dtype).reshape(-1), mask)

        return pack
    read, write = machine.registers.read(source, dtype), machine.registers.write(target, dtype)
    return lambda mask: write(read(), mask)


@operation("cvta")
def compile_address_conversion(instruction: Instruction, machine: Machine) -> Step:
    """``cvta``: to a generic address, or (``.to``) from one."""
    kind = value_type(instruction)
    if size_of(kind) != 8:
        raise unsupported(instruction)
    window = np.array([WINDOWS[space_name(instruction)]], np.uint64)
    read, write = machine.read(instruction.operands[1], kind), machine.write(instruction.operands[0], kind)
    if "to" in instruction.modifiers:
        return lambda mask: write(read() - window, mask)
    return lambda mask: write(read() + window, mask)


@operation("prefetch", "prefetchu", "discard", "applypriority", "nanosleep", "griddepcontrol", "pmevent")
def compile_nothing(instruction: Instruction, machine: Machine) -> Step:
    """Compile an instruction without effect: every store is visible at once, and nothing takes time."""
    return lambda mask: None
