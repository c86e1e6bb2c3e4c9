"""Attention in NumPy and float64: the executable definition that kernels and schedules are checked against.

Tensors are ``[batch, heads, seq, head_dim]``. Query head ``h`` reads key/value head ``h // group``. A query
that sees no key gives O = 0 and log-sum-exp = -inf, as FlashAttention does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnsim.arrays import Floats
from attnsim.bounds import check_cost
from attnsim.errors import InputError
from attnsim.models.mask.mask import Mask


def visible(mask: Mask, seq_q: int, seq_kv: int) -> NDArray[np.bool_]:
    """The mask as a matrix ``[seq_q, seq_kv]``, evaluated from its definition."""
    return mask.seen(np.arange(seq_q)[:, None], np.arange(seq_kv)[None, :], seq_q, seq_kv)


def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    mask: Mask | None = None,
    scale: float | None = None,
    *,
    softcap: float = 0.0,
    sinks: ArrayLike | None = None,
) -> tuple[Floats, Floats]:
    """O = softmax(scale Q K^T) V over visible keys, and the log-sum-exp of the scaled scores.

    Parameters
    ----------
    q : array ``[batch, heads_q, seq_q, head_dim]``
    k : array ``[batch, heads_kv, seq_kv, head_dim]``
    v : array ``[batch, heads_kv, seq_kv, head_dim_v]``
    mask : Mask, optional
        Default: every query sees every key.
    scale : float, optional
        Default ``1 / sqrt(head_dim)`` (Vaswani et al., arXiv 1706.03762, equation 1).
    softcap : float
        Scores become ``softcap * tanh(score / softcap)`` before they are masked (Gemma 2, arXiv 2408.00118, section 2);
        0: they stay as they are.
    sinks : array ``[heads_q]``, optional
        A score of each head that counts in the sums of its rows and has no value (gpt-oss, arXiv 2508.10925).

    Returns
    -------
    o : ndarray ``[batch, heads_q, seq_q, head_dim_v]``
    lse : ndarray ``[batch, heads_q, seq_q]``

    Raises
    ------
    InputError
        When the shapes do not fit together.
    """
    q64, k64, v64 = read_inputs(q, k, v)
    p, lse = _softmax(_scores(q64, k64, mask or Mask(), scale, softcap), sinks)
    return p @ expanded(v64, q64), lse


def windowed_attention(q: ArrayLike, k: ArrayLike, v: ArrayLike, mask: Mask) -> Floats:
    """O of a window by gathering: K and V of every query are laid out contiguously, as by ``unfold``.

    Parameters
    ----------
    q : array ``[batch, heads_q, seq, head_dim]``
    k : array ``[batch, heads_kv, seq, head_dim]``
    v : array ``[batch, heads_kv, seq, head_dim_v]``
    mask : Mask
        A window; its `left` and `right` are keys before and after the query.

    Returns
    -------
    ndarray ``[batch, heads_q, seq, head_dim_v]``
    """
    q64, k64, v64 = read_inputs(q, k, v)
    left, right = mask.left or 0, mask.right or 0
    beyond = np.pad(np.ones(k64.shape[2]), (left, right)) == 0

    def windows(x: Floats) -> Floats:
        padded = np.pad(expanded(x, q64), ((0, 0), (0, 0), (left, right), (0, 0)))
        return np.lib.stride_tricks.sliding_window_view(padded, left + right + 1, axis=2)

    s = np.einsum("bhnd,bhndw->bhnw", q64, windows(k64)) * default_scale(q64, None)
    hidden = np.lib.stride_tricks.sliding_window_view(beyond, left + right + 1)
    p, _ = _softmax(np.where(hidden, -np.inf, s))
    return np.asarray(np.einsum("bhnw,bhndw->bhnd", p, windows(v64)))


def sigmoid_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    mask: Mask | None = None,
    *,
    scale: float | None = None,
    bias: float | None = None,
) -> Floats:
    """O = sigmoid(scale Q K^T + bias) V over visible keys (Ramapuram et al., arXiv 2409.04431, equation 3).

    Parameters
    ----------
    q, k, v, mask, scale
        As for :func:`attention`.
    bias : float, optional
        Default ``-log(seq_kv)`` (section 3 there), with which the weights of a query add up to about one.

    Returns
    -------
    o : ndarray ``[batch, heads_q, seq_q, head_dim_v]``
    """
    q64, k64, v64 = read_inputs(q, k, v)
    s = _scores(q64, k64, mask or Mask(), scale) + (-np.log(k64.shape[2]) if bias is None else bias)
    small = np.exp(-np.abs(s))
    return np.where(s >= 0, 1.0, small) / (1.0 + small) @ expanded(v64, q64)


def attention_backward(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    do: ArrayLike,
    mask: Mask | None = None,
    *,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: ArrayLike | None = None,
) -> tuple[Floats, Floats, Floats]:
    """Gradients of ``sum(O * dO)`` with respect to Q, K and V (Dao et al., arXiv 2205.14135, appendix B.2).

    Parameters
    ----------
    q, k, v, mask, scale, softcap, sinks
        As for :func:`attention`.
    do : array ``[batch, heads_q, seq_q, head_dim_v]``

    Returns
    -------
    dq, dk, dv : ndarrays in the shapes of q, k and v
    """
    q64, k64, v64 = read_inputs(q, k, v)
    gradient = np.asarray(do, dtype=np.float64)
    factor = default_scale(q64, scale)
    s = _scores(q64, k64, mask or Mask(), scale, softcap)
    p, _ = _softmax(s, sinks)
    dp = gradient @ expanded(v64, q64).swapaxes(-1, -2)
    ds = p * (dp - (dp * p).sum(axis=-1, keepdims=True)) * factor
    if softcap:  # the derivative of the bound, 1 - tanh^2
        ds *= 1 - np.where(np.isneginf(s), 0.0, s / softcap) ** 2
    dq = ds @ expanded(k64, q64)
    return dq, summed(ds.swapaxes(-1, -2) @ q64, k64), summed(p.swapaxes(-1, -2) @ gradient, v64)


def read_inputs(q: ArrayLike, k: ArrayLike, v: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Convert Q, K and V to float64 before any product: products of 16-bit inputs may overflow their format.

    Raises
    ------
    InputError
        If the shapes do not fit together.
    """
    arrays = tuple(np.asarray(x, dtype=np.float64) for x in (q, k, v))
    shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in zip("qkv", arrays, strict=True))
    if any(x.ndim != 4 for x in arrays):
        raise InputError(f"{shapes}; each must be [batch, heads, seq, head_dim]")
    q64, k64, v64 = arrays
    fits = q64.shape[0] == k64.shape[0] and q64.shape[3] == k64.shape[3] and k64.shape[:3] == v64.shape[:3]
    if not fits or q64.shape[1] % k64.shape[1]:
        raise InputError(
            f"{shapes}; batch and head_dim of q and k, and batch, heads and seq of k and v must agree, "
            "and the heads of k must divide those of q"
        )
    return q64, k64, v64


