"""Replay a schedule on a GPU: every kernel's grid, the memory between them, and what the time went into."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal
from weakref import WeakKeyDictionary

from attnsim.arrays import Floats
from attnsim.bounds import check_cost
from attnsim.by_hand import by_hand
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.hardware.clock_law import SAME_CLOCK, ClockBy, ClockLaw, clock_law, joules, limit_felt, settled
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import COUNTED, FP32, HBM, L2, ON_SM, UNITS
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.simulator.grid import BUDGET, GridTime, grid_time
from attnsim.simulator.memory import Traffic
from attnsim.simulator.players import executions
from attnsim.simulator.program import Cache, Prepared, Program, prepare
from attnsim.simulator.reduced_grid import WHOLE
from attnsim.simulator.unit_costs import PS

Mode = Literal["fast", "exact"]
LaunchMode = Literal["stream", "host", "graph", "kernel"]

Progress = Callable[[str, int, int], None]
"""Progress callback while a kernel is played: its name, its blocks that have ended, all its blocks."""

LAUNCH_BOUND = by_hand(0.5, "share of a call's time above which launches are reported as its bound")
LEAST_BUDGET = by_hand(500, "least budget of segment executions of a kernel in a call of several")
REMEMBERED = by_hand(64, "cached results per kernel, for calls that vary figures or numbers")
HELD = by_hand(
    0.96, "memory utilisation above which a kernel's time stops scaling with the SM clock (linearly, to none at 1)"
)
UNIT_BOUND = by_hand(
    0.35, "least utilisation of a kernel's busiest unit that is reported as its bound instead of latency"
)

EXECUTION_S = by_hand(
    4e-7, "seconds that a call spends on a segment execution: some 0.09 us in the compiled twin, at four clocks"
)

Grids = dict[object, list[tuple[Kernel, GridTime]]]
"""Kernels that a replay has played, by the program that they run."""

_played: WeakKeyDictionary[Kernel, dict[object, GridTime]] = WeakKeyDictionary()
"""Most recent results of each kernel, by its costs: many fitted numbers do not affect the replay of every kernel."""


@dataclass(frozen=True, slots=True)
class KernelReplay:
    """One kernel of a replay.

    Parameters
    ----------
    time_s : float
        From the first block's start to the last byte, without the launch.
    launch_s : float
        Launch overhead.
    blocks : int
        Thread blocks of the grid.
    blocks_per_sm : int
        As many as fit an SM, or fewer if the grid has no more.
    limited_by : str
        Resource that limits the resident blocks.
    waves : float
        Blocks over as many as fit the GPU.
    units_s : mapping of str to float
        Busy seconds of each unit, averaged over the chip's SMs (for L2 and HBM: of the chip's bandwidth).
    exposed_s : float
        Seconds that warpgroups waited for data, averaged.
    requested : mapping
        Bytes requested by ("load" or "store", tensor), as counted in the replay if the grid was played whole.
    spread : float
        Relative half-width of the time if it is the mean of jittered replays; 0 if it is not sensitive to timing.
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
    spread: float


@dataclass(frozen=True, slots=True)
class Replay:
    """Result of replaying a schedule: times in seconds, bytes over the whole call, and the SM clock it ran at.

    `call_s` is the fixed time of a call. It includes `host_wait_s`, in which the GPU waits for the CPU's launches.
    """

    time_s: float
    call_s: float
    host_wait_s: float
    kernels: tuple[KernelReplay, ...]
    hbm_read_bytes: float
    hbm_write_bytes: float
    l2_bytes: int
    smem_bytes: int
    clock_hz: float
    clock_by: ClockBy

    @property
    def main(self) -> KernelReplay:
        """The kernel that takes longest."""
        return max(self.kernels, key=lambda kernel: kernel.time_s)

    @property
    def launch_s(self) -> float:
        """Seconds of launches and the fixed time of the call."""
        return self.call_s + sum(kernel.launch_s for kernel in self.kernels)

    @property
    def exposed_s(self) -> float:
        """Seconds that warpgroups waited for data."""
        return sum(kernel.exposed_s for kernel in self.kernels)

    @property
    def held_s(self) -> float:
        """Seconds that the SM clock hardly changes: launches, and kernels whose time goes to L2 or HBM."""
        found = self.launch_s
        for kernel in self.kernels:
            busy = max(kernel.units_s[L2.name], kernel.units_s[HBM.name]) / kernel.time_s
            found += kernel.time_s * min(1.0, max(0.0, busy - HELD) / (1 - HELD))
        return found

    @property
    def spread(self) -> float:
        """Relative half-width of the call's time by its kernels' sensitivity to timing, if all err alike."""
        return sum(kernel.spread * kernel.time_s for kernel in self.kernels) / self.time_s if self.time_s else 0.0

    def units_s(self) -> dict[str, float]:
        """Busy seconds by unit, and `idle`: the time in which not even the busiest unit had work."""
        used = {unit for kernel in self.kernels for unit in kernel.units_s}
        units = {unit: sum(kernel.units_s.get(unit, 0.0) for kernel in self.kernels) for unit in UNITS if unit in used}
        return units | {"idle": max(0.0, self.time_s - max(units.values()))}

    @property
    def busiest(self) -> str:
        """Busiest unit of the longest kernel; `launch` or `latency` if that takes most of the time, or if no unit does.

        It need not bound the call: `attnsim.api.bounds` plays what does.
        """
        return self.busiest_with({})

    def busiest_with(self, faster: Mapping[str, float]) -> str:
        """Busiest unit, as :attr:`busiest`, if units were faster by the given factors and the call as long as now."""
        main = self.main
        units = {unit: busy / faster.get(unit, 1.0) for unit, busy in main.units_s.items()}
        unit = max(units, key=lambda name: units[name])
        if self.launch_s > LAUNCH_BOUND * self.time_s:
            return "launch"
        return unit if units[unit] >= UNIT_BOUND * main.time_s else "latency"


