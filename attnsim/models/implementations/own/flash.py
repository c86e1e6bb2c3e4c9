"""Schedules of two kernels with FlashAttention-2's loop order, on any GPU since sm_80.

They are ``kernels/cuda/flash.cu`` and ``sigmoid.cu``, which has a sigmoid in place of the softmax.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.building import flash_schedule
from attnsim.models.implementations.fused.forward import flash_forward
from attnsim.models.implementations.fused.tile import FlashTile, FusedTiles, Loop
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.implementations.own.resources import (
    ELEMENT,
    OPTIONS,
    asked_for,
    counts_of,
    kernel_label,
    least_clks,
    registers_of,
)
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.operation import TileOp
from attnsim.models.schedule.row_tiles import row_tiles
from attnsim.models.schedule.schedule import Schedule, check_shared_memory, edited

NAME, SIGMOID = "attnsim.flash", "attnsim.sigmoid"
ENTRY, SIGMOID_ENTRY = "flash_forward", "sigmoid_forward"
SIGMOID_OPERATIONS = 2
"""Special-function operations per score of a sigmoid: ``ex2`` and the reciprocal of 1 plus it."""


def _tile(rows: int, keys: int, stages: int, warps: int = 4) -> FlashTile:
    """A tile: FlashAttention-2's own loop if K and V have one buffer each, otherwise a ring."""
    loop: Loop = "fa2" if stages == 1 else "ring"
    return FlashTile(rows, keys, warps, loop, stages, rescale="first", edges_only=True)


TILES: dict[int, tuple[FlashTile, ...]] = {
    64: (_tile(128, 128, 2), _tile(128, 128, 1), _tile(128, 64, 2), _tile(64, 64, 2, warps=2), _tile(64, 64, 2)),
    128: (_tile(128, 64, 2), _tile(128, 64, 1), _tile(128, 32, 1), _tile(64, 64, 1, warps=2), _tile(64, 64, 1)),
    256: (_tile(64, 64, 1), _tile(128, 64, 1, warps=8)),
}
"""Compilations of the kernel by head_dim; the preferred one of equals first.

Up to head_dim 128 a warp has 32 of 128 rows, so that it reads each fragment of K and V once for two products; the
accumulators then take up to 192 registers. The shapes are FlashAttention-2's
(``flash_fwd_launch_template.h`` in ``csrc/flash_attn/src`` of Dao-AILab/flash-attention), with a second buffer if
the SM has room for it.
Up to head_dim 128 those of 64 rows are the sparse kernel's (:mod:`attnsim.models.implementations.own.sparse`),
for grids of few blocks."""
LEAN = {**TILES, 64: tuple(tile for tile in TILES[64] if (tile.keys, tile.stages) != (128, 1))}
"""Compilations without register spills in kernels with more work per score."""


def constants(dtype: str, head_dim: int, tile: FlashTile, options: bool = False) -> tuple[tuple[str, int | str], ...]:
    """Compile-time constants of the kernel for a tile; `options`: of the compilation with options of a call."""
    return (
        ("ELEMENT", ELEMENT[dtype]),
        ("HEAD_DIM", head_dim),
        ("BLOCK_M", tile.rows),
        ("BLOCK_N", tile.keys),
        ("WARPS", tile.warps),
        ("STAGES", tile.stages),
        *(OPTIONS if options else ()),
    )


