"""What the fast mode plays whole, and what it takes as known."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms import MECHANISMS
from attnsim.models.mechanisms.choosing import default_implementation
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.schedule import Schedule
from attnsim.simulator import engine, grid, one_sm, rounds
from attnsim.simulator.replay import Replay, replay

A100 = load_gpu("a100-sxm4-80gb")


def test_a_small_kernel_of_a_call_is_played_whole_up_to_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Workload(batch=1, heads_q=8, seq_q=384, head_dim=64, mask=Mask.causal())
    schedule = find_implementation("torch.baddbmm").build(w, A100, None)
    whole = replay(schedule, A100, Numbers())
    monkeypatch.setattr(grid, "WHOLE_PART", 1e9)  # so that no kernel is worth being played whole
    extended = replay(schedule, A100, Numbers())
    assert extended.time_s != whole.time_s
    assert extended.time_s == pytest.approx(whole.time_s, rel=0.1)
    exact = replay(schedule, A100, Numbers(), mode="exact")
    assert whole.time_s == pytest.approx(exact.time_s, rel=0.03)


def test_flash_1_s_backward_does_not_grow_with_the_square_of_the_length() -> None:
    w = Workload(batch=1, heads_q=16, seq_q=1 << 20, head_dim=128, mask=Mask.causal(), passes="bwd")
    kernel = find_implementation("flash-attn.1").build(w, A100, None).kernels[-1]
    assert kernel.repeats.nbytes < 1 << 20
    turns = w.seq_kv // 128
    assert kernel.repeats.shape[0] == turns and kernel.blocks == turns * w.heads_q


def test_whether_a_tile_fits_is_known_of_each_size_of_shared_memory() -> None:
    h100, flash = load_gpu("h100-sxm5-80gb"), MECHANISMS["flash"]
    w = Workload(batch=1, heads_q=8, seq_q=1024, head_dim=128)
    faster = h100.replace("hbm.bandwidth", "6 TB/s")
    smaller = h100.replace("sm.shared_memory", "64 KiB")
    names = [default_implementation(flash, w, gpu).name for gpu in (h100, faster, smaller, h100)]
    assert names[0] == names[1] == names[3] == "flash-attn.3"
    assert names[2] != names[0]
    assert default_implementation(flash, replace(w, seq_q=2048, seq_kv=2048), smaller).name == names[2]


def played(schedule: Schedule, monkeypatch: pytest.MonkeyPatch, **changed: object) -> tuple[Replay, int]:
    """What the default mode says, and how many plays it asks for, with some of its constants changed."""
    plays = 0

    def counted(*arguments: object) -> object:
        nonlocal plays
        plays += 1
        return play(*arguments)  # type: ignore[arg-type]

    play = engine.play
    with monkeypatch.context() as patch:
        for module in (grid, one_sm, rounds):
            patch.setattr(module, "play", counted)
        for name, value in changed.items():
            patch.setattr(grid, name, value)
        return replay(schedule, A100, Numbers()), plays


def of_one_kernel(name: str, kernel: int, w: Workload) -> Schedule:
    schedule = find_implementation(name).build(w, A100, None)
    return replace(schedule, kernels=(schedule.kernels[kernel],))


def test_blocks_that_hardly_differ_are_played_once(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Workload(batch=16, heads_q=16, seq_q=8191, head_dim=128)
    schedule = of_one_kernel("flash-attn.2", 0, w)
    assert len(schedule.kernels[0].class_counts) == 2  # the last rows of a head are one fewer
    one, plays = played(schedule, monkeypatch)
    every, more_plays = played(schedule, monkeypatch, SHORTER=-1.0)
    assert plays < more_plays
    assert one.time_s == pytest.approx(every.time_s, rel=0.03)
    assert one.kernels[0].requested == every.kernels[0].requested == schedule.kernels[0].requested()


def test_a_short_share_is_played_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = of_one_kernel("flash-attn.2", 0, Workload(batch=4, heads_q=16, seq_q=1024, head_dim=128))
    exact = replay(schedule, A100, Numbers(), mode="exact")
    share, plays = played(schedule, monkeypatch)
    assert plays == 1
    assert share.time_s == pytest.approx(exact.time_s, rel=0.03)
    extended, more_plays = played(schedule, monkeypatch, PLAYED_SHARE=0)
    assert more_plays > 1 and extended.time_s != share.time_s


@pytest.mark.parametrize("seq", [1000, 1500, 2048])
def test_copies_and_masks_take_what_they_take_in_exact_mode(seq: int) -> None:
    w = Workload(batch=2, heads_q=16, seq_q=seq, head_dim=64, mask=Mask.causal())
    schedule = find_implementation("torch.baddbmm").build(w, A100, None)
    passes = tuple(kernel for kernel in schedule.kernels if not kernel.total("flops"))
    assert {kernel.name for kernel in passes} >= {"copy K", "mask", "softmax"}
    for kernel in passes:
        alone = replace(schedule, kernels=(kernel,))
        fast, exact = (replay(alone, A100, Numbers(), mode=mode) for mode in ("fast", "exact"))
        assert fast.time_s == pytest.approx(exact.time_s, rel=0.03), kernel.name


@pytest.mark.parametrize("seq", [1000, 2048])
def test_copies_and_masks_wait_as_long_as_in_exact_mode(seq: int) -> None:
    w = Workload(batch=2, heads_q=16, seq_q=seq, head_dim=64, mask=Mask.causal())
    schedule = find_implementation("torch.baddbmm").build(w, A100, None)
    for kernel in schedule.kernels:
        if not kernel.total("flops"):
            alone = replace(schedule, kernels=(kernel,))
            fast, exact = (replay(alone, A100, Numbers(), mode=mode) for mode in ("fast", "exact"))
            assert fast.exposed_s == pytest.approx(exact.exposed_s, abs=0.1 * exact.time_s), kernel.name


def test_a_block_that_outlasts_those_handed_out_is_not_waited_for_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Workload(batch=2, heads_q=12, seq_q=16384, head_dim=64, mask=Mask.parse("window 257, global 16"))
    schedule = find_implementation("attnsim.sparse").build(w, A100, None)
    kernel = schedule.kernels[0]
    assert kernel.turns.sum(axis=1).max() > 10 * np.median(kernel.turns.sum(axis=1))  # the rows that see every key
    all_of_them, _ = played(schedule, monkeypatch, DISPATCHED_WAVES=1000, DISPATCHED_BLOCKS=1_000_000)
    few, _ = played(schedule, monkeypatch, DISPATCHED_WAVES=3)
    assert few.time_s == pytest.approx(all_of_them.time_s, rel=0.03)


@settings(max_examples=60, deadline=None)
@given(read=st.integers(1, 200_000), mask=st.integers(1, 5_000), blocks=st.integers(1, 300))
def test_bytes_that_do_not_divide_are_spread_over_blocks(read: int, mask: int, blocks: int) -> None:
    accesses = [Access("S", read), Access("mask", mask), Access("P", read, True)]
    kernel = streaming("mask", accesses, elements=read, blocks=blocks)
    assert kernel.blocks == blocks
    assert kernel.requested() == {("load", "S"): read, ("load", "mask"): mask, ("store", "P"): read}
    for kind, tensor in kernel.requested():
        sizes = [
            sum(op.bytes for op in segment.ops if (op.kind, op.tensor) == (kind, tensor)) for segment in kernel.segments
        ]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("name", ["triton.tutorial", "flash-attn.3", "attnsim.sparse", "flash-attn.1"])
def test_what_fills_a_pipeline_is_never_shortened(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few turns are played, every wait has its load, and the answer hardly moves."""
    gpu = load_gpu("h100-sxm5-80gb")
    mask = Mask.sliding_window(512) if name == "attnsim.sparse" else Mask.causal()
    schedule = find_implementation(name).build(Workload(4, 16, 8192, 64, mask=mask), gpu, None)
    usual = replay(schedule, gpu, Numbers())
    monkeypatch.setattr(one_sm, "PLAYED_TURNS", 1)
    assert replay(schedule, gpu, Numbers()).time_s == pytest.approx(usual.time_s, rel=0.1)
