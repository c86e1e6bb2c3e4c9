"""Kernels that vLLM and SGLang launch for one attention layer: cache write, attention over a paged cache, combine.

The kernel sequences follow the frameworks' FlashAttention back ends and the split rules of
``csrc/flash_attn/flash_api.cpp``, ``hopper/heuristics.h`` and ``hopper/flash_prepare_scheduler.cu`` of their forks of
Dao-AILab/flash-attention.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from attnsim.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.flash_attention import (
    FA2,
    FA3,
    counted,
    fa2_split,
    fa3_shape,
    hopper_tile,
    shape_of,
    small_shared_memory,
)
from attnsim.models.implementations.flash_attention_4 import flash4
from attnsim.models.implementations.fused.building import fa2_combine, flash_schedule, one_query, override
from attnsim.models.implementations.fused.forward import flash_forward
from attnsim.models.implementations.fused.splits import (
    MAX_SPLITS,
    cache_write,
    combine,
    copy_rows,
    fa3_combine,
    fa3_combine_blocks,
    fa3_splits,
    split_count,
    store_cache,
)
from attnsim.models.implementations.fused.tile import FlashTile, FusedTiles, Order
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.models.schedule.splits import UNCUT, Splits

GROUP = 31
"""Sequences that FA3's variable-length scheduler examines together (``hopper/tile_scheduler.hpp``)."""
GROUP_CLKS = by_hand(1120, "clocks that FA3's scheduler takes from one group of 31 sequences to the next")
"""Two dependent loads and two prefix sums of a warp. Derived from decode steps with one KV head and 256 or 512
sequences."""
LARGEST_PREPARED = 992
"""Sequences up to which the scheduler's metadata is contiguous; beyond, no such latency appears."""
SEGMENTS, FEW_BLOCKS = 16, 128
"""Ranges of a sequence's keys in vLLM's Triton kernel, and the largest number of unsplit blocks for which it splits
(``triton_attn.py``: `NUM_PAR_SOFTMAX_SEGMENTS`, `MIN_LAUNCH_GRID_SIZE_2D`)."""
GRAPH_SPLITS, GRAPH_TOKENS = 32, 512
"""vLLM's bound on splits in a captured graph (``VLLM_FLASH_ATTN_MAX_NUM_SPLITS_FOR_CUDA_GRAPH``), and the tokens of its
largest graph."""


def fa3_paged(w: Workload, gpu: Gpu, *, vllm: bool) -> FlashTile:
    """FA3's sm_90 forward kernel with K and V gathered by cp.async, as in every serving call with small pages.

    GQA is always packed and its rows are stored one by one (``hopper/pack_gqa.h``). vLLM's fork has one MMA warpgroup
    if that holds all rows, counts the tiles of a window from its first key, and at head_dim 64 does not overlap the
    GEMMs of a window's steps (``hopper/tile_size.h``, ``hopper/block.h``). Its local kernel has all warpgroups for one
    query too: in AIConfigurator's table a decode step takes 2 us (head_dim 128) and 5 us (64) longer from the length at
    which the window cuts, with one key tile left.
    """
    packed, local = w.group > 1, w.mask.is_windowed
    shape, in_smem = fa3_shape(w, paged=True)
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
    """FA3's sm_90 forward kernel for packed sequences, as encoders call it: TMA copies, no clusters.

    At head_dim 64 the tile is that of source trees since 2025, 192 x 192 with P through shared memory.
    """
    shape, in_smem = fa3_shape(w, paged=False)
    if w.head_dim <= 64 and w.mask == Mask() and w.dtype != "fp8":
        shape, in_smem = (192, 192), True
    masked = w.mask.is_causal or w.mask.is_windowed
    order: Order = "longest_first_by_sequence" if masked and w.lengths else "ascending"
    return hopper_tile(*shape, p_in_smem=in_smem, order=order, pack_gqa=w.group > 1)


def fa3_ampere(w: Workload, gpu: Gpu, split: bool = False) -> FlashTile:
    """FA3's sm_80 code path, which SGLang runs on Ampere and Ada: GQA always packed."""
    shape = shape_of("fa3 sm80", w, split=split, small=small_shared_memory(gpu))
    return FlashTile(**shape, pack_gqa=True, looks_up_pages=True)


