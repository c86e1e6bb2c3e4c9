"""Tensor-core instructions: ldmatrix, stmatrix, movmatrix and mma, with the fragment layouts of the PTX ISA.

Everything rests on one fact (PTX ISA 9.0, "Matrix Fragments for mma.m16n8k16" and "ldmatrix"): 32 lanes, two 16-bit
elements in a register each, are an 8 x 8 matrix by rows, since lane 4 r + c holds row r, columns 2 c and 2 c + 1. So
one register is one 8 x 8 matrix, A is 2 x 2 of them by columns, B two with rows and columns swapped, and C and D are
two of 8 x 8 floats with two registers each.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnsim.kernels.cpu.lanes import WARP, Mask, Values
from attnsim.kernels.cpu.machine import Machine, Step, items, operation, unsupported
from attnsim.kernels.cpu.ptx import Instruction, Operand
from attnsim.kernels.cpu.registers import DTYPES, row_type
from attnsim.kernels.cpu.sixteen_bit import bf16_to_float
from attnsim.kernels.cpu.spaces import space_name
from attnsim.kernels.cpu.warps import require_whole_warps

ROWS = 8
"""Rows and columns of the matrices that ldmatrix moves; a row is 16 bytes."""


@operation("ldmatrix")
def compile_load_matrix(instruction: Instruction, machine: Machine) -> Step:
    """``ldmatrix.sync.aligned.m8n8.x1/x2/x4(.trans).shared.b16``."""
    _require_8x8(instruction)
    targets = items(instruction.operands[0])
    writes = [machine.write(t, "b32") for t in targets]
    address, transposed = machine.address(instruction.operands[1]), "trans" in instruction.modifiers
    count = len(writes)

    def step(mask: Mask) -> None:
        require_whole_warps(mask, "ldmatrix")
        rows = _row_lanes(count, mask, machine)
        matrices = machine.shared.load(address(rows), 16, rows).view(np.uint16).reshape(-1, count, ROWS, ROWS)
        if transposed:
            matrices = matrices.swapaxes(2, 3)
        registers = np.ascontiguousarray(matrices.swapaxes(0, 1)).view(np.uint32).reshape(count, -1)
        for write, values in zip(writes, registers, strict=True):
            write(_to_lanes(values, mask), mask)

    return step


@operation("stmatrix")
def compile_store_matrix(instruction: Instruction, machine: Machine) -> Step:
    """``stmatrix.sync.aligned.m8n8.x1/x2/x4(.trans).shared.b16``: the reverse of ldmatrix."""
    _require_8x8(instruction)
    reads = [machine.read(s, "b32") for s in items(instruction.operands[1])]
    address, transposed = machine.address(instruction.operands[0]), "trans" in instruction.modifiers
    count = len(reads)

    def step(mask: Mask) -> None:
        require_whole_warps(mask, "stmatrix")
        rows = _row_lanes(count, mask, machine)
        registers = np.stack([_by_warp(read(), mask) for read in reads], axis=1)
        matrices = registers.view(np.uint16).reshape(-1, count, ROWS, ROWS)
        if transposed:
            matrices = matrices.swapaxes(2, 3)
        values = np.ascontiguousarray(matrices).view(row_type(16)).reshape(-1)
        machine.shared.store(address(rows), values, 16, rows)

    return step


def _row_lanes(count: int, mask: Mask, machine: Machine) -> Mask:
    """The lanes that give the addresses of rows: lane 8 i + r that of row r of matrix i."""
    return mask if count == WARP // ROWS else mask.where(machine.lanes.lane_of < ROWS * count)


def _require_8x8(instruction: Instruction) -> None:
    if "m8n8" not in instruction.modifiers or "b16" not in instruction.modifiers or space_name(instruction) != "shared":
        raise unsupported(instruction)


@operation("movmatrix")
def compile_transpose(instruction: Instruction, machine: Machine) -> Step:
    """``movmatrix.sync.aligned.m8n8.trans.b16 d, a``."""
    target, source = instruction.operands
    read, write = machine.read(source, "b32"), machine.write(target, "b32")

    def step(mask: Mask) -> None:
        require_whole_warps(mask, "movmatrix")
        matrices = _by_warp(read(), mask).view(np.uint16).reshape(-1, ROWS, ROWS).swapaxes(1, 2)
        write(_to_lanes(np.ascontiguousarray(matrices).view(np.uint32).reshape(-1), mask), mask)

    return step


def _by_warp(values: Values, mask: Mask) -> Values:
    """A register ``[active warps, 32]``, contiguous."""
    if values.shape[0] == 1:
        return np.full((mask.warp_count, WARP), values[0])
    values = values.reshape(-1, WARP)
    return values if mask.full else values[mask.warp_index]


def _to_lanes(values: Values, mask: Mask) -> Values:
    """Values of the active warps at their lanes."""
    if mask.full:
        return values
    spread = np.empty(len(mask.lanes), values.dtype)
    spread[mask.index] = values
    return spread


@operation("mma")
def compile_mma(instruction: Instruction, machine: Machine) -> Step:
    """``mma.sync.aligned.m16n8k8/k16``: D = A B + C.

    f16 and bf16 with k 8 or 16, tf32 with k 4 or 8; C and D in f32, or for f16 in f16. Products are exact and sums
    are made in float32; the order of summation is not a GPU's.
    """
    shape = next((m for m in instruction.modifiers if m.startswith("m16n8k")), None)
    result_type, a_type, b_type, c_type = instruction.modifiers[-4:]
    halves_ok = shape in ("m16n8k8", "m16n8k16") and a_type in ("f16", "bf16")
    tf32_ok = shape in ("m16n8k4", "m16n8k8") and a_type == "tf32"
    floats_ok = result_type == c_type and (c_type == "f32" or (c_type == "f16" and a_type == "f16"))
    if not (halves_ok or tf32_ok) or a_type != b_type or not floats_ok or "row" not in instruction.modifiers:
        raise unsupported(instruction)
    d, a, b, c = (items(o) for o in instruction.operands)
    left, right = _matrices(a, 2, a_type, machine), _matrices(b, 1, b_type, machine)
    accumulate = _accumulate(d, c, c_type, machine)

    def step(mask: Mask) -> None:
        require_whole_warps(mask, "mma")
        accumulate(left(mask) @ right(mask).swapaxes(1, 2), mask)

    return step


def _matrices(operands: tuple[Operand, ...], blocks: int, kind: str, machine: Machine) -> Callable[[Mask], Values]:
    """A closure that returns the rows of A, or the columns of B, as float32 ``[active warps, 8 blocks, k]``.

    Each register is an 8 x 8 matrix (tf32: 8 x 4); they follow one another down the blocks first, then along k.
    A matrix is kept until its registers change: in a product of tiles each takes part in several instructions.
    """
    reads = [machine.read(o, "b32") for o in operands]
    key = (kind, *(str(o) for o in operands))
    steps, width = len(operands) // blocks, WARP // ROWS if kind == "tf32" else ROWS

    def matrices(mask: Mask) -> Values:
        bits = [read() for read in reads]
        known = machine.matrices.get(key)
        if known and known[0] is mask and all(new is old for new, old in zip(bits, known[1], strict=True)):
            return known[2]
        values: Values = np.empty((mask.warp_count, blocks, ROWS, steps, width), np.float32)
        for i, register in enumerate(bits):
            part = _by_warp(register, mask).reshape(-1, ROWS * width // (1 if kind == "tf32" else 2))
            values[:, i % blocks, :, i // blocks] = _decode(part, kind).reshape(-1, ROWS, width)
        result = values.reshape(-1, blocks * ROWS, steps * width)
        machine.matrices[key] = (mask, bits, result)
        return result

    return matrices


def _decode(bits: Values, kind: str) -> Values:
    """Registers as float32; tensor cores ignore the low 13 bits of a tf32 operand."""
    if kind == "f16":
        return bits.view(np.float16)
    return bf16_to_float(bits.view(np.uint16)) if kind == "bf16" else (bits & np.uint32(0xFFFF_E000)).view(np.float32)


def _accumulate(
    d: tuple[Operand, ...], c: tuple[Operand, ...], kind: str, machine: Machine
) -> Callable[[Values, Mask], None]:
    """A closure that adds products ``[active warps, 16, 8]`` to C and writes D.

    For each eight rows they take two registers in f32, one register of pairs in f16.
    """
    reads, writes = [machine.read(o, "b32") for o in c], [machine.write(o, "b32") for o in d]
    dtype, wide = DTYPES[kind], kind == "f32"

    def accumulate(products: Values, mask: Mask) -> None:
        if wide:
            parts = products.reshape(-1, 2, WARP, 2).transpose(1, 3, 0, 2).reshape(len(reads), -1, WARP)
        else:
            parts = products.reshape(-1, 2, 2 * WARP).swapaxes(0, 1)
        totals = [_by_warp(read(), mask).view(dtype) + part for read, part in zip(reads, parts, strict=True)]
        for write, total in zip(writes, totals, strict=True):
            write(_to_lanes(total.astype(dtype, copy=False).view(np.uint32).reshape(-1), mask), mask)

    return accumulate
