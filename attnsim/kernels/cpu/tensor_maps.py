"""Descriptors of the tensor copy engine: which array, and which box of it a copy takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.kernels.cpu.lanes import Indices, Values
from attnsim.kernels.cpu.memory import SECTOR
from attnsim.kernels.cpu.ordering import PIECE
from attnsim.models.errors import InputError

MAP_BYTES = 128
"""What a map takes among a kernel's parameters."""

LARGEST_BOX = 256
"""Elements of a box in any dimension (CUDA Driver API, ``cuTensorMapEncodeTiled``)."""

SWIZZLE_BYTES = 128


@dataclass(frozen=True, eq=False, slots=True)
class TensorMap:
    """What ``cuTensorMapEncodeTiled`` encodes, with the 128-byte swizzle, steps of 1 and zeros out of bounds.

    Parameters
    ----------
    array : ndarray
        16-bit, C-contiguous; dimensions from slowest to fastest.
    box : tuple of int
        Elements of a copy, in the same order.

    Raises
    ------
    InputError
        For what the driver refuses.
    """

    array: NDArray[Any]
    box: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.array.flags.c_contiguous or self.array.itemsize != 2:
            raise InputError("a tensor map takes contiguous arrays of 16-bit elements")
        if not all(1 <= size <= LARGEST_BOX for size in self.box) or self.box[-1] * 2 > SWIZZLE_BYTES:
            raise InputError(
                f"a tensor map of boxes {list(self.box)}; allowed: {LARGEST_BOX} elements in each dimension, "
                f"{SWIZZLE_BYTES // 2} in the last"
            )
        if self.array.shape[-1] * 2 % 16:
            raise InputError(f"a tensor map of rows of {self.array.shape[-1]} elements; allowed: multiples of 8")

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the array."""
        return self.array.dtype

    @property
    def box_bytes(self) -> int:
        """Bytes that a copy writes to shared memory."""
        return math.prod(self.box) * 2

    def boxes(self, corners: Indices) -> tuple[Values, Indices, int]:
        """The boxes at corners ``[copies, dimensions]``, zero where they stick out.

        Returns
        -------
        ndarray of uint16 ``[copies, elements of a box]``
        ndarray of int
            Bytes of each that lie in the array.
        int
            32-byte sectors that these take, all copies together.
        """
        rank = len(self.box)
        inside = np.ones((len(corners), *(1,) * rank), bool)
        place: list[Indices] = []
        for d, (size, length) in enumerate(zip(self.box, self.array.shape, strict=True)):
            index = (corners[:, d, None] + np.arange(size)).reshape(-1, *(size if d == e else 1 for e in range(rank)))
            inside = inside & (index >= 0) & (index < length)
            place.append(np.clip(index, 0, length - 1))
        values = np.where(inside, self.array.view(np.uint16)[tuple(place)], np.uint16(0))
        valid = np.count_nonzero(inside.reshape(len(corners), -1), axis=1) * 2
        return values.reshape(len(corners), -1), valid, self._sectors(inside, place)

    def _sectors(self, inside: Values, place: list[Indices]) -> int:
        """Sectors by rows of the boxes, which lie far apart in memory."""
        row = np.zeros((1,) * inside.ndim, np.int64)
        for index, length in zip(place[:-1], self.array.shape[:-1], strict=True):
            row = row * length + index
        used = inside.any(axis=-1)
        first = 2 * (row * self.array.shape[-1] + place[-1][..., :1])[..., 0]
        last = first + 2 * np.count_nonzero(inside, axis=-1) - 1
        return int((last // SECTOR - first // SECTOR + 1)[used].sum())


def swizzled(addresses: Values, span: int = SWIZZLE_BYTES) -> Values:
    """Shared addresses after a swizzle of `span` bytes: of 128, bits 4 to 6 by exclusive or with bits 7 to 9.

    Source: PTX ISA 9.0, "Swizzling Modes"; the same permutation is ``Swizzle<3, 4, 3>`` in CUTLASS.
    """
    found: Values = addresses ^ ((addresses >> 7 & (span // PIECE - 1)) << 4)
    return found
