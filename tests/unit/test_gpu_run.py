"""The script for a bare GPU machine, with a GPU that is made up: its steps run, and its records become tables."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnsim.cli import main
from attnsim.kernels.catalog import OPERATIONS, Operation
from attnsim.kernels.gpu.cuda_device import LASTING
from attnsim.kernels.gpu.records import Records, version_of
from attnsim.models.question.case_file import read_table
from benchmarks import gpu_run, gpu_watch
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
    monkeypatch.setattr(gpu_run, "compile_variant", lambda *_: None)
    monkeypatch.setattr(gpu_run, "workers", lambda: ThreadPoolExecutor(1))
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    return made


def run(monkeypatch: pytest.MonkeyPatch, out: Path, steps: str, minutes: float = 9) -> int:
    words = ["gpu_run.py", "--unwatched", "--out", str(out), "--steps", steps, "--minutes", str(minutes), "--seed", "3"]
    monkeypatch.setattr(sys, "argv", words)
    return gpu_run.main()


def test_every_step_measures_and_none_fails(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [step for step in gpu_run.STEPS if step not in ("probe", "interpreter")]
    assert run(monkeypatch, tmp_path, ",".join(steps)) == 0
    records = Records(tmp_path / "records.jsonl")
    assert not [key for key, record in records.done.items() if "error" in record]
    for word in (
        "compile",
        "smoke",
        "machine",
        "correct",
        "flash",
        "decode",
        "sparse",
        "null",
        "time",
        "sanitizer",
        "counters",
    ):
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
    assert set(table["gpu"]) == {"h200-sxm-141gb"} and set(table["source"]) == {"synthetic"}
    taking_turns = sum("times" in record for record in records.done.values())
    assert len(table) == gpu_run.REST + taking_turns + 24  # flash beside its twin for Hopper


def test_a_wrong_kernel_is_told_and_the_code_is_1(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Operation, "exercise", lambda *_: outcome(float("nan")))
    assert run(monkeypatch, tmp_path, "correct") == 1
    assert "WRONG, inf of" in capsys.readouterr().out


def test_after_a_device_error_the_run_asks_for_a_new_process(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(bench.watch, FakeWatch)
    bench.watch.error = f"illegal address; {LASTING}, start a new one"
    assert run(monkeypatch, tmp_path, "rest") == gpu_watch.AGAIN
    assert len(Records(tmp_path / "records.jsonl").done) == 1


CHILD = """
import os, signal, sys, time
from pathlib import Path
from attnsim.kernels.gpu.records import Point, Records
from benchmarks.gpu_watch import AGAIN, noted

out = Path(sys.argv[1])
def wants():
    if not (out / "asked").exists():
        (out / "asked").touch()
        os._exit(AGAIN)
what = {"first": int, "hangs": lambda: time.sleep(60), "dies": lambda: os.kill(os.getpid(), signal.SIGSEGV),
        "wants": wants, "last": int}
points = [Point(key, lambda do=do: {"found": bool(do())}, {"kind": "test"}) for key, do in what.items()]
for _ in Records(out / "records.jsonl").run(noted(points, out, 2.0), time.monotonic() + 60):
    pass
sys.exit(1)
"""


def test_a_point_that_hangs_or_kills_the_run_is_a_record_and_the_run_goes_on(tmp_path: Path) -> None:
    left = []

    def start(seconds: float) -> list[str]:
        left.append(seconds)
        return [sys.executable, "-c", CHILD, str(tmp_path)]

    assert gpu_watch.watch(start, tmp_path, 100.0) == 1  # the run's own code
    done = Records(tmp_path / "records.jsonl").done
    assert {key: record.get("error", "") for key, record in done.items()} == {
        "first": "", "hangs": "ended after 2 s", "dies": "died of signal 11", "wants": "", "last": "",
    }  # fmt: skip
    assert done["hangs"]["kind"] == "test" and len(left) == 4 and left == sorted(left, reverse=True)


def test_a_kernel_that_hung_is_not_tried_again_until_it_changes(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    about: dict[str, Any] = {"operation": "flash-hopper", "version": version_of(OPERATIONS["flash-hopper"])}
    about |= {"error": "ended after 20 s", "ended": True}
    Records(tmp_path / "records.jsonl").append("smoke it", about)
    Records(tmp_path / "records.jsonl").append("smoke old", {**about, "operation": "flash", "version": "of old"})
    assert run(monkeypatch, tmp_path, "flash") == 0
    assert "flash-hopper is left out: it has hung" in capsys.readouterr().out
    beside = [record for record in Records(tmp_path / "records.jsonl").done.values() if "times" in record]
    assert beside and all(set(record["times"]) == {"flash"} for record in beside)


def test_a_clone_with_numpy_alone_is_enough(tmp_path: Path) -> None:
    """Python without its site-packages; NumPy lies in a folder of its own, and nothing else."""
    import numpy

    only, packages, repository = tmp_path / "only", Path(numpy.__file__).parents[1], Path(gpu_run.__file__).parents[1]
    only.mkdir()
    for name in ("numpy", "numpy.libs"):
        if (packages / name).exists():
            (only / name).symlink_to(packages / name)
    python = [sys.executable, "-S"]
    bare = {"PYTHONPATH": str(only), "PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for words in (
        [str(repository / "benchmarks" / "gpu_run.py"), "--help"],
        [str(repository / "benchmarks" / "gpu_children.py"), "--help"],
    ):
        done = subprocess.run([*python, *words], capture_output=True, text=True, check=False, env=bare, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    script = [str(repository / "benchmarks" / "gpu_run.py"), "--steps", "machine"]
    done = subprocess.run([*python, *script], capture_output=True, text=True, check=False, env=bare, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("gpu_run: ") and "needs CuPy" in done.stderr
