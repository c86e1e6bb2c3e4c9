"""Linear attention in the interpreter: against float64, against its schedule, and in itself consistent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from attnsim.errors import InputError
from attnsim.kernels import linear as operation
from attnsim.kernels.cpu_device import CpuDevice
from attnsim.kernels.linear import exercise, linear_decode, linear_forward, variants
from attnsim.models.implementations.own import linear as schedules
from attnsim.models.implementations.own.linear_tiles import HEAD_DIMS
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.references.linear import linear_attention, linear_attention_quadratic, linear_attention_recurrent
from attnsim.models.schedule.schedule import Schedule
from attnsim.ptx.counters import decode, encode
from attnsim.ptx.outcome import TOLERANCE, Outcome

AssertMatches = Callable[[CpuDevice, Schedule], None]
Arrays = tuple[NDArray[Any], ...]


def check(device: CpuDevice, w: Workload, assert_matches: AssertMatches, seed: int = 0) -> None:
    """Right to rounding; and what ran is what the schedule says, to the byte, the FLOP and the exponential."""
    errors = exercise(device, w, seed).errors()
    assert max(errors.values()) <= TOLERANCE[w.dtype], errors
    schedule = schedules.build(w, device.gpu, None)
    assert_matches(device, schedule)
    for ran, kernel in zip(device.launches, schedule.kernels, strict=True):
        counted, planned = ran.counters, kernel.total("flops") if kernel.path == "mma_sync" else 0
        assert (counted.tensor_flops, counted.exponentials) == (planned, kernel.total("exps")), kernel.name
        assert (counted.bank_conflicts, counted.local_bytes) == (0, 0), kernel.name


def ranges(monkeypatch: pytest.MonkeyPatch, **counts: int) -> None:
    """Cut sequences into so many ranges, whatever would fill the GPU."""
    for name, count in counts.items():
        for module in (operation, schedules):
            monkeypatch.setattr(module, name, lambda w, gpu, count=count: count)


def draw(w: Workload, seed: int = 0, scale: float = 1.0) -> Arrays:
    """Normal Q, K and V; Q and K of standard deviation `scale`."""
    random = np.random.default_rng(seed)
    kv = (w.batch, w.heads_kv, w.seq_kv, w.head_dim)
    shapes = (((w.batch, w.heads_q, w.seq_q, w.head_dim), scale), (kv, scale), (kv, 1.0))
    return tuple(encode(factor * random.standard_normal(shape), w.dtype) for shape, factor in shapes)


def error(got: NDArray[Any], want: NDArray[np.float64]) -> float:
    return Outcome({"O": decode(got)}, {"O": want}).largest_error()


@pytest.mark.parametrize(
    ("heads", "seq", "head_dim", "dtype"),
    [
        ((1, 1), (1, 1), 64, "fp16"),
        ((2, 1), (63, 63), 128, "bf16"),
        ((2, 2), (127, 127), 64, "bf16"),
        ((4, 2), (200, 200), 128, "fp16"),
        ((3, 1), (70, 200), 64, "fp16"),
        ((2, 1), (257, 65), 64, "bf16"),
    ],
    ids=str,
)
def test_without_a_mask(
    heads: tuple[int, int],
    seq: tuple[int, int],
    head_dim: int,
    dtype: str,
    cpu_device: CpuDevice,
    assert_matches_schedule: AssertMatches,
) -> None:
    check(cpu_device, Workload(1, heads[0], seq[0], head_dim, heads[1], seq[1], dtype=dtype), assert_matches_schedule)


@pytest.mark.parametrize(
    ("heads", "seq", "head_dim", "dtype"),
    [
        ((1, 1), 1, 128, "bf16"),
        ((1, 1), 63, 64, "fp16"),
        ((2, 1), 127, 128, "fp16"),
        ((4, 2), 200, 64, "bf16"),
        ((1, 1), 200, 128, "bf16"),
    ],
    ids=str,
)
def test_causal(
    heads: tuple[int, int],
    seq: int,
    head_dim: int,
    dtype: str,
    cpu_device: CpuDevice,
    assert_matches_schedule: AssertMatches,
) -> None:
    w = Workload(1, heads[0], seq, head_dim, heads[1], dtype=dtype, mask=Mask.causal())
    check(cpu_device, w, assert_matches_schedule)


@pytest.mark.parametrize(("head_dim", "count"), [(64, 2), (64, 5), (128, 3)])
def test_causal_ranges_begin_with_the_state_before_them(
    head_dim: int,
    count: int,
    cpu_device: CpuDevice,
    assert_matches_schedule: AssertMatches,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranges(monkeypatch, causal_ranges=count)
    w = Workload(1, 2, 300, head_dim, 1, dtype="fp16", mask=Mask.causal())
    check(cpu_device, w, assert_matches_schedule)
    names = [one.variant.entry for one in cpu_device.launches]
    assert names == ["linear_state", "linear_scan", "linear_causal"][:: 2 if count == 2 else 1]


@pytest.mark.parametrize(("keys", "rows"), [(1, 1), (5, 3)])
def test_ranges_of_keys_and_of_rows_change_nothing_but_rounding(
    keys: int, rows: int, cpu_device: CpuDevice, assert_matches_schedule: AssertMatches, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges(monkeypatch, state_ranges=keys, row_ranges=rows)
    check(cpu_device, Workload(1, 2, 300, 64, 1, dtype="bf16"), assert_matches_schedule)


@pytest.mark.parametrize(
    ("batch", "heads", "tokens", "before", "head_dim", "dtype"),
    [
        (1, (6, 2), 1, 0, 64, "fp16"),
        (2, (4, 4), 1, 1000, 64, "bf16"),
        (1, (5, 1), 1, 99, 128, "bf16"),
        (1, (2, 1), 3, 50, 128, "fp16"),
    ],
    ids=str,
)
def test_decode(
    batch: int,
    heads: tuple[int, int],
    tokens: int,
    before: int,
    head_dim: int,
    dtype: str,
    cpu_device: CpuDevice,
    assert_matches_schedule: AssertMatches,
) -> None:
    w = Workload(batch, heads[0], tokens, head_dim, heads[1], before + tokens, 0, dtype, "decode", Mask.causal())
    check(cpu_device, w, assert_matches_schedule)


def test_decoding_token_by_token_is_the_causal_forward_pass(cpu_device: CpuDevice) -> None:
    w = Workload(1, 4, 70, 64, 2, dtype="fp16", mask=Mask.causal())
    q, k, v = draw(w)
    state, normalizer = cpu_device.zeros((1, 2, 64, 64), "float32"), cpu_device.zeros((1, 2, 64), "float32")
    outputs = []
    for first, last in ((0, 66), (66, 67), (67, 68), (68, 70)):
        some = [np.ascontiguousarray(x[:, :, first:last]) for x in (q, k, v)]
        o, same_state, same_normalizer = linear_decode(cpu_device, some[0], some[1], some[2], state, normalizer)
        assert same_state is state and same_normalizer is normalizer
        outputs.append(o)
    want, last_state, sums = linear_attention_recurrent(*(decode(x) for x in (q, k, v)))
    stepped, forward = np.concatenate(outputs, axis=2), linear_forward(cpu_device, q, k, v, causal=True)
    assert error(stepped, want) <= TOLERANCE["fp16"] and error(forward, want) <= TOLERANCE["fp16"]
    np.testing.assert_allclose(state, last_state, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(normalizer, sums, rtol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("dtype", "scale", "value"), [("fp16", 15000.0, 60000.0), ("bf16", 1e12, 1e20)])
def test_sums_far_beyond_fp16_do_not_overflow(
    causal: bool, dtype: str, scale: float, value: float, cpu_device: CpuDevice
) -> None:
    """phi up to the largest number of the format, values as well: S has 10^11 in fp16, and O is an average."""
    w = Workload(1, 1, 150, 64, dtype=dtype)
    q, k, v = draw(w, scale=scale)
    v = encode(np.clip(decode(v), -1, 1) * value, dtype)
    o = linear_forward(cpu_device, q, k, v, causal=causal)
    want = linear_attention_quadratic(*(decode(x) for x in (q, k, v)), causal=causal)
    assert error(o, want) <= TOLERANCE[dtype]


@pytest.mark.parametrize("causal", [False, True])
def test_weights_sum_to_one(causal: bool, cpu_device: CpuDevice) -> None:
    """Equal values come out as they went in; rows that do not exist weigh nothing."""
    w = Workload(1, 1, 130, 64, dtype="fp16")
    q, k, v = draw(w, scale=3.0)
    o = linear_forward(cpu_device, q, k, np.full_like(v, 1.5), causal=causal)
    np.testing.assert_allclose(o.astype(np.float64), 1.5, rtol=2**-10)


@pytest.mark.parametrize("causal", [False, True])
def test_faint_queries_and_keys(causal: bool, cpu_device: CpuDevice) -> None:
    """All features far below one, as exp makes them: bf16 has fp32's exponents, and only ratios matter."""
    w = Workload(1, 1, 100, 64)
    q, k, v = draw(w)
    q, k = (encode(decode(x) - 30.0, w.dtype) for x in (q, k))
    o = linear_forward(cpu_device, q, k, v, causal=causal)
    want = linear_attention_quadratic(*(decode(x) for x in (q, k, v)), causal=causal)
    assert error(o, want) <= TOLERANCE["bf16"]
    q, k = (encode(np.full_like(decode(x), -120.0), w.dtype) for x in (q, k))
    assert (linear_forward(cpu_device, q, k, v, causal=causal) == 0).all(), "phi underflows: nothing is attended to"


