"""Runs every block of a grid without its arithmetic: its control flow, and its accesses to global memory.

Control flow and addresses seldom depend on the values of tensors. So only the instructions from which branches,
predicates and addresses follow are run (a program slice), for thousands of threads at once. Products, exponentials and
copies are not run. Branches and accesses that depend on values that were not computed are listed.

The slice keeps each register that a branch, a predicate or an address depends on. If such a register is loaded from
shared memory, the slice also keeps the values stored there, unless they are results of products or exponentials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from attnsim import bounds
from attnsim.ptx.bulk_copies import BulkCopies, boxes_of
from attnsim.ptx.counters import Counters
from attnsim.ptx.flow import PARAMETER_WINDOW, Control, Flow, Go, space_name
from attnsim.ptx.lanes import WARP, Dim3, Indices, Mask, Values, lanes_of
from attnsim.ptx.machine import Machine, Step, read, written
from attnsim.ptx.program import Program
from attnsim.ptx.recording import finish
from attnsim.ptx.registers import DTYPES
from attnsim.ptx.run import Arguments, preset
from attnsim.ptx.shared import TensorMap
from attnsim.ptx.syntax import Address, Function, Immediate, Instruction, TensorAddress, register_names

BRANCHES = ("bra", "brx", "ret", "exit", "trap")
LOADS = ("ld", "ldu")
_GLOBAL_ACCESSES = (*LOADS, "st", "red", "atom", "cp")
_VALUES = ("mma", "wgmma", "ldmatrix", "stmatrix", "movmatrix", "ex2", "lg2", "atom", "tcgen05")
"""Instructions whose results are tensor values, not addresses."""
_BARRIERS = ("bar", "barrier")


@dataclass(frozen=True, slots=True)
class Slice:
    """A program slice of a kernel.

    Parameters
    ----------
    kept : frozenset of int
        Numbers of its instructions.
    needed : frozenset of str
        Registers whose values the slice computes.
    guessed : tuple of int
        Branches that depend on values that the slice does not compute.
    unknown : tuple of int
        Accesses to global memory that depend on such values.
    """

    kept: frozenset[int]
    needed: frozenset[str]
    guessed: tuple[int, ...]
    unknown: tuple[int, ...]


def slice_of(function: Function) -> Slice:
    """Return the slice that determines control flow and global memory accesses."""
    kept = {place for place, one in enumerate(function.instructions) if one.name in BRANCHES or accesses_global(one)}
    needed = {name for place in kept for name in places_of(function.instructions[place])}
    computed = _closure(function, {n for one in function.instructions if one.name in _VALUES for n in written(one)})
    while True:
        before = len(needed), len(kept)
        staged = any(
            one.name in LOADS and space_name(one) == "shared" and needed & written(one) for one in function.instructions
        )
        for place, one in enumerate(function.instructions):
            sets = staged and (_stages(one, computed) or one.name in _BARRIERS)
            if sets or ((_computes(one) or place in kept) and needed & written(one)):
                kept.add(place)
                needed |= read(one)
        if (len(needed), len(kept)) == before:
            break
    dropped = {
        name
        for place, one in enumerate(function.instructions)
        if place not in kept or one.name == "atom"
        for name in written(one) & needed
    }
    values = _closure(function, dropped, kept)
    uncertain = [place for place in sorted(kept) if not values.isdisjoint(places_of(function.instructions[place]))]
    return Slice(
        frozenset(kept),
        frozenset(needed),
        tuple(place for place in uncertain if function.instructions[place].name in BRANCHES),
        tuple(place for place in uncertain if accesses_global(function.instructions[place])),
    )


def accesses_global(one: Instruction) -> bool:
    """True if an instruction may access global memory."""
    if one.name == "cp":
        return not {"commit_group", "wait_group", "wait_all"} & set(one.modifiers)
    return one.name in _GLOBAL_ACCESSES and space_name(one) in ("global", "")


def places_of(one: Instruction) -> set[str]:
    """Return the registers that decide an instruction's predicate, branch or addresses."""
    guard = [one.guard] if one.guard else []
    if not accesses_global(one):
        return register_names([*guard, *one.operands]) if one.name in BRANCHES else set()
    addresses = [operand for operand in one.operands if isinstance(operand, Address | TensorAddress)]
    sizes = one.operands[2:4] if one.name == "cp" and "bulk" not in one.modifiers else ()
    return register_names([*guard, *addresses, *sizes])


def _closure(function: Function, names: Collection[str], kept: Collection[int] | None = None) -> set[str]:
    """Return all registers that depend on `names` through the kept instructions (all, if `kept` is None)."""
    found = set(names)
    chosen = function.instructions if kept is None else [function.instructions[place] for place in sorted(kept)]
    while True:
        before = len(found)
        for one in chosen:
            if one.name != "mbarrier" and found & read(one):
                found |= written(one)
        if len(found) == before:
            return found


def _stages(one: Instruction, computed: set[str]) -> bool:
    """True if an instruction stores to shared memory a value that is no result of products or exponentials."""
    return one.name == "st" and space_name(one) == "shared" and not computed & read(one)


