"""Decoding: a block holds some columns of a head's state in registers and processes the new tokens one by one.

The time is independent of earlier tokens: their state is read once and written once.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnsim.by_hand import by_hand
from attnsim.models.implementations.linear.chunks import LINK_CLKS, Chunks, Work
from attnsim.models.implementations.linear.shape import Shape
from attnsim.models.schedule.axes import Tensor
from attnsim.models.schedule.schedule import Kernel

RECURRENT = "fused_recurrent"
TAPS = 4
"""Tokens that the short convolution spans in every model of the family."""
LANES_SUM = 5
"""Shuffles of a sum over the lanes of a warp."""
SHUFFLE = 4
"""FP32-lane instructions in the time of one lane's shuffle: 32 lanes per clock and SM against 128 (CUDA C++ Programming
Guide, "Arithmetic Instructions")."""
PREPARED = by_hand(
    LANES_SUM + 8, "links before a token's state: the sum of squares of Q and K, and the gate's functions"
)
TAKEN = by_hand(2 * LANES_SUM + 4, "links of a token in the state: decay, k S and its sum, the update, q S and its sum")


@dataclass(frozen=True, slots=True)
class Recurrence:
    """Decoding by one implementation.

    Parameters
    ----------
    columns : int
        Columns of the state per block (BV).
    narrower : tuple of (int, int)
        (states, columns): columns per block in calls of at most so many states.
    registers : int
        Registers per thread if the compiler is given them; 0: the state's and 40 more.
    before, after : int
        Bytes per element of the state as it is read and as it is written; 0 if it is not written.
    gates : int
        Bytes of a gate.
    channels : bool
        Whether every channel of a key has a decay.
    delta : bool
        Whether there is a delta rule.
    kept : int
        Bytes per element of the states that are written after every token, for drafts that may be rejected. For these
        kernels, whose tokens are sequential, the links and shuffles of a token are counted.
    turns : int
        Sequential parts of a block's columns, each with all tokens, from shared memory.
    ahead : bool
        Whether the next token's Q, K and V are prefetched.
    fused : bool
        Whether the preceding short convolution and the following gated norm are in the same kernel.
    """

    columns: int
    warps: int
    narrower: tuple[tuple[int, int], ...] = ()
    registers: int = 0
    before: int = 4
    after: int = 4
    gates: int = 4
    channels: bool = False
    delta: bool = True
    kept: int = 0
    turns: int = 1
    ahead: bool = False
    fused: bool = False

    def __str__(self) -> str:
        return f"{self.columns} columns of a state, {self.warps} warp{'s' * (self.warps > 1)}"

    def width(self, s: Shape) -> int:
        """Columns per block in a call."""
        return min(next((few for states, few in self.narrower if s.states <= states), self.columns), s.dv)

    def kernel(self, s: Shape, dtype: str) -> Kernel:
        """The kernel for a call."""
        columns = self.width(s)
        tensors = [
            Tensor("Q", "b h c", s.d * s.e),
            Tensor("K", "b h c", s.d * s.e),
            Tensor("V", "b h g c x", columns * s.e),
            Tensor("g", "b h g c", s.d * self.gates if self.channels else self.gates),
            Tensor("beta", "b h g c", self.gates),
            Tensor("O", "b h g c x", columns * s.e, written=True),
            Tensor("state", "b h g x", columns * s.d * self.before),
        ]
        if self.after:
            tensors.append(Tensor("state", "b h g x", columns * s.d * self.after, written=True))
        if self.kept:
            tensors.append(Tensor("kept states", "b h g c x", columns * s.d * self.kept, written=True))
        if self.fused:
            before = (TAPS - 1) * (2 * s.d + s.dv) * s.e
            kept = Tensor("kept taps' tokens", "b h g c", before, written=True)
            tensors += [
                Tensor("taps' tokens", "b h g", before),
                kept if self.kept else Tensor("taps' tokens", "b h g", before, written=True),
                Tensor("output gate", "b h g c x", columns * s.e),
            ]
        held = 40 + columns * s.d // (32 * self.warps * self.turns)
        one = Chunks(
            RECURRENT,
            1,
            s.groups,
            tuple(tensors),
            self._work(s, columns),
            columns=-(-s.dv // columns),
            serial=True,
            ahead=self.ahead,
            warps=self.warps,
            registers=self.registers or min(232, held),
            shared_memory_bytes=self._shared(s) if self.turns > 1 else 0,
        )
        return one.kernel(s.sequences, s.tokens, dtype, s.e)

    def _work(self, s: Shape, columns: int) -> Work:
        """Arithmetic of a block per token.

        Decay, k S and its sum, the update, q S and its sum are one instruction each per element. For drafts, whose
        tokens are sequential, more is counted: all links, the shuffles of both sums of each column, and the schedulers
        of its SM that a block of fewer than four warps leaves idle.
        """
        exps = s.d if self.channels else 1
        each = (6 if self.delta else 4) * columns * s.d
        if not self.kept:
            return Work(exps=exps, fp32=each, links=8 if self.delta else 4)
        shuffles = 2 * LANES_SUM * columns
        alone = each * (1 / (32 * self.warps) - 1 / (32 * 4)) if self.warps < 4 else 0.0
        links = PREPARED + self.turns * TAKEN + round(alone / LINK_CLKS)
        return Work(exps=exps, fp32=each + 32 * SHUFFLE * shuffles, links=links)

    def _shared(self, s: Shape) -> int:
        """Bytes of Q, K, decays, V and outputs of all tokens, the taps of K and V, and two parts of the state."""
        rows = s.tokens * (3 * s.d + 2 * s.dv) + TAPS * (s.d + s.dv)
        return 4 * (rows + 2 * s.d * s.dv // self.turns)
