"""Multi-head latent attention: the two forms compute the same, and the same as a loop over heads and queries."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnsim.models.errors import InputError
from attnsim.models.mask.mask import Mask
from attnsim.models.references.mla import LatentInputs, absorbed_attention, decompressed_attention

MASKS = (Mask.full(), Mask.causal(), Mask.sliding_window(5), Mask.sliding_window(3, causal=False))


def inputs(
    seed: int, batch: int, heads: int, seq_q: int, seq_kv: int, widths: tuple[int, int, int, int], scale: float = 1.0
) -> tuple[np.ndarray, LatentInputs]:
    """Q and a cache with its weights; widths are (rank, rope, nope, head_dim_v)."""
    rank, rope, nope, value = widths
    draw = np.random.default_rng(seed).standard_normal
    cache = LatentInputs(
        scale * draw((batch, seq_kv, rank)), scale * draw((batch, seq_kv, rope)),
        draw((heads, rank, nope)), draw((heads, rank, value)),
    )  # fmt: skip
    return scale * draw((batch, heads, seq_q, nope + rope)), cache


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 1 << 16),
    batch=st.integers(1, 2),
    heads=st.integers(1, 3),
    seq_q=st.integers(1, 9),
    seq_kv=st.integers(1, 17),
    widths=st.tuples(st.integers(1, 12), st.integers(1, 5), st.integers(1, 6), st.integers(1, 7)),
    mask=st.sampled_from(MASKS),
    scale=st.sampled_from([1.0, 1e-3, 30.0]),
)
def test_absorbed_and_decompressed_are_equal_to_rounding(
    seed: int,
    batch: int,
    heads: int,
    seq_q: int,
    seq_kv: int,
    widths: tuple[int, int, int, int],
    mask: Mask,
    scale: float,
) -> None:
    q, cache = inputs(seed, batch, heads, seq_q, seq_kv, widths, scale)
    one, one_lse = decompressed_attention(q, cache, mask)
    other, other_lse = absorbed_attention(q, cache, mask)
    assert one.shape == (batch, heads, seq_q, widths[3])
    size = max(1.0, float(np.abs(cache.values()).max()), float(np.abs(one_lse[np.isfinite(one_lse)]).max(initial=0)))
    np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-9 * size)
    np.testing.assert_allclose(other_lse, one_lse, rtol=1e-9, atol=1e-9 * size)


def test_it_is_what_the_paper_writes() -> None:
    """Equations 15 to 18 of arXiv 2405.04434, one head and one query at a time."""
    q, cache = inputs(0, 2, 3, 4, 6, (5, 2, 3, 4))
    o, _ = decompressed_attention(q, cache, Mask.causal())
    for batch in range(2):
        for head in range(3):
            for query in range(4):
                seen = query + 6 - 4 + 1
                keys = [
                    np.concatenate([cache.latent[batch, j] @ cache.w_uk[head], cache.k_rope[batch, j]])
                    for j in range(seen)
                ]
                scores = np.array([q[batch, head, query] @ key for key in keys]) / np.sqrt(5)
                p = np.exp(scores - scores.max())
                values = np.array([cache.latent[batch, j] @ cache.w_uv[head] for j in range(seen)])
                np.testing.assert_allclose(o[batch, head, query], p / p.sum() @ values, rtol=1e-12)


def test_the_rotary_key_is_shared_by_all_heads() -> None:
    _, cache = inputs(1, 2, 3, 1, 6, (5, 2, 3, 4))
    keys = cache.keys()
    assert keys.shape == (2, 3, 6, 5)
    assert (keys[:, :, :, 3:] == cache.k_rope[:, None]).all()


@pytest.mark.parametrize("broken", ["w_uk", "k_rope", "latent"])
def test_shapes_that_do_not_fit_are_refused(broken: str) -> None:
    _, cache = inputs(1, 2, 3, 1, 6, (5, 2, 3, 4))
    arrays = {name: getattr(cache, name) for name in ("latent", "k_rope", "w_uk", "w_uv")}
    arrays[broken] = arrays[broken][:, 1:]
    with pytest.raises(InputError, match=r"needed: latent \[batch, seq_kv, rank\]"):
        LatentInputs(**arrays)


def test_queries_of_another_width_are_refused() -> None:
    q, cache = inputs(1, 2, 3, 1, 6, (5, 2, 3, 4))
    with pytest.raises(InputError, match="needed"):
        absorbed_attention(q[..., 1:], cache)
