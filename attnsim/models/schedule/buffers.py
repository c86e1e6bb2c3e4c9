"""Shared-memory buffers of a thread block."""

from __future__ import annotations

from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu

Buffers = tuple[tuple[str, int], ...]
"""Names of buffers and their bytes."""


def bytes_of(buffers: Buffers) -> int:
    """Shared memory of a block that has these buffers."""
    return sum(size for _, size in buffers)


def check_shared_memory(what: str, buffers: Buffers, gpu: Gpu, nearest: str = "") -> None:
    """Refuse a block whose buffers exceed the shared memory a block may have.

    Raises
    ------
    InputError
        Naming the buffers, the limit and, if given, the nearest tile that fits.
    """
    needed, limit = bytes_of(buffers), gpu.sm.shared_memory_per_block_bytes
    if needed <= limit:
        return
    parts = ", ".join(f"{name} {size / 1024:g}" for name, size in buffers)
    raise InputError(
        f"Shared memory: {what} needs {needed / 1024:g} KiB ({parts}), {gpu.id} has "
        f"{limit / 1024:g} KiB per block; {nearest or 'take a smaller tile or fewer stages'}"
    )
