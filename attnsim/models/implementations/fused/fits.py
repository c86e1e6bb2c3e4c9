"""Which tiles fit a GPU: the refusal of one that does not, and the candidates for a retuned one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.tile import FlashTile, with_tile
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.buffers import check_shared_memory

ROWS = (64, 128, 192, 256)
KEYS = (32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256)
ACCUMULATOR_REGISTERS = 200
"""fp32 accumulators a thread may hold beside addresses and fragments, of 255 registers."""
_MOST_REGISTERS = 255


def accumulators_that_fit(threads: int, gpu: Gpu) -> int:
    """fp32 accumulators per thread that fit the register file when the block has `threads` computing threads."""
    return ACCUMULATOR_REGISTERS * min(_MOST_REGISTERS, gpu.sm.registers // threads) // _MOST_REGISTERS


def fits(tile: FlashTile, w: Workload, gpu: Gpu) -> bool:
    """Whether a tile's buffers fit shared memory and its accumulators the registers."""
    d, dv = tile.compiled(w)
    in_registers = tile.path == "tcgen05" or _accumulators(tile, dv) <= accumulators_that_fit(tile.warps * 32, gpu)
    small = tile.shared_memory_bytes(d, dv, w.element_bytes) <= gpu.sm.shared_memory_per_block_bytes
    return small and in_registers


def _accumulators(tile: FlashTile, dv: int) -> int:
    """fp32 accumulators of O and S that a thread holds."""
    return tile.rows * (dv + tile.keys) // (tile.warps * 32)


def candidates(tile: FlashTile, w: Workload, gpu: Gpu) -> Iterator[FlashTile]:
    """Tiles of the same kernel that fit `gpu`, those of the most similar rows and then keys first."""
    rows = [r for r in ROWS if r % 64 == 0] if tile.path != "mma_sync" else [r for r in ROWS if r <= 128]
    for shape in sorted(product(rows, KEYS), key=lambda one: (abs(one[0] - tile.rows), abs(one[1] - tile.keys))):
        other = with_tile(tile, TileRequest(*shape), gpu)
        if fits(other, w, gpu):
            yield other


def check_tile(tile: FlashTile, w: Workload, gpu: Gpu) -> None:
    """Refuse a tile that does not fit.

    Raises
    ------
    InputError
        Naming the buffers, the limit and the nearest tile that fits.
    """
    if fits(tile, w, gpu):
        return
    d, dv = tile.compiled(w)
    needed = tile.shared_memory_bytes(d, dv, w.element_bytes)
    near = next(candidates(tile, w, gpu), None)
    advice = f"{near.rows} x {near.keys} fits" if near else "no tile of this kernel fits; take --algorithm naive"
    stages = f" with {tile.stages} stages" if tile.stages > 1 else ""
    what = f"the tile {tile.rows} x {tile.keys} at head_dim {w.head_dim}{stages}"
    if needed <= gpu.sm.shared_memory_per_block_bytes:
        raise InputError(
            f"Registers: {what} needs {_accumulators(tile, dv)} accumulators a thread in {tile.warps} warps, about "
            f"{accumulators_that_fit(tile.warps * 32, gpu)} fit beside the rest; {advice}"
        )
    check_shared_memory(what, tile.buffers(d, dv, w.element_bytes), gpu, advice)
