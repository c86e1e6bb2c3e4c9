"""Control flow: the next instruction of a group of lanes, and lanes that are stalled until some event.

State spaces behind one interface, and generic addresses, whose value tells the space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from attnsim.ptx.barriers import Barriers, Groups
from attnsim.ptx.faults import Fault
from attnsim.ptx.lanes import Mask, Values
from attnsim.ptx.machine import Machine, unsupported
from attnsim.ptx.memory import GlobalMemory, LocalMemory
from attnsim.ptx.registers import row_type
from attnsim.ptx.shared import SharedMemory
from attnsim.ptx.syntax import Instruction


@dataclass(frozen=True, slots=True)
class Stall:
    """Lanes that wait at one instruction.

    Parameters
    ----------
    mask : Mask
        The lanes.
    ready : callable
        Returns the lanes that may retry the instruction.
    fault : callable
        Returns the fault if they never become ready.
    """

    mask: Mask
    ready: Callable[[Mask], Mask]
    fault: Callable[[Mask], Fault]


class Stalls:
    """All stalled lanes of a run.

    A loop that spins on ``mbarrier.try_wait`` is one stall: the instruction may suspend its thread until the phase ends
    (PTX ISA 9.0, "mbarrier.try_wait"), so the loop executes no iterations here.

    Parameters
    ----------
    happen : callable
        Completes the next asynchronous event, such as a copy; returns False if there is none. It is called only when no
        thread can run, so that copies complete as late as possible.
    """

    def __init__(self, happen: Callable[[], bool]) -> None:
        self._happen = happen
        self._stalls: dict[int, Stall] = {}

    def add(self, position: int, stall: Stall) -> None:
        """Stall lanes at an instruction, together with those already stalled there."""
        here = self._stalls.get(position)
        self._stalls[position] = Stall(here.mask | stall.mask, stall.ready, stall.fault) if here else stall

    def resume(self) -> Groups:
        """Return the lanes that may retry, now that no other lane can run; empty if none are stalled.

        Raises
        ------
        Fault
            If stalled lanes can never become ready.
        """
        while self._stalls:
            groups = self._leave()
            if groups:
                return groups
            if not self._happen():
                position, stall = min(self._stalls.items(), key=lambda item: item[0])
                fault = stall.fault(stall.mask)
                fault.position = position
                raise fault
        return []

    def _leave(self) -> Groups:
        groups: Groups = []
        for position, stall in list(self._stalls.items()):
            ready = stall.ready(stall.mask)
            if not ready.count:
                continue
            groups.append((position, ready))
            rest = stall.mask.without(ready)
            if rest.count:
                self._stalls[position] = Stall(rest, stall.ready, stall.fault)
            else:
                del self._stalls[position]
        return groups


Go = tuple[int, Mask] | None
"""The next instruction and the mask of a group; None if it was split, stalled or has exited."""


class Flow(Protocol):
    """The part of a run that control instructions steer."""

    barriers: Barriers
    stalls: Stalls

    def join(self, groups: Groups) -> None:
        """Add groups of lanes to run."""
        ...

    def exit(self, mask: Mask) -> None:
        """Record the exit of these lanes."""
        ...


Control = Callable[[Flow, int, Mask], Go]
"""A compiled control instruction, called with the run, its own instruction number, and the lanes."""

CompileControl = Callable[[Instruction, Machine], Control | None]

CONTROLS: dict[str, CompileControl] = {}
"""Compilers of control instructions by the first part of the opcode; None for forms that are not control flow."""


def control(*names: str) -> Callable[[CompileControl], CompileControl]:
    """Register the compiler of control instructions with these names."""

    def register(function: CompileControl) -> CompileControl:
        CONTROLS.update(dict.fromkeys(names, function))
        return function

    return register


def suspended(ready: Callable[[Mask], Mask], fault: Callable[[Mask], Fault], then: Callable[[Mask], None]) -> Control:
    """Return a control instruction at which lanes stall until they are ready, and then run `then`."""

    def go_on(run: Flow, position: int, mask: Mask) -> Go:
        going = ready(mask)
        if going.count < mask.count:
            run.stalls.add(position, Stall(mask.without(going) if going.count else mask, ready, fault))
        if not going.count:
            return None
        then(going)
        return position + 1, going

    return go_on


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
