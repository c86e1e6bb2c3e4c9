"""Rows away from home: what is one, what separates it from its calibration, and what is refused."""

from dataclasses import replace

import pytest

from attnsim.api.trust import LEVELS
from attnsim.models.calibrations.choose import choose
from attnsim.models.question.case_row import Case
from attnsim.validation.checking import evidence, validate
from attnsim.validation.checking.evidence import Evidence, groups_of, off_home, separation
from attnsim.validation.measured.datasets import Row, published_cases, row_of
from attnsim.validation.measured.sources import ROLES


def cases(source: str, implementation: str) -> list[Case]:
    found = [case for case in published_cases(*ROLES) if (case.source, case.implementation) == (source, implementation)]
    assert found
    return found


def row(source: str, implementation: str, passes: str = "fwd") -> Row:
    return row_of(next(case for case in cases(source, implementation) if case.passes == passes))


def carried_by(one: Row) -> set[str]:
    return {*separation(one, choose(one.record, one.gpu).calibration)}


def test_a_source_is_separated_by_laboratory_version_chip_and_pass() -> None:
    assert carried_by(row("fa2_fig7", "flash_attn_v2", "fwd+bwd")) == set(), "the table it was fitted on"
    assert carried_by(row("nsa_triton_readme", "flash_attn_v2")) >= {"laboratory", "version"}
    assert not {"chip", "kernel", "architecture"} & carried_by(row("nsa_triton_readme", "flash_attn_v2"))
    assert carried_by(row("cudnn_fe_train_h200", "cudnn")) >= {"laboratory", "clock", "chip"}
    assert carried_by(row("fa3_fig6", "flash_attn_v3", "bwd")) == set(), "the same paper; its clock is no other GPU"
    assert "pass" in carried_by(row("sage_readme_fig", "torch.sdpa-efficient")), "fitted forward and backward together"


def test_off_home_rows_are_those_no_fit_has_seen_and_refusals_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    some = [
        *cases("fa2_fig7", "flash_attn_v2")[:2],
        *cases("nsa_triton_readme", "flash_attn_v2")[:2],
        replace(cases("fa2_fig7", "flash_attn_v2")[0], implementation="nobodys"),
    ]
    monkeypatch.setattr(evidence, "published_cases", lambda *roles: iter(some))
    monkeypatch.setattr(evidence, "serving_rows", lambda sample: [])
    away, refused = off_home()
    assert {one.row.case.source for one in away} == {"nsa_triton_readme"} and len(away) == 2
    (line,) = validate.refused_table(refused)
    assert (line["rows"], line["implementation"]) == (1, "nobodys") and "not known" in line["why"]
    (total, *_) = validate.totals(away)
    assert total["rows"] == 2 and total["mean"] == pytest.approx(sum(abs(one.predicted_s / one.row.measured_s - 1)
                                                                     for one in away) / 2, abs=1e-3)  # fmt: skip
    (by_source,) = validate.sources_table(away)
    assert (by_source["laboratory"], by_source["use"], by_source["held"]) == ("XunhaoLai", "test", total["held"])
    (group,) = groups_of(away)
    assert (group.source, group.passes, len(group.logs)) == ("nsa_triton_readme", "fwd", 2) and group.spread > 0


def test_no_width_of_a_range_rests_on_strangers_whose_errors_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    some = [*cases("nsa_triton_readme", "flash_attn_v2")[:1], *cases("fa_issue1310", "cudnn")[:2]]
    monkeypatch.setattr(evidence, "published_cases", lambda *roles: iter(some))
    monkeypatch.setattr(evidence, "serving_rows", lambda sample: [])
    away, _ = off_home()
    assert [row["use"] for row in validate.totals(away)] == ["all", "test", "strangers"]
    lines = validate.levels_table(away)
    assert [(row["use"], row["architecture"], row["rows"]) for row in lines] == [
        ("others", "ampere", 1),
        ("strangers", "hopper", 2),
    ]
    assert all(row["level"] in LEVELS and row["pass"] == "fwd" for row in lines)
    assert [group.source for group in Evidence(away, away, away, []).groups] == ["nsa_triton_readme"]
