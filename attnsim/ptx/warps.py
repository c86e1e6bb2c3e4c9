"""Warp-wide instructions on registers: shfl, vote, activemask, match, redux, elect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import numpy as np

from attnsim.ptx.basic_blocks import Batchable
from attnsim.ptx.faults import InactiveLane
from attnsim.ptx.lanes import WARP, Mask, Values
from attnsim.ptx.machine import Machine, Step, items, operation, unsupported, value_type
from attnsim.ptx.registers import DTYPES, Write
from attnsim.ptx.syntax import Immediate, Instruction, Operand, Symbol

_BIT = np.left_shift(np.uint32(1), np.arange(WARP, dtype=np.uint32))


def ballots(lanes: Values) -> Values:
    """Pack booleans ``[lanes]`` into bits ``[warps]``."""
    bits: Values = np.where(lanes.reshape(-1, WARP), _BIT, np.uint32(0)).sum(axis=1, dtype=np.uint32)
    return bits


def check_members(members: Values, mask: Mask, machine: Machine, name: str) -> None:
    """Raise InactiveLane for a lane outside its member mask, or a live lane in the mask that does not execute."""
    if mask.whole_warps and mask.common(members) == 0xFFFF_FFFF:
        return
    per_lane = machine.lanes.spread(members)
    active, live = ballots(mask.lanes), ballots(machine.live)
    own = np.tile(_BIT, machine.lanes.warps)
    absent = per_lane & np.repeat(live & ~active, WARP)
    outside = (per_lane & own) == 0
    bad = mask.lanes & (outside | (absent != 0))
    if not bad.any():
        return
    lane = int(np.flatnonzero(bad)[0])
    if outside[lane]:
        raise InactiveLane(
            f"{name} by lane {lane % WARP}, which is not in its member mask {per_lane[lane]:#010x}", lane
        )
    missing = int(absent[lane]).bit_length() - 1
    raise InactiveLane(f"{name} with member mask {per_lane[lane]:#010x}, but lane {missing} is not there", lane)


def require_whole_warps(mask: Mask, name: str) -> None:
    """Raise InactiveLane for a warp that is only partially active."""
    if mask.whole_warps:
        return
    warp = int(np.flatnonzero((mask.by_warp > 0) & (mask.by_warp < WARP))[0])
    lane = int(np.flatnonzero(mask.lanes.reshape(-1, WARP)[warp])[0])
    raise InactiveLane(
        f"{name} needs all 32 lanes of the warp, {int(mask.by_warp[warp])} are active", warp * WARP + lane
    )


def require_warpgroups(mask: Mask, name: str) -> None:
    """Raise InactiveLane for a warpgroup that is only partially active."""
    group = mask.part_of_warpgroup
    if group is not None:
        here = int(mask.by_warp[4 * group : 4 * group + 4].sum() if len(mask.by_warp) % 4 == 0 else mask.by_warp[group])
        raise InactiveLane(f"{name} needs all 128 threads of the warpgroup together, {here} are here", mask.lane(0))


def _result_and_predicate(target: Operand, machine: Machine) -> tuple[Write, Write]:
    """Return closures that write both results of ``d|p``; without ``|p`` the second does nothing."""
    result, predicate = (*items(target), Symbol("_"))[:2]
    return machine.write(result, "b32"), machine.write(predicate, "pred")


@operation("shfl")
def compile_shuffle(instruction: Instruction, machine: Machine) -> Step:
    """``shfl.sync.mode.b32 d|p, a, b, c, members``, by the pseudocode of PTX ISA 9.0."""
    if instruction.modifiers[0] != "sync" or instruction.modifiers[1] not in ("up", "down", "bfly", "idx"):
        raise unsupported(instruction)
    return _Shuffle(instruction, machine)


class _Shuffle(Batchable):
    """One shfl."""

    def __init__(self, instruction: Instruction, machine: Machine) -> None:
        target, self._source, offset, clamp, members = instruction.operands
        self._result, self._machine = (*items(target), Symbol("_"))[:2], machine
        fixed = all(isinstance(o, Immediate) for o in (offset, clamp, members))
        # What is not known beforehand is worked out for each instruction alone.
        super().__init__(
            (instruction.name, instruction.modifiers, str(offset), str(clamp), str(members), fixed or self)
        )
        self._value, self._members = machine.read(self._source, "b32"), machine.read(members, "u32")
        self._route = _route(instruction.modifiers[1], offset, clamp, machine)
        self._write, self._write_valid = _result_and_predicate(target, machine)

    def __call__(self, mask: Mask) -> None:
        source_lane, valid = self._from(mask)
        values = self._value()
        self._write(values if values.shape[0] == 1 else values[source_lane], mask)
        self._write_valid(valid, mask)

    def together(self, others: Sequence[Self]) -> Step:
        members, registers = (self, *others), self._machine.registers
        read = registers.read_rows([m._source for m in members], DTYPES["b32"])
        write = registers.write_rows([m._result[0] for m in members], DTYPES["b32"])

        def step(mask: Mask) -> None:
            source_lane, valid = self._from(mask)
            values = read()
            write(values if values.shape[1] == 1 else values[:, source_lane], mask)
            for member in members:
                member._write_valid(valid, mask)

        return step

    def _from(self, mask: Mask) -> tuple[Values, Values]:
        """Return the lane that each lane reads from, and whether that lane is in its segment."""
        check_members(self._members(), mask, self._machine, "shfl")
        source_lane, valid = self._route(mask)
        if not mask.whole_warps:
            silent = mask.lanes & ~mask.lanes[source_lane]
            if silent.any():
                lane = int(np.flatnonzero(silent)[0])
                raise InactiveLane(f"shfl from lane {int(source_lane[lane]) % WARP}, which is not active", lane)
        return source_lane, valid


def _route(mode: str, offset: Operand, clamp: Operand, machine: Machine) -> Callable[[Mask], tuple[Values, Values]]:
    """Return a closure for the lane that each lane reads from, and whether that lane is in its segment.

    Results are cached if all active lanes agree on the operands.
    """
    b, c = machine.read(offset, "s32"), machine.read(clamp, "s32")
    known: dict[tuple[int, int, int], tuple[Values, Values]] = {}

    def route(mask: Mask) -> tuple[Values, Values]:
        by, limits = b(), c()
        one, limit = mask.common(by), mask.common(limits)
        if one is None or limit is None:
            return _source_lanes(mode, by, limits, machine)
        key = (one, limit, machine.lanes.count)
        if key not in known:
            known[key] = _source_lanes(mode, np.array([one]), np.array([limit]), machine)
        return known[key]

    return route


def _source_lanes(mode: str, offset: Values, clamps: Values, machine: Machine) -> tuple[Values, Values]:
    lane = machine.lanes.lane_of
    by, limits = offset.astype(np.int64) & 31, clamps.astype(np.int64)
    segment, clamp = (limits >> 8) & 31, limits & 31
    highest, lowest = (lane & segment) | (clamp & ~segment), lane & segment
    wanted = {"up": lane - by, "down": lane + by, "bfly": lane ^ by, "idx": lowest | (by & ~segment)}[mode]
    valid = wanted >= highest if mode == "up" else wanted <= highest
    source = np.where(valid, wanted, lane)
    return np.arange(machine.lanes.count) - lane + source, valid


@operation("vote")
def compile_vote(instruction: Instruction, machine: Machine) -> Step:
    """``vote.sync.any/all/uni.pred`` and ``vote.sync.ballot.b32``."""
    if instruction.modifiers[0] != "sync":
        raise unsupported(instruction)
    mode = instruction.modifiers[1]
    target, source, members = instruction.operands
    predicate, member_mask = machine.read(source, "pred"), machine.read(members, "u32")
    write = machine.write(target, "b32" if mode == "ballot" else "pred")

    def step(mask: Mask) -> None:
        check_members(member_mask(), mask, machine, f"vote.{mode}")
        holds = ballots(mask.lanes & predicate())
        active = ballots(mask.lanes)
        result = {
            "ballot": holds,
            "any": holds != 0,
            "all": holds == active,
            "uni": (holds == active) | (holds == 0),
        }[mode]
        write(np.repeat(result, WARP), mask)

    return step


@operation("activemask")
def compile_active_mask(instruction: Instruction, machine: Machine) -> Step:
    """``activemask.b32 d``."""
    write = machine.write(instruction.operands[0], "b32")
    return lambda mask: write(np.repeat(ballots(mask.lanes), WARP), mask)


@operation("match")
def compile_match(instruction: Instruction, machine: Machine) -> Step:
    """``match.sync.any.type d, a, members`` and ``match.sync.all.type d|p, a, members``."""
    kind, every = instruction.modifiers[-1], "all" in instruction.modifiers
    target, source, members = instruction.operands
    write, write_all = _result_and_predicate(target, machine)
    value, member_mask = machine.read(source, kind), machine.read(members, "u32")

    def step(mask: Mask) -> None:
        check_members(member_mask(), mask, machine, "match")
        values = machine.lanes.spread(value()).reshape(-1, WARP)
        active = mask.lanes.reshape(-1, WARP)
        equal = (values[:, :, None] == values[:, None, :]) & active[:, None, :]
        result = np.where(equal, _BIT, np.uint32(0)).sum(axis=2, dtype=np.uint32).reshape(-1)
        if every:
            same = result == np.repeat(ballots(mask.lanes), WARP)
            result = np.where(same, result, np.uint32(0))
            write_all(same, mask)
        write(result, mask)

    return step


@operation("redux")
def compile_reduction(instruction: Instruction, machine: Machine) -> Step:
    """``redux.sync.op.type d, a, members``; all members must be the active lanes."""
    kind = value_type(instruction)
    dtype = DTYPES[kind]
    name = instruction.modifiers[1]
    functions: dict[str, tuple[np.ufunc, int]] = {
        "add": (np.add, 0),
        "or": (np.bitwise_or, 0),
        "xor": (np.bitwise_xor, 0),
        "and": (np.bitwise_and, -1),
    }
    if name in ("min", "max") and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        functions |= {"min": (np.minimum, int(limits.max)), "max": (np.maximum, int(limits.min))}
    if name not in functions or dtype.kind not in "iu":
        raise unsupported(instruction)
    function, neutral = functions[name]
    target, source, members = instruction.operands
    value, member_mask, write = machine.read(source, kind), machine.read(members, "u32"), machine.write(target, kind)
    fill = np.array(neutral).astype(dtype)[()]

    def step(mask: Mask) -> None:
        check_members(member_mask(), mask, machine, "redux")
        values = np.where(mask.lanes, value(), fill).reshape(-1, WARP)
        write(np.repeat(function.reduce(values, axis=1, dtype=dtype), WARP), mask)

    return step


@operation("elect")
def compile_election(instruction: Instruction, machine: Machine) -> Step:
    """``elect.sync d|p, members``: the lowest active lane leads."""
    target, members = instruction.operands
    member_mask = machine.read(members, "u32")
    write, write_leader = _result_and_predicate(target, machine)

    def step(mask: Mask) -> None:
        check_members(member_mask(), mask, machine, "elect")
        leader = np.repeat(mask.lanes.reshape(-1, WARP).argmax(axis=1), WARP)
        write(leader.astype(np.uint32), mask)
        write_leader(machine.lanes.lane_of == leader, mask)

    return step


@operation("bar")
def compile_warp_barrier(instruction: Instruction, machine: Machine) -> Step:
    """``bar.warp.sync members``."""
    member_mask = machine.read(instruction.operands[0], "u32")

    def step(mask: Mask) -> None:
        check_members(member_mask(), mask, machine, "bar.warp.sync")
        machine.shared.warp_barrier(mask)

    return step
