"""DeepSeek sparse attention in float64: the indexer's scores, the best keys, attention to them (arXiv 2512.02556)."""

from __future__ import annotations

import numpy as np

from attnsim.arrays import Bools, Floats


def index_scores(q: Floats, k: Floats, weights: Floats) -> Floats:
    """Scores of all keys, ``[batch, seq_q, seq_kv]`` (equation 1): weighted sums over heads of products clamped at 0.

    Parameters
    ----------
    q : ndarray
        ``[batch, index heads, seq_q, d]``.
    k : ndarray
        ``[batch, 1, seq_kv, d]``.
    weights : ndarray
        ``[batch, seq_q, index heads]``.
    """
    products = np.maximum(0.0, q @ k.swapaxes(-1, -2))
    return np.asarray(np.einsum("bhqk,bqh->bqk", products, weights))


def best_keys(scores: Floats, top: int) -> Bools:
    """The `top` best-scoring keys among those visible to a causal query, ``[batch, seq_q, seq_kv]``."""
    seq_q, seq_kv = scores.shape[-2:]
    seen = np.tri(seq_q, seq_kv, seq_kv - seq_q, dtype=np.bool_)
    ranked = np.argsort(np.argsort(-np.where(seen, scores, -np.inf), axis=-1, kind="stable"), axis=-1, kind="stable")
    return np.asarray((ranked < top) & seen)


def chosen_attention(q: Floats, k: Floats, v: Floats, chosen: Bools) -> Floats:
    """Softmax attention over keys chosen for all heads, ``[batch, heads, seq_q, d_v]``; 0 if none are chosen."""
    group = q.shape[1] // k.shape[1]
    scores = q @ np.repeat(k, group, axis=1).swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    scores = np.where(chosen[:, None], scores, -np.inf)
    weights = np.exp(scores - np.max(scores, axis=-1, keepdims=True, initial=-1e300))
    total = weights.sum(axis=-1, keepdims=True)
    shares = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return np.asarray(shares @ np.repeat(v, group, axis=1))


def dsa_attention(q: Floats, k: Floats, v: Floats, top: int) -> Floats:
    """Attention over the best keys by an indexer with the question's heads and equal weights.

    The indexer's projections are learned; here its queries and keys are those of the attention.
    """
    weights = np.ones((q.shape[0], q.shape[2], q.shape[1]))
    index_keys = k.mean(axis=1, keepdims=True)
    return chosen_attention(q, k, v, best_keys(index_scores(q, index_keys, weights), top))
