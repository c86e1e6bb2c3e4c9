"""The CPU as a device: NVRTC compiles kernels to PTX, and the interpreter runs them and counts every access."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.kernels.device import Grid
from attnsim.kernels.limits import check_launch, check_supported
from attnsim.kernels.variant import Variant, compile_variant
from attnsim.models.hardware.gpu import Gpu
from attnsim.ptx.counters import POISON, Counters
from attnsim.ptx.run import run
from attnsim.ptx.shared import SWIZZLE_BYTES, TensorMap

PTX_ARCHITECTURES = (80, 86, 89, 90)
"""Architectures to compile for; a newer GPU gets the newest of them."""


@dataclass(frozen=True, slots=True)
class Launched:
    """One kernel launch and its counts."""

    variant: Variant
    grid: Grid
    counters: Counters


class CpuDevice:
    """Runs kernels in the PTX interpreter, within the limits of a GPU and with its tiles.

    Parameters
    ----------
    gpu : str or Gpu
        Built-in id, GPU file, or the GPU itself, for its tiles and limits.
    checks : bool
        Check for races, uninitialised shared memory and the like.

    Raises
    ------
    InputError
        For an unknown GPU, or one older than the kernels need.

    Attributes
    ----------
    launches : list of Launched
        All launches, in order.

    Examples
    --------
    >>> from attnsim.kernels.cpu_device import CpuDevice
    >>> CpuDevice("h100-sxm5-80gb").gpu.sm.shared_memory_per_block_bytes
    232448
    """

    persistent = True

    def __init__(self, gpu: str | Gpu = "a100-sxm4-80gb", *, checks: bool = True) -> None:
        if not isinstance(gpu, Gpu):
            from attnsim.models.hardware.files import load_gpu  # YAML and pydantic: not on a bare GPU machine

            gpu = load_gpu(gpu)
        self.gpu: Gpu = gpu
        check_supported(self.gpu)
        self.checks = checks
        self.launches: list[Launched] = []

    def empty(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """Allocate an array filled with poison."""
        array = np.empty(shape, dtype)
        array.reshape(-1).view(np.uint8)[:] = POISON
        return array

    def zeros(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """Allocate an array of zeros."""
        return np.zeros(shape, dtype)

    def upload(self, array: Any) -> NDArray[Any]:
        """Return a contiguous copy, so that the kernel cannot change the caller's array."""
        return np.array(array, order="C", copy=True)

    def download(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the array itself, which is a NumPy array already."""
        return array

    def tensor_map(self, array: NDArray[Any], rows: int) -> TensorMap:
        """Return the tensor map for boxes of `rows` x 64 elements of one head."""
        batch, heads, seq, width = array.shape
        return TensorMap(array.reshape(batch * heads, seq, width), (1, rows, SWIZZLE_BYTES // 2))

    def launch(self, variant: Variant, grid: Grid, arguments: Mapping[str, Any]) -> None:
        """Compile a kernel for the nearest architecture, run it, and record its counts.

        Raises
        ------
        InputError
            If a block does not fit the GPU, or the kernel does not compile.
        Fault
            If the kernel does something wrong; with the place.
        """
        check_launch(variant, grid, arguments, self.gpu)
        nearest = max(arch for arch in PTX_ARCHITECTURES if arch <= self.gpu.compute_capability_number)
        ptx = compile_variant(variant, f"{nearest}{variant.arch_suffix}", cubin=False).ptx
        counters = run(
            ptx,
            variant.entry,
            grid,
            (variant.threads, 1, 1),
            arguments,
            variant.shared_memory_bytes,
            checks=self.checks,
        )
        self.launches.append(Launched(variant, grid, counters))

    def requested(self) -> dict[tuple[str, str, str], int]:
        """Return bytes requested of global memory by (kernel, "load" or "store", tensor), summed over launches."""
        out: Counter[tuple[str, str, str]] = Counter()
        for one in self.launches:
            out.update({(one.variant.entry, *key): count for key, count in one.counters.requested().items()})
        return dict(out)
