"""``wgmma``: a warpgroup's asynchronous D = A B + D on tiles of 64 x n x 16, with A and B in shared memory or A not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnsim.kernels.cpu.faults import Fault, InactiveLane, NotUniform
from attnsim.kernels.cpu.flow import Control, control, suspended
from attnsim.kernels.cpu.lanes import WARP, WARPGROUP, Indices, Mask, Values
from attnsim.kernels.cpu.loops import compiled_matrices
from attnsim.kernels.cpu.machine import Machine, Step, items, operation, unsupported
from attnsim.kernels.cpu.matrix_descriptors import DEPTH, matrices, piece_addresses
from attnsim.kernels.cpu.ptx import Immediate, Instruction, Operand, Vector
from attnsim.kernels.cpu.registers import Read
from attnsim.kernels.cpu.tensor_cores import Fragment, TensorCores, require_warpgroups

Matrices = Callable[[Mask, Indices], Values]
"""An operand, float32 ``[warpgroups, rows, 16]``, of lanes whose warpgroups' wgmma groups have such numbers."""


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
    flags = [int(option.text, 0) for option in options if isinstance(option, Immediate)]
    in_registers = isinstance(a, Vector)
    known = (
        kinds in (("f32", "f16", "f16"), ("f32", "bf16", "bf16")) and shape.endswith("k16") and "sp" not in modifiers
    )
    if not known or len(flags) != len(options) or len(options) != (3 if in_registers else 4):
        raise unsupported(instruction)
    columns, cores = int(shape.removeprefix("m64n").removesuffix("k16")), machine.unit(TensorCores)
    if len(items(d)) != columns // 2:
        raise unsupported(instruction)
    kind, sign = kinds[-1], np.float32(flags[0] * flags[1])
    accumulator = cores.fragment(items(d))
    source = cores.fragment(items(a)) if in_registers else None
    left = _from_registers(source, kind, machine) if source else _from_shared(a, 64, bool(flags[2]), kind, machine)
    right = _from_shared(b, columns, bool(flags[-1]), kind, machine)
    scale, registers, fast = machine.read(keep, "pred"), machine.registers, compiled_matrices()

    def step(mask: Mask) -> None:
        require_warpgroups(mask, "wgmma.mma_async")
        groups = mask.warpgroups
        numbers = cores.numbers(groups)
        kept = agreed(scale, mask, machine, "scale-d")
        product = left(mask, numbers) @ right(mask, numbers).swapaxes(1, 2)
        if not accumulator.values.size:
            accumulator.values = np.zeros((len(accumulator.groups), 64, columns), np.float32)
        flying = np.array([accumulator.flying >> g & 1 for g in groups.tolist()], bool)
        registers.spread(accumulator.rows)
        file, rows = registers.files["<f4"], accumulator.rows.rows
        fast.accumulate(accumulator.values, groups, kept, flying, file, rows, sign, product)
        for fragment in (accumulator, source):
            if fragment:
                fragment.lend(mask, machine.reports)
                fragment.groups[groups] = numbers

    return step


def agreed(read: Read, mask: Mask, machine: Machine, what: str) -> Values:
    """A value that all threads of a warpgroup must share (else NotUniform), by active warpgroup."""
    given, groups = read(), mask.warpgroups
    if len(given) == 1:
        return np.repeat(given, len(groups))
    found = np.empty(len(groups), given.dtype)
    group = compiled_matrices().agreed(given, groups, found)
    if group >= 0:
        raise NotUniform(f"the threads of the warpgroup have different values for {what}", int(group) * WARPGROUP)
    return found


def _from_shared(operand: Operand, rows: int, transposed: bool, kind: str, machine: Machine) -> Matrices:
    """A or B by its matrix descriptor."""
    descriptor = machine.read(operand, "u64")

    def found(mask: Mask, numbers: Indices) -> Values:
        groups, shared = mask.warpgroups, machine.shared
        described = agreed(descriptor, mask, machine, "a matrix descriptor")
        places = _places(described, groups, rows, transposed, machine)
        machine.counters.shared_bytes_loaded += 16 * places.size
        if shared.ordering:
            shared.ordering.read_by_wgmma(places.reshape(len(groups), -1), groups, numbers)
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


def _from_registers(source: Fragment, kind: str, machine: Machine) -> Matrices:
    """A in four registers of two elements, each a quarter of 16 x 16 as in mma."""
    registers, rows, halves = machine.registers, source.rows, np.empty((2, WARP), np.float32)

    def found(mask: Mask, _numbers: Indices) -> Values:
        registers.spread(rows)
        result = np.empty((len(mask.warpgroups), 64, DEPTH), np.float32)
        bits = registers.files["<u4"]
        compiled_matrices().group_rows(bits, rows.rows, mask.warpgroups, kind == "bf16", halves, result)
        return result

    return found
