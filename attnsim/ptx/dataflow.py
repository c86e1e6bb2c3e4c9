"""Dataflow of a kernel: registers read and written, addresses of variables, agents that access shared memory."""

from __future__ import annotations

from attnsim.ptx.lanes import Meetings
from attnsim.ptx.syntax import Address, Function, Instruction, TensorAddress, register_names

_NO_RESULT = ("st", "red", "stmatrix", "cp", "bra", "brx", "ret", "exit", "trap", "prefetch", "bar", "barrier", "fence")
"""Instructions whose first operand is not a result (that of ``bar.red`` is)."""

_ENDS = ("bra", "brx", "ret", "exit", "trap")
_LATE = ("wgmma", "tcgen05")
"""Asynchronous instructions, which access registers after later instructions have begun."""


def written(one: Instruction) -> frozenset[str]:
    """Registers that an instruction writes: those of its first operand if it is a result."""
    if not one.operands or (one.name in _NO_RESULT and "red" not in one.modifiers):
        return frozenset()
    first = one.operands[0]
    return frozenset() if isinstance(first, Address | TensorAddress) else frozenset(register_names([first]))


def read(one: Instruction) -> frozenset[str]:
    """Registers that an instruction reads: those of the other operands and of the guard."""
    operands = one.operands[1:] if written(one) else one.operands
    return frozenset(register_names((*operands, *([one.guard] if one.guard else []))))


def passing(function: Function) -> dict[str, int]:
    """Return the registers that are live in one basic block only, with the number of that block.

    Such a register is written before it is read there, and no other block names it.
    """
    heads = {target for one in function.instructions for target in one.targets}
    basic_block, home, others = 0, dict[str, int](), set[str]()
    for position, one in enumerate(function.instructions):
        basic_block += position in heads
        reads, writes = read(one), written(one)
        for name in reads | writes:
            new = name in writes - reads and not one.guard and name not in home
            if one.name in _LATE or not (new or home.get(name) == basic_block):
                others.add(name)
            home.setdefault(name, basic_block)
        basic_block += one.name in _ENDS
    return {name: where for name, where in home.items() if name not in others}


def lay_out(function: Function, space: str) -> tuple[dict[str, int], int]:
    """Return the addresses of a kernel's shared or local variables by name, and their total size in bytes.

    Variables lie in order of declaration; dynamic shared memory comes last and has size 0.
    """
    variables = sorted((v for v in function.variables if v.space == space), key=lambda v: v.size_bytes == 0)
    addresses, end = {}, 0
    for variable in variables:
        end = -(-end // variable.align) * variable.align
        addresses[variable.name] = end
        end += variable.size_bytes
    return addresses, end


def meetings(function: Function) -> Meetings:
    """Return which agents other than warps access a kernel's shared memory."""
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
    """True if a barrier names a thread count, so that it may be for part of the block."""
    return "warp" not in instruction.modifiers and len(instruction.operands) > (
        3 if "red" in instruction.modifiers else 1
    )
