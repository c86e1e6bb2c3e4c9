"""``tcgen05``: loads and stores of tensor memory, and products D = A B + D of one thread, with D in tensor memory.

PTX ISA 9.0, "Tensorcore 5th Generation Family Instructions". Fragments of ``tcgen05.ld`` and ``.st``: in ``.32x32b``
thread t of the warp has lane t, register j column j. In ``.16x32bx2`` threads 0 to 15 have sixteen lanes from the
address, threads 16 to 31 the same lanes ``immHalfSplitoff`` columns on (as CUTLASS has it in
include/cute/atom/copy_traits_sm100.hpp, SM100_TMEM_LOAD_16dp32b1x).

Products go by "Instruction descriptor" (``.kind::f16``) and "Data path layout organization": with M = 128 row i of D is
lane i, column j a column of tensor memory; with M = 64 rows lie in sixteen lanes of each quarter (layout F). A in
tensor memory has two elements in a word. Sparse, negated and packed forms, ``.ws`` and sums in fp16 are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from attnsim.ptx.copies import compile_nothing
from attnsim.ptx.counters import floats
from attnsim.ptx.faults import MisusedTensorMemory, NotUniform, UnsupportedInstruction
from attnsim.ptx.flow import space_of
from attnsim.ptx.lanes import WARP, Indices, Mask, Values
from attnsim.ptx.machine import Machine, Step, items, operation, unsupported
from attnsim.ptx.registers import DTYPES
from attnsim.ptx.shared import DEPTH, TCGEN05, matrices, piece_addresses
from attnsim.ptx.syntax import Address, Immediate, Instruction, Operand, Register
from attnsim.ptx.tensor_memory import LANES, QUARTERS, Place, TensorMemory
from attnsim.ptx.warps import require_whole_warps

_FORMATS = {0: "f16", 1: "bf16"}


@dataclass(frozen=True, slots=True)
class Descriptor:
    """An instruction descriptor of ``.kind::f16``.

    Parameters
    ----------
    rows, columns : int
        M and N.
    kind : str
        Format of A and B.
    left_transposed, right_transposed : bool
        True if M, or N, is contiguous in shared memory.
    """

    rows: int
    columns: int
    kind: str
    left_transposed: bool
    right_transposed: bool

    @classmethod
    def read(cls, bits: int, lane: int) -> Descriptor:
        """Decode 32 bits; raises UnsupportedInstruction for features that are not known."""
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
        """Return the lane of tensor memory that holds each row, ``[M]``."""
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
    """Return columns ``[active, count]`` from an address; raises MisusedTensorMemory unless its lane is 0."""
    off = addresses >> 16 & 0xFFFF
    if off.any():
        bad = int(np.flatnonzero(off)[0])
        raise MisusedTensorMemory(f"{what} at lane {int(off[bad])} of tensor memory; allowed: 0", mask.lane(bad))
    columns: Indices = (addresses & 0xFFFF)[:, None] + np.arange(count)
    return columns


def _from_shared(operand: Operand, machine: Machine, right: bool) -> Left:
    """Return a closure that reads A or B by its matrix descriptor."""
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


HALF = WARP // 2


@operation("tcgen05")
def compile_tcgen05(instruction: Instruction, machine: Machine) -> Step:
    """Compile every supported ``tcgen05`` instruction of a single block."""
    modifiers = instruction.modifiers
    if "cta_group::2" in modifiers or "multicast::cluster" in modifiers:
        raise unsupported(instruction)
    kinds: dict[str, Callable[[Instruction, Machine], Step]] = {
        "alloc": _allocate,
        "dealloc": _release,
        "relinquish_alloc_permit": _relinquish,
        "ld": _load,
        "st": _store,
        "wait::ld": _wait,
        "wait::st": _wait,
        "fence::before_thread_sync": compile_nothing,
        "fence::after_thread_sync": compile_nothing,
        "commit": _commit,
        "mma": compile_product,
    }
    if modifiers[0] not in kinds:
        raise unsupported(instruction)
    return kinds[modifiers[0]](instruction, machine)


def _allocate(instruction: Instruction, machine: Machine) -> Step:
    """``tcgen05.alloc [to], columns``, by a warp; writes the address to shared memory."""
    to, columns = instruction.operands
    address, count, memory = machine.address(to), machine.read(columns, "u32"), machine.unit(TensorMemory)
    space = space_of(instruction, machine)

    def step(mask: Mask) -> None:
        first = _leaders(mask, "tcgen05.alloc")
        blocks, asked = machine.lanes.block_of[first.index], first.of(count())
        found = [
            memory.allocate(int(n), int(block), int(lane))
            for n, block, lane in zip(asked, blocks, first.index, strict=True)
        ]
        space.store(address(first), np.array(found, np.uint32), 4, first)

    return step


def _release(instruction: Instruction, machine: Machine) -> Step:
    """``tcgen05.dealloc address, columns``."""
    address, columns = (machine.read(operand, "u32") for operand in instruction.operands)
    memory = machine.unit(TensorMemory)

    def step(mask: Mask) -> None:
        first = _leaders(mask, "tcgen05.dealloc")
        rows = zip(first.of(address()), first.of(columns()), first.index, strict=True)
        for at, count, lane in rows:
            memory.release(int(at), int(count), int(machine.lanes.block_of[lane]), int(lane))

    return step


def _relinquish(instruction: Instruction, machine: Machine) -> Step:
    memory = machine.unit(TensorMemory)

    def step(mask: Mask) -> None:
        for lane in _leaders(mask, "tcgen05.relinquish_alloc_permit").index:
            memory.close(int(machine.lanes.block_of[lane]))

    return step


def _load(instruction: Instruction, machine: Machine) -> Step:
    """``tcgen05.ld.sync.aligned.shape.xN.b32 {r, ...}, [address] (, half)``."""
    targets, source, *rest = instruction.operands
    registers = items(targets)
    place, memory = _fragment(instruction, source, rest, registers, machine), machine.unit(TensorMemory)
    write = machine.registers.write_active_rows(registers, DTYPES["b32"])

    def step(mask: Mask) -> None:
        lanes, columns, access = place(mask)
        memory.load(access, mask.warp_index)
        found = memory.words[access.blocks[:, None, None], lanes[:, None, :], columns]
        write(np.ascontiguousarray(found.transpose(1, 0, 2)).reshape(len(registers), -1), mask)

    return step


def _store(instruction: Instruction, machine: Machine) -> Step:
    """``tcgen05.st.sync.aligned.shape.xN.b32 [address], (half,) {r, ...}``."""
    target, *rest, sources = instruction.operands
    registers = items(sources)
    place, memory = _fragment(instruction, target, rest, registers, machine), machine.unit(TensorMemory)
    read = machine.registers.read_rows(registers, DTYPES["b32"])

    def step(mask: Mask) -> None:
        lanes, columns, access = place(mask)
        memory.store(access, mask.warp_index)
        rows = mask.take(read()).reshape(len(registers), -1, WARP).transpose(1, 0, 2)
        memory.words[access.blocks[:, None, None], lanes[:, None, :], columns] = rows

    return step


Where = Callable[[Mask], tuple[Indices, Indices, Place]]
"""Locates a fragment: lanes ``[warps, 32]``, columns ``[warps, registers, 32]``, and its place in tensor memory."""


def _fragment(
    instruction: Instruction, at: Operand, rest: Sequence[Operand], registers: Sequence[Operand], machine: Machine
) -> Where:
    shape, count = instruction.modifiers[3], instruction.modifiers[4].removeprefix("x")
    plain = instruction.modifiers[1:3] == ("sync", "aligned") and instruction.modifiers[5:] == ("b32",)
    known = plain and all(isinstance(r, Register) for r in registers) and len(registers) == int(count)
    if not known or shape not in ("32x32b", "16x32bx2") or len(rest) != (shape == "16x32bx2"):
        raise unsupported(instruction)
    offset = int(rest[0].text, 0) if rest and isinstance(rest[0], Immediate) else 0
    whole, name = shape == "32x32b", f"tcgen05.{instruction.modifiers[0]}"
    thread, address, memory = np.arange(WARP), machine.address(at), machine.unit(TensorMemory)
    lane_of, column_of = (thread, 0 * thread) if whole else (thread % HALF, thread // HALF * offset)
    step = np.arange(len(registers))[:, None] + column_of

    def where(mask: Mask) -> tuple[Indices, Indices, Place]:
        require_whole_warps(mask, name)
        addresses = address(mask).reshape(-1, WARP)
        if (addresses != addresses[:, :1]).any():
            raise NotUniform(f"{name}: threads of a warp have different addresses", mask.lane(0))
        warps, first = mask.warp_index, addresses[:, 0]
        lane, column = first >> 16 & 0xFFFF, first & 0xFFFF
        quarter, blocks = warps % machine.lanes.warps_per_block % QUARTERS, warps // machine.lanes.warps_per_block
        wrong = (lane // WARP != quarter) | (lane % (WARP if whole else HALF) != 0) | (lane >= LANES)
        if wrong.any():
            bad = int(np.flatnonzero(wrong)[0])
            own = WARP * int(quarter[bad])
            raise MisusedTensorMemory(
                f"{name} at lane {int(lane[bad])}: this warp reaches lanes {own} to {own + WARP - 1}, from the first "
                f"{'of them' if whole else 'or the sixteenth'}",
                int(warps[bad]) * WARP,
            )
        columns = column[:, None, None] + step
        touched = np.unique(step) + column[:, None]
        memory.require_owned(name, blocks, touched, warps * WARP)
        return lane[:, None] + lane_of, columns, Place(blocks, quarter, touched)

    return where


def _wait(instruction: Instruction, machine: Machine) -> Step:
    """``tcgen05.wait::ld`` and ``::st``: complete this warp's loads or stores."""
    memory = machine.unit(TensorMemory)
    return memory.loads_done if instruction.modifiers[0] == "wait::ld" else memory.stores_done


def _commit(instruction: Instruction, machine: Machine) -> Step:
    """``tcgen05.commit.mbarrier::arrive::one.shared::cluster.b64 [mbarrier]``."""
    if not {"mbarrier::arrive::one", "shared::cluster", "b64"} <= set(instruction.modifiers):
        raise unsupported(instruction)
    address, memory = machine.address(instruction.operands[0]), machine.unit(TensorMemory)
    return lambda mask: memory.commit(address(mask), mask)


def _leaders(mask: Mask, name: str) -> Mask:
    """Return the first lane of each warp; raises InactiveLane unless all lanes are active."""
    require_whole_warps(mask, name)
    return mask.select(np.arange(mask.count) % WARP == 0)
