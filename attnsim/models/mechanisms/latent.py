"""Multi-head latent attention: keys and values of all heads from one cached latent, in two forms."""

from __future__ import annotations

from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms.dense import softmax_reference
from attnsim.models.mechanisms.mechanism import Algorithm
from attnsim.models.question.workload import Latent, Workload

MLA: tuple[Algorithm, ...] = (
    Algorithm(
        "mla",
        "Multi-head latent attention",
        "keys and values of all heads from one cached latent, absorbed or decompressed",
        "sharing",
        ("mla",),
        ("flash_mla", "cutlass_mla", "triton_mla", "decompressed_fa3", "decompressed_fa4", "decompressed_fa2"),
        r"""A token caches a latent $c \in \mathbb{R}^{r}$ and one rotary key $k^R \in \mathbb{R}^{d_r}$, from which
head $h$ has the key $[c W^{UK}_h,\; k^R]$ of width $d$ and the value $c W^{UV}_h$ of width $d_v$:

$$O_h = \mathrm{softmax}\left(\frac{Q_h\,[C W^{UK}_h,\; K^R]^T}{\sqrt{d}}\right) C W^{UV}_h$$

The cache takes $B N_k (r + d_r) e$ bytes, whatever the number of heads. Two forms compute the same. *Decompressed*:
$K$ and $V$ of all heads are made by one GEMM, then attended; $2 B H N_q N_k (d + d_v)$ FLOPs beside it. *Absorbed*:
since $q\,(c W^{UK})^T = (q\,W^{UK\,T})\,c^T$, the queries go into the latent space instead, every head attends the
cache itself as one key of width $r + d_r$ with the value $c$, and $W^{UV}$ is applied to the result:
$2 B H N_q N_k (2 r + d_r)$ FLOPs, 3.4 times as many with DeepSeek's $d = 192$, $d_v = 128$, $r = 512$, $d_r = 64$.
Useful FLOPs are those of the decompressed form.""",
        """Decoding from long caches: with 128 heads a token costs 1.4 % of the bytes of multi-head attention, and since
all heads share what is read, the kernel is bound by its FLOPs from about 128 heads on. It gives up cheap prefill: keys
and values have to be made from the latent, or each pair costs 3.4 times the FLOPs. Absorbing has fewer of them below
some 170 queries; by default the form with fewer is taken.""",
        (
            "DeepSeek-AI, DeepSeek-V2, arXiv 2405.04434, section 2.1",
            "DeepSeek-AI, DeepSeek-V3, arXiv 2412.19437, section 2.1.1",
            "deepseek-ai/FlashMLA docs/20250422-new-kernel-deep-dive.md",
            "vllm-project/vllm vllm/v1/attention/backends/mla/common.py",
        ),
        Workload(
            batch=16, heads_q=128, seq_q=1, seq_kv=8192, head_dim=192, head_dim_v=128, passes="decode",
            mask=Mask.causal(), latent=Latent(512, 64),
        ),
        softmax_reference,
    ),
)  # fmt: skip
