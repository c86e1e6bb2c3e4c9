"""The tensor copy engine: boxes of tensors to shared memory, which arrive when nothing else can go on.

PTX ISA 9.0, "cp.async.bulk.tensor".
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from attnsim.ptx import compiled
from attnsim.ptx.clusters import Clusters
from attnsim.ptx.faults import CopyInFlight, Misaligned, OutOfBounds
from attnsim.ptx.lanes import Indices, Mask, Values
from attnsim.ptx.machine import Machine, Step, unsupported
from attnsim.ptx.ordering import PIECE
from attnsim.ptx.phases import Mbarriers
from attnsim.ptx.syntax import Instruction, TensorAddress
from attnsim.ptx.tensor_maps import TensorMap, swizzled


@dataclass(frozen=True, slots=True)
class _Copy:
    """Boxes under way that one instruction asked for: values ``[copies, pieces, 8]`` for rows ``[copies, pieces]``."""

    mbarrier: int
    lanes: Indices
    blocks: Indices
    rows: Values
    values: Values

    def part(self, chosen: Values) -> _Copy:
        return _Copy(self.mbarrier, self.lanes[chosen], self.blocks[chosen], self.rows[chosen], self.values[chosen])


class BulkCopies:
    """Copies under way in a batch of blocks, and the tensor maps among the kernel's arguments."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._mbarriers = machine.unit(Mbarriers)
        self._maps: dict[int, tuple[str, TensorMap]] = {}
        self._queue: list[_Copy] = []

    def start(self) -> None:
        """No copy under way, no map known."""
        self._maps, self._queue = {}, []

    def place(self, address: int, name: str, tensor_map: TensorMap) -> None:
        """Make a map known by its address; counts go by `name`."""
        self._maps[address] = (name, tensor_map)

    def map_at(self, address: int, lane: int) -> tuple[str, TensorMap]:
        """Name and tensor map that lie at an address; OutOfBounds where none does."""
        if address not in self._maps:
            raise OutOfBounds(f"there is no tensor map at {address:#x}", lane)
        return self._maps[address]

    def begin(
        self, address: int, corners: Indices, targets: Values, mbarriers: Values, mask: Mask, to: Values | None = None
    ) -> None:
        """Start a copy per active lane: the box at a corner ``[active, dimensions]`` of the map at `address`.

        Where a lane names blocks of its cluster by the bits of `to`, to the same place in each, told to each's mbarrier
        in the same place; sectors are read once, and bytes count for each block.
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
        """The oldest copy of each block arrives; returned is whether there was one."""
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
        """Refuse a kernel that ends with copies under way."""
        if self._queue:
            raise CopyInFlight("the block has ended, and a bulk copy to it is still under way", self._queue[0].lanes[0])

    def _land(self, copy: _Copy) -> None:
        compiled.put_pieces(self._machine.shared.by_piece(), copy.rows, copy.values)
        self._mbarriers.end_copies(copy.mbarrier, copy.blocks, copy.values[0].nbytes, copy.rows)


def require_aligned(what: str, address: int, tensor_map: TensorMap, lane: int) -> None:
    """Refuse a box in shared memory that does not begin where its map's swizzle does: Misaligned."""
    if address % tensor_map.alignment:
        raise Misaligned(
            f"{what} shared address {address:#x}, not a multiple of {tensor_map.alignment}: with a swizzle of "
            f"{tensor_map.swizzle_bytes} bytes a box begins there, and elsewhere its elements lie in other places",
            lane,
        )


def _first_of(values: Indices) -> Indices:
    """For each value, where it stands first."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    return first[inverse]


def compile_bulk_copy(instruction: Instruction, machine: Machine) -> Step:
    """``cp.async.bulk.tensor.Nd.shared::cluster.global.mbarrier::complete_tx::bytes [to], [map, {..}], [mbarrier]``.

    Also ``.multicast::cluster``, with the blocks that it goes to as bits behind these.
    """
    modifiers = instruction.modifiers
    target, source, mbarrier = instruction.operands[:3]
    wanted = ("bulk", "tensor", "global", "mbarrier::complete_tx::bytes")
    told = [m for m in modifiers if m in ("im2col", "cta_group::2")]
    if not isinstance(source, TensorAddress) or told or any(m not in modifiers for m in wanted):
        raise unsupported(instruction)
    copies, maps = machine.unit(BulkCopies), machine.read(source.map, "u64")
    coordinates = [machine.read(c, "s32") for c in reversed(source.coordinates)]
    to, barrier = machine.address(target), machine.address(mbarrier)
    sent = machine.read(instruction.operands[3], "u16") if "multicast::cluster" in modifiers else None

    def step(mask: Mask) -> None:
        corners = np.stack([mask.of(read()) for read in coordinates], axis=1).astype(np.int64)
        chosen, targets, barriers = mask.of(maps()), to(mask), barrier(mask)
        for address, part, here in mask.apart(chosen):
            blocks = mask.of(sent())[here] if sent else None
            copies.begin(address, corners[here], targets[here], barriers[here], part, blocks)

    return step
