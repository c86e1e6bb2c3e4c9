"""Devices that run kernels: a GPU through CuPy, or the CPU through the PTX interpreter.

Operations are written once for both. Arrays are NumPy's on the CPU and CuPy's on a GPU. 16-bit floats are ``float16``
(fp16) or ``uint16`` (the bits of bf16, which NumPy has no type for).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from attnsim.errors import InputError
from attnsim.kernels.variant import Variant
from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.hardware.gpu import Gpu
from attnsim.ptx.lanes import LARGEST_GRID

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


OLDEST = 80
"""Compute capability, times ten, of the first GPU with ``cp.async`` (PTX ISA, "cp.async": target sm_80)."""


def check_launch(variant: Variant, grid: Grid, arguments: Mapping[str, Any], gpu: Gpu) -> None:
    """Raise InputError for a launch that `gpu` cannot run; names the kernel, the limit and the need."""
    check_architecture(variant, gpu)
    sm = gpu.sm
    if variant.threads % 32 or not 32 <= variant.threads <= sm.max_threads_per_block:
        raise InputError(
            f"{variant.label} has {variant.threads} threads in a block; {gpu.id} takes multiples of 32 up to "
            f"{sm.max_threads_per_block}; choose fewer warps"
        )
    if variant.shared_memory_bytes > sm.shared_memory_per_block_bytes:
        raise InputError(
            f"Shared memory: {variant.label} needs {variant.shared_memory_bytes / 1024:g} KiB, {gpu.id} has "
            f"{sm.shared_memory_per_block_bytes / 1024:g} KiB per block; take a smaller tile or fewer stages"
        )
    if not all(1 <= blocks <= most for blocks, most in zip(grid, LARGEST_GRID, strict=True)):
        allowed = " x ".join(map(str, LARGEST_GRID))
        raise InputError(
            f"{variant.label} has a grid of {' x '.join(map(str, grid))} blocks; allowed: 1 x 1 x 1 to {allowed}; "
            "split the batch"
        )
    for name, value in arguments.items():
        if not hasattr(value, "dtype"):  # CuPy would guess the width of a plain number, and the kernel misread it
            raise InputError(f"{variant.label}: {name} is {value!r}; wrap scalars as np.int32, np.int64 or np.float32")


def check_supported(gpu: Gpu) -> None:
    """Raise InputError for a GPU that no kernel runs on."""
    if gpu.compute_capability_number < OLDEST:
        raise InputError(
            f"{gpu.id} has compute capability {gpu.compute_capability}; the kernels copy asynchronously, which needs "
            f"{OLDEST / 10} (A100 or newer)"
        )


def check_architecture(variant: Variant, gpu: Gpu) -> None:
    """Raise InputError for a kernel that needs another compute capability than this GPU has."""
    needed = variant.compute_capability[0] * 10 + variant.compute_capability[1]
    have = gpu.compute_capability_number
    exactly = bool(variant.arch_suffix)
    if have == needed or (have > needed and not exactly):
        return
    *others, last = architecture_of(needed).cards
    these = f"{', '.join(others)} or {last}" if others else last
    named = these if exactly else f"{[*others, last][0]} or newer"
    raise InputError(
        f"{variant.label} needs compute capability {'' if exactly else 'at least '}{needed // 10}.{needed % 10} "
        f"({named}); {gpu.id} has {gpu.compute_capability}"
    )
