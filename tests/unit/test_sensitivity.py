"""Elasticities against theory, Sobol indices against a product of powers, and the command."""

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from attnsim.api.asking import Conditions, Question, ask
from attnsim.api.playing import Played, play
from attnsim.cli import main
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.question.workload import Workload
from attnsim.studies import sensitivity
from attnsim.studies.sensitivity import Elasticity, elasticities, sobol, times
from attnsim.wording import interval_text, time_text
from tests.unit.answering import refusal

DECODE = Workload(4, 32, 1, 128, seq_kv=1 << 17, passes="decode")
"""8.6 GB of keys and values for 128 heads, one block each on 132 SMs: HBM and nothing else."""
PREFILL = Workload(16, 32, 16384, 128)
"""496 waves of blocks on an A100, 17.6 TFLOP against 8 GB."""

NEAR = 0.02
"""Of a theoretical 0 or 1: latencies of the first and the last block, which no rate moves, and rounding to whole
picoseconds leave less than 1 %; scheduling anomalies reach 2 % (docs/design/what-if.md)."""


def kernel_of(workload: Workload, gpu: Gpu) -> Question:
    return ask(workload, gpu, "flash", conditions=Conditions(launch="kernel"))


@cache
def kernel_only(workload: Workload, gpu: str | Gpu) -> tuple[Elasticity, ...]:
    return tuple(elasticities(kernel_of(workload, load_gpu(gpu) if isinstance(gpu, str) else gpu)))


def of(workload: Workload, gpu: str | Gpu) -> dict[str, float]:
    return {item.figure: item.elasticity for item in kernel_only(workload, gpu)}


def test_a_bandwidth_bound_call_answers_to_bandwidth_alone() -> None:
    found = of(DECODE, "h100-sxm5-80gb")
    assert found.pop("hbm.bandwidth") == pytest.approx(-1, abs=NEAR)
    del found["sm.count"]  # with one SM fewer than blocks there is a second wave: the kink below
    assert max(map(abs, found.values())) < NEAR, found


def test_a_compute_bound_call_answers_to_clock_and_sms_and_not_to_memory() -> None:
    found = of(PREFILL, load_gpu("a100-sxm4-80gb").replace("power.limit", "600 W"))
    assert found["clock.free"] == pytest.approx(-1, abs=NEAR)
    assert found["sm.count"] == pytest.approx(-1, abs=NEAR)
    assert max(abs(found[key]) for key in ("hbm.bandwidth", "l2.bandwidth", "hbm.latency", "l2.capacity")) < NEAR
    assert -1 < found["tensor.bf16"] < -0.5
    assert found["power.limit"] == 0


def test_where_power_sets_the_clock_a_call_answers_to_its_root() -> None:
    """The clock is the root of what the limit leaves beside static power, 22 % of it."""
    found = of(PREFILL, "h100-sxm5-80gb")
    assert found["power.limit"] == pytest.approx(-0.5 / 0.78, abs=NEAR)
    assert found["sm.count"] == pytest.approx(-0.5, abs=NEAR)
    assert found["clock.free"] == pytest.approx(0, abs=NEAR)


def test_a_small_call_answers_to_launches() -> None:
    found = elasticities(ask(Workload(1, 4, 128, 64), load_gpu("a100-sxm4-80gb"), "flash"))
    launch = next(item for item in found if item.figure == "launch.stream")
    assert 0.1 < launch.elasticity < 0.9
    assert not any(item.figure == "launch.graph" for item in found)


def test_a_kink_is_where_the_sides_differ() -> None:
    found = kernel_only(DECODE, "h100-sxm5-80gb")
    sms = next(item for item in found if item.figure == "sm.count")
    assert sms.kink and sms.down is not None and sms.down < -4.9 and sms.up == pytest.approx(0, abs=NEAR)
    assert [item.figure for item in found if item.kink] == ["sm.count"]


def test_a_figure_at_its_end_is_varied_to_one_side() -> None:
    whole = load_gpu("a100-sxm4-80gb").replace("tensor.mma_sync_fraction", 1.0)
    found = {item.figure: item for item in elasticities(kernel_of(Workload(4, 16, 4096, 128), whole))}
    share = found["tensor.mma_sync_fraction"]
    assert share.up is None and share.down == share.elasticity
    assert share.elasticity == pytest.approx(found["tensor.bf16"].down or 0.0, abs=1e-9)


def test_figures_of_which_more_helps_most_come_first() -> None:
    found = kernel_only(DECODE, "h100-sxm5-80gb")
    gains = [abs(item.upward) for item in found]
    assert gains == sorted(gains, reverse=True)
    waves = Workload(1, 16, 4096, 128)  # 512 tiles: less than 132 SMs cost a wave, more bring nothing
    kinked = [item for item in elasticities(kernel_of(waves, load_gpu("h100-sxm5-80gb"))) if item.kink]
    first = elasticities(kernel_of(waves, load_gpu("h100-sxm5-80gb")))[0]
    assert [item.figure for item in kinked] == ["sm.count"] and abs(kinked[0].elasticity) > abs(first.elasticity)
    assert first.figure == "clock.free"


