"""Softmax attention: dense by schedule, with shared keys, and over patterns that leave pairs out; and the sigmoid's.

Sharing of keys and values among heads and visibility of keys are properties of the question: none is a schedule of its
own, except multi-head latent attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnsim.arrays import Floats
from attnsim.models.implementations.latent.records import preferred
from attnsim.models.mask.documents import Neighborhood
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms.mechanism import Mechanism, Reference, facts, mechanism
from attnsim.models.question.workload import Workload
from attnsim.models.references.softmax import attention, attention_backward, sigmoid_attention, windowed_attention
from attnsim.models.references.tiled import flash1_reference, flash_reference, split_kv_reference

_LIBRARIES = ("flash-attn.3", "flash-attn.4", "flash-attn.2", "flash-attn.1", "xformers.cutlass")
_BUTTERFLY = Mask.blocks(64, tuple((row, key) for row in range(64) for key in {0, row, row ^ 1, row ^ 32}))
_LIST = Workload(batch=1, heads_q=12, seq_q=4096, head_dim=64, mask=_BUTTERFLY)


FEW_QUERIES = 64
"""Most queries of a head that count as decoding: one row tile of the split-KV kernels."""


def _of_pages(names: tuple[str, ...], w: Workload) -> Sequence[str]:
    """Order implementations for a paged cache: serving frameworks, which were measured with pages, first."""
    return sorted(names, key=lambda name: w.page_size > 0 and name in _LIBRARIES)


def _no_window(w: Workload) -> str:
    if not w.mask.is_band:
        return f"plays a window alone, the mask is {w.mask}; take --algorithm sparse"
    return "" if w.mask.is_windowed else "needs a window: --window 1024, or mask=Mask.sliding_window(1024)"


def _no_gathering(w: Workload) -> str:
    if w.mask.is_band and w.mask.left is not None and w.mask.right is not None:
        return ""
    return f"copies the keys of a window, the mask is {w.mask}: --mask 'causal window 256'"


def _no_decode(w: Workload) -> str:
    if w.passes not in ("fwd", "decode"):
        return f"is for decoding, pass is {w.passes}; allowed: decode, fwd"
    if w.seq_q <= FEW_QUERIES:
        return ""
    return f"is for few queries, seq_q is {w.seq_q}; allowed: 1 to {FEW_QUERIES} (--pass decode has one)"


def _no_backward(w: Workload) -> str:
    return "" if "bwd" in w.directions else f"is about pass bwd, the question's is {w.passes}; allowed: bwd, fwd+bwd"


def _no_fp8(w: Workload) -> str:
    return "" if w.dtype == "fp8" else f"is about dtype fp8, the question's is {w.dtype}; ask with fp8"


def _no_list(w: Workload) -> str:
    return "needs a list: --mask 'blocks 64 0:0 1:0 1:1', or mask=Mask.blocks(...)" if w.mask.is_band else ""


def _no_neighborhood(w: Workload) -> str:
    if any(isinstance(part, Neighborhood) for part in w.mask.parts):
        return ""
    return f"needs a neighbourhood, the mask is {w.mask}: --mask 'neighborhood 64x64 window 13x13'"


def _no_latent(w: Workload) -> str:
    return "needs a latent: --latent 512x64, or latent=Latent(512, 64)" if w.latent is None else ""


def _asked(w: Workload) -> dict[str, Any]:
    """Options of a question as arguments of references; sinks are 0."""
    return {"softcap": w.softcap, "sinks": np.zeros(w.heads_q) if w.sinks else None}


def softmax_reference(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    """O of softmax attention under the question's mask."""
    return attention(q, k, v, w.mask, **_asked(w))[0]


def softmax_gradients(w: Workload, q: Floats, k: Floats, v: Floats, do: Floats) -> tuple[Floats, Floats, Floats]:
    """Gradients of softmax attention under the question's mask."""
    return attention_backward(q, k, v, do, w.mask, **_asked(w))


def _queries_outside(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    return flash_reference(q, k, v, w.mask, **_asked(w))[0]


def _keys_outside(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    return flash1_reference(q, k, v, w.mask, **_asked(w))[0]


def _keys_split(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    return split_kv_reference(q, k, v, w.mask, splits=4, **_asked(w))[0]


def _dense(name: str, reference: Reference = softmax_reference, **more: Any) -> Mechanism:
    """Record of dense softmax attention, with gradients."""
    return mechanism(name, reference, **{"gradients": softmax_gradients, "ordered": _of_pages} | more)


SOFTMAX: tuple[Mechanism, ...] = (
    _dense("naive"),
    _dense("flash", _queries_outside),
    _dense("flash-1", _keys_outside),
    _dense("flash-2", _queries_outside),
    _dense("flash-3", _queries_outside),
    _dense("sliding-window", refuses=_no_window),
    _dense("split-kv", _keys_split, refuses=_no_decode, gradients=None),
    _dense("unfused-passes"),
    _dense("backward", refuses=_no_backward),
    _dense("fp8", refuses=_no_fp8, gradients=None),
    mechanism("sigmoid", lambda w, q, k, v: sigmoid_attention(q, k, v, w.mask)),
)
"""Dense attention, its options, and the sigmoid."""

SPARSE: tuple[Mechanism, ...] = (
    *(mechanism(name, softmax_reference) for name in ("sparse", "dilated", "global", "random", "strided")),
    mechanism("block-list", softmax_reference, refuses=_no_list, example=_LIST),
    mechanism("neighborhood", softmax_reference, refuses=_no_neighborhood),
    mechanism("window-gather", lambda w, q, k, v: windowed_attention(q, k, v, w.mask), refuses=_no_gathering),
    *(mechanism(name, softmax_reference) for name in ("longformer", "bigbird")),
)
"""Softmax attention over patterns: part of the pairs is left out."""

_PROPERTIES = (name for name, known in facts().items() if known["group"] == "sharing" and "reads_latent" not in known)
SHARING: tuple[Mechanism, ...] = (
    *(mechanism(name, softmax_reference, gradients=softmax_gradients) for name in _PROPERTIES),
    mechanism("mla", softmax_reference, ordered=preferred, refuses=_no_latent),
)
"""Properties of the question, and multi-head latent attention."""
