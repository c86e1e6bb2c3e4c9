"""State spaces behind one interface, and generic addresses, whose value tells the space."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnsim.ptx.lanes import Mask, Values
from attnsim.ptx.machine import Machine, unsupported
from attnsim.ptx.memory import GlobalMemory, LocalMemory
from attnsim.ptx.registers import row_type
from attnsim.ptx.shared import SharedMemory
from attnsim.ptx.syntax import Instruction

SHARED_WINDOW = 0x7F00_0000_0000
LOCAL_WINDOW = 0x7E00_0000_0000
"""Start of shared and of local memory in generic addresses; the low 32 bits are the address within the space."""

PARAMETER_WINDOW = 0x7D00_0000_0000
"""Start of the parameters that kernels take the address of: tensor maps."""

WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "global": 0, "const": 0, "param": 0}


Space = GlobalMemory | SharedMemory | LocalMemory
"""Memory that instructions load from and store to; addresses are int64 ``[active]``."""


class _Generic:
    """Generic memory: each lane accesses the space that its address names."""

    def __init__(self, machine: Machine) -> None:
        self._windows: dict[int, Space] = {SHARED_WINDOW: machine.shared, LOCAL_WINDOW: machine.local}
        self._elsewhere = machine.memory

    def load(self, addresses: Values, width: int, mask: Mask) -> Values:
        result = np.empty(len(addresses), row_type(width))
        for space, chosen, local, part in self._routes(addresses, mask):
            result[chosen] = space.load(local, width, part)
        return result

    def store(self, addresses: Values, values: Values, width: int, mask: Mask) -> None:
        for space, chosen, local, part in self._routes(addresses, mask):
            space.store(local, values[chosen], width, part)

    def _routes(self, addresses: Values, mask: Mask) -> Iterator[tuple[Space, Values, Values, Mask]]:
        windows = addresses >> 32 << 32
        rest = np.ones(len(addresses), bool)
        for window, space in self._windows.items():
            inside = windows == window
            rest &= ~inside
            if inside.any():
                yield space, inside, addresses[inside] - window, mask.select(inside)
        if rest.any():
            yield self._elsewhere, rest, addresses[rest], mask.select(rest)


def space_name(instruction: Instruction) -> str:
    """Return the state space that an instruction names; "" for generic addresses."""
    for modifier in instruction.modifiers:
        name = modifier.split("::")[0]
        if name in ("global", "shared", "local", "param", "const"):
            if modifier == "shared::cluster":
                raise unsupported(instruction)
            return name
    return ""


def space_of(instruction: Instruction, machine: Machine) -> Space | _Generic:
    """Return the memory that an instruction accesses."""
    match space_name(instruction):
        case "global" | "const":
            return machine.memory
        case "shared":
            return machine.shared
        case "local":
            return machine.local
        case "":
            return _Generic(machine)
    raise unsupported(instruction)
