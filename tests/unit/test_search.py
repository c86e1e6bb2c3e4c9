"""Searches: tiles against their exhaustive best, hardware within limits, fronts, and what is refused."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnsim.api import predict
from attnsim.api.energy import energy
from attnsim.api.layer import layer
from attnsim.api.playing import REPLAYED_CANDIDATES
from attnsim.cli import main
from attnsim.cli.cases import cases_of
from attnsim.cli.question_flags import QuestionFlags
from attnsim.errors import InputError
from attnsim.models.hardware.area import area_mm2
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.own import flash as own_flash
from attnsim.models.llm.files import load_model
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.studies.hardware_case import Case, Layer, speedup_of
from attnsim.studies.hardware_machines import Design, Mix
from attnsim.studies.hardware_search import HardwareSearch, search_hardware, split_best
from attnsim.studies.hardware_space import Limit, Prices, Range, Space
from attnsim.studies.search import measure_tiles, search_tiles
from tests.unit.answering import refusal
from tests.unit.fake_bench import make_bench

QUESTION = Workload(batch=1, heads_q=8, seq_q=1024, head_dim=256, dtype="fp16", mask=Mask.causal())
DECODE = Workload(batch=32, heads_q=8, heads_kv=8, seq_q=1, seq_kv=4096, head_dim=128, dtype="fp16", passes="decode")
A100, H100 = load_gpu("a100-sxm4-80gb"), load_gpu("h100-sxm5-80gb")
DECODE_FLAGS = [
    "--batch", "32", "--heads", "8", "--kv-heads", "8", "--seq", "4096", "--head-dim", "128", "--dtype", "fp16",
    "--pass", "decode",
]  # fmt: skip


def test_every_tile_that_fits_is_replayed_and_ranked() -> None:
    found = search_tiles(QUESTION, A100, stages=(1, 2))
    times = [one.time_s for one in found.tiles]
    assert times == sorted(times)
    assert len({one.tile for one in found.tiles}) == len(found.tiles)
    assert sum(one.listed and not one.shipped for one in found.tiles) <= REPLAYED_CANDIDATES
    assert found.shipped is not None
    assert found.shipped.time_s == predict(QUESTION, A100, baseline=False).time_s
    retuned = predict(QUESTION, A100, tiles="retuned", baseline=False).time_s
    assert retuned == pytest.approx(min(one.time_s for one in found.tiles if one.listed or one.shipped))
    assert 0 <= found.regret <= found.regret_with_stages
    other = next(one for one in found.tiles if not one.own_stages)
    assert "2 stages" in other.tile  # FlashAttention-2's own loop has one


def test_the_short_list_loses_little_to_the_exhaustive_best() -> None:
    question = Workload(batch=1, heads_q=16, seq_q=2048, head_dim=128, dtype="fp16")
    assert search_tiles(question, A100, stages=()).regret <= 0.005


def test_what_has_no_tile_is_refused() -> None:
    with pytest.raises(InputError, match="no forward tile"):
        search_tiles(QUESTION, A100, "naive")
    with pytest.raises(InputError, match="no forward tile"):
        search_tiles(QUESTION.with_passes("bwd"), A100)


def test_measured_tiles_set_the_choice_against_the_fastest() -> None:
    found = measure_tiles(QUESTION, make_bench())
    assert len(found.tiles) == len({(tile.rows, tile.keys) for tile in own_flash.TILES[256]})
    assert found.choice.predicted_s == min(one.predicted_s for one in found.tiles)
    assert found.regret == found.choice.measured_s / min(one.measured_s for one in found.tiles) - 1
    with pytest.raises(InputError, match="compiled for fwd"):
        measure_tiles(DECODE, make_bench())


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("sm.count=100:103", (100, 101, 102, 103)),
        ("sm.count=100:110:4", (100, 104, 108)),
        ("sm.shared_memory=100KiB:228KiB:64KiB", (102400, 167936, 233472)),
        ("hbm.bandwidth=6TB/s,3TB/s", (3e12, 6e12)),
        ("hbm.bandwidth=3TB/s:3TB/s", (3e12,)),
        ("l2.bandwidth=1x:2x:0.5x", (9.7e12, 14.55e12, 19.4e12)),
        ("sm.count=1x:1.1x:0.1x", (132, 145)),
        ("hbm.capacity=1x,80 GB,2x", (80e9, 160e9)),
    ],
)
def test_ranges_are_read(text: str, values: tuple[float, ...]) -> None:
    assert Range.parse(text, H100).values == values


def test_a_range_without_a_step_is_cut_finely() -> None:
    values = Range.parse("hbm.bandwidth=2TB/s:8TB/s", H100).values
    assert (len(values), values[0]) == (65, 2e12)
    assert values[-1] == pytest.approx(8e12)


@pytest.mark.parametrize(
    ("vary", "limits", "told"),
    [
        ([], [], "nothing varies"),
        (["sm.count"], [], "KEY=LOW:HIGH"),
        (["sm.cont=1:2"], [], r"nearest: sm\.count"),
        (["sm.count=9:1"], [], "LOW not above HIGH"),
        (["sm.count=1:2:0"], [], "STEP above 0"),
        (["sm.count=1:2:3:4"], [], "LOW:HIGH:STEP"),
        (["sm.count=1 TB/s:2"], [], "TB/s"),
        (["features.wgmma=0:1"], [], "feature does not vary"),
        (["hbm.capacity=1GB:1PB:1MB"], [], "allowed: a million"),
        (["sm.count=1:2", "sm.count=3:4"], [], "given twice"),
        (["sm.count=1:2"], ["power < 700 W"], "NAME<=VALUE"),
        (["sm.count=1:2"], ["powr<=700 W"], "nearest: power"),
        (["sm.count=1:2"], ["power<=700"], "no unit"),
        (["sm.count=1:2"], ["power<=700 J"], "not a value in W|unknown unit|700 J"),
        (["sm.count=1:2"], ["energy<=5 W"], "is in W, not a value in J such as '20 mJ'"),
        (["sm.count=1:2"], ["time<=5 W"], "not a value in s|is in W"),
        (["sm.count=1:2"], ["hbm.bandwidth<=1TB/s"], "does not vary"),
        (["sm.count=10:20"], ["sm.count<=5"], "leaves no value"),
        (["sm.count=1x:0.5x"], [], "LOW not above HIGH"),
        (["sm.count=10:20"], ["power<=-5 W"], "every machine's power is above 0; give a value above 0"),
        (["sm.count=10:20"], ["time<=0x"], "every machine's time is above 0"),
        (["sm.count=10:20"], ["area<=900"], "'900' has no unit; write a value in mm2"),
        (["sm.count=10:20"], ["area<=900 W"], "is in W, not a value in mm2"),
    ],
)
def test_wrong_spaces_are_refused_in_one_line(vary: list[str], limits: list[str], told: str) -> None:
    with pytest.raises(InputError, match=told) as refused:
        Space.read(H100, vary, limits)
    assert "\n" not in str(refused.value)


def test_a_limit_on_a_figure_narrows_its_range() -> None:
    space = Space.read(H100, ["hbm.bandwidth=2TB/s:8TB/s:2TB/s"], ["hbm.bandwidth<=6TB/s", "energy<=20 mJ"])
    assert space.ranges[0].values == (2e12, 4e12, 6e12)
    assert space.limits[1].value == pytest.approx(0.02)
    assert Limit.parse("sm.count>=100").excess(90) == pytest.approx(0.1)


@pytest.fixture(scope="module")
def decode_search() -> HardwareSearch:
    space = Space.read(H100, ["sm.count=66,132", "hbm.bandwidth=2TB/s:8TB/s:2TB/s"], ["power<=600 W"])
    return search_hardware(DECODE, space, objectives=("time", "power"), points=50)


def test_a_small_space_is_walked_through_whole(decode_search: HardwareSearch) -> None:
    found = decode_search
    assert found.exhaustive and len(found.machines) == 8
    for one in found.machines:
        assert one.answer is not None
        assert ("power <= 600 W" in one.broken) == (one.answer.watts.typical > 600)
    assert any(one.broken for one in found.machines) and found.feasible
    front = found.front
    times, powers = ([one.objectives[number] for one in front] for number in (0, 1))
    assert times == sorted(times) and powers == sorted(powers, reverse=True)
    for one in found.feasible:
        better = [all(a <= b for a, b in zip(other.objectives, one.objectives, strict=True)) for other in front]
        assert any(better)


def test_the_answer_is_that_of_predict_on_that_machine(decode_search: HardwareSearch) -> None:
    one = decode_search.machines[3]
    gpu = H100
    for key, value in one.figures.items():
        gpu = gpu.replace(key, value)
    assert one.answer is not None and one.answer.predictions == (predict(DECODE, gpu, baseline=False),)
    base = decode_search.unchanged.answer
    assert base is not None and base.predictions == (predict(DECODE, H100, baseline=False),)
    alone = speedup_of(base.predictions[0], one.answer.predictions[0])
    found = one.answer.speedup
    assert found is not None and alone is not None
    assert (found.value, found.low, found.high) == pytest.approx((alone.value, alone.low, alone.high), rel=1e-12)


def test_the_evolution_is_the_same_for_a_seed_and_keeps_to_its_points() -> None:
    space = Space.read(H100, ["sm.count=60:200", "hbm.bandwidth=2TB/s:8TB/s"], ["power<=600 W"])
    told: list[int] = []
    runs = [
        search_hardware(DECODE, space, points=points, seed=seed, done=told.append)
        for seed, points in ((3, 10), (3, 10), (4, 3))
    ]
    figures = [[one.figures for one in run.machines] for run in runs]
    assert figures[0] == figures[1] and figures[0][:3] != figures[2]
    assert not runs[0].exhaustive
    assert all(len(run.machines) <= 10 for run in runs) and sum(told) == sum(len(run.machines) for run in runs)


def test_the_evolution_finds_the_best_of_a_space_that_can_be_counted() -> None:
    # Decode is bound by the memory: the answer is the most bandwidth that the limit leaves.
    vary = ["hbm.bandwidth=2TB/s:6TB/s:0.1TB/s", "sm.count=120:140"]
    found = search_hardware(DECODE, Space.read(H100, vary, ["hbm.bandwidth<=4TB/s"]), points=20)
    best = found.feasible[0]
    assert best.figures["hbm.bandwidth"] >= 3.9e12
    slow = max(found.feasible, key=lambda one: one.objectives)
    assert slow.figures["hbm.bandwidth"] < 3e12


def test_machines_that_cannot_answer_are_kept_with_the_reason() -> None:
    space = Space.read(H100, ["sm.registers=2048,65536"], [])
    none, one = search_hardware(QUESTION, space).machines
    assert none.answer is None and none.broken and one.answer is not None
    with pytest.raises(InputError, match="no machine can answer"):
        search_hardware(QUESTION, Space.read(H100, ["sm.registers=2048"], []))
    for names, told in ((("time", "time"), "different ones"), (("speed",), "nearest"), (("time", "power", "energy"), "one or two")):  # noqa: E501  # fmt: skip
        with pytest.raises(InputError, match=told):
            search_hardware(QUESTION, space, objectives=names)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_no_machine_of_a_front_is_beaten_and_all_others_are(objectives: list[tuple[int, int]]) -> None:
    machines = tuple(Design({}, None, tuple(map(float, one)), (), ()) for one in objectives)
    nothing = Design({}, None, (), (), ())
    front = HardwareSearch(("time", "power"), machines, Space(H100, (), ()), True, nothing, Mix((), (), ())).front
    kept = {one.objectives for one in front}
    assert len(kept) == len(front)
    for one in {machine.objectives for machine in machines}:
        beaten = any(other != one and other[0] <= one[0] and other[1] <= one[1] for other in kept)
        assert beaten != (one in kept)


def test_the_hardware_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vary = ["--vary", "sm.count=66,132", "--vary", "hbm.bandwidth=2TB/s,4TB/s"]
    limits, two = ["--limit", "power<=600 W"], ["--minimise", "time,power"]
    table, picture = tmp_path / "all.csv", tmp_path / "front.png"
    files = ["--out", str(table), "--plot", str(picture)]
    assert main(["search", "hardware", *DECODE_FLAGS, *vary, *limits, *two, *files, "-v"]) == 0
    text = capsys.readouterr().out
    assert "Pareto front, time against power" in text and "may take" in text and "trust:" in text
    assert picture.stat().st_size > 10_000
    with table.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5 and {"sm.count", "time_s", "power_high_w", "front", "breaks"} <= set(rows[0])
    assert [row["unchanged"] for row in rows] == ["True", *["False"] * 4] and rows[0]["speedup"] == "1.0"
    assert picture.with_suffix(".csv").read_text(encoding="utf-8") == table.read_text(encoding="utf-8")
    assert main(["search", "hardware", *DECODE_FLAGS, *vary, *limits, *two, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [str(one["feasible"]) for one in found] == [row["feasible"] for row in rows]
    one = ["--vary", "sm.count=132,264"]
    assert main(["search", "hardware", *DECODE_FLAGS, *one, "--limit", "power<=50 W"]) == 1
    assert "no machine keeps the limits" in capsys.readouterr().out
    assert main(["search", "hardware", *DECODE_FLAGS, *one, "--limit", "power<=50 W", "--plot", str(picture)]) == 2
    assert main(["search", "hardware", "--model", "llama-3-8b", "--seq", "512", *one, "--minimise", "energy"]) == 0
    assert "least energy first" in capsys.readouterr().out
    larger = ["--vary", "l2.capacity=1x,2x"]
    for cache, told in (("warm", True), ("cold", False)):  # a larger L2 that keeps the call's own operands is told so
        assert main(["search", "hardware", *DECODE_FLAGS, *larger, "--cache", cache]) == 0
        assert ("L2 warm: it holds what the same call left" in capsys.readouterr().out) == told


PREFILL = Workload(batch=1, heads_q=8, heads_kv=1, seq_q=8192, head_dim=128, mask=Mask.causal())


def test_a_mix_is_counted_by_the_unchanged_machines_time() -> None:
    space = Space.read(H100, ["hbm.bandwidth=1x,2x"], [])
    mixed = search_hardware([Case(PREFILL, 3, "prefill"), Case(DECODE, 1, "decode")], space)
    same, fast = (one.answer for one in mixed.machines)
    assert same is not None and fast is not None and mixed.unchanged.answer is not None
    assert mixed.unchanged.answer.time_s.typical == pytest.approx(1.0) == same.time_s.typical
    gains = [speedup_of(*pair) for pair in zip(same.predictions, fast.predictions, strict=True)]
    assert all(gains) and fast.speedup is not None
    expected = 0.75 / gains[0].value + 0.25 / gains[1].value  # type: ignore[union-attr]
    assert fast.time_s.typical == pytest.approx(expected)
    assert fast.speedup.value == pytest.approx(1 / expected)
    assert fast.speedup.low <= fast.speedup.value <= fast.speedup.high
    assert same.joules.typical == pytest.approx(same.watts.typical)  # of a second


def test_limits_may_be_multiples_of_the_unchanged_machine() -> None:
    space = Space.read(H100, ["sm.count=1x,1.05x,1.2x"], ["area<=1.1x", "power<=2x", "cost<=3000"])
    found = search_hardware(DECODE, space, objectives=("time", "area"))
    area = found.space.limits[0]
    assert area.value == pytest.approx(1.1 * 814) and area.text == "area <= 1.1x (895.4 mm2)" and not area.times
    assert ["area <= 1.1x (895.4 mm2)" in one.broken for one in found.machines] == [False, False, True]
    assert [one.objectives[1] for one in found.machines] == sorted(one.objectives[1] for one in found.machines)


def test_machines_of_one_time_are_said_to_be_alike() -> None:
    space = Space.read(H100, ["l2.capacity=1x,1.1x", "hbm.bandwidth=1x,2x"], [])
    found = search_hardware(DECODE, space)
    small, _, large, _ = found.machines
    assert found.alike(small, large)  # the cache of this call fits no L2
    assert found.alike_runs(found.machines) == [[1, 3], [0, 2]]
    slow, fast = found.machines[:2]
    assert slow.answer is not None and fast.answer is not None
    assert slow.answer.time_s.typical > 1.5 * fast.answer.time_s.typical and not found.alike(slow, fast)


def test_a_users_prices_decide() -> None:
    prices = Prices.parse("sm.count*2 + 3/MiB*l2.capacity + 20/(TB/s)*hbm.bandwidth + area*0.5/mm2")
    cost = prices.cost(H100)
    assert cost.typical == pytest.approx(2 * 132 + 3 * 50 + 20 * 3.35 + 0.5 * 814) and cost.low == cost.high
    space = Space.read(H100, ["sm.count=100,132"], [])
    found = search_hardware(DECODE, space, objectives=("cost",), prices=prices)
    assert found.feasible[0].figures == {"sm.count": 100}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import os", "is not FIGURE"),
        ("sm.count", "is not FIGURE"),
        ("sm.count*2 - 3", "sm.count costs '2 - 3'"),
        ("sm.count*2*3", "is not FIGURE"),
        ("sm.count**2", "is not FIGURE"),
        ("(sm.count)*2", "is not known; nearest"),
        ("sm.cont*2", "nearest: sm.count"),
        ("sm.count*-1", "allowed: a number from 0"),
        ("sm.count*nan", "allowed: a number from 0"),
        ("l2.capacity*2", "is in B; say per how much"),
        ("l2.capacity*2/GHz", "price of l2.capacity is per 'GHz'"),
        ("sm.count*2 + sm.count*3", "sm.count twice"),
        ("", "is not FIGURE"),
    ],
)
def test_prices_that_are_no_sum_are_refused(text: str, told: str) -> None:
    with pytest.raises(InputError, match=re.escape(told)) as refused:
        Prices.parse(text)
    assert "\n" not in str(refused.value)


def test_the_area_of_an_unknown_die_is_refused_and_its_machines_answer() -> None:
    own = replace(H100, id="mine", base_id="mine")
    found = search_hardware(DECODE, Space.read(own, ["sm.count=100,132"], []))
    assert found.machines[0].answer is not None and found.machines[0].answer.area is None
    for name in ("area", "cost"):
        with pytest.raises(InputError, match="the die of mine is not known"):
            search_hardware(DECODE, Space.read(own, ["sm.count=100,132"], []), objectives=(name,))


def test_cases_come_from_flags_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "decode.yaml").write_text("model: llama-3-70b\ntp: 8\npass: decode\nbatch: 16\nseq: 8192\n")
    vary = ["search", "hardware", "--vary", "hbm.bandwidth=1x,2x"]
    flags = ["--model", "llama-3-70b", "--tp", "8"]
    picture = tmp_path / "front.svg"
    cases = ["--case", "seq=4096: 2", "--case", f"{tmp_path / 'decode.yaml'}:1"]
    area = ["--minimise", "time,area", "--limit", "area<=1.1x", "--plot", str(picture), "--cost", "sm.count*5"]
    assert main([*vary, *flags, *cases, *area, "-v"]) == 0
    text = capsys.readouterr().out
    assert "\ncost: sm.count*5\n" in text
    assert "decode (weight 1): batch 16, heads 8/1, seq 1 x 8192" in text and "seq=4096 (weight 2)" in text
    rows = [line.split() for line in text.splitlines()]
    assert any(row[:1] == ["unchanged"] for row in rows) and "GH100 has 814 mm2 (datasheet)" in text
    assert picture.read_text(encoding="utf-8").startswith("<?xml")
    (masked,) = cases_of(QuestionFlags(model="llama-3-70b"), ["seq=4k, mask=causal, window 512, causal=false: 2"])
    assert masked.workload == replace(masked.workload, seq_q=4096, mask=Mask.sliding_window(512)) and masked.weight == 2
    for case, refused in (
        ("seq=4096", "has no weight"),
        ("seq=4096:0", "the weight is '0'"),
        ("seq=four:1", "seq is 'four'"),
        ("sequence=4:1", "nearest: seq"),
        ("causal=yes:1", "allowed: true or false"),
        (f"{tmp_path / 'none.yaml'}:1", "cannot be read"),
    ):
        assert refused in refusal(capsys, *vary, *flags, "--case", case)


def test_a_search_may_ask_for_the_whole_layer() -> None:
    model, space = load_model("llama-3-8b"), Space.read(H100, ["hbm.bandwidth=1x,2x", "tensor.bf16=1x,1.5x"], [])
    w = model.workload(batch=32, seq=8192, passes="decode", dtype="bf16")
    cases = [Case(w, layer=Layer(model, 32, 8192, passes="decode"))]
    found = search_hardware(cases, space, cache="cold")
    fast = H100.replace("hbm.bandwidth", "2x").replace("tensor.bf16", "1.5x")
    base, layered = (layer(model, gpu, batch=32, seq=8192, passes="decode") for gpu in (H100, fast))
    (best,) = (one for one in found.machines if one.figures == {key: fast.get(key) for key in one.figures})
    assert best.answer is not None and found.unchanged.answer is not None
    assert best.answer.time_s.typical == layered.time_s
    assert best.answer.speedup == layered.speedup_over(base)
    # The energy of a layer is that of its parts and of the time they take.
    assert best.answer.joules == energy(layered, fast).joules
    (call,) = layered.attention
    whole, attention = (energy(one, fast).units_j for one in (layered, call))
    share = {unit: attention[unit].typical / whole[unit].typical for unit in attention}
    assert share["static"] == pytest.approx(layered.attention_share)
    # Executed FLOPs cost energy, useful ones more: decode fills its tiles less than products do.
    executed = sum(part.flops_executed or 0 for part in layered.parts)
    assert call.flops_useful / layered.flops_useful < share["tensor"] < (call.flops_executed or 0) / executed
    assert call.hbm_bytes and layered.hbm_bytes
    assert attention["hbm"].typical / whole["hbm"].typical == pytest.approx(
        call.hbm_bytes / layered.hbm_bytes, rel=1e-4
    )


@pytest.mark.parametrize("gpu", [H100, H100.replace("sm.count", 100)], ids=["as it is", "changed before"])
def test_the_best_machine_is_split_among_its_figures(gpu: Gpu) -> None:
    """Over the machine that the search calls unchanged: it found no other change."""
    space = Space.read(gpu, ["hbm.bandwidth=1x,2x", "sm.exp_rate=1x,2x"], [])
    found = search_hardware([Case(DECODE, 1, "decode"), Case(QUESTION, 1, "prompt")], space)
    shared = split_best(found)
    assert shared is not None and {one.change.key for one in shared.parts} == {"hbm.bandwidth", "sm.exp_rate"}
    best = found.feasible[0].answer
    assert best is not None and best.speedup is not None
    assert shared.together.value == pytest.approx(best.speedup.value)
    assert np.prod([one.mean.value for one in shared.parts]) == pytest.approx(shared.together.value)
    alone = search_hardware(DECODE, Space.read(H100, ["hbm.bandwidth=1x,2x", "sm.exp_rate=1x,1x"], []))
    assert split_best(alone) is None


def test_the_least_die_of_equal_machines_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """HBM moves no time of a prefill, so that the unchanged figure is the cheapest; of a decode it does."""
    asked = ("search", "hardware", "--gpu", H100.id, "--model", "llama-3-8b", "--vary", "hbm.bandwidth=1x,1.4x,1.8x")
    assert main([*asked, "--seq", "8192"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"as fast as machine 1 within the model's error: machine 3, {area_mm2(H100).typical:.0f} mm2" in text
    assert main([*asked, "--seq", "8192", "--batch", "16", "--pass", "decode"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "least die" not in text and "error no other of those within the limits is as fast as machine 1" in text


def test_a_split_of_a_mix_says_whose_times_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    vary = ("--vary", "hbm.bandwidth=1x,2x", "--vary", "sm.exp_rate=1x,2x", "--split", "--case", "seq=2k: 0.5")
    asked = ("search", "hardware", "--gpu", H100.id, "--model", "llama-3-8b", *vary)
    title = "machine 1 on shipped tiles, times of calls that take the unchanged machine one second in all: what"
    for more, mixed in ((("--case", "pass=decode, seq=2k: 0.5"), True), ((), False)):
        assert main([*asked, *more]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert (title in text) is mixed and ("1.00 s" in text) is mixed


def test_the_layer_and_split_flags(capsys: pytest.CaptureFixture[str]) -> None:
    vary = ["search", "hardware", "--vary", "hbm.bandwidth=1x,2x"]
    asked = [*vary, "--vary", "tensor.bf16=1x,2x", "--model", "llama-3-8b", "--seq", "2048"]
    assert main([*asked, "--layer", "--split"]) == 0
    text = capsys.readouterr().out
    assert "a whole layer, its attention batch 1" in text and "tile of the attention of all" in text
    assert "machine 1 on shipped tiles: what each change brings" in text and "L2 warm" not in text
    for flags, refused in (
        (["--heads", "8", "--head-dim", "128", "--seq", "64", "--layer"], "--layer needs a model"),
        (["--model", "llama-3-8b", "--lengths", "1:64", "--layer"], "--lengths does not go with --layer"),
        (["--model", "llama-3-8b", "--layer"], "--seq is missing"),
        (["--model", "llama-3-8b", "--seq", "64", "--split"], "--split shares out several figures and one varies"),
    ):
        assert refused in refusal(capsys, *vary, *flags)
