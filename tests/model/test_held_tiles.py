"""Shipped tiles: on a changed GPU every implementation keeps the tile that it has on the unchanged one."""

from dataclasses import replace

import pytest

from attnsim import Mask, Workload, load_gpu, predict
from attnsim.api.asking import Conditions
from attnsim.api.explaining import explain
from attnsim.api.playing import as_real, chosen_anew, scheduled, shipped
from attnsim.errors import InputError
from attnsim.models.hardware.files import builtin_gpu_ids
from attnsim.models.hardware.gpu import Gpu, in_proportion
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.implementations.frameworks.projection import Product, cut
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.mechanisms import MECHANISMS
from attnsim.models.mechanisms.choosing import check_runs
from attnsim.models.schedule.schedule import Schedule

GPUS = [load_gpu(name) for name in ("h100-sxm5-80gb", "a100-sxm4-80gb")]
H100 = GPUS[0]
RATES = (
    "clock.free", "tensor.bf16", "tensor.fp16", "tensor.fp8", "tensor.mma_sync_fraction", "sm.exp_rate", "sm.fp32_rate",
    "sm.shared_memory_bandwidth", "l2.bandwidth", "l2.latency", "hbm.bandwidth", "hbm.latency", "launch.stream",
)  # fmt: skip
"""Figures that no call can ask its device for."""
LIMITS = ("sm.shared_memory", "sm.registers", "sm.max_threads")
WEIGHED = ("attnsim.sparse",)
"""Whose tile is weighed with the number of SMs too; others split their keys by it as they run."""
LONG = Workload(1, 32, 65536, 128, 8, mask=Mask.parse("causal, window 4096, global 64, random 48x64"))


def examples(record: Implementation, gpu: Gpu) -> list[tuple[Workload, Schedule]]:
    """The questions of the mechanisms that it runs, on the unchanged GPU."""
    found = []
    for mechanism in MECHANISMS.values():
        if mechanism.run_by(record):
            w = mechanism.question(mechanism.example)
            try:
                check_runs(record, w, gpu)
                found.append((w, shipped(record, w, gpu)))
            except InputError:
                continue
    return found


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_no_rate_and_no_limit_moves_a_shipped_tile(name: str) -> None:
    record = IMPLEMENTATIONS[name]
    figures = RATES + LIMITS + (("sm.count",) if name in WEIGHED else ())
    for gpu in GPUS:
        machines = [gpu.replace(key, "2x") for key in figures if key != "tensor.mma_sync_fraction" and gpu.get(key)]
        for w, before in examples(record, gpu):
            for machine in machines:
                after = shipped(record, w, machine)
                assert after.tile == before.tile and after.splits == before.splits, (gpu.id, machine.changes[0].key)


@pytest.mark.parametrize("name", builtin_gpu_ids())
def test_a_gpu_knows_itself_unchanged(name: str) -> None:
    gpu = load_gpu(name)
    changed = gpu.replace("hbm.bandwidth", "2x").replace("clock.tensor", "1.1x").replace("hbm.bandwidth", "3x")
    changed = changed.replace("sm.shared_memory", "2x").replace("sm.max_threads", "2x")
    assert changed.unchanged == gpu == gpu.unchanged and changed.tiled_for == gpu
    assert changed.at_clock(1e9).unchanged == gpu.at_clock(1e9)


def test_instructions_and_formats_are_those_of_the_changed_gpu() -> None:
    without = H100.replace("features.wgmma", "false").replace("hbm.bandwidth", "2x")
    assert without.tiled_for == replace(H100, features=replace(H100.features, wgmma=False))
    a100 = load_gpu("a100-sxm4-80gb")
    fp8 = a100.replace("tensor.fp8", 4096).replace("tensor.bf16", "2x").tiled_for
    assert fp8.tensor == replace(a100.tensor, fp8_flops_per_clk=4096)


def test_a_call_sees_the_sms_that_there_are() -> None:
    decode = Workload(2, 32, 1, 128, 8, 8192, passes="decode")
    record = IMPLEMENTATIONS["flash-attn.2"]
    counts = [shipped(record, decode, gpu).splits.count for gpu in (H100, H100.replace("sm.count", "4x"))]
    assert counts[0] < counts[1]


def test_a_library_s_gemm_keeps_its_cut() -> None:
    for product in (
        Product("O projection", (64, 8192, 8192), ("X", "W", "Y")),
        Product("up", (8192, 28672, 4096), ("X", "W", "Y")),
    ):
        held = {cut(product, H100.replace(key, "2x"), "bf16") for key in ("sm.count", "tensor.bf16", "l2.bandwidth")}
        assert held == {cut(product, H100, "bf16")}
    shapes = [Product("any", (64 << n, 8192, 4096), ("X", "W", "Y")) for n in range(8)]
    faster = H100.replace("l2.bandwidth", "0.2x").replace("sm.count", "2x")
    assert any(cut(one, as_real(faster), "bf16") != cut(one, H100, "bf16") for one in shapes)


SLOW_L2 = H100.with_values({"l2.bandwidth": 2.8e12})


def test_twice_the_tensor_rate_is_worth_nothing_where_the_l2_bounds() -> None:
    """The block-sparse kernel weighs its tile by rates: 128 rows read half the bytes of K and V."""
    found = explain(LONG, SLOW_L2, "sparse", implementation="attnsim.sparse")
    levers = {lever.figure: lever for lever in found.levers}
    assert found.bound.unit == "l2" and levers["l2.bandwidth"].speedup > 1.1
    others = [one for one in found.levers if "l2.bandwidth" not in (one.figure, *in_proportion(one.figure))]
    assert len(others) > 5 and max(lever.speedup for lever in others) < 1.01
    faster, wider = SLOW_L2.replace("tensor.bf16", "2x"), SLOW_L2.replace("l2.bandwidth", "2x")
    held, shipped_wide, retuned = (
        predict(LONG, changed, "sparse", implementation="attnsim.sparse", tiles=tiles, baseline=False)
        for changed, tiles in ((faster, "shipped"), (wider, "shipped"), (wider, "retuned"))
    )
    assert held.tile == shipped_wide.tile == found.prediction.tile != retuned.tile == levers["l2.bandwidth"].anew
    assert held.time_s == pytest.approx(found.prediction.time_s, rel=0.01)
    assert levers["l2.bandwidth"].speedup_anew == pytest.approx((found.prediction.time_s or 0) / (retuned.time_s or 1))
    assert levers["tensor.bf16"].anew == "" and levers["tensor.bf16"].speedup_anew is None


def test_chosen_anew_is_what_the_code_takes_on_such_a_gpu() -> None:
    changed = H100.replace("tensor.bf16", "2x")
    real = replace(H100, tensor=changed.tensor)
    record = IMPLEMENTATIONS["attnsim.sparse"]
    assert chosen_anew(record, LONG, changed).tile == shipped(record, LONG, real).tile
    retuned = scheduled(record, LONG, changed, Conditions(tiles="retuned"))
    assert retuned.tile == chosen_anew(record, LONG, changed).tile
