"""The script for a bare GPU machine, with a GPU that is made up: its steps run, and its records become tables."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnsim.cli import main
from attnsim.kernels.catalog import OPERATIONS, Operation
from attnsim.kernels.gpu.cuda_device import LASTING
from attnsim.kernels.gpu.machine_record import version_of
from attnsim.kernels.gpu.records import Point, Records
from attnsim.models.question.case_file import read_table
from attnsim.models.question.workload import Workload
from attnsim.ptx.adversarial import INPUTS
from benchmarks import gpu_children, gpu_run, gpu_watch
from tests.unit.fake_bench import Clock, FakeWatch, make_bench, outcome


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


def test_a_run_that_dies_before_its_first_point_is_not_started_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = "import os; os.kill(os.getpid(), 9)"
    assert gpu_watch.watch(lambda _: [sys.executable, "-c", script], tmp_path, 9.0) == 1
    assert "died of signal 9 before its first point" in capsys.readouterr().out
    assert gpu_watch.watch(lambda _: [sys.executable, "-c", "exit(2)"], tmp_path, 9.0) == 2


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


def test_a_watch_that_is_ended_ends_the_run(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from benchmarks.gpu_watch import watch
words = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)"]
watch(lambda _: words, Path(sys.argv[1]), 9)
"""
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.terminate()
    assert parent.wait(20) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_compilers_work_in_processes_of_their_own() -> None:
    with gpu_run.workers() as pool:
        assert pool.submit(os.getpid).result() != os.getpid()


