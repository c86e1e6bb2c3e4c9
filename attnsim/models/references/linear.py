"""Linear attention in NumPy and float64: four forms of one definition (Katharopoulos et al., arXiv 2006.16236).

``O = phi(Q) S / (phi(Q) z)`` with ``S = phi(K)^T V`` and ``z`` the sum of the rows of ``phi(K)`` (equations 4 to 6),
causally with S and z of the keys up to each query (equations 8 to 12). phi is elu + 1 unless others are given.
Tensors are ``[batch, heads, seq, head_dim]``; query head ``h`` reads key/value head ``h // group``, states are of
key/value heads.

Efficient attention in NumPy and float64: the softmax split into one of Q over its width and one of K over the keys.

``O = softmax_d(Q) (softmax_n(K)^T V)`` (Shen et al., arXiv 1812.01243, section 3.2). It is linear attention whose
feature maps are the two softmaxes. Each row of the first and each column of the second sums to one, and so do the
weights ``softmax_d(Q) softmax_n(K)^T`` of a query without a division. The second softmax runs over all keys, so there
is no causal form.

Linformer in NumPy and float64: softmax attention over keys and values projected along the sequence.

``O = softmax(Q (E K)^T / sqrt(d)) (F V)`` with E and F of shape ``[k, seq_kv]`` (Wang et al., arXiv 2006.04768,
equation 7). A model learns E and F; without one, they are drawn from N(0, 1 / k) as in the proof of its theorem 2,
which says nothing about what a trained model loses. There is no causal form: every projected key is a mixture of all
keys.

Performer's FAVOR+ in NumPy and float64: softmax's kernel as a mean over positive orthogonal random features.

``exp(q k / sqrt(d)) = E[phi(q) phi(k)]`` with ``phi(x) = exp(W y - |y|^2 / 2) / sqrt(m)``, ``y = x / d^(1/4)`` and
rows of W from N(0, I_d) (Choromanski et al., arXiv 2009.14794, lemma 1); in blocks of d rows they are made orthogonal,
which leaves the mean and lowers the variance (section 2.4). What is done with the features is linear attention
(:mod:`attnsim.models.references.linear`), in any of its forms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attnsim.arrays import Floats
from attnsim.errors import InputError
from attnsim.models.references.softmax import attention, expanded, read_inputs


def phi(x: ArrayLike) -> Floats:
    """The feature map elu(x) + 1: x + 1 above 0, exp(x) below (equation 7); always positive."""
    x64 = np.asarray(x, dtype=np.float64)
    return np.where(x64 > 0, x64 + 1, np.exp(np.minimum(x64, 0)))


class FeatureMaps(NamedTuple):
    """Feature maps that replace the softmax's exponential: of Q ``[..., seq, head_dim]``, and of K.

    Parameters
    ----------
    query, key : callable
        To ``[..., seq, features]``, not negative. A causal form needs maps that treat each row by itself.
    """

    query: Callable[[Floats], Floats]
    key: Callable[[Floats], Floats]


ELU = FeatureMaps(phi, phi)


def linear_attention(q: ArrayLike, k: ArrayLike, v: ArrayLike, *, maps: FeatureMaps = ELU) -> Floats:
    """O without a mask: every query against the one state of all keys.

    Parameters
    ----------
    q : array ``[batch, heads_q, seq_q, head_dim]``
    k : array ``[batch, heads_kv, seq_kv, head_dim]``
    v : array ``[batch, heads_kv, seq_kv, head_dim_v]``

    Returns
    -------
    ndarray ``[batch, heads_q, seq_q, head_dim_v]``

    Raises
    ------
    InputError
        When the shapes do not fit together.
    """
    features, keys, values = _features(q, k, v, maps)
    state, normalizer = keys.swapaxes(-1, -2) @ values, keys.sum(axis=-2)
    return _divided(features @ state, features @ normalizer[..., None])


def linear_attention_quadratic(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, causal: bool = True, maps: FeatureMaps = ELU
) -> Floats:
    """O in quadratic form: weights ``phi(q) phi(k)`` of all visible pairs, each row divided by its sum.

    Causally, query ``i`` sees keys up to ``i + seq_kv - seq_q``, as in :class:`attnsim.models.mask.mask.Mask`.
    """
    features, keys, values = _features(q, k, v, maps)
    weights = features @ keys.swapaxes(-1, -2)
    if causal:
        weights = np.tril(weights, keys.shape[-2] - features.shape[-2])
    return _divided(weights @ values, weights.sum(axis=-1, keepdims=True))


def linear_attention_chunked(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, chunk: int = 64, maps: FeatureMaps = ELU
) -> Floats:
    """O, causal, by chunks: quadratic within a chunk, through the state for all keys before it.

    Parameters
    ----------
    q, k, v : array
        Of equal `seq`.
    """
    features, keys, values = _features(q, k, v, maps)
    _check_causal(features, keys)
    if chunk < 1:
        raise InputError(f"chunk is {chunk}; allowed: 1 or more")
    o = np.empty((*features.shape[:-1], values.shape[-1]))
    state = np.zeros((*keys.shape[:2], keys.shape[-1], values.shape[-1]))
    normalizer = np.zeros((*keys.shape[:2], keys.shape[-1]))
    for first in range(0, keys.shape[-2], chunk):
        part = slice(first, first + chunk)
        f, g, x = features[..., part, :], keys[..., part, :], values[..., part, :]
        weights = np.tril(f @ g.swapaxes(-1, -2))
        total = weights.sum(axis=-1, keepdims=True) + f @ normalizer[..., None]
        o[..., part, :] = _divided(weights @ x + f @ state, total)
        state += g.swapaxes(-1, -2) @ x
        normalizer += g.sum(axis=-2)
    return o


def linear_attention_recurrent(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    state: ArrayLike | None = None,
    normalizer: ArrayLike | None = None,
    *,
    maps: FeatureMaps = ELU,
) -> tuple[Floats, Floats, Floats]:
    """O and final state, causal, token by token (equations 16 to 20): the same cost at every step.

    Parameters
    ----------
    q, k, v : array
        New tokens, of equal `seq`.
    state : array ``[batch, heads_kv, features, head_dim_v]``, optional
    normalizer : array ``[batch, heads_kv, features]``, optional
        Of the tokens before; zero by default. They are not changed.

    Returns
    -------
    o : ndarray ``[batch, heads_q, seq, head_dim_v]``
    state, normalizer : ndarrays
        After the last token.
    """
    features, keys, values = _features(q, k, v, maps)
    _check_causal(features, keys)
    group = np.shape(q)[1] // np.shape(k)[1]
    shape = (np.shape(k)[0], np.shape(k)[1], keys.shape[-1])
    s = np.zeros((*shape, values.shape[-1])) if state is None else np.array(state, dtype=np.float64)
    z = np.zeros(shape) if normalizer is None else np.array(normalizer, dtype=np.float64)
    if s.shape != (*shape, values.shape[-1]) or z.shape != shape:
        raise InputError(
            f"state is {list(s.shape)} and normalizer {list(z.shape)}; allowed: {[*shape, values.shape[-1]]} and "
            f"{list(shape)}, [batch, heads_kv, features, head_dim_v] and without the last"
        )
    o = np.empty((*features.shape[:-1], values.shape[-1]))
    for token in range(keys.shape[-2]):
        key, value = keys[:, ::group, token, :], values[:, ::group, token, :]
        s += key[..., :, None] * value[..., None, :]
        z += key
        query = features[:, :, token, None, :]
        total = query @ np.repeat(z, group, axis=1)[..., None]
        o[:, :, token] = _divided(query @ np.repeat(s, group, axis=1), total)[:, :, 0]
    return o, s, z


def _features(q: ArrayLike, k: ArrayLike, v: ArrayLike, maps: FeatureMaps) -> tuple[Floats, Floats, Floats]:
    """phi(Q), phi(K) and V; key/value heads are repeated for the query heads that share them."""
    q64, k64, v64 = read_inputs(q, k, v)
    return maps.query(q64), expanded(maps.key(k64), q64), expanded(v64, q64)


def _check_causal(features: Floats, keys: Floats) -> None:
    if features.shape[-2] != keys.shape[-2]:
        raise InputError(
            f"q has {features.shape[-2]} rows, k {keys.shape[-2]}; this form is causal over one sequence: make them "
            "equal"
        )


def _divided(sums: Floats, totals: Floats) -> Floats:
    """Sums divided by totals; 0 if no key is seen."""
    return sums / np.where(totals > 0, totals, 1.0)


def softmax(x: Floats, axis: int) -> Floats:
    """Exponentials divided by their sum along an axis; the maximum is subtracted first."""
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis=axis, keepdims=True), dtype=np.float64)


SPLIT = FeatureMaps(query=lambda q: softmax(q, axis=-1), key=lambda k: softmax(k, axis=-2))


def efficient_attention(q: ArrayLike, k: ArrayLike, v: ArrayLike) -> Floats:
    """O of the split softmax.

    Parameters
    ----------
    q : array ``[batch, heads_q, seq_q, head_dim]``
    k : array ``[batch, heads_kv, seq_kv, head_dim]``
    v : array ``[batch, heads_kv, seq_kv, head_dim_v]``

    Returns
    -------
    ndarray ``[batch, heads_q, seq_q, head_dim_v]``

    Raises
    ------
    InputError
        When the shapes do not fit together.
    """
    return linear_attention(q, k, v, maps=SPLIT)


PROJECTED_KEYS = 256
"""Default k: that of lucidrains/linformer (commit 1533a130)."""


def projected_count(seq_kv: int, keys: int = 0) -> int:
    """`keys`, or `PROJECTED_KEYS` by default; at most the sequence length."""
    return min(keys or PROJECTED_KEYS, seq_kv)


def random_projections(keys: int, seq_kv: int, seed: int = 0) -> tuple[Floats, Floats]:
    """E and F, each ``[keys, seq_kv]`` from N(0, 1 / keys)."""
    random = np.random.default_rng(seed)
    e, f = random.standard_normal((2, keys, seq_kv)) / np.sqrt(keys)
    return e, f


def linformer_attention(q: ArrayLike, k: ArrayLike, v: ArrayLike, e: ArrayLike, f: ArrayLike) -> Floats:
    """O over projected keys and values; all heads share E and F.

    Parameters
    ----------
    q : array ``[batch, heads_q, seq_q, head_dim]``
    k : array ``[batch, heads_kv, seq_kv, head_dim]``
    v : array ``[batch, heads_kv, seq_kv, head_dim_v]``
    e, f : array ``[keys, seq_kv]``

    Returns
    -------
    ndarray ``[batch, heads_q, seq_q, head_dim_v]``

    Raises
    ------
    InputError
        When the shapes do not fit together.
    """
    e64, f64 = np.asarray(e, dtype=np.float64), np.asarray(f, dtype=np.float64)
    seq_kv = np.shape(k)[-2]
    if e64.ndim != 2 or e64.shape != f64.shape or e64.shape[1] != seq_kv:
        raise InputError(f"E is {list(e64.shape)} and F {list(f64.shape)}; allowed: both [keys, {seq_kv}]")
    return attention(q, e64 @ np.asarray(k, dtype=np.float64), f64 @ np.asarray(v, dtype=np.float64))[0]


GRANULE = 16
"""Multiple that feature counts are rounded up to: rows of 16-bit features are then whole tensor-core fragments."""


def feature_count(head_dim: int) -> int:
    """``d ln d``, the number of features that suffices for a given error (theorem 4), rounded up to `GRANULE`."""
    return GRANULE * max(1, math.ceil(head_dim * math.log(head_dim) / GRANULE))


@lru_cache(maxsize=16)
def orthogonal_rows(features: int, head_dim: int, seed: int = 0) -> Floats:
    """W ``[features, head_dim]``: rows from N(0, I), orthogonal within each block of `head_dim` of them.

    Directions are the rows of random rotations (QR of a Gaussian matrix, signs chosen so that all rotations are equally
    likely: Mezzadri, arXiv math-ph/0609050); lengths are those of independent Gaussian vectors.
    """
    random = np.random.default_rng(seed)
    blocks = []
    for _ in range(-(-features // head_dim)):
        rotation, triangle = np.linalg.qr(random.standard_normal((head_dim, head_dim)))
        blocks.append((rotation * np.sign(np.diag(triangle))).T)
    lengths = np.linalg.norm(random.standard_normal((features, head_dim)), axis=1)
    rows: Floats = np.concatenate(blocks)[:features] * lengths[:, None]
    rows.flags.writeable = False
    return rows


def positive_features(x: ArrayLike, rows: Floats) -> Floats:
    """Features phi ``[..., seq, m]`` of ``x [..., seq, d]`` with W = `rows`.

    The exponent is at most half of a row's squared length, so that nothing overflows in float64; code in 16 bits
    subtracts a maximum first, which the quotient of linear attention cancels.
    """
    y = np.asarray(x, dtype=np.float64) / rows.shape[1] ** 0.25
    half_square = np.sum(y * y, axis=-1, keepdims=True) / 2
    return np.asarray(np.exp(y @ rows.T - half_square) / math.sqrt(len(rows)), dtype=np.float64)


def favor(rows: Floats) -> FeatureMaps:
    """Feature maps of one draw of W, for the forms of linear attention."""

    def features(x: Floats) -> Floats:
        return positive_features(x, rows)

    return FeatureMaps(features, features)


def performer_attention(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, features: int = 0, causal: bool = False, seed: int = 0
) -> Floats:
    """O with one draw of random features, shared by all heads.

    Parameters
    ----------
    q : array ``[batch, heads_q, seq_q, head_dim]``
    k : array ``[batch, heads_kv, seq_kv, head_dim]``
    v : array ``[batch, heads_kv, seq_kv, head_dim_v]``
    features : int
        m; 0 for :func:`feature_count`.
    causal : bool
        Whether query ``i`` sees keys up to ``i + seq_kv - seq_q`` only.
    seed : int
        Of the draw.

    Returns
    -------
    ndarray ``[batch, heads_q, seq_q, head_dim_v]``

    Raises
    ------
    InputError
        When the shapes do not fit together.
    """
    head_dim = np.shape(q)[-1]
    maps = favor(orthogonal_rows(features or feature_count(head_dim), head_dim, seed))
    if not causal:
        return linear_attention(q, k, v, maps=maps)
    if np.shape(q)[-2] == np.shape(k)[-2]:
        return linear_attention_chunked(q, k, v, maps=maps)
    return linear_attention_quadratic(q, k, v, maps=maps)
