"""The tiles that real implementations choose, by head_dim, GPU and mask. Facts of public source, nothing fitted.

FlashAttention-2: ``csrc/flash_attn/src/flash_{fwd,bwd}_launch_template.h`` of Dao-AILab/flash-attention (v2.8.3);
FlashAttention-3: ``hopper/tile_size.h`` and ``hopper/flash_bwd_launch_template.h`` (commit 0251105a); the Triton
tutorial 06 (commit 003da478); xformers' ``generate_kernels.py`` (December 2024).
"""

from __future__ import annotations

from dataclasses import replace

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.backward import BackwardTile
from attnsim.models.implementations.fused.tile import FlashTile, Order
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Path
from attnsim.models.schedule.widths import padded

KIB = 1024


def _small_shared_memory(gpu: Gpu) -> bool:
    """sm_86, sm_89 and sm_120 have 99 KiB a block; FlashAttention keeps separate tiles for them."""
    return gpu.compute_capability_number in (86, 89, 120)


def fa2_forward(w: Workload, gpu: Gpu) -> FlashTile:
    """FA2's standard forward kernel."""
    d, causal = padded(max(w.head_dim, w.head_dim_v)), w.mask.is_causal
    if d <= 32:
        return FlashTile(128, 128)
    if d <= 64:
        return FlashTile(128, 64 if w.dropout else 128)
    if d <= 96:
        return FlashTile(64, 64) if _small_shared_memory(gpu) and causal else FlashTile(128, 64)
    if d <= 128:
        if w.dropout:
            return FlashTile(128, 32)
        if _small_shared_memory(gpu):
            return FlashTile(64, 64) if causal else FlashTile(128, 32)
        return FlashTile(128, 64)
    if d <= 192:
        return FlashTile(64, 64) if w.dropout else FlashTile(128, 64, warps=8, warpgroups=2)
    roomy = gpu.sm.shared_memory_per_block_bytes >= 128 * KIB and gpu.sm.shared_memory_bytes < 192 * KIB
    return FlashTile(128, 64, warps=8, warpgroups=2) if roomy else FlashTile(64, 64)


