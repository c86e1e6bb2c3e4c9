"""Mbarriers: phases that end when enough threads have arrived and all expected bytes have landed; and fences.

PTX ISA 9.0, "Parallel Synchronization and Communication Instructions: mbarrier".
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnsim.ptx.clusters import RANK_SHIFT, Clusters
from attnsim.ptx.faults import Deadlock, Fault, MisusedMbarrier
from attnsim.ptx.flow import Control, control, space_name, suspended
from attnsim.ptx.lanes import Bools, Indices, Mask, Values
from attnsim.ptx.machine import Machine, Step, operation, unsupported
from attnsim.ptx.ordering import MBARRIERS, Clock
from attnsim.ptx.registers import Read
from attnsim.ptx.syntax import Immediate, Instruction, Symbol

MOST_BYTES = 2**20 - 1
"""Largest number of bytes that a phase can expect (PTX ISA 9.0, "Contents of the mbarrier object")."""

MASKS = 256
"""Size of the cache of lanes that are known to have seen an mbarrier's initialisation."""


class Mbarriers:
    """The mbarriers of a batch of blocks, ``[number, block]``, numbered in the order of their first initialisation.

    A thread that waits for a phase is ordered after all arrivals and all copies that completed in that phase.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._numbers: dict[int, int] = {}
        self._ends = [0] * MBARRIERS

    def start(self) -> None:
        """Reset: no mbarrier exists."""
        lanes, self._ordering = self._machine.lanes, self._machine.shared.ordering
        self._numbers = {}
        self._block_of = lanes.block_of
        size = (MBARRIERS, lanes.blocks)
        self._expected, self._pending = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self._bytes, self._phase = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self._maker = np.full(size, -1)
        self._visible = np.zeros(size, bool)
        self._met: dict[tuple[int, Mask, bytes], tuple[int, Indices]] = {}
        self._made: list[Clock] = []
        self._published: list[Clock] = []
        self._over: list[Clock] = []

    def init(self, addresses: Values, counts: Values, mask: Mask) -> None:
        """``mbarrier.init``: start phase 0, with so many expected arrivals."""
        self._machine.shared.place_mbarrier(addresses, mask)
        self._forget()
        for address, part, chosen in mask.apart(addresses):
            number = self._numbers.setdefault(address, len(self._numbers))
            if number == MBARRIERS:
                raise MisusedMbarrier(f"more than {MBARRIERS} mbarriers in a block", part.lane(0))
            blocks = self._block_of[part.index]
            self._expected[number, blocks] = self._pending[number, blocks] = counts[chosen]
            self._bytes[number, blocks] = self._phase[number, blocks] = 0
            self._maker[number, blocks], self._visible[number, blocks] = part.index // 32, False
            if self._ordering:
                if number == len(self._made):
                    for clocks in (self._made, self._published, self._over):
                        clocks.append(self._ordering.clock())
                self._ordering.stamp(self._made[number], part)

    def invalidate(self, addresses: Values, mask: Mask) -> None:
        """``mbarrier.inval``: turn the mbarrier back into ordinary memory."""
        for number, _, _, blocks in self._each(addresses, mask):
            self._expected[number, blocks] = 0
        self._forget()
        self._machine.shared.remove_mbarrier(addresses, mask)

    def show(self, mask: Mask) -> None:
        """Make the mbarriers that these warps initialised visible to the copy engine."""
        self._visible |= mask.by_warp[self._maker] > 0

    def arrive(self, addresses: Values, counts: Values, announced: Values, mask: Mask) -> Values:
        """Add expected bytes, then arrive so many times; returns the number of each lane's phase."""
        phases = np.zeros(mask.count, np.uint64)
        addresses, owners = self._home(addresses, mask)
        for number, part, chosen, blocks in self._each(addresses, mask, owners):
            phases[chosen] = self._phase[number, blocks]
            np.add.at(self._bytes[number], blocks, announced[chosen].astype(np.int64))
            np.subtract.at(self._pending[number], blocks, counts[chosen].astype(np.int64))
            over = (self._pending[number] < 0) | (self._bytes[number] > MOST_BYTES)
            if over.any():
                block = int(np.flatnonzero(over)[0])
                lane = int(part.index[blocks == block][0])
                raise MisusedMbarrier(f"more than it can count for {self.described(number, block)}", lane)
            if self._ordering:
                if owners is None:
                    self._ordering.publish(self._published[number], part)
                else:
                    self._ordering.publish_to(self._published[number], blocks, part.index)
            self._settle(number)
        return phases

    def over(self, addresses: Values, phases: Values, parity: bool, mask: Mask) -> tuple[Mask, list[int]]:
        """Return the lanes whose phase (by its number, or the last one of a parity) has ended.

        Also returns the numbers of the mbarriers that were tested, for :meth:`ends`.
        """
        done, numbers = np.zeros(mask.count, bool), []
        for number, _, chosen, blocks in self._each(addresses, mask):
            numbers.append(number)
            now, asked = self._phase[number].take(blocks), phases[chosen].astype(np.int64)
            done[chosen] = (now ^ asked) & 1 if parity else now > asked
        return mask.select(done), numbers

    def ends(self, numbers: list[int]) -> int:
        """Count the ended phases of these mbarriers in all blocks, plus initialisations and invalidations."""
        return sum(self._ends[number] for number in numbers)

    def learn(self, addresses: Values, mask: Mask) -> None:
        """Record that these lanes have seen a phase end: they acquire the clocks published before that."""
        for number, part, _, _ in self._each(addresses, mask):
            if self._ordering:
                self._ordering.acquire(self._over[number], part)

    def deadlock(self, address: int, lane: int) -> Deadlock:
        """Return the fault for a lane that waits for a phase that nothing can end."""
        waited = self.described(self._numbers[address], int(self._block_of[lane]))
        return Deadlock(f"waits at {waited}; no thread can go on, and no copy is under way", lane)

    def for_copies(self, addresses: Values, mask: Mask, owners: Indices) -> Iterator[tuple[int, Mask, Bools | slice]]:
        """Yield the mbarriers in blocks `owners` that copies of these lanes complete on: number, lanes, indices.

        Raises
        ------
        MisusedMbarrier
            If an mbarrier is not yet visible to the copy engine.
        """
        for number, part, chosen, blocks in self._each(addresses, mask, owners):
            hidden = ~self._visible[number, blocks]
            if hidden.any():
                raise MisusedMbarrier(
                    f"the copy engine may not see the mbarrier at {self._address(number):#x} yet: no "
                    "fence.mbarrier_init or fence.proxy.async after its initialisation",
                    part.lane(int(np.flatnonzero(hidden)[0])),
                )
            yield number, part, chosen

    def end_copies(self, number: int, blocks: Indices, count: int, rows: Values) -> None:
        """Complete copies of `count` bytes each in these blocks, to pieces ``[copies, pieces]``."""
        np.subtract.at(self._bytes[number], blocks, count)
        if self._ordering:
            phases = self._phase[number, blocks] + 1
            self._ordering.end_copy(self._published[number], rows, number, blocks, phases)
        self._settle(number)

    def end_products(self, number: int, block: int, agent: int, count: int) -> None:
        """Complete the products of an agent up to its number `count`: one arrival."""
        self._pending[number, block] -= 1
        if self._pending[number, block] < 0:
            lane = int(np.flatnonzero(self._block_of == block)[0])
            raise MisusedMbarrier(f"more than it can count for {self.described(number, block)}", lane)
        if self._ordering:
            self._ordering.products_done(self._published[number], block, agent, count)
        self._settle(number)

    def for_products(self, addresses: Values, mask: Mask) -> Iterator[tuple[int, Mask, Bools | slice]]:
        """Yield the mbarriers on which ``tcgen05.commit`` of these lanes arrives: number, lanes, indices in `mask`."""
        return ((number, part, chosen) for number, part, chosen, _ in self._each(addresses, mask))

    def _home(self, addresses: Values, mask: Mask) -> tuple[Values, Indices | None]:
        """Split addresses from ``mapa`` into local addresses and their blocks; None if all are in the lanes' own block.

        Raises
        ------
        MisusedMbarrier
            If the block has ended.
        """
        ranks = addresses >> RANK_SHIFT
        if not ranks.any():
            return addresses, None
        blocks, named = self._block_of[mask.index], ranks > 0
        blocks[named] = self._machine.unit(Clusters).block(mask.index[named], ranks[named] - 1)
        return addresses & ((1 << RANK_SHIFT) - 1), blocks

    def described(self, number: int, block: int) -> str:
        """Describe an mbarrier of a block, for messages."""
        return (
            f"the mbarrier at {self._address(number):#x}: phase {self._phase[number, block]} lacks "
            f"{self._pending[number, block]} of {self._expected[number, block]} arrivals and "
            f"{self._bytes[number, block]} bytes"
        )

    def _address(self, number: int) -> int:
        return next(address for address, one in self._numbers.items() if one == number)

    def _each(
        self, addresses: Values, mask: Mask, owners: Indices | None = None
    ) -> Iterator[tuple[int, Mask, Bools | slice, Indices]]:
        """Yield each mbarrier that active lanes name: number, lanes, indices in `mask`, blocks (default: their own).

        Raises
        ------
        MisusedMbarrier
            If there is no mbarrier at the address, or the lane cannot have seen its initialisation.
        """
        for address, part, chosen in mask.apart(addresses):
            key = address, part, b"" if owners is None else owners[chosen].tobytes()
            if key not in self._met:
                if len(self._met) >= MASKS:
                    self._met.clear()
                self._met[key] = self._meet(address, part, None if owners is None else owners[chosen])
            number, blocks = self._met[key]
            yield number, part, chosen, blocks

    def _forget(self) -> None:
        """Clear the cache of mbarriers that lanes have seen, after an mbarrier was initialised or invalidated."""
        self._met.clear()
        self._ends = [ends + 1 for ends in self._ends]

    def _meet(self, address: int, mask: Mask, owners: Indices | None) -> tuple[int, Indices]:
        """Return the number of the mbarrier that these lanes name by its address, and the blocks of its instances."""
        number, blocks = self._numbers.get(address), self._block_of[mask.index] if owners is None else owners
        if number is None or not self._expected[number, blocks].all():
            raise MisusedMbarrier(f"there is no mbarrier at {address:#x}", mask.lane(0))
        if ordering := self._ordering:
            made = self._made[number]
            known = ordering.knows(made, mask) if owners is None else ordering.cluster_knows(made, owners, mask.index)
            if not known:
                raise MisusedMbarrier(
                    f"the mbarrier at {address:#x} has been initialised, but with no barrier between", mask.lane(0)
                )
        return number, blocks

    def _settle(self, number: int) -> None:
        """End the phase in every block where no arrivals and no bytes are missing."""
        over = (self._expected[number] > 0) & (self._pending[number] == 0) & (self._bytes[number] == 0)
        if over.any():
            self._ends[number] += 1
            self._phase[number, over] += 1
            self._pending[number, over] = self._expected[number, over]
            if self._ordering:
                self._over[number][over] = self._published[number][over]


