"""Performer attention (Choromanski et al., arXiv 2009.14794) as a framework runs it: GEMMs and passes between them.

Feature maps and the form without a mask follow `softmax_kernel` and `linear_attention` of lucidrains/performer-pytorch
(commit d86231b0, transcribed there from google-research's JAX code), one kernel per operation; the `fused` form makes
one kernel of each feature map's element-wise chain, as compilers do.

The causal form is chunked like `naive_chunk_linear_attn` of fla-org/flash-linear-attention (commit 20ceee52): quadratic
within a chunk, across chunks through cumulated states; its normaliser is taken chunk by chunk as well. Sequences are
padded to whole chunks first.

Key heads are not repeated: a group of query heads reads the features and the states of its key head.

GEMMs that sum over the keys: a small result of a long sum, split over blocks by split-K.

C of m x n has few tiles, and one block each would leave most of the GPU idle. Libraries then split the sum into parts
that write fp32 results, and add those up in a second kernel (NVIDIA/cutlass, ``media/docs/cpp/efficient_gemm.md``,
parallelised reductions). cuBLAS's rule is not public. Assumed is the smallest number of parts that gives every SM a
block, each of at least as many steps as the GEMM has stages; or up to twice as many if they are then equal.

Efficient attention (Shen et al., arXiv 1812.01243) as a framework runs it: two softmax passes and two GEMMs.

The sequence follows cmsflash/efficient-attention (commit 23d44036), all heads in one launch. K and Q are stored there
as ``[head_dim, seq]``, so that K's softmax runs along contiguous rows of keys.

Linformer (Wang et al., arXiv 2006.04768) as a framework runs it: keys projected to k, then unfused attention.

The sequence follows `LinformerSelfAttention` of lucidrains/linformer (commit 1533a130): two GEMMs against E and F,
which all heads share; scores of k keys, a scale pass, a softmax pass, P V. Its linear layers are not part of
attention, its dropout is off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.frameworks.eager import (
    GEMM_TEXT,
    arrays_bytes,
    elementwise,
    over_rows,
    softmax,
    summed,
)
from attnsim.models.implementations.implementation import Implementation, TileRequest, record
from attnsim.models.implementations.own.linear_tiles import is_causal
from attnsim.models.question.workload import Workload
from attnsim.models.references.linear import feature_count, projected_count
from attnsim.models.schedule.gemm import GemmTile, Operand, gemm, gemm_path, library_gemm, library_tiles, waves_s
from attnsim.models.schedule.schedule import Kernel, Schedule

Sizes = tuple[int, int, int]
"""m, n, k."""


def check_nothing_hidden(w: Workload, reason: str) -> None:
    """Refuse a mask, or dropout, for a mechanism that sums all keys before any query; `reason` is its explanation."""
    if w.mask.within(w.seq_q, w.seq_kv).is_windowed or is_causal(w) or w.dropout:
        raise InputError(
            f"{reason}, so that none can be hidden: the mask is {w.mask}{', dropout' if w.dropout else ''}; "
            "allowed: no mask, no dropout; linear and performer have a causal form"
        )


def _parts(tile: GemmTile, batch: int, shape: Sizes, sms: int) -> int:
    """Parts of k: as many as give every SM a block, or up to twice as many if they are then equal."""
    m, n, k = shape
    steps = -(-k // tile.k)
    wanted = min(-(-sms // (batch * -(-m // tile.m) * -(-n // tile.n))), max(1, steps // tile.stages))
    equal = (n for n in range(wanted, min(2 * wanted, steps // tile.stages) + 1) if k % (n * tile.k) == 0)
    return next(equal, -(-steps // -(-steps // wanted)))  # none of which is empty


def keys_gemm(
    name: str, batch: int, shape: Sizes, a: Operand, b: Operand, c: Operand, *, dtype: str, gpu: Gpu
) -> list[Kernel]:
    """Batched GEMM C[m, n] = A[m, k] B[k, n], and the sum of its parts if k is split.

    Parameters
    ----------
    shape : (int, int, int)
        m, n, k.
    gpu : Gpu
        GPU whose SMs are to be filled.
    """
    (m, n, _), chosen_for = shape, gpu.tiled_for
    cuts = [
        (tile, _parts(tile, batch, shape, chosen_for.sm.count))
        for tile in library_tiles(chosen_for, dtype, m, a.element_bytes)
    ]
    tile, parts = min(cuts, key=lambda cut: waves_s(cut[0], batch, shape, chosen_for, dtype, a.element_bytes, cut[1]))
    out, size = c if parts == 1 else Operand(f"{c.tensor} partial", 4), batch * m * n
    kernel = gemm(name, batch, shape, a, b, out, dtype=dtype, path=gemm_path(gpu), tile=tile, parts=parts)
    if parts == 1:
        return [kernel]
    reads, writes = (out.tensor, size * parts * 4), (c.tensor, size * c.element_bytes)
    return [
        kernel,
        summed(f"add parts of {c.tensor}", reads, writes, size * parts),
    ]


CHUNK = 128
"""Rows of a chunk of the causal form: one GEMM tile."""

ESTIMATE = ("an estimate of softmax attention by random features",)


@dataclass(frozen=True, slots=True)
class Performer:
    """Performer in one implementation.

    Parameters
    ----------
    name : str
        Name of the implementation.
    features : int
        m; 0 for `feature_count`.
    fused : bool
        Whether a feature map's element-wise operations are one kernel.
    """

    name: str
    features: int = 0
    fused: bool = False

    def count(self, w: Workload) -> int:
        """m of a workload."""
        return self.features or feature_count(w.head_dim)

    def build(self, w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        """Schedule of a workload.

        Raises
        ------
        InputError
            If there is no such form.
        """
        _check_takes(self.name, w)
        causal, m = is_causal(w), self.count(w)
        whole = padded(w) if causal else w
        suffix = " padded" if whole != w else ""
        kernels = _padding(w, whole)
        for tensor in "QK":
            kernels += self._feature_map(tensor, whole, m, gpu, suffix)
        kernels += _causal(whole, m, gpu, suffix) if causal else _full(whole, m, gpu)
        tile = f"{m} features, {f'chunks of {CHUNK}, ' * causal}{GEMM_TEXT}"
        return Schedule("performer", self.name, tuple(kernels), tile, self.peak_bytes(w), ESTIMATE)

    def peak_bytes(self, w: Workload) -> int:
        """Peak memory: arrays, padded copies, W, and the features: both, and K's twice, or states and weights."""
        m, e, causal = self.count(w), w.element_bytes, is_causal(w)
        whole = padded(w) if causal else w
        queries = w.batch * w.heads_q * whole.seq_q * m * e
        keys = w.batch * w.heads_kv * whole.seq_kv * m * e
        used = queries + keys + w.batch * w.heads_kv * m * (w.head_dim_v + 1) * e
        if causal:
            chunks, rows = whole.seq_q // CHUNK, w.batch * w.heads_q * whole.seq_q
            states = 2 * w.batch * w.heads_kv * chunks * m * (w.head_dim_v + 1) * e
            used = queries + keys + states + rows * (CHUNK + w.head_dim_v) * e
        arrays = arrays_bytes(w) + (arrays_bytes(whole) if whole != w else 0)
        return arrays + m * w.head_dim * e + max(queries + 2 * keys, 2 * queries, used)

    def _feature_map(self, name: str, w: Workload, m: int, gpu: Gpu, suffix: str) -> list[Kernel]:
        """X' = exp(W y - |y|^2 / 2 - max) / sqrt(m), y = x / d^(1/4).

        Rows of Q are shifted by their own maximum, K by one over all keys, which is counted as one per row.
        """
        rows = w.batch * (w.heads_q * w.seq_q if name == "Q" else w.heads_kv * w.seq_kv)
        e, d = w.element_bytes, w.head_dim
        x, features = (f"{name}{suffix}", rows * d * e), (f"{name}'", rows * m * e)
        scaled, square = (f"{name} scaled", x[1]), (f"{name} squared", x[1])
        norm, top = (f"{name} norm", rows * e), (f"{name} max", rows * e)
        operands = Operand(x[0] if self.fused else scaled[0], e), Operand("W", e), Operand(features[0], e)
        project = library_gemm(f"{name}' = {name} W^T", 1, (rows, m, d), *operands, dtype=w.dtype, gpu=gpu)
        if self.fused:
            return [project, over_rows(f"map {name}'", [features, x], features, rows, m, exps=rows * m)]

        def chain(operation: str, *reads: tuple[str, int], exps: int = 0) -> Kernel:
            return elementwise(operation, [features, *reads], features, rows * m, broadcast=bool(reads), exps=exps)

        return [
            elementwise(f"scale {name}", [x], scaled, rows * d),
            project,
            elementwise(f"square {name}", [x], square, rows * d),
            over_rows(f"sum {name} squared", [square], norm, rows, d),
            elementwise(f"halve {name} norm", [norm], norm, rows),
            elementwise(f"scale {name} norm", [norm], norm, rows),
            chain(f"{name}' - norm", norm),
            over_rows(f"max {name}'", [features], top, rows, m),
            chain(f"{name}' - max", top),
            chain(f"exp {name}'", exps=rows * m),
            chain(f"{name}' + eps"),
            chain(f"{name}' / sqrt m"),
        ]


