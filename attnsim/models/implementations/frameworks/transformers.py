"""Hugging Face transformers: attention without a fused kernel, and patterns as gathered blocks."""

from __future__ import annotations

from attnsim.models.implementations.frameworks import gather
from attnsim.models.implementations.frameworks.pytorch import unfused
from attnsim.models.implementations.implementation import (
    ANY_WIDTH,
    BROADCAST,
    EVERY_GPU,
    FORMATS,
    FORWARD_ONLY,
    Implementation,
)

RECORDS = (
    Implementation(
        "hf_eager", "naive", unfused("hf_eager", "hf_eager"), EVERY_GPU,
        "Hugging Face transformers eager_attention_forward", like="pytorch", dtypes=FORMATS, largest_head_dim=ANY_WIDTH,
        form="hf_eager",
    ),
    Implementation(
        gather.NAME, "sparse", gather.build, EVERY_GPU,
        "Hugging Face transformers modeling_longformer.py and modeling_big_bird.py, what they have in common",
        ("hf_longformer", "hf_big_bird"), like="pytorch_eager", dtypes=FORMATS, extra=BROADCAST, passes=FORWARD_ONLY,
        largest_head_dim=ANY_WIDTH, patterns=True,
    ),
)  # fmt: skip