def vllm_fa2(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """vLLM with FlashAttention-2: cache write, then the split-KV kernel that a page table forces.

    For one query, the query heads of a group are packed into the rows of one tile and keys are split, unless there is a
    window, even one that covers the cache: ``mha_varlen_fwd`` checks before it drops such a window.
    """
    swapped = w.seq_q == 1 and w.group > 1 and not w.mask.is_windowed
    transposed = swapped and w.batch > 1 and w.heads_kv > 1
    w_main = one_query(w.bounded())
    split_tile = counted(fa2_split(w, gpu), f"{FA2} split", w, gpu)
    tile = override(replace(split_tile, pack_gqa=swapped), shape, w_main, gpu)
    splits = UNCUT
    if swapped:
        tiles_launched = w.batch * w.heads_kv * -(-w.group // 64)
        splits = Splits(split_count(tiles_launched, 2 * gpu.sm.count, -(-w.seq_kv // tile.keys)))
    kernels = [cache_write(w, w.new_tokens)]
    if transposed:
        kernels.append(copy_rows(w, "Q"))
    kernels.append(flash_forward(w_main, gpu, tile, "flash_fwd_splitkv", splits))
    if splits.partial:
        kernels.append(fa2_combine(w, splits.count))
    if transposed:
        kernels.append(copy_rows(w, "O"))
    return flash_schedule(w_main, "vllm.flash-attn-2", kernels, FusedTiles(tile), splits)


def sglang_fa3_sm80(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """SGLang on Ampere and Ada: cache write, prepare, FA3's sm_80 path, combine."""
    w_main = one_query(w)
    split_tile = fa3_ampere(w, gpu, split=True)
    upper, splits = _varlen_splits(w_main, gpu, split_tile)
    base = counted(split_tile, f"{FA2} split", w, gpu) if upper > 1 else counted(fa3_ampere(w, gpu), FA2, w, gpu)
    tile = override(base, shape, w_main, gpu)
    if upper > 1:
        tile = replace(tile, persistent=True, max_blocks_per_sm=1)
    kernels = [
        *store_cache(w, w.new_tokens),
        _prepare(w),
        flash_forward(w_main, gpu, tile, "flash_fwd_sm80", splits),
    ]
    # As on Hopper, but launched after the main kernel.
    kernels += [replace(one, launched_early=False) for one in _combined(w, upper, splits, alone=True)]
    return flash_schedule(w_main, "sglang.fa3-sm80", kernels, FusedTiles(tile), splits)


def serving_hopper(w: Workload, gpu: Gpu, shape: TileRequest | None, name: str, vllm: bool) -> Schedule:
    """Serving with vLLM or SGLang on Hopper: cache write, FA3 on the paged cp.async path with packed GQA, combine."""
    w_main = w if 64 < w.head_dim <= 128 else one_query(w)
    base = fa3_paged(w_main, gpu, vllm=vllm)
    graph = vllm and w.queries <= GRAPH_TOKENS
    upper, splits = _varlen_splits(w_main, gpu, base, GRAPH_SPLITS if graph else MAX_SPLITS)
    tile = override(base, shape, w_main, gpu)
    new = w.new_tokens
    fetch = _fetch_clks(w, gpu, tile, splits)
    main = flash_forward(w_main, gpu, tile, splits=splits, fetch_clks=fetch)
    if vllm:
        kernels = [cache_write(w, new), main]
    else:
        kernels = [*store_cache(w, new), _prepare(w), replace(main, launched_early=True)]
    kernels += _combined(w, upper, splits)
    return flash_schedule(w_main, name, kernels, FusedTiles(tile), splits)


def encoder_hopper(w: Workload, gpu: Gpu, shape: TileRequest | None, name: str, split: bool) -> Schedule:
    """An encoder's `flash_attn_varlen_func` on Hopper: prepare, FA3 without clusters, combine if keys are split."""
    base = counted(fa3_varlen(w, gpu), FA3, w, gpu)
    upper, splits = _varlen_splits(w, gpu, base) if split else (1, UNCUT)
    tile = override(base, shape, w, gpu)
    main = flash_forward(w, gpu, tile, splits=splits)
    kernels = [_prepare(w), replace(main, launched_early=True), *_combined(w, upper, splits)]
    return flash_schedule(w, name, kernels, FusedTiles(tile), splits)


def _fetch_clks(w: Workload, gpu: Gpu, tile: FlashTile, splits: Splits) -> int:
    """Latency of finding a tile: scheduler groups between two successive tiles of an SM, which are one per SM apart."""
    if w.batch > LARGEST_PREPARED:
        return 0
    tiles = sum(
        one.times * -(-one.queries * w.group // tile.rows) * splits.of(part).count for part, one in enumerate(w.parts)
    )
    of_sequence = w.heads_kv * tiles / w.batch
    groups = min(gpu.sm.count / (GROUP * of_sequence), w.batch / GROUP)
    return round(GROUP_CLKS * groups)


def _varlen_splits(w: Workload, gpu: Gpu, tile: FlashTile, bound: int = MAX_SPLITS) -> tuple[int, Splits]:
    """FA3's limit on the splits of a single sequence, and the splits that the lengths of all sequences then get.

    The limit counts the keys that a window loads (``get_num_splits``), the second rule those of the whole cache.
    """
    rows = -(-w.seq_q * (w.group if tile.pack_gqa else 1) // tile.rows)
    heads = w.heads_kv if tile.pack_gqa else w.heads_q
    upper = min(bound, fa3_splits(w, gpu, heads * rows, tile))
    if upper == 1:
        return 1, UNCUT
    key_tiles = [-(-one.keys // tile.keys) for one in w.parts]
    row_tiles = [-(-one.queries * (w.group if tile.pack_gqa else 1) // tile.rows) for one in w.parts]
    visits = sum(one.times * m * n for one, m, n in zip(w.parts, row_tiles, key_tiles, strict=True))
    per_sm = max(1, -(-int(1.1 * visits * heads) // gpu.sm.count))
    each = tuple(min(upper, max(1, -(-n // per_sm))) for n in key_tiles)
    return upper, Splits(max(each), of_seen=True, each=each if len(set(each)) > 1 else ())


def _prepare(w: Workload) -> Kernel:
    """FA3's `prepare_varlen_num_blocks`: one block per 992 sequences."""
    sizes = [Access("lengths", 8 * w.batch), Access("splits", 4 * w.batch, True)]
    return streaming("prepare", sizes, elements=w.batch, threads=1024, blocks=-(-w.batch // 992))


def _combined(w: Workload, upper: int, splits: Splits, alone: bool = False) -> list[Kernel]:
    """FA3's combine kernel, if sequences may be split.

    If nothing was split, the blocks of its whole grid read their split count and return.
    """
    if upper == 1 or splits.partial:
        return [fa3_combine(w, splits, alone)] if upper > 1 else []
    blocks = fa3_combine_blocks(w)
    kernel = streaming("combine (exits)", [Access("splits", 4 * blocks)], elements=blocks, blocks=blocks)
    return [replace(kernel, launched_early=True)]


def vllm_fa4(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """vLLM with FlashAttention-4 on data-centre Blackwell: cache write, then the kernel, which chooses its splits."""
    schedule = flash4(w, gpu, shape, "vllm.flash-attn-4", may_split=True)
    return replace(schedule, kernels=(cache_write(w, w.new_tokens), *schedule.kernels))


def vllm_triton(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """vLLM's Triton kernel for all passes: cache write, then blocks of 16 rows of a group's queries, 32 keys per step.

    For one query of few sequences, keys are split over `SEGMENTS` blocks, 16 keys per step
    (``vllm/v1/attention/ops/triton_unified_attention.py``). 16 rows are too few for wgmma and tcgen05.
    """
    w_main = one_query(w)
    shared_out = w.seq_q == 1 and w.batch * w.heads_kv <= FEW_BLOCKS
    rows = max(16, 1 << (w.group - 1).bit_length())
    base = FlashTile(rows, 16 if shared_out else 32, loop="staged", stages=3, pack_gqa=True, warps_share_keys=True)
    base = replace(base, cache_bytes=w.cache_bytes if w.kv_dtype else 0)
    base = replace(base, order="planned")  # a row tile finds its sequence, `find_seq_idx`
    tile = override(base, shape, w_main, gpu)
    splits = Splits(min(SEGMENTS, -(-w.seq_kv // tile.keys)) if shared_out else 1)
    kernels = [cache_write(w, w.new_tokens), flash_forward(w_main, gpu, tile, splits=splits)]
    if splits.partial:
        kernels.append(combine(w, splits.count, 1, 128))
    return flash_schedule(w_main, "vllm.triton", kernels, FusedTiles(tile), splits)


RECORDS = (
    record("vllm.triton", vllm_triton),
    record("vllm.flash-attn-4", vllm_fa4),
    record("vllm.flash-attn-2", vllm_fa2),
    record("sglang.fa3-sm80", sglang_fa3_sm80),
    record("vllm.flash-attn-3", partial(serving_hopper, name="vllm.flash-attn-3", vllm=True)),
    record("sglang.fa3", partial(serving_hopper, name="sglang.fa3", vllm=False)),
    record("sglang.vit-fa3", partial(encoder_hopper, name="sglang.vit-fa3", split=False)),
    record("vllm.vit-flash-attn-3", partial(encoder_hopper, name="vllm.vit-flash-attn-3", split=True)),
)
