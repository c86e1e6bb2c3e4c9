"""Tensor-core instructions: ldmatrix, stmatrix, movmatrix and mma, with the fragment layouts of the PTX ISA.

Everything rests on one fact (PTX ISA 9.0, "Matrix Fragments for mma.m16n8k16" and "ldmatrix"): one register of 32
lanes, with two 16-bit elements per lane, is an 8 x 8 matrix by rows. Lane 4 r + c holds row r, columns 2 c and 2 c + 1.
Hence:

- A is 2 x 2 such matrices, by columns.
- B is two of them, with rows and columns swapped.
- C and D are two 8 x 8 matrices of floats, with two registers each.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Self

import numpy as np

from attnsim.ptx import compiled_matrices
from attnsim.ptx.basic_blocks import Batchable, in_turn, unless_ordered
from attnsim.ptx.counters import floats
from attnsim.ptx.faults import UnsupportedInstruction
from attnsim.ptx.flow import space_name
from attnsim.ptx.lanes import WARP, Mask, Values
from attnsim.ptx.machine import Machine, Step, items, operation, unsupported
from attnsim.ptx.registers import DTYPES, Registers, row_type
from attnsim.ptx.syntax import Instruction, Operand, register_names
from attnsim.ptx.warps import require_whole_warps

ROWS = 8
"""Rows and columns of the matrices that ldmatrix moves; a row is 16 bytes."""


@operation("ldmatrix")
def compile_load_matrix(instruction: Instruction, machine: Machine) -> Step:
    """``ldmatrix.sync.aligned.m8n8.x1/x2/x4(.trans).shared.b16``."""
    _require_8x8(instruction)
    return _LoadMatrix(instruction, machine)


class _LoadMatrix(Batchable):
    """One ldmatrix."""

    def __init__(self, instruction: Instruction, machine: Machine) -> None:
        self._targets, self._place, self._machine = items(instruction.operands[0]), instruction.operands[1], machine
        self._transposed = "trans" in instruction.modifiers
        super().__init__((instruction.name, instruction.modifiers, len(self._targets)), "shared loads")
        self._step = self._of([self])

    def together(self, others: Sequence[Self]) -> Step:
        members = [self, *others]
        return unless_ordered(self._of(members), members, self._machine)

    def _of(self, members: Sequence[Self]) -> Step:
        machine, transposed, count, times = self._machine, self._transposed, len(self._targets), len(members)
        registers, fast = machine.registers, compiled_matrices
        targets = registers.rows([t for m in members for t in m._targets], DTYPES["b32"])
        address = machine.address_rows([m._place for m in members])
        if not targets:
            raise UnsupportedInstruction("ldmatrix to registers that are not of 32 bits")

        def step(mask: Mask) -> None:
            require_whole_warps(mask, "ldmatrix")
            rows = _row_lanes(count, mask, machine)
            places = machine.shared.read(address(rows), 16, rows.times(times) if times > 1 else rows)
            bits, words = registers.claim(targets, mask), machine.shared.by_piece().view(np.uint32)
            fast.load_matrices(words, places, count, transposed, mask.warp_index, targets.rows, bits)

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
    """Return the lanes that give row addresses: lane 8 i + r that of row r of matrix i."""
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
    """Return a register's values by warp, ``[active warps, 32]``, contiguous."""
    if values.shape[0] == 1:
        return np.full((mask.warp_count, WARP), values[0])
    values = values.reshape(-1, WARP)
    return values if mask.full else values[mask.warp_index]


def _to_lanes(values: Values, mask: Mask) -> Values:
    """Scatter values ``[..., active lanes]`` to all lanes, ``[..., lanes]``."""
    if mask.full:
        return values
    spread = np.empty((*values.shape[:-1], len(mask.lanes)), values.dtype)
    spread[..., mask.index] = values
    return spread


@operation("mma")
def compile_mma(instruction: Instruction, machine: Machine) -> Step:
    """``mma.sync.aligned.m16n8k8/k16``: D = A B + C.

    f16 and bf16 with k 8 or 16, tf32 with k 4 or 8; C and D are f32, with f16 also f16. Products are exact, sums are in
    float32; a GPU sums in another order.
    """
    shape = next((m for m in instruction.modifiers if m.startswith("m16n8k")), None)
    result_type, a_type, b_type, c_type = instruction.modifiers[-4:]
    halves_ok = shape in ("m16n8k8", "m16n8k16") and a_type in ("f16", "bf16")
    tf32_ok = shape in ("m16n8k4", "m16n8k8") and a_type == "tf32"
    floats_ok = result_type == c_type and (c_type == "f32" or (c_type == "f16" and a_type == "f16"))
    if not (halves_ok or tf32_ok) or a_type != b_type or not floats_ok or "row" not in instruction.modifiers:
        raise unsupported(instruction)
    return _Product(instruction, machine)


