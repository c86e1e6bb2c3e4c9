"""Common parts of fused implementations' builders: the schedule around their kernels, and requested tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.backward import flash_backward
from attnsim.models.implementations.fused.forward import flash_forward, flash_peak_bytes, partial_rows
from attnsim.models.implementations.fused.splits import combine
from attnsim.models.implementations.fused.tile import BackwardTile, FlashTile, FusedTiles, check_tile, with_tile
from attnsim.models.implementations.implementation import Builder, TileRequest
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.row_tiles import padded
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.models.schedule.splits import UNCUT, Splits


def flash_schedule(
    w: Workload,
    name: str,
    kernels: list[Kernel],
    tile: object,
    splits: Splits = UNCUT,
    notes: tuple[str, ...] = (),
) -> Schedule:
    """The kernels of implementation `name` as a schedule, with its peak memory."""
    partial = w.heads_q * partial_rows(w, splits) * (w.head_dim_v + 1) * 4
    algorithm = "sliding-window" if w.mask.is_windowed else "split-kv" if splits.partial else "flash"
    useful = w.matrix_flops(w.visible_pairs)
    return Schedule(algorithm, name, tuple(kernels), tile, flash_peak_bytes(w, partial), notes, splits, useful)


def one_query(w: Workload) -> Workload:
    """Drop causal masking for a single query, from which it hides nothing; FlashAttention does so."""
    if w.seq_q == 1 and w.mask.right == 0:
        return replace(w, mask=Mask(left=w.mask.left))
    return w


def alike(w: Workload, name: str, instead: str) -> Workload:
    """Refuse sequences with different numbers of queries, for a kernel whose Q is one dense tensor."""
    queries = [one.queries for one in w.parts]
    if min(queries) < max(queries):
        raise InputError(
            f"{name} takes as many queries of every sequence, they are {min(queries)} to {max(queries)}; give each the "
            f"same, or take {instead}"
        )
    return w


def override(tile: FlashTile, shape: TileRequest | None, w: Workload, gpu: Gpu) -> FlashTile:
    """The requested tile in place of the implementation's, refused if its buffers do not fit."""
    chosen = tile if shape is None else with_tile(tile, shape, gpu)
    check_tile(chosen, w, gpu)
    return chosen


def fa2_combine(w: Workload, splits: int) -> Kernel:
    """FA2's combine kernel: 4, 8 or 16 rows per block by the width of V."""
    d = padded(w.head_dim_v)
    return combine(w, splits, 4 if d % 128 == 0 else 8 if d % 64 == 0 else 16, 128)


def override_backward(tile: BackwardTile, shape: TileRequest | None) -> BackwardTile:
    """The requested tile in place of the implementation's backward tile."""
    return tile if shape is None else replace(tile, rows=shape.rows, keys=shape.keys)


def fitting(tile: FlashTile, w: Workload, gpu: Gpu) -> FlashTile:
    """The tile with its keys halved until it fits shared memory."""
    d, dv = padded(w.head_dim), padded(w.head_dim_v)
    while tile.shared_memory_bytes(d, dv, w.element_bytes) > gpu.sm.shared_memory_per_block_bytes and tile.keys > 16:
        tile = replace(tile, keys=tile.keys // 2)
    return tile


def one_kernel_each_way(
    name: str, forward: Callable[[Workload, Gpu], FlashTile], backward: Callable[[Workload, Gpu], BackwardTile]
) -> Builder:
    """Builder of a fused implementation with one forward kernel and FA2-like backward kernels."""

    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        def attended() -> Attended:
            w_main = one_query(w)
            tile = override(forward(w_main, gpu), shape, w_main, gpu)
            return [flash_forward(w_main, gpu, tile)], tile, UNCUT

        return each_way(w, name, shape, attended, lambda: backward(w, gpu))

    return build


Attended = tuple[list[Kernel], FlashTile, Splits]
"""The kernels of a forward pass, their tile, and the splits of the keys."""


def each_way(
    w: Workload,
    name: str,
    shape: TileRequest | None,
    forward: Callable[[], Attended],
    backward: Callable[[], BackwardTile],
    run_backward: Callable[[Workload, BackwardTile], Sequence[Kernel]] = flash_backward,
    notes: tuple[str, ...] = (),
) -> Schedule:
    """Kernels of the requested passes; `backward` returns the tile that a requested one replaces."""
    kernels, tile, splits = forward() if "fwd" in w.directions else ([], None, UNCUT)
    back = override_backward(backward(), shape) if "bwd" in w.directions else None
    kernels = [*kernels, *(run_backward(w, back) if back else ())]
    return flash_schedule(w, name, kernels, FusedTiles(tile, back), splits, notes)
