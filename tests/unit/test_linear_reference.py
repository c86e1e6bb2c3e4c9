"""The four float64 forms of linear attention agree, and are what the definition says on cases known by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnsim.arrays import Floats
from attnsim.errors import InputError
from attnsim.models.references.linear import (
    linear_attention,
    linear_attention_chunked,
    linear_attention_quadratic,
    linear_attention_recurrent,
    phi,
)


def inputs(seq_q: int, seq_kv: int, *, heads: int = 4, kv_heads: int = 2, seed: int = 0) -> tuple[Floats, ...]:
    """Q ``[2, heads, seq_q, 8]``, K of the same width and V ``[2, kv_heads, seq_kv, 5]``."""
    random = np.random.default_rng(seed)
    shapes = (2, heads, seq_q, 8), (2, kv_heads, seq_kv, 8), (2, kv_heads, seq_kv, 5)
    return tuple(random.standard_normal(shape) for shape in shapes)


def test_phi_is_elu_plus_one() -> None:
    x = np.array([-800.0, -1.0, 0.0, 0.5, 1e5])
    assert phi(x).tolist() == pytest.approx([0.0, np.exp(-1.0), 1.0, 1.5, 100001.0], rel=1e-15)
    assert (phi(np.linspace(-700, 700, 999)) > 0).all()


@pytest.mark.parametrize(("seq_q", "seq_kv"), [(1, 1), (5, 5), (3, 9), (9, 3)])
def test_without_a_mask_the_state_form_is_the_quadratic_one(seq_q: int, seq_kv: int) -> None:
    q, k, v = inputs(seq_q, seq_kv)
    np.testing.assert_allclose(
        linear_attention(q, k, v), linear_attention_quadratic(q, k, v, causal=False), rtol=1e-12, atol=1e-14
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 50), st.sampled_from([(1, 1), (2, 2), (6, 2), (3, 1)]), st.integers(0, 99))
def test_causal_forms_agree(seq: int, chunk: int, heads: tuple[int, int], seed: int) -> None:
    q, k, v = inputs(seq, seq, heads=heads[0], kv_heads=heads[1], seed=seed)
    want = linear_attention_quadratic(q, k, v)
    np.testing.assert_allclose(linear_attention_chunked(q, k, v, chunk=chunk), want, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(linear_attention_recurrent(q, k, v)[0], want, rtol=1e-11, atol=1e-13)


def test_each_key_head_serves_its_group() -> None:
    q, k, v = inputs(7, 7, heads=6, kv_heads=2)
    repeated = linear_attention_quadratic(q, np.repeat(k, 3, axis=1), np.repeat(v, 3, axis=1))
    np.testing.assert_array_equal(linear_attention_quadratic(q, k, v), repeated)


def test_the_last_query_sees_all_keys_and_the_first_only_the_first() -> None:
    q, k, v = inputs(6, 6, heads=2)
    o = linear_attention_quadratic(q, k, v)
    np.testing.assert_allclose(o[:, :, -1:], linear_attention(q[:, :, -1:], k, v), rtol=1e-12)
    np.testing.assert_allclose(o[:, :, 0], v[:, :, 0], rtol=1e-12)


def test_recurrence_goes_on_where_it_stopped_and_leaves_its_inputs_alone() -> None:
    q, k, v = inputs(9, 9)
    whole, state, normalizer = linear_attention_recurrent(q, k, v)
    first, middle, sums = linear_attention_recurrent(q[:, :, :4], k[:, :, :4], v[:, :, :4])
    kept = middle.copy()
    rest, last, last_sums = linear_attention_recurrent(q[:, :, 4:], k[:, :, 4:], v[:, :, 4:], middle, sums)
    np.testing.assert_allclose(np.concatenate([first, rest], axis=2), whole, rtol=1e-13)
    np.testing.assert_allclose(last, state, rtol=1e-13)
    np.testing.assert_allclose(last_sums, normalizer, rtol=1e-13)
    np.testing.assert_array_equal(middle, kept)
    np.testing.assert_allclose(state, np.einsum("bhnd,bhne->bhde", phi(k), v), rtol=1e-12, atol=1e-13)


def test_queries_before_the_first_key_see_nothing() -> None:
    q, k, v = inputs(5, 2)
    o = linear_attention_quadratic(q, k, v)
    assert (o[:, :, :3] == 0).all() and (o[:, :, 3:] != 0).all()


def test_outputs_are_averages_of_the_values_however_large_the_features() -> None:
    q, k, v = inputs(11, 11)
    for form in (linear_attention, linear_attention_quadratic, linear_attention_chunked):
        o = form(1e4 * q, 1e4 * k, v)
        assert (o <= np.repeat(v.max(axis=2, keepdims=True), 2, axis=1) + 1e-9).all()
        np.testing.assert_allclose(form(q, k, np.ones_like(v)), 1.0, rtol=1e-12)


def test_what_does_not_fit_is_refused_with_the_shapes() -> None:
    q, k, v = inputs(4, 6)
    with pytest.raises(InputError, match="q has 4 rows, k 6"):
        linear_attention_chunked(q, k, v)
    with pytest.raises(InputError, match="q has 4 rows, k 6"):
        linear_attention_recurrent(q, k, v)
    with pytest.raises(InputError, match=r"v \[2, 2, 5, 5\]"):
        linear_attention(q, k, v[:, :, :5])
    with pytest.raises(InputError, match="each must be"):
        linear_attention(q[0], k, v)
    with pytest.raises(InputError, match="chunk is 0"):
        linear_attention_chunked(q, k[:, :, :4], v[:, :, :4], chunk=0)
    with pytest.raises(InputError, match=r"state is \[2, 2, 8, 8\].*\[2, 2, 8, 5\]"):
        linear_attention_recurrent(q, k[:, :, :4], v[:, :, :4], np.zeros((2, 2, 8, 8)))
