"""Where a kernel's own variables lie, and how finely it touches shared memory."""

from __future__ import annotations

from attnsim.kernels.cpu.lanes import Meetings
from attnsim.kernels.cpu.ptx import Function, Immediate, Instruction, size_of
from attnsim.kernels.cpu.registers import DTYPES


def lay_out(function: Function, space: str) -> tuple[dict[str, int], int]:
    """Addresses of a kernel's shared or local variables by name, and what they take in bytes.

    They lie in order of declaration; dynamic shared memory comes last and takes nothing.
    """
    variables = sorted((v for v in function.variables if v.space == space), key=lambda v: v.size_bytes == 0)
    addresses, end = {}, 0
    for variable in variables:
        end = -(-end // variable.align) * variable.align
        addresses[variable.name] = end
        end += variable.size_bytes
    return addresses, end


def shared_granule(function: Function) -> int:
    """Bytes of the narrowest access that a kernel may make to shared memory: 16 for cp.async and ldmatrix alone."""
    return min((_width(i) for i in function.instructions), default=16)


def meetings(function: Function) -> Meetings:
    """Who works beside the warps of a kernel's blocks."""
    instructions = function.instructions
    return Meetings(
        pairwise=any(
            i.name in ("mbarrier", "wgmma", "tcgen05", "mapa")
            or "bulk" in i.modifiers
            or (i.name in ("bar", "barrier") and _counts_threads(i))
            for i in instructions
        ),
        stores=any("bulk_group" in i.modifiers for i in instructions),
        products=any(i.name == "tcgen05" for i in instructions),
    )


def _counts_threads(instruction: Instruction) -> bool:
    """Whether a barrier is for some of the block's threads."""
    return "warp" not in instruction.modifiers and len(instruction.operands) > (
        3 if "red" in instruction.modifiers else 1
    )


def _width(instruction: Instruction) -> int:
    """Bytes of one lane's access to shared memory; 16 where it makes none."""
    modifiers = instruction.modifiers
    if instruction.name == "mbarrier":
        return 8
    if instruction.name == "tcgen05" and "alloc" in modifiers:
        return 4
    if "bulk" in modifiers:
        return 16
    if instruction.name == "cp" and len(instruction.operands) > 2:
        size = instruction.operands[2]
        return int(size.text, 0) if isinstance(size, Immediate) else 4
    elsewhere = {"global", "local", "param", "const"} & set(modifiers)
    if instruction.name not in ("ld", "st", "atom", "red") or elsewhere:
        return 16
    item = size_of(next((m for m in reversed(modifiers) if m in DTYPES), "b8"))
    return item * next((int(m[1:]) for m in modifiers if m in ("v2", "v4")), 1)
