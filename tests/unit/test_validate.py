"""`attnsim validate` and `attnsim fit --check`: tables, picture, page, exit codes."""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from attnsim.api.trust import Reason, Trust
from attnsim.cli import main
from attnsim.models.calibrations.calibration import calibrations
from attnsim.plots.errors import validation as picture_of
from attnsim.plots.styles import find_style
from attnsim.reports.accuracy import html_page, write_report
from attnsim.validation.checking import hypothetical
from attnsim.validation.checking.validate import TITLES, Report, Served, differences, point, stated_table
from attnsim.validation.fitting.held_out import HeldOut
from attnsim.validation.measured import aiconfigurator
from attnsim.validation.measured.datasets import Row, published_rows
from tests.unit.answering import refusal

TRUST = Trust("extrapolated", 0.5, 2.0, None, (Reason("borrowed", "borrowed numbers"),))


@pytest.fixture(scope="module")
def report() -> Report:
    rows = published_rows()[::100]
    served = (Served(rows[0], "flash-attn.3, hopper", 0.01 * rows[0].measured_s, TRUST),)
    points = [point("held out", row, "band", 1.05 * row.measured_s) for row in rows]
    points.append(point("serving", rows[0], served[0].numbers, served[0].predicted_s))
    same = [{"calibration": "flash-attn.2, ampere", "rows": 9, "committed": 0.05, "now": 0.05, "same": True}]
    error = [
        {"what": "FA2 <papers>", "split": "band", "rows": 3, "mean": 0.0512, "median": 0.04, "p90": 0.1, "worst": 1.0}
    ]
    trust = [{"kind": "validated", "points": 7, "coverage": 0.9, "mean_error": 0.05, "width_over_error": 2.0}]
    tables = {name: list[dict[str, Any]]() for name in TITLES} | {
        "error": error, "calibration": same, "trust": trust, "stated": stated_table(served),
    }  # fmt: skip
    return Report(points, tables, "not checked: serving tables")


def drifted(report: Report, now: float) -> Report:
    changed = [report.tables["calibration"][0] | {"same": False, "now": now}]
    return replace(report, tables=report.tables | {"calibration": changed})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, report: Report) -> None:
    def run(sample: int, progress: Callable[[], None], own: Sequence[Row], given: Sequence[Row]) -> Report:
        assert sample == 24 and not own and not given
        progress()
        return report

    monkeypatch.setattr("attnsim.cli.validate.run", run)


def test_the_page_needs_no_other_file(report: Report, tmp_path: Path) -> None:
    picture, table, page = write_report(report, tmp_path)
    text = page.read_text(encoding="utf-8")
    assert "data:image/png;base64," in text
    assert not re.search(r"(src|href)=\"(?!data:|#)", text)
    assert "FA2 &lt;papers&gt;" in text and "5.1 %" in text and "not checked: serving tables" in text
    assert picture.read_bytes().startswith(b"\x89PNG")
    lines = table.read_text(encoding="utf-8").splitlines()
    assert lines[0] == ",".join(report.points[0]) and len(lines) == 1 + len(report.points)


def test_an_interval_as_stated_holds_the_truth_or_not() -> None:
    row = published_rows()[0]
    served = [Served(row, "", factor * row.measured_s, TRUST) for factor in (0.9, 1.5, 3.0, 0.4)]
    (line,) = stated_table(served)
    assert (line["level"], line["rows"], line["coverage"]) == ("extrapolated", 4, 0.5)
    assert line["width_over_error"] == pytest.approx(math.log(2) / line["mean_error"], rel=0.01)


def test_the_page_says_when_a_calibration_has_changed(report: Report) -> None:
    assert "Every committed calibration gives" in html_page(report)
    assert "no longer" in html_page(drifted(report, 0.05))


