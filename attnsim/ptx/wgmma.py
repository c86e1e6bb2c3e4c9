"""``wgmma``: asynchronous D = A B + D of a warpgroup, on tiles 64 x n x 16 in shared memory (A: or registers).

Accumulators belong to the tensor cores until the threads wait for them (PTX ISA 9.0, "Asynchronous wgmma"):
registers that a wgmma works on may not be touched before ``wgmma.wait_group``, and ``wgmma.fence`` must stand between
an access to them and the next wgmma.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Self

import numpy as np

from attnsim.ptx import compiled_matrices
from attnsim.ptx.basic_blocks import Batchable, in_turn
from attnsim.ptx.counters import floats
from attnsim.ptx.faults import Fault, InactiveLane, NotUniform, RegisterInFlight, Reports, UnsupportedInstruction
from attnsim.ptx.flow import Control, control, suspended
from attnsim.ptx.lanes import WARPGROUP, Indices, Mask, Values, bits_of
from attnsim.ptx.machine import Machine, Step, items, operation, unsupported
from attnsim.ptx.registers import DTYPES, WIDE, Dtype, Registers, Rows
from attnsim.ptx.shared import DEPTH, matrices, piece_addresses
from attnsim.ptx.syntax import Function, Immediate, Instruction, Operand, Register, Vector, register_names
from attnsim.ptx.warps import require_warpgroups


class Fragment:
    """Registers of one wgmma operand: an accumulator, or A.

    Attributes
    ----------
    rows : Rows
        Places of its registers.
    flying, touched : int
        Bits of the warpgroups whose tensor cores own the registers; and of those that have accessed the registers since
        their last wgmma.fence.
    groups : ndarray ``[warpgroups]``
        Number of the wgmma group, from 1, that owns or last owned the registers.
    values : ndarray ``[warpgroups, 64, n]``
        Values of an accumulator while the tensor cores own it.
    """

    def __init__(self, registers: tuple[Register, ...], file: Registers) -> None:
        self.registers = registers
        rows = file.rows(registers, DTYPES["f32"])
        if not rows:
            raise UnsupportedInstruction("wgmma on registers that are not of 32 bits")
        self.rows = rows
        self.names = frozenset(register.name for register in registers)
        self.others: list[Fragment] = []
        self.start(0)

    def start(self, warpgroups: int) -> None:
        """Reset: no warpgroup's tensor cores own the registers, and a fence is needed first."""
        self.flying, self.touched = 0, -1
        self.groups = np.zeros(warpgroups, np.int64)
        self.values: Values = np.zeros((0, 0, 0), np.float32)

    def hand_over(self, mask: Mask, reports: Reports) -> None:
        """Give the registers of these warpgroups to the tensor cores; reports RegisterInFlight if that is too early."""
        bits = mask.warpgroup_bits
        if self.touched & bits:
            reports(RegisterInFlight("its registers were accessed, and no wgmma.fence came after", mask.lane(0)))
        for other in self.others:
            if other.flying & bits:
                what = "a register of it belongs to another wgmma that is still running"
                reports(RegisterInFlight(what, mask.lane(0)))
        self.flying |= bits


class TensorCores:
    """The wgmma in flight in a batch of blocks."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._fragments: dict[tuple[Register, ...], Fragment] = {}
        self._committed = np.zeros(0, np.int64)

    def start(self) -> None:
        """Reset: no wgmma is in flight."""
        warpgroups = -(-self._machine.lanes.warps // 4)
        self._committed = np.zeros(warpgroups, np.int64)
        for fragment in self._fragments.values():
            fragment.start(warpgroups)

    def fragment(self, registers: tuple[Operand, ...]) -> Fragment:
        """Return the fragment of these registers, one object per set of registers."""
        key = tuple(register for register in registers if isinstance(register, Register))
        if key not in self._fragments:
            new = self._fragments[key] = Fragment(key, self._machine.registers)
            for other in self._fragments.values():
                if other is not new and other.names & new.names:
                    new.others.append(other)
                    other.others.append(new)
        return self._fragments[key]

    def fence(self, mask: Mask) -> None:
        """``wgmma.fence``: order earlier register accesses of these warpgroups before the next wgmma."""
        for fragment in self._fragments.values():
            fragment.touched &= ~mask.warpgroup_bits

    def numbers(self, warpgroups: Indices) -> Indices:
        """Return the numbers, from 1, of the groups that wgmma of these warpgroups now belong to."""
        return self._committed[warpgroups] + 1

    def commit(self, mask: Mask) -> None:
        """``wgmma.commit_group``."""
        require_warpgroups(mask, "wgmma.commit_group")
        self._committed[mask.warpgroups] += 1

    def wait(self, pending: int, mask: Mask) -> None:
        """``wgmma.wait_group``: complete all but the `pending` newest groups, and give their registers back."""
        require_warpgroups(mask, "wgmma.wait_group")
        done = self._committed[mask.warpgroups] - pending
        ordering = self._machine.shared.ordering
        if ordering:
            ordering.wgmma_done(mask.warpgroups, np.maximum(done, 0))
        for fragment in self._fragments.values():
            if fragment.flying & mask.warpgroup_bits:
                over = fragment.groups[mask.warpgroups] <= done
                bits = mask.warpgroup_bits if over.all() else bits_of(mask.warpgroups[over])
                self._give_back(fragment, fragment.flying & bits)

    def _give_back(self, fragment: Fragment, bits: int) -> None:
        fragment.flying &= ~bits
        if not bits or not fragment.values.size:
            return
        warpgroups = np.flatnonzero([bits >> group & 1 for group in range(len(fragment.groups))])
        registers, rows = self._machine.registers, fragment.rows
        registers.spread(rows)
        registers.state[rows.numbers] = WIDE
        compiled_matrices.accumulators_to_registers(fragment.values, warpgroups, registers.files["<f4"], rows.rows)


class Watch:
    """Records accesses to the registers of a kernel's wgmma, and reports those while a wgmma owns them."""

    def __init__(self, function: Function, machine: Machine) -> None:
        vectors = [
            operand.items
            for instruction in function.instructions
            if instruction.name == "wgmma"
            for operand in instruction.operands
            if isinstance(operand, Vector)
        ]
        self._fragments = [machine.unit(TensorCores).fragment(vector) for vector in dict.fromkeys(vectors)]
        self._notes: dict[tuple[int, ...], Step] = {}
        self._reports = machine.reports

    def note(self, instruction: Instruction) -> Step | None:
        """Return a step that records an instruction's accesses to such registers; None if it has none."""
        if instruction.name == "wgmma" or not self._fragments:
            return None
        accessed = register_names(instruction.operands)
        chosen = tuple(i for i, fragment in enumerate(self._fragments) if not fragment.names.isdisjoint(accessed))
        if chosen and chosen not in self._notes:
            self._notes[chosen] = _watch([self._fragments[i] for i in chosen], self._reports)
        return self._notes.get(chosen)


