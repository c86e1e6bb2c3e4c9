"""Closed form of prefill and decodes in one launch, or two: each half is FlashAttention's forward pass."""

from __future__ import annotations

from attnsim.models.closed_forms.form import Form, around_fused
from attnsim.models.closed_forms.fused import forward
from attnsim.models.implementations.fused.building import one_query
from attnsim.models.implementations.pod import DECODE_TENSORS, PodTile
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule
from attnsim.models.schedule.splits import UNCUT


def closed_form(w: Workload, schedule: Schedule, tile: PodTile) -> list[Form]:
    """The kernels' share of one sequence length: of a decode, or of a prefill."""
    decode = w.seq_q == 1
    names = [kernel.name for kernel in schedule.kernels if kernel.role == "attention"]
    name = names[-1] if decode else names[0]
    if not decode:
        return [forward(w, tile.prefill, UNCUT, name)]
    w = one_query(w)
    forms = [forward(w, tile.decode, schedule.splits, name)]
    merge = around_fused("combine (states)", w, schedule.splits.count) if schedule.splits.partial else None
    return [form.renamed(DECODE_TENSORS) for form in (*forms, *([merge] if merge else []))]
