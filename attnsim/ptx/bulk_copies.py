"""The tensor copy engine (TMA): bulk loads of tensor boxes, bulk stores and bulk reductions.

A bulk load (PTX ISA 9.0, "cp.async.bulk.tensor") arrives when no thread can proceed: as late as possible.

Bulk stores are "cp.async.bulk.tensor", "cp.async.bulk" and "cp.reduce.async.bulk" with
``.global.shared::cta.bulk_group``, "cp.async.bulk.commit_group" and "cp.async.bulk.wait_group". We read the manual so:

- A thread's stores belong to its open group until it commits the group.
- The engine reads through the asynchronous proxy: data that threads have written needs a ``fence.proxy.async``.
- The engine owns the shared memory until the thread has waited with ``.read``.
- Global memory holds the values only after a wait without ``.read``.
- A thread that ends before its stores have read is a fault.
- Values arrive as late as possible: when they are waited for, or at the end of the blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attnsim.ptx import compiled
from attnsim.ptx.clusters import Clusters
from attnsim.ptx.counters import bf16_to_float, float_to_bf16
from attnsim.ptx.faults import CopyInFlight, Fault, Misaligned, OutOfBounds
from attnsim.ptx.lanes import WARP, Indices, Mask, Values
from attnsim.ptx.machine import Machine, Step, unsupported
from attnsim.ptx.mbarriers import Mbarriers
from attnsim.ptx.memory import SECTOR
from attnsim.ptx.ordering import PIECE
from attnsim.ptx.registers import DTYPES, Dtype
from attnsim.ptx.shared import TensorMap, swizzled
from attnsim.ptx.syntax import Instruction, TensorAddress


@dataclass(frozen=True, slots=True)
class _Copy:
    """Bulk loads in flight from one instruction: values ``[copies, pieces, 8]`` for rows ``[copies, pieces]``."""

    mbarrier: int
    lanes: Indices
    blocks: Indices
    rows: Values
    values: Values

    def part(self, chosen: Values) -> _Copy:
        return _Copy(self.mbarrier, self.lanes[chosen], self.blocks[chosen], self.rows[chosen], self.values[chosen])


class BulkCopies:
    """Bulk loads in flight in a batch of blocks, and the tensor maps among the kernel's arguments."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._mbarriers = machine.unit(Mbarriers)
        self._maps: dict[int, tuple[str, TensorMap]] = {}
        self._queue: list[_Copy] = []

    def start(self) -> None:
        """Forget all copies and maps."""
        self._maps, self._queue = {}, []

    def place(self, address: int, name: str, tensor_map: TensorMap) -> None:
        """Register a tensor map at an address; traffic is counted under `name`."""
        self._maps[address] = (name, tensor_map)

    def map_at(self, address: int, lane: int) -> tuple[str, TensorMap]:
        """Return name and tensor map at an address; raises OutOfBounds if there is none."""
        if address not in self._maps:
            raise OutOfBounds(f"there is no tensor map at {address:#x}", lane)
        return self._maps[address]

    def begin(
        self, address: int, corners: Indices, targets: Values, mbarriers: Values, mask: Mask, to: Values | None = None
    ) -> None:
        """Start one copy per active lane: the box at a corner ``[active, dimensions]`` of the map at `address`.

        Multicast: the bits of `to` name blocks of the cluster. The box then goes to the same shared address in each of
        them and completes on the mbarrier at the same address there. Sectors count once, bytes once per block.
        """
        name, tensor_map = self.map_at(address, mask.lane(0))
        for active, target in enumerate(targets.tolist()):
            require_aligned("bulk copy to", target, tensor_map, mask.lane(active))
        values, valid, sectors = tensor_map.boxes(corners)
        counters, shared = self._machine.counters, self._machine.shared
        counters.load_sectors[name] += sectors
        size, swizzle = tensor_map.box_bytes, tensor_map.swizzle_bytes

        def placed(begin: Values, blocks: Indices, lanes: Indices) -> Indices:
            places = swizzled(begin[:, None] + np.arange(0, size, PIECE), swizzle)
            return shared.pieces(places, blocks, lanes, "bulk copy")

        for here, blocks in self._machine.unit(Clusters).receivers(mask, to):
            part = mask.select(here)
            counters.loads[name] += int(valid[here].sum())
            counters.shared_bytes_stored += size * part.count
            key = "copy", targets[here].tobytes(), blocks.tobytes(), size, swizzle
            rows = shared.once(key, functools.partial(placed, targets[here], blocks, part.index))
            if shared.ordering:
                shared.ordering.begin_copy(rows, part.index)
            for number, lanes, chosen in self._mbarriers.for_copies(mbarriers[here], part, blocks):
                pieces = values[here][chosen].reshape(lanes.count, -1, PIECE // 2)
                self._queue.append(_Copy(number, lanes.index, blocks[chosen], rows[chosen], pieces))

    def land_oldest(self) -> bool:
        """Complete the oldest copy of each block; returns False if there was none."""
        queue, self._queue = self._queue, []
        served = np.zeros(self._machine.lanes.blocks, bool)
        for copy in queue:
            first = ~served[copy.blocks]
            if len(set(copy.blocks.tolist())) < len(first):
                first &= np.arange(len(first)) == _first_of(copy.blocks)
            served[copy.blocks] = True
            if not first.any():
                self._queue.append(copy)
            elif first.all():
                self._land(copy)
            else:
                self._land(copy.part(first))
                self._queue.append(copy.part(~first))
        return bool(queue)

    def require_landed(self) -> None:
        """Raise CopyInFlight if a copy is still in flight when the blocks end."""
        if self._queue:
            raise CopyInFlight("the block has ended, and a bulk copy to it is still under way", self._queue[0].lanes[0])

    def _land(self, copy: _Copy) -> None:
        compiled.put_pieces(self._machine.shared.by_piece(), copy.rows, copy.values)
        self._mbarriers.end_copies(copy.mbarrier, copy.blocks, copy.values[0].nbytes, copy.rows)


def require_aligned(what: str, address: int, tensor_map: TensorMap, lane: int) -> None:
    """Raise Misaligned for a box in shared memory that does not begin at the alignment of its map's swizzle."""
    if address % tensor_map.alignment:
        raise Misaligned(
            f"{what} shared address {address:#x}, not a multiple of {tensor_map.alignment}: with a swizzle of "
            f"{tensor_map.swizzle_bytes} bytes a box begins there, and elsewhere its elements lie in other places",
            lane,
        )


def _first_of(values: Indices) -> Indices:
    """Index of the first occurrence of each value."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    return first[inverse]


def boxes_of(place: TensorAddress, machine: Machine) -> Callable[[Mask], tuple[Values, Indices]]:
    """Return a closure that gives the active lanes' map addresses and the corners of their boxes."""
    maps = machine.read(place.map, "u64")
    coordinates = [machine.read(c, "s32") for c in reversed(place.coordinates)]

    def boxes(mask: Mask) -> tuple[Values, Indices]:
        corners = np.stack([mask.of(read()) for read in coordinates], axis=1)
        return mask.of(maps()), corners.astype(np.int64)

    return boxes


def compile_bulk_copy(instruction: Instruction, machine: Machine) -> Step:
    """``cp.async.bulk.tensor.Nd.shared::cluster.global.mbarrier::complete_tx::bytes [to], [map, {..}], [mbarrier]``.

    Also ``.multicast::cluster``, with one more operand: a bit mask of the receiving blocks.
    """
    modifiers = instruction.modifiers
    target, source, mbarrier = instruction.operands[:3]
    wanted = ("bulk", "tensor", "global", "mbarrier::complete_tx::bytes")
    unknown = [m for m in modifiers if m in ("im2col", "cta_group::2")]
    if not isinstance(source, TensorAddress) or unknown or any(m not in modifiers for m in wanted):
        raise unsupported(instruction)
    copies, boxes = machine.unit(BulkCopies), boxes_of(source, machine)
    to, barrier = machine.address(target), machine.address(mbarrier)
    sent = machine.read(instruction.operands[3], "u16") if "multicast::cluster" in modifiers else None

    def step(mask: Mask) -> None:
        (chosen, corners), targets, barriers = boxes(mask), to(mask), barrier(mask)
        for address, part, here in mask.apart(chosen):
            blocks = mask.of(sent())[here] if sent else None
            copies.begin(address, corners[here], targets[here], barriers[here], part, blocks)

    return step


Join = Callable[[Values, Values], Values]
"""A reduction: the stored value from the old value and the new one."""

_JOINS: dict[str, Join] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@dataclass(slots=True)
class _Store:
    """One thread's bulk store: its group, its number among the warp's stores, and a closure that writes its values."""

    lane: int
    group: int
    number: int
    arrive: Callable[[], None] | None
    read: bool = False


class BulkStores:
    """Bulk stores in flight in a batch of blocks."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._copies = machine.unit(BulkCopies)
        self._stores: list[_Store] = []

    def start(self) -> None:
        """Forget all stores."""
        lanes = self._machine.lanes
        self._group = np.zeros(lanes.count, np.int64)
        self._issued = np.zeros(lanes.warps, np.int64)
        self._stores = []

    def commit(self, mask: Mask) -> None:
        """Close each active thread's open group."""
        self._group = self._group + mask.lanes

    def wait(self, pending: int, reading: bool, mask: Mask) -> None:
        """Wait for all but the newest `pending` groups of each active thread: read, and unless `reading`, written."""
        for store in self._stores:
            if mask.lanes[store.lane] and store.group < self._group[store.lane] - pending:
                store.read = True
                if not reading and store.arrive:
                    store.arrive()
                    store.arrive = None
        self._stores = [store for store in self._stores if store.arrive or not store.read]
        ordering = self._machine.shared.ordering
        if ordering:
            for warp in mask.warp_index.tolist():
                left = [store.number for store in self._stores if store.lane // WARP == warp and not store.read]
                ordering.stores_have_read(warp, min(left, default=int(self._issued[warp]) + 1) - 1)

    def finish(self) -> None:
        """Complete all stores at the end of the blocks; raises CopyInFlight if one may not have read its data."""
        for store in self._stores:
            if not store.read:
                raise CopyInFlight(
                    "the thread has ended while its bulk store may still read shared memory: no "
                    "cp.async.bulk.wait_group.read came after it",
                    store.lane,
                )
        for store in self._stores:
            if store.arrive:
                store.arrive()
        self._stores = []

    def begin_box(self, address: int, corner: list[int], source: int, lane: int, join: str) -> None:
        """Store a box of shared memory at a corner of a tensor map; the part outside the tensor is dropped."""
        name, tensor_map = self._copies.map_at(address, lane)
        require_aligned("bulk store from", source, tensor_map, lane)
        tensor = self._machine.memory.writeable(tensor_map.array, "bulk store", lane)
        places = swizzled(source + np.arange(0, tensor_map.box_bytes, PIECE), tensor_map.swizzle_bytes)
        values = self._read(places, lane).view(tensor_map.dtype).reshape(tensor_map.box)
        place, inside, sectors = tensor_map.overlap(tuple(corner))
        combine = _combine(join, tensor_map.dtype) if join else None
        counters = self._machine.counters
        counters.stores[name] += values[inside].nbytes
        counters.store_sectors[name] += sectors

        def arrive() -> None:
            tensor.keep()
            there = tensor_map.array[place]
            there[...] = combine(there, values[inside]) if combine else values[inside]

        self._issue(lane, arrive)

    def begin_bytes(self, target: int, source: int, size: int, lane: int, kind: str, join: str) -> None:
        """Store `size` bytes of shared memory to an address."""
        for what, number in (("global address", target), ("shared address", source), ("size", size)):
            if number % PIECE:
                raise Misaligned(f"bulk store: {what} {number:#x} is not a multiple of {PIECE}", lane)
        memory, counters = self._machine.memory, self._machine.counters
        one = _only(lane, self._machine.lanes.count).times(max(size // PIECE, 1))
        parts = list(memory.parts(target + np.arange(0, size, PIECE), PIECE, one, "bulk store"))
        dtype = DTYPES[kind] if join else np.dtype(np.uint8)
        values = self._read(source + np.arange(0, size, PIECE), lane).reshape(-1, PIECE // 2)
        for tensor, selection, _ in parts:  # one, unless nothing is stored
            counters.stores[tensor.name] += values[selection].nbytes
            counters.store_sectors[tensor.name] += (target + size - 1) // SECTOR - target // SECTOR + 1
        combine = _combine(join, dtype, kind == "bf16") if join else None

        def arrive() -> None:
            for tensor, selection, rows in parts:
                there = tensor.pieces()
                new = np.ascontiguousarray(values[selection])
                if combine:
                    old = np.ascontiguousarray(there[rows]).view(dtype)
                    new = np.ascontiguousarray(combine(old, new.view(dtype)).astype(dtype)).view(np.uint16)
                there[rows] = new

        self._issue(lane, arrive)

    def _issue(self, lane: int, arrive: Callable[[], None]) -> None:
        number = int(self._issued[lane // WARP])
        self._stores.append(_Store(lane, int(self._group[lane]), number, arrive))

    def _read(self, places: Indices, lane: int) -> Values:
        """Read 16-byte pieces of the block's shared memory through the asynchronous proxy, ``[pieces * 8]`` uint16."""
        machine, shared = self._machine, self._machine.shared
        self._issued[lane // WARP] += 1
        block = machine.lanes.block_of[lane : lane + 1]
        rows = shared.pieces(places[None], block, np.array([lane]), "bulk store")
        if shared.ordering:
            shared.ordering.read_by_store(rows[0], lane, int(self._issued[lane // WARP]))
        machine.counters.shared_bytes_loaded += PIECE * len(places)
        values: Values = shared.by_piece()[rows[0]].reshape(-1)
        return values


def _only(lane: int, lanes: int) -> Mask:
    chosen = np.zeros(lanes, bool)
    chosen[lane] = True
    return Mask(chosen, 1)


def _combine(join: str, dtype: Dtype, bf16: bool = False) -> Join:
    """Return the reduction for a type; `bf16` comes from the instruction, since a map of 16-bit words does not tell."""
    if bf16:
        return lambda old, new: float_to_bf16(_JOINS[join](bf16_to_float(old), bf16_to_float(new)))
    if dtype == np.uint16:
        raise Fault(f"cp.reduce.async.bulk.tensor.{join} on a map of 16-bit words: bf16 or integers? not modelled")
    return _JOINS[join]


def compile_bulk_store(instruction: Instruction, machine: Machine) -> Step:
    """``cp.async.bulk.commit_group``, ``.wait_group(.read) n``, and the stores, by tensor map or by address.

    ``cp(.reduce).async.bulk.tensor.Nd.global.shared::cta(.op)(.tile).bulk_group [map, {..}], [from]`` and
    ``cp(.reduce).async.bulk.global.shared::cta.bulk_group(.op.type) [to], [from], size``. Not modelled: ``inc``,
    ``dec``, im2col, scatter4, byte masks.
    """
    modifiers, stores = instruction.modifiers, machine.unit(BulkStores)
    if "commit_group" in modifiers:
        return stores.commit
    if "wait_group" in modifiers:
        pending = machine.read(instruction.operands[0], "s64")
        return lambda mask: stores.wait(int(pending()[0]), "read" in modifiers, mask)
    known = {
        "async",
        "reduce",
        "bulk",
        "tensor",
        "global",
        "shared::cta",
        "bulk_group",
        "tile",
        "L2::cache_hint",
        "noftz",
    }
    known |= {*_JOINS, *(f"{n}d" for n in range(1, 6)), *(DTYPES if "reduce" in modifiers else ())}
    join = next((m for m in modifiers if m in _JOINS), "")
    if not {"global", "shared::cta", "bulk_group"} <= set(modifiers) <= known or ("reduce" in modifiers) != bool(join):
        raise unsupported(instruction)
    target, source = instruction.operands[:2]
    place = machine.address(source)
    if isinstance(target, TensorAddress):
        boxes = boxes_of(target, machine)

        def box(mask: Mask) -> None:
            per_lane = (each.tolist() for each in (*boxes(mask), place(mask), mask.index))
            for address, corner, start, lane in zip(*per_lane, strict=True):
                stores.begin_box(address, corner, start, lane, join)

        return box
    kind = modifiers[-1] if join else "b8"
    if "tensor" in modifiers or kind not in DTYPES:
        raise unsupported(instruction)
    to, size = machine.address(target), machine.read(instruction.operands[2], "u32")

    def plain(mask: Mask) -> None:
        per_lane = (each.tolist() for each in (to(mask), place(mask), mask.of(size()), mask.index))
        for address, start, length, lane in zip(*per_lane, strict=True):
            stores.begin_bytes(address, start, length, lane, kind, join)

    return plain
