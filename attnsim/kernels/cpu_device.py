"""The CPU as a device: NVRTC compiles kernels to PTX, and the interpreter runs them and counts every access."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.kernels.device import Grid, check_launch, check_supported
from attnsim.kernels.variant import Variant, compile_variant
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.schedule.schedule import Kernel, Schedule
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
        ptx = compile_variant(variant, self.architecture(variant), cubin=False).ptx
        block, shared = (variant.threads, 1, 1), variant.shared_memory_bytes
        counters = run(ptx, variant.entry, grid, block, arguments, shared, checks=self.checks)
        self.launches.append(Launched(variant, grid, counters))

    def architecture(self, variant: Variant) -> str:
        """Return the architecture that a kernel is compiled for: "80", "90a"."""
        nearest = max(arch for arch in PTX_ARCHITECTURES if arch <= self.gpu.compute_capability_number)
        return f"{nearest}{variant.arch_suffix}"

    def requested(self) -> dict[tuple[str, str, str], int]:
        """Return bytes requested of global memory by (kernel, "load" or "store", tensor), summed over launches."""
        out: Counter[tuple[str, str, str]] = Counter()
        for one in self.launches:
            out.update({(one.variant.entry, *key): count for key, count in one.counters.requested().items()})
        return dict(out)


EXACT = ("blocks", "load", "store")
"""Quantities that must agree exactly; FLOPs and exponentials may differ, since the schedule charges by model."""


@dataclass(frozen=True, slots=True)
class Count:
    """One quantity of one kernel.

    Parameters
    ----------
    quantity : str
        "blocks", "load Q", "tensor FLOPs", ...
    counted : int
        Count of the interpreter.
    planned : int or None
        Count of the schedule; None if it has no such quantity.
    """

    kernel: str
    quantity: str
    unit: str
    counted: int
    planned: int | None = None

    @property
    def agrees(self) -> bool | None:
        """True if the two counts are equal; None if there is nothing to compare."""
        return None if self.planned is None else self.counted == self.planned

    @property
    def must_agree(self) -> bool:
        """True if a difference is a bug."""
        return self.quantity.split()[0] in EXACT


def compare(launches: Sequence[Launched], schedule: Schedule) -> list[Count]:
    """Return the counts of every kernel that ran or was planned, in launch order, summed over equal launches."""
    names = dict.fromkeys([*(kernel.name for kernel in schedule.kernels), *(one.variant.entry for one in launches)])
    found: list[Count] = []
    for name in names:
        ran = [one for one in launches if one.variant.entry == name]
        planned = [kernel for kernel in schedule.kernels if kernel.name == name]
        found += _counts(name, ran, planned)
    return found


def _counts(name: str, ran: Sequence[Launched], planned: Sequence[Kernel]) -> Iterator[Count]:
    total = sum((one.counters for one in ran), Counters())
    blocks = sum(math.prod(one.grid) for one in ran)
    yield Count(name, "blocks", "", blocks, sum(kernel.blocks for kernel in planned))
    wanted: Counter[tuple[str, str]] = Counter()
    for kernel in planned:
        wanted.update(kernel.requested())
    got = total.requested()
    for kind, tensor in sorted({*got, *wanted}):
        key = kind, tensor
        yield Count(name, f"{kind} {tensor}", "B", got.get(key, 0), wanted.get(key, 0))
    on_tensor_cores = [kernel for kernel in planned if kernel.path != "simt"]
    flops = sum(kernel.total("flops") for kernel in on_tensor_cores)
    yield Count(name, "tensor FLOPs", "", total.tensor_flops, flops)
    yield Count(name, "exponentials", "", total.exponentials, sum(kernel.total("exps") for kernel in planned))
    yield Count(name, "FP32 FLOPs", "", total.flops)
    yield Count(name, "sectors loaded", "32 B", total.sectors_loaded)
    yield Count(name, "sectors stored", "32 B", total.sectors_stored)
    yield Count(name, "shared memory", "B", total.shared_bytes_loaded + total.shared_bytes_stored)
    yield Count(name, "bank conflicts", "", total.bank_conflicts)
    yield Count(name, "barriers", "", total.barriers)
    yield Count(name, "shuffles", "", total.shuffles)
    yield Count(name, "local memory", "B", total.local_bytes)
