"""Softmax attention over patterns of pairs: what is left out, and when leaving it out pays."""

from __future__ import annotations

from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms.dense import FA1, softmax_reference
from attnsim.models.mechanisms.mechanism import Algorithm
from attnsim.models.question.workload import Workload

_FAMILIES = ("sparse",)
_RUN_BY = ("attnsim_sparse", "gather")
_LONGFORMER = "Beltagy, Peters, Cohan, Longformer, arXiv 2004.05150"
_BIGBIRD = "Zaheer et al., Big Bird, arXiv 2007.14062"
_STRIDED = "Child, Gray, Radford, Sutskever, Sparse Transformer, arXiv 1904.10509"
_BLOCK_SPARSE = f"{FA1}, section 3.3 (block-sparse FlashAttention)"


def _example(mask: Mask | str) -> Workload:
    """A head shape of BERT-base, of which Longformer and BigBird are the sparse forms, at 4,096 tokens."""
    return Workload(1, 12, 4096, 64, mask=Mask.parse(mask) if isinstance(mask, str) else mask)


def _over(visible: str) -> str:
    """The definition of softmax attention over a set of visible keys."""
    return rf"""$$O_i = \sum_{{j \in V(i)}} \frac{{e^{{q_i k_j / \sqrt{{d}}}}}}{{\sum_{{j' \in V(i)}} e^{{q_i k_{{j'}} /
\sqrt{{d}}}}}}\, v_j, \qquad {visible}$$

with $i$ the query's position, $i + N_k - N_q$ where lengths differ."""


_ANY = Algorithm(
    name="sparse",
    title="Block-sparse attention",
    summary="fused, visiting only the tiles in a mask's block list; any pattern, with --mask",
    group="sparse",
    families=_FAMILIES,
    implementations=_RUN_BY,
    definition=_over(r"V(i) = \{j : M_{ij} = 1\}")
    + r"""

The mask $M$ is a union of patterns inside a band. A kernel does not see pairs but tiles of $B_r \times B_c$: those
with nothing visible are left out, those seen whole are multiplied as they are, those seen in part are multiplied whole
and then masked by a bit mask. So a call has three numbers of FLOPs: *useful*, the visible pairs; *executed*, the tiles
visited; *dense*, all pairs. Each block reads the list of its tiles, and a bit mask for each tile seen in part.""",
    wins="""When whole tiles are empty: time follows the tiles visited, not the pairs, and `attnsim breakeven` says
below which density that beats dense flash. A pattern finer than the tile gains nothing, blocks of unequal length wait
for the longest, and a model has to be trained with the pattern or made for it.""",
    sources=(_BLOCK_SPARSE, f"{_BIGBIRD}, appendix D (blocking)"),
    example=_example("window 256, global 16"),
    reference=softmax_reference,
)

_DILATED = Algorithm(
    name="dilated",
    title="Dilated window",
    summary="every s-th key of a window, the query's own included",
    group="sparse",
    families=_FAMILIES,
    implementations=_RUN_BY,
    definition=_over(r"V(i) = \{j : s \mid j - i, \; |j - i| \le (w - 1)\, s\}")
    + r"""

With step $s$ a window of $w$ keys to a side reaches $s$ times as far for the same FLOPs.""",
    wins="""Hardly ever on tiles: up to a step of the tile's size every tile within reach is seen in part, so that
executed FLOPs are those of a window $s$ times as wide. Longformer gives it to a few heads of upper layers, in a kernel
of its own that multiplies bands. Keys permuted by their phase would make it a window again; that is not played.""",
    sources=(f"{_LONGFORMER}, section 3.1, figure 2c",),
    example=_example("dilated 256 step 2"),
    reference=softmax_reference,
    mask="dilated 256 step 2",
)

_GLOBAL = Algorithm(
    name="global",
    title="Global tokens",
    summary="some tokens see all and are seen by all, and nothing else is",
    group="sparse",
    families=_FAMILIES,
    implementations=_RUN_BY,
    definition=_over(r"V(i) = \begin{cases} \{0, \dots, N_k - 1\} & i \in G \\ G & \text{else} \end{cases}")
    + r"""

Rows and columns of the tokens in $G$: cost $O(N g)$, and any two tokens are two steps apart.""",
    wins="""As the part of a union that carries information across the sequence. Its rows are the longest blocks of a
grid: one row tile visits every key tile while the others visit a few, and with few heads the kernel waits for it. The
longest blocks are therefore launched first.""",
    sources=(f"{_LONGFORMER}, section 3.1, figure 2d", f"{_BIGBIRD}, section 2"),
    example=_example("global 64"),
    reference=softmax_reference,
    mask="global 64",
)

_RANDOM = Algorithm(
    name="random",
    title="Random blocks",
    summary="r blocks of keys drawn for every block of queries",
    group="sparse",
    families=_FAMILIES,
    implementations=_RUN_BY,
    definition=_over(r"V(i) = \{j : \lfloor j / b \rfloor \in R(\lfloor i / b \rfloor)\}")
    + r"""

$R(m)$ are $r$ different blocks, drawn by Floyd's sampling from a hash of the seed, $m$ and the number of the draw, so
that a seed means the same blocks everywhere.""",
    wins="""As the part of a union that makes paths between tokens short. It is the pattern with the least locality:
neighbouring blocks of queries share no keys, so that K and V are read anew for each, and a tile taller than the block
visits the keys of several rows for each of them.""",
    sources=(f"{_BIGBIRD}, section 2", "Bentley, Floyd, A sample of brilliance, CACM 30(9), 1987"),
    example=_example("random 8x64 seed 0"),
    reference=softmax_reference,
    mask="random 8x64 seed 0",
)

