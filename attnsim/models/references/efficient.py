"""Efficient attention in NumPy and float64: the softmax split into one of Q over its width and one of K over the keys.

``O = softmax_d(Q) (softmax_n(K)^T V)`` (Shen et al., arXiv 1812.01243, section 3.2). It is linear attention whose
feature maps are the two softmaxes. Each row of the first and each column of the second sums to one, and so do the
weights ``softmax_d(Q) softmax_n(K)^T`` of a query without a division. The second softmax runs over all keys, so there
is no causal form.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attnsim.arrays import Floats
from attnsim.models.references.linear import FeatureMaps, linear_attention


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
