"""Forecasts before measuring: of what nobody has seen, fixed for good, scored when rows arrive."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

import attnsim
from attnsim.cli import main
from attnsim.validation.checking import forecasts
from attnsim.validation.checking.forecasts import Forecast
from attnsim.validation.measured.datasets import published_cases, row_of
from benchmarks import forecasts as fixing

ONE = Forecast(
    "l4", "flash-attn.2", "fwd", 2, 16, 16, 8192, 8192, 128, 1, 0.01, 0.008, 0.0125, "extrapolated",
    "h100-sxm5-80gb", 0.2, 0.15, 0.25,
)  # fmt: skip
TOO_SLOW = replace(ONE, passes="bwd", time_s=0.06, low_s=0.05, high_s=0.07, over="", ratio=0.0)


@pytest.fixture
def released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A release in a folder of its own."""
    folder = tmp_path / "fixed"
    for module in (forecasts, fixing):
        monkeypatch.setattr(module, "FOLDER", folder)
        monkeypatch.setattr(module, "RELEASES", folder / "releases.csv")
    monkeypatch.setattr(fixing, "HASHES", tmp_path / "hashes.csv")
    monkeypatch.setattr(fixing, "PAGE", tmp_path / "forecasts.md")
    fixing.add("2027-01-02", "abcdef012345", fixing.text_of([ONE, TOO_SLOW]))
    return tmp_path


def rows(folder: Path, *lines: str) -> str:
    path = folder / "rows.csv"
    head = "gpu,implementation,pass,dtype,batch,heads_q,seq_q,head_dim,causal,time_s"
    path.write_text("\n".join((head, *lines)) + "\n", encoding="utf-8")
    return str(path)


def test_fixed_forecasts_are_never_rewritten() -> None:
    """Each table has the hash that it was fixed with, and none is gone."""
    held = {}
    if fixing.HASHES.exists():
        with fixing.HASHES.open(encoding="utf-8", newline="") as file:
            held = {row["date"]: row["sha256"] for row in csv.DictReader(file)}
    assert [*held] == [*forecasts.releases()] == sorted(held)
    assert {f"{date}.csv" for date in held} | {"releases.csv", "README.md"} >= {
        path.name for path in forecasts.FOLDER.glob("*")
    }
    for date, sha256 in held.items():
        assert fixing.hash_of(forecasts.FOLDER / f"{date}.csv") == sha256, f"the forecasts of {date} are not as fixed"


def test_page_is_that_of_the_tables() -> None:
    assert fixing.PAGE.read_text(encoding="utf-8") == fixing.page(), "python benchmarks/forecasts.py --page"


def test_no_row_of_a_forecast_chip_and_kernel_was_at_hand() -> None:
    forecast = {(gpu.id, name) for gpu, record in forecasts.unseen() for name in record.calibrated_as}
    used = set()
    for case in published_cases("fit", "choose", "test", "strangers"):
        try:
            row = row_of(case)
        except attnsim.InputError:
            continue
        used |= {(row.gpu.base_id, name) for name in row.record.calibrated_as}
    assert ("h100-sxm5-80gb", "flash-attn.3") in used and ("l4", "flash-attn.2") in forecast
    assert not used & forecast
    for pair in (
        ("rtx-4090", "vllm.flash-attn-2"),  # a table of batches
        ("h200-sxm-141gb", "vllm.flash-attn-3"), ("b300-sxm", "flash-attn.4"), ("gb300", "flash-attn.4"),  # of serving
        ("rtx-4090", "flash-attn.2"),  # PyTorch's SDPA launches it
    ):  # fmt: skip
        assert pair not in forecast


def test_a_forecast_is_what_is_predicted_with_its_range_and_ratio() -> None:
    gpu, record = next((gpu, one) for gpu, one in forecasts.unseen() if (gpu.id, one.name) == ("l4", "flash-attn.2"))
    found = list(forecasts.forecasts(gpu, record))
    assert {one.passes for one in found} == {"fwd", "bwd", "decode"} and len(found) == 12
    one = next(one for one in found if one.key == ONE.key)
    w = attnsim.Workload(2, 16, 8192, 128, mask=attnsim.Mask.causal())
    here, there = (
        attnsim.predict(w, name, implementation=record.name, cache="cold", baseline=False) for name in ("l4", one.over)
    )
    ratio = here.speedup_over(there)
    assert ratio and here.time_s and (one.time_s, one.low_s, one.high_s) == (
        here.time_s, here.time_low_s, here.time_high_s
    )  # fmt: skip
    assert (one.ratio, one.ratio_low, one.ratio_high) == (ratio.value, ratio.low, ratio.high)


