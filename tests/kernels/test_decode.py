"""Split-KV decoding: right on awkward sizes, and exactly the traffic that its schedule says."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from attnsim.errors import InputError
from attnsim.kernels.arrays import exercise_attention
from attnsim.kernels.cpu_device import CpuDevice
from attnsim.kernels.decode import decode_attention, variants
from attnsim.models.hardware.files import builtin_gpu_ids, load_gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.implementations.own import decode as own_decode
from attnsim.models.implementations.own.decode import TILES, choose_splits, choose_tile
from attnsim.models.implementations.own.resources import registers_of
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.references.softmax import attention
from attnsim.models.schedule.schedule import Schedule
from attnsim.ptx.counters import decode, encode
from attnsim.ptx.outcome import TOLERANCE, Outcome

AssertMatches = Callable[[CpuDevice, Schedule], None]
Arrays = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
AMPERE_AND_NEWER = [load_gpu(name) for name in builtin_gpu_ids() if load_gpu(name).compute_capability_number >= 80]


def workload(
    heads: str, seqs: str, head_dim: int, dtype: str = "bf16", mask: Mask | None = None, batch: int = 1
) -> Workload:
    heads_q, heads_kv = map(int, heads.split("/"))
    seq_q, seq_kv = map(int, seqs.split("x"))
    return Workload(
        batch, heads_q, seq_q, head_dim, heads_kv, seq_kv, dtype=dtype, passes="decode", mask=mask or Mask()
    )  # fmt: skip


CASES = {
    "one key": (workload("1/1", "1x1", 64), None),
    "63 keys, MHA, batch 2": (workload("2/2", "1x63", 128, "fp16", batch=2), None),
    "127 keys in 2 splits": (workload("4/1", "1x127", 64), 2),
    "500 keys in 3 uneven splits": (workload("8/2", "1x500", 128), 3),
    "500 keys, splits chosen": (workload("8/1", "1x500", 128, "fp16", batch=2), None),
    "width 256, 5 splits": (workload("4/2", "1x330", 256), 5),
    "MQA of 20 heads: two row tiles": (workload("20/1", "1x200", 64, "fp16"), 2),
    "two causal queries": (workload("4/2", "2x130", 64, mask=Mask.causal()), 1),
    "five causal queries of 8 heads": (workload("8/1", "5x129", 128, mask=Mask.causal()), 2),
    "17 causal queries": (workload("2/1", "17x150", 64, "fp16", mask=Mask.causal()), 3),
    "window": (workload("4/1", "1x500", 64, mask=Mask.sliding_window(90)), 2),
    "window of one key": (workload("2/1", "3x100", 64, mask=Mask.sliding_window(1)), None),
    "window to both sides": (workload("4/2", "9x160", 64, "fp16", mask=Mask.sliding_window(20, causal=False)), 4),
    "6 splits, the causal row tiles see fewer": (workload("16/1", "4x70", 64, mask=Mask.causal()), 6),
    "7 splits of one key tile: six are empty": (workload("2/1", "1x40", 128), 7),
    "queries before the first key": (workload("2/1", "17x5", 64, mask=Mask.causal()), 1),
    "queries before the first key, split": (workload("2/1", "17x5", 64, "fp16", mask=Mask.causal()), 3),
}


def draw(w: Workload, seed: int = 0) -> Arrays:
    random = np.random.default_rng(seed)
    kv = (w.batch, w.heads_kv, w.seq_kv, w.head_dim)
    shapes = ((w.batch, w.heads_q, w.seq_q, w.head_dim), kv, kv)
    q, k, v = (encode(random.standard_normal(shape), w.dtype) for shape in shapes)
    return q, k, v


def outcome(device: CpuDevice, arrays: Arrays, w: Workload, splits: int | None, scale: float | None = None) -> Outcome:
    q, k, v = arrays
    o, lse = decode_attention(device, q, k, v, mask=w.mask, splits=splits, scale=scale)
    expected_o, expected_lse = attention(decode(q), decode(k), decode(v), w.mask, scale)
    return Outcome({"O": decode(o), "LSE": decode(lse)}, {"O": expected_o, "LSE": expected_lse})


@pytest.mark.parametrize(("w", "splits"), CASES.values(), ids=CASES)
def test_right_and_as_scheduled(
    w: Workload, splits: int | None, cpu_device: CpuDevice, assert_matches_schedule: AssertMatches
) -> None:
    result = outcome(cpu_device, draw(w), w, splits)
    assert result.largest_error() <= TOLERANCE[w.dtype]
    tile = choose_tile(w, cpu_device.gpu)
    count = choose_splits(w, cpu_device.gpu, tile) if splits is None else splits
    assert_matches_schedule(cpu_device, own_decode.decode_schedule(w, cpu_device.gpu, tile, count))
    for launched in cpu_device.launches:
        assert launched.counters.bank_conflicts == 0, launched.variant.label
        assert launched.counters.local_bytes == 0, launched.variant.label


@pytest.mark.parametrize("gpu", ["h100-sxm5-80gb", "rtx-4090"])
@pytest.mark.parametrize("head_dim", TILES)
def test_tiles_of_other_gpus(gpu: str, head_dim: int, assert_matches_schedule: AssertMatches) -> None:
    device = CpuDevice(gpu)
    w = workload("4/1", "1x300", head_dim)
    assert exercise_attention(decode_attention, device, w).largest_error() <= TOLERANCE[w.dtype]
    assert_matches_schedule(device, find_implementation("attnsim.decode").build(w, device.gpu, None))


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_adversarial_scores(dtype: str, splits: int, cpu_device: CpuDevice) -> None:
    """Scores of +-1000 that rise and fall along the keys: maxima move in every warp, and most weights underflow."""
    w = workload("4/1", "2x260", 64, dtype, mask=Mask.causal())
    q, k, v = (decode(array) for array in draw(w))
    k *= (40 * np.sin(np.arange(w.seq_kv) / 9))[:, None]
    q, k, v = (encode(array, dtype) for array in (10 * q, k, v))
    assert outcome(cpu_device, (q, k, v), w, splits).largest_error() <= TOLERANCE[dtype]


def test_equal_scores_average_the_values(cpu_device: CpuDevice) -> None:
    w = workload("2/1", "1x300", 64, "fp16")
    q, k, v = draw(w)
    o, lse = decode_attention(cpu_device, np.zeros_like(q), k, v, splits=3)
    assert np.allclose(lse, np.log(300), rtol=1e-6)
    assert np.allclose(decode(o), decode(v).mean(axis=2, keepdims=True), atol=1e-4)


@pytest.mark.parametrize("scale", [0.5, -0.25, 0.0])
def test_any_scale(scale: float, cpu_device: CpuDevice) -> None:
    w = workload("2/1", "1x90", 64, "fp16")
    assert outcome(cpu_device, draw(w), w, 2, scale).largest_error() <= TOLERANCE["fp16"]


def test_splitting_changes_the_result_by_rounding_only(cpu_device: CpuDevice) -> None:
    w = workload("4/1", "1x250", 64, "fp16")
    q, k, v = draw(w)
    whole, lse = decode_attention(cpu_device, q, k, v, splits=1)
    for splits in range(2, 8):
        parts, parts_lse = decode_attention(cpu_device, q, k, v, splits=splits)
        assert np.abs(decode(parts) - decode(whole)).max() <= 2 * np.finfo(np.float16).eps * np.abs(whole).max()
        assert np.allclose(parts_lse, lse, rtol=1e-6)


def test_more_splits_than_the_combine_kernel_has_in_flight(cpu_device: CpuDevice) -> None:
    """37 splits are two rounds of 16 and a rest of 5, and a warp of them has 10, 9, 9 and 9."""
    w = workload("1/1", "1x2400", 64, "fp16")
    result = outcome(cpu_device, draw(w), w, 37)
    assert result.largest_error() <= TOLERANCE["fp16"]


def test_warps_meet_only_before_and_after_the_loop(cpu_device: CpuDevice) -> None:
    w = workload("4/1", "1x1000", 64)
    decode_attention(cpu_device, *draw(w), splits=2)
    split, combine = cpu_device.launches
    assert split.counters.barriers == 2 * 2
    assert combine.counters.barriers == w.heads_q


@pytest.mark.parametrize("head_dim", TILES)
def test_two_blocks_an_sm_where_the_tile_counts_on_them(head_dim: int) -> None:
    """Registers do not undo what the tile's shared memory was chosen for."""
    w = workload("8/1", "1x512", head_dim)
    for gpu in AMPERE_AND_NEWER:
        tile = choose_tile(w, gpu)
        variant = next(one for one in variants() if one.defines == tile.constants("bf16"))
        registers = registers_of(variant.label, load_gpu("h100-sxm5-80gb"), variant.threads)
        allocated = tile.threads // 32 * -(-registers * 32 // 256) * 256
        assert gpu.sm.registers // allocated >= tile.blocks_per_sm(gpu), f"{tile} on {gpu.id}"


