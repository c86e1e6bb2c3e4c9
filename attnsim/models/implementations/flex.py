"""FlexAttention, compiled by Triton: ``torch/_inductor/template_heuristics`` and ``kernel/flex_attention.py`` (2.7).

The tiles are the defaults of the templates, which PyTorch uses unless autotuning is requested. Few queries are decoded
by a separate kernel that splits the keys over blocks.
"""

from __future__ import annotations

from dataclasses import replace

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.backward import two_pass_backward
from attnsim.models.implementations.fused.building import (
    Attended,
    each_way,
    fitting,
    one_query,
    override,
)
from attnsim.models.implementations.fused.forward import flash_forward
from attnsim.models.implementations.fused.splits import combine
from attnsim.models.implementations.fused.tile import BackwardTile, FlashTile, fits
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Path, Schedule
from attnsim.models.schedule.splits import UNCUT, Splits

NAME = "torch.flex"
FEW_QUERIES = 128
"""Queries below which the decoding kernel runs (`_use_flex_decoding`)."""

Shape = tuple[int, int, int]
"""Rows, keys, warps."""
_AMPERE: dict[int, Shape] = {64: (128, 64, 4), 128: (128, 64, 8), 256: (32, 64, 4)}
_HOPPER: dict[int, Shape] = {64: (128, 128, 4), 128: (128, 64, 8), 256: (64, 32, 4)}
_BLACKWELL: dict[int, Shape] = {64: (128, 128, 4), 128: (128, 64, 8), 256: (64, 32, 4)}
"""`sm_100_default_flex_config` of 2.9, fp16 as bf16."""
_OTHERS: Shape = (128, 64, 4)
_WIDE: Shape = (64, 32, 4)
"""Above head_dim 256 (`get_flex_attn_fwd_configs`)."""
_STAGES = 3


def _path(gpu: Gpu, rows: int) -> Path:
    """Instruction path that Triton chooses for a warpgroup of 64 rows: wgmma, or tcgen05 on data-centre Blackwell."""
    if rows < 64:
        return "mma_sync"
    return "tcgen05" if gpu.features.tcgen05 else "wgmma" if gpu.features.wgmma else "mma_sync"


def choose_tile(w: Workload, gpu: Gpu) -> FlashTile:
    """Default of the forward template, with fewer stages, keys or rows if it does not fit."""
    d = max(w.head_dim, w.head_dim_v)
    listed = _BLACKWELL if gpu.features.tcgen05 else _HOPPER if gpu.features.wgmma else _AMPERE
    rows, keys, warps = listed.get(d, _OTHERS if d <= 256 else _WIDE)
    if gpu.features.wgmma and d == 128 and w.dtype == "fp16":
        keys = 128
    for height in (rows, rows // 2):
        for width in (keys, keys // 2):
            for stages in range(_STAGES, 0, -1):
                path = _path(gpu, height)
                groups = 1 if path == "tcgen05" else max(1, warps // 4)
                tile = FlashTile(height, width, warps=warps, loop="staged", stages=stages, path=path, warpgroups=groups)
                tile = replace(tile, rescale="through_registers") if path == "tcgen05" else tile
                if fits(tile, w, gpu):
                    return tile
    return tile


def decode_tile(w: Workload, gpu: Gpu) -> FlashTile:
    """Decoding template: the heads of a group in at least 16 rows."""
    rows = max(16, 1 << (w.seq_q * w.group - 1).bit_length())
    keys = 128 if max(w.head_dim, w.head_dim_v) <= 64 else 64
    return fitting(FlashTile(min(rows, 128), keys, loop="staged", stages=_STAGES, pack_gqa=True), w, gpu)


def choose_backward(w: Workload, gpu: Gpu) -> BackwardTile:
    """The backward template's default."""
    d, hopper = max(w.head_dim, w.head_dim_v), gpu.features.wgmma
    rows, keys, warps = (64, 128, 8) if d == 128 else (32, 128, 4) if d == 64 and not hopper else (64, 64, 4)
    if gpu.features.tcgen05:  # `get_flex_attn_bwd_configs` of 2.9, "sm10x"
        rows, keys, warps = (64, 128, 4) if d <= 128 else (64, 64, 4)
    if d > 256:
        rows, keys, warps = 16, 16, 4
    if gpu.sm.shared_memory_per_block_bytes < 128 << 10:
        keys = min(keys, 64)
    return BackwardTile(rows, keys, warps=warps, stages_q=1, v_in_registers=d > 128, path=_path(gpu, rows))


def flex(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """FlexAttention with a mask that its block mask represents exactly: no scores are computed outside."""
    w_main = one_query(w)

    def forward() -> Attended:
        few = w.seq_q < FEW_QUERIES and w.passes in ("fwd", "decode")
        tile = override(decode_tile(w, gpu) if few else choose_tile(w, gpu), shape, w_main, gpu)
        splits = Splits(_split_count(w, gpu, tile)) if few else UNCUT
        main = flash_forward(w_main, gpu, tile, splits=splits)
        return [main, *([combine(w, splits.count, 4, 128)] if splits.partial else [])], tile, splits

    return each_way(w, NAME, shape, forward, lambda: choose_backward(w, gpu), two_pass_backward)


def _split_count(w: Workload, gpu: Gpu, tile: FlashTile) -> int:
    """Two blocks per SM, each with at least one key tile (`get_split_k`)."""
    heads = w.batch * w.heads_kv
    return max(1, min(2 * (gpu.sm.count // heads), -(-w.seq_kv // tile.keys)))


RECORDS = (record(NAME, flex),)
