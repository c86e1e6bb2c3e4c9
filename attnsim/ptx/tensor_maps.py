"""Tensor maps, the descriptors of the tensor copy engine: an array, and the box that a copy moves."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnsim.errors import InputError
from attnsim.ptx.lanes import Indices, Values
from attnsim.ptx.memory import SECTOR
from attnsim.ptx.ordering import PIECE

MAP_BYTES = 128
"""Bytes of a tensor map among a kernel's parameters."""

LARGEST_BOX = 256
"""Largest extent of a box in any dimension (CUDA Driver API, ``cuTensorMapEncodeTiled``)."""

SWIZZLE_BYTES = 128
SWIZZLES = (0, 32, 64, 128)
"""Bytes that a swizzle permutes, 0 for none. A pattern repeats every eight rows of so many bytes."""

ALIGNMENT = 128
"""Smallest alignment of a box in shared memory, for any swizzle."""


class Overlap(NamedTuple):
    """The overlap of a box and an array: its place in the array, its part of the box, and its sectors."""

    place: tuple[slice, ...]
    inside: tuple[slice, ...]
    sectors: int


@dataclass(frozen=True, eq=False, slots=True)
class TensorMap:
    """A map as ``cuTensorMapEncodeTiled`` encodes it, with element strides of 1 and zeros out of bounds.

    Parameters
    ----------
    array : ndarray
        C-contiguous, elements of 1 to 8 bytes; dimensions from slowest to fastest.
    box : tuple of int
        Extent of a box in elements, in the same order.
    swizzle_bytes : int, optional
        One of :data:`SWIZZLES`.

    Raises
    ------
    InputError
        For maps that the driver rejects.
    """

    array: NDArray[Any]
    box: tuple[int, ...]
    swizzle_bytes: int = SWIZZLE_BYTES
    _overlaps: dict[tuple[int, ...], Overlap] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        item = self.array.itemsize
        if not self.array.flags.c_contiguous or item not in (1, 2, 4, 8):
            raise InputError(f"a tensor map takes contiguous arrays of elements of 1 to 8 bytes, not {self.dtype}")
        if self.swizzle_bytes not in SWIZZLES or len(self.box) != self.array.ndim:
            raise InputError(
                f"a tensor map of boxes {list(self.box)} with a swizzle of {self.swizzle_bytes} bytes; allowed: a size "
                f"for each of {self.array.ndim} dimensions, and a swizzle of {SWIZZLES}"
            )
        most = min(self.swizzle_bytes // item or LARGEST_BOX, LARGEST_BOX)
        if not all(1 <= size <= LARGEST_BOX for size in self.box) or self.box[-1] > most:
            raise InputError(
                f"a tensor map of boxes {list(self.box)}; allowed: {LARGEST_BOX} elements in each dimension, "
                f"{most} in the last"
            )
        for what, width in (("of ", self.array.shape[-1]), ("of boxes with ", self.box[-1])):
            if width * item % PIECE:
                raise InputError(f"a tensor map {what}rows of {width} elements; allowed: multiples of {PIECE // item}")

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the array."""
        return self.array.dtype

    @property
    def alignment(self) -> int:
        """Alignment of a box in shared memory, in bytes: the size of one repetition of the swizzle.

        CUDA C++ Programming Guide, "TMA Swizzle": 1,024 under 128 bytes, 512 under 64, 256 under 32.
        """
        return max(8 * self.swizzle_bytes, ALIGNMENT)

    @property
    def box_bytes(self) -> int:
        """Bytes that a copy writes to shared memory."""
        return math.prod(self.box) * self.array.itemsize

    def boxes(self, corners: Indices) -> tuple[Values, Indices, int]:
        """Return the boxes at corners ``[copies, dimensions]``, with zeros outside the array.

        Returns
        -------
        ndarray of uint16 ``[copies, words of a box]``
        ndarray of int
            Bytes of each box that lie in the array.
        int
            32-byte sectors of those bytes, summed over copies.
        """
        values = np.zeros((len(corners), *self.box), self.dtype)
        valid, sectors = np.zeros(len(corners), np.int64), 0
        for copy, corner in enumerate(corners.tolist()):
            place, inside, touched = self.overlap(tuple(corner))
            taken = values[copy][inside]
            taken[...] = self.array[place]
            valid[copy] = taken.nbytes
            sectors += touched
        return values.reshape(len(corners), -1).view(np.uint16), valid, sectors

    def overlap(self, corner: tuple[int, ...]) -> Overlap:
        """Return the overlap of the array and the box at a corner; empty if the box lies outside."""
        if corner not in self._overlaps:
            self._overlaps[corner] = self._overlap(corner)
        return self._overlaps[corner]

    def _overlap(self, corner: tuple[int, ...]) -> Overlap:
        place, inside = [], []
        for start, size, length in zip(corner, self.box, self.array.shape, strict=True):
            low, high = max(start, 0), max(min(start + size, length), start, 0)
            place.append(slice(low, high))
            inside.append(slice(low - start, high - start))
        return Overlap(tuple(place), tuple(inside), self._sectors(tuple(place)))

    def _sectors(self, place: tuple[slice, ...]) -> int:
        """Count the 32-byte sectors of a part of the array, row by row."""
        item, last = self.array.itemsize, place[-1]
        if not any(at * item % SECTOR for at in (last.start, last.stop, self.array.shape[-1])):
            return int(math.prod(part.stop - part.start for part in place) * item // SECTOR)
        row = np.zeros((), np.int64)
        for part, length in zip(place[:-1], self.array.shape[:-1], strict=True):
            row = np.add.outer(row * length, np.arange(part.start, part.stop))
        begin, end = (item * (row * self.array.shape[-1] + at) for at in (last.start, last.stop))
        return int(((end - 1) // SECTOR - begin // SECTOR + 1).sum()) if last.start < last.stop else 0


def swizzled(addresses: Values, span: int) -> Values:
    """Apply a swizzle of `span` bytes to shared addresses; 16 or less means none.

    With 128 bytes, bits 4 to 6 are XORed with bits 7 to 9.
    Source: PTX ISA 9.0, "Swizzling Modes"; the same permutation is ``Swizzle<3, 4, 3>`` in CUTLASS.
    """
    found: Values = addresses ^ ((addresses >> 7 & (max(span // PIECE, 1) - 1)) << 4)
    return found
