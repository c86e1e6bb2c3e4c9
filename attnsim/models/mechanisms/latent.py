"""Multi-head latent attention: keys and values of all heads from one cached latent, in two forms."""

from __future__ import annotations

from attnsim.models.implementations.latent.records import preferred
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms.dense import softmax_reference
from attnsim.models.mechanisms.mechanism import Mechanism
from attnsim.models.question.workload import Latent, Workload


def _no_latent(w: Workload) -> str:
    return "needs a latent: --latent 512x64, or latent=Latent(512, 64)" if w.latent is None else ""


MLA: tuple[Mechanism, ...] = (
    Mechanism(
        name="mla",
        group="sharing",
        implementations=(
            "flashmla.dense",
            "cutlass.mla",
            "sglang.triton-mla-absorbed",
            "vllm.mla-flash-attn-3",
            "vllm.mla-flash-attn-4",
            "vllm.mla-flash-attn-2",
        ),
        example=Workload(
            batch=16,
            heads_q=128,
            seq_q=1,
            seq_kv=8192,
            head_dim=192,
            head_dim_v=128,
            passes="decode",
            mask=Mask.causal(),
            latent=Latent(512, 64),
        ),
        reference=softmax_reference,
        ordered=preferred,
        reads_latent=True,
        refuses=_no_latent,
    ),
)
