"""Linear attention in NumPy and float64: four forms of one definition (Katharopoulos et al., arXiv 2006.16236).

``O = phi(Q) S / (phi(Q) z)`` with ``S = phi(K)^T V`` and ``z`` the sum of the rows of ``phi(K)`` (equations 4 to 6),
causally with S and z of the keys up to each query (equations 8 to 12). phi is elu + 1 unless others are given.
Tensors are ``[batch, heads, seq, head_dim]``; query head ``h`` reads key/value head ``h // group``, states are of
key/value heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attnsim.arrays import Floats
from attnsim.errors import InputError
from attnsim.models.references.softmax import expanded, read_inputs


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
