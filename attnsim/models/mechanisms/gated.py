"""Linear attention with gates: one recurrence; members differ in decay, delta rule and normaliser."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from attnsim.arrays import Floats
from attnsim.models.closed_forms.useful import Useful
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms.mechanism import Mechanism
from attnsim.models.question.workload import Workload
from attnsim.models.references.gated import causal_convolution, gated_chunked, gated_recurrent, normalised, unit_length

Decay = Literal["none", "fixed", "head", "channel"]

_PREFILL = Workload(batch=1, heads_q=32, heads_kv=16, seq_q=8192, head_dim=128, mask=Mask.causal())
_GROUPS = Workload(batch=1, heads_q=64, heads_kv=8, seq_q=8192, head_dim=128, head_dim_v=64, mask=Mask.causal())
_EVERY_HEAD = Workload(batch=1, heads_q=32, seq_q=8192, head_dim=128, mask=Mask.causal())


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


def useful(gates: Gates, w: Workload) -> Useful:
    """2 d dv FLOPs per token and head to add its pair to the state, to read the state, and for the delta rule."""
    flops = 2 * w.batch * w.heads_q * w.seq_q * w.head_dim * w.head_dim_v * (3 if gates.delta else 2)
    widths = {"none": 0, "fixed": 0, "head": 1, "channel": w.head_dim}
    return Useful(flops, flops, w.batch * w.heads_q * w.seq_q * widths[gates.decay])


def _no_window(w: Workload) -> str:
    if w.mask.is_windowed or not w.mask.is_band:
        return f"sums all tokens before into a state; the mask is {w.mask}; allowed: causal, no --window, no --mask"
    return ""


def _member(name: str, gates: Gates, implementations: tuple[str, ...], example: Workload) -> Mechanism:
    return Mechanism(
        name=name,
        group="linear",
        implementations=implementations,
        example=example,
        reference=gates.reference,
        mask="causal",
        refuses=_no_window,
        useful=partial(useful, gates),
        exact=False,
    )


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

GATED: tuple[Mechanism, ...] = (
    _member(
        "gdn",
        FAMILY["gdn"],
        (
            "flashinfer.gdn-chunk",
            "sglang.gdn-chunk",
            "vllm.gdn-chunk",
            "tensorrt-llm.gdn-chunk",
            "fla.gdn-packed-decode",
            "tensorrt-llm.gdn-recurrent",
        ),
        _PREFILL,
    ),
    _member(
        "kda",
        FAMILY["kda"],
        (
            "flashkda.kda",
            "sglang.kda-chunk",
            "vllm.kda-chunk",
            "vllm.kda-fused-decode",
            "vllm.kda-packed-decode",
            "sglang.kda-packed-decode",
            "sglang.kda-fused-decode",
            "vllm.kda-verify",
            "sglang.kda-verify",
            "sglang.kda-verify-cutedsl",
        ),
        _EVERY_HEAD,
    ),
    _member("mamba-2", FAMILY["mamba-2"], ("mamba-ssm.ssd", "mamba-ssm.state-update"), _GROUPS),
    _member("gla", FAMILY["gla"], ("fla.gla-chunk", "fla.gla-recurrent"), _EVERY_HEAD),
    _member("delta-net", FAMILY["delta-net"], ("fla.delta-net-chunk", "fla.delta-net-recurrent"), _EVERY_HEAD),
    _member("retnet", FAMILY["retnet"], ("fla.retention-chunk", "fla.retention-recurrent"), _EVERY_HEAD),
    _member("mlstm", FAMILY["mlstm"], ("mlstm-kernels.chunkwise", "mlstm-kernels.step"), _EVERY_HEAD),
    Mechanism(
        name="short-convolution",
        group="linear",
        implementations=(
            "causal-conv1d.triton",
            "causal-conv1d.cuda",
            "causal-conv1d.triton-update",
            "causal-conv1d.cuda-update",
            "causal-conv1d.triton-update-kimi",
        ),
        example=Workload(batch=1, heads_q=64, seq_q=8192, head_dim=128, mask=Mask.causal()),
        reference=_convolved,
        mask="causal",
        refuses=_no_window,
        useful=_taps,
        exact=False,
    ),
)
"""Gated linear attention in its forms, and the four-tap convolution before it."""

GATED_NAMES = frozenset(one.name for one in GATED)
"""Names of the gated mechanisms."""
