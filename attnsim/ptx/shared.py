"""Shared memory of a batch of blocks: contents, bounds checks, counts, and cp.async copies."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np

from attnsim.ptx import compiled
from attnsim.ptx.counters import Counters
from attnsim.ptx.faults import CopyInFlight, OutOfBounds, Reports
from attnsim.ptx.hazards import Hazards
from attnsim.ptx.lanes import Indices, Lanes, Mask, Meetings, Values
from attnsim.ptx.memory import require_inside
from attnsim.ptx.ordering import PIECE, Ordering
from attnsim.ptx.registers import row_type

ROW_BYTES = 128
"""A block's memory is rounded up to a multiple of this, in bytes."""

SMALLEST_COPY = 4
"""Smallest size of a cp.async, in bytes."""

NAMES = 64
"""Size of the cache of operands' and copies' rows."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """cp.async copies in flight from one instruction: values for rows of `width` bytes."""

    mask: Mask
    groups: Values
    rows: Values
    values: Values
    width: int

    def part(self, chosen: Values) -> _Copy:
        mask = self.mask.select(chosen)
        return _Copy(mask, self.groups[chosen], self.rows[chosen], self.values[chosen], self.width)


class SharedMemory:
    """Shared memory of a batch of blocks.

    Parameters
    ----------
    static_bytes : int
        Shared memory that the kernel declares, per block.
    meetings : Meetings
        Agents other than warps that access it.
    reports : Reports
        Receives faults.

    Attributes
    ----------
    bytes_per_block : int
        Static and dynamic shared memory of a block.
    ordering : Ordering or None
        The vector clocks, if the kernel needs them.
    meetings : Meetings
        As given.
    """

    def __init__(self, static_bytes: int, meetings: Meetings, reports: Reports) -> None:
        self.counters = Counters()
        self.bytes_per_block = static_bytes
        self._static_bytes = static_bytes
        self.meetings, self._reports = meetings, reports
        self._stride = 0
        self.ordering: Ordering | None = None
        self._hazards: Hazards | Ordering | None = None
        self._start: Values = np.zeros(0, np.int64)
        self._group: Values = np.zeros(0, np.int64)
        self._bytes: Values = np.zeros(0, np.uint8)
        self._copies: list[_Copy] = []
        self._of: tuple[Lanes, int] | None = None
        self._known: dict[Hashable, Indices] = {}
        self._seen: Values = np.zeros(0, np.int64)

    def start(self, lanes: Lanes, dynamic_bytes: int, checks: bool, counters: Counters) -> None:
        """Allocate the shared memory of a batch, filled with 0xFF.

        Parameters
        ----------
        dynamic_bytes : int
            Dynamic shared memory of a block.
        checks : bool
            Check for races, uninitialised reads and missing waits.
        counters : Counters
            Counters to use from now on.
        """
        self.counters = counters
        self.bytes_per_block = self._static_bytes + dynamic_bytes
        stride = max(-(-self.bytes_per_block // ROW_BYTES) * ROW_BYTES, ROW_BYTES)
        self._start = lanes.block_of * stride
        self._group = np.zeros(lanes.count, np.int64)
        self._bytes = np.full(lanes.blocks * stride, 0xFF, np.uint8)
        self._stride = stride
        clocks = checks and self.meetings.pairwise
        self.ordering = Ordering(lanes, stride, self.meetings, self._reports) if clocks else None
        self._hazards = self.ordering or (Hazards(lanes, stride, self._reports) if checks else None)
        self._copies = []
        if self._of != (lanes, self.bytes_per_block):
            self._of, self._known = (lanes, self.bytes_per_block), {}
        self._seen = np.zeros(len(self._bytes) // SMALLEST_COPY, np.int64)

    def load(self, addresses: Values, width: int, mask: Mask) -> Values:
        """Rows ``[active]`` of `width` bytes."""
        return self._bytes.view(row_type(width))[self.read(addresses, width, mask)]

    def read(self, addresses: Values, width: int, mask: Mask) -> Indices:
        """Check and count a load; returns the rows of `width` bytes in the batch's shared memory, ``[active]``."""
        rows = self._rows(addresses, width, mask, "load")
        if self._hazards:
            self._hazards.read(rows, width, mask)
        self.counters.shared_bytes_loaded += width * mask.count
        return rows

    def store(self, addresses: Values, values: Values, width: int, mask: Mask) -> None:
        """Write rows ``[active]`` of `width` bytes."""
        rows = self._rows(addresses, width, mask, "store")
        if self._hazards:
            self._hazards.write(rows, width, mask)
        self.counters.shared_bytes_stored += width * mask.count
        self._bytes.view(row_type(width))[rows] = values

    def atomic(self, addresses: Values, width: int, mask: Mask) -> tuple[Values, Values]:
        """Check and count an atomic; returns shared memory as rows of `width` bytes, and each active lane's row."""
        rows = self._rows(addresses, width, mask, "atomic")
        if self._hazards:
            self._hazards.atomic(rows, width, mask)
        self.counters.shared_bytes_stored += width * mask.count
        return self._bytes.view(row_type(width)), rows

    def begin_copy(self, addresses: Values, values: Values, width: int, mask: Mask, instructions: int = 1) -> None:
        """Start a cp.async of rows ``[active]`` of `width` bytes into each active thread's open group.

        Raises
        ------
        Fault
            If two of several instructions copy to the same place; it does not name the instruction.
        """
        rows = self._rows(addresses, width, mask, "cp.async")
        if instructions > 1 and compiled.repeats(rows, instructions, self._seen):
            raise CopyInFlight("several cp.async copy to one place")
        if self._hazards:
            self._hazards.issue(rows, width, mask)
        self.counters.shared_bytes_stored += width * mask.count
        self._copies.append(_Copy(mask, mask.of(self._group), rows, values, width))

    def commit_copies(self, mask: Mask) -> None:
        """Close each active thread's open group."""
        self._group = self._group + mask.lanes

    def wait_copies(self, pending: int, mask: Mask) -> None:
        """Land all but the newest `pending` committed groups of each active thread; -1 also lands the open group."""
        if not self._copies:
            return
        newest = np.where(mask.lanes, self._group - pending, 0)
        kept = []
        for copy in self._copies:
            done = copy.groups < copy.mask.of(newest)
            if done.all():
                self._land(copy)
            elif done.any():
                self._land(copy.part(done))
                kept.append(copy.part(~done))
            else:
                kept.append(copy)
        self._copies = kept

    def barrier(self, blocks: Values | None) -> None:
        """Record a barrier of all warps of these blocks (None: of every block)."""
        if self._hazards:
            self._hazards.barrier(blocks)

    def warp_barrier(self, mask: Mask) -> None:
        """Record a ``__syncwarp`` of the active lanes of each warp."""
        if isinstance(self._hazards, Hazards):
            self._hazards.warp_barrier(mask)

    def pieces(self, addresses: Values, blocks: Indices, lanes: Indices, verb: str) -> Indices:
        """Return the rows of :meth:`by_piece` for aligned addresses ``[n, ...]`` in blocks ``[n]``.

        Raises
        ------
        OutOfBounds
            If an address is outside; the fault names one of the lanes ``[n]``.
        """
        outside = (addresses < 0) | (addresses + PIECE > self.bytes_per_block)
        if outside.any():
            first = tuple(int(i) for i in np.argwhere(outside)[0])
            raise OutOfBounds(
                f"{verb} at shared address {int(addresses[first]):#x}, but the block has {self.bytes_per_block} bytes "
                "of shared memory",
                int(lanes[first[0]]),
            )
        return (addresses + (blocks * self._stride).reshape(-1, *(1,) * (addresses.ndim - 1))) // PIECE

    def once(self, key: Hashable, pieces: Callable[[], Indices]) -> Indices:
        """Return the rows of :meth:`by_piece` for a `key`, computed once for batches of equal size."""
        if key not in self._known:
            if len(self._known) == NAMES:
                self._known.clear()
            self._known[key] = pieces()
        return self._known[key]

    def by_piece(self) -> Values:
        """View shared memory of all blocks as pieces of 16 bytes, ``[pieces, 8]`` uint16."""
        return self._bytes.view(np.uint16).reshape(-1, PIECE // 2)

    def place_mbarrier(self, addresses: Values, mask: Mask) -> None:
        """Reserve eight bytes per active lane for an mbarrier."""
        rows = self._rows(addresses, 8, mask, "mbarrier.init")
        if self.ordering:
            self.ordering.place_mbarrier(rows, mask)

    def remove_mbarrier(self, addresses: Values, mask: Mask) -> None:
        """Free the eight bytes of an mbarrier per active lane."""
        rows = self._rows(addresses, 8, mask, "mbarrier.inval")
        if self.ordering:
            self.ordering.remove_mbarrier(rows)

    def _land(self, copy: _Copy) -> None:
        self._bytes.view(row_type(copy.width))[copy.rows] = copy.values
        if self._hazards:
            self._hazards.land(copy.rows, copy.width, copy.mask)

    def _rows(self, addresses: Values, width: int, mask: Mask, verb: str) -> Values:
        """Check and count an access; returns its rows of `width` bytes in the batch's shared memory, ``[active]``."""
        if mask.count == 0:
            return np.zeros(0, np.int64)
        rows = np.empty(len(addresses), np.int64)
        total, clear = compiled.place(addresses, mask.index, width, self._start, self.bytes_per_block, rows)
        if total < 0:
            require_inside(addresses, width, mask, verb, "block", "shared", self.bytes_per_block)
        self.counters.shared_wavefronts += total
        self.counters.bank_conflicts += total - clear
        return rows
