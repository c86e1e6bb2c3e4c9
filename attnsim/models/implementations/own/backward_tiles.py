"""Tiles of our backward kernels. The operation that launches them and the schedule that stands for it both ask here."""

from __future__ import annotations

from dataclasses import dataclass

from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.implementations.own.resources import ELEMENT, asked_for
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.buffers import Buffers, bytes_of, check_shared_memory

NAME = "attnsim.flash-backward"
ROW_DOTS, MAIN, CONVERT = "backward_row_dots", "backward_main", "backward_convert"
WARPS = 8
THREADS = 32 * WARPS
STAGES = 2
PIECE = 8
"""Elements that a thread loads at a time."""


@dataclass(frozen=True, slots=True)
class OwnBackwardTile:
    """One compilation of the kernels.

    Parameters
    ----------
    head_dim : int
    rows, keys : int
        Queries of a step, and keys of a block.
    """

    head_dim: int
    rows: int
    keys: int

    @property
    def buffers(self) -> Buffers:
        """Shared-memory buffers of a block of the main kernel and their bytes."""
        return (
            ("K, V", 2 * self.keys * self.head_dim * 2),
            ("P, dS", 2 * self.rows * self.keys * 2),
            ("Q, dO", STAGES * 2 * self.rows * self.head_dim * 2),
            ("LSE, D", STAGES * 2 * self.rows * 4),
        )

    @property
    def shared_memory_bytes(self) -> int:
        """Sum of the buffers."""
        return bytes_of(self.buffers)

    @property
    def sums_bytes(self) -> int:
        """The fp32 sums of dQ of a tile of queries, missing rows of the last tile included."""
        return self.rows * self.head_dim * 4

    @property
    def row_numbers_bytes(self) -> int:
        """What all threads read of shared memory to have one number of each of their rows of a tile of scores."""
        return THREADS * (2 * self.rows // (16 * _downs(self.rows, self.keys))) * 4

    def constants(self, dtype: str) -> tuple[tuple[str, int | str], ...]:
        """Compile-time constants of the kernels."""
        return (
            ("ELEMENT", ELEMENT[dtype]),
            ("HEAD_DIM", self.head_dim),
            ("BLOCK_M", self.rows),
            ("BLOCK_N", self.keys),
            ("SHARED_BYTES", self.shared_memory_bytes),
        )

    def __str__(self) -> str:
        return f"backward {self.rows} x {self.keys}, {WARPS} warps"


TILES = {
    64: (OwnBackwardTile(64, 128, 128), OwnBackwardTile(64, 64, 128)),
    128: (OwnBackwardTile(128, 64, 128), OwnBackwardTile(128, 32, 64)),
    256: (OwnBackwardTile(256, 64, 64), OwnBackwardTile(256, 32, 64)),
}
"""By head_dim, the one that reads shared memory least first: its scores, dK and dV take 192 of a thread's registers."""


def choose_tile(w: Workload, gpu: Gpu, shape: TileRequest | None = None) -> OwnBackwardTile:
    """The first tile of `TILES` that fits the shared memory of a block.

    Raises
    ------
    InputError
        When the kernels are not written for the workload or not compiled for the tile, or nothing fits.
    """
    if w.head_dim not in TILES or w.head_dim_v != w.head_dim or w.dtype not in ELEMENT or w.dropout:
        raise InputError(
            f"{NAME} has no kernels of {w}{', dropout' if w.dropout else ''}; allowed: head_dim "
            f"{', '.join(map(str, TILES))}, V as wide as K, fp16 or bf16, no dropout"
        )
    if not w.mask.is_band:
        raise InputError(f"{NAME} takes bands (full, causal, a window), not the mask {w.mask}")
    tiles = asked_for(TILES[w.head_dim], shape, NAME, w.head_dim)
    for tile in tiles:
        if tile.shared_memory_bytes <= gpu.sm.shared_memory_per_block_bytes:
            return tile
    least = tiles[-1]
    what = f"the smallest tile of {NAME} at head_dim {w.head_dim}, {least.rows} x {least.keys},"
    check_shared_memory(what, least.buffers, gpu, "take a smaller head_dim")
    return least


def query_tiles(w: Workload, tile: OwnBackwardTile) -> int:
    """Tiles of queries of a head."""
    return -(-w.seq_q // tile.rows)


def sums_bytes(w: Workload, tile: OwnBackwardTile) -> int:
    """The fp32 sums of dQ, whole tiles."""
    return w.batch * w.heads_q * query_tiles(w, tile) * tile.sums_bytes


def operands_read(rows: int, columns: int) -> int:
    """Rows of A and columns of B that the warps read for an output of `rows` x `columns`, on the grid that reads least.

    The rule of ``kernels/cuda/warp_grid.cuh``: rectangles of whole 16 x 16 tiles, all warps side by side reading the
    same rows of A and all warps one below another the same columns of B.
    """
    return _read(rows, columns, _downs(rows, columns))


def _read(rows: int, columns: int, downs: int) -> int:
    return WARPS // downs * rows + downs * columns


def _downs(rows: int, columns: int) -> int:
    """Warps one below another; of two grids that read as much the taller."""
    fit = [n for n in (1, 2, 4, 8) if rows % (16 * n) == 0 and columns % (16 * (WARPS // n)) == 0]
    return min(fit, key=lambda n: (_read(rows, columns, n), -n))