_NONE, _ONE = Immediate("0"), Immediate("1")


@operation("mbarrier")
def compile_mbarrier(instruction: Instruction, machine: Machine) -> Step:
    """``mbarrier.init``, ``inval``, ``arrive``, ``arrive.expect_tx`` and ``expect_tx``.

    The last three take addresses from ``mapa`` too, in another block of the cluster; such arrivals return no state.
    """
    kind, operands = instruction.modifiers[0], instruction.operands
    if kind in ("arrive", "expect_tx"):
        return _arrive(instruction, machine)
    _require_own_memory(instruction)
    barriers, address = machine.unit(Mbarriers), machine.address(operands[0])
    if kind == "inval":
        return lambda mask: barriers.invalidate(address(mask), mask)
    if kind != "init":
        raise unsupported(instruction)
    count = machine.read(operands[1], "u32")
    return lambda mask: barriers.init(address(mask), mask.of(count()), mask)


def _arrive(instruction: Instruction, machine: Machine) -> Step:
    """``arrive state, [a] (, count)``, ``arrive.expect_tx state, [a], bytes`` and ``expect_tx [a], bytes``."""
    modifiers, arrives = instruction.modifiers, instruction.modifiers[0] == "arrive"
    if arrives and ("noComplete" in modifiers or "relaxed" in modifiers):
        raise unsupported(instruction)
    if "shared::cluster" not in modifiers and space_name(instruction) != "shared":
        raise unsupported(instruction)
    state, place, *rest = instruction.operands if arrives else (Symbol("_"), *instruction.operands)
    number = rest[0] if rest else _ONE
    once = _ONE if arrives else _NONE
    count, announced = (once, number) if "expect_tx" in modifiers else (number, _NONE)
    barriers, address = machine.unit(Mbarriers), machine.address(place)
    counts, expected = machine.read(count, "u32"), machine.read(announced, "u32")
    write = machine.registers.write_active(state, np.dtype(np.uint64))

    def step(mask: Mask) -> None:
        write(barriers.arrive(address(mask), mask.of(counts()), mask.of(expected()), mask), mask)

    return step


