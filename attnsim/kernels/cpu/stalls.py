"""Lanes set aside until something that runs beside the threads has happened; everything else runs first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attnsim.kernels.cpu.barriers import Groups
from attnsim.kernels.cpu.faults import Fault
from attnsim.kernels.cpu.lanes import Mask

Ready = Callable[[Mask], Mask]
"""Which of the stalled lanes may try the instruction again."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Lanes that wait at one instruction.

    Parameters
    ----------
    mask : Mask
    ready : callable
    fault : callable
        What is wrong if they never get ready.
    """

    mask: Mask
    ready: Ready
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
