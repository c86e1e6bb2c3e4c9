"""Who touched which shared bytes since the last barrier: races, reads of nothing, copies still in flight.

Each granule (the narrowest access so far) carries two tags, of its last write and its last read. A tag is the block's
barrier epoch and the warp: equal tags, or a tag from before the last barrier, are in order. That holds where all warps
of a block meet at once; kernels whose warps meet a few at a time are checked by `ordering`.

Within a warp a granule's author, which is the lane that wrote it and the ``__syncwarp`` of the warp so far, tells a
load of what another lane has written with no ``__syncwarp`` between. Loads that are overtaken by stores of other lanes
of the warp are not looked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnsim.ptx import compiled
from attnsim.ptx.faults import CopyInFlight, Fault, Race, Reports, UninitialisedRead
from attnsim.ptx.lanes import Bools, Lanes, Mask, Values
from attnsim.ptx.ordering import PIECE
from attnsim.ptx.registers import row_type

_EPOCH_BITS = 7
_LANE_BITS = 5
_WARP, _LANE = np.uint32((1 << _EPOCH_BITS) - 1), np.uint32((1 << _LANE_BITS) - 1)
_ATOMIC = np.uint32(32)  # added to the warp: its last write was an atomic
_SEVERAL_READERS = np.uint32(64)
_SEVERAL_ATOMICS = np.uint32(65)
_UNWRITTEN = np.uint32(0xFFFF_FFFF)
_IN_FLIGHT = np.uint32(0xFFFF_FFFE)


@dataclass(frozen=True, slots=True)
class _Access:
    """One access by the active lanes, each of so many granules; arrays are ``[active * granules]``.

    Parameters
    ----------
    verb : str
    rows : ndarray ``[active]``
        Where, in units of the access's width.
    granules : int
    mask : Mask
    floor, tag : ndarray of uint32
        The lanes' smallest tag of this epoch, and their own.
    synced, author : ndarray of uint32
        The smallest author since the last ``__syncwarp``, and the lanes' own.
    """

    verb: str
    rows: Values
    granules: int
    mask: Mask
    floor: Values
    tag: Values
    synced: Values
    author: Values

    def of(self, tags: Values) -> Values:
        """The tags of what is accessed."""
        gathered: Values = tags.view(row_type(4 * self.granules))[self.rows]
        return gathered.view(np.uint32)

    def put(self, tags: Values, values: Values) -> None:
        """Give what is accessed new tags."""
        kind = row_type(4 * self.granules)
        tags.view(kind)[self.rows] = values.view(kind)

    def mark(self, tags: Values, chosen: Bools, code: np.uint32) -> None:
        """Give chosen granules a tag of this epoch that is no single warp's."""
        if chosen.all():
            self.put(tags, self.floor + code)
        elif chosen.any():
            position = np.flatnonzero(chosen)
            granule = self.rows[position // self.granules] * self.granules + position % self.granules
            tags[granule] = self.floor[position] + code


class Hazards:
    """Tags of the shared memory of a batch of blocks.

    Parameters
    ----------
    lanes : Lanes
    bytes_per_block : int
    reports : Reports
        Takes faults.
    """

    def __init__(self, lanes: Lanes, bytes_per_block: int, reports: Reports) -> None:
        self._granule, self._reports = PIECE, reports
        self._lanes = lanes
        self._bytes_per_block = bytes_per_block
        granules = lanes.blocks * bytes_per_block // PIECE
        self._written = np.full(granules, _UNWRITTEN)
        self._read = np.zeros(granules, np.uint32)
        self._author = np.zeros(granules, np.uint32)
        self._tags: Values = lanes.warp_of.astype(np.uint32) + np.uint32(1 << _EPOCH_BITS)
        self._authors: Values = lanes.lane_of.astype(np.uint32)
        self._fast: Any = compiled
        self._by_granules: dict[tuple[int, int], tuple[Values, ...]] = {}

    def barrier(self, blocks: Bools | None) -> None:
        """All warps of these blocks (None: of every block) have met."""
        step = np.uint32(1 << _EPOCH_BITS)
        self._tags = self._tags + (step if blocks is None else step * blocks[self._lanes.block_of])
        self._by_granules.clear()

    def warp_barrier(self, mask: Mask) -> None:
        """The active lanes of each warp have met (``__syncwarp``)."""
        self._authors = self._authors + np.where(mask.lanes, np.uint32(1 << _LANE_BITS), np.uint32(0))
        self._by_granules.clear()

    def read(self, rows: Values, width: int, mask: Mask) -> None:
        """Check and note a load of `width` bytes by each active lane, at these multiples of `width`."""
        if self._fast.tags_read(*self._by(rows, width, mask), self._written, self._read, self._author):
            return
        access = self._access("load", rows, width, mask)
        written = access.of(self._written)
        bad = (written >= access.floor) & (written != access.tag)
        if bad.any():
            self._refuse(bad & (written != access.tag + _ATOMIC), written, access)
        self._check_authors(written == access.tag, access)
        before = access.of(self._read)
        access.put(self._read, access.tag)
        several = (before >= access.floor) & (before != access.tag)
        several |= access.of(self._read) != access.tag  # more than one warp at once
        access.mark(self._read, several, _SEVERAL_READERS)

    def write(self, rows: Values, width: int, mask: Mask, verb: str = "store") -> None:
        """Check and note a store."""
        if self._fast.tags_write(*self._by(rows, width, mask), self._written, self._read, self._author):
            return
        access = self._access(verb, rows, width, mask)
        written = access.of(self._written)
        bad = (written >= access.floor) & (written != access.tag)
        if bad.any():
            self._refuse(bad & (written != _UNWRITTEN) & (written != access.tag + _ATOMIC), written, access)
        self._check_readers(access)
        access.put(self._written, access.tag)
        access.put(self._author, access.author)
        after = access.of(self._written)
        self._refuse(after != access.tag, after, access)

    def issue(self, rows: Values, width: int, mask: Mask) -> None:
        """Check and note the start of a cp.async: a write from here until it lands."""
        self.write(rows, width, mask, "cp.async")
        self._fast.tags_issue(rows, width // self._granule, self._written)

    def land(self, rows: Values, width: int, mask: Mask) -> None:
        """Note the end of a cp.async: its thread, and no other before a barrier, may read the bytes."""
        self._fast.tags_land(*self._by(rows, width, mask), self._written, self._author)

    def atomic(self, rows: Values, width: int, mask: Mask) -> None:
        """Check and note an atomic: in order with other atomics, not with plain accesses."""
        access = self._access("atomic", rows, width, mask)
        written = access.of(self._written)
        atomics = (written >= access.floor + _ATOMIC) & (written <= access.floor + _SEVERAL_ATOMICS)
        self._refuse((written >= access.floor) & (written != access.tag) & ~atomics, written, access)
        self._check_readers(access)
        mine = access.tag + _ATOMIC
        access.put(self._written, mine)
        several = (atomics & (written != mine)) | (access.of(self._written) != mine)
        access.mark(self._written, several, _SEVERAL_ATOMICS)

    def _by(self, rows: Values, width: int, mask: Mask) -> tuple[Values | int, ...]:
        """What compiled loops know an access by: where, by which lanes, of how many granules, and who lanes are."""
        return rows, mask.index, self._granules(width), self._tags, self._authors

    def _granules(self, width: int) -> int:
        """How many an access of `width` bytes takes; one narrower than all before makes them smaller."""
        if width < self._granule:
            parts, self._granule = self._granule // width, width
            tags = self._written, self._read, self._author
            self._written, self._read, self._author = (np.repeat(one, parts) for one in tags)
        return width // self._granule

    def _access(self, verb: str, rows: Values, width: int, mask: Mask) -> _Access:
        granules, instructions = self._granules(width), len(mask.lanes) // self._lanes.count
        if (granules, instructions) not in self._by_granules:
            each = self._tags & ~_WARP, self._tags, self._authors & ~_LANE, self._authors
            self._by_granules[granules, instructions] = tuple(
                np.tile(np.repeat(values, granules), instructions) for values in each
            )
        own = self._by_granules[granules, instructions]
        if not mask.full:
            kind = row_type(4 * granules)
            own = tuple(values.view(kind)[mask.index].view(np.uint32) for values in own)
        return _Access(verb, rows, granules, mask, *own)

    def _check_readers(self, access: _Access) -> None:
        read = access.of(self._read)
        self._refuse((read >= access.floor) & (read != access.tag), read, access, "read")

    def _check_authors(self, by_own_warp: Bools, access: _Access) -> None:
        """What the own warp has written since its last ``__syncwarp`` the lane has written itself."""
        if not by_own_warp.any():
            return
        author = access.of(self._author)
        bad = by_own_warp & (author >= access.synced) & (author != access.author)
        if bad.any():
            place, lane, position = self._place(bad, access)
            mine, other = int(self._authors[lane] & _LANE), int(author[position] & _LANE)
            what = f"{place} by lane {mine} of warp {int(self._tags[lane] & _WARP)}, written by its lane {other}"
            self._reports(Race(f"{what} with no __syncwarp between", lane))

    def _refuse(self, bad: Bools, tags: Values, access: _Access, other: str = "written") -> None:
        """Report the first bad granule, if there is one."""
        if not bad.any():
            return
        place, lane, position = self._place(bad, access)
        self._reports(_fault(int(tags[position]), place, other, int(self._tags[lane] & _WARP), lane))

    def _place(self, bad: Bools, access: _Access) -> tuple[str, int, int]:
        """The first bad granule of an access: in words, by which lane, and its position in the access."""
        position = int(np.flatnonzero(bad)[0])
        which, part = divmod(position, access.granules)
        width = access.granules * self._granule
        offset = (int(access.rows[which]) * width + part * self._granule) % self._bytes_per_block
        place = f"{access.verb} of {width} bytes at shared address {offset:#x}"
        return place, access.mask.lane(which), position


def _fault(tag: int, place: str, other: str, warp: int, lane: int) -> Fault:
    """What is wrong with touching a granule that carries this tag."""
    if tag == int(_UNWRITTEN):
        return UninitialisedRead(f"{place}: nothing has been written there", lane)
    if tag == int(_IN_FLIGHT):
        return CopyInFlight(
            f"{place}: a cp.async to it is still in flight; its thread must wait (cp.async.wait_group), then the block "
            "must meet at a barrier",
            lane,
        )
    code = tag & int(_WARP)
    who = "several warps" if code >= int(_SEVERAL_READERS) else f"warp {code % int(_ATOMIC)}"
    return Race(f"{place} by warp {warp}, {other} by {who} with no barrier between", lane)
