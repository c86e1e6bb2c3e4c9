"""What a launch did, as a profiler would count it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields


@dataclass(slots=True)
class Counters:
    """Counts of one launch, or the sum of several (``a + b``).

    Parameters
    ----------
    loads, stores : Counter of str
        Requested bytes of global memory by tensor (the argument's name). An atomic is a store.
    load_sectors, store_sectors : Counter of str
        32-byte sectors by tensor that the warp instructions touched, each counted once per instruction.
    shared_bytes_loaded, shared_bytes_stored : int
        Requested bytes of shared memory; copies by cp.async are stores.
    shared_wavefronts : int
        Passes through the 32 banks of 4 bytes.
    bank_conflicts : int
        Passes more than an access without conflicts takes.
    local_bytes : int
        Local memory (spills, indexed arrays) loaded and stored.
    flops : int
        Additions and multiplications of floats outside the tensor cores; a fused multiply-add is two.
    tensor_flops : int
        Of ``mma``: 2 m n k each.
    exponentials : int
        ``ex2``, by thread.
    shuffles : int
        ``shfl``, by thread.
    barriers : int
        Block-wide barriers passed, by block.
    issued : Counter of (int, int)
        Warps that were issued instructions ``start`` to ``stop - 1`` of the kernel, by (start, stop).
    """

    loads: Counter[str] = field(default_factory=Counter)
    stores: Counter[str] = field(default_factory=Counter)
    load_sectors: Counter[str] = field(default_factory=Counter)
    store_sectors: Counter[str] = field(default_factory=Counter)
    shared_bytes_loaded: int = 0
    shared_bytes_stored: int = 0
    shared_wavefronts: int = 0
    bank_conflicts: int = 0
    local_bytes: int = 0
    flops: int = 0
    tensor_flops: int = 0
    exponentials: int = 0
    shuffles: int = 0
    barriers: int = 0
    issued: Counter[tuple[int, int]] = field(default_factory=Counter)

    @property
    def sectors_loaded(self) -> int:
        """Sectors loaded of all tensors."""
        return self.load_sectors.total()

    @property
    def sectors_stored(self) -> int:
        """Sectors stored of all tensors."""
        return self.store_sectors.total()

    @property
    def instructions(self) -> int:
        """Warp instructions issued."""
        return sum((stop - start) * warps for (start, stop), warps in self.issued.items())

    def requested(self) -> dict[tuple[str, str], int]:
        """Bytes of global memory by ("load" or "store", tensor), where there are any."""
        ways = (("load", self.loads), ("store", self.stores))
        return {(way, tensor): count for way, by_tensor in ways for tensor, count in by_tensor.items() if count}

    def __add__(self, other: Counters) -> Counters:
        """Sum, field by field."""
        return Counters(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})