def _watch(fragments: list[Fragment], reports: Reports) -> Step:
    def watched(mask: Mask) -> None:
        bits = mask.warpgroup_bits
        for fragment in fragments:
            if fragment.flying & bits:
                what = "a wgmma works on a register of this instruction; wgmma.wait_group must come first"
                reports(RegisterInFlight(what, mask.lane(0)))
            fragment.touched |= bits

    return watched


AT_ONCE = 16
"""Products per step: so many of 64 x 256 in float32 fit a second-level cache of 1 MiB."""


@operation("wgmma")
def compile_wgmma(instruction: Instruction, machine: Machine) -> Step:
    """``wgmma.mma_async``, ``wgmma.commit_group`` and ``wgmma.wait_group``."""
    kind, cores = instruction.modifiers[0], machine.unit(TensorCores)
    if kind == "mma_async":
        return _Product(instruction, machine)
    if kind == "commit_group":
        return cores.commit
    if kind == "wait_group":
        pending = machine.read(instruction.operands[0], "s64")
        return lambda mask: cores.wait(int(pending()[0]), mask)
    raise unsupported(instruction)


@control("wgmma")
def compile_wgmma_fence(instruction: Instruction, machine: Machine) -> Control | None:
    """``wgmma.fence``, where the four warps of a warpgroup also wait for one another."""
    if instruction.modifiers[0] != "fence":
        return None
    cores = machine.unit(TensorCores)

    def complete(mask: Mask) -> Mask:
        if len(mask.lanes) % WARPGROUP or machine.lanes.lanes_per_block % WARPGROUP:
            raise InactiveLane("wgmma needs blocks of whole warpgroups, 128 threads each", mask.lane(0))
        if mask.part_of_warpgroup is None:
            return mask
        here = np.count_nonzero(mask.lanes.reshape(-1, WARPGROUP), axis=1) == WARPGROUP
        return mask.where(np.repeat(here, WARPGROUP))

    def fault(mask: Mask) -> Fault:
        return InactiveLane("the other warps of the warpgroup do not come to this wgmma.fence", mask.lane(0))

    return suspended(complete, fault, cores.fence)


