"""Performer's FAVOR+ in NumPy and float64: softmax's kernel as a mean over positive orthogonal random features.

``exp(q k / sqrt(d)) = E[phi(q) phi(k)]`` with ``phi(x) = exp(W y - |y|^2 / 2) / sqrt(m)``, ``y = x / d^(1/4)`` and
rows of W from N(0, I_d) (Choromanski et al., arXiv 2009.14794, lemma 1); in blocks of d rows they are made orthogonal,
which leaves the mean and lowers the variance (section 2.4). What is done with the features is linear attention
(:mod:`attnsim.models.references.linear`), in any of its forms.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from attnsim.arrays import Floats
from attnsim.models.references.linear import (
    FeatureMaps,
    linear_attention,
    linear_attention_chunked,
    linear_attention_quadratic,
)

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
