"""Energy: against board power, by unit, with intervals that contain their middle."""

from __future__ import annotations

from dataclasses import replace

import pytest

import attnsim
from attnsim.api.energy import energy, work
from attnsim.errors import InputError
from attnsim.models.hardware.energy import constants
from attnsim.models.hardware.files import builtin_gpu_ids, load_gpu
from attnsim.models.question.workload import Workload

FULL_RATE = Workload(batch=8, heads_q=16, seq_q=16384, head_dim=128, dtype="fp16")
"""Compute-bound at the kernels' full rate."""
BAND = 0.20
"""Board power of compute-bound flash attention over the design power, up and down, of the chips whose tensor constants
are derived: their kernels run at or near the power limit."""


@pytest.mark.parametrize(("gpu", "ratio"), [("a100-sxm4-80gb", 0.95), ("h100-sxm5-80gb", 1.0)])
def test_compute_bound_flash_takes_about_the_design_power(gpu: str, ratio: float) -> None:
    used = attnsim.energy(attnsim.predict(FULL_RATE, gpu, baseline=False), gpu)
    found = used.watts.typical / used.tdp_w
    assert 1 - BAND <= found <= 1 + BAND
    assert found == pytest.approx(ratio, abs=0.03)  # what the documents state
    assert used.watts.low < used.tdp_w < used.watts.high


@pytest.mark.parametrize("gpu", builtin_gpu_ids())
def test_every_gpu_has_constants_and_an_interval(gpu: str) -> None:
    machine = load_gpu(gpu)
    question = Workload(batch=1, heads_q=8, seq_q=1024, head_dim=64, dtype="fp16")
    prediction = attnsim.predict(question, machine, baseline=False)
    used = energy(prediction, machine)
    assert 0 < used.joules.low < used.joules.typical < used.joules.high
    assert sum(one.typical for one in used.units_j.values()) == pytest.approx(used.joules.typical)
    assert used.watts.typical * (prediction.time_s or 0) == pytest.approx(used.joules.typical)
    for constant in constants(machine.compute_capability_number).values():
        assert 0 < constant.low <= constant.typical <= constant.high
        assert constant.source


def test_energy_counts_what_the_prediction_counts() -> None:
    gpu = load_gpu("a100-sxm4-80gb")
    prediction = attnsim.predict(FULL_RATE, gpu, baseline=False)
    done = work(prediction, prediction.workload.dtype, gpu)
    assert done["tensor"] + done["padding"] == prediction.flops_executed
    assert done["hbm"] == prediction.hbm_bytes
    assert done["exp"] == prediction.exponentials
    used = energy(prediction, gpu)
    assert used.units_j["hbm"].typical == pytest.approx(done["hbm"] * constants(80)["hbm"].typical * 1e-12)


def test_formats_cost_what_their_width_says() -> None:
    gpu = load_gpu("h100-sxm5-80gb")
    half, quarter = (attnsim.predict(replace(FULL_RATE, dtype=dtype), gpu, baseline=False) for dtype in ("bf16", "fp8"))
    assert work(quarter, quarter.workload.dtype, gpu)["tensor"] == pytest.approx(
        work(half, half.workload.dtype, gpu)["tensor"] / 2
    )
    single = attnsim.predict(replace(FULL_RATE, dtype="fp32", seq_q=1024, seq_kv=1024), gpu, "naive", baseline=False)
    done = work(single, single.workload.dtype, gpu)
    assert done["tensor"] == done["padding"] == 0
    assert done["fp32"] >= (single.flops_executed or 0) / 2


def test_static_power_follows_the_machine_and_not_its_label() -> None:
    base = load_gpu("h100-sxm5-80gb")

    def static_w(key: str, value: str) -> float:
        gpu = base.replace(key, value)
        prediction = attnsim.predict(FULL_RATE, gpu, baseline=False)
        assert prediction.time_s is not None
        return energy(prediction, gpu).units_j["static"].typical / prediction.time_s

    assert "power.limit follows: 300 W" in str(base.replace("power.tdp", "300 W").changes[0])
    assert static_w("sm.count", "2x") == pytest.approx(0.22 * 700 * 1.5)
    assert static_w("hbm.bandwidth", "2x") == pytest.approx(0.22 * 700 * 1.5)


def test_a_faster_clock_costs_energy_per_operation() -> None:
    base = load_gpu("a100-sxm4-80gb")
    fast = base.replace("clock.sustained", "1.551 GHz")
    slow_j, fast_j = (
        energy(attnsim.predict(FULL_RATE, gpu, baseline=False), gpu).units_j["tensor"] for gpu in (base, fast)
    )
    assert fast_j.typical == pytest.approx(1.1 * slow_j.typical)
    assert fast_j.low == pytest.approx(slow_j.low)
    assert fast_j.high == pytest.approx(1.21 * slow_j.high)


def test_another_gpu_or_a_call_that_does_not_fit_is_refused() -> None:
    gpu = load_gpu("h100-sxm5-80gb")
    prediction = attnsim.predict(FULL_RATE, gpu, baseline=False)
    with pytest.raises(InputError, match="the prediction is for h100-sxm5-80gb"):
        energy(prediction, "a100-sxm4-80gb")
    with pytest.raises(InputError, match=r"sm\.count = 100"):
        energy(prediction, gpu.replace("sm.count", "100"))
    large = attnsim.predict(replace(FULL_RATE, batch=4096), gpu, baseline=False)
    with pytest.raises(InputError, match="does not fit"):
        energy(large, gpu)
