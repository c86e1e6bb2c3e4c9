"""What a kernel can do wrong. Every fault names the kernel, the instruction, and the block and thread."""

from __future__ import annotations


class Fault(Exception):
    """Something that a GPU forbids or leaves undefined.

    Parameters
    ----------
    what : str
        What happened, with the tensor or the shared address.
    lane : int, optional
        Lane of the batch that did it; whoever runs the batch turns it into a block and a thread.

    Attributes
    ----------
    position : int or None
        Number of the instruction, once known.
    place : str
        Where it happened, in words, once known.
    """

    def __init__(self, what: str, lane: int | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.lane = lane
        self.position: int | None = None
        self.place = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.what}" if self.place else self.what


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


class InactiveLane(Fault):
    """A warp-wide instruction (mma, ldmatrix, shfl, ...) ran without a lane that it needs."""


class NotUniform(Fault):
    """Threads that must agree on an operand do not."""


class Trapped(Fault):
    """The kernel executed ``trap``."""
