"""FlashAttention forward with Hopper's instructions: wgmma, the tensor copy engine, setmaxnreg.

Experimental: it has run in the interpreter, but not yet on a GPU.
"""

from __future__ import annotations

from attnsim.kernels.arrays import attention_workload, factor_of
from attnsim.kernels.device import Array, Device, check_architecture
from attnsim.kernels.flash import numbers
from attnsim.kernels.variant import Variant
from attnsim.models.implementations.own import hopper as own_hopper
from attnsim.models.mask.mask import Mask


def variants() -> tuple[Variant, ...]:
    """Return every tile in both formats, with and without a mask."""
    return tuple(
        variant(dtype, head_dim, masked, clustered)
        for dtype in ("bf16", "fp16")
        for head_dim in own_hopper.HEAD_DIMS
        for masked in (False, True)
        for clustered in ((1, 2) if head_dim == 128 and not masked else (1,))
    )


def variant(dtype: str, head_dim: int, masked: bool, clustered: int) -> Variant:
    """Return the variant of the kernel with or without a mask, for clusters of so many blocks."""
    keys = own_hopper.TILES[head_dim][masked]
    constants = own_hopper.constants(dtype, head_dim, masked, clustered)
    threads, shared = 128 * (own_hopper.consumers(head_dim) + 1), own_hopper.shared_memory_bytes(head_dim, keys)
    return Variant("hopper.cu", own_hopper.ENTRY, constants, threads, shared, (9, 0), "a")


def flash_hopper(
    device: Device, q: Array, k: Array, v: Array, *, mask: Mask | None = None, scale: float | None = None
) -> tuple[Array, Array]:
    """Compute O and the log-sum-exp of the scaled scores.

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
        If the kernel does not support the inputs or the GPU.
    """
    w = attention_workload(q, k, v, mask, head_dims=own_hopper.HEAD_DIMS)
    tile = own_hopper.tile_of(w)
    chosen = variant(w.dtype, w.head_dim, not own_hopper.sees_all(w), own_hopper.cluster(w))
    check_architecture(chosen, device.gpu)
    factor = factor_of(w, scale, positive=True)
    o, lse = device.empty(q.shape, str(q.dtype)), device.empty(q.shape[:3], "float32")
    maps = {"Q": device.tensor_map(q, tile.rows)}
    maps |= {name: device.tensor_map(array, tile.keys) for name, array in (("K", k), ("V", v))}
    tensors = {**maps, "O": o, "LSE": lse}
    device.launch(chosen, (own_hopper.blocks(w, device.gpu), 1, 1), tensors | numbers(w, tile, factor))
    return o, lse
