"""Activity of each unit of an SM over time: the operations of a replay as time slices.

The trace uses SimPy. A small grid is played whole, on every SM. Of a large grid a sample is played: one SM, whose
transfers hold L2 and HBM for all SMs, runs the blocks that the first SM would run, in their order. The start and the
duration of each kernel are those of the replay, which covers the whole grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.schedule.schedule import Schedule
from attnsim.simulator.engine import BLOCK, Note, play
from attnsim.simulator.players import executions, launch_order
from attnsim.simulator.program import LOAD, STORE, VECTOR, Cache, Prepared, prepare
from attnsim.simulator.replay import LaunchMode, Replay, replay
from attnsim.simulator.unit_costs import PS

PLAYED_WHOLE = 60_000
"""Segment executions of a grid that is played on every SM; a larger one is sampled."""
SAMPLED_ROUNDS = 4
"""Rounds of resident blocks in a sample."""
MOST_SLICES = 20_000
"""Most slices per kernel; later operations are left out, and the trace says so."""

UNITS = ("copy", "tensor", "softmax", "store", "block")
"""Tracks of an SM: loads from issue to landing, MMAs, work on registers, stores, resident blocks."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One operation.

    Parameters
    ----------
    unit : str
        One of `UNITS`.
    tensor : str
        Tensor that is moved or computed; "" for a block.
    start_s, end_s : float
        Seconds from the start of the kernel.
    warpgroup : int
        Warpgroup of the SM that issued the operation; for a block, its first warpgroup. Numbers follow the SM's slots.
    bytes, hbm_bytes : int, float
        Bytes moved, and those of them from or to HBM.
    """

    sm: int
    unit: str
    tensor: str
    start_s: float
    end_s: float
    warpgroup: int = 0
    bytes: int = 0
    hbm_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class KernelTrace:
    """The slices of one kernel.

    Parameters
    ----------
    start_s, time_s : float
        Start within the call, after the launch, and duration, as in the replay.
    blocks_per_sm, warpgroups : int
        Resident blocks per SM, and warpgroups per block.
    shared_memory_bytes : int
        Shared memory per block.
    sms : int
        SMs whose operations are recorded.
    stands_for : float
        SMs of the chip that each of them represents.
    shown : str
        Part of the grid that the slices show, in words; "" if they show everything.
    """

    name: str
    start_s: float
    time_s: float
    blocks_per_sm: int
    warpgroups: int
    shared_memory_bytes: int
    sms: int
    stands_for: float
    slices: tuple[Slice, ...]
    shown: str


@dataclass(frozen=True, slots=True)
class Trace:
    """The kernels of a call, with the replay that they belong to."""

    schedule: Schedule
    replay: Replay
    kernels: tuple[KernelTrace, ...]


def trace(
    schedule: Schedule,
    gpu: Gpu,
    numbers: Numbers,
    *,
    cache: Cache = "warm",
    launch: LaunchMode = "stream",
    sms: int = 2,
) -> Trace:
    """Replay `schedule` on `gpu` and record what the first SMs do.

    Parameters
    ----------
    schedule, gpu, numbers, cache, launch
        As for :func:`attnsim.simulator.replay.replay`.
    sms : int
        SMs whose operations are recorded if a grid is played whole.

    Raises
    ------
    InputError
        When a block does not fit an SM.
    """
    whole = replay(schedule, gpu, numbers, cache=cache, launch=launch)
    kernels, now = [], whole.call_s
    played = gpu.at_clock(whole.clock_hz)
    for item, done in zip(prepare(schedule, played, numbers, cache), whole.kernels, strict=True):
        now += done.launch_s
        kernels.append(_kernel_trace(item, gpu.sm.count, sms, now, done.time_s))
        now += done.time_s
    return Trace(schedule, whole, tuple(kernels))


def _kernel_trace(item: Prepared, chip: int, sms: int, start_s: float, time_s: float) -> KernelTrace:
    kernel = item.kernel
    active, resident = min(chip, kernel.blocks), min(item.fit.blocks_per_sm, -(-kernel.blocks // chip))
    shown = ""
    queue = launch_order(kernel)
    if executions(kernel) <= PLAYED_WHOLE:
        sharers, played, sms = 1.0, active, min(sms, active)
        if sms < active:
            shown = f"{sms} of {active} SMs"
    else:
        sharers, played, sms = float(active), 1, 1
        count = min(SAMPLED_ROUNDS * resident, -(-kernel.blocks // active))
        queue = islice(queue, 0, count * active, active)
        shown = f"{count} of {kernel.blocks} blocks, on one SM that stands for {active}"
    program = item.compiled().shared_by(sharers)
    blocks = [program.block(kernel.runs(block_class)) for block_class in range(len(kernel.repeats))]
    slices: list[Slice] = []
    dropped = 0

    def noted(sm: int) -> Note | None:
        def note(kind: int, warpgroup: int, tensor: int, start: int, end: int, size: int, hbm: int) -> None:
            nonlocal dropped
            if len(slices) >= MOST_SLICES:
                dropped += 1
                return
            name = "" if kind == BLOCK else program.tensors[tensor]
            hbm_bytes = hbm / (item.costs.hbm * sharers)
            unit = _UNIT.get(kind, "tensor")
            slices.append(Slice(sm, unit, name, start / PS, end / PS, warpgroup, size, hbm_bytes))

        return note if sm < sms else None

    play(program, played, resident, (blocks[block_class] for block_class in queue), noted)
    if dropped:
        shown = "; ".join(part for part in (shown, f"the first {MOST_SLICES:,} operations") if part)
    return KernelTrace(
        kernel.name,
        start_s,
        time_s,
        resident,
        kernel.warpgroups,
        kernel.shared_memory_bytes,
        sms,
        active / sms,
        tuple(slices),
        shown,
    )


_UNIT = {LOAD: "copy", STORE: "store", VECTOR: "softmax", BLOCK: "block"}
