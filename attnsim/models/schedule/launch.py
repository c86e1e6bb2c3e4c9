"""The blocks of a grid in launch order, held by what repeats in it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Launch:
    """A run of thread blocks in launch order.

    Parameters
    ----------
    rows : ndarray of int, shape [rows] or [rows, blocks]
        Block classes.
    times : int
        How often the whole of it is launched, one after the other.
    each : int
        How often each row of it is. A grid of a million blocks is held, counted and looked up by its rows.
    """

    rows: NDArray[np.int64]
    times: int = 1
    each: int = 1

    @classmethod
    def alike(cls, blocks: int, block_class: int = 0) -> Launch:
        """So many blocks of one class."""
        return cls(np.array([block_class], dtype=np.int64), blocks)

    def __len__(self) -> int:
        """Blocks of one time."""
        return self.rows.size * self.each

    @cached_property
    def classes(self) -> NDArray[np.int64]:
        """The class of each block of one time."""
        return (self.rows if self.each == 1 else np.repeat(self.rows, self.each, axis=0)).reshape(-1)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Blocks of each class that one time has, up to the last of them."""
        return np.bincount(self.rows.reshape(-1)) * self.each

    def at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The classes of the blocks at some places, of all times."""
        rows = self.rows.reshape(len(self.rows), -1)
        width = rows.shape[1]
        return rows[places % len(self) // (width * self.each), places % width]

    def same(self, other: Launch) -> bool:
        """Whether the other one launches the same blocks in the same order."""
        if self.each == other.each and self.rows.shape == other.rows.shape:
            return self.times == other.times and np.array_equal(self.rows, other.rows)
        return self.times == other.times and np.array_equal(self.classes, other.classes)
