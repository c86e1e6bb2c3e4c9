"""Softmax attention over patterns: part of the pairs is left out."""

from __future__ import annotations

from attnsim.models.mask.mask import Mask
from attnsim.models.mask.neighborhood import Neighborhood
from attnsim.models.mechanisms.dense import softmax_reference
from attnsim.models.mechanisms.mechanism import Mechanism, Refuses
from attnsim.models.question.workload import Workload
from attnsim.models.references.softmax import windowed_attention

_BUTTERFLY = tuple((row, key) for row in range(64) for key in {0, row, row ^ 1, row ^ 32})


def _no_list(w: Workload) -> str:
    return "needs a list: --mask 'blocks 64 0:0 1:0 1:1', or mask=Mask.blocks(...)" if w.mask.is_band else ""


def _over(name: str, mask: Mask, own: bool = True, refuses: Refuses = lambda w: "") -> Mechanism:
    """Record of the group: softmax over the pairs of a mask, which is its `own` or the question's.

    The example has the head shape of BERT-base, of which Longformer and BigBird are sparse forms, at 4,096 tokens.
    """
    return Mechanism(
        name=name,
        group="sparse",
        shown_by=("sparse",),
        implementations=(
            "flash-attn.4-sparse",
            "attnsim.sparse",
            "torch.flex-mask",
            "tencent.flex-block-attn",
            "paddle.flash-mask",
            "transformers.gather",
        ),
        example=Workload(batch=1, heads_q=12, seq_q=4096, head_dim=64, mask=mask),
        reference=softmax_reference,
        mask=str(mask) if own else "",
        leaves_out=True,
        refuses=refuses,
    )


def _no_neighborhood(w: Workload) -> str:
    if any(isinstance(part, Neighborhood) for part in w.mask.parts):
        return ""
    return f"needs a neighbourhood, the mask is {w.mask}: --mask 'neighborhood 64x64 window 13x13'"


def _no_window(w: Workload) -> str:
    if w.mask.is_band and w.mask.left is not None and w.mask.right is not None:
        return ""
    return f"copies the keys of a window, the mask is {w.mask}: --mask 'causal window 256'"


_NEAR = Mask.parse("neighborhood 64x64 window 13x13")

SPARSE: tuple[Mechanism, ...] = (
    _over("sparse", Mask.parse("window 256, global 16"), own=False),
    _over("dilated", Mask.parse("dilated 256 step 2")),
    _over("global", Mask.parse("global 64")),
    _over("random", Mask.parse("random 8x64 seed 0")),
    _over("strided", Mask.sparse_transformer()),
    _over("block-list", Mask.blocks(64, _BUTTERFLY), own=False, refuses=_no_list),
    Mechanism(
        name="neighborhood",
        group="sparse",
        shown_by=("neighborhood",),
        implementations=("natten.hopper-fna", "natten.blackwell-fna", "natten.cutlass-fna"),
        example=Workload(batch=1, heads_q=12, seq_q=4096, head_dim=64, mask=_NEAR),
        reference=softmax_reference,
        leaves_out=True,
        refuses=_no_neighborhood,
    ),
    Mechanism(
        name="window-gather",
        group="sparse",
        shown_by=("sparse",),
        implementations=("torch.window-gather",),
        example=Workload(batch=1, heads_q=12, seq_q=4096, head_dim=64, mask=Mask.sliding_window(256)),
        reference=lambda w, q, k, v: windowed_attention(q, k, v, w.mask),
        leaves_out=True,
        refuses=_no_window,
    ),
    _over("longformer", Mask.longformer()),
    _over("bigbird", Mask.bigbird()),
)
"""Any mask; single patterns; the unions that models were trained with."""
