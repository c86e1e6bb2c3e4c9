"""Multi-head latent attention in NumPy and float64: the decompressed and the absorbed form (arXiv 2405.04434, 2.1).

Each token caches a latent ``c`` of width `rank` and one rotary key ``k_rope`` that all heads share. Head ``h`` attends
keys ``[c W_UK[h], k_rope]`` and values ``c W_UV[h]`` (equations 10, 11 and 15 to 18). Because ``q_nope . (c W_UK) =
(q_nope W_UK^T) . c`` and ``sum p (c W_UV) = (sum p c) W_UV``, the same output comes from attending the cache itself,
whose one key and value head serves all query heads (section 2.1.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from attnsim.models.arrays import Floats
from attnsim.models.errors import InputError
from attnsim.models.mask.mask import Mask
from attnsim.models.references.softmax import attention


@dataclass(frozen=True, eq=False)
class LatentInputs:
    """The cache of multi-head latent attention and the weights that turn it into keys and values.

    Parameters
    ----------
    latent : ndarray ``[batch, seq_kv, rank]``
    k_rope : ndarray ``[batch, seq_kv, rope]``
        Rotary part of the keys, shared by all heads.
    w_uk : ndarray ``[heads, rank, nope]``
    w_uv : ndarray ``[heads, rank, head_dim_v]``

    Raises
    ------
    InputError
        When the shapes do not fit together.
    """

    latent: Floats
    k_rope: Floats
    w_uk: Floats
    w_uv: Floats

    def __post_init__(self) -> None:
        for name in ("latent", "k_rope", "w_uk", "w_uv"):
            array: ArrayLike = getattr(self, name)
            object.__setattr__(self, name, np.asarray(array, dtype=np.float64))
        shapes = {name: getattr(self, name).shape for name in ("latent", "k_rope", "w_uk", "w_uv")}
        fits = (
            all(len(shape) == 3 for shape in shapes.values())
            and shapes["latent"][:2] == shapes["k_rope"][:2]
            and shapes["w_uk"][:2] == shapes["w_uv"][:2]
            and shapes["w_uk"][1] == shapes["latent"][2]
        )
        if not fits:
            told = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise InputError(
                f"{told}; needed: latent [batch, seq_kv, rank], k_rope [batch, seq_kv, rope], "
                "w_uk [heads, rank, nope], w_uv [heads, rank, head_dim_v]"
            )

    @property
    def heads(self) -> int:
        """Heads that the weights make."""
        return int(self.w_uk.shape[0])

    def keys(self) -> Floats:
        """K of every head, ``[batch, heads, seq_kv, nope + rope]``."""
        nope = np.einsum("bkr,hrd->bhkd", self.latent, self.w_uk)
        rope = np.broadcast_to(self.k_rope[:, None], (*nope.shape[:3], self.k_rope.shape[2]))
        return np.concatenate([nope, rope], axis=3)

    def values(self) -> Floats:
        """V of every head, ``[batch, heads, seq_kv, head_dim_v]``."""
        return np.asarray(np.einsum("bkr,hrd->bhkd", self.latent, self.w_uv))


def decompressed_attention(q: ArrayLike, cache: LatentInputs, mask: Mask | None = None) -> tuple[Floats, Floats]:
    """Make K and V of every head, then attend: the form of prefill and training.

    Parameters
    ----------
    q : array ``[batch, heads, seq_q, nope + rope]``
        The rotary part last.
    cache : LatentInputs
    mask : Mask, optional

    Returns
    -------
    o : ndarray ``[batch, heads, seq_q, head_dim_v]``
    lse : ndarray ``[batch, heads, seq_q]``

    Raises
    ------
    InputError
        When the shapes do not fit together.
    """
    return attention(_queries(q, cache), cache.keys(), cache.values(), mask)


def absorbed_attention(q: ArrayLike, cache: LatentInputs, mask: Mask | None = None) -> tuple[Floats, Floats]:
    """Attend the cache itself with W_UK absorbed into Q and W_UV into the output: the form of decode.

    Scores are scaled as in the decompressed form, by ``1 / sqrt(nope + rope)``. Parameters, results and errors as for
    :func:`decompressed_attention`.
    """
    queries = _queries(q, cache)
    nope = cache.w_uk.shape[2]
    q_latent = np.einsum("bhqd,hrd->bhqr", queries[..., :nope], cache.w_uk)
    keys = np.concatenate([cache.latent, cache.k_rope], axis=2)[:, None]
    o_latent, lse = attention(
        np.concatenate([q_latent, queries[..., nope:]], axis=3),
        keys,
        cache.latent[:, None],
        mask,
        queries.shape[3] ** -0.5,
    )
    return np.asarray(np.einsum("bhqr,hrd->bhqd", o_latent, cache.w_uv)), lse


def _queries(q: ArrayLike, cache: LatentInputs) -> Floats:
    queries = np.asarray(q, dtype=np.float64)
    width = cache.w_uk.shape[2] + cache.k_rope.shape[2]
    if queries.ndim != 4 or queries.shape[1] != cache.heads or queries.shape[3] != width:
        raise InputError(f"q has shape {queries.shape}; needed: [batch, {cache.heads} heads, seq_q, {width}]")
    return queries
