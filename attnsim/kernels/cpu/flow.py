"""What control instructions share: where a group of lanes goes on, what of a run they steer, and their compilers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from attnsim.kernels.cpu.barriers import Barriers, Groups
from attnsim.kernels.cpu.lanes import Mask
from attnsim.kernels.cpu.machine import Machine
from attnsim.kernels.cpu.ptx import Instruction
from attnsim.kernels.cpu.stalls import Stalls

Go = tuple[int, Mask] | None
"""Where a group goes on after a control instruction; None where it was split, parked or has ended."""


class Flow(Protocol):
    """The part of a run that control instructions steer."""

    barriers: Barriers
    stalls: Stalls

    def join(self, groups: Groups) -> None:
        """Add lanes that are to go on."""
        ...

    def exit(self, mask: Mask) -> None:
        """These lanes have ended."""
        ...


Control = Callable[[Flow, int, Mask], Go]
"""A compiled control instruction: of a run, at this instruction number, for these lanes."""

CompileControl = Callable[[Instruction, Machine], Control | None]

CONTROLS: dict[str, CompileControl] = {}
"""How each control instruction is compiled, by the first part of its opcode; to None where its form runs through."""


def control(*names: str) -> Callable[[CompileControl], CompileControl]:
    """Register the compiler of control instructions with these names."""

    def register(function: CompileControl) -> CompileControl:
        CONTROLS.update(dict.fromkeys(names, function))
        return function

    return register
