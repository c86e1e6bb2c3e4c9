"""Attention over all pairs of a diagonal band: unfused, fused, split over the keys.

`VARIANTS` are options of a dense call beyond its schedule: dropout, the backward pass and FP8 are properties of the
question; a sigmoid has its own kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnsim.arrays import Floats
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms.mechanism import Mechanism, Reference
from attnsim.models.question.workload import Workload
from attnsim.models.references.softmax import attention, attention_backward, sigmoid_attention
from attnsim.models.references.tiled import flash1_reference, flash_reference, split_kv_reference

ANY_FLASH = ("flash-1", "flash-2", "flash-3")
_LIBRARIES = ("flash-attn.3", "flash-attn.4", "flash-attn.2", "flash-attn.1", "xformers.cutlass")
_SHARED = ("flashinfer.cascade", "flashinfer.tree")
FLASH = (*_LIBRARIES, "vllm.flash-attn-3", "vllm.trtllm-gen", "vllm.flash-attn-2", *_SHARED)
"""Implementations of fused attention: the libraries themselves; serving frameworks' kernels for decoding, of which the
libraries have no measurements; and kernels for shared prefixes and branching drafts, which the libraries lack.
"""
_PREFILL = Workload(batch=1, heads_q=16, seq_q=4096, head_dim=128, mask=Mask.causal())
_WINDOW = Workload(batch=1, heads_q=16, seq_q=4096, head_dim=128, mask=Mask.sliding_window(512, causal=True))
_DECODE = Workload(batch=4, heads_q=32, heads_kv=8, seq_q=1, seq_kv=8192, head_dim=128, passes="decode")


FEW_QUERIES = 64
"""Most queries of a head that count as decoding: one row tile of the split-KV kernels."""


def _of_pages(names: tuple[str, ...], w: Workload) -> Sequence[str]:
    """Order implementations for a paged cache: serving frameworks, which were measured with pages, first."""
    return sorted(names, key=lambda name: w.page_size > 0 and name in _LIBRARIES)


def _no_window(w: Workload) -> str:
    if not w.mask.is_band:
        return f"plays a window alone, the mask is {w.mask}; take --algorithm sparse"
    return "" if w.mask.is_windowed else "needs a window: --window 1024, or mask=Mask.sliding_window(1024)"


def _no_decode(w: Workload) -> str:
    if w.passes not in ("fwd", "decode"):
        return f"is for decoding, pass is {w.passes}; allowed: decode, fwd"
    if w.seq_q <= FEW_QUERIES:
        return ""
    return f"is for few queries, seq_q is {w.seq_q}; allowed: 1 to {FEW_QUERIES} (--pass decode has one)"


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


def _no_backward(w: Workload) -> str:
    return "" if "bwd" in w.directions else f"is about pass bwd, the question's is {w.passes}; allowed: bwd, fwd+bwd"


def _no_fp8(w: Workload) -> str:
    return "" if w.dtype == "fp8" else f"is about dtype fp8, the question's is {w.dtype}; ask with fp8"


def _sigmoid_reference(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    return sigmoid_attention(q, k, v, w.mask)


def _softmax(
    name: str,
    implementations: tuple[str, ...],
    example: Workload,
    reference: Reference = softmax_reference,
    **more: Any,
) -> Mechanism:
    """Record of dense softmax attention, with gradients."""
    usual = {"gradients": softmax_gradients, "operations": "around", "ordered": _of_pages}
    return Mechanism(name, "dense", implementations, example, reference, **{**usual, **more})


DENSE: tuple[Mechanism, ...] = (
    _softmax("naive", ("torch.baddbmm", "ideal.unfused"), _PREFILL, operations="all"),
    _softmax("flash", FLASH, _PREFILL, _queries_outside, shown_by=ANY_FLASH),
    _softmax("flash-1", ("flash-attn.1",), replace(_PREFILL, head_dim=64, head_dim_v=64, dtype="fp16"), _keys_outside),
    _softmax("flash-2", ("flash-attn.2", "xformers.cutlass"), _PREFILL, _queries_outside),
    _softmax("flash-3", ("flash-attn.3", "flash-attn.4"), _PREFILL, _queries_outside),
    _softmax("sliding-window", FLASH, _WINDOW, shown_by=ANY_FLASH, leaves_out=True, refuses=_no_window),
    _softmax(
        "split-kv", FLASH, _DECODE, _keys_split, shown_by=ANY_FLASH, splits=True, refuses=_no_decode, gradients=None
    ),
)
"""Unfused; fused, by generation; windows; decoding."""

VARIANTS: tuple[Mechanism, ...] = (
    _softmax(
        "unfused-passes",
        ("transformers.eager", "torch.eager", "ideal.unfused"),
        Workload(batch=1, heads_q=16, seq_q=1024, head_dim=64, mask=Mask.causal(), dropout=True),
        shown_by=("naive",),
        operations="all",
        selectable=False,
    ),
    _softmax(
        "backward",
        (*_LIBRARIES, "triton.tutorial-bwd"),
        replace(_PREFILL, passes="bwd"),
        shown_by=ANY_FLASH,
        refuses=_no_backward,
        selectable=False,
    ),
    _softmax(
        "fp8",
        ("flash-attn.3",),
        replace(_PREFILL, dtype="fp8", mask=Mask.full()),
        shown_by=("flash-3",),
        refuses=_no_fp8,
        selectable=False,
        gradients=None,
    ),
    Mechanism("sigmoid", "dense", ("attnsim.sigmoid",), _PREFILL, _sigmoid_reference, exact=False),
)
"""Passes over the N x N matrix, gradients, eight bits, another weight of a score."""