def able_tiles(
    w: Workload, gpu: Gpu, shape: TileRequest | None = None, compiled: Mapping[int, tuple[FlashTile, ...]] = TILES
) -> list[FlashTile]:
    """The tiles, or those of the requested shape, that fit `gpu`; along a diagonal they are at most two squares tall.

    The launch order is longest first if row tiles differ in length.

    Raises
    ------
    InputError
        If the kernel is not compiled for the width or the shape, or no tile fits.
    """
    if w.head_dim not in compiled or w.head_dim_v != w.head_dim:
        allowed = ", ".join(map(str, compiled))
        raise InputError(f"{NAME} has head_dim {allowed} for K and V alike, not {w.head_dim}/{w.head_dim_v}")
    tiles = asked_for(compiled[w.head_dim], shape, NAME, w.head_dim)
    able = [tile for tile in tiles if shared_memory_bytes(w.head_dim, tile) <= gpu.sm.shared_memory_per_block_bytes]
    if not able:
        least = min(tiles, key=lambda tile: shared_memory_bytes(w.head_dim, tile))
        buffers = least.buffers(w.head_dim, w.head_dim, 2)
        check_shared_memory(f"{NAME} at head_dim {w.head_dim}", buffers, gpu)
    differ = w.mask.within(w.seq_q, w.seq_kv).right is not None
    if differ and shape is None:
        able = [tile for tile in able if tile.rows <= 2 * tile.keys]
    return [replace(tile, order="longest_first" if differ else "ascending") for tile in able]


def choose_tile(
    w: Workload, gpu: Gpu, shape: TileRequest | None = None, compiled: Mapping[int, tuple[FlashTile, ...]] = TILES
) -> FlashTile:
    """The tile with the least time by :func:`least_clks` on the unchanged GPU; the first of equals.

    Raises
    ------
    InputError
        See :func:`able_tiles`.
    """
    return min(able_tiles(w, gpu, shape, compiled), key=lambda tile: _least_clks(w, gpu.tiled_for, tile))


def _least_clks(w: Workload, gpu: Gpu, tile: FlashTile) -> float:
    """Clocks of the grid on a tile."""
    label = kernel_label(ENTRY, constants(w.dtype, w.head_dim, tile))
    shared = gpu.sm.shared_memory_bytes // (shared_memory_bytes(w.head_dim, tile) + gpu.sm.shared_memory_reserved_bytes)
    residents = max(1, min(shared, gpu.sm.registers // (tile.threads * registers_of(label, gpu, tile.threads))))
    visits = row_tiles(w, tile.rows, tile.keys).steps
    return least_clks(w, gpu, tile, counts_of(label, gpu), residents, visits, w.batch * w.heads_q)


def shared_memory_bytes(head_dim: int, tile: FlashTile) -> int:
    """Dynamic shared memory of a block: Q and the buffers of K and V."""
    return tile.shared_memory_bytes(head_dim, head_dim, 2)


def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """Schedule of the forward kernel.

    Raises
    ------
    InputError
        See :func:`able_tiles`.
    """
    return schedule_of(w, gpu, choose_tile(w, gpu, shape, LEAN if w.options else TILES))


def schedule_of(w: Workload, gpu: Gpu, tile: FlashTile) -> Schedule:
    """Schedule of the forward kernel on a tile."""
    label, compiled = (
        kernel_label(ENTRY, constants(w.dtype, w.head_dim, tile, one)) for one in (False, bool(w.options))
    )
    tile = replace(tile, registers=registers_of(compiled, gpu, tile.threads), counts=counts_of(label, gpu))
    return flash_schedule(w, NAME, [flash_forward(w, gpu, tile, ENTRY)], FusedTiles(tile))


def build_sigmoid(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """Schedule of the forward kernel of sigmoid attention.

    Raises
    ------
    InputError
        See :func:`able_tiles`.
    """
    tile = replace(choose_tile(w, gpu, shape, LEAN), rescale="seldom")
    label = kernel_label(SIGMOID_ENTRY, constants(w.dtype, w.head_dim, tile))
    tile = replace(tile, registers=registers_of(label, gpu, tile.threads), counts=counts_of(label, gpu))
    kernel = edited(flash_forward(w, gpu, tile, SIGMOID_ENTRY, lse=False), _weighed)
    return flash_schedule(w, SIGMOID, [kernel], str(tile))


def _weighed(op: TileOp) -> TileOp:
    return op._replace(exps=SIGMOID_OPERATIONS * op.scores) if op.kind == "vector" else op


RECORD = record(NAME, build)
SIGMOID_RECORD = record(SIGMOID, build_sigmoid)
