"""Who shares keys and values with whom, and which queries meet which keys: properties of the question.

None is a schedule of its own: every dense schedule answers each of them (`heads_kv`, `seq_kv`, `mask`, `passes`), and
the records say what the answer has to show. Multi-head latent attention, which has schedules of its own, is in
:mod:`attnsim.models.mechanisms.latent`.
"""

from __future__ import annotations

from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms.dense import ANY_FLASH, FLASH, softmax_gradients, softmax_reference
from attnsim.models.mechanisms.mechanism import Algorithm
from attnsim.models.question.workload import Workload

_FAMILIES = ("naive", *ANY_FLASH)
_VASWANI = "Vaswani et al., Attention Is All You Need, arXiv 1706.03762"
_SHAZEER = "Shazeer, Fast Transformer Decoding: One Write-Head Is All You Need, arXiv 1911.02150"
_AINSLIE = "Ainslie et al., GQA: Training Generalized Multi-Query Transformer Models, arXiv 2305.13245"
_POPE = "Pope et al., Efficiently Scaling Transformer Inference, arXiv 2211.05102"


def _property(
    name: str,
    title: str,
    summary: str,
    definition: str,
    wins: str,
    sources: tuple[str, ...],
    example: Workload,
    families: tuple[str, ...] = _FAMILIES,
) -> Algorithm:
    """A record of the group: softmax attention by any dense schedule, chosen with the question and not by name."""
    return Algorithm(
        name=name,
        title=title,
        summary=summary,
        group="sharing",
        families=families,
        implementations=FLASH,
        definition=definition,
        wins=wins,
        sources=sources,
        example=example,
        reference=softmax_reference,
        gradients=softmax_gradients,
        selectable=False,
    )


def _prefill(heads_kv: int) -> Workload:
    return Workload(batch=1, heads_q=32, heads_kv=heads_kv, seq_q=4096, head_dim=128, mask=Mask.causal())


_DECODE = Workload(
    batch=8, heads_q=32, heads_kv=8, seq_q=1, seq_kv=8192, head_dim=128, passes="decode", mask=Mask.causal()
)

