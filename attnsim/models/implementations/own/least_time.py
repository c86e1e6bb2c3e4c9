"""The least time that a fused kernel takes on one of its tiles: by it our dense and our sparse kernel choose theirs."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from attnsim.models.arrays import Ints
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.question.workload import Workload


class _Tile(Protocol):
    """A tile of queries x keys, whose rows its warps share out."""

    @property
    def rows(self) -> int: ...
    @property
    def keys(self) -> int: ...
    @property
    def warps(self) -> int: ...


def least_clks(w: Workload, gpu: Gpu, tile: _Tile, residents: int, visits: Ints, heads: int) -> tuple[float, float]:
    """Clocks of the busiest SM; where these are alike, of all visits spread over SMs that want two warps a scheduler.

    The busiest of tensor cores, L2 and shared memory is all that limits the visits of an SM's blocks together. Within a
    warp products and exponentials follow one another; where a scheduler has several, one's run under another's. Of the
    first k n + 1 of the blocks, longest first, one of n SMs has at least k + 1: a grid is not done before its longest
    block, nor before an SM that has one block more than others.

    Parameters
    ----------
    w : Workload
    gpu : Gpu
    tile : Tile
    residents : int
        Blocks that share an SM.
    visits : ndarray
        Key tiles that each row tile of a head visits.
    heads : int
        Heads of the whole batch.
    """
    rate = gpu.tensor_flops_per_clk(w.dtype) * gpu.tensor.mma_sync_fraction
    l2 = gpu.l2.bandwidth_bytes_per_s / gpu.clock.full_hz / gpu.sm.count
    row = w.head_dim * w.element_bytes
    products = 4 * tile.rows * tile.keys * w.head_dim / rate
    together = max(
        products,
        2 * tile.keys * row / l2,
        (2 * tile.warps * tile.keys + tile.rows) * row / gpu.sm.shared_memory_bytes_per_clk,
    )
    alone = (products + tile.rows * tile.keys / gpu.sm.exp_per_clk) * min(1.0, gpu.sm.warp_schedulers / tile.warps)
    longest = np.sort(visits)[::-1]
    others = np.arange((len(visits) * heads - 1) // gpu.sm.count + 1)
    least = longest[others * gpu.sm.count // heads]
    busiest = least * np.maximum((others + 1) * together, (others // residents + 1) * alone)
    spread = float(visits.sum()) * heads * max(together, alone / residents) / gpu.sm.count
    scarce = max(1.0, 2 * gpu.sm.warp_schedulers / (tile.warps * residents))
    return max(float(busiest.max()), spread), spread * scarce
