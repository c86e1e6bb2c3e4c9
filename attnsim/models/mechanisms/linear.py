"""Attention without a softmax over all keys: linear in their number, and another function of the same inputs."""

from __future__ import annotations

from functools import partial

from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms.mechanism import Algorithm, Floats
from attnsim.models.question.workload import Workload
from attnsim.models.references.efficient import efficient_attention
from attnsim.models.references.linear import (
    linear_attention,
    linear_attention_chunked,
    linear_attention_quadratic,
    linear_attention_recurrent,
    phi,
)
from attnsim.models.references.linformer import linformer_attention, projected_count, random_projections
from attnsim.models.references.performer import performer_attention

_KATHAROPOULOS = "Katharopoulos, Vyas, Pappas, Fleuret, Transformers are RNNs, arXiv 2006.16236"
_YANG = "Yang, Wang, Shen, Panda, Kim, Gated Linear Attention Transformers, arXiv 2312.06635"
_FLA = "fla-org/flash-linear-attention"
_PREFILL = Workload(batch=1, heads_q=16, seq_q=4096, head_dim=64, mask=Mask.causal())
_ENCODER = Workload(batch=1, heads_q=16, seq_q=4096, head_dim=64)
_DECODE = Workload(batch=8, heads_q=32, heads_kv=8, seq_q=1, seq_kv=8192, head_dim=64, passes="decode")


def _hides(w: Workload) -> bool:
    return w.mask.within(w.seq_q, w.seq_kv).is_causal


