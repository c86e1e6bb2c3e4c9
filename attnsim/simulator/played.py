"""Result of a replay, by either engine."""

from __future__ import annotations

from dataclasses import dataclass

from attnsim.arrays import Ints


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """Result of replaying blocks on some SMs.

    Parameters
    ----------
    time : int
        Picoseconds from the first block's start until the last byte was stored; 1 if the blocks do nothing.
    ends : ndarray of int, shape [blocks]
        End of each block in picoseconds, in ascending order.
    order : ndarray of int, shape [blocks]
        Launch numbers of these blocks.
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
