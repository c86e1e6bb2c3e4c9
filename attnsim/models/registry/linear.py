"""Attention without a softmax over the keys: linear in their number, and another function of the same inputs."""

from __future__ import annotations

from attnsim.models.mask import Mask
from attnsim.models.references.linear import linear_attention, linear_attention_chunked
from attnsim.models.registry.algorithm import Algorithm, Floats
from attnsim.models.workload import Workload


def _elu_reference(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    return linear_attention_chunked(q, k, v) if w.mask.is_causal else linear_attention(q, k, v)


LINEAR: tuple[Algorithm, ...] = (
    Algorithm(
        "linear", "Linear attention", "linear attention, phi = elu + 1: an approximation, O(N)", "linear", ("linear",),
        ("attnsim_linear",), r"$O = \phi(Q)\,(\phi(K)^T V) / (\phi(Q) \sum \phi(K))$ with $\phi = \mathrm{elu} + 1$",
        "long sequences, for models trained with it.", ("Katharopoulos et al., arXiv 2006.16236, equations 4 to 12",),
        Workload(batch=1, heads_q=16, seq_q=4096, head_dim=64, mask=Mask.causal()), _elu_reference, exact=False,
    ),
)  # fmt: skip
