"""`attnsim whatif`: one ratio for one question whoever is asked, limits that say so, and one line for what fits not."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.container import ErrorbarContainer

import attnsim
from attnsim.api.comparing.ratios import LikeForLike
from attnsim.api.step import step
from attnsim.cli import main
from attnsim.cli.question_flags import QuestionFlags
from attnsim.errors import InputError
from attnsim.models.hardware.area import area_mm2
from attnsim.plots.changes import whatif as picture
from attnsim.studies.hardware_case import Case, Layer
from attnsim.studies.whatif import TOGETHER, WhatIf, whatif
from tests.unit.answering import refusal, refused

GPU = "h100-sxm5-80gb"
H100 = attnsim.load_gpu(GPU)
FLAGS = QuestionFlags(model="llama-3-8b", seq=8192)
PREFILL = FLAGS.workload()
DECODE = QuestionFlags(model="llama-3-8b", seq=8192, batch=16, passes="decode").workload()
HBM, SMEM = {"hbm.bandwidth": "6 TB/s"}, {"sm.shared_memory": "2x"}
QUESTION = ("--gpu", GPU, "--heads", "32", "--kv-heads", "8", "--head-dim", "128", "--causal")
SETS = ("--set", "hbm.bandwidth=6TB/s", "--set", "sm.exp_rate=1.5x")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def records(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(capsys, "whatif", *arguments, "--json"))
    return found


@pytest.fixture(scope="module")
def both() -> WhatIf:
    """Prefill and decode, as calls and as a layer, with a limit that the wider memory breaks."""
    model = attnsim.load_model("llama-3-8b")
    cases = [
        Case(PREFILL, 1, "prefill"), Case(DECODE, 3, "decode", cache="cold"),
        Case(PREFILL, 1, "prefill", Layer(model, 1, 8192), "cold"),
    ]  # fmt: skip
    return whatif(cases, H100, [HBM, {"sm.exp_rate": "1.5x"}], limits=["area<=1.05x", "power<=2kW"], mixed=True)


def test_ratios_are_those_of_predict_and_of_layer(both: WhatIf) -> None:
    changed = H100.replace(HBM)
    calls = [
        [attnsim.predict(w, gpu, cache=cache, baseline=False) for gpu in (H100, changed)]
        for w, cache in ((PREFILL, "warm"), (DECODE, "cold"))
    ]
    layers = [attnsim.layer("llama-3-8b", gpu, seq=8192) for gpu in (H100, changed)]
    expected = [calls[0][1].speedup_over(calls[0][0]), calls[1][1].speedup_over(calls[1][0])]
    found = [cell.answer.speedup if cell.answer else None for cell in both.rows[0].cells]
    assert found[:3] == [*expected, layers[1].speedup_over(layers[0])]
    assert found[1] is not None and found[1].low > 1.3


def test_a_model_is_asked_as_a_call_and_as_a_layer_unless_a_flag_is_of_calls_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ("--gpu", GPU, "--model", "llama-3-8b", "--seq", "1k", "--set", "hbm.bandwidth=2x")
    for more, scopes in (
        ((), {"attention", "layer"}),
        (("--softcap", "30"), {"attention"}),
        (("--sinks",), {"attention"}),
    ):
        assert {one["of"] for one in records(capsys, *asked, *more)} == scopes


def test_a_model_is_a_step_of_as_many_gpus_as_its_case_says(capsys: pytest.CaptureFixture[str]) -> None:
    cases = ("--case", "pass=decode, batch=4, seq=1k, tp=1", "--case", "pass=decode, batch=4, seq=1k, tp=8")
    asked = ("--gpu", GPU, "--model", "llama-3-8b", "--of", "model", *cases)
    found = records(capsys, *asked, "--set", "hbm.bandwidth=2x")
    times = {(one["change"], one["case"]): one["time_s"] for one in found}
    for tp in (1, 8):
        name = f"pass=decode, batch=4, seq=1k, tp={tp}"
        for gpu, change in ((H100, "unchanged"), (H100.replace("hbm.bandwidth", "2x"), "hbm.bandwidth=2x")):
            whole = step("llama-3-8b", gpu, "1:1024 x 4", tp=tp, launch="stream")
            assert times[change, name] == pytest.approx(whole.time_s)
    assert {one["of"] for one in found} == {"model"} and all(one["power_w"] > 100 for one in found)
    joined = records(capsys, *asked[:6], *cases[2:], "--set", "link.bandwidth=2x")
    assert joined[1]["speedup"] > 1
    assert "leave out the cases of one GPU" in refusal(capsys, "whatif", *asked, "--set", "link.bandwidth=2x")
    assert "link.bandwidth is read where several GPUs" in refusal(
        capsys, "whatif", *asked[:6], *cases[:2], "--set", "link.bandwidth=2x"
    )
    changed = ("--set", "hbm.bandwidth=2x")
    assert "whole model; leave them out" in refusal(capsys, "whatif", *asked, *changed, "--tiles", "retuned")
    assert "pass is bwd of a whole model" in refusal(
        capsys, "whatif", *asked[:6], "--pass", "bwd", "--seq", "1k", *changed
    )
    several = refusal(capsys, "whatif", "--gpu", "h100,a100", *asked[2:6], "--seq", "1k", *changed)
    assert "'h100,a100' names several GPUs and one is asked for" in several


def test_the_picture_names_the_model_and_the_number_of_gpus() -> None:
    def title(*shared: int, model: str = "llama-3-8b") -> str:
        cases = [Case(PREFILL, 1, f"tp={tp}", model=model, tp=tp) for tp in shared]
        return picture(whatif(cases, H100, [HBM]).records()).title

    assert title(8) == title(8, 8) == "What each change of the GPU brings llama-3-8b on 8 GPUs"
    assert title(1) == title(1, 8) == "What each change of the GPU brings llama-3-8b"
    assert title(1, model="") == "What each change of the GPU brings"


def test_watts_above_the_limit_say_when_it_acts(capsys: pytest.CaptureFixture[str]) -> None:
    """A call of 0.3 ms may draw more than the limit, one of 60 ms keeps it by a lower clock."""
    asked = ("whatif", "--gpu", GPU, "--model", "llama-3-8b", "--of", "attention", "--set", "sm.exp_rate=1.5x")
    short, long = (" ".join(run(capsys, *asked, "--seq", seq).split()) for seq in ("4k", "64k"))
    assert "W above 700, the power limit" in short and "W above" not in long
    assert "from 1 ms on, and wholly from 10 ms on; shorter ones, run again and again, would be slower" in short


def test_a_case_of_a_model_divides_its_experts(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("whatif", "--gpu", "b200", "--model", "qwen3-235b-a22b", "--set", "link.bandwidth=2x")
    cases = ("--case", "pass=decode, batch=64, seq=1k, tp=4", "--case", "pass=decode, batch=64, seq=1k, tp=4, ep=8")
    assert main([*asked, "--of", "model", *cases, "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    alone, divided = ({one["speedup"] for one in records if one["case"].endswith(end)} for end in ("tp=4", "ep=8"))
    assert alone and divided and max(filter(None, divided)) > max(filter(None, alone))  # tokens go to experts and back
    assert main([*asked, "--of", "layer", *cases]) == 2
    assert "ep divides the experts of a whole model; add --of model, or leave it out" in capsys.readouterr().err


@pytest.mark.parametrize("shared", [("--tp", "8", "--case", "seq=1k"), ("--case", "seq=1k, tp=8")])
def test_the_heading_says_which_columns_leave_all_reduces_out(
    shared: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("whatif", "--gpu", GPU, "--model", "llama-3-8b", *shared, "--set", "hbm.bandwidth=2x", "--of")
    for scopes, told in (
        ("attention,layer,model", "All-reduces: left out of attention and layer, part of the model's time"),
        ("layer", "All-reduces: left out of layer\n"),
        ("model", "All-reduces: part of the model's time"),
    ):
        text = run(capsys, *asked, scopes)
        assert told in text and "all-reduces left out" not in text
        assert "shipped tiles, launched in a stream" in " ".join(text.split())
    assert "launched in a CUDA graph" in " ".join(run(capsys, *asked, "attention", "--launch", "graph").split())
    link = refusal(capsys, *asked, "attention,layer,model", "--set", "link.bandwidth=2x")
    assert "link.bandwidth is read by a whole model on several GPUs alone; drop attention and layer from --of" in link
    alone = run(capsys, *asked[:5], "--seq", "1k", *asked[-3:], "attention")
    assert "All-reduces" not in alone


def test_a_case_says_whether_its_l2_is_cold(capsys: pytest.CaptureFixture[str]) -> None:
    cases = ("--case", "pass=decode, seq=1k", "--case", "seq=1k")
    text = run(capsys, "whatif", "--gpu", GPU, "--model", "llama-3-8b", *cases, "--set", "hbm.bandwidth=2x")
    (decode, prefill) = text.split("pass=decode, seq=1k: ")[1].split("change")[0].split("seq=1k: ")
    assert decode.split()[-2:] == ["cold", "L2"] and "cold" not in prefill.split("attention")[0]


def test_a_mix_weighs_by_the_unchanged_time(both: WhatIf) -> None:
    prefill, decode, _, mix = (cell.answer and cell.answer.speedup for cell in both.rows[0].cells)
    assert [column.name for column in both.columns] == ["prefill", "decode", "prefill", "mix"]
    assert prefill and decode and mix
    assert mix.value == pytest.approx(4 / (1 / prefill.value + 3 / decode.value))


def test_rows_are_the_changes_alone_and_all_together(both: WhatIf) -> None:
    assert [row.name for row in both.rows] == ["hbm.bandwidth=6 TB/s", "sm.exp_rate=1.5x", TOGETHER]
    assert [len(row.gpu.changes) for row in both.rows] == [1, 1, 2]
    for changes in ([HBM], [{**HBM, **SMEM}, SMEM], [HBM, {"hbm.bandwidth": "2x"}]):
        assert TOGETHER not in [row.name for row in whatif(PREFILL, GPU, changes).rows]


def test_a_broken_limit_is_a_row_that_says_so(both: WhatIf) -> None:
    wide, exp, _ = both.rows
    area = area_mm2(wide.gpu).typical
    assert not exp.broken and not both.unchanged.broken
    ((name, text),) = wide.broken
    assert name == "area" and text.startswith("area <= 1.05x (") and f"{area:.0f} mm2" in text
    (power,) = whatif(PREFILL, GPU, [HBM], limits=["power<=1x"]).rows
    assert [name for name, _ in power.broken] == ["power"] and "W (attention)" in power.broken[0][1]
    assert whatif(PREFILL, GPU, [HBM], limits=["hbm.bandwidth<=4TB/s"]).rows[0].broken == (
        ("hbm.bandwidth", "hbm.bandwidth <= 4TB/s: 6 TB/s"),
    )


def test_a_tile_is_no_gain_of_the_chip(capsys: pytest.CaptureFixture[str]) -> None:
    """Twice the shared memory brings nothing: the unchanged GPU holds the larger tile as well."""
    changed = H100.replace(SMEM)
    three = [
        attnsim.predict(PREFILL, gpu, tiles=tiles, baseline=False)
        for gpu, tiles in ((H100, "shipped"), (H100, "retuned"), (changed, "retuned"))
    ]
    alike = LikeForLike(*three)
    assert alike.tile and alike.chip and alike.both
    assert alike.tile.low > 1.2 and alike.chip.value == pytest.approx(1, abs=0.01)
    assert alike.both.value == pytest.approx(alike.tile.value * alike.chip.value)
    (row,) = whatif(PREFILL, GPU, [SMEM], tiles="retuned").rows
    cell = row.cells[0]
    assert cell.answer and cell.answer.speedup == alike.chip and cell.alike
    assert (cell.alike.tile, cell.alike.both) == (alike.tile, alike.both)
    asked = (*QUESTION, "--seq", "8k", "--algorithm", "flash", "--set", "sm.shared_memory=2x")
    told = json.loads(run(capsys, "predict", *asked, "--json"))[-1]
    assert told["tiles"] == "retuned" and told["ratios"]["base"] == alike.chip.to_dict()
    assert told["like_for_like"] == alike.to_dict()
    text = " ".join(run(capsys, "predict", *asked).split())
    assert f"The tile brings {alike.tile}, the chip {alike.chip}." in text


def test_a_search_credits_no_machine_with_a_tile_of_the_unchanged_one() -> None:
    found = attnsim.search_hardware(PREFILL, attnsim.Space.read(H100, ["sm.shared_memory=228KiB,320KiB"], []))
    ratios = [one.answer and one.answer.speedup and one.answer.speedup.value for one in found.machines]
    assert ratios == [pytest.approx(1, abs=0.01)] * 2
    assert found.unchanged.answer and found.unchanged.answer.predictions[0].tile.startswith("192 x 128")


@pytest.mark.parametrize("tiles", ["shipped", "retuned"])
def test_the_table_the_split_and_whatif_have_one_ratio(tiles: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = (*QUESTION, "--seq", "2k", "--tiles", tiles, *SETS)
    (split,) = json.loads(run(capsys, "predict", *asked, "--algorithm", "flash", "--split", "--json"))
    table = json.loads(run(capsys, "predict", *asked, "--algorithm", "flash", "--json"))[-1]
    *alone, together = records(capsys, *asked)[1:]
    ratio = {end: together[f"speedup{suffix}"] for end, suffix in (("value", ""), ("low", "_low"), ("high", "_high"))}
    assert ratio == split["together"] == table["ratios"]["base"]
    assert [one["speedup"] for one in alone] == [part["first"]["value"] for part in split["parts"]]


def test_what_moves_nothing_fits_not_or_is_refused_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("whatif", *QUESTION, "--case", "seq=2k", "--case", "seq=8m, batch=64", "--set", "hbm.capacity=2x")
    text = " ".join(run(capsys, *asked).split())
    assert "hbm.capacity=2x: moves no time" in text
    assert "unchanged: attention, seq=8m, batch=64: does not fit: needs" in text and text.count("does not fit") == 2
    small = " ".join(run(capsys, "whatif", *QUESTION, "--seq", "2k", "--set", "sm.shared_memory=64KiB").split())
    assert "Shared memory: flash_fwd needs" in small and "sm.shared_memory=64KiB: attention: " in small
    only = whatif(FLAGS.workload(), GPU, [{"sm.shared_memory": "64 KiB"}]).records()[-1]
    assert only["speedup"] is None and only["area_mm2"] and "flash_fwd needs" in only["refused"]


def test_a_time_that_only_the_changed_gpu_has_stands_without_a_ratio() -> None:
    large = QuestionFlags(heads=32, kv_heads=8, seq=131072, head_dim=128, batch=200, passes="decode").workload()
    found = whatif(large, GPU, [{"hbm.capacity": "160 GB"}])
    before, after = found.records()
    assert "does not fit" in before["refused"] and before["time_s"] is None
    assert after["time_s"] > 0 and after["speedup"] is None and not after["refused"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--seq", "2k"), "nothing is changed; give changes"),
        (
            ("--seq", "2k", "--set", "hbm.bandwidth=1x"),
            "hbm.bandwidth=1x changes nothing: h100-sxm5-80gb has 3.35 TB/s",
        ),
        (("--seq", "2k", "--set", "l2.capacity=2x", "--set", "l2.capacity=100MiB"), "given twice, as l2.capacity=2x"),
        (("--seq", "2k", "--set", "l2.capacity=2x, l2.capacity=3x"), "--set l2.capacity is given twice"),
        (("--seq", "2k", "--set", "l2.capacity"), "is not KEY=VALUE"),
        (("--case", "seq=2k", "--case", "seq=2k", *SETS), "--case seq=2k is given twice"),
        (("--seq", "2k", *SETS, "--of", "layer"), "--of layer needs a model"),
        (("--seq", "2k", *SETS, "--of", "head"), "--of is 'head'; allowed: attention, layer"),
        (("--seq", "2k", "--set", "link.pcie=2x"), "link.pcie is read where several GPUs share a model"),
        (("--seq", "2k", *SETS, "--out", "x.txt"), "--out x.txt: end the name with .csv"),
        (("--seq", "2k", *SETS, "--mix", "1"), "--mix is '1'; allowed: a weight above 0"),
        (("--case", "seq=2k", "--case", "seq=4k", *SETS, "--mix", "1,x"), "--mix is '1,x'; allowed"),
        (("--seq", "2k", *SETS, "--limit", "area<=2xx"), "--limit area"),
        (("--seq", "8m", "--batch", "64", *SETS), "does not fit"),
        (("--seq", "2k", *SETS, "--style", "dark"), "--style is about the picture of --plot"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_bad_input_is_refused_in_a_line(words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told in refusal(capsys, "whatif", *QUESTION, *words)


def test_the_table_has_every_case_and_fits_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    cases = ("--case", "seq=2k", "--case", "pass=decode, batch=16, seq=2k")
    text = run(capsys, "whatif", "--gpu", GPU, "--model", "llama-3-8b", *cases, *SETS, "--limit", "area<=1.05x")
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) <= 45
    head = next(line for line in lines if line.startswith("change"))
    assert head.split() == ["change", "die", "mm2", "seq=2k", "seq=2k", "seq=2k", "seq=2k"]
    assert ": breaks area <= 1.05x" in " ".join(text.split())
    assert len(re.findall(r"\d W( |$)", text, re.MULTILINE)) == 4 * 4


def test_the_picture_has_a_point_with_its_range_for_every_case(both: WhatIf, tmp_path: Path) -> None:
    rows = both.records()
    found = picture(rows)
    figure = found.figure()
    (axes,) = figure.axes
    points = [one for one in axes.containers if isinstance(one, ErrorbarContainer)]
    changed = [row for row in rows if row["change"] != "unchanged"]
    drawn = [(float(one[0].get_xdata()[0]), *one[2][0].get_segments()[0][:, 0]) for one in points]
    assert drawn == [pytest.approx((row["speedup"], row["speedup_low"], row["speedup_high"])) for row in changed]
    hollow = [one[0].get_markerfacecolor() == "white" for one in points]
    assert hollow == [bool(row["breaks"]) for row in changed] and any(hollow) and not all(hollow)
    out, table = found.write(tmp_path / "whatif.svg")
    with table.open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(rows)
    assert "breaks a limit" in out.read_text() and "attention, decode" in out.read_text()
    assert "nothing to draw" in refused(picture, rows[:4])


def test_the_picture_marks_power_limits_and_dies_beyond_the_reticle() -> None:
    cases = [Case(replace(PREFILL, seq_q=seq, seq_kv=seq), name=f"seq={seq}") for seq in (256, 8192, 65536)]
    rows = whatif(cases, H100, [HBM, {"power.limit": "2000 W"}]).records()[:9]
    assert [row["clock_by"] for row in rows[3:6]] == ["load", "load", "power"]
    assert [row["beyond_reticle"] for row in rows] == 3 * [False] + 3 * [True] + 3 * [False]
    found = picture(rows)
    short, high, long, *free = (text.get_text() for text in found.figure().axes[0].texts)
    assert high.endswith("(> 700 W)") and long.endswith("(limited)") and not any("(" in one for one in (short, *free))
    assert "beyond the reticle" in found.left[0] and "beyond the reticle" not in found.left[1]


def test_a_long_layer_is_limited_where_its_products_are() -> None:
    question = QuestionFlags(model="llama-3-8b", seq=2048).workload()
    cases = [
        Case(question, cache="cold"),
        Case(question, 1, "", Layer(attnsim.load_model("llama-3-8b"), 1, 2048), "cold"),
    ]
    call, layer, *_ = whatif(cases, H100, [HBM]).records()
    assert (call["clock_by"], layer["clock_by"]) == ("load", "load; power") and layer["time_s"] > 1e-3


def test_files_hold_what_is_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out, plot = tmp_path / "a.csv", tmp_path / "b.svg"
    asked = (*QUESTION, "--seq", "2k", *SETS)
    text = run(capsys, "whatif", *asked, "--out", str(out), "--plot", str(plot))
    assert text.endswith(f"written: {out}, {plot}, {tmp_path / 'b.csv'}\n")
    with out.open(newline="") as file:
        read = list(csv.DictReader(file))
    found = records(capsys, *asked)
    assert out.read_text() == (tmp_path / "b.csv").read_text()
    assert [float(row["speedup"]) for row in read] == [row["speedup"] for row in found]
    assert list(whatif(PREFILL, GPU, [HBM]).to_frame().columns) == list(read[0])


@pytest.mark.parametrize(
    ("cases", "changes", "told"),
    [
        (PREFILL, HBM, "changes are {'hbm.bandwidth': '6 TB/s'}; give a list of rows"),
        (PREFILL, ["hbm.bandwidth=2x"], "changes are ['hbm.bandwidth=2x']; give a list of rows"),
        (PREFILL, [{}], "give a list of rows"),
        ("llama-3-8b", [HBM], "cases are 'llama-3-8b'; give an attnsim.Workload"),
        ([PREFILL], [HBM], "or a list of hardware_case.Case"),
    ],
)
def test_what_is_no_case_and_no_change_is_refused(cases: Any, changes: Any, told: str) -> None:
    with pytest.raises(InputError, match=re.escape(told)) as error:
        whatif(cases, GPU, changes)
    assert "\n" not in str(error.value)
