"""Unfused attention: right on awkward sizes, and exactly the grid, traffic and work that its schedule says."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from attnsim.errors import InputError
from attnsim.kernels.arrays import NO_LIMIT, exercise_attention
from attnsim.kernels.cpu_device import CpuDevice
from attnsim.kernels.naive import empty_scores, naive_forward, naive_passes_forward, softmax, softmax_variant
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.implementations.own.naive import NAMES, own_naive, score_stride, softmax_tile
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.references.softmax import visible
from attnsim.models.schedule.schedule import Schedule
from attnsim.ptx.counters import decode, encode
from attnsim.ptx.outcome import TOLERANCE

AssertMatches = Callable[[CpuDevice, Schedule], None]
Floats = NDArray[np.float64]


def workload(
    heads: str, seqs: str, head_dim: int, dtype: str = "bf16", mask: Mask | None = None, batch: int = 1
) -> Workload:
    heads_q, heads_kv = map(int, heads.split("/"))
    seq_q, seq_kv = map(int, seqs.split("x"))
    return Workload(batch, heads_q, seq_q, head_dim, heads_kv, seq_kv, dtype=dtype, mask=mask or Mask())


CASES = {
    "one query, one key": (workload("1/1", "1x1", 64), "fused"),
    "63, causal, GQA, batch 2": (workload("4/2", "63x63", 64, "fp16", Mask.causal(), batch=2), "fused"),
    "127, width 256": (workload("1/1", "127x127", 256), "fused"),
    "200, window": (workload("2/1", "200x200", 128, "bf16", Mask.sliding_window(70)), "fused"),
    "whole tiles": (workload("1/1", "128x256", 64, "fp16"), "fused"),
    "500 keys, window to both sides": (workload("1/1", "130x500", 64, "bf16", Mask(left=40, right=7)), "fused"),
    "fewer keys than queries: rows that see none": (workload("2/2", "200x63", 64, "fp16", Mask.causal()), "fused"),
    "one query against a cache": (workload("4/1", "1x333", 128, "fp16", Mask.causal()), "fused"),
    "1,025 keys: a row of four warps": (workload("1/1", "3x1025", 64, "fp16", Mask.causal()), "fused"),
    "separate, nothing hidden": (workload("1/1", "63x127", 64, "fp16"), "separate"),
    "separate, causal, GQA": (workload("4/2", "65x200", 64, "bf16", Mask.causal()), "separate"),
    "separate, rows that see no key": (workload("1/1", "129x5", 256, "fp16", Mask.causal()), "separate"),
    "separate, window of 1,030 keys": (workload("1/1", "2x1030", 64, "bf16", Mask.sliding_window(9)), "separate"),
}


OF = {"fused": naive_forward, "separate": naive_passes_forward}


@pytest.mark.parametrize(("w", "passes"), CASES.values(), ids=CASES)
def test_right_and_as_scheduled(
    w: Workload, passes: str, cpu_device: CpuDevice, assert_matches_schedule: AssertMatches
) -> None:
    assert exercise_attention(OF[passes], cpu_device, w).largest_error() <= TOLERANCE[w.dtype]
    schedule = find_implementation(NAMES[passes]).build(w, cpu_device.gpu, None)
    assert_matches_schedule(cpu_device, schedule)
    for launched, kernel in zip(cpu_device.launches, schedule.kernels, strict=True):
        did = launched.counters
        assert did.tensor_flops == kernel.total("flops"), kernel.name
        assert did.exponentials == kernel.total("exps"), kernel.name
        assert (did.bank_conflicts, did.local_bytes) == (0, 0), kernel.name


def rounded_reference(q: Floats, k: Floats, v: Floats, w: Workload, scale: float) -> tuple[Floats, Floats]:
    """Attention on scores that have passed through 16 bits, in float64 otherwise."""
    scores = decode(encode(q @ np.repeat(k, w.group, 1).swapaxes(-1, -2) * scale, w.dtype))
    scores[..., ~visible(w.mask, w.seq_q, w.seq_kv)] = -np.inf
    highest = scores.max(-1, keepdims=True)
    p = np.exp(scores - np.where(np.isneginf(highest), 0, highest))
    total = p.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.where(total > 0, highest, 0) + np.log(total)
    return p / np.where(total > 0, total, 1) @ np.repeat(v, w.group, 1), lse[..., 0]


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("passes", NAMES)
def test_scores_of_ten_thousand(dtype: str, passes: str, cpu_device: CpuDevice) -> None:
    """Whole numbers, so that S is exact before it is rounded: what remains is the rounding that frameworks make too."""
    w = workload("2/1", "66x131", 64, dtype, Mask.causal())
    random = np.random.default_rng(1)
    q = random.integers(-30, 31, (1, 2, 66, 64)).astype(np.float64)
    k = random.integers(-60, 61, (1, 1, 131, 64)).astype(np.float64)
    k *= np.exp2(random.integers(-3, 1, (1, 1, 131, 1)))  # of all magnitudes
    v = decode(encode(random.standard_normal((1, 1, 131, 64)), dtype))
    scale = 1.0 if dtype == "bf16" else 0.5  # powers of two commute with rounding, so both forms round alike
    o, lse = naive_forward(cpu_device, *(encode(x, dtype) for x in (q, k, v)), mask=w.mask, scale=scale, passes=passes)
    want, want_lse = rounded_reference(q, k, v, w, scale)
    assert np.abs(want_lse).max() > 5e3
    assert np.abs(decode(o) - want).max() <= TOLERANCE[dtype] * np.abs(want).max()
    assert np.allclose(lse, want_lse, rtol=1e-6)


def test_scores_beyond_fp16_stay_finite(cpu_device: CpuDevice) -> None:
    """Scores of +-6.5e5 become +-65,504: the highest keys share the weight, nothing is NaN."""
    q = np.full((1, 1, 2, 64), 100, np.float16)
    k = np.full((1, 1, 5, 64), 100, np.float16)
    k[:, :, 1] *= -1
    v = np.arange(5, dtype=np.float16).repeat(64).reshape(k.shape)
    o, lse = naive_forward(cpu_device, q, k, v, scale=1.0)
    assert np.allclose(decode(o), (0 + 2 + 3 + 4) / 4, rtol=1e-3)
    assert np.allclose(lse, 65504 + np.log(4))


def test_equal_scores_average_the_values(cpu_device: CpuDevice) -> None:
    values = encode(np.random.default_rng(2).standard_normal((1, 2, 130, 64)), "fp16")
    o, lse = naive_forward(cpu_device, np.zeros_like(values), values, values, scale=-3.0)
    assert np.allclose(lse, np.log(130), rtol=1e-6)
    assert np.allclose(decode(o), decode(values).mean(axis=2, keepdims=True), atol=1e-3)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_nan_in_q_spoils_its_row_alone(dtype: str, cpu_device: CpuDevice) -> None:
    q = encode(np.random.default_rng(3).standard_normal((1, 1, 20, 64)), dtype)
    spoilt = q.copy()
    spoilt[0, 0, 7, 0] = encode([np.nan], dtype)[0]
    (o, lse), (clean, clean_lse) = (naive_forward(cpu_device, x, q, q) for x in (spoilt, q))
    others = np.arange(20) != 7
    assert np.isnan(decode(o)[0, 0, 7]).all() and np.isnan(lse[0, 0, 7])
    assert np.array_equal(o[:, :, others], clean[:, :, others])
    assert np.array_equal(lse[:, :, others], clean_lse[:, :, others])


LONG_ROWS = {
    "16 warps": (5001, Mask.causal()),
    "16 warps, full": (16384, Mask.full()),
    "two sweeps": (16390, Mask.causal()),
    "two sweeps, three chunks, a window": (17000, Mask(left=300, right=0)),
    "two sweeps, one key": (16999, Mask(left=0, right=0)),
}


@pytest.mark.parametrize(("seq_kv", "mask"), LONG_ROWS.values(), ids=LONG_ROWS)
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_softmax_of_long_rows(seq_kv: int, mask: Mask, dtype: str, cpu_device: CpuDevice) -> None:
    w = workload("1/1", f"2x{seq_kv}", 64, dtype, mask)
    seen = visible(mask, w.seq_q, seq_kv)
    random = np.random.default_rng(4)
    scores = 3 * random.standard_normal((w.seq_q, seq_kv)) - 9000.0  # far from 0, what a sum before any key starts with
    scores[:, ::7] -= 20000
    s = empty_scores(cpu_device, w)
    s[0, 0, :, :seq_kv] = encode(scores, dtype)
    p, lse = softmax(cpu_device, w, s, mask)
    exact = np.where(seen, decode(encode(scores, dtype)), -np.inf)
    highest = exact.max(-1, keepdims=True)
    weights = np.exp(exact - highest)
    total = weights.sum(-1, keepdims=True)
    assert np.abs(decode(p)[0, 0, :, :seq_kv] - weights / total).max() <= TOLERANCE[dtype] * (weights / total).max()
    assert np.allclose(lse[0, 0], (highest + np.log(total))[:, 0], rtol=1e-6)
    padding = p[0, 0, :, seq_kv:].view(np.uint16)
    assert padding.shape[1] == score_stride(seq_kv) - seq_kv and (padding == 0xFFFF).all(), "written beyond the row"
    kernel = next(one for one in own_naive(w, cpu_device.gpu, "fused").kernels if one.name == "naive_softmax")
    (launched,) = cpu_device.launches
    assert launched.counters.requested() == kernel.requested()
    assert launched.counters.exponentials == kernel.total("exps")
    assert (launched.grid[0], launched.variant.threads) == (kernel.blocks, kernel.threads)


def test_a_long_row_that_sees_no_key(cpu_device: CpuDevice) -> None:
    """The first two rows of 17,001 causal queries of 17,000 keys; the rest of so large an S is not needed."""
    seq_q, seq_kv = 17001, 17000
    s = np.ones((2, seq_kv), np.float16)
    p, lse = cpu_device.empty(s.shape, "float16"), cpu_device.empty((2,), "float32")
    sizes = {"rows": 2, "seq_q": seq_q, "seq_kv": seq_kv, "stride": seq_kv, "left": NO_LIMIT, "right": 0}
    arguments = {"S": s, "P": p, "LSE": lse} | {name: np.int32(size) for name, size in sizes.items()}
    cpu_device.launch(softmax_variant("fp16", softmax_tile(seq_kv)), (2, 1, 1), arguments)
    assert (p[0] == 0).all() and lse[0] == -np.inf
    assert p[1, 0] == 1 and (p[1, 1:] == 0).all() and lse[1] == 1


@pytest.mark.parametrize("passes", NAMES)
@pytest.mark.parametrize("seq_kv", [1, 1024, 1025, 4097, 16384, 16385, 20000, 24576])
def test_every_softmax_tile_sweeps_the_scores(seq_kv: int, passes: str, cpu_device: CpuDevice) -> None:
    w = workload("6/2", f"3x{seq_kv}", 128, mask=Mask.causal(), batch=2)
    schedule = own_naive(w, cpu_device.gpu, passes)
    assert schedule.requested()["naive_softmax", "load", "S"] == 2 * 36 * seq_kv * softmax_tile(seq_kv).sweeps


def test_scale_and_mask_passes_come_where_they_are_needed(cpu_device: CpuDevice) -> None:
    def names(mask: Mask, passes: str) -> list[str]:
        w = workload("1/1", "9x9", 64, mask=mask)
        return [kernel.name.removeprefix("naive_") for kernel in own_naive(w, cpu_device.gpu, passes).kernels]

    assert names(Mask.causal(), "fused") == names(Mask.full(), "fused") == ["scores", "softmax", "output"]
    assert names(Mask.causal(), "separate") == ["scores", "scale", "mask", "softmax", "output"]
    assert names(Mask(left=8, right=8), "separate") == ["scores", "scale", "softmax", "output"]


def small(head_dim: int = 64, dtype: str = "float16") -> NDArray[Any]:
    return np.zeros((1, 2, 8, head_dim), dtype)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "passes": ({"passes": "both"}, "passes is 'both'; allowed: fused, separate"),
    "scale": ({"scale": float("nan")}, "scale is nan; allowed: a finite number"),
    "width": ({"q": small(96), "k": small(96), "v": small(96)}, "head_dim is 96"),
    "type": ({"v": small(dtype="uint16")}, "give all three the same type"),
    "pattern": ({"mask": Mask.longformer()}, "diagonal bands only"),
}


@pytest.mark.parametrize(("given", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_before_a_launch(given: dict[str, Any], message: str, cpu_device: CpuDevice) -> None:
    arrays = [given.get(name, small()) for name in "qkv"]
    options = {name: value for name, value in given.items() if name not in "qkv"}
    with pytest.raises(InputError, match=message):
        naive_forward(cpu_device, *arrays, **options)
    assert not cpu_device.launches


def test_scores_that_do_not_fit_the_gpu_are_refused(cpu_device: CpuDevice) -> None:
    q = np.zeros((1, 1, 150_000, 64), np.float16)
    with pytest.raises(InputError, match=r"needs 90\.1 GB \(90\.0 of them for S and P\), .* take the flash kernels"):
        naive_forward(cpu_device, q, q, q)


def test_the_schedule_refuses_shapes_without_kernels(cpu_device: CpuDevice) -> None:
    with pytest.raises(InputError, match=r"attnsim.naive has no kernels of .*head_dim 96.*allowed: head_dim 64, 128"):
        own_naive(workload("1/1", "8x8", 96), cpu_device.gpu, "fused")
    with pytest.raises(InputError, match="takes no tile of queries x keys; leave --tile out"):
        find_implementation("attnsim.naive").build(workload("1/1", "8x8", 64), cpu_device.gpu, TileRequest(64, 64))
