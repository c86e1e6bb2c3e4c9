"""Least time of a fused kernel on one of its tiles, by which our dense and our sparse kernel choose theirs."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import MMA_SYNC_STALL
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import StepCounts, product
from attnsim.models.schedule.operation import TileOp

STEP_CLKS = by_hand(2250, "clocks that a step waits: FlashAttention-2's forward 1,956 on A100 and 2,558 on H100")


class _Tile(Protocol):
    """A tile of queries x keys, whose rows its warps divide."""

    @property
    def rows(self) -> int: ...
    @property
    def keys(self) -> int: ...
    @property
    def warps(self) -> int: ...
    @property
    def stages(self) -> int: ...


def least_clks(
    w: Workload, gpu: Gpu, tile: _Tile, counts: StepCounts | None, residents: int, visits: Ints, heads: int
) -> float:
    """Clocks of the busiest SM, or of all visits spread over the SMs if that is longer.

    - A visit holds the units of its SM as in a replay. Products and softmax are sequential within a block, which then
      waits (`STEP_CLKS`; and for the L2 if K and V have one buffer each, which becomes free late). Each takes a share
      of its time from the unit of the other (`MMA_SYNC_STALL`).
    - Blocks are assigned longest first, one to each of n SMs, then a second one to each: the first SM begins with every
      n-th. Of the first k n + 1 blocks, one SM has at least k + 1. A grid therefore lasts at least as long as its
      longest block, and as an SM with one block more than others.

    Parameters
    ----------
    counts : StepCounts or None
        Instructions of a step of the kernel; None if not counted.
    residents : int
        Blocks that share an SM.
    visits : ndarray
        Key tiles that each row tile of a head visits.
    heads : int
        Heads of the whole batch.
    """
    together, alone = _visit(w, gpu, tile, counts)
    longest = np.sort(visits)[::-1]
    others = np.arange((len(visits) * heads - 1) // gpu.sm.count + 1)
    least = longest[others * gpu.sm.count // heads]
    busiest = least * np.maximum((others + 1) * together, (others // residents + 1) * alone)
    begun = float(least[:residents].sum()) * together
    read = 2 * tile.keys * w.head_dim * w.element_bytes
    l2 = read * gpu.sm.count * gpu.clock.full_hz / gpu.l2.bandwidth_bytes_per_s
    spread = float(visits.sum()) * heads * max(together, alone / residents, l2) / gpu.sm.count
    return max(float(busiest.max()), begun, spread)


def _visit(w: Workload, gpu: Gpu, tile: _Tile, counts: StepCounts | None) -> tuple[float, float]:
    """Clocks of a visit: of the SM unit that it holds longest, and of a block that has the SM to itself."""
    scores, row = tile.rows * tile.keys, w.head_dim * w.element_bytes
    products = product(
        TileOp("mma", flops=4 * scores * w.head_dim, smem_bytes=(2 * tile.warps * tile.keys + tile.rows) * row)
    )
    softmax = counts.softmax(scores, scores, 0, 0) if counts else TileOp("vector", exps=scores)
    tensor = max(
        products.flops / gpu.mma_sync_flops_per_clk(w.dtype),
        products.smem_bytes / gpu.sm.shared_memory_bytes_per_clk,
        *_on_pipes(products, gpu),
    )
    lanes = _on_pipes(softmax, gpu)
    vector, issue = max(lanes), (products.issues + softmax.issues) / gpu.sm.issues_per_clk
    together = max(tensor + MMA_SYNC_STALL * sum(lanes[1:]), vector + MMA_SYNC_STALL * tensor, issue)
    waited = STEP_CLKS + (gpu.l2.latency_clk if tile.stages == 1 else 0.0)
    return together, tensor + vector + waited


def _on_pipes(op: TileOp, gpu: Gpu) -> tuple[float, ...]:
    """Clocks of an operation's instructions on the schedulers, and on each pipe."""
    sm = gpu.sm
    return (
        op.issues / sm.issues_per_clk,
        op.exps / sm.exp_per_clk,
        op.fp32 / (sm.fp32_flops_per_clk / 2),
        op.int32 / sm.int32_per_clk,
        op.load_stores / sm.load_stores_per_clk,
    )
