"""Components of trust: known ones are found again, and hold nine rows in ten of a laboratory that is left out."""

import json
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from attnsim.cli import main
from attnsim.models.calibrations.components import COMPONENTS, NORMAL_90, RATIOS, Widths, widths
from attnsim.validation.checking.components import HOME, Group, components_table, left_out, measured, needed
from attnsim.validation.checking.evidence import Refused
from attnsim.validation.checking.validate import refused_table

TRUE = {"laboratory": 0.06, "chip": 0.12, "architecture": 0.2}
WITHIN = 0.05


@cache
def made(laboratories: int = 24, tables: int = 3) -> tuple[Group, ...]:
    """Groups of laboratories whose errors are drawn with known standard deviations, and some at home."""
    random = np.random.default_rng(3)
    sets = ((), ("laboratory",), ("laboratory", "chip"), ("laboratory", "architecture"))
    return tuple(
        Group(
            f"source {one}", f"lab {one}", f"gpu {one % 5}", "kernel", "fwd", names,
            sum(random.normal(0, TRUE[name]) for name in names) + random.normal(0, WITHIN, 16), WITHIN * 0.8,
        )
        for one in range(laboratories)
        for names in sets
        for _ in range(tables)
    )  # fmt: skip


def test_known_components_are_found_again() -> None:
    found = measured(made())
    for name, true in TRUE.items():
        assert found.sd[name] == pytest.approx(true, rel=0.35), name


def test_what_alternatives_say_is_not_a_component_s_to_say_again() -> None:
    """Errors of a change, and other ones of 0.2 on top, which the ranges of half of the steps know as alternatives."""
    random = np.random.default_rng(5)
    noise, more = random.normal(0, 0.05, 400), random.normal(0, 0.2, 400)
    known = np.where(np.arange(400) % 2, 0.0, NORMAL_90 * 0.2)
    steps = [
        Group(f"{one}", f"pair {one}", "gpu", "kernel", "fwd", ("change",), np.array([log]), 0.0, known=half)
        for one, (log, half) in enumerate(zip(noise + more * (known > 0), known, strict=True))
    ]
    found = measured(steps, RATIOS)
    assert found.sd["change"] == pytest.approx(0.05, rel=0.3)
    assert measured([replace(one, known=0.0) for one in steps], RATIOS).sd["change"] > 0.1
    half = found.factor * steps[0].sd(found)
    assert half == pytest.approx(NORMAL_90 * math.hypot(0.2, found.sd["change"]))


def test_nine_rows_in_ten_of_a_laboratory_that_is_left_out_are_held() -> None:
    groups = [group for group in made() if group.components]
    check = left_out(made(), lambda group: group.laboratory)
    assert 0.85 <= np.mean([check.inside[group] for group in groups]) <= 0.95
    for name in TRUE:
        mine = [group for group in groups if group.category == name]
        assert 0.8 <= np.mean([check.inside[group] for group in mine]) <= 0.97, name
        assert np.median([check.half[group] for group in mine]) <= 1.5 * needed(mine), name


def test_the_table_has_every_component_and_home() -> None:
    table = {row["component"]: row for row in components_table(made(laboratories=4))}
    assert set(table) == {HOME, *COMPONENTS}
    assert (table["chip"]["sources"], table["chip"]["groups"]) == (4, 12)
    assert table["window"]["half_width"] is None and table["window"]["sd"] > 0
    assert table[HOME]["half_width"] == pytest.approx(table[HOME]["needed"], rel=0.1), "home holds nine in ten too"


def test_one_broken_table_does_not_set_a_component() -> None:
    usual = measured(made()).sd["chip"]
    broken = Group("bad", "bad", "gpu 1", "kernel", "fwd", ("laboratory", "chip"), np.full(16, 1.6), WITHIN * 0.8)
    assert measured([*made(), broken]).sd["chip"] < 1.25 * usual
    worse = replace(broken, logs=np.full(16, 3.2))
    assert measured([*made(), worse]).sd["chip"] == pytest.approx(measured([*made(), broken]).sd["chip"], rel=0.03)


