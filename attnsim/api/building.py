"""From an implementation to the schedule it runs: on the tiles it ships, a given one, or the best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from attnsim.api.choosing import Conditions
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.errors import InputError
from attnsim.models.hardware.figure import fields_of
from attnsim.models.hardware.files import builtin_gpu_ids, load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.sections import Sm
from attnsim.models.implementations.frameworks.naive import FORMS
from attnsim.models.implementations.frameworks.naive import peak_memory_bytes as naive_peak_bytes
from attnsim.models.implementations.fused.fits import KEYS, ROWS, accumulators_that_fit
from attnsim.models.implementations.fused.forward import flash_peak_bytes
from attnsim.models.implementations.implementation import Implementation, Shape, Staged
from attnsim.models.implementations.own.naive import peak_memory_bytes as own_naive_peak_bytes
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.occupancy import occupancy
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.models.schedule.widths import padded
from attnsim.simulator.machine import PS, machine
from attnsim.simulator.replay import Replay, replay

REPLAYED_CANDIDATES = 12
"""Tiles that a retuning replays, after a simple estimate has sorted all that fit."""


def peak_bytes(record: Implementation, w: Workload) -> int:
    """Least memory of a call, without building its schedule (partial results of split-KV left out)."""
    if record.peak_bytes is not None:
        return record.peak_bytes(w)
    if record.family == "naive":
        return naive_peak_bytes(w, FORMS[record.form]) if record.form else own_naive_peak_bytes(w)
    return flash_peak_bytes(w)


def tunable(record: Implementation) -> bool:
    """Whether an implementation has a tile that can be chosen."""
    return record.family not in ("naive", "flash-1", "linear", "performer", "linformer", "efficient", "mla")


def play(
    record: Implementation, w: Workload, gpu: Gpu, numbers: Numbers, conditions: Conditions
) -> tuple[Schedule, Replay]:
    """Build the schedule that the conditions ask for and replay it.

    Raises
    ------
    InputError
        When a tile does not fit the GPU.
    """
    if conditions.tiles == "retuned" and tunable(record) and "fwd" in w.directions:
        return _retuned(record, w, gpu, numbers, conditions)
    schedule = scheduled(record, w, gpu, conditions)
    return schedule, _replay(schedule, gpu, numbers, conditions)


def scheduled(record: Implementation, w: Workload, gpu: Gpu, conditions: Conditions) -> Schedule:
    """The schedule that the conditions ask for, where no replay has to choose its tile.

    Raises
    ------
    InputError
        When a tile does not fit the GPU.
    """
    if conditions.tiles == "retuned" and tunable(record):
        schedule = record.build(w, gpu, None)  # backward tiles are those the code would choose on this chip
    elif conditions.tile is not None:
        schedule = _given(record, w, gpu, conditions.tile)
    else:
        schedule = shipped(record, w, gpu)
    _check_paths(record, schedule, gpu)
    return schedule


def shipped(record: Implementation, w: Workload, gpu: Gpu) -> Schedule:
    """The schedule with the tiles and the occupancy of the real implementation on the unchanged GPU.

    Tiles depend on shared memory, registers and thread limits, and those are the unchanged GPU's; split rules
    see the changed number of SMs, as the real code would ask for it.

    Raises
    ------
    InputError
        When the shipped tile no longer fits.
    """
    base = _tile_gpu(gpu)
    if base is gpu:
        return record.build(w, gpu, None)
    schedule = record.build(w, base, None)
    kernels = tuple(
        replace(kernel, max_blocks_per_sm=occupancy(kernel, base).blocks_per_sm) for kernel in schedule.kernels
    )
    try:
        for kernel in kernels:
            occupancy(kernel, gpu)
    except InputError as error:
        advice = "; --tiles retuned takes the best that fits" if tunable(record) else ""
        raise InputError(f"{error}{advice}") from None
    return replace(schedule, kernels=kernels)


def _tile_gpu(gpu: Gpu) -> Gpu:
    """`gpu` with the unchanged GPU's limits on what a block may hold."""
    if not gpu.changes or gpu.base_id not in builtin_gpu_ids():
        return gpu
    base = load_gpu(gpu.base_id)
    limits = {one.attribute: getattr(base.sm, one.attribute) for one in fields_of(Sm).values() if one.read == "limit"}
    limited = replace(gpu.sm, **limits)
    return gpu if limited == gpu.sm else replace(gpu, sm=limited)


def _given(record: Implementation, w: Workload, gpu: Gpu, shape: tuple[int, int]) -> Schedule:
    if w.directions != ("fwd", "bwd"):
        schedule = record.build(w, gpu, shape)
    else:
        schedule = _with_shipped_backward(record, record.build(w.with_passes("fwd"), gpu, shape), w, gpu)
    if any(kernel.path == "wgmma" for kernel in schedule.kernels) and shape[0] % 64:
        raise InputError(f"tile is {shape[0]}x{shape[1]}; {record.name} needs rows in steps of 64, one warpgroup each")
    return schedule


def _with_shipped_backward(record: Implementation, forward: Schedule, w: Workload, gpu: Gpu) -> Schedule:
    """A forward schedule followed by the backward kernels that the implementation ships for the GPU."""
    backward = record.build(w.with_passes("bwd"), gpu, None)
    return replace(
        forward,
        kernels=(*forward.kernels, *backward.kernels),
        tile=f"{forward.tile}; {backward.tile}",
        peak_memory_bytes=max(forward.peak_memory_bytes, flash_peak_bytes(w)),
        notes=tuple(dict.fromkeys((*forward.notes, *backward.notes))),
    )


