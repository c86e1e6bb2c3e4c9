"""The float64 reference: tiled equals plain, gradients equal finite differences, edge cases are defined."""

import math

import numpy as np
import pytest

from attnsim.arrays import Floats
from attnsim.errors import InputError
from attnsim.models.mask.mask import Mask
from attnsim.models.references.softmax import attention, attention_backward, visible
from attnsim.models.references.tiled import flash_reference

MASKS = [
    Mask.full(),
    Mask.causal(),
    Mask.sliding_window(17),
    Mask.sliding_window(9, causal=False),
    Mask(left=5, right=2),
    Mask(right=7),
]


def tensors(
    shape: tuple[int, int, int, int, int, int, int], size: float = 1.0, seed: int = 0
) -> tuple[Floats, Floats, Floats]:
    """Q, K, V for batch, heads_q, heads_kv, seq_q, seq_kv, head_dim, head_dim_v."""
    batch, heads_q, heads_kv, seq_q, seq_kv, d, dv = shape
    draw = np.random.default_rng(seed).standard_normal
    q = draw((batch, heads_q, seq_q, d)) * size
    return q, draw((batch, heads_kv, seq_kv, d)), draw((batch, heads_kv, seq_kv, dv))


def by_hand(q: Floats, k: Floats, v: Floats, mask: Mask) -> Floats:
    """Softmax attention one query at a time in Python floats."""
    out = np.zeros((*q.shape[:3], v.shape[3]))
    shift = k.shape[2] - q.shape[2]
    group = q.shape[1] // k.shape[1]
    for b, h, i in np.ndindex(*q.shape[:3]):
        seen = [
            j
            for j in range(k.shape[2])
            if (mask.left is None or j >= i + shift - mask.left) and (mask.right is None or j <= i + shift + mask.right)
        ]
        scores = [float(q[b, h, i] @ k[b, h // group, j]) / math.sqrt(q.shape[3]) for j in seen]
        if not seen:
            continue
        top = max(scores)
        weights = [math.exp(s - top) for s in scores]
        total = math.fsum(weights)
        out[b, h, i] = sum(
            (x / total * v[b, h // group, j] for x, j in zip(weights, seen, strict=True)), np.zeros(v.shape[3])
        )
    return out


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_attention_is_its_definition(mask: Mask) -> None:
    q, k, v = tensors((2, 4, 2, 13, 21, 8, 5))
    np.testing.assert_allclose(attention(q, k, v, mask)[0], by_hand(q, k, v, mask), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("mask", [Mask.full(), Mask.causal(), Mask.sliding_window(3)], ids=str)
def test_backward_is_the_derivative(mask: Mask) -> None:
    inputs = list(tensors((1, 4, 2, 6, 5, 3, 2), seed=3))  # the first query sees nothing under a causal mask
    do = np.random.default_rng(4).standard_normal((1, 4, 6, 2))
    gradients = attention_backward(inputs[0], inputs[1], inputs[2], do, mask)
    step = 1e-6
    for number, gradient in enumerate(gradients):
        assert gradient.shape == inputs[number].shape
        numeric = np.zeros_like(gradient)
        for index in np.ndindex(*gradient.shape):
            values = []
            for sign in (1, -1):
                moved = [x.copy() for x in inputs]
                moved[number][index] += sign * step
                values.append(float((attention(moved[0], moved[1], moved[2], mask)[0] * do).sum()))
            numeric[index] = (values[0] - values[1]) / (2 * step)
        np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-8)


def test_the_mask_as_a_matrix_agrees_with_the_count() -> None:
    for mask in MASKS:
        assert visible(mask, 33, 47).sum() == mask.visible_pairs(33, 47)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((1, 2, 3, 4), (1, 2, 3, 5), (1, 2, 3, 4)), "head_dim of q and k"),
        (((1, 3, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)), "must divide"),
        (((2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)), r"must be \[batch, heads, seq, head_dim\]"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes: tuple[tuple[int, ...], ...], words: str) -> None:
    q, k, v = (np.zeros(shape) for shape in shapes)
    with pytest.raises(InputError, match=words):
        attention(q, k, v)


def test_an_empty_tile_is_refused() -> None:
    q, k, v = tensors((1, 1, 1, 4, 4, 4, 4))
    with pytest.raises(InputError, match="0 x 16"):
        flash_reference(q, k, v, Mask.full(), rows=0, keys=16)
