"""NVIDIA cuDNN's fused attention. Its kernels are closed: the nearest public schedule is played."""

from __future__ import annotations

from dataclasses import replace

from attnsim.models.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.flash_attention import fa2_backward, flash2, flash3
from attnsim.models.implementations.flash_attention_4 import plain_tile
from attnsim.models.implementations.fused.backward import flash_backward
from attnsim.models.implementations.fused.building import (
    fa2_combine,
    fitting,
    flash_schedule,
    one_kernel_each_way,
    one_query,
    override,
    override_backward,
)
from attnsim.models.implementations.fused.forward import flash_forward
from attnsim.models.implementations.fused.splits import split_count
from attnsim.models.implementations.fused.tile import FlashTile, FusedTiles
from attnsim.models.implementations.implementation import Builder, TileRequest, record
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule
from attnsim.models.schedule.splits import UNCUT, Splits

TILE = by_hand(
    FlashTile(128, 128, warps=8, warpgroups=2, max_blocks_per_sm=1),
    "stand-in for the tile of cuDNN's closed kernels before Hopper, one block an SM: read off the waves of its times",
)
DECODE_TILE = by_hand(
    FlashTile(16, 128, loop="staged", stages=2, registers=128, pack_gqa=True),
    "the same in decode: 16 packed rows",
)

_CLOSED = ("closed source: tiles and order are those of the nearest public kernel",)


def choose_tile(w: Workload, gpu: Gpu, decode: bool) -> FlashTile:
    """A stand-in for cuDNN's closed kernels before Hopper: 128 rows, one block an SM; 16 packed rows in decode."""
    return fitting(DECODE_TILE if decode else TILE, w, gpu)


def _nearest_public(name: str) -> Builder:
    """A closed implementation: FA2's schedule before Hopper, FA3's on it, FA4's forward on Blackwell."""

    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        if gpu.features.tcgen05 and w.passes == "fwd":
            schedule = one_kernel_each_way(name, plain_tile, fa2_backward)(w, gpu, shape)
        else:
            schedule = flash3(w, gpu, shape) if gpu.features.wgmma else flash2(w, gpu, shape)
        return replace(schedule, implementation=name, notes=_CLOSED)

    return build


def _cudnn(name: str) -> Builder:
    """cuDNN's fused attention: FA3's schedule on Hopper; before it, what its timings show.

    Its chunked-prefill times on A100 step with whole waves of 128-row blocks, one to an SM, and its decode reaches the
    HBM bandwidth with 8 query heads a key head, which a 64-row tile cannot: 16 rows, the heads of a
    group packed, keys split.
    """

    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        if gpu.features.wgmma or "bwd" in w.directions:
            forward = _nearest_public(name)(w, gpu, shape)
            if w.passes != "fwd+bwd" or gpu.features.wgmma:
                return forward
        w_main = one_query(w)
        decode = w.seq_q * w.group <= 16
        tile = override(choose_tile(w, gpu, decode), shape, w_main, gpu)
        tiles, splits = FusedTiles(tile), UNCUT
        if decode:
            heads = w.batch * w.heads_kv
            splits = Splits(split_count(heads, 2 * gpu.sm.count, -(-w.seq_kv // tile.keys)))
        kernels = [flash_forward(w_main, gpu, tile, splits=splits)]
        if splits.partial:
            kernels.append(fa2_combine(w, splits.count))
        if "bwd" in w.directions:
            back = override_backward(fa2_backward(w, gpu), shape)
            tiles = FusedTiles(tile, back)
            kernels += flash_backward(w, back)
        return flash_schedule(w, name, kernels, tiles, splits, _CLOSED)

    return build


RECORDS = tuple(record(name, _cudnn(name)) for name in ("nvidia.cudnn", "nvidia.cudnn-frontend"))
