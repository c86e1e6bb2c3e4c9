"""Tensor memory: a pipe under the softmax of Blackwell's kernels, shown where it is, binding where it is slow."""

import pytest

from attnsim import Workload, load_gpu, predict
from attnsim.api.explaining import explain
from attnsim.api.roofline import Roofline

B200 = load_gpu("b200-sxm-180gb")
PREFILL = Workload(batch=1, heads_q=32, seq_q=4096, head_dim=128, dtype="bf16")


def test_it_is_read_and_written_once_a_score_and_does_not_bind() -> None:
    found = explain(PREFILL, B200)
    busy = found.prediction.units_s["tensor_memory"]
    assert busy == pytest.approx(32 * 4096**2 * (4 + 2) / 512 / B200.sm.count / B200.clock.full_hz, rel=0.25)
    assert 0 < busy < found.prediction.units_s["exp"]
    assert "tensor_memory" in {lever.unit for lever in found.levers}
    twice = predict(PREFILL, B200.replace("tensor.memory_bandwidth", "2x"), baseline=False)
    assert twice.time_s == found.prediction.time_s


def test_it_binds_where_it_is_slow() -> None:
    slow = predict(PREFILL, B200.replace("tensor.memory_bandwidth", "16 B/clk"), baseline=False)
    assert slow.busiest == "tensor_memory"
    assert slow.time_s and slow.time_s >= slow.units_s["tensor_memory"] > predict(PREFILL, B200).units_s["tensor"]


def test_only_a_gpu_that_has_it_shows_it() -> None:
    for gpu_id in ("h100-sxm5-80gb", "rtx-5090"):
        gpu = load_gpu(gpu_id)
        assert gpu.get("tensor.memory_bandwidth") == 0
        assert "tensor_memory" not in predict(PREFILL, gpu, baseline=False).units_s
        assert "tmem" not in {one.level for one in Roofline(gpu, "bf16", 512).diagonals}
    assert Roofline(B200, "bf16", 512).bandwidth("tmem") == 512 * B200.sm.count * B200.clock.tensor_hz
