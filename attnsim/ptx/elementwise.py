"""Elementwise instructions: a NumPy function of the operands, applied in every lane."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Self

import numpy as np

from attnsim.ptx.basic_blocks import Batchable
from attnsim.ptx.lanes import Mask, Values
from attnsim.ptx.machine import Machine, Step
from attnsim.ptx.registers import DTYPES, Dtype
from attnsim.ptx.syntax import Immediate, Instruction, Operand

Function = Callable[..., Values]

_TRIED: set[Hashable] = set()
"""Kinds of instructions with operand types that their function is known to accept."""


class Elementwise(Batchable):
    """One elementwise instruction.

    Parameters
    ----------
    function : callable
        On arrays ``[lanes]`` or, where all lanes agree, ``[1]``.
    types : tuple of dtype
        Types that the operands are read as.
    """

    def __init__(
        self,
        instruction: Instruction,
        machine: Machine,
        function: Function,
        target: Operand,
        result: Dtype,
        sources: Sequence[Operand],
        types: Sequence[Dtype],
    ) -> None:
        immediates = tuple(str(o) if isinstance(o, Immediate) else "" for o in instruction.operands[4:])
        super().__init__((instruction.name, instruction.modifiers, len(sources), immediates))
        self._registers, self._function = machine.registers, function
        self._target, self._result = target, result
        self._sources, self._types = tuple(sources), tuple(types)
        self._write = machine.registers.write(target, result)
        types = tuple(types)
        if (self.kind, types) not in _TRIED:  # a wrong number of operands is found here, not while the kernel runs
            with np.errstate(all="ignore"):
                function(*(np.ones(1, kind) for kind in types))
            _TRIED.add((self.kind, types))
        self._reads = [machine.registers.read(o, t) for o, t in zip(sources, types, strict=True)]

    def __call__(self, mask: Mask) -> None:
        """Execute it."""
        self._write(self._function(*[read() for read in self._reads]), mask)

    def together(self, others: Sequence[Self]) -> Step:
        """Return one step for all of them: the function applied once to the lanes of all instructions, concatenated."""
        members, count, function = (self, *others), 1 + len(others), self._function
        targets = [m._target for m in members]
        write = self._registers.write_rows(targets, self._result)
        write_active = self._registers.write_active_rows(targets, self._result)
        operands = [[m._sources[i] for m in members] for i in range(len(self._sources))]
        # What all read from one place is read once.
        once = [len(set(same)) == 1 for same in operands]
        rows = [
            self._registers.read_rows(same[:1] if single else same, kind)
            for same, kind, single in zip(operands, self._types, once, strict=True)
        ]

        def step(mask: Mask) -> None:
            values = [read() for read in rows]
            width = max(value.shape[1] for value in values)
            # Of two warpgroups, each would else play the other's part too.
            active = not mask.full and mask.whole_warps and width > 1
            if active:
                values = [mask.take(value) if value.shape[1] > 1 else value for value in values]
                width = mask.count
            found = function(*(v.reshape(-1) if v.size == 1 else _flat(v, count, width) for v in values))
            same = (count, width if active else 1)
            wide = found.reshape(count, -1) if len(found) > 1 else np.broadcast_to(found, same)
            (write_active if active else write)(wide, mask)

        return step


def _flat(values: Values, count: int, width: int) -> Values:
    """Broadcast values ``[count or 1, width or 1]`` and flatten them to ``[count * width]``."""
    if values.shape == (count, width):
        return values.reshape(-1)
    return np.broadcast_to(values, (count, width)).reshape(-1)


def elementwise(
    instruction: Instruction, machine: Machine, function: Function, types: tuple[str, ...], result: str
) -> Step:
    """Return a step that writes a function of all source operands to the first operand.

    Parameters
    ----------
    function : callable
        On arrays ``[lanes]`` or, where all lanes agree, ``[1]``.
    types : tuple of str
        PTX types that the operands are read as.
    result : str
        PTX type of the destination.
    """
    target, *sources = instruction.operands
    kinds = [DTYPES[t] for t in types]
    return Elementwise(instruction, machine, function, target, DTYPES[result], sources, kinds)


def pick(condition: Values, yes: Values, no: Values) -> Values:
    """`yes` where the condition holds, else `no`."""
    return np.where(condition, yes, no)