SHARING: tuple[Algorithm, ...] = (
    _property(
        "mha", "Multi-head attention", "every query head has keys and values of its own: G = H",
        r"""$$O_h = \operatorname{softmax}\!\left(\frac{Q_h K_h^T}{\sqrt{d}}\right) V_h, \qquad h = 1, \dots, H$$

with $G = H$ key/value heads. A cached token costs $2 H d e$ bytes a layer, so that a KV cache has
$2 B N_k H d e$ bytes ($e$ bytes an element).""",
        """In training and prefill it costs next to nothing more than sharing: the FLOPs of attention are the same, and
K and V are small beside the work on them. It gives up memory and decode speed: the cache is H/G times that of grouped
heads, and a decode step takes at least as long as the cache takes to be read.""",
        (f"{_VASWANI}, section 3.2.2",), _prefill(32),
    ),
    _property(
        "mqa", "Multi-query attention", "all query heads share one key/value head: G = 1",
        r"""$$O_h = \operatorname{softmax}\!\left(\frac{Q_h K^T}{\sqrt{d}}\right) V, \qquad h = 1, \dots, H$$

with one $K$ and one $V$ for all heads. The cache is $H$ times smaller than with MHA, $2 B N_k d e$ bytes. Schedules
that pack the heads of a group into the rows of one tile read a tile of $K$ and $V$ once for all $H$ heads.""",
        """Decoding many sequences or long caches, on one GPU. It gives up model quality, and split over several GPUs
each of them keeps a copy of the one head. Where a schedule does not pack the heads, each of them asks for the same
keys, and only the L2 keeps those reads from HBM.""",
        (_SHAZEER, f"{_POPE}, section 3.3"), _prefill(1),
    ),
    _property(
        "gqa", "Grouped-query attention", "groups of query heads share a key/value head: 1 < G < H",
        r"""$$O_h = \operatorname{softmax}\!\left(\frac{Q_h K_{g(h)}^T}{\sqrt{d}}\right) V_{g(h)}, \qquad
g(h) = \left\lfloor \frac{h}{H / G} \right\rfloor$$

A cached token costs $2 G d e$ bytes a layer, $H/G$ times less than with MHA. $G = H$ is MHA and $G = 1$ is MQA,
exactly: same kernels, same bytes, same time.""",
        """Almost always for models that generate text: with G = 8, the number of GPUs in a server, each GPU has a head
of its own and quality is near that of MHA. It gives up nothing in prefill. In decode its intensity is H/G FLOPs a
byte at 16 bits, far below any ridge point: bytes of the cache decide.""",
        (_AINSLIE, "Touvron et al., Llama 2, arXiv 2307.09288, section A.2.1"), _prefill(8),
    ),
    _property(
        "self-attention", "Self-attention", "queries, keys and values are of the same tokens: Nq = Nk",
        r"""$$Q = X W_Q, \quad K = X W_K, \quad V = X W_V, \qquad N_q = N_k = N$$

$4 B H N^2 d$ FLOPs without a mask; inputs and output are $B N (2 H + 2 G) d$ elements, so that the intensity grows with
$N$.""",
        """It is the attention of encoders and decoders alike. Its cost is quadratic in the sequence: beyond some
thousand tokens it outgrows the projections around it (`attnsim predict --layer`).""",
        (f"{_VASWANI}, section 3.2.3",),
        Workload(batch=4, heads_q=16, seq_q=2048, head_dim=64),
    ),
    _property(
        "cross-attention", "Cross-attention", "keys and values are of another sequence: any Nq and Nk",
        r"""$$Q = X W_Q, \quad K = Y W_K, \quad V = Y W_V, \qquad X \in \mathbb{R}^{N_q \times D},\;
Y \in \mathbb{R}^{N_k \times D}$$

The same code path as self-attention: every schedule takes $N_q$ and $N_k$ apart. Without a mask it does
$4 B H N_q N_k d$ FLOPs; with $N_q$ and $N_k$ exchanged it does as many, but reads and writes other bytes.""",
        """Encoder-decoder models, conditioning of images on text, pooling by learnt queries. K and V of the other
sequence can be kept, as they do not change while it is attended. Few queries leave the chip idle unless the keys are
split (`split-kv`).""",
        (f"{_VASWANI}, section 3.2.3",),
        Workload(batch=4, heads_q=16, seq_q=1024, seq_kv=4096, head_dim=64),
    ),
    _property(
        "causal", "Causal attention", "a query sees no later key",
        r"""$$S_{ij} = -\infty \quad \text{where} \quad j > i + (N_k - N_q)$$

aligned bottom-right: the last query sees all keys. $N (N + 1) / 2$ of $N^2$ pairs are visible, and that is what counts
as useful. Tiles above the diagonal are skipped, tiles on it are computed whole and masked, tiles below it need no
mask.""",
        """Wherever text is generated. Half the FLOPs bring less than half the time: row tiles have different lengths,
so that the end of the grid is ragged (schedules launch the longest first), and the tiles on the diagonal are half
wasted, 6 % of the work at 4,096 keys and 256 a tile.""",
        (f"{_VASWANI}, section 3.2.3", "Dao, FlashAttention-2, arXiv 2307.08691, section 3.1"), _prefill(8),
    ),
    _property(
        "prefill", "Prefill", "a prompt's tokens all at once: many queries",
        r"""$N_q$ is the prompt, or a chunk of it behind a cache ($N_k > N_q$, causal bottom-right), and all of its
queries run in parallel. Intensity is $2 N_q H / (G e)$ FLOPs a byte of $K$ and $V$ read once, above the ridge point of
any GPU from some hundred tokens on.""",
        """It is what the first token waits for. Tensor cores bound it at head_dim 128; at head_dim 64 the exponentials
take as long. Chunks keep decode steps of other requests from waiting, and pay for it: every chunk reads the keys before
it again.""",
        (f"{_POPE}, section 2", "Agrawal et al., Sarathi-Serve, arXiv 2403.02310"),
        Workload(batch=1, heads_q=32, heads_kv=8, seq_q=2048, seq_kv=8192, head_dim=128, mask=Mask.causal()),
    ),
    _property(
        "decode", "Decode", "one new token against the cache: Nq = 1",
        r"""$N_q = 1$ (or a few, with speculation) against $N_k$ cached keys: $4 B H N_k d$ FLOPs for $2 B N_k G d e$
bytes, an intensity of $2 H / (G e)$ FLOPs a byte whatever the length. A cache larger than the L2, or a cold one, takes

$$t \ge \frac{2 B N_k G d e}{\text{HBM bandwidth}}.$$""",
        """It is what every further token waits for. Nothing but fewer bytes makes it faster: grouped heads, a latent,
a window, fewer bytes an element. One query a head fills few tiles, so the heads of a group share one, and keys are
split over blocks until the chip is full (`split-kv`).""",
        (_SHAZEER, f"{_POPE}, section 2", "Dao, Haziza, Massa, Sizov, Flash-Decoding for long-context inference, 2023"),
        _DECODE, ANY_FLASH,
    ),
    _property(
        "layer", "The attention layer", "projections, rotary embedding and attention: what a model runs",
        r"""$$Y = \operatorname{attention}(R(X W_Q), R(X W_K), X W_V)\, W_O$$

with rotary embedding $R$ where the model has it. The projections are GEMMs of $2 B N D (2 H d + 2 G d)$ FLOPs together,
linear in $N$; attention has $4 B H N^2 d$ (half when causal), so that its share of the FLOPs is
$N / (N + D (1 + G/H))$ for $H d = D$ without a mask. Latent attention has a down- and an up-projection in place of
$W_K$ and $W_V$ ([MLA](mla.md)).""",
        """To know whether attention is worth making faster at a length: below some thousand tokens projections take
most of the time. In decode they read all weights for few rows: bound by HBM, and cheaper by the token the larger the
batch, while the cache's bytes grow with it.""",
        (f"{_VASWANI}, section 3.2.2", "Su et al., RoFormer, arXiv 2104.09864",
         "NVIDIA/cutlass, media/docs/cpp/efficient_gemm.md"),
        Workload(batch=1, heads_q=32, heads_kv=8, seq_q=2048, head_dim=128, mask=Mask.causal()),
    ),
)  # fmt: skip
