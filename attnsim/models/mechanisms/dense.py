"""Softmax attention over all pairs that a diagonal band shows: unfused, fused, split over the keys."""

from __future__ import annotations

from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms.mechanism import Algorithm, Floats
from attnsim.models.question.workload import Workload
from attnsim.models.references.softmax import attention, attention_backward
from attnsim.models.references.tiled import flash1_reference, flash_reference, split_kv_reference

ANY_FLASH = ("flash-1", "flash-2", "flash-3")
FLASH = ("flash_attn_v3", "flash_attn_v4", "flash_attn_v2", "flash_attn_v1", "xformers_cutlass")
FA1 = "Dao, Fu, Ermon, Rudra, Ré, FlashAttention, arXiv 2205.14135"
FA2 = "Dao, FlashAttention-2, arXiv 2307.08691"
FA3 = "Shah, Bikshandi, Zhang, Thakkar, Ramani, Dao, FlashAttention-3, arXiv 2407.08608"
_ONLINE = "Milakov, Gimelshein, Online normalizer calculation for softmax, arXiv 1805.02867"
_PREFILL = Workload(batch=1, heads_q=16, seq_q=4096, head_dim=128, mask=Mask.causal())
_WINDOW = Workload(batch=1, heads_q=16, seq_q=4096, head_dim=128, mask=Mask.sliding_window(512, causal=True))
_DECODE = Workload(batch=4, heads_q=32, heads_kv=8, seq_q=1, seq_kv=8192, head_dim=128, passes="decode")
SOFTMAX = r"""$$S = \frac{Q K^T}{\sqrt{d}}, \qquad P_{ij} = \frac{e^{S_{ij}}}{\sum_{j' \text{ visible}} e^{S_{ij'}}},
\qquad O = P V$$

over the keys that the mask shows a query; a query that is shown none gives $O = 0$."""
_STEP = r"""$$m' = \max(m, \operatorname{rowmax} S), \quad \ell' = e^{m - m'} \ell + \operatorname{rowsum} e^{S - m'},
\quad O' = e^{m - m'} O + e^{S - m'} V$$"""


