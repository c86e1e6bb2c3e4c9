"""Kernels of triton-lang/triton: tutorial 06 (commit 003da478), its backward in two passes, and ``triton.ops`` of 2.1.

``triton.ops.flash_attention`` was Triton's attention until its library of operations was removed in 2024. Statements on
its machine code come from the released 2.1.0, whose compiler needs no GPU, for sm_80.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.flash_attention import counted, fa2_backward
from attnsim.models.implementations.fused.backward import (
    MemoryDqTile,
    dq_in_memory,
    memory_dq_backward,
    two_pass_backward,
)
from attnsim.models.implementations.fused.building import flash_schedule, one_kernel_each_way, override_backward
from attnsim.models.implementations.fused.forward import flash_forward, flash_peak_bytes
from attnsim.models.implementations.fused.tile import BackwardTile, FlashTile, FusedTiles
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import step_counts
from attnsim.models.schedule.row_tiles import padded
from attnsim.models.schedule.schedule import Kernel, Path, Schedule, check_shared_memory

NAME = "triton.tutorial"
OPS = "triton.ops"
OPS_HEAD_DIMS, OPS_BLOCK = (16, 32, 64, 128), 128
"""Head dimensions that the forward of ``triton.ops`` asserts, and tile length that its unchecked loads require."""


OPS_SPILLS = {
    (False, False): (700, 1128, 1376),
    (False, True): (840, 1292, 1416),
    (True, False): (420, 672, 608),
    (True, True): (424, 808, 800),
}
"""At head_dim 128, by (`sequence_parallel`, causal): bytes that a thread spills and reloads in a step, and its stack.
The stacks of 256 threads are 152 to 354 KiB, in addition to 160 KiB of shared memory. The 18 to 58 KiB at head_dim 64
fit the L1."""


def choose_tile(w: Workload, gpu: Gpu) -> FlashTile:
    """Triton's tutorial kernel: 128 x 64, 4 warps, 3 stages, or fewer if shared memory is short.

    Its `keep` drops eight warps below 128 x 128: in 2024 on every GPU (that of Triton 3.0.0), later on Hopper.
    """
    d = padded(max(w.head_dim, w.head_dim_v))
    for stages in (3, 2, 1):
        for keys in (64, 32):
            tile = FlashTile(128 if d <= 128 else 64, keys, loop="staged", stages=stages, path=instructions(gpu))
            if tile.shared_memory_bytes(d, d, w.element_bytes) <= gpu.sm.shared_memory_per_block_bytes:
                return counted(tile, NAME, w, gpu)
    return counted(tile, NAME, w, gpu)


def instructions(gpu: Gpu) -> Path:
    """Instructions for ``tl.dot`` (``AccelerateMatmul.cpp``, `getMMAVersionSafe`); tcgen05 is not played."""
    return "wgmma" if gpu.features.wgmma else "mma_sync"


def choose_backward(w: Workload, gpu: Gpu) -> BackwardTile:
    """FlashAttention-2's backward tiles in Triton's instructions."""
    return counted(replace(fa2_backward(w, gpu), path=instructions(gpu)), NAME, w, gpu)


def two_pass(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """FlashAttention-2's backward tiles, with a separate pass for dQ."""
    tile = override_backward(choose_backward(w, gpu), shape)
    return flash_schedule(w, "triton.tutorial-bwd", list(two_pass_backward(w, tile)), FusedTiles(backward=tile))


def ops(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """``triton.ops.flash_attention.attention``, with `sequence_parallel` if that is faster, as its users try."""
    check_ops(w)
    d, kernels, tiles = w.head_dim, list[Kernel](), FusedTiles()
    if "fwd" in w.directions:
        tile = FlashTile(
            OPS_BLOCK,
            64,
            warps=4 if d <= 64 else 8,
            loop="ring",
            stages=4,
            masks_all=True,
            widths=(d, d),
            counts=step_counts(OPS, gpu.compute_capability_number, d),
        )
        kernels.append(flash_forward(w, gpu, tile))
        tiles = FusedTiles(tile)
    peak = flash_peak_bytes(w)
    if "bwd" in w.directions:
        choices = [ops_backward(w, gpu, parallel) for parallel in (False, True)]
        back, added = min(
            ((one, memory_dq_backward(w, gpu, one)) for one in choices), key=lambda choice: least_s(choice[1], gpu)
        )
        kernels += added
        tiles, peak = replace(tiles, backward=back), peak + dq_in_memory(w, back)[1]
    for kernel in kernels:
        check_shared_memory(kernel.name, kernel.buffers, gpu, "no other tile is compiled")
    return replace(flash_schedule(w, OPS, kernels, tiles), peak_memory_bytes=peak)


def check_ops(w: Workload) -> None:
    """Refuse inputs that the kernels of ``triton.ops`` would read incorrectly."""
    shape = (w.heads_q, w.seq_q, w.head_dim) == (w.heads_kv, w.seq_kv, w.head_dim_v)
    if not shape or w.seq_q % OPS_BLOCK or w.head_dim not in OPS_HEAD_DIMS:
        raise InputError(
            f"{OPS} takes Q, K and V of one shape, whole tiles of {OPS_BLOCK} tokens and head_dim "
            f"{', '.join(map(str, OPS_HEAD_DIMS))}; given heads {w.heads_q}/{w.heads_kv}, seq {w.seq_q}/{w.seq_kv}, "
            f"head_dim {w.head_dim}/{w.head_dim_v}; take {NAME}"
        )


def ops_backward(w: Workload, gpu: Gpu, parallel: bool) -> MemoryDqTile:
    """Backward tile of ``triton.ops``, with `sequence_parallel` or without."""
    name = " ".join((OPS, "backward", *["parallel"] * parallel, *["causal"] * w.mask.is_causal))
    counts = step_counts(name, gpu.compute_capability_number, w.head_dim)
    spilled, reloaded, stack = OPS_SPILLS[parallel, w.mask.is_causal] if w.head_dim > 64 else (0, 0, 0)
    return MemoryDqTile(
        OPS_BLOCK, OPS_BLOCK, counts=counts, parallel=parallel, spilled=spilled, reloaded=reloaded, stack=stack
    )


def least_s(kernels: Sequence[Kernel], gpu: Gpu) -> float:
    """Seconds of the busiest SM for products, operands and copies, one after the other, plus those of passes.

    It uses the GPU's figures only: for a choice between two forms of a backward that the source leaves to the user.
    """
    clks, time = 0.0, 0.0
    for kernel in kernels:
        moved = sum(kernel.requested().values())
        if not kernel.total("flops"):
            time += moved / (gpu.hbm.bandwidth_bytes_per_s * gpu.hbm.achievable_fraction)
            continue
        rate = gpu.mma_sync_flops_per_clk(kernel.dtype)
        reads = kernel.total("smem_bytes") / gpu.sm.shared_memory_bytes_per_clk
        waves = math.ceil(kernel.blocks / gpu.sm.count)
        clks += waves / kernel.blocks * (kernel.total("flops") / rate + reads)
        time += waves * gpu.sm.count / kernel.blocks * moved / gpu.l2.bandwidth_bytes_per_s
    return time + clks / gpu.clock.full_hz


RECORDS = (
    record(OPS, ops),
    record(NAME, one_kernel_each_way(NAME, choose_tile, choose_backward)),
    record("triton.tutorial-bwd", two_pass),
)