class _Product(Batchable):
    """One ``wgmma.mma_async.sync.aligned.m64nNk16.f32.T.T {d}, a, b, scale-d, sign a, sign b (, trans a), trans b``.

    a is a descriptor, or four registers; with registers there is no flag "trans a".
    """

    def __init__(self, instruction: Instruction, machine: Machine) -> None:
        modifiers, (d, a, b, keep, *options) = instruction.modifiers, instruction.operands
        shape, kinds = modifiers[-4], modifiers[-3:]
        flags = [int(option.text, 0) for option in options if isinstance(option, Immediate)]
        in_registers = isinstance(a, Vector)
        known = (
            kinds in (("f32", "f16", "f16"), ("f32", "bf16", "bf16"))
            and shape.endswith("k16")
            and "sp" not in modifiers
        )
        if not known or len(flags) != len(options) or len(options) != (3 if in_registers else 4):
            raise unsupported(instruction)
        self._columns, self._machine = int(shape.removeprefix("m64n").removesuffix("k16")), machine
        self._cores = machine.unit(TensorCores)
        if len(items(d)) != self._columns // 2:
            raise unsupported(instruction)
        super().__init__((instruction.name, modifiers, in_registers, *flags), "wgmma", in_order=True)
        self._kind, self._sign = kinds[-1], np.float32(flags[0] * flags[1])
        self._transposed = None if in_registers else bool(flags[2]), bool(flags[-1])
        self._sum = self._cores.fragment(items(d))
        self._source = self._cores.fragment(items(a)) if in_registers else None
        self._descriptors = [b] if in_registers else [a, b]
        self._keep = keep
        self._step = self.together([])

    def together(self, others: Sequence[Self]) -> Step:
        chains: dict[Fragment, list[Self]] = {}
        for one in (self, *others):
            chains.setdefault(one._sum, []).append(one)
        steps = [self._chain(members) for members in chains.values()]
        return in_turn([lambda mask: require_warpgroups(mask, "wgmma.mma_async"), *steps])

    def _chain(self, members: Sequence[Self]) -> Step:
        """Return a step for the products of one accumulator, a few at a time: their arrays then fit a core's cache."""
        machine, registers, many = self._machine, self._machine.registers, len(members)
        described = registers.rows([o for one in members for o in one._descriptors], DTYPES["u64"])
        kept = registers.rows([one._keep for one in members], DTYPES["pred"])
        if not described or not kept:
            raise UnsupportedInstruction("wgmma by descriptors or a scale-d that no registers of their width hold")
        sources, to, columns = [one._source for one in members if one._source], members[0]._sum, self._columns
        in_use = list(dict.fromkeys([to, *sources]))
        read = functools.reduce(Rows.joined, (one.rows for one in (*sources, to)))
        of_a = np.array([source.rows.rows for source in sources])
        (across, transposed), kind, fast = self._transposed, self._kind, compiled_matrices

        def step(mask: Mask) -> None:
            groups = mask.warpgroups
            numbers, memory, each = self._cores.numbers(groups), machine.shared.by_piece(), len(groups)
            keep = agreed(kept, DTYPES["pred"], groups, machine, "scale-d")
            found = agreed(described, DTYPES["u64"], groups, machine, "a matrix descriptor").reshape(many, -1, each)
            left = None if across is None else _places(found[:, 0], groups, numbers, 64, across, machine)
            right = _places(found[:, -1], groups, numbers, columns, transposed, machine)
            if not to.values.size:
                to.values = np.zeros((len(to.groups), 64, columns), np.float32)
            flying = np.array([to.flying >> g & 1 for g in groups.tolist()], bool)
            registers.spread(read)
            room = max(AT_ONCE // each, 1)
            for part in (slice(first, first + room) for first in range(0, many, room)):
                if left is None:
                    a = np.empty((len(of_a[part]) * each, 64, DEPTH), np.float32)
                    fast.group_rows(registers.files["<u4"], of_a[part], groups, floats(kind), a)
                else:
                    a = matrices(memory, left[part].reshape(-1, *left.shape[2:]), 64, bool(across), kind)
                b = matrices(memory, right[part].reshape(-1, *right.shape[2:]), columns, transposed, kind)
                products = (a @ b.swapaxes(1, 2)).reshape(-1, each, 64, columns)
                file = registers.files["<f4"]
                fast.accumulate(to.values, groups, keep[part], flying, file, to.rows.rows, self._sign, products)
            for fragment in in_use:
                fragment.hand_over(mask, machine.reports)
                fragment.groups[groups] = numbers

        return step


def agreed(of: Rows, dtype: Dtype, groups: Indices, machine: Machine, what: str) -> Values:
    """Return values ``[registers, warpgroups]`` that each warpgroup's threads share, else raise NotUniform."""
    registers, found = machine.registers, np.empty((len(of.rows), len(groups)), dtype)
    file = registers.files[dtype.str]
    group = compiled_matrices.agreed(file, registers.state, of.numbers, of.rows, groups, found)
    if group >= 0:
        raise NotUniform(f"the threads of the warpgroup have different values for {what}", int(group) * WARPGROUP)
    return found


def _places(
    described: Values, groups: Indices, numbers: Indices, rows: int, transposed: bool, machine: Machine
) -> Indices:
    """Return the pieces of shared memory ``[products, warpgroups, ...]`` of descriptors, and note their reads."""
    shared, times = machine.shared, len(described)

    def pieces() -> Indices:
        lanes: Indices = np.tile(groups * WARPGROUP, times)
        addresses = piece_addresses(described.reshape(-1), rows, transposed, lanes)
        return shared.pieces(addresses, machine.lanes.block_of[lanes], lanes, "wgmma operand")

    places = shared.once(("wgmma", described.tobytes(), groups.tobytes(), rows, transposed), pieces)
    machine.counters.shared_bytes_loaded += 16 * places.size
    if shared.ordering:
        shared.ordering.read_by_wgmma(places.reshape(len(places), -1), groups, numbers)
    return places.reshape(times, len(groups), *places.shape[1:])
