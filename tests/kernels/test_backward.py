"""Flash backward: right within what rounding to 16 bits allows, and exactly the work that its schedule says."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from attnsim.errors import InputError
from attnsim.kernels.backward import exercise, flash_backward
from attnsim.kernels.cpu_device import CpuDevice
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.implementations.own.backward import TILES, choose_tile
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.references.softmax import attention, attention_backward, visible
from attnsim.models.schedule.schedule import Schedule
from attnsim.ptx.counters import decode, encode
from attnsim.ptx.outcome import TOLERANCE

AssertMatches = Callable[[CpuDevice, Schedule], None]
Floats = NDArray[np.float64]
Inputs = dict[str, NDArray[Any]]
INPUTS, GRADIENTS = ("Q", "K", "V", "O", "LSE", "dO"), ("dQ", "dK", "dV")


def workload(heads: str, seqs: str, head_dim: int, dtype: str, mask: Mask | None = None, batch: int = 1) -> Workload:
    heads_q, heads_kv = map(int, heads.split("/"))
    seq_q, seq_kv = map(int, seqs.split("x"))
    return Workload(batch, heads_q, seq_q, head_dim, heads_kv, seq_kv, dtype=dtype, passes="bwd", mask=mask or Mask())


CASES = {
    "one query, one key": workload("1/1", "1x1", 64, "fp16"),
    "63, batch 2": workload("2/2", "63x63", 64, "bf16", batch=2),
    "127, GQA, causal": workload("4/2", "127x127", 64, "fp16", Mask.causal()),
    "one query after many keys": workload("1/1", "1x200", 128, "bf16", Mask.causal()),
    "200, both tiles ragged": workload("1/1", "200x200", 128, "fp16"),
    "MQA over several tiles of each head": workload("3/1", "150x200", 128, "bf16", Mask.causal()),
    "window": workload("2/1", "200x200", 128, "bf16", Mask.sliding_window(50)),
    "window to both sides": workload("1/1", "260x140", 64, "fp16", Mask.sliding_window(70, causal=False)),
    "window of one key": workload("2/1", "70x70", 64, "bf16", Mask.sliding_window(1)),
    "limited on the right only": workload("1/1", "140x260", 64, "bf16", Mask(right=30)),
    "queries that see no key": workload("2/1", "200x70", 64, "fp16", Mask.causal()),
    "keys that no query sees": workload("1/1", "70x300", 128, "fp16", Mask.sliding_window(40)),
    "width 256": workload("2/1", "40x100", 256, "bf16", Mask.causal()),
}


def draw(w: Workload, seed: int = 0, stretch: float = 1.0) -> Inputs:
    """Q, K, V, dO, and O and LSE of the reference, as the kernel gets them; `stretch` multiplies the scores."""
    random = np.random.default_rng(seed)
    rows, kv = (w.batch, w.heads_q, w.seq_q, w.head_dim), (w.batch, w.heads_kv, w.seq_kv, w.head_dim)
    q, k, v, do = (random.standard_normal(shape) for shape in (rows, kv, kv, rows))
    inputs = {name: encode(values, w.dtype) for name, values in (("Q", q * stretch), ("K", k), ("V", v), ("dO", do))}
    return with_forward(inputs, w)


def with_forward(inputs: Inputs, w: Workload) -> Inputs:
    o, lse = attention(decode(inputs["Q"]), decode(inputs["K"]), decode(inputs["V"]), w.mask)
    return inputs | {"O": encode(o, w.dtype), "LSE": lse.astype(np.float32)}


def reference(inputs: Inputs, w: Workload) -> dict[str, Floats]:
    q, k, v, do = (decode(inputs[name]) for name in ("Q", "K", "V", "dO"))
    return dict(zip(GRADIENTS, attention_backward(q, k, v, do, w.mask), strict=True))


def gradients(device: CpuDevice, inputs: Inputs, w: Workload) -> dict[str, NDArray[Any]]:
    q, k, v, o, lse, do = (inputs[name] for name in INPUTS)
    return dict(zip(GRADIENTS, flash_backward(device, q, k, v, o, lse, do, mask=w.mask), strict=True))


def largest_errors(w: Workload, inputs: Inputs) -> dict[str, Floats]:
    r"""What each element of dQ, dK and dV may be off, element by element: a bound, not a tuned tolerance.

    With ``u`` half a unit in the last place of the 16-bit format, the kernel rounds P before ``P^T dO``, dS before
    ``dS^T Q`` and ``dS K``, and the result; the O that it was given was rounded, so that D = rowsum(dO O) is off by up
    to ``u rowsum(|dO| |O|)``. To first order in u

    - dV:  ``u P^T |dO| + u |dV|``
    - dS:  ``e = u |dS| + P u rowsum(|dO| |O|)``
    - dK:  ``scale e^T |Q| + u |dK|``, dQ:  ``scale e |K| + u |dQ|``

    and ``f``, generously what fp32 loses in sums of up to 256 products, beside u wherever there is such a sum; in the
    exponent of P it acts on the scores' magnitude. ``t`` is where P and dS underflow: half the smallest number of fp16,
    the smallest normal one of fp32.
    """
    u, t = (2.0**-11, 2.0**-25) if w.dtype == "fp16" else (2.0**-8, 2.0**-126)
    f = 2.0**-20
    q, k, v, do, lse = (decode(inputs[name]) for name in ("Q", "K", "V", "dO", "LSE"))
    k, v = (np.repeat(x, w.group, axis=1) for x in (k, v))
    scale = w.head_dim**-0.5
    o, _ = attention(q, k, v, w.mask)
    s = scale * q @ k.swapaxes(-1, -2)
    p = np.where(visible(w.mask, w.seq_q, w.seq_kv), np.exp(s - np.where(np.isneginf(lse), np.inf, lse)[..., None]), 0)
    dp, d = do @ v.swapaxes(-1, -2), (do * o).sum(-1, keepdims=True)
    in_exponent = f * (
        1 + scale * np.abs(q) @ np.abs(k).swapaxes(-1, -2) + np.abs(np.where(p.any(-1), lse, 0))[..., None]
    )
    in_dp = f * np.abs(do) @ np.abs(v).swapaxes(-1, -2)
    in_d = (u + f) * (np.abs(do) * np.abs(o)).sum(-1, keepdims=True)
    in_ds = (u + f + in_exponent) * p * np.abs(dp - d) + p * (in_dp + in_d) + t
    in_p = (u + f + in_exponent) * p + t

    def of_group(x: Floats) -> Floats:
        summed: Floats = x.reshape(w.batch, w.heads_kv, w.group, w.seq_kv, w.head_dim).sum(axis=2)
        return summed

    rounding = {name: u * np.abs(exact) + t for name, exact in reference(inputs, w).items()}
    return {
        "dQ": 1.01 * scale * in_ds @ np.abs(k) + rounding["dQ"],
        "dK": of_group(1.01 * scale * in_ds.swapaxes(-1, -2) @ np.abs(q)) + rounding["dK"],
        "dV": of_group(1.01 * in_p.swapaxes(-1, -2) @ np.abs(do)) + rounding["dV"],
    }


def assert_right(got: dict[str, NDArray[Any]], w: Workload, inputs: Inputs) -> None:
    allowed = largest_errors(w, inputs)
    for name, expected in reference(inputs, w).items():
        off = np.abs(decode(got[name]) - expected)
        assert (off <= allowed[name]).all(), f"{name}: {np.nanmax(off / allowed[name])} of what rounding explains"


@pytest.mark.parametrize("w", CASES.values(), ids=CASES)
def test_right_and_as_scheduled(w: Workload, cpu_device: CpuDevice, assert_matches_schedule: AssertMatches) -> None:
    inputs = draw(w)
    assert_right(gradients(cpu_device, inputs, w), w, inputs)
    schedule = find_implementation("attnsim.flash-backward").build(w, cpu_device.gpu, None)
    assert_matches_schedule(cpu_device, schedule)
    for launched, kernel in zip(cpu_device.launches, schedule.kernels, strict=True):
        counters = launched.counters
        assert (counters.tensor_flops, counters.exponentials) == (kernel.total("flops"), kernel.total("exps"))
        assert counters.bank_conflicts == 0 and counters.local_bytes == 0, kernel.name


@pytest.mark.parametrize("head_dim", TILES)
@pytest.mark.parametrize("gpu", ["h100-sxm5-80gb", "rtx-4090"])
def test_tiles_of_other_gpus(gpu: str, head_dim: int, assert_matches_schedule: AssertMatches) -> None:
    device = CpuDevice(gpu)
    w = workload("2/1", "70x140", head_dim, "fp16", Mask.causal())
    if head_dim == 256 and gpu == "rtx-4090":
        with pytest.raises(InputError, match=r"256, 32 x 64, needs 136.5 KiB .* rtx-4090 has 99 KiB per block"):
            exercise(device, w)
        return
    assert exercise(device, w).largest_error() <= TOLERANCE[w.dtype]
    assert_matches_schedule(device, find_implementation("attnsim.flash-backward").build(w, device.gpu, None))


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_random_inputs_stay_within_the_tolerance_of_the_forward_kernels(dtype: str, cpu_device: CpuDevice) -> None:
    """Errors of random inputs add up by their squares, far below the bound for each element."""
    assert (
        exercise(cpu_device, workload("2/2", "200x180", 64, dtype, Mask.causal())).largest_error() <= TOLERANCE[dtype]
    )


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_large_scores(dtype: str, cpu_device: CpuDevice) -> None:
    """Scores of +-100: every row is nearly one-hot, dP - D cancels, and most of P underflows."""
    w = workload("1/1", "130x140", 64, dtype, Mask.causal())
    inputs = draw(w, stretch=30.0)
    assert np.abs(inputs["LSE"]).max() > 90
    assert_right(gradients(cpu_device, inputs, w), w, inputs)


def test_padding_keys_of_very_negative_rows_do_not_spill_over(cpu_device: CpuDevice) -> None:
    """A missing key has score 0: beside an LSE of -300 its P would be infinite, and infinity times 0 NaN."""
    w = workload("1/1", "20x30", 64, "bf16")
    inputs = draw(w)
    inputs["Q"], inputs["K"] = (
        encode(sign * 6.5 + 0 * decode(inputs[n]), w.dtype) for n, sign in (("Q", -1), ("K", 1))
    )
    inputs = with_forward(inputs, w)
    assert inputs["LSE"].max() < -300
    assert_right(gradients(cpu_device, inputs, w), w, inputs)


def test_a_scale_of_its_own_reaches_all_gradients(cpu_device: CpuDevice) -> None:
    """Scale and Q trade places: half the scale and Q doubled give the same dK and dV and half of dQ."""
    w = workload("1/1", "40x50", 64, "fp16")
    inputs = draw(w)
    plain = gradients(cpu_device, inputs, w)
    q, k, v, o, lse, do = (inputs[name] for name in INPUTS)
    dq, dk, dv = flash_backward(cpu_device, 2 * q, k, v, o, lse, do, scale=w.head_dim**-0.5 / 2)
    assert np.array_equal(dk, plain["dK"]) and np.array_equal(dv, plain["dV"])
    assert np.abs(2 * decode(dq) - decode(plain["dQ"])).max() <= 2.0**-24, "apart by more than fp16's smallest number"


def test_heads_of_a_group_add_up(cpu_device: CpuDevice) -> None:
    """GQA is MHA with K and V repeated, its dK and dV summed over the group."""
    grouped, alone = (workload(heads, "30x40", 64, "fp16", Mask.causal()) for heads in ("3/1", "3/3"))
    inputs = draw(grouped)
    repeated = inputs | {name: np.repeat(inputs[name], 3, axis=1) for name in "KV"}
    one, many = gradients(cpu_device, inputs, grouped), gradients(cpu_device, repeated, alone)
    assert np.array_equal(one["dQ"], many["dQ"])
    for name in ("dK", "dV"):
        assert decode(one[name])[:, 0] == pytest.approx(decode(many[name]).sum(axis=1), abs=0.01)


def test_inputs_of_another_forward_pass_are_refused(cpu_device: CpuDevice) -> None:
    inputs = draw(workload("2/1", "8x8", 64, "fp16"))

    def refused(message: str, **changes: NDArray[Any]) -> None:
        q, k, v, o, lse, do = ((inputs | changes)[name] for name in INPUTS)
        with pytest.raises(InputError, match=message):
            flash_backward(cpu_device, q, k, v, o, lse, do)

    refused(r"LSE is \[1, 2, 7\]; it must have one number .* of Q, \[1, 2, 8\]", LSE=np.zeros((1, 2, 7), np.float32))
    refused("LSE is float64; allowed: float32", LSE=np.zeros((1, 2, 8)))
    refused(r"dO is uint16 \[1, 2, 8, 64\]; it must be as Q, float16", dO=np.zeros((1, 2, 8, 64), np.uint16))
    refused(r"O is float16 \[1, 2, 9, 64\]; it must be as Q", O=np.zeros((1, 2, 9, 64), np.float16))
    narrow = {name: inputs[name][..., :40].copy() for name in "QKV"}
    refused("head_dim is 40; this kernel takes 64, 128, 256", **narrow)
    assert not cpu_device.launches


def test_a_tile_that_is_not_compiled_is_refused_with_those_that_are() -> None:
    w, gpu = workload("1/1", "8x8", 128, "bf16"), load_gpu("a100-sxm4-80gb")
    assert choose_tile(w, gpu, TileRequest(32, 64)).rows == 32
    with pytest.raises(InputError, match="has the tile 64 x 128 or 32 x 64 at head_dim 128"):
        choose_tile(w, gpu, TileRequest(128, 128))