def _computes(one: Instruction) -> bool:
    """True if the slice runs an instruction when its result is needed."""
    if one.name in _VALUES or (one.name in _BARRIERS and "red" not in one.modifiers):
        return False
    if one.name == "mbarrier":
        return "wait" in one.modifiers[0]
    return not (one.name in LOADS and space_name(one) == "local")


LANES = 16_384
"""Lanes that run together: a slice has few instructions, so more lanes than in a full run."""


@dataclass(slots=True)
class GlobalAccesses:
    """Global memory accesses of blocks between two branches.

    Parameters
    ----------
    direction : {"load", "store"}
    blocks, starts, sizes : ndarray of int ``[some]``
        The blocks, the lowest byte of the argument that each record_access, and the number of bytes.
    branches : int
        Number of branches executed before.
    """

    direction: str
    argument: str
    blocks: Indices
    starts: Indices
    sizes: Indices
    branches: int


@dataclass(slots=True)
class GridRecord:
    """Record of the blocks of a grid.

    Parameters
    ----------
    visits : ndarray of int ``[instructions, blocks]``
        Lanes that reached each branch and each global memory access, by instruction of the kernel.
    accesses : list of GlobalAccesses
        Global memory accesses in order.
    """

    visits: Indices
    accesses: list[GlobalAccesses] = field(default_factory=list)


