"""Which registers an instruction writes, and which it reads."""

from __future__ import annotations

from attnsim.kernels.cpu.ptx import Address, Instruction, TensorAddress, register_names

_NO_RESULT = ("st", "red", "stmatrix", "cp", "bra", "brx", "ret", "exit", "trap", "prefetch", "bar", "barrier", "fence")
"""Instructions whose first operand is not a result; of a barrier it is where it votes."""


def written(one: Instruction) -> frozenset[str]:
    """Registers of the first operand, where that is a result."""
    if not one.operands or (one.name in _NO_RESULT and "red" not in one.modifiers):
        return frozenset()
    first = one.operands[0]
    return frozenset() if isinstance(first, Address | TensorAddress) else frozenset(register_names([first]))


def read(one: Instruction) -> frozenset[str]:
    """Registers of the other operands and of the guard."""
    operands = one.operands[1:] if written(one) else one.operands
    return frozenset(register_names((*operands, *([one.guard] if one.guard else []))))
