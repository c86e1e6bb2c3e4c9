"""Replay a schedule on a GPU: every kernel's grid, the memory between them, and what the time went into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal

from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.schedule.occupancy import Occupancy, occupancy
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.simulator.grid import FastGrid, GridTime, play_exact
from attnsim.simulator.machine import PS, Machine, machine
from attnsim.simulator.memory import Traffic, traffic
from attnsim.simulator.program import compile_kernel

Mode = Literal["fast", "exact"]
Cache = Literal["cold", "warm"]
LaunchMode = Literal["stream", "graph", "kernel"]

UNITS = ("tensor", "exp", "fp32", "shared_memory", "l2", "hbm")


@dataclass(frozen=True, slots=True)
class KernelReplay:
    """One kernel of a replay.

    Parameters
    ----------
    name : str
    time_s : float
        From the first block's start to the last byte, without the launch.
    launch_s : float
    blocks : int
    blocks_per_sm : int
    limited_by : str
        Resource that allows no more resident blocks.
    waves : float
    units_s : mapping of str to float
        Busy seconds of each unit, averaged over the chip's SMs (for L2 and HBM, of the chip's bandwidth).
    exposed_s : float
        Seconds that warpgroups waited for data, averaged.
    traffic : tuple of Traffic
    requested : mapping
        Bytes requested by ("load" or "store", tensor), as played.
    """

    name: str
    time_s: float
    launch_s: float
    blocks: int
    blocks_per_sm: int
    limited_by: str
    waves: float
    units_s: Mapping[str, float]
    exposed_s: float
    traffic: tuple[Traffic, ...]
    requested: Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class Replay:
    """What the replay of a schedule shows; times in seconds, bytes over the whole call."""

    time_s: float
    call_s: float
    kernels: tuple[KernelReplay, ...]
    hbm_read_bytes: float
    hbm_write_bytes: float
    l2_bytes: int
    smem_bytes: int

    @property
    def main(self) -> KernelReplay:
        """The kernel that takes longest."""
        return max(self.kernels, key=lambda kernel: kernel.time_s)

    @property
    def launch_s(self) -> float:
        """Launches and the fixed time of the call."""
        return self.call_s + sum(kernel.launch_s for kernel in self.kernels)

    @property
    def exposed_s(self) -> float:
        """Seconds that warpgroups waited for data."""
        return sum(kernel.exposed_s for kernel in self.kernels)

    def units_s(self) -> dict[str, float]:
        """Busy seconds by unit, and `idle`: the time in which not even the busiest unit had work."""
        units = {unit: sum(kernel.units_s[unit] for kernel in self.kernels) for unit in UNITS}
        return units | {"idle": max(0.0, self.time_s - max(units.values()))}

    @property
    def bound(self) -> str:
        """The unit that was busy longest; `launch` or `latency` when that, or nothing, explains most of the time."""
        units = {unit: seconds for unit, seconds in self.units_s().items() if unit != "idle"}
        unit = max(units, key=lambda name: units[name])
        if self.launch_s > 0.5 * self.time_s:
            return "launch"
        return unit if units[unit] >= 0.35 * self.time_s else "latency"


def replay(
    schedule: Schedule, gpu: Gpu, numbers: Numbers, *, mode: Mode = "fast", cache: Cache = "warm",
    launch: LaunchMode = "stream",
) -> Replay:  # fmt: skip
    """Replay `schedule` on `gpu`.

    Parameters
    ----------
    schedule : Schedule
    gpu : Gpu
    numbers : Numbers
        Fitted numbers of the implementation and the GPU.
    mode : {"fast", "exact"}
        Extend a few played blocks, or play every block on every SM.
    cache : {"cold", "warm"}
        Whether the L2 is flushed before the call or holds what the same call left there.
    launch : {"stream", "graph", "kernel"}
        Kernels launched into a stream, from a CUDA graph, or timed alone without launch.

    Raises
    ------
    InputError
        When a block does not fit an SM.
    """
    residency = [occupancy(kernel, gpu) for kernel in schedule.kernels]
    running = tuple(
        min(kernel.blocks, gpu.sm.count * fit.blocks_per_sm)
        for kernel, fit in zip(schedule.kernels, residency, strict=True)
    )
    moved = traffic(schedule.kernels, running, gpu, numbers.gpu.l2_capacity_fraction, cache == "warm")
    overhead = {"stream": gpu.launch.stream_s, "graph": gpu.launch.graph_s, "kernel": 0.0}[launch]
    overhead *= numbers.gpu.launch_scale
    grids: dict[object, GridTime] = {}
    prepared = [
        _prepared(kernel, gpu, numbers, fit, rows)
        for kernel, fit, rows in zip(schedule.kernels, residency, moved, strict=True)
    ]
    busy = sum(item.busy_s for item in prepared) or 1.0
    kernels = tuple(_replay_kernel(item, item.busy_s / busy, gpu, mode, overhead, grids) for item in prepared)
    call = 0.0 if launch == "kernel" else numbers.implementation.call_s
    flat = [row for rows in moved for row in rows]
    return Replay(
        time_s=call + sum(kernel.time_s + kernel.launch_s for kernel in kernels),
        call_s=call,
        kernels=kernels,
        hbm_read_bytes=sum(row.hbm_bytes for row in flat if not row.written),
        hbm_write_bytes=sum(row.hbm_bytes for row in flat if row.written),
        l2_bytes=sum(row.l2_bytes for row in flat),
        smem_bytes=schedule.total("smem_bytes"),
    )


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A kernel ready to be played: its costs, its residency, its traffic, and how long each unit is busy."""

    kernel: Kernel
    costs: Machine
    fit: Occupancy
    rows: tuple[Traffic, ...]
    units_s: dict[str, float]

    @property
    def busy_s(self) -> float:
        """Seconds that its busiest unit is busy."""
        return max(self.units_s.values())


