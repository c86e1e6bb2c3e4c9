"""Performer, Linformer and efficient attention in float64: what their papers prove of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnsim.api.approximation import DEVIATIONS, approximation_error, approximation_errors
from attnsim.arrays import Floats
from attnsim.errors import InputError
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms import ALGORITHMS, MECHANISMS, find_mechanism
from attnsim.models.question.workload import Workload
from attnsim.models.references.linear import (
    SPLIT,
    efficient_attention,
    favor,
    feature_count,
    linear_attention,
    linear_attention_chunked,
    linear_attention_quadratic,
    linear_attention_recurrent,
    linformer_attention,
    orthogonal_rows,
    performer_attention,
    positive_features,
    projected_count,
    random_projections,
    softmax,
)
from attnsim.models.references.softmax import attention


def inputs(seq_q: int, seq_kv: int, *, heads: int = 4, kv_heads: int = 2, size: float = 1.0) -> tuple[Floats, ...]:
    """Q ``[2, heads, seq_q, 8]``, K of the same width and V ``[2, kv_heads, seq_kv, 5]``."""
    random = np.random.default_rng(3)
    shapes = (2, heads, seq_q, 8), (2, kv_heads, seq_kv, 8), (2, kv_heads, seq_kv, 5)
    q, k, v = (random.standard_normal(shape) for shape in shapes)
    return size * q, size * k, v


def kernel_errors(features: int, draws: int) -> Floats:
    """Relative errors of the estimated exp(q k / sqrt(d)) of one pair, one a draw of W."""
    q, k = 0.4 * np.random.default_rng(1).standard_normal((2, 1, 16))
    exact = math.exp(float((q @ k.T)[0, 0]) / 4)
    found = []
    for seed in range(draws):
        rows = orthogonal_rows.__wrapped__(features, 16, seed)
        found.append((positive_features(q, rows) @ positive_features(k, rows).T).item() / exact - 1)
    return np.array(found)


def test_rows_are_orthogonal_in_blocks_and_gaussian_in_length() -> None:
    rows = orthogonal_rows(40, 16)
    for first in (0, 16):
        block = rows[first : first + 16]
        products = block @ block.T
        np.testing.assert_allclose(products - np.diag(np.diag(products)), 0, atol=1e-12)
    many = orthogonal_rows(4096, 16)
    assert (many**2).sum(axis=1).mean() == pytest.approx(16, rel=0.03)
    assert abs(many.mean()) < 0.02, "as many directions one way as the other"


@pytest.mark.parametrize("features", [16, 64])
def test_the_estimate_of_the_softmax_kernel_is_unbiased(features: int) -> None:
    errors = kernel_errors(features, 600)
    standard_error = errors.std() / math.sqrt(len(errors))
    assert standard_error < 0.05
    assert abs(errors.mean()) < 3 * standard_error


def test_the_estimate_converges_as_one_over_the_root_of_the_features() -> None:
    few, many = (float(np.sqrt((kernel_errors(m, 200) ** 2).mean())) for m in (32, 512))
    assert few / many == pytest.approx(math.sqrt(512 / 32), rel=0.25)


def test_orthogonal_rows_vary_less_than_independent_ones() -> None:
    """Theorem 2: at any m up to d."""
    q, k = 0.4 * np.random.default_rng(1).standard_normal((2, 1, 16))
    random = np.random.default_rng(5)
    estimates = [
        (positive_features(q, rows) @ positive_features(k, rows).T).item()
        for rows in (random.standard_normal((16, 16)) for _ in range(600))
    ]
    assert kernel_errors(16, 600).std() < np.std(estimates) / math.exp(float((q @ k.T)[0, 0]) / 4)


def test_performer_with_many_features_is_softmax_attention() -> None:
    q, k, v = inputs(20, 20, size=0.4)
    for causal in (False, True):
        want = attention(q, k, v, Mask.causal() if causal else Mask.full())[0]
        errors = [
            np.linalg.norm(performer_attention(q, k, v, features=m, causal=causal) - want) / np.linalg.norm(want)
            for m in (16, 8192)
        ]
        assert errors[1] < 0.03
        assert errors[0] > 3 * errors[1]


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.integers(1, 50), st.sampled_from([(1, 1), (4, 2), (3, 1)]), st.integers(1, 40))
def test_causal_forms_of_performer_agree(seq: int, chunk: int, heads: tuple[int, int], features: int) -> None:
    q, k, v = inputs(seq, seq, heads=heads[0], kv_heads=heads[1])
    maps = favor(orthogonal_rows(features, 8))
    want = linear_attention_quadratic(q, k, v, maps=maps)
    np.testing.assert_allclose(linear_attention_chunked(q, k, v, chunk=chunk, maps=maps), want, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(linear_attention_recurrent(q, k, v, maps=maps)[0], want, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(
        performer_attention(q, k, v, features=features, causal=True), want, rtol=1e-9, atol=1e-11
    )


def test_more_keys_than_queries_are_causal_at_the_end() -> None:
    q, k, v = inputs(9, 9)
    whole = performer_attention(q, k, v, causal=True)
    np.testing.assert_allclose(performer_attention(q[:, :, 6:], k, v, causal=True), whole[:, :, 6:], rtol=1e-10)


def test_features_are_as_many_as_the_paper_says() -> None:
    assert [feature_count(d) for d in (1, 64, 128, 256)] == [16, 272, 624, 1424]


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (3, 1)])
def test_linformer_that_projects_nothing_is_softmax_attention(heads: int, kv_heads: int) -> None:
    q, k, v = inputs(7, 12, heads=heads, kv_heads=kv_heads)
    same = np.eye(12)
    np.testing.assert_allclose(linformer_attention(q, k, v, same, same), attention(q, k, v)[0], rtol=1e-12)
    shuffled = same[np.random.default_rng(0).permutation(12)]
    np.testing.assert_allclose(linformer_attention(q, k, v, shuffled, shuffled), attention(q, k, v)[0], rtol=1e-10)


def test_linformer_averages_what_a_mean_pooling_projects() -> None:
    """With every row of E and F a mean over all keys, O is the mean of V."""
    q, k, v = inputs(7, 12)
    pool = np.full((3, 12), 1 / 12)
    want = np.broadcast_to(np.repeat(v.mean(axis=2, keepdims=True), 2, axis=1), (2, 4, 7, 5))
    np.testing.assert_allclose(linformer_attention(q, k, v, pool, pool), want, rtol=1e-12)


def test_projections_keep_lengths_on_average() -> None:
    """E^T E is the identity in expectation (Johnson, Lindenstrauss)."""
    e, f = random_projections(4000, 6)
    np.testing.assert_allclose(e.T @ e, np.eye(6), atol=0.1)
    assert not np.allclose(e, f)
    assert (projected_count(100), projected_count(1000), projected_count(1000, 64)) == (100, 256, 64)


def test_linformer_refuses_projections_of_another_length() -> None:
    q, k, v = inputs(7, 12)
    with pytest.raises(InputError, match=r"E is \[3, 11\].*allowed: both \[keys, 12\]"):
        linformer_attention(q, k, v, np.ones((3, 11)), np.ones((3, 11)))


def test_efficient_attention_is_what_its_paper_says_and_its_weights_sum_to_one() -> None:
    q, k, v = inputs(7, 12, heads=2)
    weights = softmax(q, axis=-1) @ softmax(k, axis=-2).swapaxes(-1, -2)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-13)
    assert (weights > 0).all()
    np.testing.assert_allclose(efficient_attention(q, k, v), weights @ v, rtol=1e-12)
    grouped = inputs(7, 12, heads=4, kv_heads=2)
    np.testing.assert_allclose(efficient_attention(*grouped), linear_attention(*grouped, maps=SPLIT), rtol=1e-15)
    np.testing.assert_allclose(efficient_attention(1e4 * q, 1e4 * k, np.ones_like(v)), 1, rtol=1e-12)


def test_recurrent_decode_is_the_last_row_of_the_causal_form() -> None:
    q, k, v = inputs(9, 9)
    w = Workload(2, 4, 2, 8, 2, 9, 5, passes="decode", mask=Mask.causal())
    whole = linear_attention_quadratic(q, k, v)
    for name in ("linear", "linear-recurrent"):
        o = MECHANISMS[name].reference(w, q[:, :, 7:], k, v)
        np.testing.assert_allclose(o, whole[:, :, 7:], rtol=1e-12)


def test_a_number_after_the_name_sets_features_or_keys() -> None:
    q, k, v = inputs(6, 6, heads=2)
    w = Workload(2, 2, 6, 8, 2, 6, 5)
    asked = find_mechanism("Performer@32")
    assert asked.name == "performer@32" and asked.implementations[0] == "performer-pytorch.fused@32"
    np.testing.assert_array_equal(asked.reference(w, q, k, v), performer_attention(q, k, v, features=32))
    assert find_mechanism("linformer@4").implementations == ("linformer.eager@4",)
    for name, told in (
        ("linear@4", "algorithm linear has no number to choose.*performer@N, linformer@N"),
        ("performer@x", "'x' after the @; allowed: a whole number from 1 to 16384"),
        ("performer@0", "allowed: a whole number from 1"),
        ("linformer@", "'' after the @"),
        ("performer@99999", "to 16384"),
    ):
        with pytest.raises(InputError, match=told):
            find_mechanism(name)


def test_exact_algorithms_have_no_approximation_error() -> None:
    assert approximation_errors("flash", Workload(1, 1, 64, 64)) == ()
    for name in ("naive", "flash"):
        assert approximation_error(name, seq=64, head_dim=16).relative < 1e-12


def test_errors_are_those_of_the_references_on_the_stated_inputs() -> None:
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 1, 64, 16))
    want = attention(2 * q, 2 * k, v)[0]
    off = efficient_attention(2 * q, 2 * k, v) - want
    found = approximation_error("efficient", seq=64, head_dim=16, score_deviation=4.0)
    assert found.relative == pytest.approx(float(np.sqrt((off**2).sum() / (want**2).sum())))
    assert found.largest == pytest.approx(float(np.abs(off).max() / np.sqrt((want**2).mean())))
    scores = 2 * q[0, 0] @ (2 * k[0, 0]).T / 4
    assert scores.std() == pytest.approx(4, rel=0.1)


def test_errors_grow_with_the_scores_and_fall_with_the_features() -> None:
    for name in ("linear", "efficient"):
        flat, normal, peaked = approximation_errors(name, Workload(1, 16, 4096, 64))
        assert (flat.score_deviation, normal.score_deviation, peaked.score_deviation) == DEVIATIONS
        assert flat.relative < normal.relative < peaked.relative
    few, many = (approximation_error(f"performer@{m}", score_deviation=0.25).relative for m in (64, 2048))
    assert many < 0.5 * few


def test_wide_heads_and_causality_are_taken_from_the_question() -> None:
    wide = approximation_errors("linear", Workload(1, 1, 64, 256, mask=Mask.causal()))
    assert wide[1] == approximation_error("linear", head_dim=128, causal=True)
    assert wide[1] != approximation_error("linear", head_dim=128)
    for name, item in ALGORITHMS.items():
        silent = item.exact or bool(item.selection)
        assert silent == (not approximation_errors(name, Workload(1, 1, 64, 64))), name