@pytest.mark.parametrize("error", [MemoryError("none left"), KeyError("x"), AssertionError(), StopIteration()])
def test_whatever_goes_wrong_is_a_record_and_the_run_goes_on(
    error: Exception, bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(Operation, "exercise", fails)
    monkeypatch.setitem(gpu_run.PLAN, "probe", lambda gpu: broken_off(error))
    assert run(monkeypatch, tmp_path, "smoke,probe,decode") == 0
    done = Records(tmp_path / "records.jsonl").done
    kind = type(error).__name__
    assert all(kind in record["error"] for key, record in done.items() if key.startswith("smoke"))
    ended = next(record for key, record in done.items() if key.startswith("probe ended"))
    assert kind in ended["error"] or "StopIteration" in ended["error"]
    assert any(key.startswith("decode") and "error" not in record for key, record in done.items())


def broken_off(error: Exception) -> Iterator[Point]:
    """Points of which the second cannot be told."""
    yield Point("probe one", lambda: {"ok": True})
    raise error


def test_a_watcher_that_takes_too_long_is_ended_with_whom_it_watches() -> None:
    sleeping = "subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    script = f"import subprocess, sys; print('begun', flush=True); {sleeping}"
    start = time.monotonic()
    found = gpu_children.watched([sys.executable, "-c", script], 1.0)
    assert found == {"error": "ended after 1 s", "tail": "begun\n"} and time.monotonic() - start < 20
    assert gpu_children.watched([sys.executable, "-c", "print(1); exit(3)"], 20) == {"exit": 3, "out": "1\n", "err": ""}


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "flash-hopper"])
@pytest.mark.parametrize("large", [False, True])
def test_what_is_watched_is_launched(name: str, large: bool, bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device, exercised = bench.device, []
    device.synchronize = lambda: None
    monkeypatch.setattr("attnsim.kernels.gpu.cuda_device.CudaDevice", lambda **_: device)
    monkeypatch.setattr("attnsim.kernels.gpu.inputs.RepeatedNormals", lambda *_: bench.random)
    monkeypatch.setattr(Operation, "exercise", lambda *told: exercised.append(told[-1]))
    gpu_children.child(name, large)
    assert exercised == ([] if large else ["normal", "growing"]) and bool(device.launched) is large


def test_the_profiler_is_asked_for_bytes_pipes_issue_and_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def watched(command: list[str], seconds: float) -> dict[str, Any]:
        asked.extend(command)
        return {"exit": 0, "out": "csv", "err": ""}

    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(gpu_children, "watched", watched)
    assert gpu_children.counted("flash") == {"exit": 0, "csv": "csv", "tail": ""}
    assert asked[0] == "/bin/ncu" and asked[-3:] == [gpu_children.__file__, "flash", "--large"]
    assert [asked[i + 1] for i, word in enumerate(asked) if word == "--section"] == list(gpu_children.SECTIONS)
    monkeypatch.setattr(gpu_children, "watched", lambda *_: {"error": "ended after 120 s", "tail": "begun"})
    assert gpu_children.sanitized("memcheck", "flash")["error"] == "ended after 120 s"


def test_kernels_that_are_compared_take_turns(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    timed = bench.watch.time

    def watch(call: Any, *arguments: Any, **options: Any) -> Any:
        before = len(bench.device.launched)
        found = timed(call, *arguments, **options)
        order.append(bench.device.launched[before])
        return found

    monkeypatch.setattr(bench.watch, "time", watch)
    found = gpu_run.side_by_side(gpu_run.Run(bench), Workload(1, 2, 512, 64), ("flash", "flash-hopper"))
    assert order == ["flash_forward", "flash_hopper"] * gpu_run.ROUNDS
    assert set(found["times"]) == {"flash", "flash-hopper"}
    # 10 samples a turn, of which the stand-in says that the second 5 were throttled
    assert found["times"]["flash"]["kept"] == 15 and found["times"]["flash"]["throttled"] == 15


def test_keys_hold_the_version_of_the_kernels(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = gpu_run.Run(bench)
    one = next(gpu_run.decode(gpu)).key
    for step in ("compile", "smoke", "flash", "decode", "sparse", "correct", "interpreter", "sanitizer", "counters"):
        before = next(iter(gpu_run.PLAN[step](gpu))).key
        with monkeypatch.context() as changed:
            for name in ("benchmarks.gpu_run", "attnsim.kernels.gpu.measuring"):
                changed.setattr(f"{name}.version_of", lambda one: "f" * 16)
            assert next(iter(gpu_run.PLAN[step](gpu))).key != before, step
    assert version_of(OPERATIONS["decode"]) in one


def test_the_smoke_test_ends_after_its_minute(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, clock = gpu_run.Run(bench), Clock()
    keys = [point.key for point in gpu_run.smoke(gpu)]
    kinds = {kind for key in keys for kind in INPUTS if f" {kind} " in key}
    assert kinds == set(INPUTS) and len(set(keys)) == len(keys) > 60
    monkeypatch.setattr(time, "monotonic", clock)  # a second at every look
    assert len(list(gpu_run.smoke(gpu))) == gpu_run.SMOKE_S - 1


BARE = """
import sys, types
repository, out = sys.argv[1:3]
sys.path.insert(0, f"{repository}/benchmarks")
sys.path.remove(repository) if repository in sys.path else None
import gpu_run  # puts the checkout on the path by itself

from attnsim.models.hardware.attached import Attached, gpu_of_attached

files = types.ModuleType("attnsim.models.hardware.files")  # which reads YAML
files.load_gpu = lambda name: gpu_of_attached(Attached("NVIDIA H200", 90, 150 * 10**9, {"MultiProcessorCount": 132}))
sys.modules[files.__name__] = files

from attnsim.kernels.catalog import Operation
from attnsim.kernels.gpu import cuda_device
from tests.unit.fake_bench import make_bench, outcome

gpu_run.attached_bench = lambda seed: make_bench()
cuda_device.import_cupy = types.SimpleNamespace
Operation.exercise = lambda *_: outcome(0.0)
steps = "machine,compile,smoke,flash,decode,sparse,rest,counters,sanitizer"
sys.argv = ["gpu_run.py", "--unwatched", "--out", out, "--steps", steps, "--seed", "3"]
gpu_run.REST = 3
sys.exit(gpu_run.main())
"""
"""What a machine with a GPU does; the GPU is made up."""


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
    done = subprocess.run(
        [*python, "-c", BARE, str(repository), str(tmp_path / "run")],
        capture_output=True, text=True, check=False, env=bare, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    records = Records(tmp_path / "run" / "records.jsonl").done
    assert not [record for record in records.values() if "error" in record]
    found = {key.split()[0] for key in records}
    assert found == {
        "machine",
        "compile",
        "smoke",
        "flash",
        "decode",
        "sparse",
        "null",
        "time",
        "counters",
        "sanitizer",
    }
