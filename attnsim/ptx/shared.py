"""Shared memory of a batch of blocks: contents, bounds checks, counts, and cp.async copies.

Tensor maps, the descriptors of the tensor copy engine: an array, and the box that a copy moves.

Matrix descriptors of wgmma and tcgen05.mma: addresses of an operand's pieces in shared memory, and their values.

PTX ISA 9.0, "Asynchronous wgmma: Matrix Descriptor Format" and "Strides", "tcgen05: Shared memory descriptor" and
"Canonical layouts"; the layouts are those that CUTLASS writes out beside ``make_gmma_desc`` and ``make_umma_desc``
(include/cute/atom/mma_traits_sm90_gmma.hpp, mma_traits_sm100.hpp), the same for both but for the bits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnsim.errors import InputError
from attnsim.ptx import compiled, compiled_matrices
from attnsim.ptx.counters import Counters, floats
from attnsim.ptx.faults import CopyInFlight, Fault, OutOfBounds, Reports
from attnsim.ptx.lanes import Indices, Lanes, Mask, Meetings, Values
from attnsim.ptx.memory import SECTOR, Hazards, require_inside
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


MAP_BYTES = 128
"""Bytes of a tensor map among a kernel's parameters."""

LARGEST_BOX = 256
"""Largest extent of a box in any dimension (CUDA Driver API, ``cuTensorMapEncodeTiled``)."""

SWIZZLE_BYTES = 128
SWIZZLES = (0, 32, 64, 128)
"""Bytes that a swizzle permutes, 0 for none. A pattern repeats every eight rows of so many bytes."""

ALIGNMENT = 128
"""Smallest alignment of a box in shared memory, for any swizzle."""


class Overlap(NamedTuple):
    """The overlap of a box and an array: its place in the array, its part of the box, and its sectors."""

    place: tuple[slice, ...]
    inside: tuple[slice, ...]
    sectors: int


