"""Softmax attention over all pairs that a diagonal band shows: unfused, fused, split over the keys."""

from __future__ import annotations

from attnsim.models.arrays import Floats
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms.mechanism import Mechanism
from attnsim.models.question.workload import Workload
from attnsim.models.references.softmax import attention, attention_backward
from attnsim.models.references.tiled import flash1_reference, flash_reference, split_kv_reference

ANY_FLASH = ("flash-1", "flash-2", "flash-3")
FLASH = ("flash-attn.3", "flash-attn.4", "flash-attn.2", "flash-attn.1", "xformers.cutlass")
_PREFILL = Workload(batch=1, heads_q=16, seq_q=4096, head_dim=128, mask=Mask.causal())
_WINDOW = Workload(batch=1, heads_q=16, seq_q=4096, head_dim=128, mask=Mask.sliding_window(512, causal=True))
_DECODE = Workload(batch=4, heads_q=32, heads_kv=8, seq_q=1, seq_kv=8192, head_dim=128, passes="decode")


FEW_QUERIES = 64
"""Most queries of a head that count as decoding: one row tile of the split-KV kernels."""


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


def softmax_reference(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    """O of softmax attention under the question's mask."""
    return attention(q, k, v, w.mask)[0]


def softmax_gradients(w: Workload, q: Floats, k: Floats, v: Floats, do: Floats) -> tuple[Floats, Floats, Floats]:
    """Gradients of softmax attention under the question's mask."""
    return attention_backward(q, k, v, do, w.mask)


def _queries_outside(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    return flash_reference(q, k, v, w.mask)[0]


def _keys_outside(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    return flash1_reference(q, k, v, w.mask)[0]


def _keys_split(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    return split_kv_reference(q, k, v, w.mask, splits=4)[0]


_NAIVE = Mechanism(
    name="naive",
    group="dense",
    implementations=("torch.baddbmm", "ideal.unfused"),
    example=_PREFILL,
    reference=softmax_reference,
    gradients=softmax_gradients,
)

_FUSED = Mechanism(
    name="flash",
    group="dense",
    shown_by=ANY_FLASH,
    implementations=FLASH,
    example=_PREFILL,
    reference=_queries_outside,
    gradients=softmax_gradients,
)

_FLASH_1 = Mechanism(
    name="flash-1",
    group="dense",
    implementations=("flash-attn.1",),
    example=Workload(batch=1, heads_q=16, seq_q=4096, head_dim=64, dtype="fp16", mask=Mask.causal()),
    reference=_keys_outside,
    gradients=softmax_gradients,
)

_FLASH_2 = Mechanism(
    name="flash-2",
    group="dense",
    implementations=("flash-attn.2", "xformers.cutlass"),
    example=_PREFILL,
    reference=_queries_outside,
    gradients=softmax_gradients,
)

_FLASH_3 = Mechanism(
    name="flash-3",
    group="dense",
    implementations=("flash-attn.3", "flash-attn.4"),
    example=_PREFILL,
    reference=_queries_outside,
    gradients=softmax_gradients,
)

_SLIDING = Mechanism(
    name="sliding-window",
    group="dense",
    shown_by=ANY_FLASH,
    implementations=FLASH,
    example=_WINDOW,
    reference=softmax_reference,
    leaves_out=True,
    refuses=_no_window,
    gradients=softmax_gradients,
)

_SPLIT_KV = Mechanism(
    name="split-kv",
    group="dense",
    shown_by=ANY_FLASH,
    implementations=FLASH,
    example=_DECODE,
    reference=_keys_split,
    splits=True,
    refuses=_no_decode,
)

DENSE: tuple[Mechanism, ...] = (_NAIVE, _FUSED, _FLASH_1, _FLASH_2, _FLASH_3, _SLIDING, _SPLIT_KV)
"""Unfused; fused, by generation; windows; decoding."""
