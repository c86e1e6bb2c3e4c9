"""What a dense call may ask for beside its schedule: passes of the unfused form, the backward pass, FP8.

None is a schedule of its own: they are properties of the question (`dropout`, `passes`, `dtype`).
"""

from __future__ import annotations

from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms.dense import (
    ANY_FLASH,
    FA1,
    FA2,
    FA3,
    FLASH,
    SOFTMAX,
    softmax_gradients,
    softmax_reference,
)
from attnsim.models.mechanisms.mechanism import Algorithm
from attnsim.models.question.workload import Workload

_PASSES = Algorithm(
    name="unfused-passes",
    title="Scale, mask and dropout passes",
    summary="what unfused attention adds to its two GEMMs: passes over the N x N matrix",
    group="dense",
    families=("naive",),
    implementations=("hf_eager", "pytorch_eager", "naive_fused_epilogue"),
    definition=r"""$$P = \operatorname{softmax}(\alpha\, Q K^T + M), \qquad
O = \frac{Z \circ P}{1 - p}\, V, \quad Z_{ij} \sim \operatorname{Bernoulli}(1 - p)$$

with the scale $\alpha$, the mask $M \in \{0, -\infty\}$ and dropout $Z$ each fused into a neighbour or a pass of its
own, which reads and writes $N_q N_k$ elements a head. `naive_fused_epilogue` has the fewest passes (scale and mask in
the GEMM's epilogue); `pytorch` adds a mask pass; `hf_eager` adds scale and mask passes and takes the softmax in fp32,
with a cast back; `pytorch_sdpa_math` runs all of it in fp32. Dropout writes the dropped $P$ and a mask $Z$ of one byte
an element, which the backward reads. The reference is the expectation over $Z$, attention without dropout.""",
    wins="""Never: every pass costs $2 N_q N_k$ elements of HBM traffic a head and a launch. The record is here because
papers' baselines differ in exactly these passes, by a factor of two to four in bytes, so that a speedup over "standard
attention" means little without them.""",
    sources=(
        "Hugging Face transformers, src/transformers/models/llama/modeling_llama.py, eager_attention_forward",
        "PyTorch 2.5, aten/src/ATen/native/transformers/attention.cpp, _scaled_dot_product_attention_math",
        "PyTorch, aten/src/ATen/native/cuda/Dropout.cu",
        f"{FA1}, appendices B.3 and B.4 (masking and dropout)",
    ),
    example=Workload(batch=1, heads_q=16, seq_q=1024, head_dim=64, mask=Mask.causal(), dropout=True),
    reference=softmax_reference,
    gradients=softmax_gradients,
    selectable=False,
)


_BACKWARD = Algorithm(
    name="backward",
    title="Backward pass",
    summary="gradients of fused attention: P recomputed from the log-sum-exp, five GEMMs",
    group="dense",
    families=ANY_FLASH,
    implementations=(*FLASH, "flash_two_pass"),
    definition=r"""With $dO$ given and $D = \operatorname{rowsum}(dO \circ O)$,

$$P = e^{S - \mathrm{lse}}, \quad dV = P^T dO, \quad dP = dO\, V^T, \quad
dS = P \circ (dP - D), \quad dQ = \frac{dS\, K}{\sqrt{d}}, \quad dK = \frac{dS^T Q}{\sqrt{d}}$$

$P$ is recomputed, never stored: five GEMMs, 2.5 times the FLOPs of the forward. A block owns a tile of keys and goes
over the visible rows; $dK$ and $dV$ stay in its registers. $dQ$ of a row gets a share from every block, so it is added
with fp32 atomics into a buffer that a last kernel converts (a first kernel computes $D$ and clears it); with grouped
heads $dK$ and $dV$ are made for each query head and summed. The alternative is a second pass with rows outside that
recomputes $S$ and $dP$: seven GEMMs, no atomics, the same sum at every run.""",
    wins="""Training. Against the unfused backward it saves seven passes over N x N matrices ($P$ read twice, $dP$
written and read, $dS$ written and read twice) for one more GEMM. Atomics make its $dQ$ differ in the last bits from
run to run, and the fp32 accumulator is cleared, added to and converted. The second pass (`flash_two_pass`) has
neither, moves fewer bytes of HBM and more of the L2, since it reads $K$ and $V$ again for each tile of rows, and takes
1.4 times as long where GEMMs bound: it is for reproducible gradients.""",
    sources=(
        f"{FA1}, algorithm 4 and appendix B.2",
        f"{FA2}, algorithm 2",
        "Dao-AILab/flash-attention v2.8.3, csrc/flash_attn/src/flash_bwd_kernel.h",
    ),
    example=Workload(batch=1, heads_q=16, seq_q=4096, head_dim=128, mask=Mask.causal(), passes="bwd"),
    reference=softmax_reference,
    gradients=softmax_gradients,
    selectable=False,
)


_FP8 = Algorithm(
    name="fp8",
    title="FP8 attention",
    summary="FlashAttention-3 on e4m3 inputs: twice the tensor rate, half the bytes, the same exponentials",
    group="dense",
    families=("flash-3",),
    implementations=("flash_attn_v3",),
    definition=SOFTMAX
    + r"""

$Q$, $K$ and $V$ are e4m3 with a scale for each tensor or block, $P$ is rounded to e4m3 before the second GEMM, both
accumulate in fp32, and $O$ is written in 16 bits. The reference is attention of the inputs as they are given. Tiles
are larger (one byte an element) and the tensor cores twice as fast, while the exponentials are as many as before: at
head_dim 128 on H100 the two take equally long, as at head_dim 64 in bf16.""",
    wins="""For inference on Hopper where the model tolerates it, at head_dim 128 and 256; at head_dim 64 exponentials
bound it and little is gained. Decoding gains in proportion to the cache's bytes. There is no FP8 backward. Not played:
the transposes of V inside the kernel, and accumulation in two levels.""",
    sources=(
        f"{FA3}, section 3.3",
        "Micikevicius et al., FP8 Formats for Deep Learning, arXiv 2209.05433",
        "Dao-AILab/flash-attention@0251105a, hopper/tile_size.h",
    ),
    example=Workload(batch=1, heads_q=16, seq_q=4096, head_dim=128, dtype="fp8"),
    reference=softmax_reference,
    selectable=False,
)

VARIANTS: tuple[Algorithm, ...] = (_PASSES, _BACKWARD, _FP8)
"""Passes over the N x N matrix, gradients, eight bits."""
