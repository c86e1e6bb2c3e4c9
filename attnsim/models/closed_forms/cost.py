"""What an attention call costs in closed form: FLOPs, exponentials, bytes, memory, a bound on its time.

The formulas take the shape, the tile and the grid; they never walk the tile stream of a schedule, so that
stream, closed form and replay can be held against each other (the requested bytes must agree exactly). FLOP
convention: useful = 2 B H (visible pairs)(d + dv) forward and 2.5 times that backward (Dao, arXiv 2307.08691,
section 4.1); executed = whole tiles at the head_dim the kernel is compiled for, with recomputation; dense =
useful as if unmasked. An implementation that is not softmax attention brings its own (`Implementation.needed`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from attnsim.models.closed_forms import fused as cost_flash
from attnsim.models.closed_forms import gather, latent, linear, performer, trtllm
from attnsim.models.closed_forms import part as cost_parts
from attnsim.models.closed_forms import unfused as cost_naive
from attnsim.models.closed_forms.columns import CostTable, ShapeTable, costs
from attnsim.models.closed_forms.fused import Tiling
from attnsim.models.closed_forms.part import Part
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations import flash_attention_4
from attnsim.models.implementations import trtllm as trtllm_kernels
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.implementations.frameworks import efficient
from attnsim.models.implementations.frameworks import linformer as linformer_kernels
from attnsim.models.implementations.frameworks import performer as performer_kernels
from attnsim.models.implementations.fused.two_pass import closed_form as two_pass
from attnsim.models.implementations.implementation import Implementation, Needed, Shape
from attnsim.models.implementations.latent import records as latent_records
from attnsim.models.implementations.own import backward, decode, flash, hopper, naive, sparse
from attnsim.models.implementations.own import linear as own_linear
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Kernel, Schedule

__all__ = ["Cost", "CostTable", "ShapeTable", "cost", "cost_of", "costs", "roofline_time", "useful_flops"]

ClosedForm = Callable[[Workload, Schedule], list[Part]]

_OF_RECORD: Mapping[str, ClosedForm] = {
    **{one.name: flash_attention_4.closed_form for one in flash_attention_4.RECORDS},
    **{one.name: trtllm.closed_form for one in trtllm_kernels.RECORDS},
    **{one.name: latent.closed_form for one in latent_records.RECORDS},
    **{one.name: naive.closed_form for one in naive.RECORDS},
    **{own.RECORD.name: own.closed_form for own in (backward, decode, flash, hopper, sparse)},
    own_linear.RECORD.name: linear.closed_form,
    "flash_two_pass": two_pass,
    "gather": gather.closed_form,
    efficient.NAME: efficient.closed_form,
}
"""Implementations whose kernels are not known by their names alone."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Closed form of a schedule.

    Parameters
    ----------
    flops_useful, flops_executed, flops_dense : int
        See the module's FLOP convention.
    exponentials : int
        As executed: whole tiles, and one per row and tile for the rescaling of O.
    exponentials_needed : int
        Those that no schedule does without.
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

    flops_useful: int
    flops_executed: int
    flops_dense: int
    exponentials: int
    exponentials_needed: int
    requested_bytes: Mapping[tuple[str, str, str], int]
    compulsory_bytes: int
    no_reuse_bytes: int
    smem_bytes: int
    peak_memory_bytes: int


def cost(w: Workload, gpu: Gpu, implementation: Implementation, tile: Shape | None = None) -> Cost:
    """Closed form of `w` as `implementation` runs it on `gpu`.

    Parameters
    ----------
    w : Workload
    gpu : Gpu
    implementation : Implementation
    tile : (int, int), optional
        Query rows x keys instead of the implementation's own.

    Raises
    ------
    InputError
        When the tile does not fit the GPU.
    """
    return cost_of(w, implementation.build(w, gpu, tile))


def cost_of(w: Workload, schedule: Schedule) -> Cost:
    """Closed form of a schedule of `w`: of the schedule only the kernels' names, tile and grid are used."""
    parts = _parts(w, schedule)
    requested = cost_parts.requested(parts)
    needed, dense = needed_work(find_implementation(schedule.implementation), w)
    return Cost(
        flops_useful=needed.flops,
        flops_executed=sum(part.flops for part in parts),
        flops_dense=dense,
        exponentials=sum(part.exponentials for part in parts),
        exponentials_needed=needed.exponentials,
        requested_bytes=MappingProxyType(requested),
        compulsory_bytes=cost_parts.compulsory_bytes(parts),
        no_reuse_bytes=sum(requested.values()),
        smem_bytes=sum(part.smem_bytes for part in parts),
        peak_memory_bytes=schedule.peak_memory_bytes,
    )


def needed_work(implementation: Implementation, w: Workload) -> tuple[Needed, int]:
    """Useful work of a workload by the implementation's own convention, and its dense FLOPs.

    Linear attention's do not depend on the mask.
    """
    if implementation.needed is not None:
        needed = implementation.needed(w)
        return needed, needed.flops
    return Needed(useful_flops(w), _needed_exponentials(w)), useful_flops(w, dense=True)


