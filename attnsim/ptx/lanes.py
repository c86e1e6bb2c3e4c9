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
"""Sets of lanes that a larger one keeps in mind."""

Values = NDArray[Any]
"""One value per lane, shape ``[lanes]``; or ``[1]`` where all lanes agree. Never modified once made."""

Bools = NDArray[np.bool_]
Indices = NDArray[np.int64]
Dim3 = tuple[int, int, int]

Index = TypeVar("Index", int, Indices)


class Meetings(NamedTuple):
    """Who of a block works beside its warps, so that checks of shared memory need vector clocks.

    Parameters
    ----------
    pairwise : bool
        Whether warps meet a few at a time: at mbarriers, or at barriers with a count of threads. The copy engine and
        tensor cores count as some of those whom they meet.
    stores : bool
        Whether the copy engine reads shared memory.
    products : bool
        Whether tcgen05.mma reads it.
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
        Blocks that are a cluster, one after the other.

    Attributes
    ----------
    count : int
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
        """One value per lane."""
        return values if values.shape[0] == self.count else np.broadcast_to(values, (self.count,))


lanes_of = functools.lru_cache(maxsize=32)(Lanes)
"""The lanes of a batch, one object for equal batches."""


def position(index: Index, shape: Dim3) -> tuple[Index, Index, Index]:
    """``x, y, z`` of a thread in its block, or of a block in its grid."""
    return index % shape[0], index // shape[0] % shape[1], index // (shape[0] * shape[1])


def bits_of(numbers: Indices) -> int:
    """A number with these bits."""
    return sum(1 << number for number in numbers.tolist())


class Mask:
    """Active lanes.

    Parameters
    ----------
    lanes : ndarray of bool ``[lanes]``
    count : int, optional
        How many are active, where that is known.
    """

    def __init__(self, lanes: Bools, count: int | None = None) -> None:
        self.lanes = lanes
        self.count = int(np.count_nonzero(lanes)) if count is None else count
        self.full = self.count == len(lanes)
        self._times: dict[int, Mask] = {}
        self._parts: dict[bytes, Mask] = {}
        self._by_block: Indices | None = None

    def times(self, instructions: int) -> Mask:
        """The active lanes of so many instructions that are executed as one."""
        if instructions not in self._times:
            self._times[instructions] = _Repeated(np.tile(self.lanes, instructions), len(self.lanes))
        return self._times[instructions]

    def where(self, predicate: Bools) -> Mask:
        """Those active lanes where a predicate holds."""
        if predicate.shape[0] == 1:
            return self if predicate[0] else self.none
        return self._part(predicate & self.lanes)

    def _part(self, lanes: Bools) -> Mask:
        """Some of the active lanes: of lately asked ones the same mask, which knows what it has been asked."""
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
        """Those active lanes that booleans ``[active]``, or places among them, choose."""
        lanes = np.zeros_like(self.lanes)
        lanes[self.index[chosen]] = True
        return self._part(lanes)

    def without(self, other: Mask) -> Mask:
        """Active lanes that are not in the other."""
        return self._part(self.lanes & ~other.lanes)

    def apart(self, values: Values) -> Iterator[tuple[int, Mask, Bools | slice]]:
        """Active lanes by integers ``[active]`` or ``[1]``: each of these, its lanes, and their places among all."""
        if (values == values[:1]).all():
            for value in values[:1].tolist():
                yield value, self, slice(None)
            return
        for value in np.unique(values).tolist():
            chosen = values == value
            yield value, self.select(chosen), chosen

    def __or__(self, other: Mask) -> Mask:
        """Lanes of either."""
        return Mask(self.lanes | other.lanes)

    def of(self, values: Values) -> Values:
        """Values of the active lanes alone."""
        if values.shape[0] == 1 and len(self.lanes) != 1:
            return values.repeat(self.count)
        return values if self.full else values[self.index]

    def first(self, values: Values) -> Any:
        """The value of the first active lane."""
        return values[0 if len(values) == 1 else self.lane(0)]

    def common(self, values: Values) -> int | None:
        """The integer that all active lanes have; None where they differ."""
        if len(values) == 1:
            return int(values[0])
        first = self.first(values)
        return int(first) if (self.of(values) == first).all() else None

    def take(self, rows: Values) -> Values:
        """The active lanes' part of ``[rows, lanes]`` or ``[rows, 1]``, by whole warps where that is enough."""
        rows = np.broadcast_to(rows, (len(rows), len(self.lanes)))
        if self.full:
            return rows
        if not self.whole_warps:
            return rows[:, self.index]
        return rows.reshape(len(rows), -1, WARP)[:, self.warp_index].reshape(len(rows), -1)

    def put(self, rows: Values, values: Values) -> None:
        """Change the active lanes' part of ``[rows, lanes]``."""
        if self.whole_warps:
            rows.reshape(len(rows), -1, WARP)[:, self.warp_index] = values.reshape(len(rows), -1, WARP)
        else:
            rows[:, self.index] = values

    def lane(self, position: int) -> int:
        """Lane of the active lane at that position."""
        return int(position if self.full else self.index[position])

    @cached_property
    def index(self) -> Indices:
        """Active lanes, ascending."""
        return np.flatnonzero(self.lanes)

    @cached_property
    def spans(self) -> Indices:
        """Where active lanes stand together, ``[spans, 2]``: the first of them, and the one after the last."""
        edges: Indices = np.flatnonzero(np.diff(self.lanes, prepend=False, append=False))
        return edges.reshape(-1, 2)

    @cached_property
    def by_warp(self) -> Indices:
        """Active lanes of each warp of the batch."""
        counts: Indices = np.count_nonzero(self.lanes.reshape(-1, WARP), axis=1)
        return counts

    def by_block(self, blocks: int) -> Indices:
        """Warps with an active lane of each block of the mask's batch, which has so many."""
        if self._by_block is None:
            self._by_block = np.count_nonzero(self.by_warp.reshape(blocks, -1), axis=1)
        return self._by_block

    @cached_property
    def warp_count(self) -> int:
        """Warps with an active lane."""
        return self.count // WARP if self.full else int(np.count_nonzero(self.by_warp))

    @cached_property
    def warp_index(self) -> Indices:
        """Warps with an active lane, ascending."""
        return np.flatnonzero(self.by_warp)

    @cached_property
    def whole_warps(self) -> bool:
        """Whether every warp is active with all lanes or none."""
        return self.full or self.count == WARP * self.warp_count

    @cached_property
    def warpgroups(self) -> Indices:
        """Warpgroups of the batch with an active lane, ascending."""
        return np.flatnonzero(np.add.reduceat(self.by_warp, np.arange(0, len(self.by_warp), 4)))

    @cached_property
    def part_of_warpgroup(self) -> int | None:
        """The first warpgroup with an active lane and not all of them, or with fewer than four warps."""
        whole = len(self.by_warp) % 4 == 0
        active = self.by_warp.reshape(-1, 4).sum(axis=1) if whole else self.by_warp
        partial = np.flatnonzero((active > 0) & (active < WARPGROUP))
        return int(partial[0]) if len(partial) else None

    @cached_property
    def warpgroup_bits(self) -> int:
        """The same as bits of a number."""
        return bits_of(self.warpgroups)


class _Repeated(Mask):
    """Active lanes of several instructions one after another, as if they were those of a larger batch.

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
        """Values of the active lanes alone, the same in each instruction."""
        if values.shape[0] != self._period:
            return super().of(values)
        return np.tile(values, len(self.lanes) // self._period) if self.full else values[self.index % self._period]

    def lane(self, position: int) -> int:
        """Lane of the batch of the active lane at that position."""
        return super().lane(position) % self._period
