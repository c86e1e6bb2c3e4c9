"""Unfused attention with our kernels: scores, softmax and P V as separate kernels, S and P in global memory."""

from __future__ import annotations

import numpy as np

from attnsim.errors import InputError
from attnsim.kernels.arrays import attention_workload, factor_of, int32, reaches
from attnsim.kernels.device import Array, Device
from attnsim.kernels.variant import Variant
from attnsim.models.implementations.own import naive as own_naive
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.gemm import GemmTile


def variants() -> tuple[Variant, ...]:
    """Return both GEMMs at both tile widths, each softmax tile, and the two passes, in both formats."""
    found: list[Variant] = []
    for dtype in ("bf16", "fp16"):
        tiles = (own_naive.gemm_tile(64), own_naive.gemm_tile(128))
        found += [gemm_variant(entry, dtype, tile) for entry in ("naive_scores", "naive_output") for tile in tiles]
        found += [softmax_variant(dtype, tile) for tile in own_naive.SOFTMAX_TILES]
        found += [pass_variant(entry, dtype) for entry in ("naive_scale", "naive_mask")]
    return tuple(found)


def gemm_variant(entry: str, dtype: str, tile: GemmTile) -> Variant:
    """Return the variant of `naive_scores` or `naive_output` for a tile."""
    constants, shared = own_naive.gemm_constants(dtype, tile), tile.stages * (tile.m + tile.n) * tile.k * 2
    return Variant("naive_gemm.cu", entry, constants, tile.warps * 32, shared)


def softmax_variant(dtype: str, tile: own_naive.SoftmaxTile) -> Variant:
    """Return the variant of `naive_softmax` for a tile."""
    constants = tile.constants(dtype)
    return Variant("naive_softmax.cu", "naive_softmax", constants, tile.threads, tile.shared_memory_bytes)


def pass_variant(entry: str, dtype: str) -> Variant:
    """Return the variant of `naive_scale` or `naive_mask`."""
    return Variant("naive_passes.cu", entry, own_naive.pass_constants(dtype), own_naive.PASS_WARPS * 32)


def naive_forward(
    device: Device,
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    passes: str = "fused",
) -> tuple[Array, Array]:
    """Compute O and the log-sum-exp of the scaled scores; all seq_q x seq_kv scores are computed, whatever the mask.

    S is rounded to the inputs' 16 bits, as frameworks do. A score s is off by up to ``|s| / 2^12`` in fp16 and
    ``|s| / 2^9`` in bf16, and its weight by the same relative amount. In fp16, scores above 65,504 become 65,504.

    Parameters
    ----------
    q : array ``[batch, heads_q, seq_q, head_dim]``
    k, v : array ``[batch, heads_kv, seq_kv, head_dim]``
        float16, or uint16 with the bits of bf16; head_dim 64, 128 or 256.
    mask : Mask, optional
        A diagonal band; default none.
    scale : float, optional
        Default ``1 / sqrt(head_dim)``.
    passes : {"fused", "separate"}
        "fused": three kernels; the scale is in the first GEMM's epilogue, the mask in the softmax. "separate": scale
        and mask (if it hides anything) are kernels of their own over S, which is stored unscaled in 16 bits.

    Returns
    -------
    o : array ``[batch, heads_q, seq_q, head_dim]``
    lse : array ``[batch, heads_q, seq_q]``, float32

    Raises
    ------
    InputError
        If the kernels do not support the inputs, or S and P do not fit the GPU's memory.
    """
    w = attention_workload(q, k, v, mask, head_dims=own_naive.HEAD_DIMS)
    if passes not in own_naive.NAMES:
        raise InputError(f"passes is {passes!r}; allowed: {', '.join(own_naive.NAMES)}")
    factor = factor_of(w, scale)
    check_memory(device, w)
    fused = passes == "fused"
    s = empty_scores(device, w)
    _gemm(device, w, "naive_scores", w.seq_kv, {"Q": q, "K": k, "S": s}, factor=np.float32(factor if fused else 1.0))
    if not fused:
        _pass(device, w, s, "naive_scale", {"factor": np.float32(factor)})
    if not fused and own_naive.hides(w):
        _pass(device, w, s, "naive_mask", {**int32(seq_q=w.seq_q), **reaches(w.mask)})
    p, lse = softmax(device, w, s, w.mask if fused else Mask())
    o = device.empty((w.batch, w.heads_q, w.seq_q, w.head_dim), str(v.dtype))
    _gemm(device, w, "naive_output", w.head_dim, {"P": p, "V": v, "O": o})
    return o, lse


