"""Race detection by vector clocks, for kernels in which only some warps of a block synchronise at a time.

Named barriers and mbarriers order some warps and not others, so that barrier epochs (hazards.py) are not enough. Here
each warp has a vector clock: how much of every agent's work it has observed to be complete (FastTrack: Flanagan and
Freund, PLDI 2009). The agents are:

- the warps;
- the tensor cores of each warpgroup (wgmma);
- for each warp, the copy engine for its bulk stores, and the tensor cores for its tcgen05.mma: both read shared memory
  later than the warp issues;
- the copy engine for bulk loads, once for each mbarrier.

The clock has a second plane for the asynchronous proxy, through which wgmma and bulk copies access shared memory. Data
that threads have written reaches it only after ``fence.proxy.async`` (PTX ISA 9.0, "Async proxy").
"""

from __future__ import annotations

from mmap import mmap

import numpy as np
from numpy.typing import NDArray

from attnsim.ptx import compiled_clocks
from attnsim.ptx.faults import CopyInFlight, Fault, MisusedMbarrier, Race, Reports, UninitialisedRead
from attnsim.ptx.lanes import WARP, Bools, Indices, Lanes, Mask, Meetings, Values

MBARRIERS = 64
"""Largest number of mbarriers in a block."""


class Agents:
    """Numbers of the agents of a cluster, in this order; every cluster of a batch has the same agents.

    Parameters
    ----------
    meetings : Meetings
        Agents other than warps that access shared memory.

    Attributes
    ----------
    per_block, cluster, warps : int
        Warps of a block, blocks of a cluster, warps of a cluster. The warps are the first agents; the tensor cores of
        each warpgroup follow.
    stores, products, readers, count : int
        First number of the bulk stores of each warp; first number of the tensor cores (tcgen05) of each warp; number of
        agents that read; number of all agents, with the bulk loads of each mbarrier.
    own : ndarray of int ``[warps of the batch]``
        Agent of each warp.
    """

    def __init__(self, lanes: Lanes, meetings: Meetings) -> None:
        self.per_block, self.cluster = lanes.warps_per_block, lanes.cluster
        self.warps = self.per_block * self.cluster
        self.stores = self.warps + -(-self.warps // 4)
        self.products = self.stores + self.warps * meetings.stores
        self.readers = self.products + self.warps * meetings.products
        self.count = self.readers + MBARRIERS * self.cluster
        self.own = np.arange(lanes.warps) % self.warps

    def no_reads(self, granules: int) -> NDArray[np.int32]:
        """Return zeros ``[granules, readers]``, most of which are never touched; each agent's values are contiguous.

        Allocated in pages of 4 KiB; NumPy would take 2 MiB at a time.
        """
        pages = mmap(-1, 4 * self.readers * granules)
        found: NDArray[np.int32] = np.frombuffer(pages, np.int32).reshape(self.readers, granules).T
        return found

    def described(self, agent: int) -> str:
        """Describe an agent, for messages."""
        if agent < self.warps:
            rank, warp = divmod(agent, self.per_block)
            return f"warp {warp}" + (f" of the cluster's block {rank}" if self.cluster > 1 else "")
        if agent < self.stores:
            return f"wgmma of warpgroup {agent - self.warps}"
        if agent < self.products:
            return f"a bulk store of warp {agent - self.stores}"
        return f"tcgen05.mma of warp {agent - self.products}" if agent < self.readers else "a bulk copy"


Clock = NDArray[np.int32]
"""Vector clocks ``[rows, 2, agents]``: plane 0 for ordinary accesses, plane 1 for the asynchronous proxy."""

PIECE = 16
"""Bytes of shared memory that the copy engine and wgmma move at once; also the largest access of a lane."""

_GENERIC, _ASYNC = 0, 1
_UNWRITTEN, _IN_FLIGHT, _MBARRIER = -1, -2, -3
"""Pseudo-writers; their time is `_NEVER`, which no clock reaches."""
_NEVER = np.iinfo(np.int32).max


class Ordering:
    """Vector clocks of a batch of blocks, and the last write and last reads of each granule of shared memory.

    A granule has the width of the narrowest access so far. Accesses are given as `rows`: their place in the batch's
    shared memory, in units of the access's width.

    Parameters
    ----------
    meetings : Meetings
        Agents other than warps that access it.
    reports : Reports
        Receives faults.

    Attributes
    ----------
    agents : Agents
        The agents that read and write.
    """

    def __init__(self, lanes: Lanes, bytes_per_block: int, meetings: Meetings, reports: Reports) -> None:
        self._reports = reports
        self._granule, self._bytes_per_block = PIECE, bytes_per_block
        self.agents = agents = Agents(lanes, meetings)
        self._blocks, self._per_block, self._cluster = lanes.blocks, agents.per_block, agents.cluster
        self._warps, self._stores, self._products = agents.warps, agents.stores, agents.products
        self._readers, self._own = agents.readers, agents.own
        granules = lanes.blocks * bytes_per_block // PIECE
        self._writer = np.full(granules, _UNWRITTEN, np.int16)
        self._written = np.full(granules, _NEVER, np.int32)
        self._by_atomic = np.zeros(granules, bool)
        self._read = agents.no_reads(granules)
        self._reading = np.zeros(self._readers, bool)
        self._known: Clock = np.zeros((lanes.warps, 2, agents.count), np.int32)
        self._known[np.arange(lanes.warps), _GENERIC, self._own] = 1

    # Meetings of warps.

    def clock(self) -> Clock:
        """Return the clocks of a new barrier, one per block, all zero."""
        return np.zeros((self._blocks, *self._known.shape[1:]), np.int32)

    def publish(self, clock: Clock, mask: Mask) -> None:
        """Publish these warps' clocks at a barrier of their blocks (a release), then advance the warps' own time."""
        warps = mask.warp_index
        compiled_clocks.clocks_merged(clock, self._known, warps, self._per_block, True)
        self._tick(warps)

    def publish_to(self, clock: Clock, blocks: Indices, lanes: Indices) -> None:
        """Publish the clocks of these lanes' warps at a barrier of other blocks of their clusters."""
        np.maximum.at(clock, blocks, self._known[lanes // WARP])
        self._tick(np.unique(lanes // WARP))

    def acquire(self, clock: Clock, mask: Mask) -> None:
        """Merge a barrier's clock into the clocks of these warps (an acquire)."""
        compiled_clocks.clocks_merged(clock, self._known, mask.warp_index, self._per_block, False)

    def barrier(self, blocks: Bools | None) -> None:
        """Synchronise all warps of these blocks (None: of every block)."""
        known = self._known.reshape(self._blocks, self._per_block, *self._known.shape[1:])
        chosen = np.arange(self._blocks) if blocks is None else np.flatnonzero(blocks)
        known[chosen] = known[chosen].max(axis=1, keepdims=True)
        self._tick((chosen[:, None] * self._per_block + np.arange(self._per_block)).reshape(-1))

    def stamp(self, clock: Clock, mask: Mask) -> None:
        """Enter only these warps' own time into a clock, not what they have observed of others."""
        warps = mask.warp_index
        own = self._own[warps]
        clock[warps // self._per_block, _GENERIC, own] = self._known[warps, _GENERIC, own]

    def fence(self, mask: Mask) -> None:
        """``fence.proxy.async``: copy these warps' clocks to the plane of the asynchronous proxy."""
        warps = mask.warp_index
        self._known[warps, _ASYNC] = self._known[warps, _GENERIC]
        self._tick(warps)

    def knows(self, clock: Clock, mask: Mask) -> bool:
        """True if these warps' clocks include the barrier's clock."""
        return bool(compiled_clocks.clocks_known(clock, self._known, mask.warp_index, self._per_block))

    def cluster_knows(self, clock: Clock, blocks: Indices, lanes: Indices) -> bool:
        """True if the clocks of these lanes' warps include the barrier's clock in other blocks of their clusters."""
        return bool((clock[blocks, _GENERIC] <= self._known[lanes // WARP, _GENERIC]).all())

    # Accesses of threads.

    def read(self, rows: Values, width: int, mask: Mask) -> None:
        """Check and note a load."""
        self._refine(width)
        warps = mask.index // WARP
        self._check_written(rows, width, self._known[:, _GENERIC], warps, mask.index, f"load of {width} bytes")
        own = self._own[warps]
        self._note_read(rows, width, own, self._known[warps, _GENERIC, own])

    def write(self, rows: Values, width: int, mask: Mask, verb: str = "store") -> None:
        """Check and note a store."""
        self._refine(width)
        warps, what = mask.index // WARP, f"{verb} of {width} bytes"
        self._check_written(rows, width, self._known[:, _GENERIC], warps, mask.index, what, unwritten=True)
        self._check_read(rows, width, warps, mask.index, what)
        self._sign(rows, width, warps)
        clash = compiled_clocks.clocks_signed(rows, width // self._granule, self._own[warps], self._writer)
        self._refuse(clash, rows, width, mask.index, what)  # two warps at once

    def issue(self, rows: Values, width: int, mask: Mask) -> None:
        """Check and note the start of a cp.async."""
        self.write(rows, width, mask, "cp.async")
        self._take(rows, width, _IN_FLIGHT)

    def land(self, rows: Values, width: int, mask: Mask) -> None:
        """Note the end of a cp.async that its own thread has waited for."""
        self._sign(rows, width, mask.index // WARP)

    def atomic(self, rows: Values, width: int, mask: Mask) -> None:
        """Check and note an atomic, which is ordered with other atomics but not with plain accesses."""
        self._refine(width)
        warps, what = mask.index // WARP, f"atomic of {width} bytes"
        self._check_written(rows, width, self._known[:, _GENERIC], warps, mask.index, what, atomic=True)
        self._check_read(rows, width, warps, mask.index, what)
        self._sign(rows, width, warps)
        self._of(self._by_atomic, width)[rows] = True

    # Accesses of tensor cores and of the copy engine, by pieces of 16 bytes: rows ``[.., pieces]``.

    def read_by_wgmma(self, rows: Values, groups: Indices, numbers: Indices) -> None:
        """Check and note the reads of wgmma by warpgroups `groups`, in their wgmma groups of these numbers (from 1).

        Rows are ordered by product, then by warpgroup. All four warps of a warpgroup must have observed the writes.
        """
        books = self._known, self._writer, self._written, self._read, self._reading
        granules = PIECE // self._granule
        if compiled_clocks.clocks_read_by_wgmma(rows, groups, numbers, self._warps, granules, *books):
            return
        groups, numbers = (np.tile(each, len(rows) // len(groups)) for each in (groups, numbers))
        known = self._known[groups[:, None] * 4 + np.arange(4)].min(axis=1)
        which, flat = np.repeat(np.arange(len(groups)), rows.shape[1]), rows.reshape(-1)
        lanes = groups[which] * 4 * WARP
        self._check_written(flat, PIECE, known[:, _ASYNC], which, lanes, "read by wgmma", generic=known[:, _GENERIC])
        agents = self._warps + self._own[groups * 4] // 4
        self._note_read(flat, PIECE, agents[which], numbers[which])

    def wgmma_done(self, groups: Indices, numbers: Indices) -> None:
        """Record that the warps of these warpgroups have waited for their wgmma groups up to these numbers."""
        warps = (groups[:, None] * 4 + np.arange(4)).reshape(-1)
        agents = self._warps + self._own[warps] // 4
        self._known[warps, :, agents] = np.maximum(self._known[warps, :, agents], np.repeat(numbers, 4)[:, None])

    def read_by_store(self, rows: Values, lane: int, number: int) -> None:
        """Check and note the reads of a lane's bulk store, the warp's store of that number (from 1)."""
        warp = np.full(len(rows), lane // WARP)
        known, generic = self._known[:, _ASYNC], self._known[:, _GENERIC]
        self._check_written(rows, PIECE, known, warp, warp * WARP + lane % WARP, "read by bulk store", generic=generic)
        self._reading[self._stores + self._own[lane // WARP]] = True
        self._of(self._read, PIECE)[rows, :, self._stores + self._own[lane // WARP]] = number

    def stores_have_read(self, warp: int, number: int) -> None:
        """Record that a warp's bulk stores up to that number have read their data."""
        agent = self._stores + self._own[warp]
        self._known[warp, :, agent] = np.maximum(self._known[warp, :, agent], number)

    def read_by_product(self, rows: Values, warps: Indices, numbers: Indices) -> None:
        """Check and note the reads ``[products, pieces]`` of tcgen05.mma with these numbers, by warp."""
        flat, which = rows.reshape(-1), np.repeat(warps, rows.shape[1])
        known, generic = self._known[:, _ASYNC], self._known[:, _GENERIC]
        self._check_written(flat, PIECE, known, which, which * WARP, "read by tcgen05.mma", generic=generic)
        agents = self._products + self._own[which]
        self._note_read(flat, PIECE, agents, np.repeat(numbers, rows.shape[1]))

    def product_of(self, warps: Indices) -> Indices:
        """Return the agents that stand for the tensor cores working for these warps."""
        agents: Indices = self._products + self._own[warps]
        return agents

    def products_done(self, clock: Clock, block: int, agent: int, number: int) -> None:
        """Enter into an mbarrier's clock that the agent's products up to this number are complete."""
        clock[block, :, agent] = np.maximum(clock[block, :, agent], number)

    def time_of(self, warps: Indices) -> tuple[Indices, Values]:
        """Return the agents of these warps, and their present times."""
        own = self._own[warps]
        return own, self._known[warps, _GENERIC, own]

    def knowledge(self, warps: Indices) -> Values:
        """Return these warps' clocks over all agents that read or write, ``[warps, agents]``."""
        known: Values = self._known[warps, _GENERIC]
        return known

    def begin_copy(self, rows: Values, lanes: Indices) -> None:
        """Check and note the start of bulk copies by these lanes."""
        by_piece, flat = np.repeat(lanes, rows.shape[1]), rows.reshape(-1)
        warps = by_piece // WARP
        known, generic = self._known[:, _ASYNC], self._known[:, _GENERIC]
        self._check_written(flat, PIECE, known, warps, by_piece, "bulk copy", generic=generic, unwritten=True)
        self._check_read(flat, PIECE, warps, by_piece, "bulk copy")
        self._take(flat, PIECE, _IN_FLIGHT)

    def end_copy(self, clock: Clock, rows: Values, mbarrier: int, blocks: Indices, phases: Indices) -> None:
        """Record that bulk copies completed in these phases of an mbarrier in these blocks, also in its clock."""
        agents = self._readers + mbarrier + MBARRIERS * (blocks % self._cluster)
        granules = PIECE // self._granule
        compiled_clocks.clocks_taken(rows, granules, agents, phases, self._writer, self._written)
        clock[blocks, :, agents] = phases[:, None]

    def place_mbarrier(self, rows: Values, mask: Mask) -> None:
        """Reserve eight bytes for an mbarrier; any other access to them is a fault."""
        self.write(rows, 8, mask, "mbarrier.init")
        self._take(rows, 8, _MBARRIER)

    def remove_mbarrier(self, rows: Values) -> None:
        """Turn the eight bytes of an mbarrier back into unwritten memory."""
        self._take(rows, 8, _UNWRITTEN)

    # The books, and checks against them.

    def _of(self, tracked: Values, width: int) -> Values:
        """View an array over granules by accesses of `width` bytes: ``[accesses, granules, ...]``."""
        return tracked.reshape(-1, max(width // self._granule, 1), *tracked.shape[1:])

    def _refine(self, width: int) -> None:
        """Split granules if an access is narrower than any before."""
        if width >= self._granule:
            return
        parts, self._granule = self._granule // width, width
        books = self._writer, self._written, self._by_atomic
        self._writer, self._written, self._by_atomic = (np.repeat(book, parts) for book in books)
        before, self._read = self._read, self.agents.no_reads(len(self._writer))
        for agent in np.flatnonzero(self._reading):
            self._read[:, agent] = np.repeat(before[:, agent], parts)

    def _tick(self, warps: Indices) -> None:
        """Advance these warps' own time: later work comes after the published clock."""
        self._known[warps, _GENERIC, self._own[warps]] += 1

    def _note_read(self, rows: Values, width: int, agents: Indices, times: Values) -> None:
        """Note these agents as the last readers."""
        self._reading[agents] = True
        compiled_clocks.clocks_note_read(rows, width // self._granule, agents, times, self._read)

    def _sign(self, rows: Values, width: int, warps: Indices) -> None:
        """Note these warps as the last writers."""
        own, granules = self._own[warps], width // self._granule
        now = self._known[warps, _GENERIC, own]
        compiled_clocks.clocks_sign(rows, granules, own, now, self._writer, self._written, self._by_atomic)

    def _take(self, rows: Values, width: int, writer: int) -> None:
        by, when = np.array([[writer], [_NEVER]])
        granules = width // self._granule
        compiled_clocks.clocks_taken(rows.reshape(1, -1), granules, by, when, self._writer, self._written)

    def _check_written(
        self,
        rows: Values,
        width: int,
        known: Clock,
        warps: Indices,
        lanes: Indices,
        what: str,
        generic: Clock | None = None,
        unwritten: bool = False,
        atomic: bool = False,
    ) -> None:
        """Check that clocks `known[warps]` include the last writes; if only `generic` does, a fence is missing."""
        books = self._writer, self._written, self._by_atomic
        bad, unfenced = compiled_clocks.clocks_written(
            rows, width // self._granule, known, warps, known if generic is None else generic, *books, unwritten, atomic
        )
        self._refuse(unfenced, rows, width, lanes, what, " and not passed on by fence.proxy.async")
        self._refuse(bad, rows, width, lanes, what)

    def _check_read(self, rows: Values, width: int, warps: Indices, lanes: Indices, what: str) -> None:
        """Check that these warps have observed the last reads."""
        agents, granules = np.flatnonzero(self._reading), width // self._granule
        position, reader = compiled_clocks.clocks_read(rows, granules, agents, warps, self._known, self._read)
        if position >= 0:
            access, piece = divmod(position, granules)
            place = self._place(int(rows[access]), width, piece, what, int(lanes[access]))
            missing = "barrier" if reader < self._stores else "cp.async.bulk.wait_group.read"
            if reader >= self._products:
                missing = "wait for the mbarrier of its tcgen05.commit"
            agent = self.agents.described(reader)
            self._reports(Race(f"{place}, read by {agent} with no {missing} between", int(lanes[access])))

    def _refuse(self, position: int, rows: Values, width: int, lanes: Indices, what: str, why: str = "") -> None:
        """Report a violation at a granule, by its position in the access; -1 for none."""
        if position >= 0:
            granules = width // self._granule
            access, piece = divmod(position, granules)
            lane, writer = int(lanes[access]), int(self._writer[rows[access] * granules + piece])
            self._reports(self._fault(self._place(int(rows[access]), width, piece, what, lane), writer, lane, why))

    def _fault(self, place: str, writer: int, lane: int, why: str) -> Fault:
        if writer == _UNWRITTEN:
            return UninitialisedRead(f"{place}: nothing has been written there", lane)
        if writer == _IN_FLIGHT:
            return CopyInFlight(
                f"{place}: a copy to it is still in flight; wait for it (mbarrier.try_wait, cp.async.wait_group)", lane
            )
        if writer == _MBARRIER:
            return MisusedMbarrier(f"{place}: an mbarrier lies there", lane)
        why = why or (
            " whose mbarrier it has not waited for" if writer >= self._readers else " with no barrier between"
        )
        return Race(f"{place}, written by {self.agents.described(writer)}{why}", lane)

    def _place(self, row: int, width: int, piece: int, what: str, lane: int) -> str:
        offset = (row * width + piece * self._granule) % self._bytes_per_block
        return f"{what} at shared address {offset:#x} by warp {lane // WARP % self._per_block}"