def padded(w: Workload) -> Workload:
    """The question padded to whole chunks of queries and keys."""
    seq = -(-w.seq_q // CHUNK) * CHUNK
    return replace(w, seq_q=seq, seq_kv=seq)


def _check_takes(name: str, w: Workload) -> None:
    mask = w.mask.within(w.seq_q, w.seq_kv)
    if mask.is_windowed or w.dropout or (is_causal(w) and not (mask.is_causal and w.seq_q == w.seq_kv)):
        raise InputError(
            f"{name} is for whole sequences: the mask is {w.mask}, seq_q {w.seq_q}, seq_kv {w.seq_kv}"
            f"{', dropout' if w.dropout else ''}; allowed: no mask, or causal with as many queries as keys, no dropout"
        )


def _padding(w: Workload, whole: Workload) -> list[Kernel]:
    """Copies of Q, K and V into whole chunks, if needed."""
    if w.seq_q == whole.seq_q:
        return []
    sizes = {"Q": w.heads_q * w.head_dim, "K": w.heads_kv * w.head_dim, "V": w.heads_kv * w.head_dim_v}
    kernels = []
    for x, width in sizes.items():
        before, after = w.batch * w.seq_q * width, w.batch * whole.seq_q * width
        read, written = (x, before * w.element_bytes), (f"{x} padded", after * w.element_bytes)
        kernels.append(elementwise(f"pad {x}", [read], written, after))
    return kernels


def _full(w: Workload, m: int, gpu: Gpu) -> list[Kernel]:
    """Sums z of K', D = Q' z, the state S = K'^T V, and O = Q' S / D."""
    e, dv, heads, kv_heads = w.element_bytes, w.head_dim_v, w.batch * w.heads_q, w.batch * w.heads_kv
    rows, kv_rows = heads * w.seq_q, kv_heads * w.seq_kv
    queries, keys, sums = ("Q'", rows * m * e), ("K'", kv_rows * m * e), ("z", kv_heads * m * e)
    totals, out = ("D", rows * e), ("O", rows * dv * w.output_bytes)
    q, k, v, o = Operand("Q'", e), Operand("K'", e), Operand("V", e), Operand("O", w.output_bytes)
    return [
        summed("sum K'", keys, sums, kv_rows * m),
        over_rows("D = Q' z", [queries, sums], totals, rows, m),
        *keys_gemm("S = K'^T V", kv_heads, (m, dv, w.seq_kv), k, v, Operand("S", e), dtype=w.dtype, gpu=gpu),
        library_gemm("O = Q' S", heads, (w.seq_q, dv, m), q, Operand("S", e, w.group), o, dtype=w.dtype, gpu=gpu),
        elementwise("O / D", [out, totals], out, rows * dv, broadcast=True),
    ]


def _causal(w: Workload, m: int, gpu: Gpu, suffix: str) -> list[Kernel]:
    """States and sums of the preceding chunks; O = Q' S of them and A V within the chunk, over D."""
    e, dv, heads, kv_heads = w.element_bytes, w.head_dim_v, w.batch * w.heads_q, w.batch * w.heads_kv
    rows, kv_rows, chunks = heads * w.seq_q, kv_heads * w.seq_kv, w.seq_q // CHUNK
    states, sums = kv_heads * chunks * m * dv, kv_heads * chunks * m
    queries, keys, weights = ("Q'", rows * m * e), ("K'", kv_rows * m * e), ("A", rows * CHUNK * e)
    totals, out = ("D", rows * e), ("O", rows * dv * w.output_bytes)
    within, shares = ("O within", rows * dv * e), ("D within", rows * e)
    q, k, v = Operand("Q'", e), Operand("K'", e), Operand(f"V{suffix}", e)
    shared_k, shared_v = replace(k, shared_by=w.group), replace(v, shared_by=w.group)
    before = Operand("S before", e, w.group)

    def product(name: str, batch: int, shape: tuple[int, int, int], a: Operand, b: Operand, c: Operand) -> Kernel:
        return library_gemm(name, batch * chunks, shape, a, b, c, dtype=w.dtype, gpu=gpu)

    def cumulated(name: str, elements: int) -> list[Kernel]:
        own, earlier = (name, elements * e), (f"{name} before", elements * e)
        return [
            elementwise(f"cumulate {name}", [own], own, elements),
            elementwise(f"shift {name}", [own], earlier, elements),
        ]

    return [
        product("S = K'^T V", kv_heads, (m, dv, CHUNK), k, v, Operand("S", e)),
        *cumulated("S", states),
        summed("sum K'", keys, ("z", sums * e), kv_rows * m),
        *cumulated("z", sums),
        product("O = Q' S", heads, (CHUNK, dv, m), q, before, Operand("O", w.output_bytes)),
        product("A = Q' K'^T", heads, (CHUNK, CHUNK, m), q, shared_k, Operand("A", e)),
        elementwise("mask A", [weights], weights, rows * CHUNK, broadcast=True),
        product("A V", heads, (CHUNK, dv, CHUNK), Operand("A", e), shared_v, Operand(within[0], e)),
        elementwise("O + A V", [out, within], out, rows * dv),
        over_rows("sum A", [weights], shares, rows, CHUNK),
        over_rows("D = Q' z", [queries, ("z before", sums * e)], totals, rows, m),
        elementwise("D + sum A", [totals, shares], totals, rows),
        elementwise("O / D", [out, totals], out, rows * dv, broadcast=True),
    ]


EFFICIENT = "efficient-attention.eager"


ANOTHER_FUNCTION = (
    "weights are softmax(q over d) softmax(k over n), not softmax's: another function of the same inputs",
)


def build_efficient(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """Schedule of a workload.

    Raises
    ------
    InputError
        If there is no such form.
    """
    check_nothing_hidden(w, f"{EFFICIENT} takes a softmax over all keys before any query")
    e, d, dv = w.element_bytes, w.head_dim, w.head_dim_v
    heads, kv_heads = w.batch * w.heads_q, w.batch * w.heads_kv
    queries, keys = heads * w.seq_q * d, kv_heads * w.seq_kv * d
    q, k, v, o = Operand("Q'", e), Operand("K'", e), Operand("V", e), Operand("O", w.output_bytes)
    kernels = (
        softmax("softmax K", [("K", keys * e)], ("K'", keys * e), kv_heads * d, w.seq_kv),
        softmax("softmax Q", [("Q", queries * e)], ("Q'", queries * e), heads * w.seq_q, d),
        *keys_gemm("S = K'^T V", kv_heads, (d, dv, w.seq_kv), k, v, Operand("S", e), dtype=w.dtype, gpu=gpu),
        library_gemm("O = Q' S", heads, (w.seq_q, dv, d), q, Operand("S", e, w.group), o, dtype=w.dtype, gpu=gpu),
    )
    return Schedule("efficient", EFFICIENT, kernels, GEMM_TEXT, efficient_bytes(w), ANOTHER_FUNCTION)


def efficient_bytes(w: Workload) -> int:
    """Peak memory: arrays, both softmaxes and the state."""
    softmaxes = w.batch * (w.heads_q * w.seq_q + w.heads_kv * w.seq_kv) * w.head_dim
    return arrays_bytes(w) + (softmaxes + w.batch * w.heads_kv * w.head_dim * w.head_dim_v) * w.element_bytes


OF_ONE_LENGTH = ("E and F are learned and belong to one length: k keys, each a mixture of all, stand for the sequence",)


@dataclass(frozen=True, slots=True)
class Linformer:
    """Linformer in one implementation.

    Parameters
    ----------
    name : str
        Name of the implementation.
    keys : int
        k; 0 for `PROJECTED_KEYS`. At most the number of keys.
    """

    name: str
    keys: int = 0

    def count(self, w: Workload) -> int:
        """k of a workload."""
        return projected_count(w.seq_kv, self.keys)

    def build(self, w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        """Schedule of a workload.

        Raises
        ------
        InputError
            If there is no such form.
        """
        check_nothing_hidden(w, f"{self.name} mixes all keys before the softmax")
        k, e = self.count(w), w.element_bytes
        heads = w.batch * w.heads_q
        rows = heads * w.seq_q
        scores, weights = ("S", rows * k * e), ("P", rows * k * e)

        def projection(name: str, matrix: str, width: int) -> list[Kernel]:
            operands = Operand(matrix, e, w.batch), Operand(name, e), Operand(f"{name} projected", e)
            shape = (k, w.heads_kv * width, w.seq_kv)
            return keys_gemm(f"{matrix} {name}", w.batch, shape, *operands, dtype=w.dtype, gpu=gpu)

        def attended(name: str, shape: tuple[int, int, int], a: Operand, b: str, c: Operand) -> Kernel:
            return library_gemm(name, heads, shape, a, Operand(b, e, w.group), c, dtype=w.dtype, gpu=gpu)

        q, s, p, o = Operand("Q", e), Operand("S", e), Operand("P", e), Operand("O", w.output_bytes)
        kernels = (
            *projection("K", "E", w.head_dim),
            *projection("V", "F", w.head_dim_v),
            attended("S = Q (E K)^T", (w.seq_q, k, w.head_dim), q, "K projected", s),
            elementwise("scale", [scores], scores, rows * k),
            softmax("softmax", [scores], weights, rows, k),
            attended("O = P (F V)", (w.seq_q, w.head_dim_v, k), p, "V projected", o),
        )
        tile = f"{k} projected keys, {GEMM_TEXT}"
        return Schedule("linformer", self.name, kernels, tile, self.peak_bytes(w), OF_ONE_LENGTH)

    def peak_bytes(self, w: Workload) -> int:
        """Peak memory: arrays, E and F, the projected keys and values, S and P."""
        k, e = self.count(w), w.element_bytes
        projected = w.batch * w.heads_kv * k * (w.head_dim + w.head_dim_v)
        return arrays_bytes(w) + (2 * k * w.seq_kv + projected + 2 * w.batch * w.heads_q * w.seq_q * k) * e


def _record(make: Callable[[str, int], Performer | Linformer], name: str, number: int = 0) -> Implementation:
    """Record of an algorithm with a number of features or projected keys; 0: the default."""
    made = make(f"{name}@{number}" if number else name, number)
    sized = partial(_record, make, name)
    return record(made.name, made.build, peak_bytes=made.peak_bytes, number=number, sized=sized)


RECORDS = (
    _record(Performer, "performer-pytorch.eager"),
    _record(partial(Performer, fused=True), "performer-pytorch.fused"),
    _record(Linformer, "linformer.eager"),
    record(EFFICIENT, build_efficient, peak_bytes=efficient_bytes),
)
