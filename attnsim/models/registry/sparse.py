"""Softmax attention over patterns of pairs."""

from __future__ import annotations

from attnsim.models.mask import Mask
from attnsim.models.registry.algorithm import Algorithm
from attnsim.models.registry.dense import softmax_reference
from attnsim.models.workload import Workload

_EXAMPLE = Workload(batch=1, heads_q=16, seq_q=4096, head_dim=64, mask=Mask.parse("window 256, global 16"))

SPARSE: tuple[Algorithm, ...] = (
    Algorithm(
        "sparse", "Block-sparse attention", "fused, visiting only the tiles in a mask's block list", "sparse",
        ("sparse",), ("attnsim_sparse",), "Softmax attention over the pairs that a mask shows.",
        "patterns that leave whole tiles out.", ("Dao et al., FlashAttention, arXiv 2205.14135, section 3.3",),
        _EXAMPLE, softmax_reference,
    ),
)  # fmt: skip
