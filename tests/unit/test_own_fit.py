"""From the records of a run to a calibration and its errors: tried with a run in which our model is the GPU."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attnsim.cli import main
from attnsim.errors import InputError
from attnsim.kernels.catalog import OPERATIONS
from attnsim.kernels.gpu.records import FILE_NAME, Point, Records, version_of
from attnsim.kernels.gpu.timing import Reading, Sample, Timing
from attnsim.models.calibrations import calibration
from attnsim.models.calibrations.choose import choose
from attnsim.models.calibrations.numbers import ImplementationNumbers
from attnsim.models.implementations.choose import OWN_KERNELS, find_implementation, match
from attnsim.models.implementations.names import build_speed
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.simulator.replay import replay
from attnsim.validation.checking import accuracy
from attnsim.validation.fitting import fit as fitting
from attnsim.validation.fitting import jobs
from attnsim.validation.fitting.problem import Problem
from attnsim.validation.measured import own_runs
from attnsim.validation.measured.own_runs import keep, own_rows
from benchmarks import gpu_run
from tests.unit.answering import refusal
from tests.unit.fake_bench import GPU, make_bench

MHZ = GPU.clock.full_hz / 1e6
LONGER_CLKS = 600.0
"""By how much a step of our kernel waits longer on the synthetic GPU than the numbers say that it borrows."""


def numbers(name: str) -> Any:
    """The numbers behind the synthetic times of an implementation."""
    found = choose(find_implementation(name), GPU).numbers
    if name != "attnsim.flash":
        return found
    inner = found.implementation
    return replace(found, implementation=replace(inner, step_clks=inner.step_clks + LONGER_CLKS))


def played(name: str, version: str, w: Workload, wobble: float) -> Timing:
    """A timing as our own model has it, within 1 %."""
    record = match(name, version, GPU, w).record
    built = replace(numbers(name), speed=build_speed(record, w, GPU))
    seconds = replay(record.build(w, GPU, None), GPU, built, cache="cold").time_s * wobble
    state = Reading(sm_mhz=MHZ)
    return Timing("cold", tuple(Sample(seconds * (1 + 1e-4 * i), state) for i in range(5)))


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """The flash step of ``gpu_run.py``, ours beside PyTorch's, on a GPU that is our model of it."""
    out = Records(tmp_path_factory.mktemp("run") / FILE_NAME)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("attnsim.kernels.gpu.cuda_device.import_cupy", SimpleNamespace)
        gpu = gpu_run.Run(make_bench())
        gpu.torch = SimpleNamespace(__version__="2.9.0+cu130")
        for _ in out.run(gpu_run.machine(gpu), 1e9, lambda: 0.0):
            pass
        wobbles = itertools.cycle((1.0, 1.01, 0.99, 1.005, 0.995))

        def points() -> Iterator[Point]:
            shapes = itertools.product((512, 1024, 2048, 4096), (16,), (64, 128), (Mask(), Mask.causal()))
            for seq, heads, width, mask in shapes:
                w = Workload(1, heads, seq, width, mask=mask)

                def measure(w: Workload = w) -> dict[str, Any]:
                    times = {}
                    for name in ("flash", "torch flash"):
                        whose = gpu_run.whose(gpu, name)
                        found = played(whose["implementation"], whose["version"], w, next(wobbles))
                        times[name] = found.to_dict() | whose
                    return {"times": times}

                yield Point(f"flash {w}", measure, gpu_run.beside(gpu, w))

        assert not [key for key, record in out.run(points(), 1e9, lambda: 0.0) if "error" in record]
    return out


