"""Race detection in shared memory by barrier epochs: races, uninitialised reads, cp.async copies still in flight.

Each granule (the width of the narrowest access so far) has two tags, of its last write and its last read. A tag is the
block's barrier epoch and the warp. Two accesses are ordered if their tags are equal or a barrier lies between. This
holds if all warps of a block synchronise at once; `ordering` checks kernels in which only some warps synchronise.

Within a warp, each granule has an author: the lane that wrote it and the warp's count of ``__syncwarp``. This finds a
load of data that another lane wrote without a ``__syncwarp`` in between. A store that overtakes another lane's load is
not found.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnsim.ptx import compiled
from attnsim.ptx.faults import CopyInFlight, Fault, Race, Reports, UninitialisedRead
from attnsim.ptx.lanes import Bools, Lanes, Mask, Values
from attnsim.ptx.ordering import PIECE

_EPOCH_BITS = 7
_LANE_BITS = 5
_WARP, _LANE = (1 << _EPOCH_BITS) - 1, (1 << _LANE_BITS) - 1


class _Access(NamedTuple):
    """An access of `width` bytes by each active lane, at these multiples of `width`."""

    verb: str
    rows: Values
    width: int
    mask: Mask


class Hazards:
    """Tags of the shared memory of a batch of blocks.

    Parameters
    ----------
    reports : Reports
        Takes faults.
    """

    def __init__(self, lanes: Lanes, bytes_per_block: int, reports: Reports) -> None:
        self._granule, self._reports = PIECE, reports
        self._lanes = lanes
        self._bytes_per_block = bytes_per_block
        granules = lanes.blocks * bytes_per_block // PIECE
        self._written = np.full(granules, compiled.UNWRITTEN)
        self._read = np.zeros(granules, np.uint32)
        self._author = np.zeros(granules, np.uint32)
        self._tags: Values = lanes.warp_of.astype(np.uint32) + np.uint32(1 << _EPOCH_BITS)
        self._authors: Values = lanes.lane_of.astype(np.uint32)

    def barrier(self, blocks: Bools | None) -> None:
        """Record a barrier of all warps of these blocks (None: of every block)."""
        step = np.uint32(1 << _EPOCH_BITS)
        self._tags = self._tags + (step if blocks is None else step * blocks[self._lanes.block_of])

    def warp_barrier(self, mask: Mask) -> None:
        """Record a ``__syncwarp`` of the active lanes of each warp."""
        self._authors = self._authors + np.where(mask.lanes, np.uint32(1 << _LANE_BITS), np.uint32(0))

    def read(self, rows: Values, width: int, mask: Mask) -> None:
        """Check and note a load of `width` bytes by each active lane, at these multiples of `width`."""
        access = _Access("load", rows, width, mask)
        bad, apart = compiled.tags_read(*self._by(access), self._written, self._read, self._author)
        self._refuse(access, bad, self._written)
        if apart >= 0:
            place, lane, granule = self._place(access, apart)
            mine, other = int(self._authors[lane]) & _LANE, int(self._author[granule]) & _LANE
            what = f"{place} by lane {mine} of warp {int(self._tags[lane]) & _WARP}, written by its lane {other}"
            self._reports(Race(f"{what} with no __syncwarp between", lane))

    def write(self, rows: Values, width: int, mask: Mask, verb: str = "store") -> None:
        """Check and note a store."""
        access = _Access(verb, rows, width, mask)
        self._check(access, atomic=False)
        self._refuse(access, compiled.tags_write(*self._by(access), self._written, self._author), self._written)

    def issue(self, rows: Values, width: int, mask: Mask) -> None:
        """Check and note the start of a cp.async: a write from here until it lands."""
        self.write(rows, width, mask, "cp.async")
        compiled.tags_issue(rows, width // self._granule, self._written)

    def land(self, rows: Values, width: int, mask: Mask) -> None:
        """Note the end of a cp.async: before a barrier, only its own thread may read the bytes."""
        compiled.tags_write(*self._by(_Access("cp.async", rows, width, mask)), self._written, self._author)

    def atomic(self, rows: Values, width: int, mask: Mask) -> None:
        """Check and note an atomic, which is ordered with other atomics but not with plain accesses."""
        access = _Access("atomic", rows, width, mask)
        self._check(access, atomic=True)
        compiled.tags_atomic(*self._by(access)[:-1], self._written)

    def _check(self, access: _Access, atomic: bool) -> None:
        """Check that a write is ordered with the last write and the last read of its granules."""
        bad, late = compiled.tags_checked(*self._by(access)[:-1], self._written, self._read, atomic)
        self._refuse(access, bad, self._written)
        self._refuse(access, late, self._read, "read")

    def _by(self, access: _Access) -> tuple[Values | int, ...]:
        """Arguments of the compiled loops: address, lanes, granules per access, and tags and authors of the lanes.

        If the access is narrower than all before, granules are split first.
        """
        if access.width < self._granule:
            parts, self._granule = self._granule // access.width, access.width
            tags = self._written, self._read, self._author
            self._written, self._read, self._author = (np.repeat(one, parts) for one in tags)
        return access.rows, access.mask.index, access.width // self._granule, self._tags, self._authors

    def _refuse(self, access: _Access, position: int, tags: Values, other: str = "written") -> None:
        """Report a violation at a granule, by its position in the access and the tag that it carries; -1 for none."""
        if position >= 0:
            place, lane, granule = self._place(access, position)
            self._reports(_fault(int(tags[granule]), place, other, int(self._tags[lane]) & _WARP, lane))

    def _place(self, access: _Access, position: int) -> tuple[str, int, int]:
        """Locate a granule of an access: description, lane, and number of the granule."""
        which, part = divmod(position, access.width // self._granule)
        start = int(access.rows[which]) * access.width + part * self._granule
        place = f"{access.verb} of {access.width} bytes at shared address {start % self._bytes_per_block:#x}"
        return place, access.mask.lane(which), start // self._granule


def _fault(tag: int, place: str, other: str, warp: int, lane: int) -> Fault:
    """Return the fault for an access to a granule with this tag."""
    if tag == compiled.UNWRITTEN:
        return UninitialisedRead(f"{place}: nothing has been written there", lane)
    if tag == compiled.IN_FLIGHT:
        return CopyInFlight(
            f"{place}: a cp.async to it is still in flight; its thread must wait (cp.async.wait_group), then the block "
            "must meet at a barrier",
            lane,
        )
    code = tag & _WARP
    who = "several warps" if code >= compiled.SEVERAL_READERS else f"warp {code % compiled.ATOMIC}"
    return Race(f"{place} by warp {warp}, {other} by {who} with no barrier between", lane)