def test_tables_of_one_source_and_kernel_share_a_vote() -> None:
    broken = Group("bad", "bad", "gpu 1", "kernel", "fwd", ("laboratory", "chip"), np.full(16, 1.6), WITHIN * 0.8)
    once, thrice = measured([*made(), broken]), measured([*made(), broken, broken, broken])
    assert thrice.sd == pytest.approx(once.sd, rel=0.01)


def test_what_nobody_has_measured_is_as_wide_as_components_are_in_general() -> None:
    found = measured(made()).sd
    assert found["window"] == pytest.approx(found["priors"], rel=0.01)
    assert TRUE["laboratory"] / 2 < found["window"] < TRUE["architecture"]


def test_more_components_never_make_a_range_narrower() -> None:
    for known in (widths(), measured(made())):
        half = 0.0
        for number in range(len(COMPONENTS) + 1):
            wider = known.half_width(known.parts(0.05, list(COMPONENTS)[:number]).values())
            assert wider >= half
            half = wider
    assert Widths(2.0, 1.0, {"chip": 0.04}).half_width([0.03, 0.04]) == pytest.approx(0.1)
    parts = Widths(2.0, 1.5, {"chip": 0.04}).parts(0.02, ["chip"])
    assert math.hypot(*parts.values()) == pytest.approx(0.05)


def test_every_component_is_committed_and_its_check_holds() -> None:
    assert set(widths().sd) == set(COMPONENTS)
    assert all(0 < sd < 1 for sd in widths().sd.values()) and math.isfinite(widths().factor)


REPORT = {
    "total": [{"use": "all", "rows": 3, "mean": 0.1, "median": 0.05, "bias": -0.02, "held": 0.9}],
    "group": [{"use": "strangers", "level": "validated", "pass": "fwd", "architecture": "hopper", "rows": 2,
               "mean": 0.1, "median": 0.05, "bias": -0.02, "held": 1.0}],
    "source": [
        {
            "laboratory": "Tsinghua", "source": "sage_readme_fig", "use": "choose", "gpu": "rtx-3090", "rows": 3,
            "mean": 0.1, "median": 0.05, "bias": -0.02, "held": 2 / 3,
        }
    ],
    "component": [
        {
            "component": name, "sources": 2, "laboratories": 1, "groups": 3, "within": 0.05, "sd": 0.12,
            "half_width": 0.2, "needed": None, "ratio": None, "held": 0.875, "held_chip": None,
        }
        for name in COMPONENTS
    ],
    "ratio": [
        {
            "component": name, "sd": 0.2, "steps": 3, "pairs": 1, "error": 0.024, "half_width": 0.115,
            "held": None,
        }
        for name in RATIOS
    ],
    "pair": [
        {
            "older": "h100-sxm5-80gb", "newer": "h200-sxm-141gb", "numbers": "carried", "steps": 3, "ratio": 1.4,
            "error": 0.024, "half_width": 0.115, "held": 0.958,
        }
    ],
    "kernels": [
        {
            "laboratory": "Tsinghua", "gpu": "rtx-3090", "kernels": 2, "steps": 3, "error": 0.1, "half_width": 0.2,
            "held": 0.875,
        }
    ],
    "refused": refused_table([Refused("paper", "h100-sxm5-80gb", "someones", "is not known")] * 2),
}  # fmt: skip


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnsim.cli.accuracy.sources_report", lambda: REPORT)


def test_accuracy_sources_prints_sources_components_and_refusals(
    quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["accuracy", "--sources"]) == 0
    out = capsys.readouterr().out
    assert "sage_readme_fig" in out and "66.7 %" in out and "-2.0 %" in out
    assert all(name in out for name in COMPONENTS)
    assert all(name in out for name in RATIOS) and "1.40x" in out and "95.8" in out
    assert "someones" in out and "is not known" in out


def test_accuracy_sources_in_json_is_one_list(quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accuracy", "--sources", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["kind"] for row in found} == set(REPORT)
    assert next(row for row in found if row["kind"] == "refused")["rows"] == 2


def test_accuracy_says_what_is_not_checked_without_the_package(
    quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("attnsim.validation.measured.aiconfigurator.missing", lambda: "not checked: serving")
    assert main(["accuracy", "--sources"]) == 0
    assert "not checked: serving" in capsys.readouterr().out
    assert main(["accuracy", "--sources", "--claims"]) == 2
