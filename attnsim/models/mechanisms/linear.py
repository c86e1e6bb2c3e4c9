"""Attention without a softmax over all keys: linear in their number, and a different function of the same inputs."""

from __future__ import annotations

from functools import partial

from attnsim.arrays import Floats
from attnsim.models.closed_forms import useful
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms.mechanism import Mechanism
from attnsim.models.question.workload import Workload
from attnsim.models.references.efficient import efficient_attention
from attnsim.models.references.linear import (
    linear_attention,
    linear_attention_chunked,
    linear_attention_quadratic,
    linear_attention_recurrent,
    phi,
)
from attnsim.models.references.linformer import linformer_attention, projected_count, random_projections
from attnsim.models.references.performer import performer_attention

_OWN = ("attnsim.linear",)
_PREFILL = Workload(batch=1, heads_q=16, seq_q=4096, head_dim=64, mask=Mask.causal())
_ENCODER = Workload(batch=1, heads_q=16, seq_q=4096, head_dim=64)
_DECODE = Workload(batch=8, heads_q=32, heads_kv=8, seq_q=1, seq_kv=8192, head_dim=64, passes="decode")


def _hides(w: Workload) -> bool:
    return w.mask.within(w.seq_q, w.seq_kv).is_causal


def _elu(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    return linear_attention_quadratic(q, k, v) if _hides(w) else linear_attention(q, k, v)


def _elu_recurrent(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    """The state of the tokens before the queries, then one step for each query."""
    old = k.shape[-2] - q.shape[-2]
    before = phi(k[:, :, :old])
    state, normalizer = before.swapaxes(-1, -2) @ v[:, :, :old], before.sum(axis=-2)
    return linear_attention_recurrent(q, k[:, :, old:], v[:, :, old:], state, normalizer)[0]


def _favor(features: int, w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    return performer_attention(q, k, v, features=features, causal=_hides(w))


def _projected(keys: int, w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    e, f = random_projections(projected_count(w.seq_kv, keys), w.seq_kv)
    return linformer_attention(q, k, v, e, f)


_inexact = partial(Mechanism, group="linear", exact=False)


def _performer(features: int = 0) -> Mechanism:
    ending = f"@{features}" if features else ""
    return _inexact(
        name=f"performer{ending}",
        implementations=(f"performer-pytorch.fused{ending}", f"performer-pytorch.eager{ending}"),
        example=_ENCODER,
        reference=partial(_favor, features),
        useful=partial(useful.performer, features),
        number=features,
        sized=_performer,
    )


def _linformer(keys: int = 0) -> Mechanism:
    ending = f"@{keys}" if keys else ""
    return _inexact(
        name=f"linformer{ending}",
        implementations=(f"linformer.eager{ending}",),
        example=_ENCODER,
        reference=partial(_projected, keys),
        useful=partial(useful.linformer, keys),
        number=keys,
        sized=_linformer,
    )


LINEAR: tuple[Mechanism, ...] = (
    _inexact("linear", implementations=_OWN, example=_ENCODER, reference=_elu, useful=useful.linear),
    _inexact(
        "linear-chunked",
        implementations=_OWN,
        example=_PREFILL,
        reference=lambda w, q, k, v: linear_attention_chunked(q, k, v),
        useful=useful.linear,
        shown_by=("linear",),
        selectable=False,
    ),
    _inexact(
        "linear-recurrent",
        implementations=_OWN,
        example=_DECODE,
        reference=_elu_recurrent,
        useful=useful.linear,
        shown_by=("linear",),
        selectable=False,
    ),
    _inexact(
        "efficient",
        implementations=("efficient-attention.eager",),
        example=_ENCODER,
        reference=lambda w, q, k, v: efficient_attention(q, k, v),
        useful=useful.efficient,
    ),
    _performer(),
    _linformer(),
)
"""Kernel feature maps in three forms, the split softmax, random features, projected keys."""