def naive_passes_forward(
    device: Device, q: Array, k: Array, v: Array, *, mask: Mask | None = None, scale: float | None = None
) -> tuple[Array, Array]:
    """Compute O and the log-sum-exp with scale and mask as separate passes.

    It launches four kernels, five if the mask hides anything. This is :func:`naive_forward` with ``passes="separate"``;
    see there for parameters and errors.
    """
    return naive_forward(device, q, k, v, mask=mask, scale=scale, passes="separate")


def check_memory(device: Device, w: Workload) -> None:
    """Raise InputError for a workload whose S and P do not fit the GPU's memory."""
    needed, have = own_naive.peak_memory_bytes(w), device.gpu.hbm.capacity_bytes
    if needed > have:
        scratch = own_naive.scratch_bytes(w)
        raise InputError(
            f"unfused attention of {w} needs {needed / 1e9:.1f} GB ({scratch / 1e9:.1f} of them for S and P), "
            f"{device.gpu.id} has {have / 1e9:.1f} GB; take the flash kernels, or fewer heads at a time"
        )


def empty_scores(device: Device, w: Workload) -> Array:
    """Allocate S or P; rows are padded to multiples of 16 bytes, and the padding is never accessed."""
    shape = (w.batch, w.heads_q, w.seq_q, own_naive.score_stride(w.seq_kv))
    return device.empty(shape, "float16" if w.dtype == "fp16" else "uint16")


def softmax(device: Device, w: Workload, s: Array, mask: Mask) -> tuple[Array, Array]:
    """Compute P and the log-sum-exp of each row of S, without the keys that `mask` hides."""
    tile = own_naive.softmax_tile(w.seq_kv)
    rows = w.batch * w.heads_q * w.seq_q
    p = empty_scores(device, w)
    lse = device.empty((w.batch, w.heads_q, w.seq_q), "float32")
    arguments = {"S": s, "P": p, "LSE": lse, **int32(rows=rows, seq_q=w.seq_q), **_row_shape(w), **reaches(mask)}
    device.launch(softmax_variant(w.dtype, tile), (-(-rows // tile.rows), 1, 1), arguments)
    return p, lse


def _gemm(device: Device, w: Workload, entry: str, columns: int, tensors: dict[str, Array], **more: np.float32) -> None:
    tile = own_naive.gemm_tile(columns)
    blocks = w.batch * w.heads_q * -(-w.seq_q // tile.m) * -(-columns // tile.n)
    shape = {**int32(seq_q=w.seq_q), **_row_shape(w), **int32(head_dim=w.head_dim, group=w.group)}
    device.launch(gemm_variant(entry, w.dtype, tile), (blocks, 1, 1), {**tensors, **shape, **more})


def _pass(device: Device, w: Workload, s: Array, entry: str, parameters: dict[str, Array]) -> None:
    arguments = {"S": s, **int32(rows=w.batch * w.heads_q * w.seq_q), **_row_shape(w), **parameters}
    device.launch(pass_variant(entry, w.dtype), (own_naive.pass_blocks(w), 1, 1), arguments)


def _row_shape(w: Workload) -> dict[str, Array]:
    return int32(seq_kv=w.seq_kv, stride=own_naive.score_stride(w.seq_kv))