def test_a_release_is_read_back_and_one_of_its_date_is_refused(released: Path) -> None:
    assert forecasts.fixed("2027-01-02") == [ONE, TOO_SLOW] and forecasts.releases() == {"2027-01-02": "abcdef012345"}
    text = (released / "fixed" / "2027-01-02.csv").read_bytes()
    with pytest.raises(attnsim.InputError, match="the forecasts of 2027-01-02 are fixed"):
        fixing.add("2027-01-02", "another", fixing.text_of([]))
    assert (released / "fixed" / "2027-01-02.csv").read_bytes() == text
    fixing.add("2027-02-03", "123", fixing.text_of([ONE]))
    assert [*forecasts.releases()] == ["2027-01-02", "2027-02-03"]
    page = (released / "forecasts.md").read_text(encoding="utf-8")
    assert page.index("## 2027-02-03") < page.index("## 2027-01-02\n\n2 calls, at commit `abcdef012345`.")
    assert "| l4 | flash-attn.2 | 10.0 ms (8.00-12.5) |" in page and "0.200x (0.150-0.250) h100-sxm5-80gb |" in page


def test_rows_are_scored_by_time_range_and_ratio(released: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = rows(
        released,
        "l4,flash-attn.2,fwd,bf16,2,16,8192,128,1,0.0118",
        "l4,flash-attn.2,fwd,fp16,2,16,8192,128,1,0.0122",  # the same call: their mean is held against
        "h100-sxm5-80gb,flash-attn.2,fwd,bf16,2,16,8192,128,1,0.003",
        "l4,flash-attn.2,bwd,bf16,2,16,8192,128,1,0.048",
        "l4,flash-attn.2,fwd,bf16,2,16,4096,128,1,0.01",
    )
    assert main(["accuracy", "--forecasts", table, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    time = {row["pass"]: row for row in found if row["table"] == "time"}
    assert time["fwd"]["mean"] == pytest.approx(1 - 0.01 / 0.012, abs=1e-4)
    assert (time["fwd"]["held"], time["bwd"]["held"], time["bwd"]["mean"]) == (1, 0, 0.25)
    assert time["fwd"]["bias"] < 0 < time["bwd"]["bias"] and time["fwd"]["release"] == "2027-01-02"
    (ratio,) = [row for row in found if row["table"] == "ratio"]
    assert (ratio["rows"], ratio["mean"], ratio["held"]) == (1, 0.2, 1)
    left = [row["why"] for row in found if row["table"] == "not scored"]
    assert left == ["not forecast: flash-attn.2 on l4"]
    assert main(["accuracy", "--forecasts", table]) == 0
    told = capsys.readouterr().out
    assert "Forecast times, by release" in told and "Forecast ratios over another chip" in told


@pytest.mark.parametrize(
    "line, says",
    [
        ("t4,torch.baddbmm,fwd,fp16,1,16,1024,128,1,0.01", "none of its 1 calls was forecast; chips: l4"),
        ("l4,unheard,fwd,fp16,1,16,1024,128,1,0.01", "first refused: implementation 'unheard' is not known"),
        ("l4,flash-attn.2,fwd,fp16,1,16,1024,128,1,0.01", "none of its 1 calls was forecast; chips: l4"),
    ],
)
def test_rows_of_which_none_was_forecast_are_refused(
    released: Path, capsys: pytest.CaptureFixture[str], line: str, says: str
) -> None:
    assert main(["accuracy", "--forecasts", rows(released, line)]) == 2
    told = capsys.readouterr().err
    assert says in " ".join(told.split())


def test_a_chip_with_missing_figures_or_without_an_unseen_kernel_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("id: mine\nname: Mine\narchitecture: ada\n", encoding="utf-8")
    assert fixing.main([str(path)]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "mine.yaml" in told
    assert fixing.main(["h1000"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_without_a_release_there_is_nothing_to_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(forecasts, "RELEASES", tmp_path / "releases.csv")
    table = rows(tmp_path, "l4,flash-attn.2,fwd,bf16,2,16,8192,128,1,0.012")
    assert main(["accuracy", "--forecasts", table]) == 2
    assert "no forecast is fixed yet" in capsys.readouterr().err
    assert main(["accuracy", "--forecasts", table, "--steps"]) == 2
    assert "exclude each other" in capsys.readouterr().err
