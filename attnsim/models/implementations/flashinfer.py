"""FlashInfer's own kernels: its FlashAttention-2 and FlashAttention-3 back ends (flashinfer-ai/flashinfer@fb28d724).

``include/flashinfer/attention/{prefill,scheduler}.cuh``, ``hopper/``. The rows of a tile are the queries of a whole
group; keys are shared out over blocks where tiles are few. Decoding is played by the same kernel, as
`BatchDecodeWithPagedKVCacheWrapper` runs it with `use_tensor_cores`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.flash_attention import hopper_tile
from attnsim.models.implementations.fused.building import flash_schedule, one_query, override
from attnsim.models.implementations.fused.forward import flash_forward
from attnsim.models.implementations.fused.splits import (
    MERGE_INSTRUCTIONS,
    cache_write,
    merged,
    merged_rows,
    merging,
    store_cache,
)
from attnsim.models.implementations.fused.tile import FlashTile, FusedTiles, Order
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.nest import Nest, loop, once
from attnsim.models.schedule.operation import TileOp
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.models.schedule.splits import UNCUT, Splits
from attnsim.models.schedule.widths import padded

Write = Callable[[Workload, int], list[Kernel]]
FRAGMENT = 16
"""Rows and keys of an MMA instruction's tile."""
LANES, WARPS, STAGES = 32, 4, 4
"""Of a block that merges: threads of a row, partial results at a time, and how many times as many are in flight."""
EARLY = 90
"""Compute capability from which kernels are launched while the one before drains (`device_support_pdl`)."""
LEAST_CHUNK = 128
"""Fewest keys of a block where they are shared out (`PrefillBinarySearchKVChunkSize`)."""


