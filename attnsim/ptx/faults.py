"""Faults of kernels. Every fault names the kernel, the instruction, the block and the thread."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MOST = 50
"""Largest number of different faults that a run keeps."""


class Fault(Exception):
    """Something that a GPU forbids or leaves undefined.

    Parameters
    ----------
    what : str
        What happened, with the tensor or the shared address.
    lane : int, optional
        Lane of the batch that caused it; the runner of the batch translates it into block and thread.
    lanes : ndarray of int, optional
        All lanes whose access is bad; the other lanes may proceed.

    Attributes
    ----------
    position : int or None
        Number of the instruction, once known.
    place : str
        Where it happened, in words, once known.
    line : int or None
        Line of the PTX, once known.
    times : int
        How often it was found at this instruction.
    others : sequence of Fault
        The other faults of the run, each kind once per instruction.
    left_out : int
        Number of faults beyond those that are kept.
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
    """A warp reached a barrier with only some of its threads."""


class Deadlock(Fault):
    """No thread can proceed: warps wait at barriers that will never complete, or a loop does not end."""


class StepLimit(Deadlock):
    """A batch of blocks has executed the largest allowed number of instructions."""


class Race(Fault):
    """Two warps touched the same shared bytes, one of them writing, with no barrier between."""


class UninitialisedRead(Fault):
    """Shared memory was read before it was written."""


class CopyInFlight(Fault):
    """Shared bytes were touched while a copy to them had not been waited for."""


class MisusedMbarrier(Fault):
    """An mbarrier is not initialised or visible, gets too many arrivals or bytes, or is used as ordinary memory."""


class RegisterInFlight(Fault):
    """A register in use by wgmma was accessed before wgmma.wait_group, or passed to wgmma without wgmma.fence."""


class TensorMemoryInFlight(Fault):
    """Tensor memory was accessed while a load, store or product on it may be in flight."""


class MisusedTensorMemory(Fault):
    """Tensor memory is not allocated, belongs to other warps' lanes, or is still allocated when the block ends."""


class InactiveLane(Fault):
    """A warp-wide instruction (mma, ldmatrix, shfl, ...) ran without a lane that it needs."""


class NotUniform(Fault):
    """Threads that must agree on an operand do not."""


class Trapped(Fault):
    """The kernel executed ``trap``."""


class Reports:
    """Handler of recoverable faults: raises them, or collects them to report all together.

    Attributes
    ----------
    found : dict of (int, type) to Fault
        The collected faults, each kind once per instruction.
    left_out : set of (int, type)
        Faults beyond the limit :data:`MOST`.
    position : int or None
        The current instruction; None while faults are raised at once.
    """

    def __init__(self) -> None:
        self.position: int | None = None
        self.found: dict[tuple[int, type[Fault]], Fault] = {}
        self.left_out: set[tuple[int, type[Fault]]] = set()

    def start(self) -> None:
        """Forget all faults, and raise the next one."""
        self.position, self.found, self.left_out = None, {}, set()

    def __call__(self, fault: Fault) -> None:
        """Collect a fault, or raise it."""
        if self.position is None:
            raise fault
        fault.position = self.position
        self.keep(fault)

    def keep(self, fault: Fault) -> None:
        """Collect a fault whose position is known."""
        key = (-1 if fault.position is None else fault.position, type(fault))
        if key in self.found:
            self.found[key].times += fault.times
        elif len(self.found) < MOST:
            self.found[key] = fault
        else:
            self.left_out.add(key)

    def first(self) -> Fault:
        """Return the first collected fault, with the rest as its `others`."""
        first, *others = self.found.values()
        first.others, first.left_out = others, len(self.left_out)
        return first