def default_scale(q: Floats, scale: float | None) -> float:
    """The scale given, or ``1 / sqrt(head_dim)``."""
    return float(q.shape[-1]) ** -0.5 if scale is None else scale


def scores_bytes(heads: int, seq_q: int, seq_kv: int) -> int:
    """Memory of the scores of `heads` heads: all scores, the masked ones, and their exponentials."""
    return 3 * 8 * heads * seq_q * seq_kv


def capped(s: Floats, softcap: float) -> Floats:
    """Scores bounded by `softcap`; unchanged if it is 0."""
    return np.asarray(softcap * np.tanh(s / softcap)) if softcap else s


def _scores(q: Floats, k: Floats, mask: Mask, scale: float | None, softcap: float = 0.0) -> Floats:
    memory_bytes = scores_bytes(q.shape[0] * q.shape[1], q.shape[2], k.shape[2])
    check_cost(f"scores of {q.shape[2]} x {k.shape[2]} in float64", memory_bytes=memory_bytes)
    s = capped(q @ expanded(k, q).swapaxes(-1, -2) * default_scale(q, scale), softcap)
    s[..., ~visible(mask, q.shape[2], k.shape[2])] = -np.inf
    return s


def _softmax(s: Floats, sinks: ArrayLike | None = None) -> tuple[Floats, Floats]:
    if sinks is not None:  # a last column, which is left out of what is returned
        column = np.broadcast_to(np.asarray(sinks, dtype=np.float64)[:, None, None], (*s.shape[:3], 1))
        p, lse = _softmax(np.concatenate([s, column], axis=-1))
        return p[..., :-1], lse
    highest = s.max(axis=-1, keepdims=True)
    shift = np.where(np.isneginf(highest), 0.0, highest)
    p = np.exp(s - shift)
    total = p.sum(axis=-1, keepdims=True)
    any_key = total > 0
    lse = np.where(any_key, shift + np.log(np.where(any_key, total, 1.0)), -np.inf)
    return p / np.where(any_key, total, 1.0), lse[..., 0]


def expanded(x: Floats, q: Floats) -> Floats:
    """Key/value heads repeated for the query heads that share them."""
    return np.repeat(x, q.shape[1] // x.shape[1], axis=1)


def summed(gradient: Floats, x: Floats) -> Floats:
    """Sum of the gradients of the query heads that share a key/value head of `x`."""
    batch, heads, seq, width = gradient.shape
    out: Floats = gradient.reshape(batch, x.shape[1], heads // x.shape[1], seq, width).sum(axis=2)
    return out