_STRIDES = Algorithm(
    name="strided",
    title="Local and strided",
    summary="the last s keys and every s-th key before them (Sparse Transformer)",
    group="sparse",
    families=_FAMILIES,
    implementations=_RUN_BY,
    definition=_over(r"V(i) = \{j \le i : i - j < s \;\text{or}\; s \mid i - j\}")
    + r"""

Both heads of the factorised attention merged into one. With $s \approx \sqrt{N}$ each query sees $O(\sqrt{N})$ keys,
$O(N \sqrt{N})$ in all.""",
    wins="""Where the stride is a period of the data (an image's row) and a kernel is written for it. On square tiles
its columns fall into every tile, or every second one for a stride of two tiles: executed FLOPs stay those of half or
all of dense attention. The paper's own kernels transpose the sequence into s columns first.""",
    sources=(f"{_STRIDED}, section 4.3 and 5.5",),
    example=_example(Mask.sparse_transformer()),
    reference=softmax_reference,
    mask=str(Mask.sparse_transformer()),
)

_BLOCK_LIST = Algorithm(
    name="block-list",
    title="Block list",
    summary="the blocks that a list names, with --mask 'blocks 64 0:0 1:0 ...'",
    group="sparse",
    families=_FAMILIES,
    implementations=_RUN_BY,
    definition=_over(r"V(i) = \{j : (\lfloor i / b \rfloor, \lfloor j / b \rfloor) \in L\}")
    + r"""

$L$ is any list of (row block, key block): what a router, a pruning or a butterfly gives. Queries outside of it see
nothing and get $O = 0$.""",
    wins="""When the blocks come from outside. If $b$ is a multiple of the tile nothing is visited in vain and no bit
mask is read; an entry of the list costs 8 bytes a visit, less than a thousandth of the tile's K and V.""",
    sources=(_BLOCK_SPARSE, "Gray, Radford, Kingma, GPU kernels for block-sparse weights, OpenAI, 2017"),
    example=_example(Mask.blocks(64, tuple((row, key) for row in range(64) for key in {0, row, row ^ 1, row ^ 32}))),
    reference=softmax_reference,
)

_WINDOW_AND_GLOBAL = Algorithm(
    name="longformer",
    title="Longformer",
    summary="a window and global tokens; dilated with --mask 'dilated ..., global ...'",
    group="sparse",
    families=_FAMILIES,
    implementations=_RUN_BY,
    definition=_over(r"V(i) = \begin{cases} \{0, \dots, N_k - 1\} & i \in G \\ G \cup \{j : |j - i| \le w / 2\} & "
                     r"\text{else} \end{cases}")
    + r"""

$w = 512$ as in its pre-trained models, with 16 global tokens here; cost $O(N (w + g))$.

*Gathered*, as frameworks run it: chunks of $w / 2$ queries against three chunks of keys, copied side by side into HBM
(three times K and V), scores of $N \times (3 w / 2 + g)$ that pass through HBM for the concatenation with the global
ones, the mask, the softmax and the second GEMM. *Fused*: each block reads the tiles of K and V it sees into shared
memory; no copy and no score is written.""",
    wins="""For documents beyond a few windows of length, with a model made for it. With 12 heads of 64 the fused kernel
beats FlashAttention-2 on an A100 at any length and FlashAttention-3 on an H100 from about 2,600 tokens. Gathered it
moves twenty times the bytes and beats them from about 11,000 and 20,000 tokens on (predicted: `attnsim.crossover`).""",
    sources=(
        f"{_LONGFORMER}, sections 3.1 and 5",
        "Hugging Face transformers, modeling_longformer.py, _sliding_chunks_query_key_matmul",
    ),
    example=_example(Mask.longformer()),
    reference=softmax_reference,
    mask=str(Mask.longformer()),
)  # fmt: skip

_WINDOW_GLOBAL_RANDOM = Algorithm(
    name="bigbird",
    title="BigBird",
    summary="window, global and random blocks of 64",
    group="sparse",
    families=_FAMILIES,
    implementations=_RUN_BY,
    definition=_over(r"V(i) = \begin{cases} \{0, \dots, N_k - 1\} & m \in G \\ \{j : \lfloor j / b \rfloor \in G \cup "
                     r"\{m - 1, m, m + 1\} \cup R(m)\} & \text{else} \end{cases}, \quad m = \lfloor i / b \rfloor")
    + r"""

BigBird-ITC-base: $b = 64$, three blocks of window, two global, three random; cost $O(N b (w + g + r))$.

*Gathered*: window and random blocks are copied for each block of queries, six blocks a row here; global keys and global
queries are GEMMs of their own. *Fused*: a block list of whole tiles, no bit masks.""",
    wins="""Like Longformer's, where paths of two steps between distant tokens matter. Because everything is in blocks
of 64, tiles of 64 x 64 visit nothing in vain: useful and executed FLOPs agree. The random blocks cost locality: their K
and V are read from HBM for one block of queries, once the cache is smaller than a head's K and V.""",
    sources=(
        f"{_BIGBIRD}, section 2, table 8 and appendix D",
        "Hugging Face transformers, modeling_big_bird.py, bigbird_block_sparse_attention",
    ),
    example=_example(Mask.bigbird()),
    reference=softmax_reference,
    mask=str(Mask.bigbird()),
)  # fmt: skip

SPARSE: tuple[Algorithm, ...] = (
    _ANY,
    _DILATED,
    _GLOBAL,
    _RANDOM,
    _STRIDES,
    _BLOCK_LIST,
    _WINDOW_AND_GLOBAL,
    _WINDOW_GLOBAL_RANDOM,
)
"""Any mask; single patterns; the unions that models were trained with."""