def replay(
    schedule: Schedule,
    gpu: Gpu,
    numbers: Numbers,
    *,
    mode: Mode = "fast",
    budget: int = BUDGET,
    cache: Cache = "warm",
    launch: LaunchMode = "stream",
    within_s: float = 0.0,
    progress: Progress | None = None,
) -> Replay:
    """Replay `schedule` on `gpu` at the held clock, or at the one that power allows (see `clock_law`).

    Parameters
    ----------
    numbers : Numbers
        Fitted numbers of the implementation and the GPU.
    mode : {"fast", "exact"}
        "fast" plays grids whole within the budget and reduced grids beyond it; "exact" plays every block on every SM.
    budget : int
        Segment executions by warpgroups that the fast mode plays per call. A kernel's share is its busiest unit's share
        of the call's time, and at least `LEAST_BUDGET`. A grid of up to `WHOLE` times its share is played whole; of a
        larger one, all blocks of some SMs are.
    cache : {"cold", "warm"}
        Whether the L2 is flushed before the call or holds what the same call left there.
    launch : {"stream", "host", "graph", "kernel"}
        "stream": kernels are launched into a stream. "host": from Python, and no faster than Python launches them (also
        holds for a stream if each operation is a call of its own). "graph": from a CUDA graph. "kernel": timed alone.
    within_s : float
        Duration of the larger unit of work that contains the call, such as a layer. The power limit is applied over the
        longer of the two.
    progress : callable, optional
        Progress callback, see `Progress`.

    Raises
    ------
    InputError
        When a block does not fit an SM.
    """
    play = partial(
        _play, schedule, numbers=numbers, mode=mode, budget=budget, cache=cache, launch=launch, progress=progress
    )
    found = play(gpu)
    long_s = max(found.time_s, within_s)
    if gpu.clock.held_hz or long_s <= architecture_of(gpu.compute_capability_number).slowed_from_s:
        return found
    law, full_hz = clock_law(gpu), gpu.clock.full_hz
    spent = [
        spent_j(law, gpu, kernel, schedule.useful_share, seen)
        for kernel, seen in zip(schedule.kernels, found.kernels, strict=True)
    ]
    power_w = gpu.power.limit_w - law.static_w
    felt = float(limit_felt(long_s, law.from_s, law.to_s))
    chip_j, memory_j = (sum(parts) for parts in zip(*spent, strict=True))
    plays, least = {1.0: found}, law.least_hz / full_hz
    floor = least**felt * (1 + SAME_CLOCK)

    def time_at(share: Floats) -> tuple[float, float]:
        part = float(share)
        if part not in plays:
            by: ClockBy = "least" if part <= floor else "power"
            plays[part] = replace(play(gpu.at_clock(full_hz * part)), clock_by=by)
        return plays[part].time_s, plays[part].held_s

    return plays[float(settled((found.time_s, found.held_s), time_at, chip_j, memory_j, power_w, felt, least))]


def spent_j(law: ClockLaw, gpu: Gpu, kernel: Kernel, useful_share: float, seen: KernelReplay) -> tuple[float, float]:
    """Energy of a kernel's replayed work at the full clock, in joules: of the chip, and of the memory."""
    chip, memory = joules(
        law.capability,
        kernel.dtype,
        flops=kernel.total("flops"),
        useful=kernel.total("flops") * useful_share,
        lanes=seen.units_s[FP32.name] * gpu.sm.count * gpu.clock.full_hz * gpu.sm.fp32_flops_per_clk / 2,
        exps=kernel.total("exps"),
        smem_bytes=kernel.total("smem_bytes"),
        l2_bytes=sum(row.l2_bytes for row in seen.traffic),
        hbm_bytes=sum(row.hbm_bytes for row in seen.traffic),
    )
    return chip * gpu.clock.full_hz / law.tensor_hz, memory


