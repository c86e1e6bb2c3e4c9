"""From a question to its answer played: a schedule on the tiles that the conditions ask for, and its replay.

The best tile for a changed GPU: all that fit are sorted by a simple estimate, the most promising replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any, Generic

from attnsim.api.asking import Conditions, Q, Question
from attnsim.api.building import as_real, check_paths, peak_bytes, scheduled, with_shipped_backward
from attnsim.api.estimating import compute_time, step_waits, vector_times
from attnsim.bounds import check_cost
from attnsim.errors import InputError
from attnsim.models.calibrations.choose import Chosen, built, choose
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import COUNTED
from attnsim.models.implementations.fused.tile import KEYS, ROWS, accumulators_that_fit
from attnsim.models.implementations.implementation import Implementation, TileRequest
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import with_borrowed_counts
from attnsim.models.schedule.occupancy import occupancy
from attnsim.models.schedule.row_tiles import padded
from attnsim.models.schedule.schedule import Schedule
from attnsim.simulator.replay import Replay, replay
from attnsim.simulator.unit_costs import PS, unit_costs

REPLAYED_CANDIDATES = 12
"""Tiles that a retuning replays, after a simple estimate has sorted all that fit."""


def replayed(schedule: Schedule, gpu: Gpu, numbers: Numbers, conditions: Conditions) -> Replay:
    """The replay of a schedule under the conditions."""
    return replay(
        schedule,
        gpu,
        numbers,
        mode=conditions.mode,
        budget=conditions.budget,
        cache=conditions.cache,
        launch=conditions.launch,
        within_s=conditions.within_s,
        progress=conditions.progress,
    )


def retuned(
    record: Implementation, w: Workload, gpu: Gpu, numbers: Numbers, conditions: Conditions
) -> tuple[Schedule, Replay]:
    """The fastest of the shipped tile and the most promising others that fit, by the fast replay.

    All tiles that fit are sorted by :func:`_estimate`; `REPLAYED_CANDIDATES` of them are replayed.
    """
    forward, gpu = w.with_passes("fwd") if w.passes == "fwd+bwd" else w, as_real(gpu)
    choices = [one.schedule for one in fitting(record, forward, gpu, numbers)[:REPLAYED_CANDIDATES]]
    try:
        own = record.build(forward, gpu, None)
        for kernel in own.kernels:
            occupancy(kernel, gpu)
        choices.append(own)
    except InputError:
        if not choices:
            raise
    check_paths(record, choices[0], gpu)
    if forward is not w:  # each beside the backward, with whose kernels it shares what a call may play
        choices = [with_shipped_backward(record, one, w, gpu) for one in choices]
    fast = replace(conditions, mode="fast")
    played = [(schedule, replayed(schedule, gpu, numbers, fast)) for schedule in choices]
    best, result = min(played, key=lambda pair: pair[1].time_s)
    if conditions.mode == "fast":
        return best, result
    return best, replayed(best, gpu, numbers, conditions)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tile that fits: its query rows x keys, a rough time in seconds, and its schedule."""

    shape: TileRequest
    estimate_s: float
    schedule: Schedule


def fitting(
    record: Implementation, w: Workload, gpu: Gpu, numbers: Numbers, stages: Sequence[int] = ()
) -> list[Candidate]:
    """All tiles of a forward implementation that fit the GPU, the most promising by :func:`_estimate` first.

    With `stages`, every tile with each number of buffers of K and V; else with the implementation's own.
    """
    found: list[Candidate] = []
    gpu = as_real(gpu)
    shapes = [TileRequest(*sizes) for sizes in product(ROWS, KEYS, stages or (None,))]
    for number, shape in enumerate(shapes):
        held = sum(kernel.repeats.nbytes for one in found for kernel in one.schedule.kernels)
        check_cost(f"all tiles of {record.name}", memory_bytes=held * len(shapes) / max(1, number))
        try:
            schedule = record.build(w, gpu, shape)
            if _in_registers(schedule, w, gpu, shape):
                found.append(Candidate(shape, _estimate(schedule, gpu, numbers), schedule))
        except InputError:
            continue  # does not fit: that is what is being found out
    return sorted(found, key=lambda one: one.estimate_s)


def _in_registers(schedule: Schedule, w: Workload, gpu: Gpu, shape: TileRequest) -> bool:
    """Whether the fp32 accumulators of O and S fit the registers; not the same sum as the retuned tiles' `fits`."""
    main = schedule.main
    threads = main.warpgroups * 128 if main.path == "wgmma" else main.threads  # loading warps hold none
    accumulators = shape.rows * (padded(w.head_dim_v) + shape.keys) // threads
    return main.path == "tcgen05" or accumulators <= accumulators_that_fit(threads, gpu)


