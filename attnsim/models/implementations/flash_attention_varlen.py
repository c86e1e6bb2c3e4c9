"""FlashAttention-3 with packed sequences, `flash_attn_varlen_func` of Dao-AILab/flash-attention.

A kernel counts the tiles of each sequence, sorts the sequences and assigns splits. The blocks of the attention kernel
then fetch work by sequence (``hopper/flash_prepare_scheduler.cu``, `VarlenDynamicPersistentTileScheduler` in
``hopper/tile_scheduler.hpp``). For equal lengths the kernel of fixed lengths is used.
"""

from __future__ import annotations

from dataclasses import replace

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.flash_attention import FA3, counted, fa3_backward, flash3
from attnsim.models.implementations.fused.backward import flash_backward
from attnsim.models.implementations.fused.building import flash_schedule, one_query, override_backward
from attnsim.models.implementations.fused.tile import FusedTiles
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.implementations.serving import encoder_hopper
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule


def flash3_of_lengths(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """FlashAttention-3: `flash_attn_func` for equal lengths, `flash_attn_varlen_func` for different ones."""
    if not w.lengths:
        return flash3(w, gpu, shape)
    forward = encoder_hopper(one_query(w), gpu, shape, FA3, split=w.passes == "decode")
    if "bwd" not in w.directions:
        return forward
    back = override_backward(counted(fa3_backward(w, gpu), FA3, w, gpu), shape)
    kernels = [*(forward.kernels if "fwd" in w.directions else ()), *flash_backward(w, back)]
    assert isinstance(forward.tile, FusedTiles)
    tiles = FusedTiles(forward.tile.forward if "fwd" in w.directions else None, back)
    return replace(flash_schedule(w, "flash-attn.3", kernels, tiles, forward.splits), useful_flops=forward.useful_flops)


RECORDS = (record("flash-attn.3", flash3_of_lengths),)