def test_synthetic_records_are_never_kept(
    records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(own_runs, "OWN", tmp_path / "own")
    command = ["measure", "--from", str(records.path), "--out", str(tmp_path / "out"), "--keep"]
    assert "these records are synthetic (tests/unit/fake_bench.py made it up)" in refusal(capsys, *command)
    assert not (tmp_path / "own").exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize("hidden", [False, True])
def test_a_synthetic_table_is_refused_by_the_fit_whatever_its_name(
    hidden: bool, records: Records, tmp_path: Path
) -> None:

    (table,) = keep(records.done.values(), tmp_path, synthetic=True)
    assert table.name.startswith("synthetic-h200-sxm-141gb-20")
    if hidden:
        text = table.read_text().replace(f"{table.stem},", "h200-sxm-141gb-2026-11-21,")
        table.unlink()
        (tmp_path / "h200-sxm-141gb-2026-11-21.csv").write_text(text)
    with pytest.raises(InputError, match="says that it is synthetic: nothing may be fitted on it"):
        own_rows(tmp_path)
    assert len(own_rows(tmp_path, synthetic=True)) == 32


def test_a_real_run_is_kept_by_one_command(
    records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = Records(tmp_path / FILE_NAME)
    for key, record in records.done.items():
        real.append(key, {name: value for name, value in record.items() if name not in ("key", "synthetic")})
    monkeypatch.setattr(own_runs.keep, "__defaults__", (tmp_path / "own",))
    (tmp_path / "own").mkdir()
    assert main(["measure", "--from", str(real.path), "--out", str(tmp_path / "out"), "--keep"]) == 0
    (table,) = own_runs.own_tables(tmp_path / "own")
    assert "kept:" in capsys.readouterr().out and not table.name.startswith("synthetic")
    rows = own_rows(tmp_path / "own")
    ours = [row for row in rows if row.record.name == "attnsim.flash"]
    theirs = [row for row in rows if row.record.name != "attnsim.flash"]
    assert len(ours) == len(theirs) == 16 and {row.case.source for row in rows} == {table.stem}
    assert {row.case.version for row in ours} == {version_of(OPERATIONS["flash"])}
    assert {row.case.version for row in theirs} == {"2.9.0"} and {row.case.clock_mhz for row in rows} == {MHZ}
    assert "driver 580.65.06, 20" in table.read_text()


def test_a_run_becomes_a_calibration_whose_errors_accuracy_shows(
    records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own").mkdir()
    keep(records.done.values(), tmp_path / "own", synthetic=True)
    rows = own_rows(tmp_path / "own", synthetic=True)
    for module in (jobs, accuracy):
        monkeypatch.setattr(module, "own_rows", lambda: rows)
        monkeypatch.setattr(module, "published_rows", tuple)
    monkeypatch.setattr("os.cpu_count", lambda: 1)  # processes would each load everything anew
    monkeypatch.setattr(accuracy, "family_rows", lambda group: [])  # of published rows
    jobs.jobs.cache_clear()
    try:
        own = [job for job in jobs.jobs() if job.name.startswith("own-")]
        assert [(job.name, job.gpu, set(job.free)) for job in own] == [
            ("own-h200-sxm-141gb", "h200-sxm-141gb", {"attnsim.flash"})
        ]
        like = next(job for job in jobs.jobs() if "flash-attn.2" in job.free)
        assert own[0].free["attnsim.flash"] == like.free["flash-attn.2"]
        assert len(own[0].rows) == 16
        before = choose(find_implementation("attnsim.flash"), GPU)
        assert not before.own
        (path,) = fitting.fit(tmp_path, ["own-h200-sxm-141gb"])
        assert path.name == "attnsim.flash.hopper.yaml"
        read: Callable[[str], dict[str, Any]] = calibration._files
        monkeypatch.setattr(calibration, "_files", lambda kind: with_ours(read(kind), kind, path))
        calibration.calibrations.cache_clear()
        after = choose(find_implementation("attnsim.flash"), GPU)
        assert after.own and after.calibration is not None
        waits = [one.numbers.implementation.step_clks for one in (before, after)]
        assert waits[1] - waits[0] == pytest.approx(LONGER_CLKS, rel=0.15)
        errors = {"before": mean_error(rows, before.numbers), "after": mean_error(rows, after.numbers)}
        assert errors["after"] < 0.02 < errors["before"], errors
        assert main(["accuracy", "--json"]) == 0
        shown = [
            line for line in json.loads(capsys.readouterr().out) if line["kind"] == "error" and line["band"] == "all"
        ]
        ours = [line for line in shown if line["implementation"] == "attnsim.flash"]
        (theirs,) = (line for line in shown if line["implementation"] == "torch.sdpa-flash")
        assert {line["split"] for line in ours} == {"band", "head_dim"} and theirs["split"] == "never fitted"
        assert min(line["mean"] for line in ours) < 0.05 and theirs["rows"] == 16 and theirs["mean"] < 0.02
    finally:
        jobs.jobs.cache_clear()
        calibration.calibrations.cache_clear()


def with_ours(files: dict[str, Any], kind: str, path: Path) -> dict[str, Any]:
    return files | {path.stem: path} if kind == "implementations" else files


def mean_error(rows: Any, found: Any) -> float:
    errors = [abs(row.predict_s(found) / row.measured_s - 1) for row in rows if row.record.name == "attnsim.flash"]
    return float(np.mean(errors))


def test_our_kernels_are_fitted_beside_the_instructions_that_go_with_their_numbers() -> None:
    """A number means the same before its fit, in it and after: counts come from whom the numbers are like."""
    fused = [record for record in OWN_KERNELS if not record.unfused]
    for record in fused:
        before = choose(record, GPU)
        assert before.numbers.counts == record.counts != "", record.name
    problem = Problem((), (), {record.name: ImplementationNumbers() for record in fused})
    fitted = problem.numbers(np.zeros(0))
    assert {name: one.counts for name, one in fitted.items()} == {one.name: one.counts for one in fused}
