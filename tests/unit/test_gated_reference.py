"""Linear attention with gates in float64: the recurrence, its chunks, and the cases that are something known."""

import numpy as np
import pytest

from attnsim.errors import InputError
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms import MECHANISMS
from attnsim.models.mechanisms.linear import FAMILY
from attnsim.models.question.workload import Workload
from attnsim.models.references.gated import causal_convolution, gated_chunked, gated_recurrent, unit_length

RANDOM = np.random.default_rng(5)


def inputs(heads: int, seq: int, width: int) -> tuple[np.ndarray, ...]:
    """Q and K of two heads, V and gates of `heads`, decays of so many channels."""
    q, k = RANDOM.standard_normal((2, 2, 2, seq, 8))
    v = RANDOM.standard_normal((2, heads, seq, 6))
    return q, unit_length(k), v, -RANDOM.random((2, heads, seq, width)), RANDOM.random((2, heads, seq))


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("width", [1, 8])
@pytest.mark.parametrize("chunk", [1, 16, 63, 64, 100])
def test_chunks_are_the_recurrence(delta: bool, width: int, chunk: int) -> None:
    given = inputs(4, 77, width)
    o, state = gated_recurrent(*given, delta=delta)
    chunked, last = gated_chunked(*given, delta=delta, chunk=chunk)
    np.testing.assert_allclose(chunked, o, atol=1e-12)
    np.testing.assert_allclose(last, state, atol=1e-12)


@pytest.mark.parametrize("delta", [False, True])
def test_a_sequence_in_two_parts_is_the_sequence(delta: bool) -> None:
    given = inputs(2, 50, 1)
    whole, last = gated_chunked(*given, delta=delta, chunk=16)
    first, state = gated_recurrent(*(x[:, :, :23] for x in given), delta=delta)
    second, after = gated_chunked(*(x[:, :, 23:] for x in given), delta=delta, state=state, chunk=16)
    np.testing.assert_allclose(np.concatenate([first, second], axis=2), whole, atol=1e-12)
    np.testing.assert_allclose(after, last, atol=1e-12)


def test_without_gates_it_is_causal_attention_without_a_softmax() -> None:
    q, k, v, _, _ = inputs(2, 40, 1)
    none = np.zeros((2, 2, 40, 1)), np.ones((2, 2, 40))
    o, _ = gated_recurrent(q, k, v, *none, delta=False)
    np.testing.assert_allclose(o, np.tril(q @ k.swapaxes(-1, -2)) @ v, atol=1e-12)


def test_the_delta_rule_replaces_what_a_key_holds() -> None:
    """With beta 1 and no decay, reading with the last key gives the last value, whatever was there."""
    _, k, v, _, _ = inputs(2, 30, 1)
    o, _ = gated_recurrent(k, k, v, np.zeros((2, 2, 30, 1)), np.ones((2, 2, 30)), delta=True)
    np.testing.assert_allclose(o, v, atol=1e-5)


def test_equal_decays_of_all_channels_are_one_of_the_head() -> None:
    q, k, v, decay, beta = inputs(4, 30, 1)
    one = gated_chunked(q, k, v, decay, beta, delta=True)[0]
    np.testing.assert_allclose(gated_chunked(q, k, v, np.repeat(decay, 8, -1), beta, delta=True)[0], one, atol=1e-12)


def test_a_convolution_sees_four_tokens_and_none_after() -> None:
    x, taps = RANDOM.standard_normal((1, 20, 3)), RANDOM.standard_normal((4, 3))
    y = causal_convolution(x, taps)
    moved = x.copy()
    moved[:, 10] += 1
    changed = np.nonzero(np.abs(causal_convolution(moved, taps) - y).max(axis=(0, 2)) > 1e-12)[0]
    assert changed.tolist() == [10, 11, 12, 13]


@pytest.mark.parametrize("name", FAMILY)
def test_a_member_decodes_the_last_tokens_of_its_prefill(name: str) -> None:
    q, k, v = RANDOM.standard_normal((3, 1, 2, 33, 16))
    prefill = Workload(heads_q=2, seq_q=33, head_dim=16, mask=Mask.causal())
    decode = Workload(heads_q=2, seq_q=3, seq_kv=33, head_dim=16, mask=Mask.causal(), passes="decode")
    run = MECHANISMS[name].reference
    np.testing.assert_allclose(run(decode, q[:, :, -3:], k, v), run(prefill, q, k, v)[:, :, -3:], atol=1e-12)
    chunked = FAMILY[name].reference(prefill, q, k, v, chunked=True)
    np.testing.assert_allclose(chunked, run(prefill, q, k, v), atol=1e-12)


def test_shapes_that_do_not_fit_are_refused() -> None:
    q, k, v, decay, beta = inputs(4, 10, 1)
    with pytest.raises(InputError, match="heads of Q, K and V are 2, 2 and 3; each must divide the largest, 4"):
        gated_recurrent(q, k, v[:, :3], decay, beta, delta=True)
    with pytest.raises(InputError, match="give all of them the same tokens"):
        gated_recurrent(q[:, :, :9], k, v, decay, beta, delta=True)
    with pytest.raises(InputError, match="chunk is 0; allowed: 1 or more"):
        gated_chunked(q, k, v, decay, beta, delta=True, chunk=0)
    with pytest.raises(InputError, match=r"state is \(2, 4, 8, 5\); it has to be \(2, 4, 8, 6\)"):
        gated_recurrent(q, k, v, decay, beta, delta=True, state=np.zeros((2, 4, 8, 5)))
