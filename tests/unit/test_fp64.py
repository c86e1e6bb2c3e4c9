"""FP64 lanes: log-sum-exps in double precision occupy them, are told of where a kernel names them, and bind on B300."""

import pytest

from attnsim import Workload, load_gpu, predict
from attnsim.api.answer import Outcome

DECODE = Workload(batch=4, heads_q=32, seq_q=1, seq_kv=4096, head_dim=64, dtype="bf16", passes="decode")
ALIKE = {"b300-sxm": 2, "l40s": 2, "rtx-5090": 2, "a100-sxm4-80gb": 32, "h100-sxm5-80gb": 64, "b200-sxm-180gb": 64}


def split_k(gpu_id: str, rate: str = "1x") -> Outcome:
    gpu = load_gpu(gpu_id).replace("sm.fp64_rate", rate)
    return predict(DECODE, gpu, implementation="xformers.triton-splitk", baseline=False)


@pytest.mark.parametrize("gpu_id", ALIKE)
def test_busy_time_is_the_instructions_over_the_lanes(gpu_id: str) -> None:
    """128 heads, each of 32 ranges of 128 keys: 16 rows, 8 threads a row, 38 instructions; then 2 x 64 a merged row."""
    gpu = load_gpu(gpu_id)
    instructions = 128 * 32 * 16 * 8 * 38 + 128 * 2 * 64
    assert gpu.get("sm.fp64_rate") == ALIKE[gpu_id]
    busy = instructions / ALIKE[gpu_id] / gpu.sm.count / gpu.clock.full_hz
    assert split_k(gpu_id).units_s["fp64"] == pytest.approx(busy, rel=1e-9)


def test_it_binds_on_b300_and_not_on_b200() -> None:
    ultra, plain = split_k("b300-sxm"), split_k("b200-sxm-180gb")
    assert ultra.busiest == "fp64" and plain.busiest != "fp64"
    assert ultra.time_s and plain.time_s and ultra.time_s > 1.2 * plain.time_s
    faster = split_k("b300-sxm", "32x").time_s
    assert faster and faster == pytest.approx(plain.time_s, rel=0.1)


@pytest.mark.parametrize("gpu_id", ALIKE)
def test_a_call_without_such_work_neither_tells_of_it_nor_moves(gpu_id: str) -> None:
    gpu = load_gpu(gpu_id)
    here, slow = (predict(DECODE, one, baseline=False) for one in (gpu, gpu.replace("sm.fp64_rate", "0.01x")))
    assert "fp64" not in here.units_s and here.time_s == slow.time_s