def test_the_picture_is_of_the_house_a_line_an_implementation(report: Report) -> None:
    far = report.points[0] | {"ratio": 40.0}
    picture = picture_of([*report.points, far])
    (axes,) = picture.figure("dark").axes
    names = {label.get_text().rpartition(", ")[0] for label in axes.get_yticklabels()}
    assert names == {point["implementation"] for point in report.points}
    low, high = axes.get_xlim()
    drawn = np.concatenate(
        [np.asarray(line.get_xdata(), dtype=float) for line in axes.lines if line.get_marker() != "None"]
    )
    assert len(drawn) == len(picture.rows) and ((low <= drawn) & (drawn <= high)).all()
    assert axes.get_facecolor() == to_rgba(find_style("dark").page)


def test_validate_prints_tables_and_writes(quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--out", str(tmp_path / "new")]) == 0
    out = capsys.readouterr().out
    assert "Errors on rows the fit did not see" in out and "not checked: serving tables" in out
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "validation.csv", "validation.html", "validation.png",
    ]  # fmt: skip


def test_validate_in_json_is_one_list(quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--json"]) == 0
    found = capsys.readouterr()
    assert {row["table"] for row in json.loads(found.out)} == {"error", "trust", "stated", "calibration"}
    assert found.err == ""


def test_validate_fails_when_a_calibration_no_longer_gives_its_errors(
    report: Report, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("attnsim.cli.validate.run", lambda *_: drifted(report, 0.06))
    assert main(["validate"]) == 1
    assert "no longer gives" in capsys.readouterr().out


def test_fit_check_compares_and_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"calibration": "flash-attn.2, ampere", "rows": 9, "committed": 0.05, "now": 0.05}
    monkeypatch.setattr("attnsim.cli.accuracy.differences", lambda: [row | {"same": True}])
    monkeypatch.setattr("attnsim.cli.accuracy.measured_rows", list)
    assert main(["fit", "--check"]) == 0
    monkeypatch.setattr("attnsim.cli.accuracy.differences", lambda: [row | {"same": False, "now": 0.06}])
    assert main(["fit", "--check"]) == 1
    assert "NO" in capsys.readouterr().out
    assert main(["fit", "--check", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == [row | {"same": False, "now": 0.06}]


def test_a_changed_prediction_is_a_difference() -> None:
    rows = [row for row in published_rows() if row.record.name == "flash-attn.1" and row.case.source == "fa2_fig7"]
    found = [
        HeldOut(row, split, group, numbers_s)
        for row in rows
        for split, group, numbers_s in (("band", "a", 1.5 * row.measured_s), ("head_dim", "b", row.measured_s))
    ]
    only = {("flash-attn.1", "hopper"): calibrations()["flash-attn.1", "hopper"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnsim.validation.checking.validate.calibrations", lambda: only)
        (line,) = differences(found)
    assert not line["same"] and line["now"] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["validate", "--hypothetical", "--out", "x"], "--hypothetical"),
        (["validate", "--sample", "0"], "'0' given"),
        (["validate", "--io", "--hypothetical"], "exclude"),
        (["validate", "--io", "--out", "x"], "--io"),
        (["validate", "--io", "--measured", "x"], "--measured"),
        (["validate", "--io", "--counters", "x.csv"], "--cases"),
        (["validate", "--counters", "{file}", "--cases", "{file}"], "--io"),
        (["validate", "--measured", "{file}", "--minutes", "0"], "empty"),
        (["validate", "--measured", "nowhere.csv", "--minutes", "0"], "does not exist"),
        (["validate", "--out", "{file}"], "folder"),
        (["fit", "--check", "--record"], "exclude"),
        (["fit", "--check", "vllm-a100"], "exclude"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    arguments: list[str], word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    refused = refusal(capsys, *(argument.format(file=file) for argument in arguments))
    assert word in refused


def test_recording_needs_the_serving_rows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(aiconfigurator, "available", lambda: False)
    assert "attnsim[datasets]" in refusal(capsys, "fit", "--record")


def test_hypothetical_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(aiconfigurator, "available", lambda: False)
    monkeypatch.setattr(hypothetical, "published_rows", lambda: published_rows()[::40])
    assert main(["validate", "--hypothetical"]) == 0
    out = capsys.readouterr().out
    assert "h100-sxm5-80gb as if it did not exist" in out and "attnsim[datasets]" in out