def test_a_nan_in_a_key_reaches_those_who_see_it_and_no_one_else(cpu_device: CpuDevice) -> None:
    w = Workload(1, 1, 80, 64, dtype="fp16")
    q, k, v = draw(w)
    k[0, 0, 70, 5] = np.nan
    o = linear_forward(cpu_device, q, k, v, causal=True)
    assert np.isfinite(o[:, :, :64]).all() and np.isnan(o[:, :, 70:]).all()
    assert np.isnan(linear_forward(cpu_device, q, k, v)).all()


def test_batches_and_heads_keep_apart(cpu_device: CpuDevice) -> None:
    w = Workload(2, 4, 40, 64, 2, dtype="fp16")
    q, k, v = draw(w)
    o = linear_forward(cpu_device, q, k, v)
    assert error(o, linear_attention(*(decode(x) for x in (q, k, v)))) <= TOLERANCE["fp16"]
    alone = linear_forward(cpu_device, *(np.ascontiguousarray(x[1:, x.shape[1] // 2 :]) for x in (q, k, v)))
    np.testing.assert_array_equal(o[1:, 2:], alone)


def small(seq: int = 8, heads: int = 2, head_dim: int = 64) -> NDArray[np.float16]:
    return np.zeros((1, heads, seq, head_dim), np.float16)


def test_what_does_not_fit_is_refused(cpu_device: CpuDevice) -> None:
    q, k = small(), small(seq=9)
    with pytest.raises(InputError, match="seq_q is 8, seq_kv 9; make them equal"):
        linear_forward(cpu_device, q, k, k, causal=True)
    with pytest.raises(InputError, match="head_dim is 256; this kernel takes 64, 128"):
        linear_forward(cpu_device, small(head_dim=256), small(head_dim=256), small(head_dim=256))
    with pytest.raises(InputError, match="window cannot be taken out"):
        exercise(cpu_device, Workload(1, 2, 50, 64, mask=Mask.sliding_window(9)))
    state, normalizer = np.zeros((1, 2, 64, 64), np.float32), np.zeros((1, 2, 64), np.float32)
    with pytest.raises(InputError, match=r"state is \[1, 2, 64, 64\]; allowed: \[1, 1, 64, 64\]"):
        linear_decode(cpu_device, q, small(heads=1), small(heads=1), state, normalizer)
    with pytest.raises(InputError, match="normalizer is float64"):
        linear_decode(cpu_device, q, q, q, state, normalizer.astype(np.float64))
    with pytest.raises(InputError, match="seq_q is 9, seq_kv 8"):
        linear_decode(cpu_device, k, q, q, state, normalizer)
    with pytest.raises(InputError, match="8 tokens, K and V 9; give the new tokens only"):
        linear_decode(cpu_device, q, k, k, state, normalizer)
    assert cpu_device.launches == []


def test_widths_have_all_kernels() -> None:
    assert len(variants()) == 6 * 2 * len(HEAD_DIMS) == len({variant.label for variant in variants()})
