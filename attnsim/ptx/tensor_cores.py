"""Asynchronous wgmma: accumulators that belong to the tensor cores until the threads wait for them.

PTX ISA 9.0, "Asynchronous wgmma": registers that a wgmma works on may not be touched before ``wgmma.wait_group``, and
``wgmma.fence`` must stand between an access to them and the next wgmma.
"""

from __future__ import annotations

import numpy as np

from attnsim.ptx import compiled_matrices
from attnsim.ptx.faults import InactiveLane, RegisterInFlight, Reports, UnsupportedInstruction
from attnsim.ptx.lanes import Indices, Mask, Values, bits_of
from attnsim.ptx.machine import Machine, Step
from attnsim.ptx.registers import DTYPES, WIDE, Registers
from attnsim.ptx.syntax import Function, Instruction, Operand, Register, Vector, register_names


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


def require_warpgroups(mask: Mask, name: str) -> None:
    """Raise InactiveLane for a warpgroup that is only partially active."""
    group = mask.part_of_warpgroup
    if group is not None:
        here = int(mask.by_warp[4 * group : 4 * group + 4].sum() if len(mask.by_warp) % 4 == 0 else mask.by_warp[group])
        raise InactiveLane(f"{name} needs all 128 threads of the warpgroup together, {here} are here", mask.lane(0))


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
