"""Gradients of fused attention: dQ, dK and dV, the probabilities recomputed from the log-sum-exp."""

from __future__ import annotations

import numpy as np

from attnsim.errors import InputError
from attnsim.kernels.arrays import (
    attention_workload,
    check_array,
    factor_of,
    int32,
    outcome,
    random_arrays,
    reaches,
    scale_log2,
)
from attnsim.kernels.device import Array, Device
from attnsim.kernels.variant import Variant
from attnsim.models.implementations.own.backward import (
    CONVERT,
    MAIN,
    ROW_DOTS,
    THREADS,
    TILES,
    OwnBackwardTile,
    choose_tile,
    query_tiles,
)
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.references.softmax import attention, attention_backward
from attnsim.ptx.counters import decode, encode
from attnsim.ptx.outcome import Outcome


def variants() -> tuple[Variant, ...]:
    """Return every kernel in both formats on every tile."""
    return tuple(
        variant(entry, dtype, tile)
        for dtype in ("bf16", "fp16")
        for tiles in TILES.values()
        for tile in tiles
        for entry in (ROW_DOTS, MAIN, CONVERT)
    )


def variant(entry: str, dtype: str, tile: OwnBackwardTile) -> Variant:
    """Return the variant of a kernel for a tile."""
    shared = {ROW_DOTS: 0, MAIN: tile.shared_memory_bytes, CONVERT: tile.rows * tile.head_dim * 2}
    return Variant("backward.cu", entry, tile.constants(dtype), THREADS, shared[entry])


def flash_backward(
    device: Device,
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    lse: Array,
    do: Array,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    """Compute the gradients of ``sum(O * dO)`` with respect to Q, K and V.

    Parameters
    ----------
    q : array ``[batch, heads_q, seq_q, head_dim]``
        float16, or uint16 with the bits of bf16; head_dim 64 or 128, or 256 where a block may have 137 KiB of shared
        memory.
    k, v : array ``[batch, heads_kv, seq_kv, head_dim]``
        `heads_kv` divides `heads_q`.
    o : array ``[batch, heads_q, seq_q, head_dim]``
        Output of the forward pass; `lse`, float32 ``[batch, heads_q, seq_q]``, is its log-sum-exp.
    do : array ``[batch, heads_q, seq_q, head_dim]``
        Gradient of O, in the type of `q`.
    mask : Mask, optional
        A diagonal band that ends at the last query and the last key; default none.
    scale : float, optional
        Default ``1 / sqrt(head_dim)``.

    Returns
    -------
    dq, dk, dv : arrays
        In the shapes and the type of `q`, `k` and `v`. dK and dV are equal in every run; dQ is summed by atomics, whose
        order varies.

    Raises
    ------
    InputError
        If the kernels do not support the inputs or the GPU.
    """
    w = attention_workload(q, k, v, mask, passes="bwd", head_dims=tuple(TILES))
    _check_forward(q, o, lse, do)
    tile = choose_tile(w, device.gpu)
    row_tiles, factor = query_tiles(w, tile), factor_of(w, scale)
    d = device.empty(lse.shape, "float32")
    dq_sums = device.empty((w.batch, w.heads_q, row_tiles, tile.rows, w.head_dim), "float32")
    dq, dk, dv = (device.empty(array.shape, str(array.dtype)) for array in (q, k, v))
    per_query_tile = (row_tiles, w.heads_q, w.batch)
    scaled = {"scale": np.float32(factor)}
    dots = {"O": o, "dO": do, "D": d, "dQ accum": dq_sums, **int32(seq_q=w.seq_q)}
    device.launch(variant(ROW_DOTS, w.dtype, tile), per_query_tile, dots)
    tensors = {"Q": q, "K": k, "V": v, "dO": do, "LSE": lse, "D": d, "dQ accum": dq_sums, "dK": dk, "dV": dv}
    numbers = {**int32(group=w.group, seq_q=w.seq_q, seq_kv=w.seq_kv), **reaches(w.mask.within(w.seq_q, w.seq_kv))}
    per_key_tile = (-(-w.seq_kv // tile.keys), w.heads_kv, w.batch)
    device.launch(variant(MAIN, w.dtype, tile), per_key_tile, {**tensors, **numbers, **scaled, **scale_log2(factor)})
    converted = {"dQ accum": dq_sums, "dQ": dq, **int32(seq_q=w.seq_q), **scaled}
    device.launch(variant(CONVERT, w.dtype, tile), per_query_tile, converted)
    return dq, dk, dv


def _check_forward(q: Array, o: Array, lse: Array, do: Array) -> None:
    for name, array in (("O", o), ("dO", do)):
        check_array(name, array, 4)
        if tuple(array.shape) != tuple(q.shape) or array.dtype != q.dtype:
            raise InputError(f"{name} is {array.dtype} {list(array.shape)}; it must be as Q, {q.dtype} {list(q.shape)}")
    check_array("LSE", lse, 3, ("float32",))
    if tuple(lse.shape) != tuple(q.shape[:3]):
        raise InputError(f"LSE is {list(lse.shape)}; it must have one number for each row of Q, {list(q.shape[:3])}")


def exercise(device: Device, w: Workload, seed: int = 0, inputs: str = "normal") -> Outcome:
    """Run the kernels and the float64 reference on generated inputs; the reference also provides O and LSE."""
    q, k, v, do = random_arrays(w, seed, "QKVO", inputs=inputs)
    o, lse = attention(decode(q), decode(k), decode(v), w.mask)
    arrays = (q, k, v, encode(o, w.dtype), lse.astype(np.float32), do)
    got = flash_backward(device, *(device.upload(array) for array in arrays), mask=w.mask)
    want = attention_backward(decode(q), decode(k), decode(v), decode(do), w.mask)
    return outcome(device, dict(zip(("dQ", "dK", "dV"), zip(got, want, strict=True), strict=True)))
