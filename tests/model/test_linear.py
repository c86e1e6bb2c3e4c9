"""Linear attention in the model: costs that grow with N and not with N x N, work counted by its own convention."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from attnsim.api import compare, predict
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule
from tests.model.bounds import compulsory, requested, roofline_time, useful

A100, H100 = load_gpu("a100-sxm4-80gb"), load_gpu("h100-sxm5-80gb")
LINEAR = IMPLEMENTATIONS["attnsim.linear"]
MASKS = (Mask.full(), Mask.causal())


def time(w: Workload, algorithm: str = "linear") -> float:
    answer = predict(w, H100, algorithm, launch="kernel", cache="cold", baseline=False)
    assert answer.time_s is not None
    return answer.time_s


def build(w: Workload) -> Schedule:
    return LINEAR.build(w, A100, None)


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_time_grows_with_n(mask: Mask, head_dim: int) -> None:
    """From where latencies are less than a tenth of the time."""
    times = [time(Workload(1, 32, 1 << log, head_dim, mask=mask)) for log in range(15, 21)]
    ratios = [later / earlier for earlier, later in itertools.pairwise(times)]
    # Wanted: 2.1. At 2^18 tokens, head_dim 128 and causal the default mode is 6.6 % above the exact one.
    assert all(1.8 < ratio < 2.21 for ratio in ratios), ratios


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_linear_beats_flash_in_long_sequences_only(mask: Mask) -> None:
    def speedup(seq: int) -> float:
        w = Workload(1, 32, seq, 64, mask=mask)
        return time(w, "flash") / time(w)

    ratios = [speedup(1 << log) for log in (8, 12, 16, 18)]
    assert ratios == sorted(ratios) and ratios[0] < 1 < ratios[1]
    assert ratios[-1] / ratios[-2] == pytest.approx(4, rel=0.15), "N^2 over N, once latencies are a small part"


def test_decoding_does_not_depend_on_how_many_tokens_there_were() -> None:
    short = Workload(8, 32, 1, 128, 8, 100, passes="decode")
    long = replace(short, seq_kv=100_000_000)
    assert build(short).requested() == build(long).requested()
    assert time(short) == time(long)
    answer = predict(long, H100, "linear", baseline=False)
    assert answer.fits and answer.peak_memory_bytes < 100e6, "no cache of keys"
    state = 8 * 8 * 128 * 129 * 4
    moved = build(long).requested()
    for kind in ("load", "store"):
        assert sum(moved["linear_decode", kind, name] for name in ("State", "Normalizer")) == state


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_useful_flops_are_two_products_with_the_state(mask: Mask) -> None:
    """2 B H N d dv for phi(K)^T V, of key heads, and as many for phi(Q) S, of query heads."""
    w = Workload(2, 16, 1000, 64, 4, mask=mask)
    answer = predict(w, A100, "linear", baseline=False)
    assert answer.flops_useful == answer.flops_dense == 2 * 2 * (16 + 4) * 1000 * 64 * 64
    assert answer.flops_useful < build(w).total("flops")
    one = Workload(2, 16, 1, 64, 4, 5000, passes="decode")
    assert useful(one, LINEAR.name).flops == 2 * 2 * (16 + 4) * 64 * 64 == build(one).total("flops")


def test_compulsory_traffic_is_q_k_v_and_o_once() -> None:
    """Scratch is left out of what linear attention cannot do without: a few states a head."""
    w = Workload(8, 64, 4096, 128, mask=Mask.causal())
    schedule = build(w)
    assert [kernel.name for kernel in schedule.kernels] == ["linear_causal"]
    assert compulsory(schedule) == requested(schedule) == 4 * 8 * 64 * 4096 * 128 * 2
    assert roofline_time(schedule, w, H100) == pytest.approx(compulsory(schedule) / H100.hbm.bandwidth_bytes_per_s)


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_few_heads_are_cut_into_ranges_that_fill_the_gpu(mask: Mask) -> None:
    schedule = build(Workload(1, 1, 100_000, 64, mask=mask))
    widest = max(kernel.blocks for kernel in schedule.kernels)
    assert widest > 0.9 * A100.sm.count
    assert schedule.peak_memory_bytes < 4 * 100_000 * 64 * 2 + widest * 2 * 64 * 65 * 4


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"mask": Mask.sliding_window(100)}, "a window cannot be taken out again"),
        ({"mask": Mask(right=5)}, "allowed: none or causal"),
        ({"mask": Mask.causal(), "seq_kv": 600}, "seq_q is 512, seq_kv 600; make them equal"),
        ({"head_dim": 256, "head_dim_v": 256}, "head_dim 64 and 128|up to head_dim 128"),
        ({"head_dim_v": 128}, "V as wide as K"),
        ({"dropout": True}, "no dropout"),
        ({"passes": "bwd"}, "no bwd kernels"),
        ({"dtype": "fp8"}, "no fp8 kernels"),
        ({"passes": "decode", "seq_q": 3}, "one after the other"),
        ({"mask": Mask.longformer()}, "diagonal bands only"),
    ],
    ids=str,
)
def test_what_the_kernels_do_not_do_is_refused(changes: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        predict(replace(Workload(1, 8, 512, 64), **changes), H100, "linear")  # type: ignore[arg-type]


def test_a_single_query_is_causal_over_all_keys() -> None:
    w = Workload(1, 8, 1, 64, seq_kv=300)
    assert build(replace(w, mask=Mask.causal())).requested() == build(w).requested()


def test_linear_has_no_tile_to_choose() -> None:
    w = Workload(1, 8, 512, 64)
    with pytest.raises(InputError, match="leave it out"):
        compare(w, H100, ["linear"], tile="128x64")
    with pytest.raises(InputError, match="no tile of queries x keys"):
        predict(w, H100, "linear", tile="128x64")
    assert predict(w, H100, "linear", tiles="retuned", baseline=False).tiles == "shipped"
    with pytest.raises(InputError, match="it runs linear"):
        predict(w, H100, "flash", implementation="attnsim.linear")
