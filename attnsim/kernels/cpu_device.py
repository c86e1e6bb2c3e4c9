"""The CPU as a device: kernels are compiled to PTX by NVRTC and run by the interpreter, every access counted."""

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
from attnsim.ptx.counters import Counters
from attnsim.ptx.formats import POISON
from attnsim.ptx.run import run
from attnsim.ptx.tensor_maps import SWIZZLE_BYTES, TensorMap

PTX_ARCHITECTURES = (80, 86, 89, 90)
"""What kernels are compiled for here; a newer GPU is played by the newest of them."""


@dataclass(frozen=True, slots=True)
class Launched:
    """One kernel that ran, and what it did.

    Parameters
    ----------
    variant : Variant
    grid : (int, int, int)
    counters : Counters
    """

    variant: Variant
    grid: Grid
    counters: Counters


class CpuDevice:
    """Runs kernels in the PTX interpreter, within the limits of a GPU and with its tiles.

    Parameters
    ----------
    gpu : str or Gpu
        Built-in id, GPU file, or the GPU itself: whose tiles and limits are taken.
    checks : bool
        Whether races, uninitialised shared memory and the like are looked for as well.

    Raises
    ------
    InputError
        For an unknown GPU, or one older than the kernels need.

    Attributes
    ----------
    gpu : Gpu
    launches : list of Launched
        What has run, in order.

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
        """An array of poison."""
        array = np.empty(shape, dtype)
        array.reshape(-1).view(np.uint8)[:] = POISON
        return array

    def zeros(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """An array of zeros."""
        return np.zeros(shape, dtype)

    def upload(self, array: Any) -> NDArray[Any]:
        """A contiguous copy: what the kernel does to it, it does not do to the caller's."""
        return np.array(array, order="C", copy=True)

    def download(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array itself, which is NumPy's already."""
        return array

    def tensor_map(self, array: NDArray[Any], rows: int) -> TensorMap:
        """Boxes of `rows` x 64 elements of one head."""
        batch, heads, seq, width = array.shape
        return TensorMap(array.reshape(batch * heads, seq, width), (1, rows, SWIZZLE_BYTES // 2))

    def launch(self, variant: Variant, grid: Grid, arguments: Mapping[str, Any]) -> None:
        """Compile a kernel for the nearest architecture, run it and record what it did.

        Raises
        ------
        InputError
            When the GPU could not hold a block of it, or it does not compile.
        Fault
            What the kernel does wrong, and where.
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
        """Bytes requested of global memory by (kernel, "load" or "store", tensor), summed over the launches."""
        out: Counter[tuple[str, str, str]] = Counter()
        for one in self.launches:
            out.update({(one.variant.entry, *key): count for key, count in one.counters.requested().items()})
        return dict(out)
