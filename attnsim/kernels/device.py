"""Where a kernel runs: a GPU through CuPy, or the CPU through the PTX interpreter. Operations are written once.

Arrays are NumPy's on the CPU and CuPy's on a GPU. 16-bit floats are ``float16`` (fp16) or ``uint16`` (the bits of
bf16, which NumPy has no type for).
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
    """What an operation may ask of the machine that it runs on.

    Attributes
    ----------
    gpu : Gpu
        The GPU, or on the CPU the GPU whose tiles and limits are taken.
    persistent : bool
        Whether a block may take one tile after the other; else each has a block of its own.
    """

    gpu: Gpu
    persistent: bool

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """An array of unspecified content."""
        ...

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Array:
        """An array of zeros."""
        ...

    def upload(self, array: Any) -> Array:
        """A NumPy array, on the device."""
        ...

    def download(self, array: Array) -> NDArray[Any]:
        """An array of the device, in NumPy."""
        ...

    def tensor_map(self, array: Array, rows: int) -> Any:
        """What the tensor copy engine of Hopper and newer takes: an argument of a kernel, for boxes of one head.

        Parameters
        ----------
        array : array ``[batch, heads, seq, head_dim]``
            16-bit.
        rows : int
            Of a box; it is 64 elements wide, and rows past the end of a head are zeros.

        Raises
        ------
        InputError
            When the device has none, or refuses the shape.
        """
        ...

    def launch(self, variant: Variant, grid: Grid, arguments: Mapping[str, Array]) -> None:
        """Run a kernel.

        Parameters
        ----------
        variant : Variant
        grid : (int, int, int)
        arguments : mapping of str to array or NumPy scalar
            In the order of the kernel's parameters. An array's key is the tensor's name in the schedule, and in the
            counts.
        """
        ...
