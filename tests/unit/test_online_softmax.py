"""The invariant behind every fused schedule: keys may come in any tiles, in any order, in any grouping.

Adversarial inputs are whole numbers and scales are powers of two, so that scores are exact in float64 however the GEMM
sums them: what is left to differ is the softmax.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from attnsim.arrays import Floats
from attnsim.errors import InputError
from attnsim.models.mask.mask import Mask
from attnsim.models.references.softmax import attention
from attnsim.models.references.tiled import (
    Order,
    RunningSoftmax,
    combined,
    flash1_reference,
    flash_reference,
    split_kv_reference,
)

MASKS = (
    Mask.full(),
    Mask.causal(),
    Mask.sliding_window(5),
    Mask.sliding_window(3, causal=False),
    Mask(left=4, right=2),
    Mask.longformer(4, 2),
    Mask.blocks(4, ((0, 1), (2, 0))),  # most rows see nothing
)
EPSILON = 2.0**-52


def checked(examples: int) -> settings:
    return settings(
        derandomize=True, deadline=None, max_examples=examples, database=None, phases=(Phase.explicit, Phase.generate)
    )


@dataclass(frozen=True)
class Inputs:
    """Whole-numbered Q and K, any V."""

    q: Floats
    k: Floats
    v: Floats
    mask: Mask

    @property
    def scores(self) -> float:
        """The largest score without its scale."""
        group = self.q.shape[1] // self.k.shape[1]
        return float(np.abs(self.q @ np.repeat(self.k, group, axis=1).swapaxes(-1, -2)).max())


@st.composite
def inputs(draw: st.DrawFn) -> Inputs:
    """Ragged and short lengths, a single key, grouped heads, scores up to 1e6, ties, rows that see nothing."""
    heads_kv, group = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 3]))
    seq_q, seq_kv = draw(st.integers(1, 21)), draw(st.sampled_from([1, 2, 7, 16, 19, 33]))
    size = draw(st.sampled_from([0, 1, 10, 1000]))
    seed = np.random.default_rng(draw(st.integers(0, 2**32)))
    q = seed.integers(-size, size + 1, (1, heads_kv * group, seq_q, 4)).astype(float)
    k = seed.integers(-size, size + 1, (1, heads_kv, seq_kv, 4)).astype(float)
    k[:, :, :: draw(st.sampled_from([2, 100]))] = k[:, :, :1]  # equal keys: ties of the maximum
    v = seed.standard_normal((1, heads_kv, seq_kv, 3)) * draw(st.sampled_from([1.0, 1e-30, 1e30]))
    return Inputs(q, k, v, draw(st.sampled_from(MASKS)))


orders: st.SearchStrategy[Order] = st.sampled_from(get_args(Order))
tiles = st.tuples(st.sampled_from([1, 4, 7, 64]), st.sampled_from([1, 3, 8, 16, 64]))


def assert_close(found: Floats, expected: Floats, tolerance: float = 1e-13) -> None:
    np.testing.assert_allclose(found, expected, rtol=10 * tolerance, atol=tolerance)


def assert_same(found: tuple[Floats, Floats], x: Inputs, *, through_lse: bool = False) -> None:
    """Equal to the plain definition; a log-sum-exp that was stored and read has lost digits in proportion to it."""
    o, lse = attention(x.q, x.k, x.v, x.mask, scale=0.5)
    largest = float(np.abs(x.v).max())
    assert_close(found[0] / largest, o / largest, 1e-13 + (4 * EPSILON * x.scores if through_lse else 0.0))
    np.testing.assert_allclose(found[1], lse, rtol=1e-14, atol=1e-13)
    empty = np.isneginf(lse)
    assert (np.isneginf(found[1]) == empty).all()
    assert (found[0][empty] == 0).all()
    assert np.isfinite(found[0]).all()


@checked(60)
@given(x=inputs(), tile=tiles, order=orders)
def test_flash_2_visits_key_tiles_in_either_order(x: Inputs, tile: tuple[int, int], order: Order) -> None:
    assert_same(flash_reference(x.q, x.k, x.v, x.mask, rows=tile[0], keys=tile[1], order=order, scale=0.5), x)


@checked(60)
@given(x=inputs(), tile=tiles)
def test_flash_1_goes_over_all_rows_for_each_key_tile(x: Inputs, tile: tuple[int, int]) -> None:
    assert_same(flash1_reference(x.q, x.k, x.v, x.mask, rows=tile[0], keys=tile[1], scale=0.5), x)


@checked(60)
@given(x=inputs(), splits=st.integers(1, 9), keys=st.sampled_from([1, 5, 16]))
def test_split_kv_combines_what_its_blocks_found(x: Inputs, splits: int, keys: int) -> None:
    assert_same(split_kv_reference(x.q, x.k, x.v, x.mask, splits=splits, keys=keys, scale=0.5), x, through_lse=True)


@checked(60)
@given(x=inputs(), data=st.data())
def test_keys_may_come_one_by_one_in_any_order(x: Inputs, data: st.DataObject) -> None:
    """A key alone is the smallest tile; masked ones may come first, last and between."""
    s, v = scores_and_values(x)
    state = RunningSoftmax.empty(s.shape[:-1], v.shape[-1])
    for j in data.draw(st.permutations(range(s.shape[-1]))):
        state = state.with_tile(s[..., j : j + 1], v[:, :, j : j + 1])
    assert_same(state.finished(), x)


@checked(60)
@given(x=inputs(), data=st.data())
def test_parts_combine_in_any_grouping(x: Inputs, data: st.DataObject) -> None:
    """Associative and commutative, with a part that saw nothing as the neutral element."""
    s, v = scores_and_values(x)
    cuts = sorted(data.draw(st.lists(st.integers(0, s.shape[-1]), min_size=1, max_size=4)))
    parts = []
    for start, stop in zip([0, *cuts], [*cuts, s.shape[-1]], strict=True):
        state = RunningSoftmax.empty(s.shape[:-1], v.shape[-1])
        if stop > start:
            state = state.with_tile(s[..., start:stop], v[:, :, start:stop])
        parts.append(state.finished())
    while len(parts) > 1:
        one, other = (parts.pop(data.draw(st.integers(0, len(parts) - 1))) for _ in range(2))
        parts.append(combined(np.stack([one[0], other[0]]), np.stack([one[1], other[1]])))
    assert_same(parts[0], x, through_lse=True)


def scores_and_values(x: Inputs) -> tuple[Floats, Floats]:
    """Masked scores at scale 0.5 and V of every query head."""
    group = x.q.shape[1] // x.k.shape[1]
    k, v = np.repeat(x.k, group, axis=1), np.repeat(x.v, group, axis=1)
    s: Floats = x.q @ k.swapaxes(-1, -2) * 0.5
    rows, keys = np.arange(s.shape[-2])[:, None], np.arange(s.shape[-1])[None, :]
    s[..., ~x.mask.seen(rows, keys, s.shape[-2], s.shape[-1])] = -np.inf
    return s, v


# Named corners


REFERENCES: dict[str, Callable[..., tuple[Floats, Floats]]] = {
    "plain": attention,
    "flash": lambda *a, **k: flash_reference(*a, rows=16, keys=16, **k),
    "flash, ascending": lambda *a, **k: flash_reference(*a, rows=16, keys=16, order="ascending", **k),
    "flash-1": lambda *a, **k: flash1_reference(*a, rows=16, keys=16, **k),
    "split-kv": lambda *a, **k: split_kv_reference(*a, splits=4, keys=16, **k),
}
every = pytest.mark.parametrize("reference", REFERENCES.values(), ids=list(REFERENCES))


@every
def test_scores_of_ten_thousand_pick_the_highest_key(reference: Callable[..., tuple[Floats, Floats]]) -> None:
    """exp(1e4) overflows float64; shifted by its maximum it is 1 and everything else underflows to 0."""
    q = np.full((1, 1, 3, 4), 50.0)
    k = np.arange(51.0)[None, None, :, None] * np.ones(4)
    v = np.arange(51.0)[None, None, :, None]
    o, lse = reference(q, k, v, Mask.full(), scale=1.0)
    assert float((q @ k.swapaxes(-1, -2)).max()) == 1e4
    assert (o == 50.0).all() and (lse == 1e4).all()


@every
def test_fp16_inputs_whose_products_overflow_fp16_are_widened_first(
    reference: Callable[..., tuple[Floats, Floats]],
) -> None:
    draw = np.random.default_rng(0)
    q, k = (draw.integers(-3, 4, (1, 2, 20, 8)).astype(np.float16) * np.float16(4096) for _ in range(2))
    v = draw.standard_normal((1, 2, 20, 5)).astype(np.float16)
    with np.errstate(over="ignore", invalid="ignore"):
        assert not np.isfinite(q @ k.swapaxes(-1, -2)).all()
    o, lse = reference(q, k, v, Mask.causal(), scale=2.0**-24)
    wide = attention(q.astype(float) * 2.0**-12, k.astype(float) * 2.0**-12, v, Mask.causal(), scale=1.0)
    assert_close(o, wide[0])
    assert_close(lse, wide[1])


@every
def test_rows_masked_in_every_tile_are_zero(reference: Callable[..., tuple[Floats, Floats]]) -> None:
    """The first 30 of 50 queries come before all 20 keys: two whole row tiles and part of a third see nothing."""
    draw = np.random.default_rng(1).standard_normal
    o, lse = reference(draw((1, 2, 50, 4)), draw((1, 1, 20, 4)), draw((1, 1, 20, 4)), Mask.causal())
    assert (o[:, :, :30] == 0).all() and np.isneginf(lse[:, :, :30]).all()
    assert np.isfinite(lse[:, :, 30:]).all()


@every
@pytest.mark.parametrize("seq_kv", [1, 15, 17, 48, 49])
def test_lengths_that_are_no_multiple_of_the_tile(seq_kv: int, reference: Callable[..., tuple[Floats, Floats]]) -> None:
    draw = np.random.default_rng(seq_kv).standard_normal
    q, k, v = draw((1, 2, 33, 8)), draw((1, 2, seq_kv, 8)), draw((1, 2, seq_kv, 8))
    o, lse = reference(q, k, v, Mask.full())
    s = np.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(8)
    assert_close(lse, np.log(np.exp(s).sum(axis=-1)))
    assert_close(o, np.exp(s) @ v / np.exp(s).sum(axis=-1, keepdims=True))


def test_partial_results_in_single_precision_lose_digits_in_proportion_to_the_log_sum_exp() -> None:
    """Split-KV kernels store it in fp32: at 1e4 its last digit is 5e-4, and so is the error of a part's weight."""
    o, lse = np.array([[[0.0]], [[1.0]]]), np.array([[10_000.0003], [10_000.0]])
    exact = combined(o, lse)[0].item()
    stored = combined(o, lse.astype(np.float32).astype(float))[0].item()
    assert exact == pytest.approx(1 / (1 + np.exp(0.0003)), rel=1e-9)
    assert 1e-5 < abs(stored / exact - 1) < np.spacing(np.float32(1e4))


def test_no_splits_are_refused() -> None:
    x = np.zeros((1, 1, 4, 4))
    with pytest.raises(InputError, match="splits is 0"):
        split_kv_reference(x, x, x, splits=0)