def _estimate(schedule: Schedule, gpu: Gpu, numbers: Numbers) -> float:
    """Seconds of the main kernel, roughly: busiest unit, step latencies shared by residents, whole waves."""
    kernel = with_borrowed_counts(schedule.main, numbers.counts, gpu)
    costs = unit_costs(kernel, gpu, numbers)
    slots = gpu.sm.count * occupancy(kernel, gpu).blocks_per_sm
    tensor = kernel.total("flops") * costs.tensor
    parts = kernel.total("exps") * costs.exp, kernel.total("fp32") * costs.fp32
    behind = [kernel.total(one.amount) * getattr(costs, one.name) for one in COUNTED]
    vector, disturbs = vector_times(parts, behind, kernel.counted)
    compute = compute_time(
        tensor,
        vector,
        disturbs,
        interference=costs.stall,
        own_path=costs.own_path,
        sms=gpu.sm.count,
        groups=slots / gpu.sm.count * kernel.warpgroups,
        step=step_waits(kernel) * costs.step / slots,
        block=kernel.blocks * costs.block / slots,
        waves=kernel.blocks / slots,
        even=kernel.persistent,
    )
    return max(float(compute), kernel.total("bytes") * costs.l2) / PS


@dataclass(frozen=True, slots=True, eq=False)
class Played(Generic[Q]):
    """A question and how it runs.

    Parameters
    ----------
    question : Question or KernelQuestion
    chosen : Chosen
        The fitted numbers, and whose they are.
    schedule : Schedule
    replay : Replay
    """

    question: Q
    chosen: Chosen
    schedule: Schedule
    replay: Replay


class DoesNotFit(InputError):
    """A call that needs more memory than the GPU has; its text is the sentence that says so.

    Parameters
    ----------
    chosen : Chosen
        The fitted numbers, and whose they are.
    peak_bytes : int
        Inputs, outputs and scratch alive together; without the schedule's scratch where the rest is too large already.
    gpu : Gpu
    """

    def __init__(self, chosen: Chosen, peak_bytes: int, gpu: Gpu) -> None:
        super().__init__(too_large(peak_bytes, gpu.hbm.capacity_bytes))
        self.chosen, self.peak_bytes = chosen, peak_bytes


def play(question: Question) -> Played[Question]:
    """Play a question.

    Raises
    ------
    DoesNotFit
        When the call does not fit the GPU's memory.
    InputError
        When a tile does not fit the GPU.
    """
    record, w, gpu = question.record, question.w, question.gpu
    chosen, peak = built(choose(record, gpu), record, w, gpu), peak_bytes(record, w)
    if peak > gpu.hbm.capacity_bytes:
        raise DoesNotFit(chosen, peak, gpu)
    schedule, replay = play_schedule(record, w, gpu, chosen.numbers, question.conditions)
    if schedule.peak_memory_bytes > gpu.hbm.capacity_bytes:
        raise DoesNotFit(chosen, schedule.peak_memory_bytes, gpu)
    return Played(question, chosen, schedule, replay)


@lru_cache(maxsize=64)
def with_alternatives(run: Played[Any]) -> tuple[float, ...]:
    """Seconds of a call with the numbers of its calibration and with each of its alternatives, in fast mode."""
    found = run.chosen.calibration
    if found is None:
        return ()
    own, asked = run.chosen.numbers, run.question
    fast = replace(asked.conditions, mode="fast", progress=None)
    every = (own, *(one.of(own) for one in found.alternatives))
    return tuple(replayed(run.schedule, asked.gpu, numbers, fast).time_s for numbers in every)


def too_large(peak: float, capacity: float) -> str:
    """The sentence about a call that needs more memory than the card has, both in bytes."""
    return f"does not fit: needs {_bytes_text(peak)}, the card has {_bytes_text(capacity)}"


def _bytes_text(size: float) -> str:
    for unit, scale in (("EB", 1e18), ("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}" if size < 1e21 else f"{size / scale:.2e} {unit}"
    return f"{size / 1e3:.3g} kB"


def play_schedule(
    record: Implementation, w: Workload, gpu: Gpu, numbers: Numbers, conditions: Conditions
) -> tuple[Schedule, Replay]:
    """Build the schedule that the conditions ask for and replay it.

    Raises
    ------
    InputError
        When a tile does not fit the GPU.
    """
    if conditions.tiles == "retuned" and record.tunable and "fwd" in w.directions:
        return retuned(record, w, gpu, numbers, conditions)
    schedule = scheduled(record, w, gpu, conditions)
    return schedule, replayed(schedule, gpu, numbers, conditions)
