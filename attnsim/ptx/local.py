"""Local memory: each thread's own stack, for spills and for arrays that are indexed at run time."""

from __future__ import annotations

import numpy as np

from attnsim.ptx.counters import Counters
from attnsim.ptx.faults import Misaligned, OutOfBounds
from attnsim.ptx.lanes import Lanes, Mask, Values
from attnsim.ptx.registers import row_type


class LocalMemory:
    """Local memory of a batch of blocks.

    Parameters
    ----------
    bytes_per_thread : int
    """

    def __init__(self, bytes_per_thread: int) -> None:
        self.counters = Counters()
        self.bytes_per_thread = bytes_per_thread
        self._stride = -(-bytes_per_thread // 16) * 16
        self._start = np.zeros(0, np.int64)
        self._bytes = np.zeros(0, np.uint8)

    def start(self, lanes: Lanes, counters: Counters) -> None:
        """Garbage for every thread of a batch; counts go to `counters` from now on."""
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
    """Refuse accesses that are Misaligned, or OutOfBounds: outside a block's or thread's `size_bytes`."""
    if int(np.bitwise_or.reduce(addresses)) & (width - 1):
        off = np.flatnonzero(addresses & (width - 1))
        bad = int(off[0])
        place = f"{what} of {width} bytes at {space} address {int(addresses[bad]):#x}"
        raise Misaligned(f"{place} is not aligned to {width} bytes", mask.lane(bad), mask.index[off])
    if int(addresses.min()) < 0 or int(addresses.max()) + width > size_bytes:
        off = np.flatnonzero((addresses < 0) | (addresses > size_bytes - width))
        bad = int(off[0])
        place = f"{what} of {width} bytes at {space} address {int(addresses[bad]):#x}"
        what = f"{place}, but the {owner} has {size_bytes} bytes of {space} memory"
        raise OutOfBounds(what, mask.lane(bad), mask.index[off])
