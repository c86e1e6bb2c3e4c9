"""How the blocks of a kernel share its tensors, which decides what the L2 cache can answer."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorUse:
    """How the blocks of a kernel share a tensor: what the L2 cache has to hold for re-reads to hit.

    Parameters
    ----------
    tensor : str
        Name, the same in all kernels of a schedule.
    piece_bytes : int
        Bytes that a set of blocks reads in common (the K of one head).
    pieces : int
        How many such pieces there are; ``piece_bytes * pieces`` is the compulsory traffic.
    sharers : float
        Blocks, consecutive in launch order, that touch each piece.
    passes_per_block : float
        Times a block goes over its piece (FlashAttention-1 re-reads Q once per block of keys).
    written : bool
        Whether the tensor is an output.
    in_place : bool
        Of a tensor that the kernel both reads and writes: whether it reads what was there before, rather than what it
        has written itself.
    just_written : bool
        Of a tensor that the kernel reads back: whether it does so right after it was written, and finds it in the L2;
        as written, whether it never leaves it.
    all_bytes : int
        Of pieces of different sizes, which `piece_bytes` is the mean of: all of them; 0: as many as the pieces say.
    apart_bytes : int
        What passes through the cache from one touch of a piece to the next, where blocks that share it do not follow
        one another; 0: what running blocks work on.
    rounds : float
        Most times that a piece is fetched: blocks that do follow one another share a fetch.
    scattered : int
        1 where blocks read parts of it here and there, so that a read again hits with the share that the L2 holds; 2
        where what they read grows along the sequence, as causal queries do; 0 where they walk it together.
    """

    tensor: str
    piece_bytes: int
    pieces: int
    sharers: float = 1.0
    passes_per_block: float = 1.0
    written: bool = False
    in_place: bool = False
    just_written: bool = False
    all_bytes: int = 0
    apart_bytes: int = 0
    rounds: float = math.inf
    scattered: int = 0

    @property
    def unique_bytes(self) -> int:
        """Compulsory traffic: every byte once."""
        return self.all_bytes or self.piece_bytes * self.pieces
