"""What the fast mode plays whole, and what it takes as known."""

from dataclasses import replace

import pytest

from attnsim.models.calibration import Numbers
from attnsim.models.gpu_files import load_gpu
from attnsim.models.implementations import default_implementation, find_implementation
from attnsim.models.mask import Mask
from attnsim.models.workload import Workload
from attnsim.simulator import grid
from attnsim.simulator.replay import replay

A100 = load_gpu("a100-sxm4-80gb")


def test_a_small_kernel_of_a_call_is_played_whole_up_to_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Workload(batch=1, heads_q=8, seq_q=384, head_dim=64, mask=Mask.causal())
    schedule = find_implementation("pytorch").build(w, A100, None)
    whole = replay(schedule, A100, Numbers())
    monkeypatch.setattr(grid, "WHOLE_PART", 1e9)  # so that no kernel is worth being played whole
    extended = replay(schedule, A100, Numbers())
    assert extended.time_s != whole.time_s
    assert extended.time_s == pytest.approx(whole.time_s, rel=0.1)
    exact = replay(schedule, A100, Numbers(), mode="exact")
    assert whole.time_s == pytest.approx(exact.time_s, rel=0.03)


def test_flash_1_s_backward_does_not_grow_with_the_square_of_the_length() -> None:
    w = Workload(batch=1, heads_q=16, seq_q=1 << 20, head_dim=128, mask=Mask.causal(), passes="bwd")
    kernel = find_implementation("flash_attn_v1").build(w, A100, None).kernels[-1]
    assert kernel.repeats.nbytes < 1 << 20
    turns = w.seq_kv // 128
    assert kernel.repeats.shape[0] == turns and kernel.blocks == turns * w.heads_q


def test_whether_a_tile_fits_is_known_of_each_size_of_shared_memory() -> None:
    h100 = load_gpu("h100-sxm5-80gb")
    w = Workload(batch=1, heads_q=8, seq_q=1024, head_dim=128)
    faster = h100.replace("hbm.bandwidth", "6 TB/s")
    smaller = h100.replace("sm.shared_memory", "64 KiB")
    names = [default_implementation("flash", gpu, w).name for gpu in (h100, faster, smaller, h100)]
    assert names[0] == names[1] == names[3] == "flash_attn_v3"
    assert names[2] != names[0]
    assert default_implementation("flash", smaller, replace(w, seq_q=2048, seq_kv=2048)).name == names[2]
