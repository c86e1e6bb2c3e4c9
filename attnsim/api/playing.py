"""From a question to its answer played: a schedule on the tiles that the conditions ask for, and its replay.

A schedule has the tiles that an implementation ships, a given one, or the best for a changed GPU: all that fit are
sorted by a rough time, and the most promising replayed. The rough time (:func:`compute_time`) is that of the busiest
unit, latencies that the residents of an SM share and whole waves; for columns of many kernels it is the compute part of
a sweep's closed forms too (:mod:`attnsim.studies.closed_form`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import product
from typing import Any, Generic

import numpy as np

from attnsim.api.asking import Conditions, Q, Question
from attnsim.bounds import check_cost
from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.calibrations.choose import Chosen, built, choose
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.gpu import Change, Gpu
from attnsim.models.hardware.sections import FIELDS, Sm, fields_of
from attnsim.models.hardware.units import COUNTED
from attnsim.models.implementations.fused.forward import flash_peak_bytes
from attnsim.models.implementations.fused.tile import KEYS, ROWS, FusedTiles, accumulators_that_fit
from attnsim.models.implementations.implementation import Builder, Implementation, TileRequest
from attnsim.models.implementations.options import host_s
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import with_borrowed_counts
from attnsim.models.schedule.occupancy import occupancy
from attnsim.models.schedule.row_tiles import padded
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.simulator.replay import Replay, replay
from attnsim.simulator.unit_costs import PS, unit_costs

REPLAYED_CANDIDATES = 12
"""Tiles that a retuning replays, after a simple estimate has sorted all that fit."""


OF_A_REPLAY = ("mode", "budget", "cache", "launch", "within_s", "progress")
"""Conditions that a replay takes; the others choose its schedule, or correct its time."""


def replayed(schedule: Schedule, gpu: Gpu, numbers: Numbers, conditions: Conditions) -> Replay:
    """The replay of a schedule under the conditions."""
    how: dict[str, Any] = {name: getattr(conditions, name) for name in OF_A_REPLAY}
    return replay(schedule, gpu, numbers, **how)


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
    advice : str
        What to do about it.
    """

    def __init__(self, chosen: Chosen, peak_bytes: int, gpu: Gpu, advice: str) -> None:
        super().__init__("; ".join(filter(None, (too_large(peak_bytes, gpu.hbm.capacity_bytes), advice))))
        self.chosen, self.peak_bytes = chosen, peak_bytes


