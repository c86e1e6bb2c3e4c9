"""Instructions that do the same in every lane: a NumPy function of the operands."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnsim.kernels.cpu.lanes import Values
from attnsim.kernels.cpu.machine import Machine, Step
from attnsim.kernels.cpu.ptx import Instruction

Function = Callable[..., Values]


def elementwise(
    instruction: Instruction, machine: Machine, function: Function, types: tuple[str, ...], result: str
) -> Step:
    """A step that writes a function of all operands but the first to the first.

    Parameters
    ----------
    instruction : Instruction
    machine : Machine
    function : callable
        On arrays ``[lanes]`` or, where all lanes agree, ``[1]``.
    types : tuple of str
        PTX types that the operands are read as.
    result : str
        PTX type of the destination.
    """
    write = machine.write(instruction.operands[0], result)
    reads = [machine.read(o, t) for o, t in zip(instruction.operands[1:], types, strict=True)]
    if len(reads) == 1:
        (a,) = reads
        return lambda mask: write(function(a()), mask)
    if len(reads) == 2:
        a, b = reads
        return lambda mask: write(function(a(), b()), mask)
    if len(reads) == 3:
        a, b, c = reads
        return lambda mask: write(function(a(), b(), c()), mask)
    return lambda mask: write(function(*(read() for read in reads)), mask)


def pick(condition: Values, yes: Values, no: Values) -> Values:
    """`yes` where the condition holds, else `no`."""
    return np.where(condition, yes, no)
