"""Tiles of our decoding kernel, what of the keys they see, and into how many ranges the keys are cut.

The operation that launches the kernel and the schedule that stands for it both ask here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.splits import MAX_SPLITS
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.implementations.own.resources import ELEMENT, asked_for
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.buffers import Buffers, bytes_of, check_shared_memory
from attnsim.models.schedule.occupancy import SHARED_MEMORY_UNIT
from attnsim.models.schedule.row_tiles import visible_keys

NAME = "attnsim.decode"
ROWS = 16
"""Packed rows of a block, row ``r`` being query ``r // group`` of head ``r % group``."""
SLICE = 16
"""Keys that a warp loads and multiplies at a time."""


@dataclass(frozen=True, slots=True)
class DecodeTile:
    """One compilation of the split kernel.

    Parameters
    ----------
    head_dim : int
    warps : int
        Each takes `SLICE` keys of a step.
    stages : int
        Slices of K and of V in a warp's ring.
    residents : int
        Blocks on an SM from which the tile is worth choosing.
    """

    head_dim: int
    warps: int
    stages: int
    residents: int

    @property
    def rows(self) -> int:
        """Packed rows of a block."""
        return ROWS

    @property
    def keys(self) -> int:
        """Keys of a block's step."""
        return SLICE * self.warps

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def buffers(self) -> Buffers:
        """Shared-memory buffers of a block and their bytes."""
        return (("Q", ROWS * self.head_dim * 2), ("K", self.ring_bytes // 2), ("V", self.ring_bytes // 2))

    @property
    def ring_bytes(self) -> int:
        """Bytes of K and V that a block can have in flight."""
        return 2 * self.stages * self.keys * self.head_dim * 2

    @property
    def shared_memory_bytes(self) -> int:
        """Sum of the buffers."""
        return bytes_of(self.buffers)

    def blocks_per_sm(self, gpu: Gpu) -> int:
        """Blocks that shared memory, the scarce resource here, lets reside on an SM."""
        if self.shared_memory_bytes > gpu.sm.shared_memory_per_block_bytes:
            return 0
        unit = SHARED_MEMORY_UNIT
        block = -(-self.shared_memory_bytes // unit) * unit + gpu.sm.shared_memory_reserved_bytes
        return gpu.sm.shared_memory_bytes // block

    def constants(self, dtype: str) -> tuple[tuple[str, int | str], ...]:
        """Compile-time constants of the kernel."""
        head_dim, warps, stages = ("HEAD_DIM", self.head_dim), ("WARPS", self.warps), ("STAGES", self.stages)
        return (("ELEMENT", ELEMENT[dtype]), head_dim, warps, stages)

    def __str__(self) -> str:
        return f"{ROWS} x {self.keys}, {self.warps} warps, {self.stages} stages, GQA packed"


TILES = {
    64: (DecodeTile(64, 4, 4, 2), DecodeTile(64, 4, 2, 1)),
    128: (DecodeTile(128, 4, 3, 2), DecodeTile(128, 4, 2, 1)),
    256: (DecodeTile(256, 4, 3, 1), DecodeTile(256, 4, 2, 1), DecodeTile(256, 2, 2, 1)),
}
"""By head_dim, most bytes in flight first."""
IN_FLIGHT = by_hand(4.0, "copies kept in flight over what Little's law asks for (bandwidth x latency)")
"""Latency about doubles when HBM is busy, and a warp computes on a part of its ring instead of waiting for it."""


def choose_tile(w: Workload, gpu: Gpu, shape: TileRequest | None = None) -> DecodeTile:
    """The first tile of `TILES` that fits `gpu` as often as it asks for, or that fits at all.

    Raises
    ------
    InputError
        When the kernel is not written for the workload or not compiled for the tile, or nothing fits.
    """
    check_takes(w)
    tiles = asked_for(TILES[w.head_dim], shape, NAME, w.head_dim)
    for tile in tiles:
        if tile.blocks_per_sm(gpu) >= tile.residents:
            return tile
    smallest = tiles[-1]
    check_shared_memory(f"{NAME} at head_dim {w.head_dim}", smallest.buffers, gpu)
    return smallest


def check_takes(w: Workload) -> None:
    """Refuse a workload that the kernel is not written for.

    Raises
    ------
    InputError
    """
    if w.head_dim not in TILES or w.head_dim_v != w.head_dim or w.dtype not in ELEMENT or w.dropout:
        raise InputError(
            f"{NAME} has no kernels of {w}{', dropout' if w.dropout else ''}; allowed: head_dim "
            f"{', '.join(map(str, TILES))}, V as wide as K, fp16 or bf16, no dropout"
        )
    if not w.mask.is_band:
        raise InputError(f"{NAME} takes bands (full, causal, a window), not the mask {w.mask}; take attnsim.sparse")


def choose_splits(w: Workload, gpu: Gpu, tile: DecodeTile) -> int:
    """How many ranges to cut the keys into: the fewest within 5 % of the best bandwidth.

    What counts is the share of the time in which enough blocks run to keep HBM busy. One or two an SM do;
    ``split_count``, FlashAttention's rule for kernels bound by their multiplications, would fill every slot and pay for
    it with partial results. So a last wave takes its share of the slots' time, but no less than the blocks that HBM
    needs; and all blocks wait for those with one key tile more than the others.
    """
    w = reachable(w)
    blocks = w.batch * w.heads_kv * row_tiles(w)
    slots = gpu.sm.count * max(1, tile.blocks_per_sm(gpu))
    first, stop = tile_range(w, tile.keys)
    key_tiles = max(1, int((stop - first).max()))
    counts = np.arange(1, min(MAX_SPLITS, key_tiles) + 1)
    waves = blocks * counts / slots
    last = waves - np.floor(waves)
    busy = waves / (np.floor(waves) + np.where(last > 0, np.maximum(last, _saturating(tile, gpu) / slots), 0))
    even = key_tiles / (counts * -(-key_tiles // counts))
    return int(counts[np.argmax(busy * even >= 0.95 * (busy * even).max())])


def _saturating(tile: DecodeTile, gpu: Gpu) -> float:
    """Blocks that keep HBM busy: `IN_FLIGHT` times bandwidth x latency in their rings, and one an SM at least."""
    latency_s = gpu.hbm.latency_clk / gpu.clock.full_hz
    needed = IN_FLIGHT * gpu.hbm.bandwidth_bytes_per_s * latency_s / tile.ring_bytes
    return min(max(needed, gpu.sm.count), gpu.sm.count * max(1, tile.blocks_per_sm(gpu)))


def reachable(w: Workload) -> Workload:
    """The workload without limits of its mask that hide nothing: one query sees all that is causally before it."""
    mask = w.mask.within(w.seq_q, w.seq_kv)
    right = None if mask.right is not None and mask.right >= w.seq_q - 1 else mask.right
    return replace(w, mask=replace(mask, right=right))


def row_tiles(w: Workload) -> int:
    """Tiles of packed rows of a key head."""
    return -(-w.seq_q * w.group // ROWS)


def check_splits(splits: int) -> None:
    """Refuse a number of splits that the combine kernel's warps cannot hold.

    Raises
    ------
    InputError
    """
    if isinstance(splits, bool) or not isinstance(splits, int | np.integer) or not 1 <= splits <= MAX_SPLITS:
        raise InputError(f"splits is {splits!r}; allowed: a whole number from 1 to {MAX_SPLITS}, or None to choose")


def queries(w: Workload) -> tuple[Ints, Ints]:
    """First and last query of each row tile."""
    first = np.arange(row_tiles(w), dtype=np.int64) * ROWS
    return first // w.group, (np.minimum(first + ROWS, w.seq_q * w.group) - 1) // w.group


def tile_range(w: Workload, keys: int) -> tuple[Ints, Ints]:
    """Half-open range of key tiles that each row tile sees."""
    low, high = visible_keys(w, *queries(w))
    return low // keys, -(-high // keys)