@control("mbarrier")
def compile_wait(instruction: Instruction, machine: Machine) -> Control | None:
    """``mbarrier.try_wait(.parity) p, [a], phase``: suspends the lanes until their phase has ended."""
    if "wait" not in instruction.modifiers[0]:
        return None
    _require_own_memory(instruction)
    if instruction.modifiers[0] != "try_wait" or instruction.guard or "relaxed" in instruction.modifiers:
        raise unsupported(instruction)
    parity = "parity" in instruction.modifiers
    target, place, phase = instruction.operands[:3]
    barriers, write, address = machine.unit(Mbarriers), machine.write(target, "pred"), machine.address(place)
    asked: Read = machine.read(phase, "u32" if parity else "u64")
    yes = np.ones(1, bool)
    missed: dict[Mask, tuple[list[int], int]] = {}

    def ready(mask: Mask) -> Mask:
        numbers, ends = missed.get(mask, ([], -1))
        if barriers.ends(numbers) == ends:  # asked before, and nothing has changed since
            return mask.none
        found, numbers = barriers.over(address(mask), mask.of(asked()), parity, mask)
        missed.clear()
        if not found.count:
            missed[mask] = numbers, barriers.ends(numbers)
        return found

    def fault(mask: Mask) -> Fault:
        return barriers.deadlock(int(address(mask)[0]), mask.lane(0))

    def learn(mask: Mask) -> None:
        barriers.learn(address(mask), mask)
        write(yes, mask)

    return suspended(ready, fault, learn)


def _require_own_memory(instruction: Instruction) -> None:
    if "shared::cluster" in instruction.modifiers or space_name(instruction) != "shared":
        raise unsupported(instruction)


@operation("fence", "membar")
def compile_fence(instruction: Instruction, machine: Machine) -> Step:
    """Fences; only proxy fences to the asynchronous proxy matter, since every store is visible at once here."""
    modifiers = instruction.modifiers
    barriers, shared = machine.unit(Mbarriers), machine.shared
    if "mbarrier_init" in modifiers:
        return barriers.show
    if "async" not in modifiers or "global" in modifiers:
        return lambda mask: None

    def pass_on(mask: Mask) -> None:
        barriers.show(mask)
        if shared.ordering:
            shared.ordering.fence(mask)

    return pass_on