def fa2_tile(w: Workload, gpu: Gpu) -> FlashTile:
    """Rows by the mean packed length (`FA2DetermineCtaTileQ`), keys by what two blocks an SM leave of memory.

    Above head_dim 128 the accumulators of 128 rows leave no room for a score (`KernelTraits::IsInvalid`): 64 rows.
    """
    d, dv, e = padded(w.head_dim), padded(w.head_dim_v), w.element_bytes
    packed = w.queries * w.group // w.batch
    rows = 128 if packed > 64 and max(d, dv) <= 128 else 64 if packed > FRAGMENT else FRAGMENT
    over_keys = 4 if rows == FRAGMENT else 1  # warps that lie along the keys
    each = (d + dv) * FRAGMENT * over_keys * e
    limit = gpu.sm.shared_memory_per_block_bytes
    if gpu.sm.shared_memory_bytes >= 2 * (rows * d * e + each):
        limit = min(limit, gpu.sm.shared_memory_bytes // 2 - 1024)
    fragments = min(4 if rows == 128 else 8, max(1, (limit - rows * d * e) // each))
    keys = FRAGMENT * over_keys * fragments
    return FlashTile(rows, keys, pack_gqa=True, warps_share_keys=rows == FRAGMENT, order="planned")


def plan(w: Workload, gpu: Gpu, tile: FlashTile) -> Splits:
    """The chunks of keys that `PrefillPlan` cuts: the shortest with which all work items fit two blocks an SM.

    `PrefillBinarySearchKVChunkSize`; of a window the keys that a row tile may see count. Here chunks are whole
    key tiles. Where any sequence is cut, the results of all go through the merge kernel.
    """
    key_tiles = np.array([-(-one.keys // tile.keys) for one in w.parts])
    if w.mask.is_windowed and w.mask.left is not None:  # wherever in a tile it begins
        key_tiles = np.minimum(key_tiles, -(-(w.mask.left + tile.rows) // tile.keys) + 1)
    items = np.array([one.times * -(-one.queries * w.group // tile.rows) for one in w.parts])
    most = 2 * gpu.sm.count // w.heads_kv
    low, high = min(-(-LEAST_CHUNK // tile.keys), int(key_tiles.max())), int(key_tiles.max())
    while low < high:
        middle = (low + high) // 2
        if int(items @ -(-key_tiles // middle)) > most:
            low = middle + 1
        else:
            high = middle
    each = [-(-int(n) // low) for n in key_tiles]
    if max(each) == 1:
        return UNCUT
    return Splits(
        max(each), of_seen=w.mask.is_windowed, each=tuple(each) if len(w.parts) > 1 else (), direct=False, chunk=low
    )


def merge_states(w: Workload, gpu: Gpu, splits: Splits) -> Kernel:
    """The kernel that merges partial results: a block a row of a head, four of them at a time, sixteen in flight.

    `PersistentVariableLengthMergeStatesKernel` of ``include/flashinfer/attention/cascade.cuh``: as many blocks as fit
    stay; each thread computes two exponentials a partial result, and the four warps merge theirs at the end.
    """
    width, runs = w.head_dim_v, merged_rows(w, splits)
    (parts, sums, out), uses = merged(w, runs, columns=width)
    work = TileOp("vector", "O", exps=2 * LANES * WARPS, fp32=MERGE_INSTRUCTIONS * WARPS * width)

    def body(ranges: int) -> Nest:
        steps = -(-ranges // WARPS)
        ahead, load = min(steps, STAGES), parts.load(WARPS * width)
        rest = parts.load((ranges - (steps - 1) * WARPS) * width)

        def turn(load_next: bool) -> Iterator[TileOp]:
            yield from (parts.wait(), work)
            if load_next:
                yield load

        return [
            *once("first", [rest, *[load] * (ahead - 1), sums.load(ranges), sums.wait()]),
            *loop("split", steps, turn, load_next=steps - ahead),
            *once("store", [work, out.store(width)]),
        ]

    buffers = (("O", STAGES * WARPS * width * 4), ("LSE", LANES * WARPS * 4))
    early = gpu.compute_capability_number >= EARLY
    return merging(
        "combine (states)", list(runs.items()), body, threads=LANES * WARPS, buffers=buffers, uses=uses,
        persistent=True, launched_early=early,
    )  # fmt: skip


def fa2(w: Workload, gpu: Gpu, shape: TileRequest | None, name: str, write: Write | None) -> Schedule:
    """The FlashAttention-2 back end, after the kernel with which a framework writes the cache."""
    w_main = one_query(w)
    tile = override(fa2_tile(w_main, gpu), shape, w_main, gpu)
    splits = plan(w_main, gpu, tile)
    kernels = write(w, w.new_tokens) if write else []
    kernels.append(flash_forward(w_main, gpu, tile, splits=splits))
    if splits.partial:
        kernels.append(merge_states(w, gpu, splits))
    return flash_schedule(w_main, name, kernels, FusedTiles(tile), splits)


def fa3(w: Workload, gpu: Gpu, shape: TileRequest | None, name: str, paged: bool) -> Schedule:
    """The FlashAttention-3 back end: heads are not packed, keys not split, most keys first (`PrefillSM90Plan`).

    Of a paged cache a kernel before it turns page numbers into an offset a token
    (`block_sparse_indices_to_vector_sparse_offsets`), by which keys are gathered.
    """
    w_main = one_query(w)
    d, masked = padded(w.head_dim), w_main.mask.is_causal or w_main.mask.is_windowed
    rows, keys = (192, 128) if d <= 64 else (128, 128 if masked or d > 128 else 192) if d <= 192 else (128, 64)
    order: Order = "planned" if w.lengths else "longest_first" if masked else "ascending"
    tile = override(hopper_tile(rows, keys, order=order), shape, w_main, gpu)
    kernels = [flash_forward(w_main, gpu, tile)]
    if paged:
        sizes = [Access("page numbers", 4 * w.keys), Access("token offsets", 4 * w.keys, True)]
        kernels.insert(0, streaming("page offsets", sizes, elements=w.keys, blocks=gpu.sm.count))
    return flash_schedule(w_main, name, kernels, FusedTiles(tile))


RECORDS = (
    record("flashinfer.fa2", partial(fa2, name="flashinfer.fa2", write=None)),
    record("flashinfer.fa3", partial(fa3, name="flashinfer.fa3", paged=False)),
    record("flashinfer.fa3-paged", partial(fa3, name="flashinfer.fa3-paged", paged=True)),
    record("vllm.flashinfer", partial(fa2, name="vllm.flashinfer", write=lambda w, n: [cache_write(w, n)])),
    record("sglang.flashinfer", partial(fa2, name="sglang.flashinfer", write=store_cache)),
)
