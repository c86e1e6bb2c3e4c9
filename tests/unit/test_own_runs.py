"""Our own measured runs and counted bytes in `attnsim validate`: read, measured on the spot, profiled."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnsim.cli import main
from attnsim.errors import InputError
from attnsim.kernels.catalog import Operation
from attnsim.kernels.gpu.measuring import by_value
from attnsim.kernels.gpu.records import FILE_NAME, Records
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.question.case_file import read_cases, write_table
from attnsim.models.question.case_row import gpu_of, workload_of
from attnsim.validation.checking.validate import Report, predictions, serving_table
from attnsim.validation.measured.own_runs import (
    measure_here,
    measured_frame,
    measured_rows,
    own_rows,
    own_tables,
    rows_of,
)
from attnsim.validation.measuring.counters import METRICS, shapes
from attnsim.validation.measuring.measure import measure as whole
from tests.unit.answering import refusal
from tests.unit.fake_bench import GPU, Clock, make_bench, outcome


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run of two operations on a made-up GPU."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Operation, "exercise", lambda *_: outcome(0.0))
        operations = by_value(["flash", "decode"])
        whole(make_bench(), Records(folder / FILE_NAME), operations, budget_s=200, clock=Clock())
    return folder


def test_a_folder_and_its_table_give_the_same_rows(run: Path, tmp_path: Path) -> None:
    rows = rows_of(run)
    assert {row.record.name for row in rows} == {"attnsim.flash", "attnsim.decode"}
    assert {row.gpu.base_id for row in rows} == {GPU.id}
    table = tmp_path / "table.csv"
    write_table(measured_frame(measured_rows(Records(run / FILE_NAME).done.values())), table)
    assert [row.case for row in rows_of(table)] == [row.case for row in rows]


def test_every_committed_run_can_be_read() -> None:
    assert {row.case.source for row in own_rows()} == {table.stem for table in own_tables()}


def test_a_row_that_was_not_measured_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "questions.csv"
    table.write_text("gpu,batch,heads_q,seq_q,head_dim\nh100-sxm5-80gb,1,8,512,64\n")
    with pytest.raises(InputError, match="no time_s or no implementation"):
        rows_of(table)
    with pytest.raises(InputError, match=FILE_NAME):
        rows_of(tmp_path)


def test_without_a_gpu_nothing_is_measured_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(seed: int) -> Any:
        raise InputError("CuPy is not installed; pip install cupy-cuda13x")

    monkeypatch.setattr("attnsim.validation.measured.own_runs.attached_bench", nowhere)
    assert measure_here(1, lambda key: None) == (
        [],
        "nothing was measured here: CuPy is not installed; pip install cupy-cuda13x",
    )


def test_with_a_gpu_it_is_measured_first_and_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("attnsim.validation.measured.own_runs.attached_bench", lambda seed: make_bench())
    monkeypatch.setattr(Operation, "exercise", lambda *_: outcome(0.0))
    clocked: Callable[..., Any] = lambda *a, **k: whole(*a, **{**k, "budget_s": 400}, clock=Clock())  # noqa: E731
    monkeypatch.setattr("attnsim.validation.measured.own_runs.measure", clocked)
    first, told = measure_here(1, lambda key: None)
    more, _ = measure_here(1, lambda key: None)
    assert 0 < len(first) < len(more)
    assert str(tmp_path / "attnsim" / "measured" / GPU.id) in told and "points left" in told


def test_validate_predicts_the_users_measurements(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def quick(sample: int, progress: Callable[[], None], own: Any, given: Any) -> Report:
        assert not own  # a user's rows are not called our own
        return Report([], {"given": serving_table(predictions(given[:4])), "calibration": []}, "")

    monkeypatch.setattr("attnsim.cli.validate.run", quick)
    assert main(["validate", "--measured", str(run), "--minutes", "0", "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)
    assert {line["table"] for line in lines} == {"given"} and sum(line["rows"] for line in lines) == 4
    assert all(line["mean"] > 0 for line in lines)


CASE = "gpu,implementation,batch,heads_q,seq_q,head_dim,cache\nh100-sxm5-80gb,attnsim.flash,1,16,1024,64,cold\n"


def counted(blocks: int) -> str:
    """A launch of the flash kernel as the profiler writes it."""
    names, values = list(METRICS.values()), ("6,291,456", "2,097,152", "33,554,432", "20,000")
    header = ",".join(f'"{name}"' for name in ("ID", "Kernel Name", "Grid Size", *names))
    line = ",".join(f'"{cell}"' for cell in ("0", "flash_forward", f"({blocks}, 1, 1)", *values))
    return f'{header}\n"","","","byte","byte","byte","ns"\n{line}\n'


def blocks_of(table: Path) -> int:
    (case,) = read_cases(table)
    record = find_implementation(case.implementation or "")
    return record.build(workload_of(case), gpu_of(case), None).kernels[0].blocks


def test_counted_bytes_stand_beside_predicted_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases, counters = tmp_path / "cases.csv", tmp_path / "counters.csv"
    cases.write_text(CASE)
    counters.write_text(counted(blocks_of(cases)))
    command = ["validate", "--io", "--counters", str(counters), "--cases", str(cases)]
    assert main([*command, "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert line["hbm_read_counted"] == 6_291_456 and line["hbm_read_error"] == pytest.approx(0, abs=0.05)
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "HBM write" in text and "counted MB" in text


def test_shapes_are_of_every_operation_that_runs() -> None:
    names = {one.name for one, _ in shapes(GPU)}
    assert {"naive", "flash", "sparse", "decode", "linear", "flash-backward"} <= names and "flash-hopper" not in names


def test_without_a_profiler_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    assert "--counters" in refusal(capsys, "validate", "--io")
