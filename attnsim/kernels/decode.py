"""Split-KV decode: few queries against a long cache; blocks take ranges of keys, a second kernel combines them."""

from __future__ import annotations

from numpy.typing import ArrayLike

from attnsim.errors import InputError
from attnsim.kernels.arrays import attention_workload, factor_of, int32, reaches, scale_log2, score_options
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
    """Return every tile, and the combine kernel at each width, in both formats."""
    dtypes = ("bf16", "fp16")
    tiles = [tile for tiles in TILES.values() for tile in tiles]
    splits = [split_variant(dtype, tile, extra) for dtype in dtypes for tile in tiles for extra in (False, True)]
    widths = [Workload(1, 1, 1, width, dtype=dtype) for dtype in dtypes for width in TILES]
    return (*splits, *(combine_variant(w) for w in widths))


def split_variant(dtype: str, tile: DecodeTile, options: bool = False) -> Variant:
    """Return the variant of the split kernel for a tile."""
    constants = tile.constants(dtype, options)
    return Variant("decode.cu", SPLIT, constants, tile.threads, tile.shared_memory_bytes)


def combine_variant(w: Workload) -> Variant:
    """Return the variant of the combine kernel."""
    shared = combine_shared_memory_bytes(w.head_dim)
    return Variant("decode_combine.cu", COMBINE, combine_constants(w), 32 * COMBINE_WARPS, shared)


def decode_attention(
    device: Device,
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    splits: int | None = None,
    softcap: float = 0.0,
    sinks: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Compute O and the log-sum-exp of the scaled scores.

    Parameters
    ----------
    q : array ``[batch, heads_q, seq_q, head_dim]``
        float16, or uint16 with the bits of bf16; head_dim 64, 128 or 256. `seq_q` may be any length; with many queries
        the forward kernel is faster.
    k, v : array ``[batch, heads_kv, seq_kv, head_dim]``
        The cache, contiguous; `heads_kv` divides `heads_q`.
    mask : Mask, optional
        A diagonal band that ends at the last query and the last key; default none.
    scale : float, optional
        Default ``1 / sqrt(head_dim)``.
    splits : int, optional
        Number of ranges that the keys are split into; by default enough to fill the GPU.
    softcap, sinks
        As in :func:`attnsim.kernels.flash.flash_forward`.

    Returns
    -------
    o : array ``[batch, heads_q, seq_q, head_dim]``
        In the type of `q`; 0 for queries without a visible key.
    lse : array ``[batch, heads_q, seq_q]``, float32
        Natural logarithm; -inf for queries without a visible key.

    Raises
    ------
    InputError
        If the kernel does not support the inputs or the GPU.
    """
    w = attention_workload(q, k, v, mask, passes="decode", head_dims=tuple(TILES))
    tile = choose_tile(w, device.gpu)
    w = reachable(w)
    if splits is None:
        splits = choose_splits(w, device.gpu, tile)
    check_splits(splits)
    rows = w.batch * w.heads_q * w.seq_q
    if rows >= 1 << 31:
        raise InputError(f"batch x heads_q x seq_q is {rows}; the kernel counts rows up to 2^31 - 1; split the batch")
    factor = factor_of(w, scale)
    o, lse = device.empty(q.shape, str(q.dtype)), device.empty(q.shape[:3], "float32")
    whole, made = {"O": o, "LSE": lse}, {"O": o, "LSE": lse}
    if splits > 1:
        shapes = {"O partial": q.shape, "LSE partial": q.shape[:3]}
        made = {name: device.empty((splits, *shape), "float32") for name, shape in shapes.items()}
    heads = w.batch * w.heads_kv
    numbers = int32(heads=heads, group=w.group, seq_q=w.seq_q, seq_kv=w.seq_kv, splits=splits)
    arguments = {"Q": q, "K": k, "V": v, **made, **numbers, **reaches(w.mask), **scale_log2(factor)}
    extra = score_options(device.upload, w, factor, softcap, sinks)
    arguments |= extra
    device.launch(split_variant(w.dtype, tile, bool(extra)), (row_tiles(w) * splits * heads, 1, 1), arguments)
    if splits > 1:
        device.launch(combine_variant(w), (rows, 1, 1), {**made, **whole, **int32(rows=rows, splits=splits)})
    return o, lse
