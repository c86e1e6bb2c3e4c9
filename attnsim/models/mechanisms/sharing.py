"""Sharing of keys and values among heads, and visibility of keys to queries: properties of the question.

None is a schedule of its own: every dense schedule supports all of them (`heads_kv`, `seq_kv`, `mask`, `passes`), and
the records state the expected result. Multi-head latent attention (`MLA`), with one cached latent, has its own
schedules.
"""

from __future__ import annotations

from attnsim.models.implementations.latent.records import preferred
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms.dense import ANY_FLASH, FLASH, softmax_gradients, softmax_reference
from attnsim.models.mechanisms.mechanism import Mechanism
from attnsim.models.question.workload import Latent, Workload

_DENSE = ("naive", *ANY_FLASH)


def _property(name: str, example: Workload, shown_by: tuple[str, ...] = _DENSE) -> Mechanism:
    """Record of the group: softmax attention by any dense schedule, chosen with the question and not by name."""
    return Mechanism(
        name=name,
        group="sharing",
        shown_by=shown_by,
        implementations=FLASH,
        example=example,
        reference=softmax_reference,
        gradients=softmax_gradients,
        selectable=False,
    )


def _prefill(heads_kv: int, seq_q: int = 4096, seq_kv: int = 0) -> Workload:
    return Workload(1, 32, seq_q, 128, heads_kv=heads_kv, seq_kv=seq_kv, mask=Mask.causal())


_DECODE = Workload(
    batch=8, heads_q=32, heads_kv=8, seq_q=1, seq_kv=8192, head_dim=128, passes="decode", mask=Mask.causal()
)

SHARING: tuple[Mechanism, ...] = (
    _property("mha", _prefill(32)),
    _property("mqa", _prefill(1)),
    _property("gqa", _prefill(8)),
    _property("self-attention", Workload(batch=4, heads_q=16, seq_q=2048, head_dim=64)),
    _property("cross-attention", Workload(batch=4, heads_q=16, seq_q=1024, seq_kv=4096, head_dim=64)),
    _property("causal", _prefill(8)),
    _property("prefill", _prefill(8, seq_q=2048, seq_kv=8192)),
    _property("decode", _DECODE, ANY_FLASH),
    _property("layer", _prefill(8, seq_q=2048)),
)


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
