"""Scaling, units, traffic, waves, tornado, split: rows as predicted, all within the axes, labels clear of others."""

import csv
import json
import re
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.text import Text
from typer.testing import CliRunner

import attnsim
from attnsim import InputError, Mask, Workload, compare, load_gpu
from attnsim.api.answer import Outcome
from attnsim.api.comparing.breakeven import Crossover
from attnsim.api.explaining import Explanation, explain
from attnsim.api.tracing import trace
from attnsim.cli.app import app
from attnsim.models.hardware.gpu import Change
from attnsim.plots.changes import changes, split, tornado
from attnsim.plots.density import breakeven, density
from attnsim.plots.scaling import crossing_pairs, empty_share, scaling, waves
from attnsim.plots.series import engineering, names_of
from attnsim.plots.sheet import Picture
from attnsim.plots.styles import STYLES, algorithm_hue, unit_hue
from attnsim.plots.units import traffic, units
from attnsim.validation.checking import accuracy as sampling
from attnsim.validation.measured.datasets import published_rows
from tests.unit.answering import varied

MORE_SMS = Change("sm.count", 108, 120, "1")
A100 = load_gpu("a100-sxm4-80gb")
CHANGED = A100.replace("l2.bandwidth", "2x").replace("tensor.bf16", "1.5x").replace("sm.exp_rate", "0.7x")
QUESTION = Workload(batch=1, heads_q=16, seq_q=2048, head_dim=64, mask=Mask.causal())
NAMES = ("naive", "flash", "linear")


def at(seq: int, batch: int = 1) -> Workload:
    return replace(QUESTION, seq_q=seq, seq_kv=seq, batch=batch)


@dataclass(frozen=True)
class Answer:
    """As `attnsim.studies.sensitivity.Elasticity`."""

    figure: str
    value: float
    elasticity: float
    down: float | None
    up: float | None
    step: float = 0.1


ANSWERS = [Answer("hbm.bandwidth", 2e12, -0.9, -1.0, -0.8), Answer("l2.latency", 2e-7, 0.2, None, 0.2),
           Answer("sm.exp_rate", 16, 0.0, 0.0, 0.0)]  # fmt: skip


@pytest.fixture(scope="module")
def growing() -> list[Outcome]:
    found = [one for seq in (512, 2048, 8192) for one in compare(at(seq), A100, NAMES)]
    return found + compare(at(1 << 17), A100, NAMES)


@pytest.fixture(scope="module")
def explained() -> list[Explanation]:
    return [explain(QUESTION, A100, name, cache="cold") for name in ("naive", "flash-2")]


@pytest.fixture(scope="module")
def pictures(growing: list[Outcome], explained: list[Explanation]) -> dict[str, Picture]:
    crossed = Crossover("flash", "linear", A100.id, 1500, 1e-4, 64)
    return {
        "scaling": scaling(growing, [crossed, replace(crossed, slower="naive", seq=1600)]),
        "units": units(growing[3:6]),
        "traffic": traffic(explained),
        "waves": waves([one for one in growing if one.algorithm == "flash"]),
        "tornado": tornado({"naive": ANSWERS[:1], "flash": ANSWERS}, "On an A100."),
        "split": split([attnsim.split(QUESTION, CHANGED, name) for name in ("naive", "flash-2")]),
    }


PICTURES = ("scaling", "units", "traffic", "waves", "tornado", "split")


