"""Decoding: a few queries against a long cache of keys, the keys shared out over blocks and then combined."""

from __future__ import annotations

from attnsim.errors import InputError
from attnsim.kernels.arrays import attention_workload, factor_of, int32, reaches, scale_log2
from attnsim.kernels.device import Array, Device
from attnsim.kernels.variant import Variant
from attnsim.models.implementations.own.decode import (
    COMBINE,
    COMBINE_WARPS,
    SPLIT,
    TILES,
    DecodeTile,
    check_splits,
    choose_splits,
    choose_tile,
    combine_constants,
    combine_shared_memory_bytes,
    reachable,
    row_tiles,
)
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload


def variants() -> tuple[Variant, ...]:
    """Both formats of every tile, and of the combine kernel at each width."""
    dtypes = ("bf16", "fp16")
    splits = [split_variant(dtype, tile) for dtype in dtypes for tiles in TILES.values() for tile in tiles]
    widths = [Workload(1, 1, 1, width, dtype=dtype) for dtype in dtypes for width in TILES]
    return (*splits, *(combine_variant(w) for w in widths))


def split_variant(dtype: str, tile: DecodeTile) -> Variant:
    """The compilation of the split kernel for a tile."""
    constants = tile.constants(dtype)
    return Variant("decode.cu", SPLIT, constants, tile.threads, tile.shared_memory_bytes)


def combine_variant(w: Workload) -> Variant:
    """The compilation of the combine kernel."""
    return Variant(
        source="decode_combine.cu",
        entry=COMBINE,
        defines=combine_constants(w),
        threads=32 * COMBINE_WARPS,
        shared_memory_bytes=combine_shared_memory_bytes(w.head_dim),
    )


def decode_attention(
    device: Device,
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    splits: int | None = None,
) -> tuple[Array, Array]:
    """O and the log-sum-exp of the scaled scores.

    Parameters
    ----------
    device : Device
    q : array ``[batch, heads_q, seq_q, head_dim]``
        float16, or uint16 with the bits of bf16; head_dim 64, 128 or 256. Any `seq_q` is answered; with many queries
        the forward kernel is faster.
    k, v : array ``[batch, heads_kv, seq_kv, head_dim]``
        The cache, contiguous; `heads_kv` divides `heads_q`.
    mask : Mask, optional
        A diagonal band that ends at the last query and the last key; default none.
    scale : float, optional
        Default ``1 / sqrt(head_dim)``.
    splits : int, optional
        Ranges that the keys are cut into; default what fills the GPU.

    Returns
    -------
    o : array ``[batch, heads_q, seq_q, head_dim]``
        In the type of `q`; 0 where a query sees no key.
    lse : array ``[batch, heads_q, seq_q]``, float32
        Natural logarithm; -inf where a query sees no key.

    Raises
    ------
    InputError
        When the inputs or the GPU do not fit the kernel.
    """
    w = attention_workload(q, k, v, mask, passes="decode", head_dims=tuple(TILES))
    tile = choose_tile(w, device.gpu)
    w = reachable(w)
    if splits is None:
        splits = choose_splits(w, device.gpu, tile)
    check_splits(splits)
    _check_rows(w)
    factor = factor_of(w, scale)
    o, lse = device.empty(q.shape, str(q.dtype)), device.empty(q.shape[:3], "float32")
    if splits == 1:
        _launch_split(device, w, tile, 1, {"Q": q, "K": k, "V": v, "O": o, "LSE": lse}, factor)
        return o, lse
    o_partial = device.empty((splits, *q.shape), "float32")
    lse_partial = device.empty((splits, *q.shape[:3]), "float32")
    tensors = {"Q": q, "K": k, "V": v, "O partial": o_partial, "LSE partial": lse_partial}
    _launch_split(device, w, tile, splits, tensors, factor)
    rows = w.batch * w.heads_q * w.seq_q
    device.launch(
        combine_variant(w),
        (rows, 1, 1),
        {
            **{"O partial": o_partial, "LSE partial": lse_partial, "O": o, "LSE": lse},
            **int32(rows=rows, splits=splits),
        },
    )
    return o, lse


def _launch_split(
    device: Device, w: Workload, tile: DecodeTile, splits: int, tensors: dict[str, Array], factor: float
) -> None:
    heads = w.batch * w.heads_kv
    device.launch(
        split_variant(w.dtype, tile),
        (row_tiles(w) * splits * heads, 1, 1),
        {
            **tensors,
            **int32(heads=heads, group=w.group, seq_q=w.seq_q, seq_kv=w.seq_kv, splits=splits),
            **reaches(w.mask),
            **scale_log2(factor),
        },
    )


def _check_rows(w: Workload) -> None:
    rows = w.batch * w.heads_q * w.seq_q
    if rows >= 1 << 31:
        raise InputError(f"batch x heads_q x seq_q is {rows}; the kernel counts rows up to 2^31 - 1; split the batch")