@dataclass(frozen=True, eq=False, slots=True)
class TensorMap:
    """A map as ``cuTensorMapEncodeTiled`` encodes it, with element strides of 1 and zeros out of bounds.

    Parameters
    ----------
    array : ndarray
        C-contiguous, elements of 1 to 8 bytes; dimensions from slowest to fastest.
    box : tuple of int
        Extent of a box in elements, in the same order.
    swizzle_bytes : int, optional
        One of :data:`SWIZZLES`.

    Raises
    ------
    InputError
        For maps that the driver rejects.
    """

    array: NDArray[Any]
    box: tuple[int, ...]
    swizzle_bytes: int = SWIZZLE_BYTES
    _overlaps: dict[tuple[int, ...], Overlap] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        item = self.array.itemsize
        if not self.array.flags.c_contiguous or item not in (1, 2, 4, 8):
            raise InputError(f"a tensor map takes contiguous arrays of elements of 1 to 8 bytes, not {self.dtype}")
        if self.swizzle_bytes not in SWIZZLES or len(self.box) != self.array.ndim:
            raise InputError(
                f"a tensor map of boxes {list(self.box)} with a swizzle of {self.swizzle_bytes} bytes; allowed: a size "
                f"for each of {self.array.ndim} dimensions, and a swizzle of {SWIZZLES}"
            )
        most = min(self.swizzle_bytes // item or LARGEST_BOX, LARGEST_BOX)
        if not all(1 <= size <= LARGEST_BOX for size in self.box) or self.box[-1] > most:
            raise InputError(
                f"a tensor map of boxes {list(self.box)}; allowed: {LARGEST_BOX} elements in each dimension, "
                f"{most} in the last"
            )
        for what, width in (("of ", self.array.shape[-1]), ("of boxes with ", self.box[-1])):
            if width * item % PIECE:
                raise InputError(f"a tensor map {what}rows of {width} elements; allowed: multiples of {PIECE // item}")

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the array."""
        return self.array.dtype

    @property
    def alignment(self) -> int:
        """Alignment of a box in shared memory, in bytes: the size of one repetition of the swizzle.

        CUDA C++ Programming Guide, "TMA Swizzle": 1,024 under 128 bytes, 512 under 64, 256 under 32.
        """
        return max(8 * self.swizzle_bytes, ALIGNMENT)

    @property
    def box_bytes(self) -> int:
        """Bytes that a copy writes to shared memory."""
        return math.prod(self.box) * self.array.itemsize

    def boxes(self, corners: Indices) -> tuple[Values, Indices, int]:
        """Return the boxes at corners ``[copies, dimensions]``, with zeros outside the array.

        Returns
        -------
        ndarray of uint16 ``[copies, words of a box]``
        ndarray of int
            Bytes of each box that lie in the array.
        int
            32-byte sectors of those bytes, summed over copies.
        """
        values = np.zeros((len(corners), *self.box), self.dtype)
        valid, sectors = np.zeros(len(corners), np.int64), 0
        for copy, corner in enumerate(corners.tolist()):
            place, inside, touched = self.overlap(tuple(corner))
            taken = values[copy][inside]
            taken[...] = self.array[place]
            valid[copy] = taken.nbytes
            sectors += touched
        return values.reshape(len(corners), -1).view(np.uint16), valid, sectors

    def overlap(self, corner: tuple[int, ...]) -> Overlap:
        """Return the overlap of the array and the box at a corner; empty if the box lies outside."""
        if corner not in self._overlaps:
            self._overlaps[corner] = self._overlap(corner)
        return self._overlaps[corner]

    def _overlap(self, corner: tuple[int, ...]) -> Overlap:
        place, inside = [], []
        for start, size, length in zip(corner, self.box, self.array.shape, strict=True):
            low, high = max(start, 0), max(min(start + size, length), start, 0)
            place.append(slice(low, high))
            inside.append(slice(low - start, high - start))
        return Overlap(tuple(place), tuple(inside), self._sectors(tuple(place)))

    def _sectors(self, place: tuple[slice, ...]) -> int:
        """Count the 32-byte sectors of a part of the array, row by row."""
        item, last = self.array.itemsize, place[-1]
        if not any(at * item % SECTOR for at in (last.start, last.stop, self.array.shape[-1])):
            return int(math.prod(part.stop - part.start for part in place) * item // SECTOR)
        row = np.zeros((), np.int64)
        for part, length in zip(place[:-1], self.array.shape[:-1], strict=True):
            row = np.add.outer(row * length, np.arange(part.start, part.stop))
        begin, end = (item * (row * self.array.shape[-1] + at) for at in (last.start, last.stop))
        return int(((end - 1) // SECTOR - begin // SECTOR + 1).sum()) if last.start < last.stop else 0


def swizzled(addresses: Values, span: int) -> Values:
    """Apply a swizzle of `span` bytes to shared addresses; 16 or less means none.

    With 128 bytes, bits 4 to 6 are XORed with bits 7 to 9.
    Source: PTX ISA 9.0, "Swizzling Modes"; the same permutation is ``Swizzle<3, 4, 3>`` in CUTLASS.
    """
    found: Values = addresses ^ ((addresses >> 7 & (max(span // PIECE, 1) - 1)) << 4)
    return found


DEPTH = 16
"""k of a wgmma or tcgen05.mma on 16-bit elements."""


@dataclass(frozen=True)
class Form:
    """Meaning of a descriptor's bits other than address and strides.

    Parameters
    ----------
    name : str
        Name of the instruction.
    mode_at : int
        First bit of the swizzle mode.
    span_bytes : mapping of int to int
        Bytes that each swizzle mode permutes; 16 for no swizzle.
    fixed : int
        Bits that are always set.
    """

    name: str
    mode_at: int
    span_bytes: Mapping[int, int]
    fixed: int = 0

    def span_of(self, descriptor: int, lane: int) -> int:
        """Return the bytes that the swizzle permutes; raises Fault for unknown bits or modes, or a base offset."""
        mode = descriptor >> self.mode_at
        strange = descriptor & ~(_PLACES | -1 << self.mode_at) ^ self.fixed
        if strange or mode not in self.span_bytes:
            raise Fault(
                f"the matrix descriptor {descriptor:#018x} of {self.name} has bits "
                f"{strange or mode << self.mode_at:#x}: tiles that do not start on a repetition of the swizzle, and "
                "other modes, are not modelled",
                lane,
            )
        return self.span_bytes[mode]


_PLACES = 0x3FFF_3FFF_3FFF
"""Bits of address and strides; of the others only the base offset (49 to 51) and the mode have a meaning."""

WGMMA = Form("wgmma", 62, {0: 16, 1: 128, 2: 64, 3: 32})
TCGEN05 = Form("tcgen05.mma", 61, {0: 16, 2: 128, 4: 64, 6: 32}, fixed=1 << 46)


def piece_addresses(descriptors: Indices, rows: int, transposed: bool, lanes: Indices, form: Form = WGMMA) -> Values:
    """Return shared addresses of the 16-byte pieces of A or B, `rows` along m or n and 16 along k.

    Parameters
    ----------
    descriptors : ndarray of uint64 ``[matrices]``
    transposed : bool
        False where k is contiguous, True where m or n is.
    lanes : ndarray ``[matrices]``
        Lane to name in a fault.
    form : Form
        The instruction's descriptor format.

    Returns
    -------
    ndarray ``[matrices, rows, 2]``, transposed ``[matrices, 16, rows / 8]``

    Raises
    ------
    Fault
        For a descriptor with bits that mean nothing, or a base offset.
    """
    return np.stack(
        [
            _pieces(descriptor, rows, transposed, form.span_of(descriptor, lane))
            for descriptor, lane in zip(descriptors.tolist(), lanes.tolist(), strict=True)
        ]
    )


@functools.lru_cache(maxsize=1024)
def _pieces(descriptor: int, rows: int, transposed: bool, span: int) -> Values:
    start, leading, stride = ((descriptor >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    offsets = _across_rows(rows, span, leading, stride) if transposed else _along_rows(rows, span, leading, stride)
    return swizzled(start + offsets, span)


def _along_rows(rows: int, span: int, leading: int, stride: int) -> Values:
    """Offsets if k is contiguous: rows of `span` bytes in groups of eight, `stride` apart; k takes two adjacent pieces.

    Without swizzle, a row is one piece, and the second piece of k is `leading` bytes away.
    """
    row, piece = np.arange(rows)[:, None], np.arange(2)
    return row % 8 * span + row // 8 * stride + piece * (leading if span == PIECE else PIECE)


def _across_rows(rows: int, span: int, leading: int, stride: int) -> Values:
    """Offsets if m or n is contiguous: a row of `span` bytes for each k.

    The next span is `leading` bytes away, the next eight k are `stride` bytes away.

    Without swizzle the two strides swap their roles.
    """
    k, piece = np.arange(DEPTH)[:, None], np.arange(rows // 8)
    per_span = span // PIECE
    if span == PIECE:
        leading, stride = stride, leading
    return k % 8 * span + k // 8 * stride + piece % per_span * PIECE + piece // per_span * leading


def matrices(memory: Values, places: Indices, rows: int, transposed: bool, kind: str) -> Values:
    """Decode f16 or bf16 matrices to float32 ``[matrices, rows, 16]``, from pieces of shared memory ``[pieces, 8]``."""
    result = np.empty((len(places), rows, DEPTH), np.float32)
    compiled_matrices.pieces_to_floats(memory, places, transposed, floats(kind), result)
    return result
