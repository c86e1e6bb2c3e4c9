"""Native sparse attention in float64: compressed keys, chosen blocks, a window (arXiv 2502.11089, section 3).

The compression and the gates of the branches are learned. Here the mean of a stretch of keys replaces the compression
and equal weights replace the gates: the values differ, the amount of work does not.

DeepSeek sparse attention in float64: the indexer's scores, the best keys, attention to them (arXiv 2512.02556).
"""

from __future__ import annotations

import numpy as np

from attnsim.arrays import Bools, Floats
from attnsim.models.mask.mask import Mask
from attnsim.models.references.softmax import attention

FIRST, LOCAL = 1, 2
"""Numbers of blocks that are always chosen: the first ones, and those up to the query's own (section 4.1)."""


def compressed(x: Floats, width: int, step: int) -> Floats:
    """Means of stretches of `width` keys, `step` apart, ``[..., compressed keys, d]``."""
    if x.shape[-2] < width:
        return x[..., :0, :]
    windows = np.lib.stride_tricks.sliding_window_view(x, width, axis=-2)[..., ::step, :, :]
    return np.asarray(windows.mean(axis=-1))


def compressed_weights(q: Floats, keys: Floats, width: int, step: int, past: int = 0) -> Floats:
    """Softmax weights over compressed keys that end at or before the query, ``[batch, heads, seq, compressed keys]``.

    Queries before the end of the first compressed key have weights of 0. `past` is the number of tokens before the
    first query.
    """
    group = q.shape[1] // keys.shape[1]
    scores = q @ np.repeat(keys, group, axis=1).swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    ends = np.arange(keys.shape[-2]) * step + width - 1
    seen = past + np.arange(q.shape[-2])[:, None] >= ends
    scores = np.where(seen, scores, -np.inf)
    top = np.max(scores, axis=-1, keepdims=True, initial=-1e300)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    return np.asarray(np.divide(weights, total, out=np.zeros_like(weights), where=total > 0))


def compressed_attention(q: Floats, k: Floats, v: Floats, width: int, step: int) -> Floats:
    """O over compressed keys and values, ``[batch, heads, seq, d_v]``; 0 for queries that see none."""
    past = k.shape[-2] - q.shape[-2]
    weights = compressed_weights(q, compressed(k, width, step), width, step, past)
    return np.asarray(weights @ np.repeat(compressed(v, width, step), q.shape[1] // v.shape[1], axis=1))


def chosen_blocks(q: Floats, k: Floats, top: int, block: int, width: int = 0, step: int = 0) -> Bools:
    """Blocks that each query and head of K and V chooses, ``[batch, kv heads, seq, blocks]``.

    The weight of a block sums those of the compressed keys in it, in proportion to their overlap, over the heads of a
    group (equations 9 and 10). Without compression it is the score of the mean of its keys. The first block and those
    at the query are always chosen, and never one in its future.
    """
    width, step = (width, step) if width else (block, block)
    blocks, seq = -(-k.shape[-2] // block), q.shape[-2]
    past = k.shape[-2] - seq
    keys = compressed(k, width, step)
    weights = compressed_weights(q, keys, width, step, past)
    first = np.arange(keys.shape[-2])[:, None] * step
    begin = np.arange(blocks) * block
    overlap = np.clip(np.minimum(first + width, begin + block) - np.maximum(first, begin), 0, None)
    score = (weights @ overlap).reshape(q.shape[0], k.shape[1], -1, seq, blocks).sum(axis=2)
    own, number = (past + np.arange(seq)[:, None]) // block, np.arange(blocks)
    score = np.where((number < FIRST) | ((number <= own) & (number > own - LOCAL)), np.inf, score)
    score = np.where(number <= own, score, -np.inf)
    place = np.argsort(np.argsort(-score, axis=-1, kind="stable"), axis=-1, kind="stable")
    return np.asarray((place < top) & (number <= own))


def blocks_by_mean(q: Floats, k: Floats, top: int, block: int) -> Bools:
    """Blocks that each query and head of Q chooses in MoBA, ``[batch, heads, seq, blocks]`` (arXiv 2502.13189, eq. 6).

    They are the query's own block, and the ``top - 1`` whole blocks of its past with the highest-scoring mean key. K's
    heads are repeated for each head of Q, which chooses for itself.
    """
    seq, blocks = q.shape[-2], -(-k.shape[-2] // block)
    means = np.repeat(compressed(k, block, block), q.shape[1] // k.shape[1], axis=1)
    score = np.full((*q.shape[:-1], blocks), -np.inf)
    score[..., : means.shape[-2]] = q @ means.swapaxes(-1, -2)
    own, number = np.arange(seq)[:, None] // block, np.arange(blocks)
    score = np.where(number < own, score, np.where(number == own, np.inf, -np.inf))
    place = np.argsort(np.argsort(-score, axis=-1, kind="stable"), axis=-1, kind="stable")
    return np.asarray((place < top) & (number <= own))


def selected_attention(q: Floats, k: Floats, v: Floats, blocks: Bools, block: int) -> Floats:
    """Causal softmax attention over the keys of the blocks that each query has chosen, ``[batch, heads, seq, d_v]``."""
    group = q.shape[1] // k.shape[1]
    causal = np.tri(q.shape[-2], k.shape[-2], k.shape[-2] - q.shape[-2], dtype=np.bool_)
    seen = np.repeat(blocks, block, axis=-1)[..., : k.shape[-2]] & causal
    scores = q @ np.repeat(k, group, axis=1).swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    scores = np.where(np.repeat(seen, group, axis=1), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True) @ np.repeat(v, group, axis=1))


def native_sparse_attention(
    q: Floats, k: Floats, v: Floats, *, top: int, block: int, width: int, step: int, window: int
) -> Floats:
    """The three branches with equal weights (equation 5)."""
    blocks = chosen_blocks(q, k, top, block, width, step)
    return (
        np.asarray(
            compressed_attention(q, k, v, width, step)
            + selected_attention(q, k, v, blocks, block)
            + attention(q, k, v, Mask.sliding_window(window, causal=True))[0]
        )
        / 3
    )


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
