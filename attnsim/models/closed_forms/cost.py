"""What an attention call costs in closed form: FLOPs, exponentials, bytes, memory, a bound on its time.

The formulas take the shape, the tile and the grid; they never walk the tile stream of a schedule, so that
stream, closed form and replay can be held against each other (the requested bytes must agree exactly). What of it is
useful is in :mod:`attnsim.models.closed_forms.useful`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from attnsim.models.closed_forms import (
    dsa,
    eager,
    flex_mask,
    form,
    fused,
    gated,
    gated_channels,
    gated_states,
    gather,
    latent,
    linear,
    listed,
    moba,
    natten,
    nsa_decode,
    own,
    performer,
    pod,
    selecting,
    shared,
    trtllm,
    unfused,
)
from attnsim.models.closed_forms.around import around
from attnsim.models.closed_forms.columns import CostTable, ShapeTable, costs
from attnsim.models.closed_forms.form import Form
from attnsim.models.implementations.flash_attention_sparse import ListedTile
from attnsim.models.implementations.flash_mask import BoundedTile
from attnsim.models.implementations.flashinfer_shared import CascadeTile, TreeTile
from attnsim.models.implementations.flex_mask import MaskTile
from attnsim.models.implementations.frameworks.efficient import EfficientTile
from attnsim.models.implementations.frameworks.gather_blocks import Gathering
from attnsim.models.implementations.frameworks.linformer import LinformerTile
from attnsim.models.implementations.frameworks.naive import UnfusedTile
from attnsim.models.implementations.frameworks.performer import PerformerTile
from attnsim.models.implementations.fused.flash1 import Flash1Tile
from attnsim.models.implementations.fused.tile import FusedTiles
from attnsim.models.implementations.latent.tiles import DecompressedTile, LatentTile
from attnsim.models.implementations.linear.convolution import ConvolutionTile
from attnsim.models.implementations.linear.fla import DeltaNetTile, StatesTile
from attnsim.models.implementations.linear.gated_delta import DeltaTile, WholeTile
from attnsim.models.implementations.linear.kda import FlashKdaTile, KdaTile
from attnsim.models.implementations.linear.recurrence import Recurrence
from attnsim.models.implementations.linear.ssd import SsdTile
from attnsim.models.implementations.natten import BoxTile
from attnsim.models.implementations.own.linear_tiles import LinearTile
from attnsim.models.implementations.pod import PodTile
from attnsim.models.implementations.selecting.compressed import CompressedTile
from attnsim.models.implementations.selecting.dsa_tiles import DsaTile
from attnsim.models.implementations.selecting.flash_nsa import NsaTile
from attnsim.models.implementations.selecting.moba import MobaTile
from attnsim.models.implementations.selecting.nsa_decode import DecodeTile
from attnsim.models.implementations.selecting.selected import SelectedTile
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
    DeltaTile: gated.chunked_delta,
    WholeTile: gated.whole_delta,
    KdaTile: gated_channels.chunked,
    FlashKdaTile: gated_channels.flash,
    StatesTile: gated_states.by_states,
    DeltaNetTile: gated_states.delta_net,
    SsdTile: gated_states.mamba,
    Recurrence: gated.recurrent,
    ConvolutionTile: gated.convolution,
    ListedTile: listed.closed_form,
    BoundedTile: listed.bounded,
    MaskTile: flex_mask.closed_form,
    BoxTile: natten.closed_form,
    SelectedTile: selecting.selected,
    CompressedTile: selecting.compressed,
    MobaTile: moba.closed_form,
    NsaTile: selecting.whole,
    DecodeTile: nsa_decode.closed_form,
    DsaTile: dsa.closed_form,
    PodTile: pod.closed_form,
    TreeTile: shared.tree,
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


def _alone(schedule: Schedule, part: int) -> Schedule:
    """A schedule with the splits of one of its sequences; no combine kernel merges one whose keys are not cut."""
    splits, kernels = schedule.splits.of(part), schedule.kernels
    if schedule.splits.each and not splits.partial:
        kernels = tuple(kernel for kernel in kernels if not kernel.name.startswith("combine"))
    return replace(schedule, splits=splits, kernels=kernels)


def _forms(w: Workload, schedule: Schedule) -> list[Form]:
    inside, parts = around(w, schedule)
    return [*FORMS[type(schedule.tile)](w, inside, schedule.tile), *parts]


def cost_of(w: Workload, schedule: Schedule) -> Cost:
    """Closed form of a schedule of `w`: of it only tile, splits, and kernels' names and roles are used.

    Sequences of different lengths are summed up, each as if alone.
    """
    if isinstance(schedule.tile, CascadeTile):
        return _cost(schedule, shared.cascade(w, schedule.tile))  # of which all sequences share a part
    if w.latent is not None:
        return _cost(schedule, _forms(w, schedule))  # whose products are of all tokens
    each = (_forms(w.of(one), _alone(schedule, number)) for number, one in enumerate(w.parts))
    parts = form.summed(part for one in each for part in one) if w.lengths else next(each)
    return _cost(schedule, parts)


def _cost(schedule: Schedule, parts: list[Form]) -> Cost:
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