def test_closed_forms_of_scaled_gpus_answer_alike() -> None:
    """HBM decides this call in closed form too: half the bandwidth, twice the time."""
    factors = np.array([[0.5, 1.0, 2.0], [1.0, 1.0, 1.0]])
    found = times(kernel_of(DECODE, load_gpu("h100-sxm5-80gb")), ["hbm.bandwidth", "sm.exp_rate"], factors)
    assert found[0] / found[1] == pytest.approx(2, rel=0.01)
    assert found[1] / found[2] == pytest.approx(2, rel=0.2)


def test_sobol_indices_of_a_product_are_its_squared_powers(monkeypatch: pytest.MonkeyPatch) -> None:
    """log (a^-1 b^-2) with equal ranges has variance shares of 1/5 and 4/5 and no interactions."""

    def product(question: Question, figures: list[str], factors: Any) -> Any:
        powers = {"hbm.bandwidth": -1.0, "sm.exp_rate": -2.0}
        return np.exp(sum(powers.get(name, 0.0) * np.log(row) for name, row in zip(figures, factors, strict=True)))

    monkeypatch.setattr(sensitivity, "times", product)
    found = {item.figure: item for item in sobol(ask(DECODE, load_gpu("h100-sxm5-80gb"), "flash"), 256)}
    assert found["sm.exp_rate"].first == pytest.approx(0.8, abs=0.03)
    assert found["hbm.bandwidth"].first == pytest.approx(0.2, abs=0.03)
    for item in found.values():
        assert item.total == pytest.approx(item.first, abs=0.05)


def test_bandwidth_has_most_of_the_variance_of_a_decode_call() -> None:
    found = sobol(kernel_of(DECODE, load_gpu("h100-sxm5-80gb")), 256, spread=1.2)
    assert found[0].figure == "hbm.bandwidth" and found[0].first > 0.8
    assert found == sobol(kernel_of(DECODE, load_gpu("h100-sxm5-80gb")), 256, spread=1.2)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--step", "3"], "step is 3; allowed: 0.001 to 1"),
        (["--sobol", "100"], "sobol is 100; allowed: powers of two"),
        (["--sobol", "64", "--spread", "1"], "spread is 1; allowed: above 1"),
        (["--algorithm", "naive", "--batch", "4096"], "does not fit: needs"),
        (["--tile", "7x7"], "tile is 7x7"),
    ],
)
def test_bad_input_is_one_line(extra: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--gpu", "a100-sxm4-80gb", "--heads", "8", "--seq", "4096", "--head-dim", "64"]
    assert said in refusal(capsys, "sensitivity", *shape, *extra)


def test_the_command_prints_what_it_means(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--gpu", "a100-sxm4-80gb", "--heads", "16", "--seq", "4096", "--head-dim", "64", "--causal"]
    assert main(["sensitivity", *shape, "--sobol", "64", "-v"]) == 0
    text = capsys.readouterr().out
    assert "10 % more" in text and "no effect: " in text and "Sobol indices of log time, 64 samples" in text
    assert main(["sensitivity", *shape, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    first, *others = rows
    assert first["kind"] == "prediction" and {row["kind"] for row in others} == {"elasticity"}
    assert {row["figure"]: row["elasticity"] for row in others}["clock.free"] < -0.5
    time, ends = time_text(first["time_s"]), interval_text(first["time_low_s"], first["time_high_s"], first["time_s"])
    assert f"flash: {time} (90 % range {ends}), {first['trust']['level']}" in text


def test_a_kink_stands_where_what_more_brings_puts_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [Elasticity("sm.count", 108.0, -0.5, -0.1, -0.9), Elasticity("clock.free", 1.4e9, -0.5, -0.5, -0.5)]
    monkeypatch.setattr("attnsim.cli.sensitivity.elasticities", lambda *_: found)
    assert (
        main(["sensitivity", "--gpu", "a100-sxm4-80gb", "--heads", "8", "--seq", "1024", "--head-dim", "64", "-v"]) == 0
    )
    text = capsys.readouterr().out
    assert text.index("sm.count") < text.index("clock.free") and "kink" in text


def test_what_hangs_on_timing_says_how_far(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ask(Workload(1, 8, 1024, 64), load_gpu("a100-sxm4-80gb"), "flash")
    usual = {one.figure: one for one in elasticities(asked)}
    assert not any(one.timing for one in usual.values())

    def jittered(question: Question) -> Played[Question]:
        found = play(question)
        kernels = tuple(replace(one, spread=0.02) for one in found.replay.kernels)
        return replace(found, replay=replace(found.replay, kernels=kernels))

    monkeypatch.setattr(sensitivity, "play", jittered)
    for one in elasticities(asked):
        assert one.elasticity == usual[one.figure].elasticity
        assert 0.2 < one.timing < 2 * 0.02 / 0.0488 + 0.01
        assert not one.kink or abs((one.up or 0) - (one.down or 0)) > 4 * one.timing
    assert (
        main(["sensitivity", "--gpu", "a100-sxm4-80gb", "--heads", "8", "--seq", "1024", "--head-dim", "64", "-v"]) == 0
    )
    text = " ".join(capsys.readouterr().out.split())
    assert " +-0." in text and "+-: how far it moves as resident blocks fall into step or not." in text
