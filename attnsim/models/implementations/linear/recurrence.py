"""Decoding: a block holds some columns of a head's state in registers and takes in the new tokens one by one.

Nothing depends on the tokens before: their state is read once and written once.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnsim.models.implementations.linear.chunks import Chunks, Flow, Work
from attnsim.models.implementations.linear.shape import Shape
from attnsim.models.schedule.schedule import Kernel

RECURRENT = "fused_recurrent"
TAPS = 4
"""Tokens that the short convolution spans in every model of the family."""


@dataclass(frozen=True, slots=True)
class Recurrence:
    """How an implementation decodes.

    Parameters
    ----------
    columns : int
        Columns of the state that a block has (BV).
    warps : int
    before, after : int
        Bytes of an element of the state as it is read and as it is written; 0 where it is not written.
    gates : int
        Bytes of a gate.
    channels : bool
        Whether every channel of a key has a decay.
    delta : bool
        Whether there is a delta rule.
    kept : int
        Bytes of an element of the states that are written after every token, for drafts that may be rejected.
    around : bool
        Whether the short convolution before it, and the gated norm behind it, are in the same kernel.
    """

    columns: int
    warps: int
    before: int = 4
    after: int = 4
    gates: int = 4
    channels: bool = False
    delta: bool = True
    kept: int = 0
    around: bool = False

    def __str__(self) -> str:
        return f"{self.columns} columns of a state, {self.warps} warp{'s' * (self.warps > 1)}"

    def kernel(self, s: Shape, dtype: str) -> Kernel:
        """The kernel for a call."""
        columns = min(self.columns, s.dv)
        flows = [
            Flow("Q", s.d * s.e, "row", False, True, s.group),
            Flow("K", s.d * s.e, "row", False, True, s.group),
            Flow("V", columns * s.e),
            Flow("g", s.d * self.gates if self.channels else self.gates, by_columns=True),
            Flow("beta", self.gates, by_columns=True),
            Flow("O", columns * s.e, written=True),
            Flow("state", columns * s.d * self.before, "sequence"),
        ]
        if self.after:
            flows.append(Flow("state", columns * s.d * self.after, "sequence", written=True))
        if self.kept:
            flows.append(Flow("kept states", columns * s.d * self.kept, written=True))
        if self.around:
            before = (TAPS - 1) * (2 * s.d + s.dv) * s.e
            flows += [
                Flow("taps' tokens", before, "sequence", by_columns=True),
                Flow("taps' tokens", before, "sequence", True, True),
                Flow("output gate", columns * s.e),
            ]
        # Decay, k S and its sum, the update, q S and its sum: an instruction each for an element.
        work = Work(
            exps=s.d if self.channels else 1,
            fp32=(6 if self.delta else 4) * columns * s.d,
            links=8 if self.delta else 4,
        )
        one = Chunks(
            RECURRENT, 1, s.heads, tuple(flows), work, columns=-(-s.dv // columns), serial=True, ahead=False,
            warps=self.warps, registers=min(232, 40 + columns * s.d // (32 * self.warps)),
        )  # fmt: skip
        return one.kernel(s.sequences, s.tokens, dtype, s.e)
