"""The threads that run together: a batch of blocks, one lane per thread, and masks of active lanes."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

WARP = 32
WARPGROUP = 4 * WARP
"""Threads that execute wgmma together: four warps, the first of them a multiple of four."""

LARGEST_GRID = (2**31 - 1, 65535, 65535)
"""Blocks in x, y and z (CUDA Programming Guide, "Compute Capabilities": technical specifications)."""

LARGEST_BLOCK = (1024, 1024, 64)
"""Threads in x, y and z, and no more than 1,024 in all (from there too)."""

PARTS = 32
"""Largest number of sub-masks that a mask caches."""

Values = NDArray[Any]
"""One value per lane, shape ``[lanes]``; or ``[1]`` where all lanes agree. Never modified once made."""

Bools = NDArray[np.bool_]
Indices = NDArray[np.int64]
Dim3 = tuple[int, int, int]

Index = TypeVar("Index", int, Indices)


class Meetings(NamedTuple):
    """Agents other than warps that access a block's shared memory; if there are any, checks need vector clocks.

    Parameters
    ----------
    pairwise : bool
        True if only some warps of a block synchronise: at mbarriers, or at barriers with a thread count. Kernels that
        use the copy engine or asynchronous tensor cores count too.
    stores : bool
        True if the copy engine reads shared memory.
    products : bool
        True if tcgen05.mma reads it.
    """

    pairwise: bool
    stores: bool
    products: bool


class Lanes:
    """Lanes of a batch of equal blocks; each block is padded to whole warps.

    Parameters
    ----------
    block : (int, int, int)
        Threads of a block.
    blocks : int
        Blocks of the batch.
    cluster : int
        Consecutive blocks that form a cluster.

    Attributes
    ----------
    count : int
        Lanes of the batch.
    warps : int
        Warps of the batch.
    block_of, warp_of, thread_of : ndarray ``[lanes]``
        The lane's block in the batch, its warp in the block, its thread in the block.
    """

    def __init__(self, block: Dim3, blocks: int, cluster: int = 1) -> None:
        self.block = block
        self.blocks = blocks
        self.cluster = cluster
        self.threads = math.prod(block)
        self.warps_per_block = -(-self.threads // WARP)
        self.lanes_per_block = self.warps_per_block * WARP
        self.warps = blocks * self.warps_per_block
        self.count = self.warps * WARP
        lane = np.arange(self.count)
        self.lane_of = lane % WARP
        self.block_of = lane // self.lanes_per_block
        self.thread_of = lane % self.lanes_per_block
        self.warp_of = self.thread_of // WARP

    def spread(self, values: Values) -> Values:
        """Broadcast values ``[1]`` or ``[lanes]`` to one per lane."""
        return values if values.shape[0] == self.count else np.broadcast_to(values, (self.count,))


lanes_of = functools.lru_cache(maxsize=32)(Lanes)
"""The lanes of a batch, one object for equal batches."""


def position(index: Index, shape: Dim3) -> tuple[Index, Index, Index]:
    """``x, y, z`` of a thread in its block, or of a block in its grid."""
    return index % shape[0], index // shape[0] % shape[1], index // (shape[0] * shape[1])


def bits_of(numbers: Indices) -> int:
    """Return an integer with these bits set."""
    return sum(1 << number for number in numbers.tolist())


class Mask:
    """Active lanes.

    Parameters
    ----------
    lanes : ndarray of bool ``[lanes]``
    count : int, optional
        Number of active lanes, if known.
    """

    def __init__(self, lanes: Bools, count: int | None = None) -> None:
        self.lanes = lanes
        self.count = int(np.count_nonzero(lanes)) if count is None else count
        self.full = self.count == len(lanes)
        self._times: dict[int, Mask] = {}
        self._parts: dict[bytes, Mask] = {}
        self._by_block: Indices | None = None

    def times(self, instructions: int) -> Mask:
        """Return the mask for so many instructions executed as one."""
        if instructions not in self._times:
            self._times[instructions] = _Repeated(np.tile(self.lanes, instructions), len(self.lanes))
        return self._times[instructions]

    def where(self, predicate: Bools) -> Mask:
        """Return the active lanes for which a predicate holds."""
        if predicate.shape[0] == 1:
            return self if predicate[0] else self.none
        return self._part(predicate & self.lanes)

    def _part(self, lanes: Bools) -> Mask:
        """Return a sub-mask; recent ones are cached, with the properties already computed for them."""
        count = int(np.count_nonzero(lanes))
        if count == self.count:
            return self
        key = lanes.tobytes()
        if key not in self._parts:
            if len(self._parts) == PARTS:
                self._parts.clear()
            self._parts[key] = Mask(lanes, count)
        return self._parts[key]

    @cached_property
    def none(self) -> Mask:
        """No lane."""
        return Mask(np.zeros_like(self.lanes), 0)

    def select(self, chosen: Bools) -> Mask:
        """Return the active lanes chosen by booleans ``[active]``, or by indices into the active lanes."""
        lanes = np.zeros_like(self.lanes)
        lanes[self.index[chosen]] = True
        return self._part(lanes)

    def without(self, other: Mask) -> Mask:
        """Return the active lanes that are not in the other mask."""
        return self._part(self.lanes & ~other.lanes)

    def apart(self, values: Values) -> Iterator[tuple[int, Mask, Bools | slice]]:
        """Group active lanes by integers ``[active]`` or ``[1]``: yields each value, its lanes, and their indices."""
        if (values == values[:1]).all():
            for value in values[:1].tolist():
                yield value, self, slice(None)
            return
        for value in np.unique(values).tolist():
            chosen = values == value
            yield value, self.select(chosen), chosen

    def __or__(self, other: Mask) -> Mask:
        """Union of two masks."""
        return Mask(self.lanes | other.lanes)

    def of(self, values: Values) -> Values:
        """Return the values of the active lanes only, ``[active]``."""
        if values.shape[0] == 1 and len(self.lanes) != 1:
            return values.repeat(self.count)
        return values if self.full else values[self.index]

    def first(self, values: Values) -> Any:
        """Return the value of the first active lane."""
        return values[0 if len(values) == 1 else self.lane(0)]

    def common(self, values: Values) -> int | None:
        """Return the integer that all active lanes share; None if they differ."""
        if len(values) == 1:
            return int(values[0])
        first = self.first(values)
        return int(first) if (self.of(values) == first).all() else None

    def take(self, rows: Values) -> Values:
        """Return the active lanes' part of ``[rows, lanes]`` or ``[rows, 1]``; by whole warps if possible."""
        rows = np.broadcast_to(rows, (len(rows), len(self.lanes)))
        if self.full:
            return rows
        if not self.whole_warps:
            return rows[:, self.index]
        return rows.reshape(len(rows), -1, WARP)[:, self.warp_index].reshape(len(rows), -1)

    def put(self, rows: Values, values: Values) -> None:
        """Write the active lanes' part of ``[rows, lanes]``."""
        if self.whole_warps:
            rows.reshape(len(rows), -1, WARP)[:, self.warp_index] = values.reshape(len(rows), -1, WARP)
        else:
            rows[:, self.index] = values

    def lane(self, position: int) -> int:
        """Return the lane number of the active lane at that position."""
        return int(position if self.full else self.index[position])

    @cached_property
    def index(self) -> Indices:
        """Numbers of the active lanes, ascending."""
        return np.flatnonzero(self.lanes)

    @cached_property
    def spans(self) -> Indices:
        """Runs of adjacent active lanes, ``[spans, 2]``: first lane, and one past the last."""
        edges: Indices = np.flatnonzero(np.diff(self.lanes, prepend=False, append=False))
        return edges.reshape(-1, 2)

    @cached_property
    def by_warp(self) -> Indices:
        """Number of active lanes of each warp of the batch."""
        counts: Indices = np.count_nonzero(self.lanes.reshape(-1, WARP), axis=1)
        return counts

    def by_block(self, blocks: int) -> Indices:
        """Number of warps with an active lane in each block, ``[blocks]``."""
        if self._by_block is None:
            self._by_block = np.count_nonzero(self.by_warp.reshape(blocks, -1), axis=1)
        return self._by_block

    @cached_property
    def warp_count(self) -> int:
        """Number of warps with an active lane."""
        return self.count // WARP if self.full else int(np.count_nonzero(self.by_warp))

    @cached_property
    def warp_index(self) -> Indices:
        """Numbers of the warps with an active lane, ascending."""
        return np.flatnonzero(self.by_warp)

    @cached_property
    def whole_warps(self) -> bool:
        """True if every warp has all its lanes active, or none."""
        return self.full or self.count == WARP * self.warp_count

    @cached_property
    def warpgroups(self) -> Indices:
        """Numbers of the warpgroups with an active lane, ascending."""
        return np.flatnonzero(np.add.reduceat(self.by_warp, np.arange(0, len(self.by_warp), 4)))

    @cached_property
    def part_of_warpgroup(self) -> int | None:
        """The first partially active warpgroup, or one with fewer than four warps; None if there is none."""
        whole = len(self.by_warp) % 4 == 0
        active = self.by_warp.reshape(-1, 4).sum(axis=1) if whole else self.by_warp
        partial = np.flatnonzero((active > 0) & (active < WARPGROUP))
        return int(partial[0]) if len(partial) else None

    @cached_property
    def warpgroup_bits(self) -> int:
        """The warpgroups with an active lane, as bits of an integer."""
        return bits_of(self.warpgroups)


class _Repeated(Mask):
    """Active lanes of several instructions, concatenated as if they were a larger batch.

    Parameters
    ----------
    lanes : ndarray of bool ``[instructions * period]``
    period : int
        Lanes of the batch.
    """

    def __init__(self, lanes: Bools, period: int) -> None:
        super().__init__(lanes)
        self._period = period

    def _part(self, lanes: Bools) -> Mask:
        return _Repeated(lanes, self._period)

    def of(self, values: Values) -> Values:
        """Return the values of the active lanes only, repeated for each instruction."""
        if values.shape[0] != self._period:
            return super().of(values)
        return np.tile(values, len(self.lanes) // self._period) if self.full else values[self.index % self._period]

    def lane(self, position: int) -> int:
        """Return the lane of the batch of the active lane at that position."""
        return super().lane(position) % self._period
