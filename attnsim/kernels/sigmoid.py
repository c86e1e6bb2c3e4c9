"""Sigmoid attention forward, on any GPU since sm_80: the loop of flash attention without a softmax."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from attnsim.kernels import flash
from attnsim.kernels.arrays import attention_workload, factor_of, outcome, random_arrays
from attnsim.kernels.device import Array, Device
from attnsim.kernels.variant import Variant
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.implementations.own import flash as own_flash
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.references.softmax import sigmoid_attention
from attnsim.ptx.counters import decode
from attnsim.ptx.outcome import Outcome


def variants() -> tuple[Variant, ...]:
    """Return every tile in both formats."""
    return tuple(map(variant_of, flash.variants(own_flash.LEAN, (False,))))


def variant_of(one: Variant) -> Variant:
    """Return the sigmoid variant with the tile of a flash variant."""
    return replace(one, source="sigmoid.cu", entry=own_flash.SIGMOID_ENTRY)


def sigmoid_forward(
    device: Device,
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    bias: float | None = None,
    tile: tuple[int, int] | None = None,
) -> Array:
    """Compute O = sigmoid(scale Q K^T + bias) V over visible keys (Ramapuram et al., arXiv 2409.04431, equation 3).

    Parameters
    ----------
    device, q, k, v, mask, tile
        As in :func:`attnsim.kernels.flash.flash_forward`.
    scale : float, optional
        Default ``1 / sqrt(head_dim)``.
    bias : float, optional
        Default ``-log(seq_kv)``, so that the weights of a query sum to about one.

    Returns
    -------
    o : array ``[batch, heads_q, seq_q, head_dim]``

    Raises
    ------
    InputError
        If the kernel does not support the inputs or the GPU.
    """
    w = attention_workload(q, k, v, mask, head_dims=tuple(own_flash.LEAN))
    chosen = own_flash.choose_tile(w, device.gpu, tile and TileRequest(*tile), own_flash.LEAN)
    factor = factor_of(w, scale)
    added = -math.log(w.seq_kv) if bias is None else bias
    o = device.empty(q.shape, str(q.dtype))
    tensors = {"Q": q, "K": k, "V": v, "O": o}
    numbers = {**flash.numbers(w, chosen, factor), "bias_log2": np.float32(added * math.log2(math.e))}
    device.launch(variant_of(flash.variant(w.dtype, w.head_dim, chosen)), flash.grid(w, chosen), tensors | numbers)
    return o


def exercise(device: Device, w: Workload, seed: int = 0, inputs: str = "normal") -> Outcome:
    """Run the kernel and the float64 reference on generated inputs."""
    q, k, v = random_arrays(w, seed, inputs=inputs)
    o = sigmoid_forward(device, *(device.upload(array) for array in (q, k, v)), mask=w.mask)
    return outcome(device, {"O": (o, sigmoid_attention(decode(q), decode(k), decode(v), w.mask))})
