"""Tensor memory of a batch of blocks (128 lanes of 512 words per block), and asynchronous operations on it.

PTX ISA 9.0, "Tensor Memory" and "Tensorcore 5th Generation Family Instructions". We read the manual so:

- An address has the lane in its upper and the column in its lower 16 bits.
- Warp w of a block reaches lanes 32 (w mod 4) to 32 (w mod 4) + 31; the tensor cores reach all lanes.
- Loads and stores are complete when their warp has waited (``tcgen05.wait::ld``, ``::st``).
- Products are complete for a thread that has seen the end of the mbarrier phase in which their ``tcgen05.commit``
  arrived.
- Products of one thread are ordered; everything else is ordered only by barriers and mbarriers.
- Here, values change at once, and arrivals come as late as possible.

Three rules of the manual are not checked, because Triton's PTX leaves them to ptxas:

- ``tcgen05.fence`` next to barriers;
- ``tcgen05.wait::ld`` before a loaded register is read (it is checked before the loaded words are overwritten);
- loads of words that were never written (they return NaN).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from attnsim.ptx.faults import (
    Fault,
    MisusedTensorMemory,
    Race,
    TensorMemoryInFlight,
    UninitialisedRead,
)
from attnsim.ptx.lanes import WARP, Bools, Indices, Mask, Values
from attnsim.ptx.machine import Machine
from attnsim.ptx.mbarriers import Mbarriers

LANES, COLUMNS = 128, 512
QUARTERS = 4
"""Quarters of the lanes; each is for every fourth warp."""

LEAST_COLUMNS = 32
"""Smallest allocation; allocations are powers of two."""

_UNWRITTEN, _STORING = -1, -2
_NEVER = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True)
class Place:
    """Places of several accesses: columns ``[accesses, columns]`` of a quarter of a block's lanes each."""

    blocks: Indices
    quarters: Indices
    columns: Indices

    @property
    def index(self) -> tuple[Indices, Indices, Indices]:
        """Index into arrays ``[blocks, quarters, columns]``."""
        return self.blocks[:, None], self.quarters[:, None], self.columns


