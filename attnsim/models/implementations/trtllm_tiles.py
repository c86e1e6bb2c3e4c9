"""Which of TensorRT-LLM's attention kernels runs, on which tile, in how many splits.

All from public source at NVIDIA/TensorRT-LLM 1.3 and flashinfer-ai/flashinfer, nothing fitted:

- context before Blackwell: ``cpp/kernels/fmha_v2/setup.py`` (tiles by architecture and head_dim) and
  ``contextFusedMultiHeadAttention/fmhaRunner.cpp`` (which of them);
- generation before Blackwell: XQA, ``cpp/kernels/xqa/mha.cu`` (tile), ``decoderXQAImplJIT.cpp`` and
  ``kernelUtils.cpp`` (when), ``decoderXQAImplCommon.h`` (blocks per sequence); else masked multi-head attention
  (:mod:`attnsim.models.implementations.trtllm_masked`);
- data-centre Blackwell: trtllm-gen, whose kernels are binaries with their tiles in their names, and whose selection is
  ``flashinfer/trtllm/fmha/fmhaKernels.cuh``.
"""

from __future__ import annotations

import math
from dataclasses import replace

from attnsim.by_hand import by_hand
from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.tile import FlashTile, Order
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.widths import padded

SHARED_READS = by_hand(2, "blocks of trtllm-gen (closed) that share a read of K and V where each has one tile of rows")
"""Read off the times: at head_dim 256 blocks that each read for themselves would ask the L2 for 11 TB/s."""
XQA_LARGEST_GROUP = 32
"""Query heads a key head that XQA has kernels for (``supportConfigHMMA``)."""
XQA_KEYS_PER_BLOCK = 128
"""``kMinHistoryTokensPerBlock``."""
XQA_WAVES = 8
"""``kTargetWaveFactor``."""
XQA_SUB_SEQUENCES = 6000
"""``getXqaMaxNumSubSeq``: sequences times splits that the workspace holds."""
EARLY_LAUNCHES = 90
"""Compute capability from which XQA is launched while the kernel before it drains (``CubinObj::launch``, and
``getEnvEnablePDL``, which is on by default in 1.3)."""
XQA_TILE = 256
"""Keys that a block's four warps cover in one turn (``ctaTile.x``)."""
FRAGMENT = 16
"""Rows of a group's heads that a thread has a part of at least: one MMA's."""
XQA_WARP_KEYS = 64
"""Keys, and columns of V, of one of the four warps that multiply (``warpTile.x``)."""
GEN_MERGED = by_hand(8, "partial results that the last block of trtllm-gen (closed) reads at a time")
BY_SEQUENCE: Order = "grid_by_sequence"
"""Sequences are the outermost dimension of its grids, or of the numbers that its counters hand out."""
GEN_KEYS = 256
"""Keys of one step of a trtllm-gen block, two tiles of 128."""


