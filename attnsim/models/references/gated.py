"""Linear attention with gates in NumPy and float64: one recurrence and its chunked form for the whole family.

A head keeps a state ``S`` of ``head_dim x head_dim_v``. A token decays it, removes the state's value for the token's
key if there is a delta rule, and adds the token's pair:

``S' = diag(a) S``,  ``S = S' + b k (v - S'^T k)^T`` (delta rule) or ``S' + b k v^T``,  ``o = S^T q``.

Gated linear attention (arXiv 2312.06635, section 4.2), DeltaNet (2406.06484, equation 3), Gated DeltaNet (2412.06464,
equation 10), KDA (2510.26692, equation 1), Mamba-2 (2405.21060, equation 2 with a = exp(dt A), b = dt), RetNet
(2307.08621, equation 5) and mLSTM (2405.04517, equations 19 to 27) are its cases. Tensors are
``[batch, heads, seq, width]``; a tensor of fewer heads is shared by consecutive heads.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attnsim.arrays import Floats
from attnsim.errors import InputError


def gated_recurrent(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    log_decay: ArrayLike,
    beta: ArrayLike,
    *,
    delta: bool,
    state: ArrayLike | None = None,
) -> tuple[Floats, Floats]:
    """Outputs and final state, token by token: the definition.

    Parameters
    ----------
    q, k : array ``[batch, heads of Q or K, seq, head_dim]``
    v : array ``[batch, heads of V, seq, head_dim_v]``
    log_decay : array ``[batch, heads, seq, head_dim]``
        Logarithm of `a`, at most 0; of width 1 if a head has a single decay.
    beta : array ``[batch, heads, seq]``
    delta : bool
        Whether there is a delta rule.
    state : array ``[batch, heads, head_dim, head_dim_v]``, optional
        State of the tokens before; zero by default. It is not changed.

    Returns
    -------
    o : ndarray ``[batch, heads, seq, head_dim_v]``
    state : ndarray
        State after the last token.

    Raises
    ------
    InputError
        If the shapes do not fit together.
    """
    queries, keys, values, g, b, s = _read(q, k, v, log_decay, beta, state)
    o = np.empty_like(values)
    for t in range(values.shape[2]):
        s = np.exp(g[:, :, t, :, None]) * s
        held = np.einsum("bhd,bhde->bhe", keys[:, :, t], s) if delta else 0.0
        added = b[:, :, t, None] * (values[:, :, t] - held)
        s = s + keys[:, :, t, :, None] * added[:, :, None, :]
        o[:, :, t] = np.einsum("bhd,bhde->bhe", queries[:, :, t], s)
    return o, s


def gated_chunked(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    log_decay: ArrayLike,
    beta: ArrayLike,
    *,
    delta: bool,
    state: ArrayLike | None = None,
    chunk: int = 64,
) -> tuple[Floats, Floats]:
    """Outputs and final state by chunks: quadratic within a chunk, through the state for all tokens before it.

    With the decays added up in a chunk to ``G``, the delta rule's values are ``(I + A)^-1 diag(b) (V - e^G K S)`` with
    ``A = tril(diag(b) (K e^(G_i - G_j) K^T), -1)``: the WY form of arXiv 2412.06464, section 3.3.
    """
    queries, keys, values, g, b, s = _read(q, k, v, log_decay, beta, state)
    if chunk < 1:
        raise InputError(f"chunk is {chunk}; allowed: 1 or more")
    o = np.empty_like(values)
    for first in range(0, values.shape[2], chunk):
        part = slice(first, first + chunk)
        qs, ks, vs, weight = queries[:, :, part], keys[:, :, part], values[:, :, part], b[:, :, part, None]
        total = np.cumsum(g[:, :, part], axis=2)
        between = np.exp(np.minimum(total[:, :, :, None] - total[:, :, None], 0.0))  # [.., row, key, width]
        seen = ks * np.exp(total)
        if delta:
            overlap = np.tril((between * ks[:, :, :, None] * ks[:, :, None]).sum(-1), -1)
            added = np.linalg.solve(np.eye(ks.shape[2]) + weight * overlap, weight * (vs - seen @ s))
        else:
            added = weight * vs
        scores = np.tril((between * qs[:, :, :, None] * ks[:, :, None]).sum(-1))
        o[:, :, part] = (qs * np.exp(total)) @ s + scores @ added
        last = total[:, :, -1:]
        s = np.exp(last).swapaxes(-1, -2) * s + (ks * np.exp(last - total)).swapaxes(-1, -2) @ added
    return o, s


def normalised(o: Floats) -> Floats:
    """mLSTM's output from values with an appended column of ones: divided by max(|n q|, 1) (equation 21)."""
    return np.asarray(o[..., :-1] / np.maximum(np.abs(o[..., -1:]), 1.0))


def unit_length(x: ArrayLike) -> Floats:
    """Rows scaled to length 1, as the delta rule requires of queries and keys."""
    x64 = np.asarray(x, dtype=np.float64)
    return np.asarray(x64 / np.sqrt((x64 * x64).sum(axis=-1, keepdims=True) + 1e-6))


def causal_convolution(x: ArrayLike, taps: ArrayLike) -> Floats:
    """silu of a causal convolution of each channel, ``[..., seq, channels]`` with ``[width, channels]``.

    ``y_t = silu(sum_i taps_i x_(t - width + 1 + i))`` (causal-conv1d, `causal_conv1d_ref`).
    """
    x64, weights = np.asarray(x, dtype=np.float64), np.asarray(taps, dtype=np.float64)
    width, seq = len(weights), x64.shape[-2]
    padded = np.concatenate([np.zeros((*x64.shape[:-2], width - 1, x64.shape[-1])), x64], axis=-2)
    y = sum(weights[i] * padded[..., i : i + seq, :] for i in range(width))
    return np.asarray(y / 2 * (1 + np.tanh(y / 2)))


def _read(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, log_decay: ArrayLike, beta: ArrayLike, state: ArrayLike | None
) -> tuple[Floats, Floats, Floats, Floats, Floats, Floats]:
    """Inputs with heads repeated to one number, and the initial state."""
    queries, keys, values, g, b = (np.asarray(x, dtype=np.float64) for x in (q, k, v, log_decay, beta))
    heads = max(x.shape[1] for x in (queries, keys, values, g, b))
    if any(heads % x.shape[1] for x in (queries, keys, values, g, b)):
        raise InputError(
            f"heads of Q, K and V are {queries.shape[1]}, {keys.shape[1]} and {values.shape[1]}; each must divide the "
            f"largest, {heads}"
        )
    if queries.shape[-1] != keys.shape[-1] or len({x.shape[2] for x in (queries, keys, values, g, b)}) > 1:
        raise InputError(
            f"Q is {queries.shape}, K {keys.shape}, V {values.shape}, decays {g.shape}, beta {b.shape}; "
            "give all of them the same tokens, and Q and K one width"
        )
    queries, keys, values, g, b = (np.repeat(x, heads // x.shape[1], axis=1) for x in (queries, keys, values, g, b))
    shape = (*values.shape[:2], keys.shape[-1], values.shape[-1])
    before = np.zeros(shape) if state is None else np.asarray(state, dtype=np.float64)
    if before.shape != shape:
        raise InputError(f"state is {before.shape}; it has to be {shape}")
    return queries, keys, values, g, b, before