def softmax_reference(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    """O of softmax attention under the question's mask."""
    return attention(q, k, v, w.mask)[0]


def softmax_gradients(w: Workload, q: Floats, k: Floats, v: Floats, do: Floats) -> tuple[Floats, Floats, Floats]:
    """Gradients of softmax attention under the question's mask."""
    return attention_backward(q, k, v, do, w.mask)


def _queries_outside(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    return flash_reference(q, k, v, w.mask)[0]


def _keys_outside(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    return flash1_reference(q, k, v, w.mask)[0]


def _keys_split(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    return split_kv_reference(q, k, v, w.mask, splits=4)[0]


_NAIVE = Algorithm(
    name="naive",
    title="Unfused attention",
    summary="unfused: scores and probabilities go through HBM",
    group="dense",
    families=("naive",),
    implementations=("pytorch", "naive_fused_epilogue"),
    definition=SOFTMAX
    + r"""

Each step is a kernel of its own. The first GEMM writes $S$, $N_q N_k$ elements a head, to HBM; softmax reads it and
writes $P$; the second GEMM reads that. HBM traffic is $\Theta(N d + N^2)$ a head with a factor in front of $N^2$ that
is the number of passes over the matrix (see [the passes](unfused-passes.md)), and $S$ and $P$ are scratch memory of
the same size. A mask saves nothing: all $N_q N_k$ scores are computed.""",
    wins="""When $S$ or $P$ themselves are wanted (attention maps, score functions that no fused kernel has, second
derivatives), or in fp32, for which only xformers has a fused kernel. Each GEMM is cuBLAS's, near the tensor peak. It
gives up memory quadratic in the sequence length and is bound by HBM from about a thousand keys on; below that, where S
stays in the L2, by its launches.""",
    sources=(
        "Vaswani et al., Attention Is All You Need, arXiv 1706.03762, equation 1",
        "Dao-AILab/flash-attention, benchmarks/benchmark_flash_attention.py, attention_pytorch",
        f"{FA1}, algorithm 0",
    ),
    example=_PREFILL,
    reference=softmax_reference,
    gradients=softmax_gradients,
)

_FUSED = Algorithm(
    name="flash",
    title="Fused attention",
    summary="fused: the best implementation available for the GPU",
    group="dense",
    families=ANY_FLASH,
    implementations=FLASH,
    definition=SOFTMAX
    + rf"""

One kernel, tile by tile: scores of a tile of $B_r$ queries by $B_c$ keys exist in registers and shared memory alone.
The softmax is taken online. With the highest score $m$, the sum $\ell$ and $O$ over the keys seen so far, a further
tile gives

{_STEP}

and at the end $O / \ell$ and $\mathrm{{lse}} = m + \log \ell$, in any order of tiles. HBM holds $Q$, $K$, $V$, $O$ and
one number a row: memory is linear in $N$. Tiles that the mask hides are skipped.""",
    wins="""Nearly always: the same function to rounding, without the N x N matrix. It is bound by the tensor cores at
head_dim 128, by tensor cores and exponentials alike at head_dim 64 on Hopper, by HBM when decoding. It gives up access
to P, and score functions have to be compiled into the kernel. `flash` takes FlashAttention-3 on Hopper,
FlashAttention-4 on Blackwell, FlashAttention-2 on Ampere and Ada.""",
    sources=(FA1, FA2, FA3, _ONLINE, "Rabe, Staats, Self-attention Does Not Need O(n^2) Memory, arXiv 2112.05682"),
    example=_PREFILL,
    reference=_queries_outside,
    gradients=softmax_gradients,
)

_FLASH_1 = Algorithm(
    name="flash-1",
    title="FlashAttention-1",
    summary="FlashAttention-1: keys in the outer loop",
    group="dense",
    families=("flash-1",),
    implementations=("flash_attn_v1",),
    definition=SOFTMAX
    + rf"""

Keys are in the outer loop: a block loads a tile of $K$ and $V$, then goes over all queries; $O$, $m$ and $\ell$ of
each row are read, updated by

{_STEP}

and written back in every outer turn. With $M$ bytes of shared memory the tile has $\Theta(M / d)$ keys, so there are
$\Theta(N d / M)$ turns over $\Theta(N d)$ bytes: HBM traffic is $\Theta(N^2 d^2 / M)$ a head (theorem 2).""",
    wins="""Nowhere over its successors on GPUs that run them; on Turing it and xformers' are the fused attention there
is. Its partial results in fp32 cross the L2, and HBM where they do not fit, in every outer turn, and one block a
(batch, head) leaves SMs idle with few heads (version 1.0.9 shares a head's query rows out over several). It is kept
for what its loop order costs, and for the figures of its paper.""",
    sources=(
        f"{FA1}, algorithm 1 and theorem 2",
        "Dao-AILab/flash-attention v1.0.9, csrc/flash_attn/src/fmha_fprop_kernel_1xN.h",
    ),
    example=Workload(batch=1, heads_q=16, seq_q=4096, head_dim=64, dtype="fp16", mask=Mask.causal()),
    reference=_keys_outside,
    gradients=softmax_gradients,
)

_FLASH_2 = Algorithm(
    name="flash-2",
    title="FlashAttention-2",
    summary="FlashAttention-2: queries in the outer loop",
    group="dense",
    families=("flash-2",),
    implementations=("flash_attn_v2", "xformers_cutlass"),
    definition=SOFTMAX
    + rf"""

A block owns $B_r$ query rows and goes over the visible tiles of keys; $m$, $\ell$ and $O$ stay in its registers:

{_STEP}

$O$ is divided by $\ell$ once, at the end, and only $\mathrm{{lse}} = m + \log \ell$ is saved for the backward. $Q$ and
$O$ cross the memory once, $K$ and $V$ once for each of the $\lceil N_q / B_r \rceil$ row tiles of a head, most of it
from the L2, since neighbouring blocks walk the same keys. Row tiles make the grid: long sequences fill the chip with
one head.""",
    wins="""On Ampere, Ada and consumer Blackwell, and everywhere without `wgmma`. With `mma.sync` it reaches about 63
% of Hopper's tensor peak at best, which is what FlashAttention-3 is for. Softmax overlaps with GEMMs only through a
second resident block, so what limits occupancy (registers at 128 x 64, shared memory at head_dim 256) matters.""",
    sources=(f"{FA2}, algorithm 1", "Dao-AILab/flash-attention v2.8.3, csrc/flash_attn/src/flash_fwd_kernel.h"),
    example=_PREFILL,
    reference=_queries_outside,
    gradients=softmax_gradients,
)

_FLASH_3 = Algorithm(
    name="flash-3",
    title="FlashAttention-3",
    summary="FlashAttention-3: warp-specialised, softmax under the next GEMM",
    group="dense",
    families=("flash-3",),
    implementations=("flash_attn_v3", "flash_attn_v4"),
    definition=SOFTMAX
    + rf"""

The tiles and the recurrence are FlashAttention-2's,

{_STEP}

but work is laid out in time: a producer warp issues asynchronous bulk copies (TMA) into a ring of stages, two or three
consumer warpgroups issue `wgmma`; the GEMM $S = Q K^T$ of the next tile is issued before the softmax of this one, and
named barriers let the softmax of one warpgroup run under the GEMMs of the other (ping-pong). A tile of $B_c$ keys
takes $\max(4 B_r B_c d / R, \; B_r B_c / X)$ instead of their sum, $R$ the tensor FLOPs and $X$ the exponentials a
clock. On Blackwell (FlashAttention-4) accumulators are in tensor memory and part of the exponentials is computed by
polynomials on the FP32 lanes (the latter is not played).""",
    wins="""On Hopper, and as FlashAttention-4 on data-centre Blackwell. The overlap pays most where GEMMs and
exponentials take equally long: head_dim 64 on H100 (1 : 1), head_dim 128 on B200. One or two blocks an SM and a
persistent grid make it sensitive to waves at short lengths, and it needs `wgmma` or `tcgen05`.""",
    sources=(
        f"{FA3}, algorithms 1 and 2, section 3",
        "Dao-AILab/flash-attention@0251105a, hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp",
        "Dao-AILab/flash-attention, flash_attn/cute (FlashAttention-4)",
    ),
    example=_PREFILL,
    reference=_queries_outside,
    gradients=softmax_gradients,
)

_SLIDING = Algorithm(
    name="sliding-window",
    title="Sliding window",
    summary="fused, visiting only the key tiles inside the window",
    group="dense",
    families=ANY_FLASH,
    implementations=FLASH,
    definition=r"""$$O_i = \sum_{j = i + N_k - N_q - w + 1}^{i + N_k - N_q} P_{ij} V_j \quad \text{(causal)}$$

with the softmax over the same $w$ keys: the query's own and $w - 1$ to its left (as many to the right if not causal).
A fused kernel visits $\lceil (w + B_r - 1) / B_c \rceil$ or one more tiles of keys for a row tile, masks those that
the band's two edges cut, and skips the rest: cost $O(N w)$.""",
    wins="""For models trained with a window (Mistral 7B, Gemma's local layers, GPT-OSS), from a few windows of length
on: time and, with a rolling cache, memory no longer grow with the context. Tiles are coarse: at a window of 128 keys
tiles of 128 x 64 multiply about twice what is visible. A model trained without a window loses what lies outside it.""",
    sources=(
        "Beltagy, Peters, Cohan, Longformer, arXiv 2004.05150, section 3.1",
        "Jiang et al., Mistral 7B, arXiv 2310.06825, section 2",
        "Dao-AILab/flash-attention v2.8.3, csrc/flash_attn/src/mask.h",
    ),
    example=_WINDOW,
    reference=softmax_reference,
    gradients=softmax_gradients,
)

_SPLIT_KV = Algorithm(
    name="split-kv",
    title="Split-KV decode",
    summary="fused decode: keys shared out over blocks, then combined",
    group="dense",
    families=ANY_FLASH,
    implementations=FLASH,
    definition=r"""$K$ and $V$ are cut into $s$ ranges; a block attends over one of them and writes its $O_p$, in fp32,
and $\mathrm{lse}_p$. A second kernel combines:

$$\mathrm{lse} = \log \sum_{p=1}^{s} e^{\mathrm{lse}_p}, \qquad
O = \sum_{p=1}^{s} e^{\mathrm{lse}_p - \mathrm{lse}}\, O_p$$

The number of splits is the smallest whose wave efficiency is at least 85 % of the best count's
(`num_splits_heuristic`); the query heads of a group are packed into the rows of one tile, so that its keys are read
once.""",
    wins="""With few queries against a long cache and fewer (batch x key heads) than SMs: one block a head would leave
most of the chip, and of the HBM bandwidth, idle. The price is a combine kernel and $s (d_v + 1)$ fp32 numbers a row
through the L2. With many sequences there are blocks enough, the rule gives one split, and nothing is gained.""",
    sources=(
        "Dao, Haziza, Massa, Sizov, Flash-Decoding for long-context inference, 2023",
        "Dao-AILab/flash-attention v2.8.3, csrc/flash_attn/flash_api.cpp, num_splits_heuristic",
    ),
    example=_DECODE,
    reference=_keys_split,
)

DENSE: tuple[Algorithm, ...] = (_NAIVE, _FUSED, _FLASH_1, _FLASH_2, _FLASH_3, _SLIDING, _SPLIT_KV)
"""Unfused; fused, by generation; windows; decoding."""
