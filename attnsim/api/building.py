"""From an implementation to the schedule it runs: on the tiles it ships, or on a given one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from attnsim.api.asking import Conditions
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Change, Gpu
from attnsim.models.hardware.sections import FIELDS, Sm, fields_of
from attnsim.models.implementations.fused.forward import flash_peak_bytes
from attnsim.models.implementations.fused.tile import FusedTiles
from attnsim.models.implementations.implementation import Builder, Implementation, TileRequest
from attnsim.models.implementations.options import host_s
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.occupancy import occupancy
from attnsim.models.schedule.schedule import Schedule

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
