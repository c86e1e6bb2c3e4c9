"""The implementations of frameworks that have no kernel for a pattern: copies, batched GEMMs and passes."""

from __future__ import annotations

from attnsim.models.closed_forms import gather as gather_cost
from attnsim.models.implementations.frameworks import gather
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.question.workload import LARGEST

FRAMEWORK_KERNELS: tuple[Implementation, ...] = (
    Implementation(
        gather.NAME, "sparse", gather.build, (70, 129),
        "Hugging Face transformers modeling_longformer.py and modeling_big_bird.py, what they have in common",
        ("hf_longformer", "hf_big_bird"), like="pytorch_eager", dtypes=("fp32", "fp16", "bf16"),
        extra="integer instructions per element of a broadcast pass, over 50",
        passes=("fwd", "decode"), largest_head_dim=LARGEST["head_dim"], closed_form=gather_cost.closed_form,
        patterns=True,
    ),
)  # fmt: skip