def _prepared(kernel: Kernel, gpu: Gpu, numbers: Numbers, fit: Occupancy, rows: tuple[Traffic, ...]) -> _Prepared:
    costs = machine(kernel, gpu, numbers)
    return _Prepared(kernel, costs, fit, rows, _units(kernel, costs, gpu.sm.count, rows))


def _replay_kernel(
    item: _Prepared, part: float, gpu: Gpu, mode: Mode, launch_s: float, grids: dict[object, GridTime]
) -> KernelReplay:
    """Play a kernel that makes up so large a part of the call."""
    kernel, slots = item.kernel, item.fit.blocks_per_sm
    misses = {(row.written, row.tensor): row.hbm_bytes / row.l2_bytes for row in item.rows}
    program = compile_kernel(kernel, item.costs, misses, 1.0)
    if mode == "exact":
        grid = play_exact(kernel, program, gpu.sm.count, slots)
    else:
        launches = tuple((launch.classes.tobytes(), launch.times) for launch in kernel.launches)
        same = (program.segments, program.warpgroups, kernel.repeats.tobytes(), launches, slots)
        if (known := grids.get(same)) is None:
            compiled = cache(partial(compile_kernel, kernel, item.costs, misses, alone=program))
            known = grids[same] = FastGrid(kernel, compiled, gpu.sm.count, slots).time(part)
        grid = known  # kernels that cost the same (copies, passes over one matrix) take the same time
    return KernelReplay(
        name=kernel.name,
        time_s=grid.time_ps / PS,
        launch_s=0.0 if kernel.launched_early else launch_s,
        blocks=kernel.blocks,
        blocks_per_sm=grid.blocks_per_sm,
        limited_by=item.fit.limited_by,
        waves=grid.waves,
        units_s=item.units_s,
        exposed_s=grid.waited_ps / PS,
        traffic=item.rows,
        requested=grid.requested if mode == "exact" else kernel.requested(),
    )


def _units(kernel: Kernel, costs: Machine, sms: int, rows: tuple[Traffic, ...]) -> dict[str, float]:
    """Busy seconds of each unit: work over rate, shared evenly by the SMs."""
    fp32 = kernel.total("scores") * costs.softmax_instructions + kernel.total("fp32")
    return {
        "tensor": kernel.total("flops") * costs.flop / sms / PS,
        "exp": kernel.total("exps") * costs.exp / sms / PS,
        "fp32": fp32 * costs.fp32 / sms / PS,
        "shared_memory": kernel.total("smem_bytes") * costs.smem_byte / sms / PS,
        "l2": sum(row.l2_bytes / (1 if row.written else kernel.multicast) for row in rows) * costs.l2_byte / PS,
        "hbm": sum(row.hbm_bytes for row in rows) * costs.hbm_byte / PS,
    }