class TensorMemory:
    """Words ``[blocks, lanes, columns]``, their allocations, and their last accesses."""

    def __init__(self, machine: Machine) -> None:
        self._machine, self._mbarriers = machine, machine.unit(Mbarriers)
        self._used = machine.shared.meetings.products

    def start(self) -> None:
        """Reset: words hold 0xFFFFFFFF, and nothing is allocated."""
        lanes, self._ordering = self._machine.lanes, self._machine.shared.ordering
        blocks = lanes.blocks if self._used else 0
        self.words = np.full((blocks, LANES, COLUMNS), -1, np.int32).view(np.uint32)
        self._owned = np.zeros((blocks, COLUMNS), np.int64)  # by the first column, from 1, of the allocation
        self._closed = np.zeros(blocks, bool)
        self._committed = np.zeros(lanes.warps, np.int64)
        self._arrivals: list[tuple[int, int, int, int]] = []
        self._loads: defaultdict[int, list[Place]] = defaultdict(list)
        self._stores: defaultdict[int, list[Place]] = defaultdict(list)
        size = (blocks, QUARTERS, COLUMNS)
        self._writer, self._written = np.full(size, _UNWRITTEN, np.int16), np.full(size, _NEVER, np.int32)
        self._read = np.zeros((*size, self._ordering.agents.readers if self._ordering else 0), np.int32)

    # Allocation.

    def allocate(self, columns: int, block: int, lane: int) -> int:
        """Allocate free columns of a block; returns their address."""
        if columns & (columns - 1) or not LEAST_COLUMNS <= columns <= COLUMNS:
            raise MisusedTensorMemory(f"tcgen05.alloc of {columns} columns; allowed: 32, 64, 128, 256, 512", lane)
        if self._closed[block]:
            raise MisusedTensorMemory("tcgen05.alloc after tcgen05.relinquish_alloc_permit", lane)
        owned = self._owned[block]
        for first in range(0, COLUMNS, columns):
            if not owned[first : first + columns].any():
                owned[first : first + columns] = first + 1
                return first
        free = int(np.count_nonzero(owned == 0))
        raise MisusedTensorMemory(f"tcgen05.alloc of {columns} columns, {free} are free: it waits forever", lane)

    def release(self, address: int, columns: int, block: int, lane: int) -> None:
        """Free an allocation."""
        own = self._owned[block] == address + 1
        if not own.any() or int(np.count_nonzero(own)) != columns:
            raise MisusedTensorMemory(
                f"tcgen05.dealloc of {columns} columns at {address:#x}, which were not allocated so", lane
            )
        self._owned[block, own] = 0
        self._writer[block][:, own], self._written[block][:, own] = _UNWRITTEN, _NEVER

    def close(self, block: int) -> None:
        """Forbid further allocations of a block."""
        self._closed[block] = True

    def require_released(self) -> None:
        """Raise MisusedTensorMemory if blocks end with columns allocated."""
        if self._owned.any():
            block = int(np.flatnonzero(self._owned.any(axis=1))[0])
            lane = int(np.flatnonzero(self._machine.lanes.block_of == block)[0])
            count = int(np.count_nonzero(self._owned[block]))
            raise MisusedTensorMemory(f"the block has ended with {count} columns of tensor memory allocated", lane)

    def require_owned(self, what: str, blocks: Indices, columns: Indices, lanes: Indices) -> None:
        """Raise MisusedTensorMemory for columns ``[accesses, columns]`` that are not allocated."""
        outside = (columns < 0) | (columns >= COLUMNS)
        bad = outside | (self._owned[blocks[:, None], np.where(outside, 0, columns)] == 0)
        if bad.any():
            access, column = (int(i) for i in np.argwhere(bad)[0])
            raise MisusedTensorMemory(
                f"{what} column {int(columns[access, column])} of tensor memory, which is not allocated",
                int(lanes[access]),
            )

    # Accesses of warps.

    def load(self, place: Place, warps: Indices) -> None:
        """Check and note a load by each of these warps, complete when the warp has waited."""
        if self._ordering:
            self._check_written("tcgen05.ld", place, warps, unwritten=True)
            self._note_read(place, self._ordering.time_of(warps)[0], np.full(len(warps), _NEVER))
        for at, warp in enumerate(warps.tolist()):
            self._loads[warp].append(_one(place, at))

    def store(self, place: Place, warps: Indices) -> None:
        """Check and note a store."""
        if not self._ordering:
            return
        self._check_written("tcgen05.st", place, warps, unwritten=True)
        self._check_read("tcgen05.st", place, warps)
        self._writer[place.index], self._written[place.index] = _STORING, _NEVER
        for at, warp in enumerate(warps.tolist()):
            self._stores[warp].append(_one(place, at))

    def loads_done(self, mask: Mask) -> None:
        """``tcgen05.wait::ld``."""
        for warp in mask.warp_index.tolist():
            for place in self._loads.pop(warp, ()):
                if self._ordering:
                    self._note_read(place, *self._ordering.time_of(np.array([warp])))

    def stores_done(self, mask: Mask) -> None:
        """``tcgen05.wait::st``."""
        for warp in mask.warp_index.tolist():
            for place in self._stores.pop(warp, ()):
                if self._ordering:
                    own, now = self._ordering.time_of(np.array([warp]))
                    self._writer[place.index], self._written[place.index] = own[:, None], now[:, None]

    # Accesses of tensor cores: the whole of a column, for a thread of each of `warps`.

    def numbers(self, warps: Indices) -> Indices:
        """Return the numbers, from 1, of the groups that products of these warps now belong to."""
        return self._committed[warps] + 1

    def read_by_product(self, blocks: Indices, columns: Indices, warps: Indices) -> None:
        """Check and note the reads of products, ``[products, columns]``."""
        if self._ordering:
            agents, numbers = self._ordering.product_of(warps), self.numbers(warps)
            for place in _quarters(blocks, columns):
                self._check_written("read by tcgen05.mma of", place, warps, agents)
                self._note_read(place, agents, numbers)

    def written_by_product(self, blocks: Indices, columns: Indices, warps: Indices) -> None:
        """Check and note the writes of products, ``[products, columns]``."""
        if self._ordering:
            agents, numbers = self._ordering.product_of(warps), self.numbers(warps)
            for place in _quarters(blocks, columns):
                self._check_written("written by tcgen05.mma of", place, warps, agents, unwritten=True)
                self._check_read("written by tcgen05.mma of", place, warps, agents)
                self._writer[place.index], self._written[place.index] = agents[:, None], numbers[:, None]

    def commit(self, addresses: Values, mask: Mask) -> None:
        """``tcgen05.commit``: arrive at an mbarrier when all earlier products of these lanes are complete."""
        warps = mask.index // WARP
        for number, part, _ in self._mbarriers.for_products(addresses, mask):
            for lane in part.index.tolist():
                warp, block = lane // WARP, int(self._machine.lanes.block_of[lane])
                agent = int(self._ordering.product_of(np.array([warp]))[0]) if self._ordering else 0
                self._arrivals.append((number, block, agent, int(self._committed[warp]) + 1))
        self._committed[warps] += 1

    def arrive_oldest(self) -> bool:
        """Perform the oldest pending arrival of each block; returns False if there was none."""
        waiting, self._arrivals = self._arrivals, []
        served: set[int] = set()
        for arrival in waiting:
            if arrival[1] in served:
                self._arrivals.append(arrival)
                continue
            served.add(arrival[1])
            self._mbarriers.end_products(*arrival)
        return bool(waiting)

    # The books, and checks against them.

    def _note_read(self, place: Place, agents: Indices, times: Values) -> None:
        self._read[(*place.index, agents[:, None])] = times[:, None]

    def _check_written(
        self, what: str, place: Place, warps: Indices, agents: Indices | None = None, unwritten: bool = False
    ) -> None:
        """Check that these warps have observed the last writes; writes by `agents` are ordered with their own."""
        assert self._ordering is not None
        writers, written = self._writer[place.index], self._written[place.index]
        known = self._ordering.knowledge(warps)
        bad: Bools = written > known[np.arange(len(warps))[:, None], writers]
        if unwritten:
            bad &= writers != _UNWRITTEN
        if agents is not None:
            bad &= writers != agents[:, None]
        if bad.any():
            access, column = (int(i) for i in np.argwhere(bad)[0])
            writer = int(writers[access, column])
            self._machine.reports(self._fault(what, place, access, column, writer, int(warps[access])))

    def _check_read(self, what: str, place: Place, warps: Indices, agents: Indices | None = None) -> None:
        """Check that these warps have observed the last reads."""
        assert self._ordering is not None
        reads, known = (
            self._read[place.index],
            self._ordering.knowledge(warps)[:, None, : self._ordering.agents.readers],
        )
        late: Bools = reads > known
        if agents is not None:
            late[np.arange(len(warps)), :, agents] = False
        if late.any():
            access, column, reader = (int(i) for i in np.argwhere(late)[0])
            where = self._place(what, place, access, column)
            who, lane = self._ordering.agents.described(reader), int(warps[access]) * WARP
            self._machine.reports(
                TensorMemoryInFlight(f"{where}, which {who} reads; tcgen05.wait::ld must come first", lane)
                if reads[access, column, reader] == _NEVER
                else Race(f"{where}, read by {who} with no barrier, or wait for its tcgen05.commit, between", lane)
            )

    def _fault(self, what: str, place: Place, access: int, column: int, writer: int, warp: int) -> Fault:
        assert self._ordering is not None
        where, lane = self._place(what, place, access, column), warp * WARP
        if writer == _UNWRITTEN:
            return UninitialisedRead(f"{where}: nothing has been written there", lane)
        if writer == _STORING:
            return TensorMemoryInFlight(f"{where}, to which a warp stores; tcgen05.wait::st must come first", lane)
        who = self._ordering.agents.described(writer)
        if who.startswith("warp"):
            return Race(f"{where}, written by {who} with no barrier between", lane)
        return TensorMemoryInFlight(f"{where}, written by {who}, whose tcgen05.commit it has not waited for", lane)

    def _place(self, what: str, place: Place, access: int, column: int) -> str:
        lane = LANES // QUARTERS * int(place.quarters[access])
        return f"{what} column {int(place.columns[access, column])}, lanes {lane} to {lane + 31} of tensor memory"


def _one(place: Place, at: int) -> Place:
    return Place(place.blocks[at : at + 1], place.quarters[at : at + 1], place.columns[at : at + 1])


def _quarters(blocks: Indices, columns: Indices) -> list[Place]:
    """Return these columns in each quarter of the lanes."""
    return [Place(blocks, np.full(len(blocks), quarter), columns) for quarter in range(QUARTERS)]
