"""What a kernel can do wrong. Every fault names the kernel, the instruction, and the block and thread."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MOST = 50
"""Different faults of a run that are kept."""


class Fault(Exception):
    """Something that a GPU forbids or leaves undefined.

    Parameters
    ----------
    what : str
        What happened, with the tensor or the shared address.
    lane : int, optional
        Lane of the batch that did it; whoever runs the batch turns it into a block and a thread.
    lanes : ndarray of int, optional
        All lanes whose access is bad: the others may go on.

    Attributes
    ----------
    position : int or None
        Number of the instruction, once known.
    place : str
        Where it happened, in words, once known.
    line : int or None
        Of the PTX, once known.
    times : int
        How often it was found at this instruction.
    others : sequence of Fault
        The other faults of the run, each kind once for an instruction.
    left_out : int
        Faults of the run that are not among those.
    """

    def __init__(self, what: str, lane: int | None = None, lanes: NDArray[np.int64] | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.lane, self.lanes = lane, lanes
        self.position: int | None = None
        self.place = ""
        self.line: int | None = None
        self.times = 1
        self.others: Sequence[Fault] = ()
        self.left_out = 0

    def __str__(self) -> str:
        more = "; more of this run: " if self.others else ""
        more += ", ".join(f"{type(one).__name__} (line {one.line})" for one in self.others)
        more += f", {self.left_out} not listed" if self.left_out else ""
        return f"{self.place}: {self.what}{more}" if self.place else f"{self.what}{more}"


class UnsupportedInstruction(Fault):
    """The interpreter does not know the instruction."""


class OutOfBounds(Fault):
    """An address outside every array, or outside the block's shared memory."""


class Misaligned(Fault):
    """An address that is not a multiple of the access's width."""


class DivergentBarrier(Fault):
    """A warp came to a barrier with only some of its threads."""


class Deadlock(Fault):
    """Nothing can go on: warps wait at barriers that nobody will complete, or a loop does not end."""


class StepLimit(Deadlock):
    """A batch of blocks has run as many instructions as one may."""


class Race(Fault):
    """Two warps touched the same shared bytes, one of them writing, with no barrier between."""


class UninitialisedRead(Fault):
    """Shared bytes that nobody has written were read."""


class CopyInFlight(Fault):
    """Shared bytes were touched while a copy to them had not been waited for."""


class MisusedMbarrier(Fault):
    """An mbarrier that is not initialised, not visible, told of too much, or taken for ordinary memory."""


class RegisterInFlight(Fault):
    """A register that a wgmma works on was touched before wgmma.wait_group, or handed over without wgmma.fence."""


class TensorMemoryInFlight(Fault):
    """Tensor memory was touched while a load, a store or a product on it was not known to be over."""


class MisusedTensorMemory(Fault):
    """Tensor memory that is not allocated, of another warp's lanes, or kept beyond the end of the block."""


class InactiveLane(Fault):
    """A warp-wide instruction (mma, ldmatrix, shfl, ...) ran without a lane that it needs."""


class NotUniform(Fault):
    """Threads that must agree on an operand do not."""


class Trapped(Fault):
    """The kernel executed ``trap``."""


class Reports:
    """What becomes of a fault after which a kernel can go on: it is raised, or kept to be told with others.

    Attributes
    ----------
    found : dict of (int, type) to Fault
        Those that were kept, each kind once for an instruction.
    left_out : set of (int, type)
        Those that were too many.
    position : int or None
        The instruction that is executed; None while faults are raised.
    """

    def __init__(self) -> None:
        self.position: int | None = None
        self.found: dict[tuple[int, type[Fault]], Fault] = {}
        self.left_out: set[tuple[int, type[Fault]]] = set()

    def start(self) -> None:
        """Nothing found; raise what comes."""
        self.position, self.found, self.left_out = None, {}, set()

    def __call__(self, fault: Fault) -> None:
        """Keep a fault, or raise it."""
        if self.position is None:
            raise fault
        fault.position = self.position
        self.keep(fault)

    def keep(self, fault: Fault) -> None:
        """Keep a fault whose position is known."""
        key = (-1 if fault.position is None else fault.position, type(fault))
        if key in self.found:
            self.found[key].times += fault.times
        elif len(self.found) < MOST:
            self.found[key] = fault
        else:
            self.left_out.add(key)

    def first(self) -> Fault:
        """The first of those kept, which knows the others."""
        first, *others = self.found.values()
        first.others, first.left_out = others, len(self.left_out)
        return first