def fa2_split(w: Workload, gpu: Gpu) -> FlashTile:
    """FA2's split-KV kernel: 64 rows, queries of a group packed into them when there is one query a head."""
    d = padded(max(w.head_dim, w.head_dim_v))
    keys = 256 if d <= 64 else 128 if d <= 128 else 64
    tile = FlashTile(64, keys)
    limit = gpu.sm.shared_memory_per_block_bytes
    while tile.shared_memory_bytes(d, d, w.element_bytes) > limit and tile.keys > 32:
        tile = FlashTile(64, tile.keys // 2)
    return tile


def fa2_backward(w: Workload, gpu: Gpu) -> BackwardTile:
    """FA2's main backward kernel, by the shared memory a block may opt in to."""
    d, limit = padded(max(w.head_dim, w.head_dim_v)), gpu.sm.shared_memory_per_block_bytes
    if d <= 32:
        return BackwardTile(128, 128, v_in_registers=True)
    if d <= 64:
        return BackwardTile(128, 128) if limit >= 144 * KIB else BackwardTile(64, 128, v_in_registers=True)
    if d <= 96:
        return BackwardTile(64, 128, v_in_registers=True)
    if d <= 128:
        return BackwardTile(64, 128) if limit >= 144 * KIB else BackwardTile(64, 64, v_in_registers=True)
    if d <= 192:
        return BackwardTile(64, 64) if limit >= 136 * KIB else BackwardTile(64, 64, stages_q=1, v_in_registers=True)
    if limit >= 144 * KIB:
        return BackwardTile(64, 64, stages_q=2 if limit >= 176 * KIB else 1)
    return BackwardTile(64, 32, stages_q=1, v_in_registers=True)


def fa3_forward(w: Workload, gpu: Gpu, pack_gqa: bool = False) -> FlashTile:
    """FA3's sm_90 forward kernel with TMA copies."""
    narrow = w.mask.is_causal or w.mask.is_windowed
    shape, in_smem = _fa3_shape(w, paged=False)
    order: Order = "longest_first" if narrow else "ascending"
    return hopper_tile(*shape, p_in_smem=in_smem, order=order, pack_gqa=pack_gqa)


def fa3_paged(w: Workload, gpu: Gpu, *, vllm: bool) -> FlashTile:
    """FA3's sm_90 forward kernel with K and V gathered by cp.async, as every serving call with small pages.

    GQA is always packed and its rows stored one by one (``hopper/pack_gqa.h``). vLLM's fork has one MMA warpgroup where
    that holds all rows, counts the tiles of a window from its first key, and at head_dim 64 does not overlap the GEMMs
    of a window's steps (``hopper/tile_size.h``, ``hopper/block.h``). Its local kernel has all warpgroups for one query
    too: in AIConfigurator's table a decode step takes 2 us (head_dim 128) and 5 us (64) longer from the length on at
    which the window cuts, with one key tile left.
    """
    packed, local = w.group > 1, w.mask.is_windowed
    shape, in_smem = _fa3_shape(w, paged=True)
    order: Order = "longest_first_by_sequence" if w.mask.is_causal or local else "ascending"
    if vllm and w.dtype != "fp8":
        if w.seq_q * w.group <= 64 and w.head_dim in (64, 128) and not local:
            shape = (64, 192 if w.head_dim == 64 else 128)
        elif w.head_dim <= 64 and local:
            shape = (192, 160)
    tile = replace(hopper_tile(*shape, p_in_smem=in_smem, order=order, pack_gqa=packed), by_row=True)
    if vllm and local:
        tile = replace(tile, from_first_key=True, loop="fa3" if w.head_dim > 64 else "staged")
    return tile


def fa3_varlen(w: Workload, gpu: Gpu) -> FlashTile:
    """FA3's sm_90 forward kernel for sequences packed end to end, as encoders call it: TMA copies, no clusters.

    At head_dim 64 the tile of trees since 2025, 192 x 192 with P through shared memory.
    """
    shape, in_smem = _fa3_shape(w, paged=False)
    if w.head_dim <= 64 and w.mask == Mask() and w.dtype != "fp8":
        shape, in_smem = (192, 192), True
    return hopper_tile(*shape, p_in_smem=in_smem, pack_gqa=w.group > 1)


def _fa3_shape(w: Workload, paged: bool) -> tuple[tuple[int, int], bool]:
    """Rows and keys of FA3's sm_90 tile, and whether P V reads P from shared memory."""
    d, dv = padded(w.head_dim), padded(w.head_dim_v)
    local = w.mask.is_windowed
    narrow = w.mask.is_causal or local or paged
    if w.dtype == "fp8":
        return _fa3_fp8(d, local, paged), False
    if d <= 64:
        return (192, 128), False  # the paper's kernel; trees since 2025 take 192 x 192 without a mask
    if d <= 96:
        return (192, 128 if local or paged else 144), True
    if d <= 128:
        return (128, 128 if narrow else 176), False
    if d <= 192:
        return (128, 96 if local or paged else 128 if dv <= 128 else 112), False
    return (128, 64 if local else 80), False


def _fa3_fp8(d: int, local: bool, paged: bool) -> tuple[int, int]:
    if d <= 64:
        return (192, 160)
    if d <= 96:
        return (192, 128)
    if d <= 128:
        return (128, 160) if paged else (128, 224)
    if d <= 192:
        return (128, 128) if local and paged else (128, 160)
    return (128, 64) if local else (128, 128)


def hopper_tile(
    rows: int, keys: int, *, p_in_smem: bool = False, order: Order = "ascending", pack_gqa: bool = False
) -> FlashTile:
    """A warp-specialised Hopper block: one MMA warpgroup per 64 rows and one that loads; one block an SM."""
    groups = rows // 64
    threads = (groups + 1) * 128
    return FlashTile(
        rows,
        keys,
        warps=4 * groups,
        loop="fa3",
        stages=2,
        warpgroups=groups,
        extra_threads=128,
        registers=min(255, 65536 // threads // 8 * 8),
        path="wgmma",
        p_in_smem=p_in_smem,
        pack_gqa=pack_gqa,
        order=order,
        persistent=True,
        max_blocks_per_sm=1,
    )


def fa3_backward(w: Workload, gpu: Gpu) -> BackwardTile:
    """FA3's sm_90 backward kernel."""
    d = padded(max(w.head_dim, w.head_dim_v))
    narrow = w.mask.is_causal or w.mask.is_windowed
    if d <= 64:
        rows, keys, stages = 128, 128, 2
    elif d <= 96:
        rows, keys, stages = 64, 128, 2
    elif d <= 128:
        rows, keys, stages = (64 if narrow else 80), 128, 2
    elif d <= 192:
        rows, keys, stages = 64, 96, 2
    else:
        rows, keys, stages = 64, 80, 2
    return BackwardTile(
        rows,
        keys,
        warps=8,
        stages_q=stages,
        path="wgmma",
        extra_threads=128,
        registers=168,
        v_in_registers=True,
    )


def fa3_ampere(w: Workload, gpu: Gpu, split: bool = False) -> FlashTile:
    """FA3's sm_80 code path, which SGLang runs on Ampere and Ada: GQA always packed."""
    return replace(_fa3_ampere(w, gpu, split), pack_gqa=True)


def _fa3_ampere(w: Workload, gpu: Gpu, split: bool) -> FlashTile:
    """Rows, keys, warps and buffers of that tile."""
    d, local = padded(max(w.head_dim, w.head_dim_v)), w.mask.is_windowed
    small = _small_shared_memory(gpu)
    if d <= 64:
        return FlashTile(128, 96 if local else 80 if split else 112)
    if d <= 96:
        return FlashTile(128, 48 if local or split else 64)
    if d <= 128:
        if split or small:
            keys = 96 if local else 112 if split else 128
            return FlashTile(128, keys, warps=8, warpgroups=2, q_in_registers=True, share_q_v=True)
        return FlashTile(128, 48 if local else 64)
    if d <= 192:
        return FlashTile(128, 64, warps=8, warpgroups=2)
    keys = (48 if local or split else 64) if small else (64 if local or split else 96)
    return FlashTile(128, keys, warps=8, warpgroups=2, q_in_registers=small, share_q_v=small)


def triton(w: Workload, gpu: Gpu) -> FlashTile:
    """Triton's tutorial kernel: 128 x 64, 4 warps, 3 stages, fewer where shared memory is short."""
    d = padded(max(w.head_dim, w.head_dim_v))
    path: Path = "wgmma" if gpu.features.wgmma else "mma_sync"
    wide = 64 < d <= 128 and path == "wgmma"
    for stages in (3, 2, 1):
        for keys in (64, 32):
            tile = FlashTile(
                128 if d <= 128 else 64, keys, warps=8 if wide else 4, loop="staged", stages=stages, path=path,
                warpgroups=2 if wide else 1,
            )  # fmt: skip
            if tile.shared_memory_bytes(d, d, w.element_bytes) <= gpu.sm.shared_memory_per_block_bytes:
                return tile
    return tile


def xformers(w: Workload, gpu: Gpu) -> FlashTile:
    """PyTorch's and xformers' memory-efficient kernel (cutlass), with fewer keys where shared memory is short."""
    d = max(w.head_dim, w.head_dim_v)
    if d <= 64:
        return FlashTile(64, 64, warps=4, registers=128, p_in_smem=True)
    if d <= 128:
        return _fitting(FlashTile(64, 128, warps=8, warpgroups=2, registers=128, p_in_smem=True), w, gpu)
    return _fitting(FlashTile(32, 128, warps=4, registers=128, p_in_smem=True), w, gpu)


def _fitting(tile: FlashTile, w: Workload, gpu: Gpu) -> FlashTile:
    """The tile with its keys halved until it fits shared memory."""
    d, dv = padded(w.head_dim), padded(w.head_dim_v)
    while tile.shared_memory_bytes(d, dv, w.element_bytes) > gpu.sm.shared_memory_per_block_bytes and tile.keys > 16:
        tile = replace(tile, keys=tile.keys // 2)
    return tile


def xformers_backward(w: Workload, gpu: Gpu) -> BackwardTile:
    """The memory-efficient kernel's backward."""
    d = max(w.head_dim, w.head_dim_v)
    if d <= 64:
        return BackwardTile(64, 64, warps=4, stages_q=1, registers=168)
    tile = BackwardTile(128, 128, warps=16, stages_q=1, registers=128)
    fits = (
        sum(n for _, n in tile.buffers(padded(d), padded(d), w.element_bytes)) <= gpu.sm.shared_memory_per_block_bytes
    )
    return tile if d <= 128 and fits else BackwardTile(64, 64, warps=4, stages_q=1, registers=168)


def cudnn(w: Workload, gpu: Gpu, decode: bool) -> FlashTile:
    """A stand-in for cuDNN's closed kernels before Hopper: 128 rows, one block an SM; 16 packed rows in decode."""
    base = (
        FlashTile(16, 128, loop="staged", stages=2, registers=128, pack_gqa=True)
        if decode
        else FlashTile(128, 128, warps=8, warpgroups=2, max_blocks_per_sm=1)
    )
    return _fitting(base, w, gpu)


def fa4(w: Workload, gpu: Gpu) -> FlashTile:
    """FlashAttention-4's Blackwell block: two 128-row tiles with a softmax warpgroup each, accumulators in TMEM."""
    wide = padded(max(w.head_dim, w.head_dim_v)) > 128
    return FlashTile(
        128 if wide else 256,
        64 if wide else 128,
        warps=8,
        loop="fa3",
        stages=2,
        warpgroups=2,
        extra_threads=256,
        registers=128,
        path="tcgen05",
        order="longest_first" if w.mask.is_causal or w.mask.is_windowed else "ascending",
        persistent=True,
        max_blocks_per_sm=1,
    )
