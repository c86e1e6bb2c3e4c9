"""What a play shows, by whichever player."""

from __future__ import annotations

from dataclasses import dataclass

from attnsim.arrays import Ints


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """What a replay of blocks on some SMs showed.

    Parameters
    ----------
    time : int
        Picoseconds from the first block's start until the last byte was stored; 1 of blocks that do nothing.
    ends : ndarray of int, shape [blocks]
        When each block ended, one after the other.
    order : ndarray of int, shape [blocks]
        Their numbers in launch order.
    waited : int
        Picoseconds that warpgroups waited for data, summed over SMs.
    loaded, stored : tuple of int
        Bytes by tensor.
    spent : ndarray of int, shape [rows, marks]
        Picoseconds that the warpgroups of the blocks of each row spent before each kind of mark.
    """

    time: int
    ends: Ints
    order: Ints
    waited: int
    loaded: tuple[int, ...]
    stored: tuple[int, ...]
    spent: Ints