class Skeleton:
    """A kernel without its arithmetic.

    Attributes
    ----------
    unknown : tuple of Instruction
        Accesses that depend on values of tensors: their addresses cannot be known from the slice.
    guessed : tuple of Instruction
        Branches that depend on values of tensors. The slice never takes them. The caller must check that a block that
        is run completely accesses as much.
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        chosen = slice_of(function)
        self.unknown = tuple(function.instructions[place] for place in chosen.unknown)
        self.guessed = tuple(function.instructions[place] for place in chosen.guessed)
        self._places = sorted(chosen.kept)
        self._needed, self._not_taken = chosen.needed, frozenset(chosen.guessed)
        moved = np.searchsorted(self._places, np.arange(len(function.instructions) + 1)).tolist()
        instructions = tuple(
            replace(one, targets=tuple(moved[target] for target in one.targets))
            for one in (function.instructions[place] for place in self._places)
        )
        self._program = Program(replace(function, instructions=instructions))

    def run(self, grid: Dim3, block: Dim3, arguments: Arguments, shared_memory_bytes: int) -> GridRecord:
        """Run every block of a grid.

        Raises
        ------
        Fault
        """
        blocks, per_block = math.prod(grid), -(-math.prod(block) // WARP) * WARP
        instructions = len(self.function.instructions)
        memory_bytes = 3 * 8 * instructions * blocks  # counts, and their copies when blocks are grouped
        bounds.check_cost(f"{self.function.name} on a grid of {blocks:,} blocks", memory_bytes=memory_bytes)
        record = GridRecord(np.zeros((instructions, blocks), np.int64))
        step = max(1, LANES // per_block)
        for first in range(0, blocks, step):
            bounds.reached(min(first + step, blocks), blocks)
            lanes = lanes_of(block, min(step, blocks - first))
            program = self._program
            machine = program.machine
            recorder = _Recorder(machine, record, first)
            machine.start(lanes, shared_memory_bytes, False, Counters())
            saved = list(program.steps), dict(program.controls)
            try:
                preset(machine, program.function, arguments, grid, first, shared_memory_bytes)
                self._watch(recorder)
                finish(program)
            finally:
                program.steps[:], program.controls = saved
                machine.forget()
        return record

    def _watch(self, recorder: _Recorder) -> None:
        program = self._program
        for position, one in enumerate(program.function.instructions):
            place = self._places[position]
            if one.name == "mbarrier":
                program.controls[position] = _passed(one, program.machine)
            elif place in self._not_taken:
                program.controls[position] = recorder.control(place, _not_taken)
            elif one.name in BRANCHES:
                program.controls[position] = recorder.control(place, program.controls[position])
            elif accesses_global(one):
                values = written(one) & self._needed if one.name in LOADS else set()
                program.steps[position] = recorder.access(place, one, program.steps[position] if values else None)


def _passed(one: Instruction, machine: Machine) -> Control:
    """Return a wait for an mbarrier that succeeds at once."""
    write, yes = machine.write(one.operands[0], "pred"), np.ones(1, bool)

    def passed(run: Flow, position: int, mask: Mask) -> Go:
        write(yes, mask)
        return position + 1, mask

    return passed


def _not_taken(run: Flow, position: int, mask: Mask) -> Go:
    return position + 1, mask


class _Recorder:
    """Records a batch of blocks, starting with block `first` of the grid."""

    def __init__(self, machine: Machine, record: GridRecord, first: int) -> None:
        self._machine, self._record, self._first = machine, record, first
        self._branches = 0

    def control(self, place: int, control: Control) -> Control:
        def noted(run: Flow, position: int, mask: Mask) -> Go:
            self._branches += 1
            self._visit(place, mask)
            return control(run, position, mask)

        return noted

    def access(self, place: int, one: Instruction, step: Step | None) -> Step:
        machine = self._machine
        predicate = machine.read(one.guard, "pred") if one.guard else None
        record_access = self._box(one) if "bulk" in one.modifiers else self._lines(one)

        def noted(mask: Mask) -> None:
            active = mask.where(predicate()) if predicate else mask
            if active.count:
                self._visit(place, active)
                record_access(active)
                if step:
                    step(mask)

        return noted

    def _visit(self, place: int, mask: Mask) -> None:
        lanes = mask.by_warp.reshape(self._machine.lanes.blocks, -1).sum(axis=1)
        self._record.visits[place, self._first : self._first + len(lanes)] += lanes

    def _lines(self, one: Instruction) -> Callable[[Mask], None]:
        """Return a closure that records the bytes that a load, a store or a cp.async accesses."""
        machine, direction = self._machine, "store" if one.name in ("st", "red", "atom") else "load"
        places = [operand for operand in one.operands if isinstance(operand, Address)]
        address = machine.address(places[-1] if one.name == "cp" else places[0])
        width = _width(one)
        size = one.operands[3] if one.name == "cp" and len(one.operands) > 3 else None
        ignored = size is not None and getattr(size, "type", "") == "pred"
        valid = None if size is None else machine.read(size, "pred" if ignored else "u32")
        if "L2::cache_hint" in one.modifiers and len(one.operands) == 4:
            valid = None

        def record_access(mask: Mask) -> None:
            where = address(mask)
            sizes: Values = np.full(len(where), width)
            if valid is not None:
                given = mask.of(valid())
                sizes = np.where(given, 0, width) if ignored else given.astype(np.int64)
            here = (sizes > 0) & (where < PARAMETER_WINDOW)
            blocks = machine.lanes.block_of[mask.index]
            for tensor, chosen, rows in machine.memory.parts(where[here], 1, mask.select(here), "load"):
                self._add(direction, tensor.name, blocks[here][chosen], rows, sizes[here][chosen])

        return record_access

    def _box(self, one: Instruction) -> Callable[[Mask], None]:
        """Return a closure that records the boxes that the tensor copy engine accesses."""
        machine = self._machine
        source = next(operand for operand in one.operands if isinstance(operand, TensorAddress))
        boxes = boxes_of(source, machine)
        direction = "load" if "mbarrier::complete_tx::bytes" in one.modifiers else "store"
        receivers = machine.cluster if "multicast::cluster" in one.modifiers else 1  # a run as a whole checks it

        def record_access(mask: Mask) -> None:
            maps, corners = boxes(mask)
            blocks = machine.lanes.block_of[mask.index]
            for place, (address, corner) in enumerate(zip(maps.tolist(), corners.tolist(), strict=True)):
                name, tensor_map = machine.unit(BulkCopies).map_at(address, mask.lane(place))
                start, size = _box_bytes(tensor_map, corner)
                size *= receivers
                if size:
                    self._add(direction, name, blocks[place : place + 1], np.array([start]), np.array([size]))

        return record_access

    def _add(self, direction: str, argument: str, blocks: Indices, starts: Indices, sizes: Indices) -> None:
        """Add an access per block; without a branch in between, it extends the previous access."""
        firsts = np.flatnonzero(np.r_[True, blocks[1:] != blocks[:-1]])
        grid_blocks = blocks[firsts] + self._first
        lowest, bytes_ = np.minimum.reduceat(starts, firsts), np.add.reduceat(sizes, firsts)
        recent = (one for one in reversed(self._record.accesses[-4:]) if one.direction == direction)
        last = next((one for one in recent if one.argument == argument), None)
        if last is not None and last.branches == self._branches and np.array_equal(last.blocks, grid_blocks):
            last.starts, last.sizes = np.minimum(last.starts, lowest), last.sizes + bytes_
        else:
            found = GlobalAccesses(direction, argument, grid_blocks, lowest, bytes_, self._branches)
            self._record.accesses.append(found)


def _width(one: Instruction) -> int:
    """Bytes that one lane accesses."""
    if one.name == "cp":
        size = one.operands[2]
        return int(size.text, 0) if isinstance(size, Immediate) else 0
    kind = next(m for m in reversed(one.modifiers) if m in DTYPES)
    many = next((int(m[1:]) for m in one.modifiers if m in ("v2", "v4", "v8")), 1)
    return DTYPES[kind].itemsize * many


def _box_bytes(tensor_map: TensorMap, corner: Iterable[int]) -> tuple[int, int]:
    """Return the first byte of the part of a box that lies in its tensor, and the bytes of that part."""
    place = tensor_map.overlap(tuple(corner)).place
    sizes = [max(part.stop - part.start, 0) for part in place]
    start = 0
    for part, length in zip(place, tensor_map.array.shape, strict=True):
        start = start * length + part.start
    return start * tensor_map.array.itemsize, math.prod(sizes) * tensor_map.array.itemsize
