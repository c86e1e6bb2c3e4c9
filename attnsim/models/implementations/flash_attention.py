"""FlashAttention-1, -2 and -3 of Dao-AILab/flash-attention: tiles by head_dim, GPU and mask, kernels, records.

Facts of public source, nothing fitted. FlashAttention-2: ``csrc/flash_attn/src/flash_{fwd,bwd}_launch_template.h``
(v2.8.3); FlashAttention-3: ``hopper/tile_size.h`` and ``hopper/flash_bwd_launch_template.h`` (commit 0251105a).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.building import (
    Attended,
    each_way,
    fa2_combine,
    flash_schedule,
    one_query,
    override,
)
from attnsim.models.implementations.fused.flash1 import ROWS as FLASH1_ROWS
from attnsim.models.implementations.fused.flash1 import flash1_backward, flash1_forward, key_block
from attnsim.models.implementations.fused.forward import flash_forward
from attnsim.models.implementations.fused.splits import fa3_combine, fa3_splits, split_count
from attnsim.models.implementations.fused.tile import BackwardTile, FlashTile, Loop, Order
from attnsim.models.implementations.implementation import Builder, TileRequest, preset, record
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import step_counts
from attnsim.models.schedule.row_tiles import padded
from attnsim.models.schedule.schedule import Schedule, in_step
from attnsim.models.schedule.splits import UNCUT, Splits
from attnsim.tables import read_csv

KIB = 1024
FA2, FA3 = "flash-attn.2", "flash-attn.3"
"""Kernels whose machine code is counted (``schedule/instructions.csv``)."""


def flash1(w: Workload, gpu: Gpu, shape: TileRequest | None, name: str = "flash-attn.1") -> Schedule:
    """FlashAttention-1, as the implementation of that name calls it."""
    kernels = [flash1_forward(w, gpu)] if "fwd" in w.directions else []
    if "bwd" in w.directions:
        kernels += flash1_backward(w, gpu)
    return flash_schedule(w, name, kernels, f"{FLASH1_ROWS} x {key_block(w, gpu)}, keys outside")


def small_shared_memory(gpu: Gpu) -> bool:
    """sm_86, sm_89 and sm_120 have 99 KiB a block; FlashAttention-3 keeps separate tiles for them."""
    return architecture_of(gpu.compute_capability_number).small_shared_memory


@cache
def _shapes() -> dict[str, list[dict[str, str]]]:
    """The rows of ``flash_attention.csv`` by kernel, the first that holds first."""
    found: dict[str, list[dict[str, str]]] = {}
    for row in read_csv(Path(__file__).with_suffix(".csv")):
        found.setdefault(row["kernel"], []).append(row)
    return found


def shape_of(kernel: str, w: Workload, gpu: Gpu | None = None, width: int = 0, **holds: bool) -> dict[str, Any]:
    """Fields of a tile: of the first row of a kernel whose words hold, and that is as wide as the heads, or `width`.

    Words are ``causal``, ``local`` (a window), ``narrow`` (either), ``dropout``, and those that the caller says.
    """
    causal, local = w.mask.is_causal, w.mask.is_windowed
    holds = {"causal": causal, "local": local, "narrow": causal or local, "dropout": w.dropout} | holds
    limit = gpu.sm.shared_memory_per_block_bytes if gpu else 0
    width = padded(width or max(w.head_dim, w.head_dim_v))
    row = next(
        one
        for one in _shapes()[kernel]
        if width <= int(one["widest"] or width)
        and all(holds[word] for word in one["when"].split())
        and limit >= KIB * int(one["least_kib"] or 0)
    )
    sizes = {name: int(row[name]) for name in ("rows", "keys", "warps", "warpgroups", "stages_q") if row[name]}
    return sizes | dict.fromkeys(row["flags"].split(), True)


def fa2_forward(w: Workload, gpu: Gpu) -> FlashTile:
    """FA2's standard forward kernel."""
    sm8x = 80 < gpu.compute_capability_number < 90  # sm_120, as small, has A100's tiles
    return FlashTile(**shape_of("fa2", w, gpu, sm8x=sm8x, roomy=gpu.sm.shared_memory_bytes < 192 * KIB))


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
    return BackwardTile(**shape_of("fa2 backward", w, gpu))


Tile = TypeVar("Tile", FlashTile, BackwardTile)


