"""Devices that run kernels: a GPU through CuPy, or the CPU through the PTX interpreter.

Operations are written once for both. Arrays are NumPy's on the CPU and CuPy's on a GPU. 16-bit floats are ``float16``
(fp16) or ``uint16`` (the bits of bf16, which NumPy has no type for).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from attnsim.kernels.variant import Variant
from attnsim.models.hardware.gpu import Gpu

Array = Any
"""A NumPy array or a CuPy array."""

Grid = tuple[int, int, int]


class Device(Protocol):
    """Interface of a device to the operations.

    Attributes
    ----------
    gpu : Gpu
        The GPU; on the CPU, the GPU whose tiles and limits apply.
    persistent : bool
        True if a block may process several tiles; else each tile has its own block.
    """

    gpu: Gpu
    persistent: bool

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Allocate an array of unspecified content."""
        ...

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Allocate an array of zeros."""
        ...

    def upload(self, array: Any) -> Array:
        """Copy a NumPy array to the device."""
        ...

    def download(self, array: Array) -> NDArray[Any]:
        """Copy an array of the device to NumPy."""
        ...

    def tensor_map(self, array: Array, rows: int) -> Any:
        """Return a tensor map for boxes of one head: a kernel argument for the copy engine of Hopper and newer.

        Parameters
        ----------
        array : array ``[batch, heads, seq, head_dim]``
            16-bit.
        rows : int
            Rows of a box, which is 64 elements wide; rows past the end of a head are zeros.

        Raises
        ------
        InputError
            If the device has no tensor maps, or does not support the shape.
        """
        ...

    def launch(self, variant: Variant, grid: Grid, arguments: Mapping[str, Array]) -> None:
        """Run a kernel.

        Parameters
        ----------
        arguments : mapping of str to array or NumPy scalar
            In the order of the kernel's parameters. An array's key is its tensor's name in the schedule and the counts.
        """
        ...
