"""Resident thread blocks per SM, and the refusal of tiles that do not fit.

Rules: CUDA C++ Programming Guide, "Compute Capabilities" (limits per SM; registers are allocated per warp in units
of 256; each block reserves `Sm.shared_memory_reserved_bytes` in addition to its own shared memory).
"""

from __future__ import annotations

from dataclasses import dataclass

from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.schedule.schedule import Kernel, check_shared_memory

REGISTER_UNIT = 256
SHARED_MEMORY_UNIT = 128
WARP = 32


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks that share an SM, and the resource that limits their number."""

    blocks_per_sm: int
    limited_by: str


def occupancy(kernel: Kernel, gpu: Gpu) -> Occupancy:
    """Resident blocks of `kernel` on one SM of `gpu`.

    Raises
    ------
    InputError
        When not even one block fits; the message names the buffers and the limit.
    """
    check_shared_memory(kernel.name, kernel.buffers, gpu)
    sm = gpu.sm
    if kernel.threads > sm.max_threads_per_block or kernel.registers_per_thread > sm.max_registers_per_thread:
        raise InputError(
            f"{kernel.name}: a block has {kernel.threads} threads with {kernel.registers_per_thread} registers each; "
            f"{gpu.id} takes {sm.max_threads_per_block} threads a block and {sm.max_registers_per_thread} registers a "
            "thread; take a smaller tile"
        )
    limits = block_limits(kernel, gpu)
    name = min(limits, key=lambda limit: limits[limit])
    if limits[name] < 1:
        raise InputError(
            f"{kernel.name}: a block of {kernel.threads} threads with {kernel.registers_per_thread} registers each "
            f"does not fit {gpu.id}: too many {name}; take a smaller tile or fewer warps"
        )
    return Occupancy(limits[name], name)


def block_limits(kernel: Kernel, gpu: Gpu) -> dict[str, int]:
    """Number of blocks of `kernel` that fit each resource of an SM."""
    sm = gpu.sm
    warps = -(-kernel.threads // WARP)
    registers = warps * _round_up(kernel.registers_per_thread * WARP, REGISTER_UNIT)
    shared = _round_up(kernel.shared_memory_bytes, SHARED_MEMORY_UNIT) + sm.shared_memory_reserved_bytes
    limits = {
        "threads": sm.max_threads // kernel.threads,
        "registers": sm.registers // max(registers, 1),
        "shared memory": sm.shared_memory_bytes // shared if shared else sm.max_blocks,
        "block slots": sm.max_blocks,
    }
    if kernel.max_blocks_per_sm is not None:
        limits["launch bounds"] = kernel.max_blocks_per_sm
    return limits


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
