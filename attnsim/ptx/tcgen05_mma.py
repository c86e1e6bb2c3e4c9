"""``tcgen05.mma``: one thread's D = A B + D, with D in tensor memory, B in shared memory and A in either.

PTX ISA 9.0, "Instruction descriptor" (``.kind::f16``) and "Data path layout organization": with M = 128 row i of D is
lane i, column j a column of tensor memory; with M = 64 rows lie in sixteen lanes of each quarter (layout F). A in
tensor memory has two elements in a word. Sparse, negated and packed forms, ``.ws`` and sums in fp16 are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attnsim.ptx.faults import MisusedTensorMemory, UnsupportedInstruction
from attnsim.ptx.formats import floats
from attnsim.ptx.lanes import WARP, Indices, Mask, Values
from attnsim.ptx.machine import Machine, Step, unsupported
from attnsim.ptx.matrix_descriptors import DEPTH, TCGEN05, matrices, piece_addresses
from attnsim.ptx.syntax import Address, Instruction, Operand
from attnsim.ptx.tensor_memory import LANES, TensorMemory

_FORMATS = {0: "f16", 1: "bf16"}


@dataclass(frozen=True, slots=True)
class Descriptor:
    """An instruction descriptor of ``.kind::f16``.

    Parameters
    ----------
    rows, columns : int
        M and N.
    kind : str
        Of A and B.
    left_transposed, right_transposed : bool
        Whether M, or N, is contiguous in shared memory.
    """

    rows: int
    columns: int
    kind: str
    left_transposed: bool
    right_transposed: bool

    @classmethod
    def read(cls, bits: int, lane: int) -> Descriptor:
        """From its 32 bits; UnsupportedInstruction where it asks for what is not known."""
        left, right = bits >> 7 & 7, bits >> 10 & 7
        rows, columns = (bits >> 24 & 31) << 4, (bits >> 17 & 63) << 3
        step = {64: 8, 128: 16}.get(rows, 0)
        used = 0x1F << 24 | 0x3F << 17 | 3 << 15 | 0x3F << 7 | 1 << 4
        known = bits & ~used == 0 and bits >> 4 & 1 and left == right and left in _FORMATS
        if not known or not step or columns % step or not step <= columns <= 256:
            raise UnsupportedInstruction(
                f"the instruction descriptor {bits:#010x} of tcgen05.mma is not known to the interpreter: it plays "
                "dense products of two matrices of f16 or of bf16 with sums in f32, M 64 or 128",
                lane,
            )
        return cls(rows, columns, _FORMATS[left], bool(bits >> 15 & 1), bool(bits >> 16 & 1))

    def lanes(self) -> Indices:
        """The lane of tensor memory of each row."""
        row = np.arange(self.rows)
        return row if self.rows == LANES else row // 16 * WARP + row % 16


Left = Callable[[Descriptor, Mask], Values]
"""A as float32 ``[active, M, 16]``."""


def compile_product(instruction: Instruction, machine: Machine) -> Step:
    """``tcgen05.mma.cta_group::1.kind::f16 [d], a, b, descriptor, accumulate``."""
    if instruction.modifiers[1:] != ("cta_group::1", "kind::f16") or len(instruction.operands) != 5:
        raise unsupported(instruction)
    d, a, b, described, keep = instruction.operands
    address, kinds = machine.address(d), machine.read(described, "u32")
    accumulate, memory = machine.read(keep, "pred"), machine.unit(TensorMemory)
    left = _from_tensor_memory(a, machine) if isinstance(a, Address) else _from_shared(a, machine, right=False)
    right = _from_shared(b, machine, right=True)

    def one(bits: int, mask: Mask) -> None:
        kind, warps = Descriptor.read(bits, mask.lane(0)), mask.index // WARP
        blocks, columns = machine.lanes.block_of[mask.index], _columns("tcgen05.mma", address(mask), kind.columns, mask)
        memory.require_owned("tcgen05.mma to", blocks, columns, mask.index)
        kept = mask.of(accumulate()).astype(bool)
        if kept.any():
            memory.read_by_product(blocks[kept], columns[kept], warps[kept])
        product = left(kind, mask) @ right(kind, mask).swapaxes(1, 2)
        memory.written_by_product(blocks, columns, warps)
        at = blocks[:, None, None], kind.lanes()[None, :, None], columns[:, None, :]
        product[kept] += memory.words[at].view(np.float32)[kept]
        memory.words[at] = product.view(np.uint32)
        machine.counters.tensor_flops += 2 * kind.rows * kind.columns * DEPTH * mask.count

    def step(mask: Mask) -> None:
        # Threads of one block have their products in turn.
        turn, seen = np.zeros(mask.count, np.int64), np.zeros(machine.lanes.blocks, np.int64)
        for active, block in enumerate(machine.lanes.block_of[mask.index].tolist()):
            turn[active], seen[block] = seen[block], seen[block] + 1
        bits = mask.of(kinds())
        for now in range(int(turn.max(initial=-1)) + 1):
            for value in np.unique(bits[turn == now]).tolist():
                one(value, mask.select((turn == now) & (bits == value)))

    return step


def _columns(what: str, addresses: Values, count: int, mask: Mask) -> Indices:
    """Columns ``[active, count]`` from an address whose lane is the first."""
    off = addresses >> 16 & 0xFFFF
    if off.any():
        bad = int(np.flatnonzero(off)[0])
        raise MisusedTensorMemory(f"{what} at lane {int(off[bad])} of tensor memory; allowed: 0", mask.lane(bad))
    columns: Indices = (addresses & 0xFFFF)[:, None] + np.arange(count)
    return columns


def _from_shared(operand: Operand, machine: Machine, right: bool) -> Left:
    """A or B by its matrix descriptor."""
    read, memory = machine.read(operand, "u64"), machine.unit(TensorMemory)

    def found(kind: Descriptor, mask: Mask) -> Values:
        shared, lanes, described = machine.shared, mask.index, mask.of(read())
        rows, across = (kind.columns, kind.right_transposed) if right else (kind.rows, kind.left_transposed)

        def pieces() -> Indices:
            addresses = piece_addresses(described, rows, across, lanes, TCGEN05)
            return shared.pieces(addresses, machine.lanes.block_of[lanes], lanes, "operand of tcgen05.mma")

        key = "tcgen05", described.tobytes(), lanes.tobytes(), rows, across
        places, warps = shared.once(key, pieces), lanes // WARP
        machine.counters.shared_bytes_loaded += 16 * places.size
        if shared.ordering:
            shared.ordering.read_by_product(places.reshape(len(lanes), -1), warps, memory.numbers(warps))
        return matrices(shared.by_piece(), places, rows, across, kind.kind)

    return found


def _from_tensor_memory(operand: Operand, machine: Machine) -> Left:
    address, memory = machine.address(operand), machine.unit(TensorMemory)

    def found(kind: Descriptor, mask: Mask) -> Values:
        if kind.rows != LANES or kind.left_transposed:
            raise UnsupportedInstruction(
                "tcgen05.mma with A in tensor memory is known with M 128 alone, and no transposition of A", mask.lane(0)
            )
        blocks = machine.lanes.block_of[mask.index]
        columns = _columns("A of tcgen05.mma", address(mask), DEPTH // 2, mask)
        memory.require_owned("A of tcgen05.mma at", blocks, columns, mask.index)
        memory.read_by_product(blocks, columns, mask.index // WARP)
        words = memory.words[blocks[:, None, None], np.arange(LANES)[None, :, None], columns[:, None, :]]
        values: Values = floats(kind.kind)[np.ascontiguousarray(words).view(np.uint16)]
        return values

    return found
