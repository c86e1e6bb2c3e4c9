"""The script for a bare GPU machine, with a GPU that is made up: its steps run, and its records become tables."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnsim.cli import main
from attnsim.kernels.catalog import Operation
from attnsim.kernels.gpu.cuda_device import LASTING
from attnsim.kernels.gpu.records import Records
from attnsim.models.question.case_file import read_table
from benchmarks import gpu_run
from tests.unit.fake_bench import FakeWatch, make_bench, outcome


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Few points of each step, and kernels that are right."""
    made = make_bench()
    monkeypatch.setattr(gpu_run, "attached_bench", lambda seed: made)
    monkeypatch.setattr("attnsim.kernels.gpu.cuda_device.import_cupy", SimpleNamespace)
    monkeypatch.setattr(Operation, "exercise", lambda *_: outcome(0.0))
    monkeypatch.setattr(gpu_run, "SIZES", (1, 63))
    monkeypatch.setattr(gpu_run, "REST", 12)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    return made


def run(monkeypatch: pytest.MonkeyPatch, out: Path, steps: str, minutes: float = 9) -> int:
    words = ["gpu_run.py", "--out", str(out), "--steps", steps, "--minutes", str(minutes), "--seed", "3"]
    monkeypatch.setattr(sys, "argv", words)
    return gpu_run.main()


def test_every_step_measures_and_none_fails(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [step for step in gpu_run.STEPS if step not in ("probe", "interpreter")]
    assert run(monkeypatch, tmp_path, ",".join(steps)) == 0
    records = Records(tmp_path / "records.jsonl")
    assert not [key for key, record in records.done.items() if "error" in record]
    for word in ("machine", "correct", "flash", "decode", "sparse", "null", "time", "sanitizer", "counters"):
        assert any(key.startswith(word) for key in records.done), word
    decode = next(record for key, record in records.done.items() if key.startswith("decode"))
    assert decode["share_of_read"] == 1.0 and decode["times"]["decode"]["kept"] == 25
    text = capsys.readouterr().out
    assert "of a read-only kernel" in text and "skipped" in text and '"wrong": []' in text
    assert run(monkeypatch, tmp_path, "flash,decode,rest") == 0
    lines = capsys.readouterr().out.splitlines()  # the null kernel alone is measured anew in another session
    assert all(line.startswith("null ") for line in lines[:-1]) and len(lines) <= 5
    assert main(["measure", "--from", str(tmp_path / "records.jsonl"), "--out", str(tmp_path / "table")]) == 0
    table = read_table(tmp_path / "table" / "measurements.csv")
    assert len(table) == 12 and set(table["gpu"]) == {"h200-sxm-141gb"}


def test_a_wrong_kernel_is_told_and_the_code_is_1(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Operation, "exercise", lambda *_: outcome(float("nan")))
    assert run(monkeypatch, tmp_path, "correct") == 1
    assert "WRONG, inf of" in capsys.readouterr().out


def test_a_device_in_error_ends_the_run(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(bench.watch, FakeWatch)
    bench.watch.error = f"illegal address; {LASTING}, start a new one"
    assert run(monkeypatch, tmp_path, "rest") == 1
    assert len(Records(tmp_path / "records.jsonl").done) == 1
