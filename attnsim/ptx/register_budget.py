"""``setmaxnreg``: warpgroups that hand registers to one another.

PTX ISA 9.0, "setmaxnreg"; an SM has 65,536 registers (CUDA Programming Guide, "Compute Capabilities").
"""

from __future__ import annotations

import numpy as np

from attnsim.ptx.faults import Deadlock, Fault
from attnsim.ptx.lanes import WARPGROUP, Mask
from attnsim.ptx.machine import Machine, Step, operation, unsupported
from attnsim.ptx.syntax import Immediate, Instruction
from attnsim.ptx.tensor_cores import require_warpgroups

REGISTERS_PER_SM = 65536
FEWEST, MOST, STEP = 24, 256, 8


class RegisterBudget:
    """Registers per thread that each warpgroup of a batch has asked for; 0 before it has."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._asked = np.zeros(0, np.int64)

    def start(self) -> None:
        """Nobody has asked."""
        self._asked = np.zeros(-(-self._machine.lanes.warps // 4), np.int64)

    def ask(self, registers: int, mask: Mask) -> None:
        """These warpgroups take so many registers a thread.

        Raises
        ------
        Deadlock
            When a block's warpgroups ask for more than an SM has: the last would wait for ever.
        """
        self._asked[mask.warpgroups] = registers
        total = self._asked.reshape(self._machine.lanes.blocks, -1).sum(axis=1) * WARPGROUP
        if int(total.max()) > REGISTERS_PER_SM:
            raise Deadlock(
                f"the block's warpgroups ask for {int(total.max())} registers, an SM has {REGISTERS_PER_SM}",
                mask.lane(0),
            )


@operation("setmaxnreg")
def compile_register_hand_over(instruction: Instruction, machine: Machine) -> Step:
    """``setmaxnreg.inc/dec.sync.aligned.u32 count``: no effect on values, but the counts must add up."""
    (count,) = instruction.operands
    if not isinstance(count, Immediate):
        raise unsupported(instruction)
    registers, budget = int(count.text, 0), machine.unit(RegisterBudget)

    def step(mask: Mask) -> None:
        require_warpgroups(mask, "setmaxnreg")
        if registers % STEP or not FEWEST <= registers <= MOST:
            raise Fault(f"setmaxnreg {registers}; allowed: multiples of {STEP} from {FEWEST} to {MOST}", mask.lane(0))
        budget.ask(registers, mask)

    return step
