"""Linear attention with phi = elu + 1: over all keys, causal in chunks, and recurrent in decoding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnsim.errors import InputError
from attnsim.kernels.arrays import attention_workload, check_array, int32, outcome, random_arrays
from attnsim.kernels.device import Array, Device
from attnsim.kernels.variant import Variant
from attnsim.models.implementations.own.linear_tiles import (
    CAUSAL,
    DECODE,
    HEAD_DIMS,
    OUTPUT,
    REDUCE,
    SCAN,
    STATE,
    block_of,
    causal_ranges,
    check_takes,
    is_causal,
    merge_blocks,
    row_ranges,
    state_ranges,
)
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.references.linear import linear_attention, linear_attention_chunked, linear_attention_recurrent
from attnsim.ptx.counters import decode
from attnsim.ptx.outcome import Outcome

SOURCES = {
    STATE: "linear_state.cu",
    REDUCE: "linear_merge.cu",
    SCAN: "linear_merge.cu",
    OUTPUT: "linear_output.cu",
    CAUSAL: "linear_causal.cu",
    DECODE: "linear_decode.cu",
}
"""Source file of each kernel."""


def variants() -> tuple[Variant, ...]:
    """Return every kernel in both formats and both widths."""
    return tuple(variant(kernel, dtype, d) for kernel in SOURCES for dtype in ("bf16", "fp16") for d in HEAD_DIMS)


def variant(kernel: str, dtype: str, head_dim: int) -> Variant:
    """Return the variant of a kernel."""
    block = block_of(kernel, head_dim)
    return Variant(SOURCES[kernel], kernel, block.constants(dtype), block.threads, block.shared_memory_bytes)


def linear_forward(device: Device, q: Array, k: Array, v: Array, *, causal: bool = False) -> Array:
    """Compute O of linear attention.

    phi(K), and S / z before it is multiplied by queries, are rounded to the inputs' 16 bits; sums are fp32. In fp16,
    key features below 2^-25 = ``exp(-17.3)`` become 0.

    Parameters
    ----------
    q : array ``[batch, heads_q, seq_q, head_dim]``
        float16, or uint16 with the bits of bf16; head_dim 64 or 128.
    k, v : array ``[batch, heads_kv, seq_kv, head_dim]``
    causal : bool
        Query ``i`` sees keys up to ``i``; `seq_q` and `seq_kv` must then be equal.

    Returns
    -------
    array ``[batch, heads_q, seq_q, head_dim]``
        In the type of `q`.

    Raises
    ------
    InputError
        If the kernels do not support the inputs or the GPU.
    """
    w = attention_workload(q, k, v, Mask.causal() if causal else None, head_dims=HEAD_DIMS)
    check_takes(w)
    return _causal(device, w, q, k, v) if is_causal(w) else _full(device, w, q, k, v)


def _full(device: Device, w: Workload, q: Array, k: Array, v: Array) -> Array:
    ranges, rows = state_ranges(w, device.gpu), row_ranges(w, device.gpu)
    heads, d = (w.batch, w.heads_kv), w.head_dim
    partial, partial_normalizer = _states(device, w, k, v, ranges, ranges)
    state, normalizer = device.empty((*heads, d, d), str(k.dtype)), device.empty((*heads, d), "float32")
    merged = {"State": state, "Normalizer": normalizer}
    parts = {"State partial": partial, "Normalizer partial": partial_normalizer}
    _launch(device, REDUCE, w, merge_blocks(w), parts | merged, ranges=ranges)
    o = device.empty(q.shape, str(q.dtype))
    numbers = {"seq_q": w.seq_q, "group": w.group, "ranges": rows}
    _launch(device, OUTPUT, w, w.batch * w.heads_q * rows, {"Q": q, **merged, "O": o}, **numbers)
    return o


def _causal(device: Device, w: Workload, q: Array, k: Array, v: Array) -> Array:
    ranges = causal_ranges(w, device.gpu)
    if ranges > 1:
        state, normalizer = _states(device, w, k, v, ranges, ranges - 1)
    else:
        state, normalizer = device.empty((1,), "float32"), device.empty((1,), "float32")  # not read
    parts = {"State partial": state, "Normalizer partial": normalizer}
    if ranges > 2:
        _launch(device, SCAN, w, merge_blocks(w), parts, ranges=ranges - 1)
    o = device.empty(q.shape, str(q.dtype))
    numbers = {"seq": w.seq_q, "group": w.group, "ranges": ranges}
    _launch(device, CAUSAL, w, w.batch * w.heads_q * ranges, {"Q": q, "K": k, "V": v, **parts, "O": o}, **numbers)
    return o


def _states(device: Device, w: Workload, k: Array, v: Array, ranges: int, summed: int) -> tuple[Array, Array]:
    """Compute S and z of the first `summed` of `ranges` ranges of each key head."""
    heads, d = w.batch * w.heads_kv, w.head_dim
    state = device.empty((heads, summed, d, d), "float32")
    normalizer = device.empty((heads, summed, d), "float32")
    tensors = {"K": k, "V": v, "State partial": state, "Normalizer partial": normalizer}
    _launch(device, STATE, w, heads * summed, tensors, seq_kv=w.seq_kv, ranges=ranges, blocks_per_head=summed)
    return state, normalizer


def _launch(device: Device, kernel: str, w: Workload, blocks: int, tensors: dict[str, Array], **numbers: int) -> None:
    device.launch(variant(kernel, w.dtype, w.head_dim), (blocks, 1, 1), tensors | int32(**numbers))


def linear_decode(
    device: Device, q: Array, k: Array, v: Array, state: Array, normalizer: Array
) -> tuple[Array, Array, Array]:
    """Compute O of new tokens one by one, and update the state.

    Parameters
    ----------
    q : array ``[batch, heads_q, tokens, head_dim]``
        float16, or uint16 with the bits of bf16; head_dim 64 or 128.
    k, v : array ``[batch, heads_kv, tokens, head_dim]``
        Keys and values of the new tokens.
    state : array ``[batch, heads_kv, head_dim, head_dim]``, float32
        Sum of ``phi(k) v^T`` over the tokens before, zeros at the start; updated in place.
    normalizer : array ``[batch, heads_kv, head_dim]``, float32
        Sum of ``phi(k)``; updated in place.

    Returns
    -------
    o : array ``[batch, heads_q, tokens, head_dim]``
    state, normalizer : array
        The arrays given.

    Raises
    ------
    InputError
        If the kernel does not support the inputs.
    """
    w = attention_workload(q, k, v, Mask.causal(), passes="decode", head_dims=HEAD_DIMS)
    check_takes(w)
    if w.seq_q != w.seq_kv:
        raise InputError(f"Q has {w.seq_q} tokens, K and V {w.seq_kv}; give the new tokens only, as many of each")
    d = w.head_dim
    for name, array, shape in (
        ("state", state, (w.batch, w.heads_kv, d, d)),
        ("normalizer", normalizer, (w.batch, w.heads_kv, d)),
    ):
        check_array(name, array, len(shape), ("float32",))
        if tuple(array.shape) != shape:
            raise InputError(f"{name} is {list(array.shape)}; allowed: {list(shape)}, one for each key head")
    o = device.empty(q.shape, str(q.dtype))
    tensors = {"Q": q, "K": k, "V": v, "State": state, "Normalizer": normalizer, "O": o}
    _launch(device, DECODE, w, w.batch * w.heads_kv, tensors, tokens=w.seq_q, group=w.group)
    return o, state, normalizer


def exercise(device: Device, w: Workload, seed: int = 0, inputs: str = "normal") -> Outcome:
    """Run the kernels and the float64 reference on generated inputs; decode starts from a random state."""
    check_takes(w)
    random = np.random.default_rng(seed)
    if w.passes == "decode":
        return _exercise_decode(
            device, w, random_arrays(replace(w, seq_kv=w.seq_q), random, inputs=inputs, scores=False), random
        )
    q, k, v = random_arrays(w, random, inputs=inputs, scores=False)
    o = linear_forward(device, device.upload(q), device.upload(k), device.upload(v), causal=is_causal(w))
    reference = linear_attention_chunked if is_causal(w) else linear_attention
    return outcome(device, {"O": (o, reference(decode(q), decode(k), decode(v)))})


def _exercise_decode(device: Device, w: Workload, arrays: tuple[Array, ...], random: np.random.Generator) -> Outcome:
    """Run decode from a random state as many tokens leave it: sums of positive features, values of either sign."""
    before = w.seq_kv - w.seq_q
    shape = (w.batch, w.heads_kv, w.head_dim)
    normalizer = (before * random.uniform(0.5, 1.5, shape)).astype(np.float32)
    averages = random.standard_normal((*shape, w.head_dim)) / max(1, before) ** 0.5
    state = (normalizer[..., None] * averages).astype(np.float32)
    inputs = [device.upload(array) for array in (*arrays, state, normalizer)]
    q, k, v = (decode(array) for array in arrays)
    got = linear_decode(device, *inputs)
    want = linear_attention_recurrent(q, k, v, state, normalizer)
    return outcome(device, dict(zip(("O", "State", "Normalizer"), zip(got, want, strict=True), strict=True)))
