"""FlashAttention forward on any GPU since sm_80: fused, O(N) memory, FlashAttention-2's loop order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import ArrayLike

from attnsim.kernels.arrays import attention_workload, factor_of, int32, reaches, scale_log2, score_options
from attnsim.kernels.device import Array, Device, Grid
from attnsim.kernels.variant import Variant
from attnsim.models.implementations.fused.order import section_heads
from attnsim.models.implementations.fused.tile import FlashTile
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.implementations.own import flash as own_flash
from attnsim.models.implementations.own.resources import ELEMENT
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload


def variants(
    compiled: Mapping[int, tuple[FlashTile, ...]] = own_flash.TILES, options: tuple[bool, ...] = (False, True)
) -> tuple[Variant, ...]:
    """Return every tile in both formats, with and without the options softcap and sinks."""
    return tuple(
        variant(dtype, head_dim, tile, extra)
        for dtype in ELEMENT
        for head_dim, tiles in compiled.items()
        for tile in tiles
        for extra in options
        if not extra or tile in own_flash.LEAN[head_dim]
    )


def variant(dtype: str, head_dim: int, tile: FlashTile, options: bool = False) -> Variant:
    """Return the variant of the kernel for a tile."""
    constants, shared = (
        own_flash.constants(dtype, head_dim, tile, options),
        own_flash.shared_memory_bytes(head_dim, tile),
    )
    return Variant("flash.cu", own_flash.ENTRY, constants, tile.threads, shared)


def flash_forward(
    device: Device,
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    tile: tuple[int, int] | None = None,
    softcap: float = 0.0,
    sinks: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Compute O = softmax(scale Q K^T) V and the log-sum-exp of the scaled scores.

    Parameters
    ----------
    q : array ``[batch, heads_q, seq_q, head_dim]``
    k, v : array ``[batch, heads_kv, seq_kv, head_dim]``
        float16, or uint16 with the bits of bf16; head_dim 64, 128 or 256.
    mask : Mask, optional
        A diagonal band; default none. Rows without a visible key get O = 0 and log-sum-exp -inf.
    scale : float, optional
        Positive; default ``1 / sqrt(head_dim)``.
    tile : (int, int), optional
        Query rows x keys, instead of the preferred tile.
    softcap : float
        Bound of the scaled scores; 0 for none.
    sinks : array ``[heads_q]``, optional
        Attention sinks: one more scaled score per head, which adds to the softmax's denominator only.

    Returns
    -------
    o : array ``[batch, heads_q, seq_q, head_dim]``
    lse : array ``[batch, heads_q, seq_q]``, float32

    Raises
    ------
    InputError
        If the kernel does not support the inputs or the GPU.
    """
    w = attention_workload(q, k, v, mask, head_dims=tuple(own_flash.TILES))
    factor = factor_of(w, scale, positive=True)
    extra = score_options(device.upload, w, factor, softcap, sinks)
    compiled = own_flash.LEAN if extra else own_flash.TILES
    chosen = own_flash.choose_tile(w, device.gpu, tile and TileRequest(*tile), compiled)
    o, lse = device.empty(q.shape, str(q.dtype)), device.empty(q.shape[:3], "float32")
    tensors = {"Q": q, "K": k, "V": v, "O": o, "LSE": lse}
    program = variant(w.dtype, w.head_dim, chosen, bool(extra))
    device.launch(program, grid(w, chosen), tensors | numbers(w, chosen, factor) | extra)
    return o, lse


def grid(w: Workload, tile: FlashTile) -> Grid:
    """Return the grid: one block for each row tile of each head."""
    return -(-w.seq_q // tile.rows) * w.batch * w.heads_q, 1, 1


def numbers(w: Workload, tile: FlashTile, factor: float) -> dict[str, Any]:
    """Return a fused kernel's scalar arguments; ``section`` is the number of heads launched longest row tile first."""
    heads = w.batch * w.heads_q
    section = section_heads(w, tile, heads) if tile.order == "longest_first" else 0
    return {
        **int32(seq_q=w.seq_q, seq_kv=w.seq_kv, heads=heads, group=w.group),
        **reaches(w.mask.within(w.seq_q, w.seq_kv)),
        **int32(section=section),
        **scale_log2(factor),
    }