def counted(tile: Tile, kernel: str, w: Workload, gpu: Gpu) -> Tile:
    """The tile with the instruction counts of a kernel's machine code; unchanged if `kernel` is empty."""
    if not kernel:
        return tile
    backward = " backward" if isinstance(tile, BackwardTile) else ""
    counts = step_counts(f"{kernel}{backward}", gpu.compute_capability_number, padded(w.head_dim_v))
    return replace(tile, counts=counts)


def _flash2_forward(
    w: Workload, gpu: Gpu, shape: TileRequest | None, machine: str, one_split: bool = False
) -> Attended:
    """FA2's `mha_fwd`: the split-KV kernel if its rule gives more than one split, otherwise the standard kernel.

    `one_split` runs the split-KV kernel without a split, as `mha_fwd_kvcache` with ``num_splits=1`` does if the cache
    has an index or pages (`force_split_kernel`).
    """
    w = one_query(w)
    swapped = w.seq_q == 1 and w.group > 1 and not w.mask.is_windowed
    split_tile = counted(replace(fa2_split(w, gpu), pack_gqa=swapped), machine and f"{machine} split", w, gpu)
    heads = w.batch * (w.heads_kv if swapped else w.heads_q)
    rows = -(-w.seq_q * (w.group if swapped else 1) // 64)
    # `mha_varlen_fwd` cuts keys for one query a sequence only (``csrc/flash_attn/flash_api.cpp``).
    uncut = w.dropout or (w.lengths and not swapped) or one_split
    splits = 1 if uncut else split_count(heads * rows, 2 * gpu.sm.count, -(-w.seq_kv // split_tile.keys))
    if splits > 1 or one_split or w.page_size:  # `run_mha_fwd` forces the split kernel, which alone has a page table
        tile = override(split_tile, shape, w, gpu)
        ranges = Splits(min(splits, -(-w.seq_kv // tile.keys)))
        main = flash_forward(w, gpu, tile, "flash_fwd_splitkv", ranges)
        return [main, *([fa2_combine(w, ranges.count)] if ranges.partial else [])], tile, ranges
    tile = counted(replace(fa2_forward(w, gpu), pack_gqa=swapped), machine, w, gpu)
    tile = override(tile, shape, w, gpu)
    return [flash_forward(w, gpu, tile)], tile, UNCUT


def flash2_unsplit(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """FlashAttention-2 before 2.2, which brought split-KV kernels (README, "2.2: Optimize for inference")."""

    def forward() -> Attended:
        tile = override(counted(fa2_forward(w, gpu), FA2, w, gpu), shape, w, gpu)
        return [flash_forward(w, gpu, tile)], tile, UNCUT

    return each_way(w, "flash-attn.2-unsplit", shape, forward, lambda: counted(fa2_backward(w, gpu), FA2, w, gpu))


def flash2(
    w: Workload,
    gpu: Gpu,
    shape: TileRequest | None,
    name: str = "flash-attn.2",
    machine: str = FA2,
    one_split: bool = False,
) -> Schedule:
    """FlashAttention-2, forward and backward; `machine`: kernel whose instruction counts apply, "" for none."""
    forward = partial(_flash2_forward, w, gpu, shape, machine, one_split)
    return each_way(w, name, shape, forward, lambda: counted(fa2_backward(w, gpu), machine, w, gpu))


def fa3_forward(w: Workload, gpu: Gpu, pack_gqa: bool = False) -> FlashTile:
    """FA3's sm_90 forward kernel: TMA copies, or cp.async for few rows and for pages without whole tiles."""
    narrow = w.mask.is_causal or w.mask.is_windowed
    shape, in_smem = fa3_shape(w, paged=False)
    order: Order = "longest_first" if narrow else "ascending"
    if gathers(w, *shape):
        shape, in_smem = fa3_shape(w, paged=True)
        tile = hopper_tile(*shape, p_in_smem=in_smem, order=order, pack_gqa=w.group > 1)
        return replace(tile, by_row=True)
    return hopper_tile(*shape, p_in_smem=in_smem, order=order, pack_gqa=pack_gqa)


def gathers(w: Workload, rows: int, keys: int) -> bool:
    """Return whether FA3 copies a paged cache key by key (`get_pagedkv_tma` of ``hopper/flash_api.cpp``)."""
    return bool(w.page_size) and (w.page_size % keys > 0 or w.seq_q * w.group <= rows)


def fa3_shape(w: Workload, paged: bool) -> tuple[tuple[int, int], bool]:
    """Rows and keys of FA3's sm_90 tile, and whether P V reads P from shared memory.

    At head_dim 64 it is the paper's kernel; trees since 2025 take 192 x 192 without a mask.
    """
    narrow = w.mask.is_causal or w.mask.is_windowed or paged
    kernel = "fa3 fp8" if w.dtype == "fp8" else "fa3"
    found = shape_of(kernel, w, width=w.head_dim, paged=paged, narrow=narrow, narrow_v=padded(w.head_dim_v) <= 128)
    return (found["rows"], found["keys"]), "p_in_smem" in found


def hopper_tile(rows: int, keys: int, **more: Any) -> FlashTile:
    """A warp-specialised Hopper block: one MMA warpgroup per 64 rows and one that loads; one block per SM."""
    groups = rows // 64
    registers = min(255, 65536 // ((groups + 1) * 128) // 8 * 8)
    return FlashTile(rows, keys, warps=4 * groups, warpgroups=groups, registers=registers, **preset("hopper"), **more)


def fa3_backward(w: Workload, gpu: Gpu) -> BackwardTile:
    """FA3's sm_90 backward kernel."""
    shape = shape_of("fa3 backward", w)
    return BackwardTile(**shape, path="wgmma", extra_threads=128, registers=168, v_in_registers=True)


def flash3(
    w: Workload,
    gpu: Gpu,
    shape: TileRequest | None,
    order: Order | None = None,
    machine: str = FA3,
    loop: Loop = "fa3",
) -> Schedule:
    """FlashAttention-3 with fixed lengths, as its paper measured it: TMA, clusters if non-causal.

    `order` replaces its order of row tiles, for kernels that differ only in that and in their instructions. `machine`
    is as in :func:`flash2`, `loop` as in a tile.
    """

    def forward() -> Attended:
        w_fwd = one_query(w)
        base = fa3_forward(w_fwd, gpu)
        base = counted(replace(base, order=order or base.order, loop=loop), machine, w, gpu)
        # `flash_attn_func` never splits; `flash_attn_with_kvcache`, the decode entry, asks the rule.
        rows = -(-w.seq_q * w.group // base.rows)
        cached = w.passes == "decode" or w.page_size
        count = fa3_splits(w_fwd, gpu, w.batch * w.heads_kv * rows, base) if cached else 1
        splits = Splits(count, of_seen=True)
        packed = w.group > 1 and (splits.partial or base.pack_gqa or _packing_pays(w, base.rows))
        tile = override(replace(base, pack_gqa=packed), shape, w_fwd, gpu)
        main = flash_forward(w_fwd, gpu, tile, splits=splits)
        main = replace(main, multicast=2) if _multicast(w_fwd, tile, splits) else main
        return [main, *([fa3_combine(w, count)] if splits.partial else [])], tile, splits

    return each_way(w, "flash-attn.3", shape, forward, lambda: counted(fa3_backward(w, gpu), machine, w, gpu))


def _packing_pays(w: Workload, rows: int) -> bool:
    """FA3 packs a group's heads when that wastes less of the last tile (`should_pack_gqa`)."""

    def efficiency(length: int) -> float:
        return length / (-(-length // rows) * rows)

    return efficiency(w.seq_q) < 0.9 * efficiency(w.seq_q * w.group)


def _multicast(w: Workload, tile: FlashTile, splits: Splits) -> bool:
    """Clusters of two blocks that share K and V: 16-bit, head_dim >= 128, no mask, an even number of row tiles."""
    plain = w.mask == Mask() and not (splits.partial or w.page_size) and tile.path == "wgmma"
    return plain and w.head_dim > 96 and w.element_bytes == 2 and (-(-w.seq_q // tile.rows)) % 2 == 0


def _unspecialized(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """FlashAttention-3 without warp specialisation: a buffer is refilled when all warps have read it, in lockstep."""
    whole = flash3(w, gpu, shape)
    return replace(whole, kernels=tuple(map(in_step, whole.kernels)))


ABLATIONS: Mapping[str, Builder] = {
    "fa3_no_gemm_softmax_pipelining": partial(flash3, loop="staged"),
    "fa3_no_warp_specialization": _unspecialized,
}
"""FlashAttention-3 without one of its two ways to hide the softmax, by the names in table 2 of its paper."""

RECORDS = (
    record("flash-attn.1", flash1),
    record("flash-attn.2-unsplit", flash2_unsplit),
    record("flash-attn.2", flash2),
    record("flash-attn.2-one-split", partial(flash2, name="flash-attn.2-one-split", one_split=True)),
    record("flash-attn.4-sm80", partial(flash2, name="flash-attn.4-sm80", machine="")),
)
