"""Attention without a softmax over all keys: linear in their number, and a different function of the same inputs.

Kernel feature maps in three forms, the split softmax, random features and projected keys; and linear attention with
gates, one recurrence whose members differ in decay, delta rule and normaliser.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from attnsim.arrays import Floats
from attnsim.models.closed_forms import useful
from attnsim.models.closed_forms.useful import Useful
from attnsim.models.mechanisms.mechanism import Mechanism, mechanism
from attnsim.models.question.workload import Workload
from attnsim.models.references.gated import causal_convolution, gated_chunked, gated_recurrent, normalised, unit_length
from attnsim.models.references.linear import (
    efficient_attention,
    linear_attention,
    linear_attention_chunked,
    linear_attention_quadratic,
    linear_attention_recurrent,
    linformer_attention,
    performer_attention,
    phi,
    projected_count,
    random_projections,
)

Decay = Literal["none", "fixed", "head", "channel"]


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


@dataclass(frozen=True, slots=True)
class Gates:
    """Update of the state by a member of the family.

    Parameters
    ----------
    decay : {"none", "fixed", "head", "channel"}
        No decay; a constant of the head; a number per token and head; or a number per token and channel of its key.
    delta : bool
        Whether the state's value for a key is removed before the token's value is added (delta rule).
    beta : bool
        Whether a token's value is added with its own weight.
    normalises : bool
        Whether outputs are divided by the state of the keys alone (mLSTM).
    """

    decay: Decay
    delta: bool = False
    beta: bool = False
    normalises: bool = False

    def drawn(self, w: Workload) -> tuple[Floats, Floats]:
        """Gates of a question, as logarithms of decays and weights: learned in a model, drawn from a seed here.

        Decays are distributed as Mamba-2's initialisation (A from 1 to 16, steps of 0.001 to 0.1, log-uniform),
        RetNet's are ``1 - 2^-(5 + h)``.
        """
        random = np.random.default_rng(0)
        shape = (w.batch, w.heads_q, w.seq_kv)
        beta = random.random(shape) if self.beta else np.ones(shape)
        if self.decay in ("none", "fixed"):
            fixed = np.log(1 - 2.0 ** -(5 + np.arange(w.heads_q) % 8)) * (self.decay == "fixed")
            return np.broadcast_to(fixed[None, :, None, None], (*shape, 1)), beta
        width = w.head_dim if self.decay == "channel" else 1
        steps = np.exp(random.uniform(np.log(0.001), np.log(0.1), (*shape, width)))
        return -steps * random.uniform(1, 16, (1, w.heads_q, 1, 1)), beta

    def reference(self, w: Workload, q: Floats, k: Floats, v: Floats, *, chunked: bool = False) -> Floats:
        """Outputs of the last `seq_q` tokens in float64, with drawn gates."""
        log_decay, beta = self.drawn(w)
        before = k.shape[-2] - q.shape[-2]
        queries = np.concatenate([np.zeros((*q.shape[:2], before, q.shape[-1])), q], axis=-2)
        if self.delta:
            queries, k = unit_length(queries), unit_length(k)
        if self.normalises:
            v = np.concatenate([v, np.ones((*v.shape[:-1], 1))], axis=-1)
        run = gated_chunked if chunked else gated_recurrent
        o, _ = run(queries / np.sqrt(q.shape[-1]), k, v, log_decay, beta, delta=self.delta)
        o = o[:, :, before:]
        return normalised(o) if self.normalises else o


def _state_work(gates: Gates, w: Workload) -> Useful:
    """2 d dv FLOPs per token and head to add its pair to the state, to read the state, and for the delta rule."""
    flops = 2 * w.batch * w.heads_q * w.seq_q * w.head_dim * w.head_dim_v * (3 if gates.delta else 2)
    widths = {"none": 0, "fixed": 0, "head": 1, "channel": w.head_dim}
    return Useful(flops, flops, w.batch * w.heads_q * w.seq_q * widths[gates.decay])


def _no_window(w: Workload) -> str:
    if w.mask.is_windowed or not w.mask.is_band:
        return f"sums all tokens before into a state; the mask is {w.mask}; allowed: causal, no --window, no --mask"
    return ""


def _convolved(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    """V's channels convolved with four taps drawn from a seed, for the last `seq_q` tokens."""
    flat = v.swapaxes(1, 2).reshape(v.shape[0], v.shape[2], -1)
    taps = np.random.default_rng(0).standard_normal((4, flat.shape[-1])) / 2
    y = causal_convolution(flat, taps)[:, -w.seq_q :]
    return y.reshape(y.shape[0], w.seq_q, v.shape[1], -1).swapaxes(1, 2)


def _taps(w: Workload) -> Useful:
    elements = w.batch * w.heads_q * w.seq_q * w.head_dim_v
    return Useful(0, 0, elements)


FAMILY: dict[str, Gates] = {
    "gdn": Gates("head", delta=True, beta=True),
    "kda": Gates("channel", delta=True, beta=True),
    "mamba-2": Gates("head", beta=True),
    "gla": Gates("channel"),
    "delta-net": Gates("none", delta=True, beta=True),
    "retnet": Gates("fixed"),
    "mlstm": Gates("head", beta=True, normalises=True),
}
"""The members by name."""


def _sized(name: str, reference: Callable[..., Floats], work: Callable[..., Useful], number: int = 0) -> Mechanism:
    """Record of a mechanism with a number to choose, of random features or projected keys; 0: its default."""
    one = mechanism(name, partial(reference, number), useful=partial(work, number), number=number)
    one = replace(one, sized=partial(_sized, name, reference, work))
    if not number:
        return one
    sized = tuple(f"{other}@{number}" for other in one.implementations)
    return replace(one, name=f"{name}@{number}", implementations=sized)


LINEAR: tuple[Mechanism, ...] = (
    mechanism("linear", _elu, useful=useful.linear),
    mechanism("linear-chunked", lambda w, q, k, v: linear_attention_chunked(q, k, v), useful=useful.linear),
    mechanism("linear-recurrent", _elu_recurrent, useful=useful.linear),
    mechanism("efficient", lambda w, q, k, v: efficient_attention(q, k, v), useful=useful.efficient),
    _sized("performer", _favor, useful.performer),
    _sized("linformer", _projected, useful.linformer),
)
"""Kernel feature maps in three forms, the split softmax, random features, projected keys."""

GATED: tuple[Mechanism, ...] = (
    *(
        mechanism(name, gates.reference, useful=partial(_state_work, gates), refuses=_no_window)
        for name, gates in FAMILY.items()
    ),
    mechanism("short-convolution", _convolved, useful=_taps, refuses=_no_window),
)
"""Gated linear attention in its forms, and the four-tap convolution before it."""