class _Product(Batchable):
    """One mma."""

    def __init__(self, instruction: Instruction, machine: Machine) -> None:
        self._machine, (*_, self._result, self._kind, _, _) = machine, instruction.modifiers
        self._of_halves = self._result == "f32" and self._kind != "tf32"
        super().__init__((instruction.name, instruction.modifiers), in_order=self._of_halves)
        self.d, self.a, self.b, self.c = (items(o) for o in instruction.operands)
        self._step = self.together([])

    def together(self, others: Sequence[Self]) -> Step:
        members = (self, *others)
        if not self._of_halves:
            return _by_arrays(members, self._result, self._kind, self._machine.registers)
        values, registers = floats(self._kind), self._machine.registers
        return in_turn([_of_panel(one, values, registers) for one in self._panels(members)])

    def _panels(self, members: Sequence[Self]) -> list[list[list[list[Self]]]]:
        """Arrange mma instructions in chains, ``[panels][rows][columns][length]``.

        Chains in a row share A, chains in a column share B.

        An mma extends a chain if it accumulates on a result that no other instruction reads.
        """
        panels: list[list[list[list[Self]]]] = []
        chains: dict[tuple[Operand, ...], list[Self]] = {}
        read, written = set[str](), set[str]()

        def end() -> None:
            rows: dict[Hashable, list[list[Self]]] = {}
            for chain in chains.values():
                rows.setdefault(tuple(one.a for one in chain), []).append(chain)
            by_operands: dict[Hashable, list[list[list[Self]]]] = {}
            for row in rows.values():
                by_operands.setdefault(tuple(tuple(one.b for one in chain) for chain in row), []).append(row)
            panels.extend(by_operands.values())
            for book in (chains, read, written):
                book.clear()

        for one in members:
            sums, needs, makes = register_names(one.c), register_names((*one.a, *one.b)), register_names(one.d)
            follows = one.c in chains and (one.c == one.d or self._machine.mentions(one.c) == 2 * len(one.c))
            others = (read | written) - sums if follows else read | written
            if (needs if follows else needs | sums) & written or makes & others:
                end()
                follows = False
            read |= needs | sums
            written |= makes
            chains[one.d] = [*chains.pop(one.c), one] if follows else [one]
        end()
        return panels


def _of_panel(panel: Sequence[Sequence[Sequence[_Product]]], values: Values, registers: Registers) -> Step:
    """Return a step for chains of mma on 16-bit floats with float32 sums: all rows with all columns."""
    shape, first = (len(panel), len(panel[0])), panel[0]
    a = registers.rows([r for row in panel for one in row[0] for r in one.a], DTYPES["b32"])
    b = registers.rows([r for link in zip(*first, strict=True) for one in link for r in one.b], DTYPES["b32"])
    c = registers.rows([r for row in panel for chain in row for r in chain[0].c], DTYPES["f32"])
    d = registers.rows([r for row in panel for chain in row for r in chain[-1].d], DTYPES["f32"])
    if not (a and b and c and d):
        raise UnsupportedInstruction("mma on registers that are not of 32 bits")
    length, tiles, fast = len(first[0]), -(-shape[1] // 2), compiled_matrices
    left, right = a.rows.reshape(shape[0], length, -1), b.rows.reshape(length, shape[1], -1)
    before, after = c.rows.reshape(*shape, 4), d.rows.reshape(*shape, 4)
    room = [np.zeros(size, np.float32) for size in (256, tiles * 256, (*shape[:1], tiles, 256))]
    read = a.joined(b).joined(c)

    def step(mask: Mask) -> None:
        require_whole_warps(mask, "mma")
        registers.spread(read)
        bits = registers.claim(d, mask)
        fast.products(bits, registers.files["<f4"], left, right, before, after, mask.warp_index, values, *room)

    return step


def _by_arrays(members: Sequence[_Product], result: str, kind: str, registers: Registers) -> Step:
    """Return a step for all other mma, as one NumPy product of all their matrices."""
    left, right = (
        _matrices([m.a for m in members], 2, kind, registers),
        _matrices([m.b for m in members], 1, kind, registers),
    )
    single, lanes_in = result == "f32", _lanes_of_f32 if result == "f32" else _lanes_of_f16
    dtype, held = DTYPES[result], DTYPES["f32" if single else "b32"]
    read = registers.read_rows([o for m in members for o in m.c], held)
    write = registers.write_active_rows([o for m in members for o in m.d], held)

    def step(mask: Mask) -> None:
        require_whole_warps(mask, "mma")
        products = left(mask) @ right(mask).swapaxes(2, 3)
        kept = mask.take(read()).copy().view(dtype)
        write((kept + lanes_in(products)).astype(dtype, copy=False).view(held), mask)

    return step


def _matrices(
    operands: Sequence[tuple[Operand, ...]], blocks: int, kind: str, registers: Registers
) -> Callable[[Mask], Values]:
    """Return a closure for the rows of A, or the columns of B, as float32 ``[operands, active warps, 8 blocks, k]``.

    Each register is an 8 x 8 matrix (tf32: 8 x 4); they follow one another down the blocks first, then along k.
    """
    names = [register for one in operands for register in one]
    read = registers.read_rows(names, DTYPES["b32"])
    steps, width = len(operands[0]) // blocks, WARP // ROWS if kind == "tf32" else ROWS

    def matrices(mask: Mask) -> Values:
        decoded = _decode(np.ascontiguousarray(mask.take(read())), kind)
        # operand, along k, down the blocks, warp, row, column
        split = decoded.reshape(len(operands), steps, blocks, -1, ROWS, width).transpose(0, 3, 2, 4, 1, 5)
        return split.reshape(len(operands), -1, blocks * ROWS, steps * width)

    return matrices


def _decode(bits: Values, kind: str) -> Values:
    """Decode registers to float32; tensor cores ignore the low 13 bits of a tf32 operand."""
    if kind == "tf32":
        return (bits & np.uint32(0xFFFF_E000)).view(np.float32)
    found: Values = floats(kind)[bits.view(np.uint16)]
    return found


def _lanes_of_f32(products: Values) -> Values:
    """Arrange C as registers ``[products * 4, active lanes]``: two for each eight rows."""
    count, warps = products.shape[:2]
    return products.reshape(count, warps, 2, WARP, 2).transpose(0, 2, 4, 1, 3).reshape(count * 4, -1)


def _lanes_of_f16(products: Values) -> Values:
    """Arrange C as registers of pairs ``[products * 2, 2 * active lanes]``: one for each eight rows."""
    count, warps = products.shape[:2]
    return products.reshape(count, warps, 2, 2 * WARP).transpose(0, 2, 1, 3).reshape(count * 2, -1)
