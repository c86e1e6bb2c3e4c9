"""Hugging Face transformers: attention without a fused kernel, and patterns as gathered blocks."""

from __future__ import annotations

from attnsim.models.implementations.frameworks import gather
from attnsim.models.implementations.frameworks.pytorch import unfused
from attnsim.models.implementations.implementation import record

RECORDS = (unfused("transformers.eager"), record(gather.NAME, gather.build))
