"""Model of the L2 cache: the share of each tensor's requests that HBM has to serve.

The model uses reuse distance, not cache lines. A read hits if the bytes that passed through the cache since the same
data was last touched fit the cache. Blocks that run at the same time walk a piece of a tensor together and share its
first read. A read in a later wave hits only if the pieces of all running blocks fit the cache together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnsim.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.schedule.schedule import Kernel

KNEE = by_hand((0.6, 1.4), "footprint over L2 capacity at which hits begin to fail, and at which none is left")
"""A least-recently-used cache would drop from all hits to none at 1. Hashing, two partitions and other traffic blur it
(docs/design/memory.md)."""

L2_KEPT = by_hand(0.6, "share of an L2 of two partitions, which duplicate lines, that holds data to be re-read")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes one kernel moves for one tensor, requested of the L2 and passed on to HBM."""

    tensor: str
    written: bool
    l2_bytes: int
    hbm_bytes: float


def kept(footprint: float, capacity: float) -> float:
    """Share of a footprint that a cache of `capacity` bytes still holds when it is touched again."""
    low, high = KNEE
    return min(1.0, max(0.0, (high - footprint / capacity) / (high - low)))


def traffic(
    kernels: tuple[Kernel, ...], slots: tuple[int, ...], gpu: Gpu, warm: bool
) -> tuple[tuple[Traffic, ...], ...]:
    """L2 and HBM bytes of every tensor of every kernel.

    Parameters
    ----------
    kernels : tuple of Kernel
        In launch order.
    slots : tuple of int
        Thread blocks of each kernel that run at the same time.
    warm : bool
        Whether the same call has just run, as in a benchmark loop without a flush. Inputs and outputs that fit the L2
        are then still there.

    Returns
    -------
    tuple of tuples of Traffic
        One tuple per kernel.
    """
    capacity = gpu.l2.capacity_bytes * (L2_KEPT if gpu.l2.partitions > 1 else 1.0)
    unique = [{use.tensor: use.unique_bytes for use in kernel.uses} for kernel in kernels]
    found = kept(sum(_largest(unique).values()), capacity) if warm else 0.0
    passed = 0  # bytes through the cache so far
    touched: dict[str, tuple[int, int]] = {}  # by tensor: `passed` when it was last touched, and its own bytes
    out = []
    for kernel, running, sizes in zip(kernels, slots, unique, strict=True):
        requested = kernel.requested()
        own = sum(sizes.values())

        def lost(blocks: float, kernel: Kernel = kernel) -> float:
            return 1 - kept(footprint(kernel, blocks), capacity)

        written_here = {use.tensor for use in kernel.uses if use.written}
        rows = []
        for use in kernel.uses:
            asked = requested.get(("store" if use.written else "load", use.tensor), 0)
            if asked == 0:
                continue
            if use.written:
                first = 1 - found
            elif use.tensor in touched:
                when, size = touched[use.tensor]
                there = kept(passed - when + own, capacity)
                part = min(1.0, size / use.unique_bytes)
                first = 1 - there if part == 1 else 1 - part * there - (1 - part) * found
            elif use.tensor in written_here and not use.in_place:
                first = lost(running)
            else:
                first = 1 - found
            again = max(0.0, asked / use.unique_bytes / use.passes_per_block - 1)
            if use.scattered:
                times = 1 + again * (1 - min(1.0, capacity / footprint(kernel, running))) ** use.scattered
            else:
                # A mask skips the same share of re-reads as of all reads.
                seen = min(1.0, again / (use.fetched(1) - 1)) if use.fetched(1) > 1 else 1.0
                times = 1 + (use.fetched(running, lost) - 1) * seen
            times *= 1 + (use.passes_per_block - 1) * lost(running)
            once = 0 if use.just_written else min(use.unique_bytes, asked)
            hbm = min(once * (first + times - 1), asked)
            rows.append(Traffic(use.tensor, use.written, asked, hbm))
        passed += own
        touched |= {tensor: (passed, max(size, touched.get(tensor, (0, 0))[1])) for tensor, size in sizes.items()}
        out.append(tuple(rows))
    return tuple(out)


def _largest(unique: list[dict[str, int]]) -> dict[str, int]:
    """Largest number of bytes that any kernel touches, by tensor."""
    largest: dict[str, int] = {}
    for sizes in unique:
        largest |= {tensor: max(size, largest.get(tensor, 0)) for tensor, size in sizes.items()}
    return largest


def footprint(kernel: Kernel, blocks: float) -> float:
    """Bytes of all tensors that `blocks` successive blocks touch: the reuse distance over so many blocks."""
    return sum(use.unique_bytes * min(1.0, blocks / math.prod(use.blocks) * use.fetched(blocks)) for use in kernel.uses)
