"""``wmma``: matrix products on fragments that a warp loads and stores as a whole.

PTX leaves open which lane holds which element of a fragment (PTX ISA 9.0, "Warp-level matrix load instruction:
wmma.load"). Here, elements are spread over the lanes in memory order, one register of every lane at a time. If the
registers hold more than the matrix, as for f16, the elements repeat. An accumulator is laid out by rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from attnsim.ptx.counters import floats
from attnsim.ptx.flow import space_of
from attnsim.ptx.lanes import WARP, Mask, Values
from attnsim.ptx.machine import Machine, Step, items, operation, unsupported
from attnsim.ptx.registers import DTYPES, row_type
from attnsim.ptx.syntax import Instruction, Operand
from attnsim.ptx.warps import require_whole_warps

SHAPES = {
    **dict.fromkeys(("f16", "bf16", "s8", "u8"), ("m16n16k16", "m32n8k16", "m8n32k16")),
    "tf32": ("m16n16k8",),
    "f64": ("m8n8k4",),
}
"""Shapes by the format of A and B; single bits and half bytes are not supported."""
ELEMENT_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "f32": 4, "s8": 1, "u8": 1, "s32": 4, "f64": 8}
ACCUMULATORS = {
    "f16": ("f16", "f32"),
    "bf16": ("f32",),
    "tf32": ("f32",),
    "s8": ("s32",),
    "u8": ("s32",),
    "f64": ("f64",),
}


@operation("wmma")
def compile_wmma(instruction: Instruction, machine: Machine) -> Step:
    """``wmma.load.a/b/c``, ``wmma.store.d`` and ``wmma.mma``."""
    what = instruction.modifiers[0]
    if what == "mma":
        return _product(instruction, machine)
    matrix, layout, shape = instruction.modifiers[1], _layouts(instruction)[0], _shape(instruction)
    kind = instruction.modifiers[-1]
    formats = SHAPES if matrix in "ab" else {one: SHAPES[a] for a, some in ACCUMULATORS.items() for one in some}
    if what not in ("load", "store") or kind not in formats or shape not in _sizes(formats, kind, matrix):
        raise unsupported(instruction)
    return _access(instruction, machine, what, _extent(matrix, shape), layout, kind)


def _sizes(formats: dict[str, tuple[str, ...]], kind: str, matrix: str) -> set[tuple[int, int, int]]:
    named = formats[kind] if matrix in "ab" else {one for some in SHAPES.values() for one in some}
    return {_numbers(one) for one in named}


def _numbers(shape: str) -> tuple[int, int, int]:
    m, _, rest = shape[1:].partition("n")
    n, _, k = rest.partition("k")
    return int(m), int(n), int(k)


def _shape(instruction: Instruction) -> tuple[int, int, int]:
    return _numbers(next(one for one in instruction.modifiers if one[0] == "m" and "k" in one and "n" in one))


def _layouts(instruction: Instruction) -> list[str]:
    return [one for one in instruction.modifiers if one in ("row", "col")]


def _extent(matrix: str, shape: tuple[int, int, int]) -> tuple[int, int]:
    m, n, k = shape
    return {"a": (m, k), "b": (k, n)}.get(matrix, (m, n))


def _access(
    instruction: Instruction, machine: Machine, what: str, extent: tuple[int, int], layout: str, kind: str
) -> Step:
    """Return a load or store of a fragment, one register of every lane at a time."""
    load, size = what == "load", ELEMENT_BYTES[kind]
    place, registers = instruction.operands[int(load)], items(instruction.operands[int(not load)])
    space, address = space_of(instruction, machine), machine.address(place)
    in_order = instruction.modifiers[1] in "ab"  # an accumulator lies by rows, however it is stored
    rows, columns = extent
    count = max(1, 4 // size)
    by_rows = layout == "row"
    fixed = columns if by_rows else rows
    stride = machine.read(instruction.operands[2], "b32") if len(instruction.operands) > 2 else None
    lanes, parts = machine.lanes.lane_of.astype(np.int64), 1 if in_order or by_rows else count
    dtype = DTYPES[f"b{8 * max(4, size)}"]
    writes = [machine.registers.write_active(one, dtype) for one in registers] if load else []
    reads = [] if load else [machine.registers.read(one, dtype) for one in registers]

    def places(register: int, part: int, mask: Mask) -> Values:
        element = ((register * WARP + mask.of(lanes)) * count + part) % (rows * columns)
        if in_order:
            major, minor = np.divmod(element, fixed)
        else:
            row, column = np.divmod(element, columns)
            major, minor = (row, column) if by_rows else (column, row)
        leading = mask.of(stride()).astype(np.int64) if stride else np.int64(fixed)
        found: Values = address(mask) + (major * leading + minor) * size
        return found

    def step(mask: Mask) -> None:
        require_whole_warps(mask, f"wmma.{what}")
        width = count * size // parts
        for number, write in enumerate(writes):
            loaded = [space.load(places(number, part, mask), width, mask) for part in range(parts)]
            bits = np.stack(loaded, axis=1).reshape(-1) if parts > 1 else loaded[0]
            write(np.ascontiguousarray(bits).view(dtype), mask)
        for number, read in enumerate(reads):
            pieces = np.ascontiguousarray(mask.of(read())).view(row_type(width)).reshape(-1, parts)
            for part in range(parts):
                space.store(places(number, part, mask), np.ascontiguousarray(pieces[:, part]), width, mask)

    return step


def _product(instruction: Instruction, machine: Machine) -> Step:
    """``wmma.mma``: D = A B + C, with sums in float32, float64 or int32."""
    d, a, b, c = (items(one) for one in instruction.operands)
    kinds = [one for one in instruction.modifiers if one in ELEMENT_BYTES]
    result, *inputs, start = kinds if len(kinds) == 4 else (kinds[0], "f16", "f16", kinds[1])
    shape = _shape(instruction)
    m, n, _ = shape
    known = inputs[0] == inputs[1] and shape in map(_numbers, SHAPES.get(inputs[0], ()))
    if not known or {result, start} - set(ACCUMULATORS[inputs[0]]) or len(_layouts(instruction)) != 2:
        raise unsupported(instruction)
    left, right = (
        _matrix(registers, _extent(matrix, shape), kind, layout == "row", machine)
        for matrix, registers, kind, layout in zip("ab", (a, b), inputs, _layouts(instruction), strict=True)
    )
    before = _matrix(c, (m, n), start, True, machine)
    held = DTYPES["b64" if result == "f64" else "b32"]
    writes = [machine.registers.write_active(one, held) for one in d]
    stored = {"f16": np.float16, "f32": np.float32, "s32": np.int32, "f64": np.float64}[result]

    def step(mask: Mask) -> None:
        require_whole_warps(mask, "wmma.mma")
        sums = left(mask) @ right(mask) + before(mask)
        if "satfinite" in instruction.modifiers and result == "s32":
            sums = np.clip(sums, -(2**31), 2**31 - 1)
        bits = np.ascontiguousarray(sums.reshape(len(sums), -1).astype(stored)).view(held)
        by_register = bits.reshape(len(sums), len(writes), WARP).swapaxes(0, 1).reshape(len(writes), -1)
        for write, values in zip(writes, np.ascontiguousarray(by_register), strict=True):
            write(values, mask)

    return step


def _matrix(
    registers: Sequence[Operand], extent: tuple[int, int], kind: str, by_rows: bool, machine: Machine
) -> Callable[[Mask], Values]:
    """Return a closure for a fragment's matrix ``[active warps, rows, columns]`` as numbers."""
    rows, columns = extent
    reads = [machine.registers.read(one, DTYPES["b64" if kind == "f64" else "b32"]) for one in registers]

    def matrix(mask: Mask) -> Values:
        each = np.stack([mask.of(read()).reshape(-1, WARP) for read in reads], axis=1)
        numbers = _decoded(np.ascontiguousarray(each).reshape(len(each), -1), kind)[:, : rows * columns]
        return numbers.reshape(-1, rows, columns) if by_rows else numbers.reshape(-1, columns, rows).swapaxes(1, 2)

    return matrix


def _decoded(bits: Values, kind: str) -> Values:
    """Decode registers to numbers; tensor cores ignore the low 13 bits of a tf32 operand."""
    if kind in ("f16", "bf16"):
        found: Values = floats(kind)[bits.view(np.uint16)]
        return found
    if kind == "tf32":
        return (bits & np.uint32(0xFFFF_E000)).view(np.float32)
    if kind in ("s8", "u8"):
        return bits.view(np.int8 if kind == "s8" else np.uint8).astype(np.int64)
    if kind == "s32":
        return bits.view(np.int32).astype(np.int64)
    return bits.view(np.float32 if kind == "f32" else np.float64)
