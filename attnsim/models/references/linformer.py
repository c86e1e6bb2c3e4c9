"""Linformer in NumPy and float64: softmax attention over keys and values projected along the sequence.

``O = softmax(Q (E K)^T / sqrt(d)) (F V)`` with E and F of shape ``[k, seq_kv]`` (Wang et al., arXiv 2006.04768,
equation 7). A model learns E and F; without one, they are drawn from N(0, 1 / k) as in the proof of its theorem 2,
which says nothing about what a trained model loses. There is no causal form: every projected key is a mixture of all
keys.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attnsim.arrays import Floats
from attnsim.errors import InputError
from attnsim.models.references.softmax import attention

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
