"""FlashAttention forward with Hopper's own instructions: wgmma, the tensor copy engine, register hand-over.

Experimental: run in the interpreter, compiled and inspected, not yet run on a GPU.
"""

from __future__ import annotations

import math

import numpy as np

from attnsim.kernels.arrays import attention_workload, reaches
from attnsim.kernels.build.variant import Variant
from attnsim.kernels.device import Array, Device
from attnsim.kernels.exercising import exercise_attention
from attnsim.kernels.limits import check_architecture
from attnsim.kernels.outcome import Outcome
from attnsim.models.errors import InputError
from attnsim.models.implementations.fused.order import section_heads
from attnsim.models.implementations.own import hopper as own_hopper
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload


def variants() -> tuple[Variant, ...]:
    """Both formats at each width."""
    return tuple(
        variant(Workload(1, 1, 128, head_dim, dtype=dtype))
        for dtype in ("bf16", "fp16")
        for head_dim in own_hopper.HEAD_DIMS
    )


def variant(w: Workload) -> Variant:
    """The compilation that answers a workload."""
    return Variant(
        source="flash_hopper.cu",
        entry=own_hopper.ENTRY,
        defines=own_hopper.constants(w),
        threads=128 * (own_hopper.consumers(w.head_dim) + 1),
        shared_memory_bytes=own_hopper.shared_memory_bytes(w.head_dim),
        compute_capability=(9, 0),
        arch_suffix="a",
    )


def flash_hopper(
    device: Device, q: Array, k: Array, v: Array, *, mask: Mask | None = None, scale: float | None = None
) -> tuple[Array, Array]:
    """O and the log-sum-exp of the scaled scores.

    Parameters
    ----------
    device : Device
        A Hopper GPU.
    q : array ``[batch, heads_q, seq_q, head_dim]``
    k, v : array ``[batch, heads_kv, seq_kv, head_dim]``
        float16, or uint16 with the bits of bf16; head_dim 64 or 128.
    mask : Mask, optional
        A diagonal band; default none.
    scale : float, optional
        Default ``1 / sqrt(head_dim)``.

    Returns
    -------
    o : array ``[batch, heads_q, seq_q, head_dim]``
    lse : array ``[batch, heads_q, seq_q]``, float32

    Raises
    ------
    InputError
        When the inputs or the GPU do not fit the kernel.
    """
    w = attention_workload(q, k, v, mask, head_dims=own_hopper.HEAD_DIMS)
    chosen, tile = variant(w), own_hopper.tile_of(w)
    check_architecture(chosen, device.gpu)
    factor = w.head_dim**-0.5 if scale is None else scale
    if not 0 < factor < np.inf:
        raise InputError(f"scale is {factor}; allowed: more than 0; change the sign of Q instead")
    o = device.empty(q.shape, str(q.dtype))
    lse = device.empty(q.shape[:3], "float32")
    heads = w.batch * w.heads_q
    device.launch(
        chosen,
        (-(-w.seq_q // tile.rows) * heads, 1, 1),
        {
            "Q": device.tensor_map(q, tile.rows),
            "K": device.tensor_map(k, tile.keys),
            "V": device.tensor_map(v, tile.keys),
            "O": o,
            "LSE": lse,
            "seq_q": np.int32(w.seq_q),
            "seq_kv": np.int32(w.seq_kv),
            "heads": np.int32(heads),
            "group": np.int32(w.group),
            **reaches(w.mask.within(w.seq_q, w.seq_kv)),
            "section": np.int32(section_heads(w, tile, heads) if tile.order == "longest_first" else 0),
            "scale_log2": np.float32(factor * math.log2(math.e)),
        },
    )
    return o, lse


def exercise(device: Device, w: Workload, seed: int = 0) -> Outcome:
    """Random inputs through the kernel and through the float64 reference."""
    return exercise_attention(flash_hopper, device, w, seed)
