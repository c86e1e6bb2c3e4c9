"""Where lanes go on after a control instruction, and lanes set aside until something else has happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from attnsim.ptx.barriers import Barriers, Groups
from attnsim.ptx.faults import Fault
from attnsim.ptx.lanes import Mask
from attnsim.ptx.machine import Machine
from attnsim.ptx.syntax import Instruction


@dataclass(frozen=True, slots=True)
class Stall:
    """Lanes that wait at one instruction.

    Parameters
    ----------
    mask : Mask
    ready : callable
        Which of the lanes may try the instruction again.
    fault : callable
        What is wrong if they never get ready.
    """

    mask: Mask
    ready: Callable[[Mask], Mask]
    fault: Callable[[Mask], Fault]


class Stalls:
    """All stalled lanes of a run.

    A loop that spins on ``mbarrier.try_wait`` is one stall: the instruction may suspend its thread until the phase is
    over (PTX ISA 9.0, "mbarrier.try_wait"), and so the loop costs no turns.

    Parameters
    ----------
    happen : callable
        Lets the next thing beside the threads happen, such as the end of a copy; returns whether there was one. Since
        it is asked only when no thread can run, copies come as late as they may.
    """

    def __init__(self, happen: Callable[[], bool]) -> None:
        self._happen = happen
        self._stalls: dict[int, Stall] = {}

    def add(self, position: int, stall: Stall) -> None:
        """Set lanes aside at an instruction, with those that are there already."""
        here = self._stalls.get(position)
        self._stalls[position] = Stall(here.mask | stall.mask, stall.ready, stall.fault) if here else stall

    def resume(self) -> Groups:
        """Lanes that may try again, now that no other can run; none when none are stalled.

        Raises
        ------
        Fault
            When none ever will.
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


def suspended(ready: Callable[[Mask], Mask], fault: Callable[[Mask], Fault], then: Callable[[Mask], None]) -> Control:
    """A control instruction at which lanes are set aside until they are ready, and then do something."""

    def go_on(run: Flow, position: int, mask: Mask) -> Go:
        going = ready(mask)
        if going.count < mask.count:
            run.stalls.add(position, Stall(mask.without(going) if going.count else mask, ready, fault))
        if not going.count:
            return None
        then(going)
        return position + 1, going

    return go_on
