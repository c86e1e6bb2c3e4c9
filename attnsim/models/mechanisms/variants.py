"""What a dense call may ask for beside its schedule: passes of the unfused form, the backward pass, FP8.

None is a schedule of its own: they are properties of the question (`dropout`, `passes`, `dtype`).
"""

from __future__ import annotations

from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms.dense import ANY_FLASH, FLASH, softmax_gradients, softmax_reference
from attnsim.models.mechanisms.mechanism import Algorithm
from attnsim.models.question.workload import Workload

_PASSES = Algorithm(
    name="unfused-passes",
    group="dense",
    families=("naive",),
    implementations=("hf_eager", "pytorch_eager", "naive_fused_epilogue"),
    example=Workload(batch=1, heads_q=16, seq_q=1024, head_dim=64, mask=Mask.causal(), dropout=True),
    reference=softmax_reference,
    gradients=softmax_gradients,
    selectable=False,
)


_BACKWARD = Algorithm(
    name="backward",
    group="dense",
    families=ANY_FLASH,
    implementations=(*FLASH, "flash_two_pass"),
    example=Workload(batch=1, heads_q=16, seq_q=4096, head_dim=128, mask=Mask.causal(), passes="bwd"),
    reference=softmax_reference,
    gradients=softmax_gradients,
    selectable=False,
)


_FP8 = Algorithm(
    name="fp8",
    group="dense",
    families=("flash-3",),
    implementations=("flash_attn_v3",),
    example=Workload(batch=1, heads_q=16, seq_q=4096, head_dim=128, dtype="fp8"),
    reference=softmax_reference,
    selectable=False,
)

VARIANTS: tuple[Algorithm, ...] = (_PASSES, _BACKWARD, _FP8)
"""Passes over the N x N matrix, gradients, eight bits."""
