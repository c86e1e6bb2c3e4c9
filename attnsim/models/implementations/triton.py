"""The kernels of Triton's tutorial 06 (triton-lang/triton, commit 003da478), and its backward in two passes."""

from __future__ import annotations

from dataclasses import replace

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.flash_attention import counted, fa2_backward
from attnsim.models.implementations.fused.building import flash_schedule, one_kernel_each_way, override_backward
from attnsim.models.implementations.fused.tile import BackwardTile, FlashTile, FusedTiles
from attnsim.models.implementations.fused.two_pass import two_pass_backward
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Path, Schedule
from attnsim.models.schedule.widths import padded

NAME = "triton.tutorial"
SOURCE = "triton-lang/triton@003da478 python/tutorials/06-fused-attention.py"


def choose_tile(w: Workload, gpu: Gpu) -> FlashTile:
    """Triton's tutorial kernel: 128 x 64, 4 warps, 3 stages, fewer where shared memory is short."""
    d = padded(max(w.head_dim, w.head_dim_v))
    path = instructions(gpu)
    wide = 64 < d <= 128 and path == "wgmma"
    for stages in (3, 2, 1):
        for keys in (64, 32):
            tile = FlashTile(
                128 if d <= 128 else 64, keys, warps=8 if wide else 4, loop="staged", stages=stages, path=path,
                warpgroups=2 if wide else 1,
            )  # fmt: skip
            if tile.shared_memory_bytes(d, d, w.element_bytes) <= gpu.sm.shared_memory_per_block_bytes:
                return counted(tile, NAME, w, gpu)
    return counted(tile, NAME, w, gpu)


def instructions(gpu: Gpu) -> Path:
    """What the compiler makes of ``tl.dot`` (``AccelerateMatmul.cpp``, `getMMAVersionSafe`); tcgen05 is not played."""
    return "wgmma" if gpu.features.wgmma else "mma_sync"


def choose_backward(w: Workload, gpu: Gpu) -> BackwardTile:
    """FlashAttention-2's backward tiles in Triton's instructions."""
    return counted(replace(fa2_backward(w, gpu), path=instructions(gpu)), NAME, w, gpu)


def two_pass(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """FlashAttention-2's backward tiles, dQ in a pass of its own."""
    tile = override_backward(choose_backward(w, gpu), shape)
    return flash_schedule(w, "triton.tutorial-bwd", list(two_pass_backward(w, tile)), FusedTiles(backward=tile))


RECORDS = (
    record(NAME, one_kernel_each_way(NAME, choose_tile, choose_backward)),
    record("triton.tutorial-bwd", two_pass),
)
