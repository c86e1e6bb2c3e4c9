"""Instructions that move data: ld, st, mov, cvta."""

from __future__ import annotations

import numpy as np

from attnsim.ptx.lanes import Mask
from attnsim.ptx.machine import Machine, Step, items, operation, unsupported, value_type
from attnsim.ptx.registers import DTYPES, UNSIGNED, row_type
from attnsim.ptx.spaces import WINDOWS, space_name, space_of
from attnsim.ptx.syntax import Address, Instruction, Symbol, Vector, size_of


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
