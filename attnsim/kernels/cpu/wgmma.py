"""``wgmma``: a warpgroup's asynchronous D = A B + D on tiles of 64 x n x 16, with A and B in shared memory or A not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnsim.kernels.cpu.faults import Fault, InactiveLane, NotUniform
from attnsim.kernels.cpu.flow import Control, control, suspended
from attnsim.kernels.cpu.lanes import WARPGROUP, Indices, Mask, Values
from attnsim.kernels.cpu.machine import Machine, Step, items, operation, unsupported
from attnsim.kernels.cpu.matrix_descriptors import DEPTH, matrices, piece_addresses
from attnsim.kernels.cpu.ptx import Immediate, Instruction, Operand, Vector
from attnsim.kernels.cpu.registers import DTYPES, Read, ReadRows
from attnsim.kernels.cpu.sixteen_bit import bf16_to_float, half_to_float
from attnsim.kernels.cpu.tensor_cores import Fragment, TensorCores, from_registers, require_warpgroups

Matrices = Callable[[Mask], Values]
"""An operand, float32 ``[warpgroups, rows, 16]``."""


@operation("wgmma")
def compile_wgmma(instruction: Instruction, machine: Machine) -> Step:
    """``wgmma.mma_async``, ``wgmma.commit_group`` and ``wgmma.wait_group``."""
    kind, cores = instruction.modifiers[0], machine.unit(TensorCores)
    if kind == "mma_async":
        return _multiply(instruction, machine)
    if kind == "commit_group":
        return cores.commit
    if kind == "wait_group":
        pending = machine.read(instruction.operands[0], "s64")
        return lambda mask: cores.wait(int(pending()[0]), mask)
    raise unsupported(instruction)


@control("wgmma")
def compile_wgmma_fence(instruction: Instruction, machine: Machine) -> Control | None:
    """``wgmma.fence``, where the four warps of a warpgroup also wait for one another."""
    if instruction.modifiers[0] != "fence":
        return None
    cores = machine.unit(TensorCores)

    def complete(mask: Mask) -> Mask:
        if len(mask.lanes) % WARPGROUP or machine.lanes.lanes_per_block % WARPGROUP:
            raise InactiveLane("wgmma needs blocks of whole warpgroups, 128 threads each", mask.lane(0))
        here = np.count_nonzero(mask.lanes.reshape(-1, WARPGROUP), axis=1) == WARPGROUP
        return mask.where(np.repeat(here, WARPGROUP))

    def fault(mask: Mask) -> Fault:
        return InactiveLane("the other warps of the warpgroup do not come to this wgmma.fence", mask.lane(0))

    return suspended(complete, fault, cores.fence)


def _multiply(instruction: Instruction, machine: Machine) -> Step:
    """``wgmma.mma_async.sync.aligned.m64nNk16.f32.T.T {d}, a, b, scale-d, sign a, sign b (, trans a), trans b``.

    a is a descriptor, or four registers and then has no flag for being transposed.
    """
    modifiers, (d, a, b, keep, *options) = instruction.modifiers, instruction.operands
    shape, kinds = modifiers[-4], modifiers[-3:]
    numbers = [int(option.text, 0) for option in options if isinstance(option, Immediate)]
    in_registers = isinstance(a, Vector)
    known = (
        kinds in (("f32", "f16", "f16"), ("f32", "bf16", "bf16")) and shape.endswith("k16") and "sp" not in modifiers
    )
    if not known or len(numbers) != len(options) or len(options) != (3 if in_registers else 4):
        raise unsupported(instruction)
    columns, cores = int(shape.removeprefix("m64n").removesuffix("k16")), machine.unit(TensorCores)
    if len(items(d)) != columns // 2:
        raise unsupported(instruction)
    kind, sign = kinds[-1], np.float32(numbers[0] * numbers[1])
    accumulator = cores.fragment(items(d))
    source = cores.fragment(items(a)) if in_registers else None
    left = _from_registers(a, kind, machine) if in_registers else _from_shared(a, 64, bool(numbers[2]), kind, machine)
    right = _from_shared(b, columns, bool(numbers[-1]), kind, machine)
    scale, before = machine.read(keep, "pred"), _accumulator(accumulator, machine)

    def step(mask: Mask) -> None:
        require_warpgroups(mask, "wgmma.mma_async")
        groups = mask.warpgroups
        start = before(mask, agreed(scale, mask, machine, "scale-d").astype(bool))
        product = left(mask) @ right(mask).swapaxes(1, 2)
        for fragment in (accumulator, source):
            if fragment:
                fragment.lend(mask, machine.reports)
                fragment.groups[groups] = cores.numbers(groups)
        accumulator.values[groups] = start + sign * product

    return step


def agreed(read: Read, mask: Mask, machine: Machine, what: str) -> Values:
    """A value that all threads of a warpgroup must share (else NotUniform), by active warpgroup."""
    given = read()
    if len(given) == 1:
        return np.repeat(given, len(mask.warpgroups))
    values = given.reshape(-1, WARPGROUP)[mask.warpgroups]
    differs = values != values[:, :1]
    if differs.any():
        group = int(mask.warpgroups[np.flatnonzero(differs.any(axis=1))[0]])
        raise NotUniform(f"the threads of the warpgroup have different values for {what}", group * WARPGROUP)
    return values[:, 0]


def _accumulator(fragment: Fragment, machine: Machine) -> Callable[[Mask, Values], Values]:
    """A closure that returns D before the product: what flies, what the registers hold, or zero where not kept."""
    read, columns = machine.registers.read_rows(fragment.registers, DTYPES["f32"]), 2 * len(fragment.registers)

    def before(mask: Mask, keep: Values) -> Values:
        groups = mask.warpgroups
        if not fragment.values.size:
            fragment.values = np.zeros((len(fragment.groups), 64, columns), np.float32)
        values = fragment.values[groups]
        values[~keep] = 0
        fresh = keep & np.array([not fragment.flying >> g & 1 for g in groups.tolist()])
        if fresh.any():
            values[fresh] = from_registers(_by_warpgroup(read, groups[fresh], machine))
        return values

    return before


def _from_shared(operand: Operand, rows: int, transposed: bool, kind: str, machine: Machine) -> Matrices:
    """A or B by its matrix descriptor."""
    descriptor, cores = machine.read(operand, "u64"), machine.unit(TensorCores)

    def found(mask: Mask) -> Values:
        groups, shared = mask.warpgroups, machine.shared
        described = agreed(descriptor, mask, machine, "a matrix descriptor")
        places = _places(described, groups, rows, transposed, machine)
        machine.counters.shared_bytes_loaded += 16 * places.size
        if shared.ordering:
            shared.ordering.read_by_wgmma(places.reshape(len(groups), -1), groups, cores.numbers(groups))
        return matrices(shared.by_piece(), places, rows, transposed, kind)

    return found


def _places(described: Values, groups: Indices, rows: int, transposed: bool, machine: Machine) -> Indices:
    """Pieces of shared memory that descriptors of warpgroups name, worked out once for each buffer of a batch."""
    known, key = machine.shared.described, (described.tobytes(), groups.tobytes(), rows, transposed)
    if key not in known:
        lanes: Indices = groups * WARPGROUP
        addresses = piece_addresses(described, rows, transposed, lanes)
        known[key] = machine.shared.pieces(addresses, machine.lanes.block_of[lanes], lanes, "wgmma operand")
    return known[key]


def _from_registers(operand: Operand, kind: str, machine: Machine) -> Matrices:
    """A in four registers of two elements, each a quarter of 16 x 16 as in mma."""
    read = machine.registers.read_rows(items(operand), DTYPES["b32"])

    def found(mask: Mask) -> Values:
        groups = mask.warpgroups
        bits = _by_warpgroup(read, groups, machine).view(np.uint16)
        # half of k, half of the warp's rows, group, warp, row, quad, pair
        split = _floats(bits, kind).reshape(2, 2, len(groups), 4, 8, 4, 2)
        return split.transpose(2, 3, 1, 4, 0, 5, 6).reshape(len(groups), 64, DEPTH)

    return found


def _by_warpgroup(read: ReadRows, groups: Indices, machine: Machine) -> Values:
    """Registers of some warpgroups, ``[registers, warpgroups, 128]``."""
    rows = read(machine.lanes.count)
    return np.broadcast_to(rows, (len(rows), machine.lanes.count)).reshape(len(rows), -1, WARPGROUP)[:, groups]


def _floats(bits: Values, kind: str) -> Values:
    return bf16_to_float(bits) if kind == "bf16" else half_to_float(bits)
