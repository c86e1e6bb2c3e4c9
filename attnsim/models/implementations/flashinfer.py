"""FlashInfer's own kernels: its FlashAttention-2 and FlashAttention-3 back ends (flashinfer-ai/flashinfer@fb28d724).

``include/flashinfer/attention/{prefill,scheduler}.cuh``, ``hopper/``. The rows of a tile are the queries of a whole
group; keys are shared out over blocks where tiles are few. Decoding is played by the same kernel, as
`BatchDecodeWithPagedKVCacheWrapper` runs it with `use_tensor_cores`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.flash_attention import hopper_tile
from attnsim.models.implementations.fused.building import flash_schedule, one_query, override
from attnsim.models.implementations.fused.forward import flash_forward
from attnsim.models.implementations.fused.splits import cache_write, combine, store_cache
from attnsim.models.implementations.fused.tile import FlashTile, FusedTiles, Order
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.models.schedule.splits import Splits
from attnsim.models.schedule.widths import padded

Write = Callable[[Workload, int], list[Kernel]]
FRAGMENT = 16
"""Rows and keys of an MMA instruction's tile."""
LEAST_CHUNK = 128
"""Fewest keys of a block where they are shared out (`PrefillBinarySearchKVChunkSize`)."""


def fa2_tile(w: Workload, gpu: Gpu) -> FlashTile:
    """Rows by the packed length (`FA2DetermineCtaTileQ`), keys by what two blocks an SM leave of memory.

    Above head_dim 128 the accumulators of 128 rows leave no room for a score (`KernelTraits::IsInvalid`): 64 rows.
    """
    d, dv, e = padded(w.head_dim), padded(w.head_dim_v), w.element_bytes
    packed = w.seq_q * w.group
    rows = 128 if packed > 64 and max(d, dv) <= 128 else 64 if packed > FRAGMENT else FRAGMENT
    over_keys = 4 if rows == FRAGMENT else 1  # warps that lie along the keys
    each = (d + dv) * FRAGMENT * over_keys * e
    limit = gpu.sm.shared_memory_per_block_bytes
    if gpu.sm.shared_memory_bytes >= 2 * (rows * d * e + each):
        limit = min(limit, gpu.sm.shared_memory_bytes // 2 - 1024)
    fragments = min(4 if rows == 128 else 8, max(1, (limit - rows * d * e) // each))
    keys = FRAGMENT * over_keys * fragments
    return FlashTile(rows, keys, pack_gqa=True, warps_share_keys=rows == FRAGMENT)


def split_count(w: Workload, gpu: Gpu, tile: FlashTile) -> int:
    """As many chunks of keys as fill two blocks an SM."""
    items = w.batch * -(-w.seq_q * w.group // tile.rows)
    limit = max(1, 2 * gpu.sm.count // w.heads_kv)
    return max(1, min(limit // items, -(-w.seq_kv // max(LEAST_CHUNK, tile.keys))))


def fa2(w: Workload, gpu: Gpu, shape: TileRequest | None, name: str, write: Write | None) -> Schedule:
    """The FlashAttention-2 back end, after the kernel with which a framework writes the cache."""
    w_main = one_query(w)
    tile = override(fa2_tile(w_main, gpu), shape, w_main, gpu)
    splits = Splits(split_count(w, gpu, tile))
    kernels = write(w, w.batch * min(w.seq_q, w.seq_kv)) if write else []
    kernels.append(flash_forward(w_main, gpu, tile, splits=splits))
    if splits.partial:
        kernels.append(combine(w, splits.count, 4, 128))
    return flash_schedule(w_main, name, kernels, FusedTiles(tile), splits)


def fa3(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """The FlashAttention-3 back end: heads are not packed, keys not split, tiles handed out longest first."""
    w_main = one_query(w)
    d, masked = padded(w.head_dim), w_main.mask.is_causal or w_main.mask.is_windowed
    rows, keys = (192, 128) if d <= 64 else (128, 128 if masked or d > 128 else 192) if d <= 192 else (128, 64)
    order: Order = "longest_first" if masked else "ascending"
    tile = override(hopper_tile(rows, keys, order=order), shape, w_main, gpu)
    return flash_schedule(w_main, "flashinfer.fa3", [flash_forward(w_main, gpu, tile)], FusedTiles(tile))


RECORDS = (
    record("flashinfer.fa2", partial(fa2, name="flashinfer.fa2", write=None)),
    record("flashinfer.fa3", fa3),
    record("vllm.flashinfer", partial(fa2, name="vllm.flashinfer", write=lambda w, n: [cache_write(w, n)])),
    record("sglang.flashinfer", partial(fa2, name="sglang.flashinfer", write=store_cache)),
)