def compiled_width(width: int) -> int:
    """The head_dim that TensorRT-LLM's own kernels are compiled for: 32, 64, 128, and multiples of 64 beyond."""
    return -(-width // 64) * 64 if width > 128 else max(32, 1 << (width - 1).bit_length())


def compiled_widths(w: Workload) -> tuple[int, int]:
    """Head dimensions of K and of V that those kernels compute with; copies are predicated to the valid columns."""
    return compiled_width(w.head_dim), compiled_width(w.head_dim_v)


def _width(w: Workload) -> int:
    return compiled_width(max(w.head_dim, w.head_dim_v))


def _from_the_end(w: Workload) -> Order:
    """Last row tiles first, by the grid of the longest where sequences differ."""
    return "last_rows_first" if w.lengths else "longest_first"


def context_tile(w: Workload, gpu: Gpu) -> FlashTile:
    """FMHA v2: warp-specialised with TMA on Hopper, else Ampere's loop, "tiled" with 128 keys where that is faster."""
    d = _width(w)
    if gpu.features.wgmma:
        keys = 256 if d <= 64 else 128 if d <= 128 else 64
        kv_bytes = 2 * w.element_bytes * w.batch * w.heads_q * w.seq_q * w.head_dim
        balanced = w.mask.is_causal and kv_bytes <= gpu.l2.capacity_bytes
        return FlashTile(
            128, keys, warps=8, loop="staged", stages=2, warpgroups=2, extra_threads=128, registers=168, path="wgmma",
            order=_from_the_end(w) if balanced else BY_SEQUENCE, persistent=True, max_blocks_per_sm=1,
        )  # fmt: skip
    if architecture_of(gpu.compute_capability_number).small_shared_memory and d < 256:
        return FlashTile(64, 64 if d <= 64 else 32, order=BY_SEQUENCE)
    tile = FlashTile(128 if d <= 64 else 64, 128, order=BY_SEQUENCE)
    while tile.shared_memory_bytes(d, d, w.element_bytes) > gpu.sm.shared_memory_per_block_bytes:
        tile = replace(tile, keys=tile.keys // 2)
    return tile


def has_gen_kernel(w: Workload) -> bool:
    """Whether trtllm-gen has a kernel as TensorRT-LLM calls it; else FMHA v2 or masked attention runs on Blackwell too.

    The encoder's times at head_dim 72 (three times those at 80) and those of more than 32 query heads a key head show
    where it has none.
    """
    widths = w.head_dim % 16 == 0 and w.head_dim_v % 16 == 0
    return widths and (w.passes == "fwd" or w.group * w.seq_q <= XQA_LARGEST_GROUP)


def runs_xqa(w: Workload, gpu: Gpu) -> bool:
    """Whether a generation step takes XQA: grouped heads, and enough blocks (``mayHavePerfGain``).

    Both rules count the token of the step itself among the keys (``max_past_kv_length``).
    """
    if w.seq_q > 1:
        return True  # several tokens a sequence: only XQA takes them
    blocks = w.batch * w.heads_kv * max(1, w.seq_kv // XQA_KEYS_PER_BLOCK)
    return 1 < w.group <= XQA_LARGEST_GROUP and 4 * blocks >= gpu.sm.count


def xqa_tile(w: Workload, gpu: Gpu) -> FlashTile:
    """XQA: a group's heads in 16 or 32 rows, keys shared out over four warps; two buffers of 64 or 32 KiB of K."""
    d = _xqa_width(w)
    kept = 64 if gpu.compute_capability_number in (80, 90) else 32  # KiB of K and as much of V
    keys = min(XQA_TILE, kept * 1024 // (2 * d * w.element_bytes) // 16 * 16)
    rows = -(-w.group * w.seq_q // FRAGMENT) * FRAGMENT
    return FlashTile(
        rows, keys, warps=8, loop="staged", stages=2, registers=128, pack_gqa=True, warps_share_keys=True,
        widths=(d, d), order=BY_SEQUENCE,
    )  # fmt: skip


def _xqa_width(w: Workload) -> int:
    """The head_dim that XQA computes with: 64, 128 or 256 (``headElems`` of ``defines.h``)."""
    return max(64, 1 << (max(w.head_dim, w.head_dim_v) - 1).bit_length())


def xqa_merged(w: Workload) -> int:
    """Partial results that the last block of XQA reads at a time: one for each group of warps that share a V tile."""
    return max(1, 4 * XQA_WARP_KEYS // _xqa_width(w))


def xqa_splits(w: Workload, gpu: Gpu) -> int:
    """Blocks a sequence and key head: ``computeMultiBlockCount``, of the whole cache even with a window."""
    count = w.seq_kv // XQA_KEYS_PER_BLOCK
    count = max(1, min(count, round(math.sqrt(8 * count))))
    excess = w.batch * w.heads_kv * count / gpu.sm.count / XQA_WAVES
    if excess > 1:
        count = max(1, int(count / excess))
    return max(1, min(count, XQA_SUB_SEQUENCES // w.batch))


def gen_context_tile(w: Workload) -> FlashTile:
    """trtllm-gen's context kernel: two tiles of 128 rows, at head_dim 256 one, with a softmax warpgroup each."""
    wide = max(w.head_dim, w.head_dim_v) > 128
    return FlashTile(
        128 if wide else 256, 128, warps=8, loop="staged", stages=1 if wide else 2, warpgroups=2, extra_threads=256,
        registers=128, path="tcgen05", order=_from_the_end(w) if w.mask.is_causal else BY_SEQUENCE, persistent=True,
        max_blocks_per_sm=1,
    )  # fmt: skip


def gen_multicast(tile: FlashTile) -> int:
    """Blocks that share a read of K and V."""
    return SHARED_READS if tile.rows <= 128 else 1


def gen_generation_tile(w: Workload) -> FlashTile:
    """trtllm-gen's generation kernel: the group's heads in the N of the MMA from 8 on (swapsMmaAb), or 64, 128 rows."""
    d, heads = padded(max(w.head_dim, w.head_dim_v)), w.group * w.seq_q
    rows = next((size for size in (8, 16, 32, 64) if heads <= size), 128)
    kv_tile = 2 * 128 * d * w.element_bytes
    stages = max(1, min(3, (224 * 1024 - rows * d * w.element_bytes) // kv_tile))  # of 227 KiB
    return FlashTile(
        rows, 128, warps=8, loop="staged", stages=stages, extra_threads=128, registers=128, path="tcgen05",
        pack_gqa=True, persistent=True, max_blocks_per_sm=1, order=BY_SEQUENCE,
    )  # fmt: skip


def gen_splits(w: Workload, gpu: Gpu, tile: FlashTile) -> int:
    """Blocks a sequence: as many as SMs are left, each with at least two steps of keys in its window."""
    reach = w.seq_kv
    if w.mask.left is not None and w.mask.left + 1 < w.seq_kv:
        reach = min(w.seq_kv, w.mask.left + GEN_KEYS)
    blocks = w.batch * w.heads_kv * -(-w.group * w.seq_q // tile.rows)
    return min(-(-reach // (2 * GEN_KEYS)), max(1, gpu.sm.count // blocks))