def play(question: Question, advice: str = "") -> Played[Question]:
    """Play a question; `advice` says what to do where the call does not fit the memory.

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
        raise DoesNotFit(chosen, peak, gpu, advice)
    schedule, replay = play_schedule(record, w, gpu, chosen.numbers, question.conditions)
    if schedule.peak_memory_bytes > gpu.hbm.capacity_bytes:
        raise DoesNotFit(chosen, schedule.peak_memory_bytes, gpu, advice)
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


LIMITS = tuple(f"sm.{name}" for name, one in fields_of(Sm).items() if one.read == "limit")
"""Figures that limit a block."""

ASKED = ("sm.count", "l2.capacity", "hbm.capacity")
"""Figures that a call asks its device for as it runs: split rules count the SMs, schedulers ask whether keys fit the
L2, SGLang how much memory is free for scores."""


def peak_bytes(record: Implementation, w: Workload) -> int:
    """Least memory of a call, without building its schedule (partial results of split-KV left out)."""
    return (record.peak_bytes or flash_peak_bytes)(w)


def scheduled(record: Implementation, w: Workload, gpu: Gpu, conditions: Conditions) -> Schedule:
    """The schedule that the conditions ask for, where no replay has to choose its tile.

    Raises
    ------
    InputError
        When a tile does not fit the GPU.
    """
    if conditions.tiles == "retuned" and record.tunable:
        schedule = chosen_anew(record, w, gpu)  # backward tiles are those the code would choose on this chip
    elif conditions.tile is not None:
        schedule = _given(record, w, _seen(gpu, (*ASKED, *LIMITS)), conditions.tile)
    else:
        schedule = shipped(record, w, gpu)
    check_paths(record, schedule, gpu)
    return schedule


def shipped(record: Implementation, w: Workload, gpu: Gpu) -> Schedule:
    """The schedule with the tiles and the occupancy of the real implementation on the unchanged GPU.

    Tiles were chosen by people for a chip with its rates, its SMs and its limits on what a block may hold. Of a changed
    GPU a call sees what it asks for as it runs (`ASKED`).

    Raises
    ------
    InputError
        When the shipped tile no longer fits.
    """
    schedule = _built(record.build, w, _seen(gpu, ASKED))
    limits = {key for change in gpu.changes for key in change.keys} & set(LIMITS)
    if not limits:
        return schedule
    base = gpu.tiled_for
    if all(gpu.get(key) == base.get(key) for key in limits):
        return schedule
    kernels = tuple(
        replace(kernel, max_blocks_per_sm=occupancy(kernel, base).blocks_per_sm) for kernel in schedule.kernels
    )
    schedule = replace(schedule, kernels=kernels)
    if not record.tunable:
        return library_schedule(schedule, lambda chip: record.build(w, chip, None), gpu)
    try:
        _check_fits(schedule, gpu)
    except InputError as error:
        raise InputError(f"{error}; --tiles retuned takes the best that fits") from None
    return schedule


def library_schedule(schedule: Schedule, build: Callable[[Gpu], Schedule], gpu: Gpu) -> Schedule:
    """The schedule or, where a block of it does not fit, that of a chip with the limits of `gpu`.

    A library such as cuBLAS has smaller tiles, too, and asks its device as it runs.

    Raises
    ------
    InputError
        When that does not fit either.
    """
    try:
        _check_fits(schedule, gpu)
    except InputError:
        schedule = build(as_real(_seen(gpu, (*ASKED, *LIMITS))))
        _check_fits(schedule, gpu)
    return schedule


def _check_fits(schedule: Schedule, gpu: Gpu) -> None:
    for kernel in schedule.kernels:
        occupancy(kernel, gpu)


@lru_cache(maxsize=16)
def _built(build: Builder, w: Workload, gpu: Gpu) -> Schedule:
    """A schedule on the tiles it ships: the levers of an explanation ask for one again and again."""
    return build(w, gpu, None)


def chosen_anew(record: Implementation, w: Workload, gpu: Gpu) -> Schedule:
    """The schedule with the tile that the implementation's own rule chooses where a changed GPU is the real one.

    Raises
    ------
    InputError
        When no tile fits.
    """
    return record.build(w, as_real(gpu), None)


def as_real(gpu: Gpu) -> Gpu:
    """A changed GPU as if it were built so: tiles are chosen for it."""
    return replace(gpu, changes=())


@lru_cache(maxsize=1024)
def _seen(gpu: Gpu, asked: tuple[str, ...]) -> Gpu:
    """The GPU that a shipped call sees: the one its tiles were chosen for, with these figures of the changed one.

    The figures are on record as changes, so that a builder still knows for which GPU tiles are chosen.
    """
    if not gpu.changes:
        return gpu
    base, values = gpu.tiled_for, {key: gpu.get(key) for key in asked}
    new = {key: value for key, value in values.items() if value != base.get(key)}
    changes = tuple(Change(key, base.get(key), value, FIELDS[key].unit) for key, value in new.items())
    return replace(base.with_values(new), changes=changes)


def _given(record: Implementation, w: Workload, gpu: Gpu, shape: TileRequest) -> Schedule:
    if w.directions != ("fwd", "bwd"):
        schedule = record.build(w, gpu, shape)
    else:
        schedule = with_shipped_backward(record, record.build(w.with_passes("fwd"), gpu, shape), w, gpu)
    if any(kernel.path == "wgmma" for kernel in schedule.kernels) and shape.rows % 64:
        raise InputError(f"tile is {shape}; {record.name} needs rows in steps of 64, one warpgroup each")
    return schedule


def with_shipped_backward(record: Implementation, forward: Schedule, w: Workload, gpu: Gpu) -> Schedule:
    """A forward schedule followed by the backward kernels that the implementation ships for the GPU."""
    backward = record.build(w.with_passes("bwd"), gpu, None)
    if not isinstance(forward.tile, FusedTiles) or not isinstance(backward.tile, FusedTiles):
        raise InputError(f"{record.name} takes its shipped tiles for both passes; ask for those, or for fwd")
    return replace(
        forward,
        kernels=(*forward.kernels, *backward.kernels),
        tile=replace(forward.tile, backward=backward.tile.backward),
        peak_memory_bytes=max(forward.peak_memory_bytes, flash_peak_bytes(w)),
        notes=tuple(dict.fromkeys((*forward.notes, *backward.notes))),
        host_s=host_s(w, len(forward.kernels) + len(backward.kernels)),
        useful_flops=w.matrix_flops(w.visible_pairs),
    )


def check_paths(record: Implementation, schedule: Schedule, gpu: Gpu) -> None:
    """Refuse kernels on an instruction path that a changed GPU lacks.

    Raises
    ------
    InputError
        When the GPU lacks the path.
    """
    for kernel in schedule.kernels:
        for path, present in (("wgmma", gpu.features.wgmma), ("tcgen05", gpu.features.tcgen05)):
            if kernel.path == path and not present:
                raise InputError(
                    f"{record.name} needs {path}, which {gpu.id} with features.{path} = false lacks; "
                    "nearest it can: flash-attn.2"
                )


RAGGED_WAVES = by_hand(8, "waves from which on a last wave that is not full no longer matters to an estimate")


def compute_time(
    tensor: Any,
    vector: Any,
    disturbs: Any,
    *,
    interference: Any,
    own_path: Any,
    sms: Any,
    groups: Any,
    step: Any,
    block: Any,
    waves: Any,
    even: Any,
) -> Any:
    """Time of the SMs, numbers or arrays, in the unit that work and latencies are given in.

    Parameters
    ----------
    tensor, vector : float or ndarray
        All work of the tensor and the vector units, on one SM.
    disturbs : float or ndarray
        Work of the vector units that the tensor unit feels, see :func:`vector_times`.
    interference : float or ndarray
        Share of the work of one that the other waits for.
    own_path : float or ndarray
        Part of the work of the vector units that a warpgroup runs one pipe after another, beside products; else 0.
    sms, groups : float or ndarray
        SMs, and warpgroups on each.
    step, block : float or ndarray
        Latencies of all inner steps and of all blocks, shared by the blocks that run at once.
    waves : float or ndarray
    even : bool or ndarray
        Whether the blocks are shared out evenly however few waves there are.
    """
    busy = np.maximum(tensor + interference * disturbs, vector + interference * tensor) / sms
    whole = np.where(even | (waves >= RAGGED_WAVES), 1.0, np.ceil(waves) / waves)
    # Half of the products are of S, for which a softmax waits; those with V run beside it.
    chain = np.maximum(busy, np.where(own_path > 0, tensor / 2 + own_path * disturbs, 0.0) / sms)
    # A warpgroup's latency hides under what the others do meanwhile.
    return (np.maximum(busy, chain / groups + step) + block) * whole


def vector_times(parts: Sequence[Any], behind: Sequence[Any], counted: Any) -> tuple[Any, Any]:
    """Time of the vector units, of one kernel or of columns of many, and the part that the tensor unit feels.

    Parameters
    ----------
    parts : sequence
        Time on the exponential units and on the FP32 lanes.
    behind : sequence
        Time of the schedulers and then of integer lanes and load/store units, known where instructions are counted.
    counted : bool or ndarray of bool
        Whether they are: counted operations take as long as their busiest pipe, and those of all pipes are felt.
    """
    added = sum(parts)
    longest = np.where(counted, reduce(np.maximum, (*parts, *behind)), added)
    return longest, np.where(counted, added + sum(behind[1:]), added)


def step_waits(kernel: Kernel) -> int:
    """Waits for an inner step of all blocks."""
    return sum(
        int(n) * sum(op.waits == "step" for op in segment.ops)
        for n, segment in zip(kernel.executions, kernel.segments, strict=True)
    )