def _retuned(
    record: Implementation, w: Workload, gpu: Gpu, numbers: Numbers, conditions: Conditions
) -> tuple[Schedule, Replay]:
    """The fastest of the shipped tile and the most promising others that fit, by the fast replay.

    All tiles that fit are sorted by :func:`_estimate`; `REPLAYED_CANDIDATES` of them are replayed.
    """
    forward = w.with_passes("fwd") if w.passes == "fwd+bwd" else w
    choices = [one.schedule for one in fitting(record, forward, gpu, numbers)[:REPLAYED_CANDIDATES]]
    try:
        own = record.build(forward, gpu, None)
        for kernel in own.kernels:
            occupancy(kernel, gpu)
        choices.append(own)
    except InputError:
        if not choices:
            raise
    _check_paths(record, choices[0], gpu)
    fast = replace(conditions, mode="fast")
    played = [(schedule, _replay(schedule, gpu, numbers, fast)) for schedule in choices]
    best, result = min(played, key=lambda pair: pair[1].time_s)
    if forward is not w:
        best = _with_shipped_backward(record, best, w, gpu)
    elif conditions.mode == "fast":
        return best, result
    return best, _replay(best, gpu, numbers, conditions)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tile that fits: its query rows x keys, a rough time in seconds, and its schedule."""

    shape: Shape
    estimate_s: float
    schedule: Schedule


def fitting(
    record: Implementation, w: Workload, gpu: Gpu, numbers: Numbers, stages: Sequence[int] = ()
) -> list[Candidate]:
    """All tiles of a forward implementation that fit the GPU, the most promising by :func:`_estimate` first.

    With `stages`, every tile with each number of buffers of K and V; else with the implementation's own.
    """
    found = []
    for shape in _shapes(stages):
        try:
            schedule = record.build(w, gpu, shape)
            if _in_registers(schedule, w, gpu, shape):
                found.append(Candidate(shape, _estimate(schedule, gpu, numbers), schedule))
        except InputError:
            continue  # does not fit: that is what is being found out
    return sorted(found, key=lambda one: one.estimate_s)


def _shapes(stages: Sequence[int]) -> Iterator[Shape]:
    for rows, keys in product(ROWS, KEYS):
        if not stages:
            yield rows, keys
        for count in stages:
            yield Staged(rows, keys, count)


def _main(schedule: Schedule) -> Kernel:
    return max(schedule.kernels, key=lambda kernel: kernel.total("flops"))


def _in_registers(schedule: Schedule, w: Workload, gpu: Gpu, shape: Shape) -> bool:
    """Whether the fp32 accumulators of O and S fit the registers; not the same sum as the retuned tiles' `fits`."""
    main = _main(schedule)
    threads = main.warpgroups * 128 if main.path == "wgmma" else main.threads  # loading warps hold none
    accumulators = shape[0] * (padded(w.head_dim_v) + shape[1]) // threads
    return main.path == "tcgen05" or accumulators <= accumulators_that_fit(threads, gpu)


def _estimate(schedule: Schedule, gpu: Gpu, numbers: Numbers) -> float:
    """Seconds of the main kernel, roughly: busiest unit, step latencies shared by residents, whole waves."""
    kernel = _main(schedule)
    costs = machine(kernel, gpu, numbers)
    slots = gpu.sm.count * occupancy(kernel, gpu).blocks_per_sm
    tensor = kernel.total("flops") * costs.flop + kernel.total("smem_bytes") * costs.smem_byte * costs.smem_exposed
    fp32 = kernel.total("scores") * costs.softmax_instructions + kernel.total("fp32")
    vector = kernel.total("exps") * costs.exp + fp32 * costs.fp32
    steps = sum(
        int(n) * sum(op.kind == "delay" and op.tensor == "step" for op in segment.ops)
        for n, segment in zip(kernel.executions, kernel.segments, strict=True)
    )
    compute = (max(tensor, vector) + costs.interference * min(tensor, vector)) / gpu.sm.count
    waves = kernel.blocks / slots
    ragged = -(-kernel.blocks // slots) / waves if not kernel.persistent and waves < 8 else 1.0
    # A warpgroup's latency hides under what the others do meanwhile.
    groups = slots / gpu.sm.count * kernel.warpgroups
    hidden = max(compute, compute / groups + steps * costs.step / slots)
    return max((hidden + kernel.blocks * costs.block / slots) * ragged, kernel.total("bytes") * costs.l2_byte) / PS


def _check_paths(record: Implementation, schedule: Schedule, gpu: Gpu) -> None:
    for kernel in schedule.kernels:
        for path, present in (("wgmma", gpu.features.wgmma), ("tcgen05", gpu.features.tcgen05)):
            if kernel.path == path and not present:
                raise InputError(
                    f"{record.name} needs {path}, which {gpu.id} with features.{path} = false lacks; "
                    "nearest it can: flash_attn_v2"
                )


def _replay(schedule: Schedule, gpu: Gpu, numbers: Numbers, conditions: Conditions) -> Replay:
    return replay(schedule, gpu, numbers, mode=conditions.mode, cache=conditions.cache, launch=conditions.launch)
