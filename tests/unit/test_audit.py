"""The audit of a table of timings: rows that are plausible, suspicious or impossible, and why."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import attnsim
from attnsim.api.adapting.audit import KINDS, NOTHING, OTHER_BUILD, Tried, causes, kinds_of, named, standing_alone
from attnsim.api.adapting.own import COORDINATES, SCALES, Near, Points, Scales, likelihood
from attnsim.api.tables import predict_rows, question_of
from attnsim.cli import main
from attnsim.errors import InputError
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.question.case_file import records
from attnsim.models.question.case_row import parse_row
from attnsim.models.question.columns import read_columns
from attnsim.wording import number
from tests.unit.answering import refusal

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
STATED = {
    "gpu": "a100-sxm4-80gb", "implementation": "flash-attn.2", "batch": 2, "heads_q": 16, "head_dim": 128, "causal": 0,
}  # fmt: skip
WOBBLE = (1.03, 0.97, 1.02, 1.0, 0.98, 1.01, 0.96)


def ran(
    changed: Mapping[str, object], stated: Mapping[str, object] = STATED, lengths: object = LENGTHS
) -> pd.DataFrame:
    """A table that states one thing, with the times of another."""
    frame = pd.DataFrame({**stated, "seq": lengths})
    true = pd.DataFrame([{**row, **changed} for row in frame.to_dict("records")])
    times = [row.predicted_s for row in predict_rows(true, read_columns(true), progress=False)]
    wobble = np.resize(WOBBLE, len(frame))
    return frame.assign(time_s=np.array(times, dtype=float) * wobble)


def test_a_table_that_states_what_was_run_is_plausible() -> None:
    found = attnsim.check(ran({}))
    assert found.audit.rows == ["plausible"] * len(LENGTHS) and not found.audit.lines and not found.audit.reasons


def test_a_model_that_is_off_by_one_factor_is_no_reason() -> None:
    frame = ran({})
    assert not attnsim.check(frame.assign(time_s=frame["time_s"] * 1.2)).audit.reasons


@pytest.mark.parametrize(
    ("changed", "kind", "name"),
    [
        ({"launch": "host"}, "launch", "launch=host"),
        ({"causal": 1}, "mask", "causal inverted"),
        ({"pass": "fwd+bwd"}, "pass", "pass=fwd+bwd"),
        ({"heads_q": 2}, "size", "heads / 8"),
        ({"implementation": "torch.sdpa-math"}, "build", "implementation=torch.sdpa-math"),
    ],
)
def test_what_was_run_instead_is_named(changed: dict[str, object], kind: str, name: str) -> None:
    found = attnsim.check(ran(changed))
    (finding,) = found.audit.findings
    first = finding.reasons[0]
    assert first.kind == kind and (first.name == name or kind == "size")
    assert len(finding.reasons) <= 2 and len({one.kind for one in finding.reasons}) == len(finding.reasons)
    assert first.after < 0.05 < first.before and first.rows == len(LENGTHS)
    assert finding.text.startswith("flash-attn.2, fwd is suspicious: ") and KINDS[kind] in finding.text
    assert "or none of these" in finding.text
    impossible = [bool(row.impossible) for row in found.answered]
    assert any(impossible) == (name in ("causal inverted", "heads / 8"))  # faster than what is stated can be
    for verdict, below in zip(found.audit.rows, impossible, strict=True):
        assert verdict.startswith("impossible: measured is ") if below else verdict == f"suspicious: {first.name}"


@pytest.mark.parametrize("factor", [1e3, 1e-3])
def test_a_wrong_unit_is_named(factor: float) -> None:
    frame = ran({})
    (reason, *_) = attnsim.check(frame.assign(time_s=frame["time_s"] * factor)).audit.reasons
    assert reason["kind"] == "unit" and reason["name"] == f"time_s x {1 / factor:g}"


def test_a_mended_table_is_the_stated_one_with_the_columns_set(tmp_path: Path) -> None:
    frame = ran({"launch": "host"})
    found = attnsim.check(frame)
    mended = found.audit.mended()
    assert list(mended["launch"]) == ["host"] * len(frame) and mended.drop(columns="launch").equals(frame)
    assert "launch" not in frame.columns
    again = attnsim.check(mended)
    assert again.accuracy[0].mean < 0.05 and not again.audit.reasons


def test_rows_of_another_kernel_stay_as_they_are() -> None:
    host, right = ran({"launch": "host"}), ran({}, {**STATED, "implementation": "flash-attn.1"})
    found = attnsim.check(pd.concat([host, right], ignore_index=True))
    assert found.audit.rows == ["suspicious: launch=host"] * len(LENGTHS) + ["plausible"] * len(LENGTHS)
    assert list(found.audit.mended()["launch"]) == ["host"] * len(LENGTHS) + [""] * len(LENGTHS)


def test_a_cause_is_tried_and_mended_in_their_words() -> None:
    """Columns with other names, a unit in the name, and a GPU that is given for all rows."""
    frame = ran({"pass": "fwd+bwd"}).rename(columns={"batch": "B", "heads_q": "nheads", "head_dim": "d"})
    frame = frame.assign(mode="forward", latency=frame.pop("time_s") * 1e3).drop(columns="gpu")
    frame = frame.rename(columns={"latency": "latency (ms)"})
    found = attnsim.check(frame, gpu="a100-sxm4-80gb")
    mended = found.audit.mended()
    assert set(mended["mode"]) == {"fwd+bwd"} and list(mended.columns) == list(frame.columns)
    assert attnsim.check(mended, gpu="a100-sxm4-80gb").accuracy[0].mean < 0.05


def test_a_rate_that_counts_masked_pairs_is_a_convention() -> None:
    frame = ran({}, {**STATED, "causal": 1, "seq": 0}, [1024, 1536, 2048, 3072, 4096, 8192])
    rate = 4 * 2 * 16 * 128 * frame["seq"] ** 2 / frame.pop("time_s") / 1e12  # all pairs
    reasons = attnsim.check(frame.assign(tflops=rate)).audit.reasons
    assert reasons and "mask" in {reason["kind"] for reason in reasons}
    assert {"FLOPs x 0.5", "causal inverted"} & {reason["name"] for reason in reasons}


@pytest.mark.parametrize("factor", [3.0, 2.0, 0.5])
def test_a_row_that_stands_alone_is_found_and_the_others_stay_plausible(factor: float) -> None:
    frame = ran({}, lengths=(512, 1024, 1536, 2048, 3072, 4096, 6144, 8192))
    frame["time_s"] *= [1.0, 1.0, 1.0, factor, 1.0, 1.0, 1.0, 1.0]
    found = attnsim.check(frame).audit
    if factor < 1:  # below what the GPU can do
        assert found.rows[3].startswith(("impossible", "suspicious"))
    else:
        assert (
            found.rows[3]
            == f"suspicious: measured is {number(found.findings[0].alone[3], 2)}x what the other rows foretell"
        )
        assert found.lines[0].startswith("row 3 stands alone: ")
    assert found.findings[0].alone[3] == pytest.approx(factor, rel=0.15)
    assert [row for place, row in enumerate(found.rows) if place != 3] == ["plausible"] * 7 and not found.reasons


def test_an_impossible_row_stands_in_no_picture_and_ends_with_1(tmp_path: Path) -> None:
    frame = ran({}, lengths=(1024, 2048, 4096, 8192))
    frame["time_s"] *= [1.0, 1.0, 0.05, 1.0]
    found = attnsim.check(frame)
    assert found.audit.rows[2].startswith("impossible: measured is ")
    assert found.accuracy[0].rows == 3
    frame.to_csv(tmp_path / "rows.csv", index=False)
    assert main(["check", str(tmp_path / "rows.csv"), "--plot", str(tmp_path / "a.png")]) == 1
    assert len(pd.read_csv(tmp_path / "a.csv", comment="#")) == 3


def times_apart(factor: float) -> pd.DataFrame:
    """Three rows, of which the last is so many times slower than it is."""
    frame = ran({}, lengths=(1024, 2048, 4096))
    frame["time_s"] *= [1.0, 1.0, factor / WOBBLE[2]]
    return frame


@pytest.mark.parametrize(
    ("factor", "told"),
    [
        (1420.0, "measured is 1,400x the prediction: is a unit wrong (us and ms, or ms and s)?"),
        (1.21e6, "measured is 1,200,000x the prediction: is a unit wrong (us and s)?"),
        (40.3, "measured is 40x the prediction: is a unit wrong (s and min)?"),
        (202.0, "measured is 200x the prediction: is a shape or a unit wrong?"),
    ],
)
def test_a_row_that_is_far_off_is_suspicious_by_itself(
    factor: float, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = times_apart(factor)
    found = attnsim.check(frame)
    assert found.far == {told: [2]} and found.audit.rows == ["plausible", "plausible", f"suspicious: {told}"]
    (every,) = found.accuracy
    assert every.rows == 2 and every.mean < 0.05
    frame.to_csv(tmp_path / "rows.csv", index=False)
    assert main(["check", str(tmp_path / "rows.csv"), "--plot", str(tmp_path / "a.png")]) == 1
    assert f"line 4, in no mean: {told}" in " ".join(capsys.readouterr().out.split())
    assert len(pd.read_csv(tmp_path / "a.csv", comment="#")) == 2


def test_a_row_that_is_less_far_off_counts() -> None:
    found = attnsim.check(times_apart(29.0))
    assert not found.far and found.accuracy[0].rows == 3


def test_a_row_that_is_far_off_hides_no_reason_of_the_others() -> None:
    frame = ran({"launch": "host"})
    frame["time_s"] *= [1.0, 1.0, 1.0, 1000.0, 1.0, 1.0, 1.0]
    found = attnsim.check(frame).audit
    assert found.rows[3].startswith("suspicious: measured is 1,") and found.rows[3].endswith("or ms and s)?")
    assert set(found.rows) == {found.rows[3], "suspicious: launch=host"} and not found.findings[0].alone


def test_a_table_in_a_wrong_unit_is_named_as_one_and_adapt_names_what_mends_it() -> None:
    frame = ran({})
    wrong = frame.assign(time_s=frame["time_s"] * 1000)
    found = attnsim.check(wrong)
    assert set(found.audit.rows) == {"suspicious: time_s x 0.001"} and not found.accuracy
    assert list(found.far.values()) == [list(range(len(LENGTHS)))]
    assert next(iter(found.far)).startswith("measured is 960x to 1,000x the prediction: ")
    with pytest.raises(InputError, match=r"time_s x 0.001.* mends the table"):
        attnsim.adapt(wrong)


def test_few_rows_and_corrected_answers_are_not_audited() -> None:
    assert not attnsim.check(ran({"launch": "host"}, lengths=(128, 256, 512, 1024))).audit.reasons
    own = attnsim.adapt(ran({}, lengths=(256, 1024, 4096))).own
    assert not attnsim.check(ran({"launch": "host"}), calibration=own).audit.findings


def test_the_order_of_rows_does_not_matter() -> None:
    frame = ran({"launch": "host"})
    found, back = (attnsim.check(one).audit.reasons for one in (frame, frame.iloc[::-1]))
    assert [one["name"] for one in found] == [one["name"] for one in back]
    assert found[0]["probability"] == pytest.approx(back[0]["probability"])


def test_adapt_stops_where_a_reason_is_named() -> None:
    frame = ran({"launch": "host"})
    with pytest.raises(InputError) as caught:
        attnsim.adapt(frame)
    told = str(caught.value)
    assert "launch=host" in told and "--as-stated" in told and "\n" not in told
    assert len(attnsim.adapt(frame, as_stated=True).own.timings) == len(LENGTHS)
    assert attnsim.adapt(attnsim.check(frame).audit.mended()).own.timings


def test_the_command_names_reasons_and_writes_a_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine, fixed = tmp_path / "mine.csv", tmp_path / "fixed.csv"
    ran({"launch": "host"}).to_csv(mine, index=False)
    before = mine.read_bytes()
    assert main(["check", str(mine), "--apply", str(fixed)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "flash-attn.2, fwd is suspicious: launch=host: " in printed and f"of {len(LENGTHS)} rows inside" in printed
    assert mine.read_bytes() == before and set(pd.read_csv(fixed)["launch"]) == {"host"}
    assert main(["check", str(mine), "--json"]) == 0
    parts = json.loads(capsys.readouterr().out)
    assert {one["verdict"] for one in parts if one["table"] == "row"} == {"suspicious: launch=host"}
    assert next(one["name"] for one in parts if one["table"] == "reason") == "launch=host"
    assert main(["check", str(fixed), "--apply", str(tmp_path / "none.csv")]) == 1
    assert "not written, because no reason is named" in capsys.readouterr().err
    assert not (tmp_path / "none.csv").exists()
    assert "is the table itself" in refusal(capsys, "check", str(mine), "--apply", str(mine))
    assert "--as-stated" in refusal(capsys, "adapt", str(mine))


def test_kinds_of_cells_stay_what_they_are(tmp_path: Path) -> None:
    """A column of Parquet holds cells of one kind; a table with a column a kernel is mended with a row each."""
    frame = ran({"causal": 1, "launch": "kernel"}, {**STATED, "causal": False, "launch": "kernel"})
    mended = attnsim.check(frame).audit.mended()
    assert mended["causal"].dtype == bool and mended["causal"].all()
    twice = ran({"heads_q": 32}).drop(columns="implementation")
    twice = twice.rename(columns={"time_s": "flash_attn_v2 (s)"}).assign(**{"cudnn (s)": np.nan})
    found = attnsim.check(twice)
    mended = found.audit.mended()
    mended.to_parquet(tmp_path / "mended.parquet")
    assert found.audit.reasons and attnsim.check(mended).accuracy[0].mean < 0.05


def test_every_cause_asks_another_question_or_is_refused_in_a_line() -> None:
    frame = ran({})
    row, columns = next(iter(records(frame))), read_columns(frame)
    case = parse_row(row, columns)
    found = list(causes(row, columns, case, question_of(case), 1.2e9))
    assert {one.kind for one in found} == KINDS.keys() and len({one.name for one in found}) == len(found)
    for cause in found:
        cells, read = cause.on(row, columns)
        changed = parse_row(cells, read)
        try:
            asked = question_of(changed)
        except InputError as error:
            assert "\n" not in str(error)
            continue
        assert asked != question_of(case) or changed.time_s != case.time_s, cause.name
    every = {name for others in OTHER_BUILD.values() for name in others} | OTHER_BUILD.keys()
    assert every <= IMPLEMENTATIONS.keys()


def points(count: int) -> Points:
    return Points(
        np.linspace(0, 6, count)[:, None] * np.eye(len(COORDINATES))[0], np.full(count, 0.1), np.full(count, 1e-3)
    )


def test_the_likelihood_is_that_of_a_normal_distribution_where_the_scale_is_known() -> None:
    calls, off = points(4), np.array([0.1, -0.05, 0.02, 0.2])
    scales = Scales(0.05, 0.14, 0.11, 3.0, 2e-6, 1e9, 1.07)
    covariance = calls.shared(calls, scales) + np.diag(calls.noise(scales))
    normal = -0.5 * (off @ np.linalg.solve(covariance, off) + np.linalg.slogdet(2 * np.pi * covariance)[1])
    assert likelihood(calls, off, scales) == pytest.approx(normal, rel=1e-6)
    assert likelihood(calls, off) != pytest.approx(normal, rel=0.01)


def test_a_row_is_as_strange_as_the_others_make_it() -> None:
    calls, off = points(8), np.zeros(8)
    off[2] = 1.0
    strange = Near(calls, off, SCALES).strangeness
    assert np.argmax(np.abs(strange)) == 2 and strange[2] > 4 and np.abs(np.delete(strange, 2)).max() < 2
    assert set(standing_alone(calls, off)) == {2} and not standing_alone(calls, np.full(8, 1.0))


def test_a_cause_that_changes_nothing_or_explains_little_is_not_named() -> None:
    calls, off = points(8), np.linspace(0.9, 0.3, 8)
    rest = calls.predicted_s, np.ones(8, dtype=bool), np.ones(8)
    stated, same = Tried("", "", off, *rest), Tried("launch", "same", off + NOTHING / 2, *rest)
    little, all_of_it = Tried("mask", "little", off - 0.2, *rest), Tried("size", "all", off * 0.05, *rest)
    assert named(calls, stated, [same])[1] == () and named(calls, stated, [little])[1] == ()
    right, reasons = named(calls, stated, [same, little, all_of_it])
    assert right < 0.1 and reasons[0].name == "all" and reasons[0].inside == 8
    impossible = replace(all_of_it, above=-np.ones(8))
    assert named(calls, stated, [all_of_it])[0] < 0.1 and named(calls, stated, [impossible])[0] > 0.99
    assert kinds_of([same, little, all_of_it], [0.1, 0.2, 0.7]) == [(0.7, 2), (0.2, 1), (0.1, 0)]