def useful_flops(w: Workload, dense: bool = False) -> int:
    """2 B H pairs (d + dv) forward, 2.5 times that backward; `dense` counts masked pairs too."""
    pairs = w.seq_q * w.seq_kv if dense else w.visible_pairs
    forward = 2 * w.batch * w.heads_q * pairs * (w.head_dim + w.head_dim_v)
    return sum({"fwd": 2, "bwd": 5}[direction] * forward // 2 for direction in w.directions)


def roofline_time(cost: Cost, w: Workload, gpu: Gpu) -> float:
    """Seconds that no schedule of this cost undercuts with a cold cache: the slowest unit at datasheet rate.

    Work over peak for the tensor cores (useful FLOPs, or executed ones where a form skips recomputation that
    the convention counts), the exponential unit and HBM with compulsory bytes (Williams, Waterman, Patterson,
    *Roofline*, CACM 52(4), 2009, with a ceiling for the exponentials).
    """
    return max(
        min(cost.flops_useful, cost.flops_executed) / gpu.peak_tensor_flops_per_s(w.dtype),
        min(cost.exponentials, cost.exponentials_needed) / gpu.exp_per_s,
        cost.compulsory_bytes / gpu.hbm.bandwidth_bytes_per_s,
    )


def _needed_exponentials(w: Workload) -> int:
    """One per visible score, in the forward pass."""
    return w.batch * w.heads_q * w.visible_pairs if "fwd" in w.directions else 0


def closed_form_of(record: Implementation) -> ClosedForm | None:
    """The closed form of an implementation's kernels; None where :func:`cost_of` knows them by their names."""
    base = record.name.partition("@")[0]
    if base in (one.name for one in performer_kernels.RECORDS):
        made = performer_kernels.Performer(record.name, record.number, record.form == "fused")
        return lambda w, schedule: performer.closed_form(made, w, schedule)
    if base in (one.name for one in linformer_kernels.RECORDS):
        return linformer_kernels.Linformer(record.name, record.number).closed_form
    return _OF_RECORD.get(record.name)


def _parts(w: Workload, schedule: Schedule) -> list[Part]:
    record = find_implementation(schedule.implementation)
    if special := closed_form_of(record):
        return special(w, schedule)
    if schedule.algorithm == "naive":
        form = find_implementation(schedule.implementation).form
        forward = cost_naive.forward(w, form) if "fwd" in w.directions else []
        return forward + (cost_naive.backward(w, form) if "bwd" in w.directions else [])
    names = [kernel.name for kernel in schedule.kernels]
    splits = max((_splits(w, schedule, kernel) for kernel in schedule.kernels), default=1)
    parts = []
    for kernel in schedule.kernels:
        part = cost_parts.helper(kernel.name, w, splits)
        parts.append(_fused(w, schedule, kernel, "flash1_bwd" in names) if part is None else part)
    return parts


def _fused(w: Workload, schedule: Schedule, kernel: Kernel, first_generation: bool) -> Part:
    match kernel.name:
        case "flash_bwd":
            return cost_flash.backward(w, _backward_tiling(schedule, kernel))
        case "dot_do_o":
            return cost_flash.row_dots(w, accumulator=not first_generation)
        case "convert_dQ":
            return cost_flash.convert_dq(w)
        case "flash1_fwd" | "flash1_bwd":
            keys = int(schedule.tile.split(" x ")[1].split(",")[0])
            splits = kernel.blocks // (w.batch * w.heads_q)
            return cost_flash.flash1(w, keys, splits, is_backward=kernel.name == "flash1_bwd")
        case name if name.startswith("flash_fwd"):
            return cost_flash.forward(w, forward_tiling(w, schedule, kernel), name)
    raise LookupError(f"no closed form of the kernel {kernel.name}; add it to attnsim.models.closed_forms.fused")


def forward_tiling(w: Workload, schedule: Schedule, kernel: Kernel) -> Tiling:
    """The tile of a fused forward kernel, from the schedule's heading and the kernel's resources."""
    rows, keys, warps = _numbers(r"^(\d+) x (\d+), (\d+) warps", schedule.tile)
    pack = w.group if "GQA packed" in schedule.tile else 1
    tiles = -(-w.seq_q * pack // rows) * (w.batch * w.heads_q // pack)
    buffers = {name for name, _ in kernel.buffers}
    return Tiling(
        rows,
        keys,
        pack,
        splits=kernel.blocks // tiles,
        warps=warps,
        warpgroups=kernel.warpgroups,
        tensor_path=kernel.path,
        q_in_registers="Q" not in buffers,
        p_in_smem="P" in buffers,
        splits_of_seen="splits of what a tile sees" in schedule.tile,
        from_first_key="windows from their first key" in schedule.tile,
    )


def _backward_tiling(schedule: Schedule, kernel: Kernel) -> Tiling:
    rows, keys, warps = _numbers(r"backward (\d+) x (\d+), (\d+) warps", schedule.tile)
    return Tiling(rows, keys, warps=warps, warpgroups=2, tensor_path=kernel.path)


def _splits(w: Workload, schedule: Schedule, kernel: Kernel) -> int:
    return forward_tiling(w, schedule, kernel).splits if kernel.name.startswith("flash_fwd") else 1


def _numbers(pattern: str, text: str) -> tuple[int, ...]:
    found = re.search(pattern, text)
    if found is None:
        raise LookupError(f"no tile in the heading {text!r}; write it as '128 x 64, 4 warps'")
    return tuple(int(part) for part in found.groups())
