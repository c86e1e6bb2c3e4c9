"""From an implementation to the schedule it runs: on the tiles it ships, or on a given one."""

from __future__ import annotations

from dataclasses import replace

from attnsim.api.asking import Conditions
from attnsim.models.errors import InputError
from attnsim.models.hardware.figure import fields_of
from attnsim.models.hardware.files import builtin_gpu_ids, load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.sections import Sm
from attnsim.models.implementations.fused.forward import flash_peak_bytes
from attnsim.models.implementations.fused.tile import FusedTiles
from attnsim.models.implementations.host import host_s
from attnsim.models.implementations.implementation import Implementation, TileRequest
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.occupancy import occupancy
from attnsim.models.schedule.schedule import Schedule

LIMITS = tuple(one.attribute for one in fields_of(Sm).values() if one.read == "limit")
"""What a block may hold: figures of an SM."""


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
        schedule = record.build(w, gpu, None)  # backward tiles are those the code would choose on this chip
    elif conditions.tile is not None:
        schedule = _given(record, w, gpu, conditions.tile)
    else:
        schedule = shipped(record, w, gpu)
    check_paths(record, schedule, gpu)
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
        advice = "; --tiles retuned takes the best that fits" if record.tunable else ""
        raise InputError(f"{error}{advice}") from None
    return replace(schedule, kernels=kernels)


def _tile_gpu(gpu: Gpu) -> Gpu:
    """`gpu` with the unchanged GPU's limits on what a block may hold."""
    if not gpu.changes or gpu.base_id not in builtin_gpu_ids():
        return gpu
    base = load_gpu(gpu.base_id)
    limits = {name: getattr(base.sm, name) for name in LIMITS}
    same = all(getattr(gpu.sm, name) == limit for name, limit in limits.items())
    return gpu if same else replace(gpu, sm=replace(gpu.sm, **limits))


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
    assert isinstance(forward.tile, FusedTiles) and isinstance(backward.tile, FusedTiles)  # others refuse a tile
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
    """
    for kernel in schedule.kernels:
        for path, present in (("wgmma", gpu.features.wgmma), ("tcgen05", gpu.features.tcgen05)):
            if kernel.path == path and not present:
                raise InputError(
                    f"{record.name} needs {path}, which {gpu.id} with features.{path} = false lacks; "
                    "nearest it can: flash-attn.2"
                )
