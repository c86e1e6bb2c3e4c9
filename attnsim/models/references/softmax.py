"""Attention in NumPy and float64: the executable definition that kernels and schedules are checked against.

Tensors are ``[batch, heads, seq, head_dim]``. Query head ``h`` reads key/value head ``h // group``. A query
that sees no key gives O = 0 and log-sum-exp = -inf, as FlashAttention does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnsim.models.errors import InputError
from attnsim.models.mask import Mask, Visibility

Floats = NDArray[np.float64]


def visible(mask: Mask, seq_q: int, seq_kv: int) -> NDArray[np.bool_]:
    """The mask as a matrix ``[seq_q, seq_kv]``, straight from its definition."""
    return mask.seen(np.arange(seq_q)[:, None], np.arange(seq_kv)[None, :], seq_q, seq_kv)


def attention(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, mask: Mask | None = None, scale: float | None = None
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

    Returns
    -------
    o : ndarray ``[batch, heads_q, seq_q, head_dim_v]``
    lse : ndarray ``[batch, heads_q, seq_q]``

    Raises
    ------
    InputError
        When the shapes do not fit together.
    """
    q64, k64, v64 = _inputs(q, k, v)
    s = _scores(q64, k64, mask or Mask(), scale)
    p, lse = _softmax(s)
    return p @ _expanded(v64, q64), lse


def attention_backward(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    do: ArrayLike,
    mask: Mask | None = None,
    *,
    scale: float | None = None,
) -> tuple[Floats, Floats, Floats]:
    """Gradients of ``sum(O * dO)`` with respect to Q, K and V (Dao et al., arXiv 2205.14135, appendix B.2).

    Parameters
    ----------
    q, k, v, mask, scale
        As for :func:`attention`.
    do : array ``[batch, heads_q, seq_q, head_dim_v]``

    Returns
    -------
    dq, dk, dv : ndarrays in the shapes of q, k and v
    """
    q64, k64, v64 = _inputs(q, k, v)
    gradient = np.asarray(do, dtype=np.float64)
    factor = _scale(q64, scale)
    p, _ = _softmax(_scores(q64, k64, mask or Mask(), scale))
    dp = gradient @ _expanded(v64, q64).swapaxes(-1, -2)
    ds = p * (dp - (dp * p).sum(axis=-1, keepdims=True)) * factor
    dq = ds @ _expanded(k64, q64)
    return dq, _summed(ds.swapaxes(-1, -2) @ q64, k64), _summed(p.swapaxes(-1, -2) @ gradient, v64)


def flash_reference(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    mask: Mask | None = None,
    *,
    rows: int = 128,
    keys: int = 64,
    scale: float | None = None,
) -> tuple[Floats, Floats]:
    """The same by online softmax over the tiles that schedules visit (arXiv 2307.08691, algorithm 1).

    Row tiles ascend; within one, key tiles go from the last visible to the first, as FlashAttention-2 does.

    Parameters
    ----------
    q, k, v, mask, scale
        As for :func:`attention`.
    rows, keys : int
        Tile of queries x keys.
    """
    q64, k64, v64 = _inputs(q, k, v)
    mask = mask or Mask()
    seq_q, seq_kv = q64.shape[2], k64.shape[2]
    if rows < 1 or keys < 1:
        raise InputError(f"the tile is {rows} x {keys}; allowed: 1 x 1 or larger")
    k64, v64 = _expanded(k64, q64), _expanded(v64, q64)
    o = np.zeros((*q64.shape[:3], v64.shape[3]))
    lse = np.full(q64.shape[:3], -np.inf)
    for first in range(0, seq_q, rows):
        last = min(first + rows, seq_q)
        low, high = mask.columns(first, last - 1, seq_q, seq_kv)
        highest = np.full((*q64.shape[:2], last - first), -np.inf)
        total = np.zeros_like(highest)
        for start in reversed(range(low // keys * keys, high, keys)):
            stop = min(start + keys, seq_kv)
            s = q64[:, :, first:last] @ k64[:, :, start:stop].swapaxes(-1, -2) * _scale(q64, scale)
            if mask.tile((first, last), (start, stop), seq_q, seq_kv) is not Visibility.FULL:
                seen = mask.seen(np.arange(first, last)[:, None], np.arange(start, stop)[None, :], seq_q, seq_kv)
                s[..., ~seen] = -np.inf
            new = np.maximum(highest, s.max(axis=-1))
            shift = np.where(np.isneginf(new), 0.0, new)  # a row that has seen nothing yet
            p = np.exp(s - shift[..., None])
            rescale = np.exp(highest - shift)
            total = total * rescale + p.sum(axis=-1)
            o[:, :, first:last] = o[:, :, first:last] * rescale[..., None] + p @ v64[:, :, start:stop]
            highest = new
        any_key = total > 0
        o[:, :, first:last] /= np.where(any_key, total, 1.0)[..., None]
        log = np.log(np.where(any_key, total, 1.0))
        lse[:, :, first:last] = np.where(any_key, highest + log, -np.inf)
    return o, lse


def _inputs(q: ArrayLike, k: ArrayLike, v: ArrayLike) -> tuple[Floats, Floats, Floats]:
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


def _scale(q: Floats, scale: float | None) -> float:
    return float(q.shape[-1]) ** -0.5 if scale is None else scale


def _scores(q: Floats, k: Floats, mask: Mask, scale: float | None) -> Floats:
    s: Floats = q @ _expanded(k, q).swapaxes(-1, -2) * _scale(q, scale)
    s[..., ~visible(mask, q.shape[2], k.shape[2])] = -np.inf
    return s


def _softmax(s: Floats) -> tuple[Floats, Floats]:
    highest = s.max(axis=-1, keepdims=True)
    shift = np.where(np.isneginf(highest), 0.0, highest)
    p = np.exp(s - shift)
    total = p.sum(axis=-1, keepdims=True)
    any_key = total > 0
    lse = np.where(any_key, shift + np.log(np.where(any_key, total, 1.0)), -np.inf)
    return p / np.where(any_key, total, 1.0), lse[..., 0]


def _expanded(x: Floats, q: Floats) -> Floats:
    """Key/value heads repeated for the query heads that share them."""
    return np.repeat(x, q.shape[1] // x.shape[1], axis=1)


def _summed(gradient: Floats, x: Floats) -> Floats:
    """Gradients of the query heads of a group added up."""
    batch, heads, seq, width = gradient.shape
    out: Floats = gradient.reshape(batch, x.shape[1], heads // x.shape[1], seq, width).sum(axis=2)
    return out