def _elu(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    return linear_attention_quadratic(q, k, v) if _hides(w) else linear_attention(q, k, v)


def _elu_chunked(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    return linear_attention_chunked(q, k, v)


def _elu_recurrent(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    """The state of the tokens before the queries, then one step for each of them."""
    old = k.shape[-2] - q.shape[-2]
    before = phi(k[:, :, :old])
    state, normalizer = before.swapaxes(-1, -2) @ v[:, :, :old], before.sum(axis=-2)
    return linear_attention_recurrent(q, k[:, :, old:], v[:, :, old:], state, normalizer)[0]


def _efficient(w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    return efficient_attention(q, k, v)


def _favor(features: int, w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    return performer_attention(q, k, v, features=features, causal=_hides(w))


def _projected(keys: int, w: Workload, q: Floats, k: Floats, v: Floats) -> Floats:
    e, f = random_projections(projected_count(w.seq_kv, keys), w.seq_kv)
    return linformer_attention(q, k, v, e, f)


_LINEAR = Algorithm(
    name="linear",
    title="Linear attention",
    summary="linear attention, phi = elu + 1: an approximation, O(N)",
    group="linear",
    families=("linear",),
    implementations=("attnsim_linear",),
    definition=r"""$$O_i = \frac{\phi(Q_i)\, S}{\phi(Q_i)\, z}, \qquad S = \sum_j \phi(K_j)^T V_j, \qquad
z = \sum_j \phi(K_j)^T, \qquad \phi(x) = \mathrm{elu}(x) + 1$$

over all keys, or causally over $j \le i$. The weights $\phi(Q_i)\,\phi(K_j)^T$ take the place of
$e^{Q_i K_j^T / \sqrt{d}}$; because they are products, the sum over the keys is taken first, into a state of $d \times
d_v$ numbers: $4 N d\, d_v$ FLOPs a head in place of $2 N^2 (d + d_v)$, equal at $N = d$ for $d = d_v$. Three kernels
without a mask (states of ranges of keys, their sum, output); causally one to three ([chunks](linear-chunked.md)).""",
    wins="""Long sequences, in models trained with it: it takes the time of a few copies of Q, K, V and O. It gives up
the softmax: weights are nearly flat, a model trained with softmax attention does not survive the exchange (the error on
random inputs is printed beside the time), and what a query can find again is bounded by the rank of the state.""",
    sources=(f"{_KATHAROPOULOS}, equations 4 to 7",),
    example=_ENCODER,
    reference=_elu,
    exact=False,
)

_CHUNKED = Algorithm(
    name="linear-chunked",
    title="Chunked causal linear attention",
    summary="linear attention under a causal mask: quadratic within a chunk, through the state across chunks",
    group="linear",
    families=("linear",),
    implementations=("attnsim_linear",),
    definition=r"""For chunk $c$ of $C$ rows, with $S_c$ and $z_c$ summed over the chunks before it,

$$A = \operatorname{tril}(\phi(Q_c)\,\phi(K_c)^T), \qquad
O_c = \frac{A V_c + \phi(Q_c)\, S_c}{A \mathbf{1} + \phi(Q_c)\, z_c}, \qquad S_{c+1} = S_c + \phi(K_c)^T V_c$$

and so for $z$. It is the causal definition exactly, with $N C (d + d_v)$ FLOPs a head for the products within chunks
(half of them above the diagonal) and $4 N d\, d_v$ for the state's. A block walks the chunks of a range in order with
the state in registers; where heads are too few to fill the GPU, sequences are cut into ranges, and a kernel before
finds the state that each begins with, for which K and V are read twice.""",
    wins="""It is how causal linear attention is trained and prefilled: the recurrence has no parallel work along the
sequence, the quadratic form has N x N of it. C = 64 keeps tensor-core tiles full at little waste.""",
    sources=(f"{_YANG}, section 4", f"{_KATHAROPOULOS}, equations 8 to 12", f"{_FLA}, fla/ops/linear_attn/naive.py"),
    example=_PREFILL,
    reference=_elu_chunked,
    exact=False,
    selectable=False,
)

_RECURRENT = Algorithm(
    name="linear-recurrent",
    title="Recurrent decode",
    summary="linear attention token by token: a state of fixed size in place of the cache (--pass decode)",
    group="linear",
    families=("linear",),
    implementations=("attnsim_linear",),
    definition=r"""$$S \leftarrow S + \phi(k_t)^T v_t, \qquad z \leftarrow z + \phi(k_t)^T, \qquad
o_t = \frac{\phi(q_t)\, S}{\phi(q_t)\, z}$$

A step reads and writes $(d\, d_v + d)$ fp32 numbers a key head, however many tokens there were: at $d = d_v = 128$
66 KB a head, the size of a bf16 cache of 129 tokens. A block holds the state of a key head in registers and steps
through the new tokens for all query heads of the group.""",
    wins="""Decoding beyond a few hundred tokens, where a softmax decoder reads its whole cache at each step: time and
memory do not depend on the length. It is bound by HBM, the state being read and written; several tokens a call
(speculative decoding) share one pass over it. It gives up what linear attention gives up.""",
    sources=(f"{_KATHAROPOULOS}, equations 16 to 20",),
    example=_DECODE,
    reference=_elu_recurrent,
    exact=False,
    selectable=False,
)

_EFFICIENT = Algorithm(
    name="efficient",
    title="Efficient attention",
    summary="the softmax split into one over Q's width and one over the keys: an approximation, O(N)",
    group="linear",
    families=("efficient",),
    implementations=("efficient_pytorch",),
    definition=r"""$$O = \operatorname{softmax}_d(Q)\,\bigl(\operatorname{softmax}_n(K)^T V\bigr)$$

Each row of $Q$ becomes weights over $d$ templates, each column of $K$ weights over the keys; a query's weights
$\operatorname{softmax}_d(Q_i)\operatorname{softmax}_n(K)^T$ are positive and sum to one without a division. It is
linear attention with the two softmaxes as feature maps: $4 N d\, d_v$ FLOPs and $2 N d$ exponentials a head. Two
softmax passes and two GEMMs.""",
    wins="""Vision models trained with it, whose N is the number of pixels. As a framework runs it, it
goes 8 times over arrays of N x d, twice what is compulsory, in four or five launches. It gives up the same as linear
attention, and causality: the softmax over the keys sees all of them.""",
    sources=(
        "Shen, Zhang, Zhao, Yi, Li, Efficient Attention: Attention with Linear Complexities, arXiv 1812.01243",
        "cmsflash/efficient-attention@23d44036",
    ),
    example=_ENCODER,
    reference=_efficient,
    exact=False,
)


def _performer(features: int = 0) -> Algorithm:
    ending = f"@{features}" if features else ""
    return Algorithm(
        name=f"performer{ending}",
        title="Performer (FAVOR+)",
        summary="softmax's kernel estimated by positive orthogonal random features: an approximation, O(N m)",
        group="linear",
        families=("performer",),
        implementations=(f"performer_fused{ending}", f"performer_pytorch{ending}"),
        definition=r"""$$e^{q k^T / \sqrt{d}} = \mathrm{E}\,[\phi(q)\,\phi(k)^T], \qquad
\phi(x) = \frac{1}{\sqrt m}\, e^{W y - |y|^2 / 2}, \quad y = x / d^{1/4}, \quad W_r \sim \mathcal{N}(0, I_d)$$

with the $m$ rows of $W$ orthogonal in blocks of $d$; $O$ is linear attention with this $\phi$, causally in chunks. The
estimate of a weight is unbiased and its deviation falls as $1 / \sqrt m$; that of $O$ is a quotient, so unbiased in the
limit. $m = d \ln d$, rounded up to 16 (272 at $d = 64$, 624 at 128), unless `performer@N` says otherwise.
$2 N m (d + d_v)$ FLOPs and $N m$ exponentials for each of Q and K.""",
        wins=r"""Long sequences where weights are not peaked: the variance grows as $e^{|q + k|^2 / \sqrt{d}}$, and a
query that attends to one key among many is missed by any number of features that would still be cheap. As single
operations (`performer_pytorch`) it goes 14 times over the N x m features of Q, with each feature map's chain fused
(`performer_fused`, the default) 5 times. Either way memory, not FLOPs, sets the crossover with fused softmax attention:
about 5,000 keys on an A100 at d = 64 and m = 272, where useful FLOPs are equal at 544.""",
        sources=(
            "Choromanski et al., Rethinking Attention with Performers, arXiv 2009.14794, lemma 1, theorems 2 and 4",
            "google-research/google-research, performer/fast_attention",
            "lucidrains/performer-pytorch@d86231b0",
            f"{_FLA}@20ceee52, fla/ops/linear_attn/naive.py (chunks)",
        ),
        example=_ENCODER,
        reference=partial(_favor, features),
        exact=False,
        sized=_performer,
    )


def _linformer(keys: int = 0) -> Algorithm:
    ending = f"@{keys}" if keys else ""
    return Algorithm(
        name=f"linformer{ending}",
        title="Linformer",
        summary="softmax attention over k learned mixtures of the keys: an approximation, O(N k)",
        group="linear",
        families=("linformer",),
        implementations=(f"linformer_pytorch{ending}",),
        definition=r"""$$O = \operatorname{softmax}\Bigl(\frac{Q\,(E K)^T}{\sqrt d}\Bigr)\,(F V), \qquad
E, F \in \mathbb{R}^{k \times N}$$

$E$ and $F$ are learned; all heads share them. $k = 256$, never more than $N$, unless `linformer@N` says otherwise; with
$k = N$ and $E = F = I$ it is softmax attention. $2 N k (d + d_v)$ FLOPs for the projections and as many for the
attention, $N k$ exponentials a head. Two GEMMs, then unfused attention over $k$ keys.""",
        wins="""Encoders of one fixed length. Its matrices of N x k go through HBM as unfused attention's of N x N do,
so
that it beats fused softmax attention only where N is many times k. It gives up other lengths than the one E and F were
trained for, and causality: each projected key mixes all keys. The reference draws E and F at random, as the proof of
its theorem does; a trained model's error is not known from that.""",
        sources=(
            "Wang, Li, Khabsa, Fang, Ma, Linformer, arXiv 2006.04768, equation 7 and theorem 2",
            "lucidrains/linformer@1533a130",
        ),
        example=_ENCODER,
        reference=partial(_projected, keys),
        exact=False,
        sized=_linformer,
    )


LINEAR: tuple[Algorithm, ...] = (_LINEAR, _CHUNKED, _RECURRENT, _EFFICIENT, _performer(), _linformer())
"""Kernel feature maps in three forms, the split softmax, random features, projected keys."""
