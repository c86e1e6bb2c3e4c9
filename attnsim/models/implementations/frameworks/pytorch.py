"""Unfused attention in PyTorch, a list of operations for each form of the call; and its fused call of 2023."""

from __future__ import annotations

from functools import partial

from attnsim.models.implementations.flash_attention import flash1
from attnsim.models.implementations.frameworks.naive import naive, peak_memory_bytes
from attnsim.models.implementations.implementation import Implementation, facts, record
from attnsim.models.question.operations import Operations


def unfused(name: str) -> Implementation:
    """The record of an implementation that runs a list of operations."""
    own = Operations.parse(facts()[name]["operations"])
    return record(name, partial(naive, implementation=name, own=own), peak_bytes=partial(peak_memory_bytes, own=own))


RECORDS = (
    *map(unfused, ("torch.baddbmm", "torch.eager", "torch.sdpa-math", "ideal.unfused", "transformers.eager")),
    record("torch.sdpa-flash-1", partial(flash1, name="torch.sdpa-flash-1")),
)
