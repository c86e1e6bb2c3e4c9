"""What an attention call costs in closed form: FLOPs, exponentials, bytes, memory, a bound on its time.

The formulas take the shape, the tile and the grid; they never walk the tile stream of a schedule, so that
stream, closed form and replay can be held against each other (the requested bytes must agree exactly). What of it is
useful is in :mod:`attnsim.models.closed_forms.useful`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from attnsim.models.closed_forms import (
    eager,
    form,
    fused,
    gather,
    latent,
    linear,
    listed,
    own,
    performer,
    trtllm,
    unfused,
)
from attnsim.models.closed_forms.around import around
from attnsim.models.closed_forms.columns import CostTable, ShapeTable, costs
from attnsim.models.closed_forms.form import Form
from attnsim.models.implementations.flash_attention_sparse import ListedTile
from attnsim.models.implementations.frameworks.efficient import EfficientTile
from attnsim.models.implementations.frameworks.gather_blocks import Gathering
from attnsim.models.implementations.frameworks.linformer import LinformerTile
from attnsim.models.implementations.frameworks.naive import UnfusedTile
from attnsim.models.implementations.frameworks.performer import PerformerTile
from attnsim.models.implementations.fused.flash1 import Flash1Tile
from attnsim.models.implementations.fused.tile import FusedTiles
from attnsim.models.implementations.latent.tiles import DecompressedTile, LatentTile
from attnsim.models.implementations.own.linear_tiles import LinearTile
from attnsim.models.implementations.trtllm import PackedTile
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule

__all__ = ["Cost", "CostTable", "ShapeTable", "cost_of", "costs"]

FORMS: Mapping[type, Callable[[Workload, Schedule, Any], list[Form]]] = {
    FusedTiles: fused.closed_form,
    Flash1Tile: fused.first_generation,
    PackedTile: trtllm.closed_form,
    LatentTile: latent.closed_form,
    DecompressedTile: latent.closed_form,
    UnfusedTile: unfused.closed_form,
    Gathering: gather.closed_form,
    PerformerTile: performer.closed_form,
    LinformerTile: eager.linformer,
    EfficientTile: eager.efficient,
    LinearTile: linear.closed_form,
    ListedTile: listed.closed_form,
    **own.FORMS,
}
"""The closed form of a schedule's kernels by the type of its tile."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Closed form of a schedule.

    Parameters
    ----------
    flops_executed : int
        Whole tiles at the head_dim the kernel is compiled for, with recomputation.
    exponentials : int
        As executed: whole tiles, and one per row and tile for the rescaling of O.
    requested_bytes : mapping of (kernel, "load" or "store", tensor) to int
        Asked of global memory.
    compulsory_bytes : int
        HBM traffic with perfect reuse: each tensor from outside read once, each tensor written written once.
        A lower bound of the replay with a cold cache.
    no_reuse_bytes : int
        HBM traffic if every request went there: the upper bound.
    smem_bytes : int
        Operands read from shared memory.
    peak_memory_bytes : int
        Inputs, outputs and scratch alive together.
    """

    flops_executed: int
    exponentials: int
    requested_bytes: Mapping[tuple[str, str, str], int]
    compulsory_bytes: int
    no_reuse_bytes: int
    smem_bytes: int
    peak_memory_bytes: int


def cost_of(w: Workload, schedule: Schedule) -> Cost:
    """Closed form of a schedule of `w`: of it only tile, splits, and kernels' names and roles are used."""
    inside, parts = around(w, schedule)
    parts = [*FORMS[type(schedule.tile)](w, inside, schedule.tile), *parts]
    requested = form.requested(parts)
    return Cost(
        flops_executed=sum(part.flops for part in parts),
        exponentials=sum(part.exponentials for part in parts),
        requested_bytes=MappingProxyType(requested),
        compulsory_bytes=form.compulsory_bytes(parts),
        no_reuse_bytes=sum(requested.values()),
        smem_bytes=sum(part.smem_bytes for part in parts),
        peak_memory_bytes=schedule.peak_memory_bytes,
    )