def _play(
    schedule: Schedule,
    gpu: Gpu,
    *,
    numbers: Numbers,
    mode: Mode,
    budget: int,
    cache: Cache,
    launch: LaunchMode,
    progress: Progress | None,
) -> Replay:
    """Replay at the full clock of `gpu`."""
    overhead = gpu.launch.each_s(launch)
    grids: Grids = {}
    prepared = prepare(schedule, gpu, numbers, cache)
    units = [_units(item, gpu.sm.count) for item in prepared]
    busiest = [max(one.values()) for one in units]
    whole = sum(busiest) or 1.0
    budgets = [math.inf if mode == "exact" else max(LEAST_BUDGET, budget * busy / whole) for busy in busiest]
    played = sum(min(executions(item.kernel), WHOLE * most) for item, most in zip(prepared, budgets, strict=True))
    check_cost(f"playing {played:,.0f} segment executions", time_s=played * EXECUTION_S)
    kernels = tuple(
        _replay_kernel(item, units_s, most, gpu.sm.count, overhead, grids, progress)
        for item, units_s, most in zip(prepared, units, budgets, strict=True)
    )
    call = 0.0 if launch == "kernel" else numbers.implementation.call_s
    on_gpu = call + sum(kernel.time_s + kernel.launch_s for kernel in kernels)
    from_python = launch == "host" or (launch == "stream" and schedule.is_eager)
    waited = max(0.0, schedule.host_s - on_gpu) if from_python else 0.0
    call += waited
    moved = [row for item in prepared for row in item.rows]
    return Replay(
        time_s=on_gpu + waited,
        host_wait_s=waited,
        call_s=call,
        kernels=kernels,
        hbm_read_bytes=sum(row.hbm_bytes for row in moved if not row.written),
        hbm_write_bytes=sum(row.hbm_bytes for row in moved if row.written),
        l2_bytes=sum(row.l2_bytes for row in moved),
        smem_bytes=schedule.total("smem_bytes"),
        clock_hz=gpu.clock.full_hz,
        clock_by="given" if gpu.clock.held_hz else "load" if gpu.clock.free_hz < gpu.clock.boost_hz else "boost",
    )


def _replay_kernel(
    item: Prepared,
    units_s: Mapping[str, float],
    budget: float,
    sms: int,
    launch_s: float,
    grids: Grids,
    progress: Progress | None,
) -> KernelReplay:
    """Play a kernel within its part of the budget; `grids` caches the results of kernels with the same costs."""
    kernel, slots = item.kernel, item.fit.blocks_per_sm
    program = item.compiled()
    steps = program.table.tobytes(), program.index.tobytes(), program.begins.tobytes()
    alike = grids.setdefault((steps, program.warpgroups, slots), [])
    memory = item.costs.l2, item.costs.l2_write, item.costs.hbm, item.rows
    known, costs = _played.setdefault(kernel, {}), (steps, slots, sms, budget, *memory)
    grid = next((played for other, played in alike if kernel.has_blocks_of(other)), None) or known.pop(costs, None)
    if grid is None:  # copies of a kernel, and passes over the same matrix, take the same time
        ended = None if progress is None else lambda blocks: progress(kernel.name, blocks, kernel.blocks)
        grid = grid_time(kernel, program, sms, slots, budget, ended)
        alike.append((kernel, grid))
    known[costs] = grid
    if len(known) > REMEMBERED:
        del known[next(iter(known))]
    return KernelReplay(
        name=kernel.name,
        time_s=grid.time_ps / PS,
        launch_s=0.0 if kernel.launched_early else launch_s,
        blocks=kernel.blocks,
        blocks_per_sm=grid.blocks_per_sm,
        limited_by=item.fit.limited_by,
        waves=grid.waves,
        units_s=units_s,
        exposed_s=grid.waited_ps / PS,
        traffic=item.rows,
        requested=_requested(grid, program) or kernel.requested(),
        spread=grid.spread,
    )


def _requested(grid: GridTime, program: Program) -> dict[tuple[str, str], int]:
    moved = {("load", tensor): size for tensor, size in zip(program.tensors, grid.loaded, strict=False)}
    moved |= {("store", tensor): size for tensor, size in zip(program.tensors, grid.stored, strict=False)}
    return {key: size for key, size in moved.items() if size}


def _units(item: Prepared, sms: int) -> dict[str, float]:
    """Busy seconds of each unit: work over rate, shared evenly by the SMs."""
    kernel, costs = item.kernel, item.costs
    units = [one for one in ON_SM if not one.counted or kernel.total(one.amount) or (kernel.counted and one in COUNTED)]
    per_amount = {one: costs.pipes.get(one.amount) if one.pipe else getattr(costs, one.name) for one in units}
    amounts = {one: float(kernel.total(one.amount)) for one in units}
    on_sm = {one.name: amounts[one] * cost / sms / PS for one, cost in per_amount.items() if cost is not None}
    l2 = sum(row.l2_bytes * (costs.l2_write if row.written else costs.l2 / kernel.multicast) for row in item.rows)
    hbm_bytes = sum(row.hbm_bytes for row in item.rows)
    return on_sm | {L2.name: l2 / PS, HBM.name: hbm_bytes * costs.hbm / PS}