@pytest.mark.parametrize("head_dim", TILES)
def test_every_gpu_has_enough_bytes_in_flight(head_dim: int) -> None:
    """Little's law: bandwidth x latency must be under way; four times that, for latency under load and for waits."""
    w = workload("8/1", "1x512", head_dim)
    for gpu in AMPERE_AND_NEWER:
        tile = choose_tile(w, gpu)
        latency_s = gpu.hbm.latency_clk / gpu.clock.full_hz
        under_way = tile.blocks_per_sm(gpu) * tile.ring_bytes * gpu.sm.count
        assert under_way >= 4 * gpu.hbm.bandwidth_bytes_per_s * latency_s, f"{tile} on {gpu.id}"


def test_splits_fill_the_gpu_and_no_more() -> None:
    gpu = load_gpu("h200-sxm-141gb")

    def splits(batch: int, seq_kv: int, mask: Mask | None = None) -> int:
        w = workload("32/8", f"1x{seq_kv}", 128, batch=batch, mask=mask)
        return choose_splits(w, gpu, choose_tile(w, gpu))

    assert splits(16, 8192) == 1  # 128 blocks on 132 SMs
    assert splits(1, 8192) == 16
    assert splits(1, 1 << 20) * 8 >= 0.95 * gpu.sm.count
    assert splits(1, 64) == 1
    assert splits(1, 8192, Mask.sliding_window(128)) <= 3  # only what is seen is cut


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"splits": 0}, "splits is 0; allowed: a whole number from 1 to 128"),
        ({"splits": 129}, "splits is 129"),
        ({"head_dim": 96}, "head_dim is 96; this kernel takes 64, 128, 256"),
    ],
    ids=["no split", "too many splits", "width"],
)
def test_refusals_say_what_is_allowed(change: dict[str, int], message: str, cpu_device: CpuDevice) -> None:
    w = workload("2/1", "1x20", change.get("head_dim", 64))
    with pytest.raises(InputError, match=message):
        decode_attention(cpu_device, *draw(w), splits=change.get("splits"))
    assert not cpu_device.launches


def test_patterns_are_refused_before_anything_runs(cpu_device: CpuDevice) -> None:
    w = workload("2/1", "1x200", 64)
    with pytest.raises(InputError, match="bands"):
        decode_attention(cpu_device, *draw(w), mask=Mask.longformer(64))
    assert not cpu_device.launches


def test_other_tiles_are_refused_by_name() -> None:
    w = workload("8/1", "1x512", 256)
    gpu = load_gpu("a100-sxm4-80gb")
    assert "16 x 32" in find_implementation("attnsim.decode").build(w, gpu, TileRequest(16, 32)).tile_text
    with pytest.raises(InputError, match="has the tile 16 x 64 or 16 x 32 at head_dim 256, not 64 x 64"):
        find_implementation("attnsim.decode").build(w, gpu, TileRequest(64, 64))
