"""``tcgen05``: instructions of warps and threads on tensor memory, all but the products.

PTX ISA 9.0, "Tensorcore 5th Generation Family Instructions". Fragments of ``tcgen05.ld`` and ``.st``: in ``.32x32b``
thread t of the warp has lane t, register j column j. In ``.16x32bx2`` threads 0 to 15 have sixteen lanes from the
address, threads 16 to 31 the same lanes ``immHalfSplitoff`` columns on (as CUTLASS has it in
include/cute/atom/copy_traits_sm100.hpp, SM100_TMEM_LOAD_16dp32b1x).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from attnsim.ptx.faults import MisusedTensorMemory, NotUniform
from attnsim.ptx.lanes import WARP, Indices, Mask
from attnsim.ptx.machine import Machine, Step, items, operation, unsupported
from attnsim.ptx.registers import DTYPES
from attnsim.ptx.spaces import space_of
from attnsim.ptx.syntax import Immediate, Instruction, Operand, Register
from attnsim.ptx.tcgen05_mma import compile_product
from attnsim.ptx.tensor_memory import LANES, QUARTERS, Place, TensorMemory
from attnsim.ptx.warps import require_whole_warps

HALF = WARP // 2


@operation("tcgen05")
def compile_tcgen05(instruction: Instruction, machine: Machine) -> Step:
    """Every ``tcgen05`` that is known, of one block alone."""
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
        "fence::before_thread_sync": _fence,
        "fence::after_thread_sync": _fence,
        "commit": _commit,
        "mma": compile_product,
    }
    if modifiers[0] not in kinds:
        raise unsupported(instruction)
    return kinds[modifiers[0]](instruction, machine)


def _allocate(instruction: Instruction, machine: Machine) -> Step:
    """``tcgen05.alloc [to], columns``: a warp's; the address goes to shared memory."""
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
        values = np.broadcast_to(read(len(mask.lanes)), (len(registers), len(mask.lanes)))
        rows = mask.take(values).reshape(len(registers), -1, WARP).transpose(1, 0, 2)
        memory.words[access.blocks[:, None, None], lanes[:, None, :], columns] = rows

    return step


Where = Callable[[Mask], tuple[Indices, Indices, Place]]
"""Lanes ``[warps, 32]`` and columns ``[warps, registers, 32]`` of a fragment, and what of tensor memory that is."""


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
    """``tcgen05.wait::ld`` and ``::st``: this warp's loads or stores are over."""
    memory = machine.unit(TensorMemory)
    return memory.loads_done if instruction.modifiers[0] == "wait::ld" else memory.stores_done


def _fence(instruction: Instruction, machine: Machine) -> Step:
    return lambda mask: None


def _commit(instruction: Instruction, machine: Machine) -> Step:
    """``tcgen05.commit.mbarrier::arrive::one.shared::cluster.b64 [mbarrier]``."""
    if not {"mbarrier::arrive::one", "shared::cluster", "b64"} <= set(instruction.modifiers):
        raise unsupported(instruction)
    address, memory = machine.address(instruction.operands[0]), machine.unit(TensorMemory)
    return lambda mask: memory.commit(address(mask), mask)


def _leaders(mask: Mask, name: str) -> Mask:
    """The first lane of each warp, all of whose lanes must be here."""
    require_whole_warps(mask, name)
    return mask.select(np.arange(mask.count) % WARP == 0)
