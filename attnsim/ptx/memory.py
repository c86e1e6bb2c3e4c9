"""Global memory (the caller's arrays, with gaps in between) and local memory of threads; every access is checked.

Race detection in shared memory by barrier epochs: races, uninitialised reads, cp.async copies still in flight.

Each granule (the width of the narrowest access so far) has two tags, of its last write and its last read. A tag is the
block's barrier epoch and the warp. Two accesses are ordered if their tags are equal or a barrier lies between. This
holds if all warps of a block synchronise at once; `ordering` checks kernels in which only some warps synchronise.

Within a warp, each granule has an author: the lane that wrote it and the warp's count of ``__syncwarp``. This finds a
load of data that another lane wrote without a ``__syncwarp`` in between. A store that overtakes another lane's load is
not found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnsim.errors import InputError
from attnsim.ptx import compiled
from attnsim.ptx.counters import Counters
from attnsim.ptx.faults import CopyInFlight, Fault, Misaligned, OutOfBounds, Race, Reports, UninitialisedRead
from attnsim.ptx.lanes import Bools, Lanes, Mask, Values
from attnsim.ptx.ordering import PIECE
from attnsim.ptx.registers import row_type

BASE = 0x4000_0000_0000
GAP = 1 << 20
"""Unmapped bytes after each array, so that an index out of range hits no other array."""
SECTOR = 32

Bytes = NDArray[np.uint8]
Selection = Values | slice


class Tensor:
    """One array in global memory.

    Parameters
    ----------
    array : ndarray
        C-contiguous; the kernel works on it in place.
    """

    def __init__(self, name: str, address: int, array: NDArray[np.generic]) -> None:
        if not array.flags.c_contiguous:
            raise InputError(f"{name} is not contiguous; pass it through ascontiguousarray first")
        self.name = name
        self.array = array
        self.address = address
        self.size_bytes = array.nbytes
        self.writeable = array.flags.writeable
        self._bytes: Bytes = array.reshape(-1).view(np.uint8)
        self._before: Bytes | None = None

    def keep(self) -> None:
        """Save the array's contents before its first change."""
        if self._before is None:
            self._before = self._bytes.copy()

    def restore(self) -> None:
        """Undo all changes."""
        if self._before is not None:
            self._bytes[:] = self._before

    def pieces(self) -> Values:
        """View the array as rows of eight 16-bit words."""
        return self._bytes[: self.size_bytes // 16 * 16].view(np.uint16).reshape(-1, 8)

    def rows(self, width: int) -> Values:
        """View the array as elements of `width` bytes."""
        return self._bytes[: self.size_bytes // width * width].view(row_type(width))


class GlobalMemory:
    """The arrays of a launch.

    Parameters
    ----------
    counters : Counters
        Counters of the traffic.
    """

    def __init__(self) -> None:
        self.counters = Counters()
        self._tensors: list[Tensor] = []
        self._places: Values = np.zeros((0, 2), np.int64)

    def clear(self, counters: Counters) -> None:
        """Remove all arrays, and use these counters from now on."""
        self.counters = counters
        self._tensors, self._places = [], np.zeros((0, 2), np.int64)

    def restore(self) -> None:
        """Undo all stores since the arrays were placed."""
        for tensor in self._tensors:
            tensor.restore()

    def writeable(self, array: NDArray[np.generic], verb: str, lane: int) -> Tensor:
        """Return the tensor of an array, before a store to it; raises OutOfBounds if it is read-only."""
        tensor = next(tensor for tensor in self._tensors if tensor.array is array)
        self._prepare(tensor, verb, lane)
        return tensor

    def place(self, name: str, array: NDArray[np.generic]) -> int:
        """Give an array an address, a multiple of 256 as from ``cudaMalloc``."""
        last = self._tensors[-1] if self._tensors else None
        address = -(-(last.address + last.size_bytes + GAP) // 256) * 256 if last else BASE
        self._tensors.append(Tensor(name, address, array))
        return address

    def load(self, addresses: Values, width: int, mask: Mask) -> Values:
        """Rows ``[active]`` of `width` bytes."""
        parts = list(self.parts(addresses, width, mask, "load"))
        for tensor, selection, rows in parts:
            self.counters.loads[tensor.name] += len(rows) * width
            self.counters.load_sectors[tensor.name] += sectors(addresses, mask, selection)
            if isinstance(selection, slice):
                return tensor.rows(width)[rows]
        result = np.empty(len(addresses), row_type(width))
        for tensor, selection, rows in parts:
            result[selection] = tensor.rows(width)[rows]
        return result

    def load_bytes(self, addresses: Values, length: int, mask: Mask) -> NDArray[np.uint8]:
        """Load bytes ``[active, length]``, without any alignment."""
        result = np.empty((len(addresses), length), np.uint8)
        for i in range(length):
            for tensor, selection, rows in self.parts(addresses + i, 1, mask, "load"):
                self.counters.loads[tensor.name] += len(rows)
                if i == 0:
                    self.counters.load_sectors[tensor.name] += sectors(addresses, mask, selection)
                result[selection, i] = tensor.rows(1)[rows]
        return result

    def store(self, addresses: Values, values: Values, width: int, mask: Mask) -> None:
        """Write rows ``[active]`` of `width` bytes; if lanes have equal addresses, the last lane wins."""
        for tensor, selection, rows in self.parts(addresses, width, mask, "store"):
            self.counters.stores[tensor.name] += len(rows) * width
            self.counters.store_sectors[tensor.name] += sectors(addresses, mask, selection)
            tensor.rows(width)[rows] = values[selection]

    def parts(self, addresses: Values, width: int, mask: Mask, verb: str) -> Iterator[tuple[Tensor, Selection, Values]]:
        """Yield the tensors that an access touches, with the active lanes and their rows of `width` bytes.

        Raises
        ------
        Misaligned, OutOfBounds
            For an address that is no multiple of `width`, or lies in no array.
        """
        if len(addresses) == 0:
            return
        if int(np.bitwise_or.reduce(addresses)) & (width - 1):
            off = np.flatnonzero(addresses & (width - 1))
            bad = int(off[0])
            what = f"{verb} of {width} bytes at {self._describe(int(addresses[bad]))} is not aligned to {width} bytes"
            raise Misaligned(what, mask.lane(bad), mask.index[off])
        shift = width.bit_length() - 1
        which, rows = np.empty((2, len(addresses)), np.int64)
        first, one_tensor = compiled.locate(addresses, width, self._bounds(), which, rows)
        if first < 0:
            before = np.searchsorted(self._bounds()[:, 0], addresses, side="right")
            off = np.flatnonzero((which < 0) & (before == before[which < 0].min()))
            bad = int(off[0])
            where = self._describe(int(addresses[bad]))
            raise OutOfBounds(f"{verb} of {width} bytes at {where}", mask.lane(bad), mask.index[off])
        if one_tensor:
            tensor = self._tensors[first]
            self._prepare(tensor, verb, mask.lane(0))
            yield tensor, slice(None), rows
            return
        for position, tensor in enumerate(self._tensors):
            selected = np.flatnonzero(which == position)
            if len(selected):
                self._prepare(tensor, verb, mask.lane(int(selected[0])))
                yield tensor, selected, (addresses[selected] - tensor.address) >> shift

    def _bounds(self) -> Values:
        """Start and end address of each array, ``[arrays, 2]``."""
        if len(self._places) < len(self._tensors):
            self._places = np.array([(t.address, t.address + t.size_bytes) for t in self._tensors]).reshape(-1, 2)
        return self._places

    def _prepare(self, tensor: Tensor, verb: str, lane: int) -> None:
        if verb != "load":
            if not tensor.writeable:
                raise OutOfBounds(f"{verb} to {tensor.name}, which is read-only", lane)
            tensor.keep()

    def _describe(self, address: int) -> str:
        """Describe an address by its tensor (or the nearest one) and the offset."""
        if not self._tensors:
            return f"{address % 2**64:#x}, and the kernel has no arrays"
        nearest = min(
            self._tensors,
            key=lambda t: max(t.address - address, address - t.address - t.size_bytes, 0),
        )
        offset = address - nearest.address
        if 0 <= offset < nearest.size_bytes:
            return f"byte {offset} of {nearest.name}, which has {nearest.size_bytes} bytes"
        if abs(offset) < GAP + nearest.size_bytes:
            side = f"{-offset} bytes before {nearest.name}"
            if offset >= 0:
                side = f"{offset - nearest.size_bytes} bytes past the end of {nearest.name}"
            return f"{side}, which has {nearest.size_bytes} bytes"
        return f"{address % 2**64:#x}, near no array"


def sectors(addresses: Values, mask: Mask, selection: Selection = slice(None)) -> int:
    """Count the 32-byte sectors that each warp touches in a part of an access, summed over warps.

    A lane touches one sector: it accesses at most 16 bytes.
    """
    return int(compiled.sectors(np.ascontiguousarray(addresses[selection]), mask.index[selection], SECTOR))


class LocalMemory:
    """Local memory of a batch of blocks."""

    def __init__(self, bytes_per_thread: int) -> None:
        self.counters = Counters()
        self.bytes_per_thread = bytes_per_thread
        self._stride = -(-bytes_per_thread // 16) * 16
        self._start = np.zeros(0, np.int64)
        self._bytes = np.zeros(0, np.uint8)

    def start(self, lanes: Lanes, counters: Counters) -> None:
        """Allocate local memory for the threads of a batch, filled with 0xFF, and use these counters from now on."""
        self.counters = counters
        self._start = np.arange(lanes.count) * self._stride
        self._bytes = np.full(lanes.count * self._stride, 0xFF, np.uint8)

    def load(self, addresses: Values, width: int, mask: Mask) -> Values:
        """Rows ``[active]`` of `width` bytes."""
        return self._bytes.view(row_type(width))[self._rows(addresses, width, mask)]

    def store(self, addresses: Values, values: Values, width: int, mask: Mask) -> None:
        """Write rows ``[active]`` of `width` bytes."""
        self._bytes.view(row_type(width))[self._rows(addresses, width, mask)] = values

    def _rows(self, addresses: Values, width: int, mask: Mask) -> Values:
        self.counters.local_bytes += width * mask.count
        if mask.count == 0:
            return np.zeros(0, np.int64)
        require_inside(addresses, width, mask, "access", "thread", "local", self.bytes_per_thread)
        return (addresses + mask.of(self._start)) >> (width.bit_length() - 1)


def require_inside(
    addresses: Values, width: int, mask: Mask, what: str, owner: str, space: str, size_bytes: int
) -> None:
    """Raise Misaligned for unaligned accesses, and OutOfBounds for those outside a block's or thread's `size_bytes`."""
    outside, has = (addresses < 0) | (addresses > size_bytes - width), f"{size_bytes} bytes of {space} memory"
    for fault, refused, why in (
        (Misaligned, addresses & (width - 1) != 0, f" is not aligned to {width} bytes"),
        (OutOfBounds, outside, f", but the {owner} has {has}"),
    ):
        if refused.any():
            bad = int(refused.argmax())
            place = f"{what} of {width} bytes at {space} address {int(addresses[bad]):#x}"
            raise fault(f"{place}{why}", mask.lane(bad), mask.index[refused])


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
