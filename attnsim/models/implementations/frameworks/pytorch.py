"""Unfused attention as PyTorch runs it: which passes over the scores each way of calling it makes."""

from __future__ import annotations

from functools import partial

from attnsim.models.implementations.frameworks.naive import FORMS, naive, peak_memory_bytes
from attnsim.models.implementations.implementation import Implementation, facts, record


def unfused(name: str) -> Implementation:
    """The record of an implementation in one of :data:`~attnsim.models.implementations.frameworks.naive.FORMS`."""
    form = FORMS[facts()[name]["form"]]
    return record(
        name, partial(naive, implementation=name, form=form), peak_bytes=partial(peak_memory_bytes, form=form)
    )


RECORDS = tuple(map(unfused, ("torch.baddbmm", "torch.eager", "torch.sdpa-math", "ideal.unfused")))
