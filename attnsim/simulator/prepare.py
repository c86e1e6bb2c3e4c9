"""Preparation of a kernel for the replay: resident blocks per SM, bytes through L2 and HBM, unit costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.schedule.instructions import with_borrowed_counts
from attnsim.models.schedule.occupancy import Occupancy, occupancy
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.simulator.memory import Traffic, traffic
from attnsim.simulator.program import Program, compile_kernel
from attnsim.simulator.unit_costs import UnitCosts, unit_costs

Cache = Literal["cold", "warm"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A kernel ready to be played.

    Parameters
    ----------
    fit : Occupancy
        Blocks that share an SM.
    rows : tuple of Traffic
        Bytes of each tensor through the L2 and from or to HBM.
    costs : UnitCosts
        Picoseconds per unit of work.
    """

    kernel: Kernel
    fit: Occupancy
    rows: tuple[Traffic, ...]
    costs: UnitCosts

    def compiled(self) -> Program:
        """Compile the kernel's program, with the costs that hold if every SM is played."""
        misses = {(row.written, row.tensor): row.hbm_bytes / row.l2_bytes for row in self.rows}
        return compile_kernel(self.kernel, self.costs, misses)


def prepare(schedule: Schedule, gpu: Gpu, numbers: Numbers, cache: Cache) -> tuple[Prepared, ...]:
    """The kernels of `schedule` on `gpu`, in launch order.

    Parameters
    ----------
    numbers : Numbers
        Fitted numbers of the implementation and the GPU.
    cache : {"cold", "warm"}
        Whether the L2 is flushed before the call or holds what the same call left there.

    Raises
    ------
    InputError
        When a block does not fit an SM.
    """
    kernels = tuple(with_borrowed_counts(kernel, numbers.counts, gpu) for kernel in schedule.kernels)
    fits = [occupancy(kernel, gpu) for kernel in kernels]
    running = tuple(
        min(kernel.blocks, gpu.sm.count * fit.blocks_per_sm) for kernel, fit in zip(kernels, fits, strict=True)
    )
    moved = traffic(kernels, running, gpu, cache == "warm")
    return tuple(
        Prepared(kernel, fit, rows, unit_costs(kernel, gpu, numbers))
        for kernel, fit, rows in zip(kernels, fits, moved, strict=True)
    )
