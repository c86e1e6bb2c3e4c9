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
    unfused(
        "transformers.eager", "hf_eager", "Hugging Face transformers eager_attention_forward", like="torch.baddbmm",
        calls=("transformers: attn_implementation='eager', eager_attention_forward",), aliases=("hf_eager",),
    ),
    Implementation(
        gather.NAME, "sparse", gather.build, EVERY_GPU,
        "Hugging Face transformers modeling_longformer.py and modeling_big_bird.py, what they have in common",
        calls=("transformers.LongformerModel, transformers.BigBirdModel",),
        aliases=("gather", "hf_longformer", "hf_big_bird"), like="torch.eager", dtypes=FORMATS, extra=BROADCAST,
        passes=FORWARD_ONLY, largest_head_dim=ANY_WIDTH, patterns=True,
    ),
)  # fmt: skip
