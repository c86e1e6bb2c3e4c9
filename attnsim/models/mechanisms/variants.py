"""What a dense call may ask for beside its schedule: passes of the unfused form, the backward pass, FP8, a sigmoid.

The first three are properties of the question (`dropout`, `passes`, `dtype`); the last is a kernel of its own.
"""

from __future__ import annotations

from attnsim.models.arrays import Floats
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms.dense import ANY_FLASH, FLASH, softmax_gradients, softmax_reference
from attnsim.models.mechanisms.mechanism import Mechanism
from attnsim.models.question.workload import Workload
from attnsim.models.references.softmax import sigmoid_attention


def _no_backward(w: Workload) -> str:
    return "" if "bwd" in w.directions else f"is about pass bwd, the question's is {w.passes}; allowed: bwd, fwd+bwd"


def _no_fp8(w: Workload) -> str:
    return "" if w.dtype == "fp8" else f"is about dtype fp8, the question's is {w.dtype}; ask with fp8"


_PASSES = Mechanism(
    name="unfused-passes",
    group="dense",
    shown_by=("naive",),
    implementations=("transformers.eager", "torch.eager", "ideal.unfused"),
    example=Workload(batch=1, heads_q=16, seq_q=1024, head_dim=64, mask=Mask.causal(), dropout=True),
    reference=softmax_reference,
    gradients=softmax_gradients,
    selectable=False,
)


_BACKWARD = Mechanism(
    name="backward",
    group="dense",
    shown_by=ANY_FLASH,
    implementations=(*FLASH, "triton.tutorial-bwd"),
    example=Workload(batch=1, heads_q=16, seq_q=4096, head_dim=128, mask=Mask.causal(), passes="bwd"),
    reference=softmax_reference,
    refuses=_no_backward,
    gradients=softmax_gradients,
    selectable=False,
)


_FP8 = Mechanism(
    name="fp8",
    group="dense",
    shown_by=("flash-3",),
    implementations=("flash-attn.3",),
    example=Workload(batch=1, heads_q=16, seq_q=4096, head_dim=128, dtype="fp8"),
    reference=softmax_reference,
    refuses=_no_fp8,
    selectable=False,
)


def _sigmoid_reference(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    return sigmoid_attention(q, k, v, w.mask)


_SIGMOID = Mechanism(
    name="sigmoid",
    group="dense",
    implementations=("attnsim.sigmoid",),
    example=Workload(batch=1, heads_q=16, seq_q=4096, head_dim=128, mask=Mask.causal()),
    reference=_sigmoid_reference,
    exact=False,
)

VARIANTS: tuple[Mechanism, ...] = (_PASSES, _BACKWARD, _FP8, _SIGMOID)
"""Passes over the N x N matrix, gradients, eight bits, another weight of a score."""