@pytest.mark.parametrize(("name", "style"), [*zip(PICTURES, ("light", *STYLES, "light"), strict=True)])
def test_every_style_draws_and_the_table_lies_beside(
    pictures: dict[str, Picture], name: str, style: str, tmp_path: Path
) -> None:
    out = tmp_path / f"{name}.{'png' if style == 'dark' else 'svg'}"
    assert pictures[name].write(out, style, "column") == [out, out.with_suffix(".csv")]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([out.name, f"{name}.csv"])
    with out.with_suffix(".csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == pictures[name].columns
    assert len(rows) == len(pictures[name].rows)


@pytest.mark.parametrize("suffix", [".svg", ".pdf"])
def test_text_is_text_in_real_fonts_and_the_same_picture_is_the_same_file(
    pictures: dict[str, Picture], suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    for number, date in enumerate(("1000000000", "1700000000")):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", date)  # which Matplotlib takes for today
        out = tmp_path / f"{number}{suffix}"
        pictures["units"].write(out, "latex", "column")
        written.append(out.read_bytes())
    assert written[0] == written[1] and b"Date" not in written[0]
    if suffix == ".svg":
        assert b"<text" in written[0] and b"tensor cores" in written[0]
    else:
        assert b"/Type3" not in written[0] and b"/CIDFontType2" in written[0]


def test_a_caption_goes_into_the_picture_beside_it_or_nowhere(pictures: dict[str, Picture], tmp_path: Path) -> None:
    one = pictures["units"]
    plain, latex = (
        one.write(tmp_path / "a.svg", caption="file"),
        one.write(tmp_path / "b.svg", "latex", "column", "file"),
    )
    assert [path.name for path in (*plain, *latex)] == ["a.svg", "a.csv", "a.txt", "b.svg", "b.csv", "b.tex"]
    assert plain[2].read_text() == f"{one.title}\n{one.subtitle}\n{one.caption}\n"
    assert latex[2].read_text().startswith(rf"\caption[{{{one.title}}}]{{{one.title}" + "\n\n")
    assert latex[2].read_text().endswith("}\n")
    assert r"head\_dim 64" in latex[2].read_text() and "_dim" not in latex[2].read_text().replace(r"\_dim", "")
    assert one.title not in (tmp_path / "a.svg").read_text()
    assert len(one.write(tmp_path / "c.svg", caption="none")) == 2
    with pytest.raises(InputError, match="caption 'below' is not known; allowed: picture, file, none"):
        one.write(tmp_path / "d.svg", caption="below")


def test_scaling_rows_are_the_predictions(pictures: dict[str, Picture], growing: list[Outcome]) -> None:
    rows = [row for row in pictures["scaling"].rows if row["kind"] == "prediction"]
    assert len(rows) == len(growing)
    for one in growing:
        (row,) = (row for row in rows if (row["algorithm"], row["seq_kv"]) == (one.algorithm, one.workload.seq_kv))
        for field in ("time_s", "time_low_s", "time_high_s", "speedup_vs_naive", "fits", "flops_useful"):
            assert row[field] == getattr(one, field)


def test_a_line_ends_where_the_memory_does(pictures: dict[str, Picture], growing: list[Outcome]) -> None:
    assert not next(one for one in growing if one.workload.seq_kv == 1 << 17 and one.algorithm == "naive").fits
    times = pictures["scaling"].figure().axes[0]
    assert "naive: up to 8k" in [text.get_text() for text in times.texts]
    longest = {tuple(line.get_xdata())[-1] for line in times.lines if len(line.get_xdata()) > 1}  # type: ignore[arg-type]
    assert longest == {8192, 1 << 17}
    assert "does not fit the memory" in pictures["scaling"].caption


def test_approximations_say_how_far_off_they_are(pictures: dict[str, Picture], growing: list[Outcome]) -> None:
    picture = pictures["scaling"]
    error = next(one for one in growing if one.algorithm == "linear").approximation[1]
    assert f"linear (error {100 * error.relative:.0f} %)" in picture.right
    assert "With an error beside its name: not softmax attention" in picture.caption


def test_speedups_go_over_the_line_that_fits_every_length(growing: list[Outcome]) -> None:
    below = scaling(growing).figure().axes[1]
    assert below.get_title(loc="left") == "speedup over flash; band: 90 % range"  # naive does not fit the longest
    linear = next(line for line in below.lines if len(np.asarray(line.get_xdata())) == 4)
    times = {(one.algorithm, one.workload.seq_kv): one.time_s or 0.0 for one in growing}
    ratios = [times["flash", seq] / times["linear", seq] for seq in (512, 2048, 8192, 1 << 17)]
    assert np.asarray(linear.get_ydata()) == pytest.approx(ratios)
    over = scaling(growing, baseline="naive").figure().axes[1]
    assert over.get_title(loc="left") == "speedup over unfused attention; band: 90 % range"
    with pytest.raises(InputError, match="baseline is 'torch', which is no row"):
        scaling(growing, baseline="torch")


def test_a_changed_gpu_is_compared_with_the_one_that_it_was_made_of() -> None:
    changed = A100.replace("sm.count", 120)
    found = [one for seq in (1024, 2048) for gpu in (A100, changed) for one in compare(at(seq), gpu, ["flash"])]
    below = scaling(found).figure().axes[1]
    assert below.get_title(loc="left") == "speedup over the unchanged GPU; band: 90 % range"
    gains = [other.speedup_over(one) for one, other in zip(found[::2], found[1::2], strict=True)]
    (line,) = (line for line in below.lines if line.get_marker() not in ("None", ""))
    assert np.asarray(line.get_ydata()) == pytest.approx([gain.value for gain in gains if gain])
    assert below.collections, "the range of the ratio"


def test_points_whose_clock_the_power_limit_lowers_are_hollow() -> None:
    questions = [Workload(1, 64, seq, 128, mask=Mask.causal()) for seq in (1024, 16384)]
    found = [one for question in questions for one in compare(question, "h100-sxm5-80gb", ["flash"])]
    assert [one.clock_by == "power" for one in found] == [False, True]
    picture = scaling(found)
    times, _ = picture.figure().axes
    (hollow,) = (line for line in times.lines if line.get_markerfacecolor() == "white")
    assert (hollow.get_xdata()[0], hollow.get_ydata()[0]) == (16384, found[1].time_s)  # type: ignore[index]
    assert "Hollow: the power limit lowers the clock" in picture.caption
    assert [row["clock_by"] for row in picture.rows] == [one.clock_by for one in found]
    short = scaling(found[:1])
    assert "Hollow" not in short.caption
    assert not [line for line in short.figure().axes[0].lines if line.get_markerfacecolor() == "white"]


def test_near_crossings_share_a_label_and_are_told(pictures: dict[str, Picture]) -> None:
    picture = pictures["scaling"]
    assert "1,2" in [text.get_text() for text in picture.figure().axes[0].texts]
    assert "1: linear beats flash from 1,500 tokens; 2: linear beats naive from 1,600 tokens" in picture.caption


def test_crossing_pairs_are_those_whose_order_changes(growing: list[Outcome]) -> None:
    times = {(one.algorithm, one.workload.seq_kv): one.time_s or 0 for one in growing}
    assert times["linear", 512] > times["flash", 512] and times["linear", 8192] < times["flash", 8192]
    assert crossing_pairs(growing) == [("flash", "linear")]


def test_units_are_bars_within_a_frame_of_the_call(growing: list[Outcome]) -> None:
    shown = growing[3:6]
    picture = units(shown)
    for one in shown:
        mine = {row["part"]: row["seconds"] for row in picture.rows if row["name"] == one.algorithm}
        assert (
            mine["total"] == one.time_s and mine["launch"] == one.launch_s and mine["waits for data"] == one.exposed_s
        )
        assert {part: mine[part] for part in one.units_s} == one.units_s
    (axes,) = picture.figure().axes
    frames = [patch for patch in axes.patches if not patch.get_fill()]
    assert len(frames) == len(shown)


def test_units_of_like_times_share_a_scale_and_unlike_ones_are_shares(growing: list[Outcome]) -> None:
    alike = units([one for one in growing if one.algorithm == "flash"][1:2])
    assert alike.figure().axes[0].get_xlabel() == "time"
    unlike = units([one for one in growing if one.algorithm == "flash"])
    assert unlike.figure().axes[0].get_xlabel() == "share of the call's time, %"
    assert "flash, 512 keys" in {row["name"] for row in unlike.rows}


def test_a_changed_gpu_stands_within_the_frame_of_the_unchanged_one(growing: list[Outcome]) -> None:
    flash = next(one for one in growing if one.algorithm == "flash")
    changed = varied(flash, {"gpu": replace(A100, changes=(MORE_SMS,))}, time_s=(flash.time_s or 0) / 2)
    (axes,) = units([flash, changed]).figure().axes
    frames = [patch for patch in axes.patches if not patch.get_fill()]
    assert sorted(patch.get_extents().transformed(axes.transData.inverted()).x1 for patch in frames) == pytest.approx(
        [changed.time_s, flash.time_s]
    )
    told = [text.get_text() for text in axes.texts]
    assert {"as it is", "changed"} <= set(told) and "share" not in told
    assert any(text.startswith("changed: ") and "2.00x (" in text for text in told)


def test_traffic_rows_add_up_to_the_prediction(explained: list[Explanation]) -> None:
    rows = traffic(explained).rows
    for one in explained:
        mine = [row for row in rows if row["algorithm"] == one.prediction.algorithm]
        for level, total in (("hbm", one.prediction.hbm_bytes), ("l2", one.prediction.l2_bytes),
                             ("smem", one.prediction.smem_bytes)):  # fmt: skip
            found = [row["bytes"] for row in mine if row["level"] == level]
            assert sum(found) == pytest.approx(total, abs=len(found))  # type: ignore[arg-type]


def test_waves_rows_and_the_empty_part(growing: list[Outcome]) -> None:
    flash = [one for one in growing if one.algorithm == "flash"]
    for row, one in zip(waves(flash).rows, flash, strict=True):
        assert row["waves"] == one.waves and row["time_per_useful_flop_s"] == (one.time_s or 0) / one.flops_useful
        assert row["empty_share_of_last_wave"] == pytest.approx(-(one.waves or 0) % 1)
    assert empty_share(varied(flash[0], waves=3.0)) == 0
    assert empty_share(varied(flash[0], waves=3.25)) == 0.75


def test_waves_go_over_what_differs() -> None:
    found = [one for batch in (1, 2) for one in compare(at(1024, batch), A100, ["flash"])]
    assert waves(found).title.endswith("batch")
    assert [row["batch"] for row in waves(found).rows] == [1, 2]
    with pytest.raises(InputError, match="two predictions of flash at seq 1024"):
        waves(found, "seq")


def test_tornado_bars_are_the_changes_of_time(pictures: dict[str, Picture]) -> None:
    assert changes(ANSWERS[0]) == pytest.approx((1.1 - 1, 1.1**-0.8 - 1))
    assert changes(ANSWERS[1])[0] is None
    axes = pictures["tornado"].figure().axes[1]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["hbm.bandwidth", "l2.latency"]
    told = [text.get_text() for text in axes.texts]
    assert told == ["+10.0 %", "-7.3 %", "+1.9 %"], "every bar has its number"
    hbm, exps = (STYLES["light"].colour(unit_hue(name)).lower() for name in ("hbm", "l2"))
    assert {to_hex(patch.get_edgecolor()) for patch in axes.patches} == {hbm, exps}
    assert len(pictures["tornado"].rows) == 4


def test_split_s_steps_lead_from_one_to_the_whole(pictures: dict[str, Picture]) -> None:
    picture = pictures["split"]
    for axes, name in zip(picture.figure().axes, ("naive", "flash-2"), strict=True):
        *steps, whole = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]  # type: ignore[attr-defined]
        assert steps[0][0] == whole[0] == 1 and steps[-1][1] == pytest.approx(whole[1])
        assert all(one[1] == pytest.approx(two[0]) for one, two in pairwise(steps))
        rows = [row for row in picture.rows if str(row["name"]).startswith(name)]
        spans = [one[2][0].get_segments()[0][:, 0] for one in axes.containers if isinstance(one, ErrorbarContainer)]
        found = sorted(rows[:-1], key=lambda row: -float(str(row["mean"]))) + rows[-1:]
        for (start, _), span, row in zip([*steps, whole], spans, found, strict=True):
            assert list(span) == pytest.approx([start * float(str(row[end])) for end in ("mean_low", "mean_high")])
            assert axes.get_xlim()[0] <= span[0] and span[1] <= axes.get_xlim()[1]
        assert rows[-1]["figure"] == "all together" and rows[-1]["mean"] == pytest.approx(whole[1])
        assert axes.get_title(loc="left").endswith("○ alone  ● after the others")


@pytest.fixture(scope="module")
def sparse() -> tuple[Picture, Picture]:
    """Break-evens of two GPUs and three lengths, and times over the density."""
    question, gpus = Workload(1, 16, 1, 128), ["a100-sxm4-80gb", "h100-sxm5-80gb"]
    even = [row for gpu in gpus for row in attnsim.breakeven(question, gpu, [512, 1024, 2048])]
    return breakeven(even), density(
        attnsim.densities(replace(question, seq_q=1024, seq_kv=1024), gpus, shares=[0.1, 0.5, 1.0])
    )


def test_a_kernel_has_one_colour_in_all_pictures_and_is_thin_where_nobody_has_run_it(
    sparse: tuple[Picture, Picture],
) -> None:
    keys = [picture.figure().axes[0].get_legend() for picture in sparse]
    lines = [
        {text.get_text(): line for text, line in zip(key.get_texts(), key.get_lines(), strict=True)}  # type: ignore[union-attr]
        for key in keys
    ]
    own = "attnsim.sparse, never run"
    assert own in lines[0] and own in lines[1] and {"flash-attn.2", "flash-attn.3"} <= lines[1].keys()
    for name in lines[0]:
        assert to_hex(lines[0][name].get_color()) == to_hex(lines[1][name].get_color())
        thin = lines[0][name].get_linewidth() < 0.7 * lines[1]["flash-attn.3"].get_linewidth()
        assert thin is (name == own)
    blue = STYLES["light"].colour(algorithm_hue("flash")).lower()
    assert {to_hex(lines[1][name].get_color()) for name in ("flash-attn.2", "flash-attn.3")} == {blue}
    same_colour = [one.get_linestyle() for one in lines[0].values()]
    assert len(set(same_colour)) == len(same_colour)
    assert all("Thin: our own kernels, which nobody has run on a GPU." in picture.caption for picture in sparse)


def test_break_evens_of_a_gpu_stand_beside_one_another_on_the_same_axes(sparse: tuple[Picture, Picture]) -> None:
    for width, tallest in (("page", 6.0), ("column", 6.0)):
        figure = sparse[0].figure(width=width)
        _, *panels = figure.axes
        assert len(panels) == 6 and figure.get_figheight() < tallest
        assert len({(axes.get_xlim(), axes.get_ylim()) for axes in panels}) == 1
        bottoms, lefts = ([round(getattr(axes.get_position(), end), 6) for axes in panels] for end in ("y0", "x0"))
        assert bottoms[:3] == bottoms[:1] * 3 and bottoms[3:] == bottoms[3:4] * 3 and lefts[:3] == lefts[3:]
        assert lefts[0] < lefts[1] < lefts[2]
    alone = Figure().subplots(2)
    assert sparse[0].on(list(alone)) is alone[0].figure
    assert [text.get_text() for text in alone[0].get_children() if isinstance(text, Text) and "a100" in text.get_text()]
    assert "attnsim.sparse, never run" in [one.get_text() for one in alone[0].get_legend().get_texts()]


def test_names_tell_implementations_and_gpus_apart(growing: list[Outcome]) -> None:
    flash = growing[1]
    gpu = replace(A100, changes=(MORE_SMS,))
    changed = varied(flash, {"gpu": gpu})
    elsewhere = varied(flash, {"gpu": replace(gpu, id="other")})
    another = varied(flash, {"record": replace(flash.question.record, name="other")})
    assert names_of([flash, changed]) == ["flash", "flash*"]
    assert names_of([flash, elsewhere]) == [f"flash, {A100.id}", "flash, other*"]
    assert names_of([flash, another]) == [f"flash/{flash.implementation}", "flash/other"]
    assert "a100-sxm4-80gb* with sm.count = 120 (was 108)" in units([flash, changed]).subtitle


@pytest.mark.parametrize(("value", "text"), [(0.99996e-3, "1 ms"), (4.33e-3, "4.33 ms"), (9e-10, "0.9 ns")])
def test_times_have_three_digits(value: float, text: str) -> None:
    assert engineering(value, "s") == text


def test_the_facade_draws_on_its_own_figure_or_the_callers_axes(growing: list[Outcome]) -> None:
    assert isinstance(attnsim.plot.scaling(growing), Figure)
    mine = Figure()
    panels = mine.subplots(2)
    assert attnsim.plot.scaling(growing, ax=panels) is mine
    assert all(axes.lines for axes in panels) and not mine.texts
    alone = Figure().subplots()
    assert attnsim.plot.units(growing[3:6], ax=alone) is alone.figure
    roof = Figure().subplots()
    assert attnsim.plot.roofline(growing[3:6], ax=roof) is roof.figure
    assert attnsim.plot.rows("scaling", growing) == [dict(row) for row in scaling(growing).rows]
    assert {row.get("algorithm") for row in attnsim.plot.rows("roofline", growing[3:5])} >= {"naive", "flash"}


def test_the_facade_draws_timelines() -> None:
    found = [trace(at(512), A100, name) for name in ("flash-1", "flash-2")]
    assert len(attnsim.plot.timeline(found).axes) == 2
    panels = Figure().subplots(2)
    assert attnsim.plot.timeline(found, ["one", "two"], ax=panels) is panels[0].figure
    assert "two" in [text.get_text() for text in panels[1].texts]
    with pytest.raises(InputError, match="1 names for 2 traces"):
        attnsim.plot.timeline(found, ["one"])
    with pytest.raises(InputError, match="3 axes of 1 figures are given; allowed: 1 to 2"):
        attnsim.plot.timeline(found, ax=Figure().subplots(3))
    assert attnsim.plot.timeline(found, width="column").get_size_inches()[0] == pytest.approx(3.4)


def test_what_cannot_be_drawn_is_refused_in_a_line(growing: list[Outcome]) -> None:
    hypothetical = {"gpu": replace(A100, changes=(MORE_SMS,))}
    large = [one for one in growing if one.time_s is None]
    for draw, words in (
        (lambda: attnsim.plot.scaling([]), "no prediction to draw"),
        (lambda: attnsim.plot.scaling([growing[0], growing[0]]), "two predictions of naive at seq 512"),
        (lambda: attnsim.plot.units(large), "nothing to draw: does not fit"),
        (lambda: attnsim.plot.waves(large), "nothing to draw: does not fit"),
        (lambda: attnsim.plot.traffic([]), "no explanation to draw"),
        (lambda: attnsim.plot.tornado({"flash": ANSWERS[2:]}), "no figure of the GPU moves"),
        (lambda: attnsim.plot.tornado({"a": ANSWERS, "b": [replace(ANSWERS[0], step=0.2)]}), "steps 0.1 and 0.2"),
        (lambda: attnsim.plot.split([]), "nothing to draw; give at least one split"),
        (lambda: attnsim.plot.units(growing[:1], ax=Figure().subplots(2)), "2 axes of 1 figures are given; allowed: 1"),
        (lambda: attnsim.plot.units(growing[:1], style="neon"), "style 'neon' is not known"),
        (lambda: attnsim.plot.units(growing[:1], width="poster"), "width 'poster' is not known"),
        (lambda: attnsim.plot.rows("unit", growing), "picture 'unit' is not known"),
        (lambda: attnsim.plot.roofline([varied(growing[0], hypothetical)]), "give that GPU with gpus="),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words) as caught:
            draw()
        assert "\n" not in str(caught.value)


SHAPE = ("--gpu", "a100-sxm4-80gb", "--heads", "16", "--head-dim", "64")


def invoke(tmp_path: Path, *arguments: str) -> object:
    """The rows that a command prints, and whose picture and table it wrote."""
    out = tmp_path / "picture.svg"
    done = CliRunner().invoke(app, ["plot", *arguments, *SHAPE, "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    assert out.exists() and out.with_suffix(".csv").exists()
    return json.loads(done.stdout)


def test_the_commands_draw(tmp_path: Path) -> None:
    rows = invoke(tmp_path, "scaling", "--seq", "512,2048", "--algorithm", "flash,linear", "--causal")
    assert isinstance(rows, list)
    crossed = [row for row in rows if row["kind"] == "crossover"]
    assert [(row["slower"], row["algorithm"]) for row in crossed] == [("flash", "linear")]
    assert 512 < crossed[0]["seq_kv"] < 2048
    other = tmp_path / "for_print.svg"
    asked = ("--seq", "256", "--set", "sm.count=120", "--algorithm", "flash", "--out", str(other))
    rows = invoke(tmp_path, "units", *asked)
    assert other.exists() and other.with_suffix(".csv").exists()
    before, after = sorted({row["changes"] for row in rows})  # type: ignore[attr-defined]
    follows = r"l2\.bandwidth follows: 6\.03\d* TB/s, was 5\.43 TB/s"
    assert before == "" and re.fullmatch(rf"sm\.count = 120 \(was 108; {follows}\)", after)
    rows = invoke(tmp_path, "traffic", "--seq", "256", "--algorithm", "flash")
    assert {row["level"] for row in rows} == {"hbm", "l2", "smem"}  # type: ignore[attr-defined]
    rows = invoke(tmp_path, "waves", "--seq", "256", "--batch", "1:3:1")
    assert [row["batch"] for row in rows] == [1, 2, 3]  # type: ignore[attr-defined]
    rows = invoke(tmp_path, "tornado", "--seq", "256", "--algorithm", "flash", "--step", "0.2")
    assert {row["step"] for row in rows} == {0.2}  # type: ignore[attr-defined]
    rows = invoke(tmp_path, "split", "--seq", "256", "--set", "sm.count=120", "--set", "hbm.bandwidth=2x")
    assert [row["figure"] for row in rows] == ["sm.count", "hbm.bandwidth", "all together"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["units", "scaling", "traffic", "tornado", "split", "waves"])
def test_pictures_are_of_the_tiles_that_are_asked_for(name: str, tmp_path: Path) -> None:
    more = ("--set", "sm.exp_rate=2x", "--set", "hbm.bandwidth=2x") if name == "split" else ("--algorithm", "flash")
    seq = "512,1024" if name in ("scaling", "waves") else "512"
    rows = [invoke(tmp_path, name, "--seq", seq, *more, "--tiles", tiles) for tiles in ("shipped", "retuned")]
    assert rows[0] != rows[1]
    if name == "scaling":
        found = [compare(replace(at(n), mask=Mask()), A100, ["flash"], tiles="retuned")[0].time_s for n in (512, 1024)]
        assert [row["time_s"] for row in rows[1]] == found  # type: ignore[attr-defined]
        assert "retuned tiles" in " ".join(re.findall(r">([^<>]+)</t", (tmp_path / "picture.svg").read_text()))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("units", "--seq", "512", "--tiles", "best"), "tiles is 'best'"),
        (("scaling", "--seq", "1024"), "several lengths"),
        (("units",), "--seq is missing"),
        (("traffic", "--seq", "512,1024"), "2 questions; this picture has one"),
        (("units", "--seq", "512", "--style", "neon"), "style 'neon'"),
        (("units", "--seq", "512", "--out", "picture.doc"), "no picture ends in .doc"),
        (("tornado", "--seq", "512", "--step", "0"), "step is 0"),
        (("split", "--seq", "512", "--set", "sm.count=120"), "give --set KEY=VALUE twice or more"),
    ],
)
def test_bad_flags_are_refused_before_anything_is_written(
    arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["plot", *arguments[:1], *SHAPE, *arguments[1:]])
    assert isinstance(done.exception, InputError) and words in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_rows_of_the_accuracy_picture_are_chosen_by_measured_time_alone() -> None:
    rows = [one for one in published_rows() if sampling.line_of(one) == "flash-attn, training"]
    (first, *_, last) = chosen = list(sampling._spaced(rows, 5))
    ordered = sorted(one.measured_s for one in rows)
    assert len(chosen) == 5 and [one.measured_s for one in chosen] == sorted(one.measured_s for one in chosen)
    assert first.measured_s == ordered[len(rows) // 10] and last.measured_s == ordered[int(0.9 * len(rows))]
    assert list(sampling._spaced(rows[:3], 5)) == sorted(rows[:3], key=lambda one: one.measured_s)
    lines = {sampling.line_of(one) for one in published_rows()}
    assert {"vllm, decode", "vllm linear, decode", "flash-nsa sparse, forward"} <= lines
