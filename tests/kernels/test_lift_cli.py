"""`attnsim kernels trace`, and `--kernel FILE` of predict, explain and trace: answers, and one line for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from attnsim.cli import BAD_INPUT, main
from tests.unit.answering import refusal

FOREIGN = str(Path(__file__).parents[1] / "data" / "foreign.ptx")
GOOD = ["--arg", "x=fp32[1000]", "--arg", "y=fp32[1000]:empty", "--arg", "n=1000", "--arg", "scale=0.5"]


def traced(*arguments: str) -> int:
    return main(["kernels", "trace", "--ptx", FOREIGN, *arguments])


@pytest.fixture
def file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "scaled.yaml"
    assert traced("--entry", "scaled", "--grid", "16", *GOOD, "--registers", "16", "--out", str(path)) == 0
    capsys.readouterr()
    return path


def test_a_kernel_of_ptx_is_predicted_explained_and_drawn(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", "--kernel", str(file), "--gpu", "a100-sxm4-80gb,h100-sxm5-80gb", "--json"]) == 0
    a100, h100 = json.loads(capsys.readouterr().out)
    assert a100["kernel"] == "scaled" and a100["time_low_s"] < a100["time_s"] < a100["time_high_s"]
    assert a100["trust"]["level"] == "extrapolated" and "nobody has measured" in a100["trust"]["reason"]
    assert a100["like"] == "priors" and h100["gpu"] == "h100-sxm5-80gb"
    assert main(["explain", "--kernel", str(file), "--gpu", "a100-sxm4-80gb", "-v"]) == 0
    told = capsys.readouterr().out
    assert "load x bytes 256" in told and "l2.bandwidth" in told and "of replays, without a range" in told
    picture = tmp_path / "timeline.png"
    assert main(["trace", "--kernel", str(file), "--gpu", "a100-sxm4-80gb", "--picture", str(picture)]) == 0
    assert picture.is_file() and picture.with_suffix(".csv").is_file()


def test_a_changed_gpu_stands_beside_the_unchanged_one(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["predict", "--kernel", str(file), "--gpu", "a100-sxm4-80gb", "--set", "hbm.bandwidth=2x", "--json"]
    assert main(arguments) == 0
    unchanged, changed = json.loads(capsys.readouterr().out)
    assert changed["time_s"] <= unchanged["time_s"] and not unchanged["changes"] and changed["changes"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--entry", "scaled", "--grid", "x", *GOOD], "--grid is 'x'; give one to three whole numbers"),
        (["--entry", "scaled", "--grid", "16", "--arg", "x=fp32[9]", *GOOD[2:]], "past the end of x"),
        (["--entry", "endless", "--grid", "1", "--block", "32"], "no end after"),
        (["--entry", "scaled", "--grid", "16", *GOOD, "--registers", "0"], "whole numbers from 1 to 255"),
        (["--entry", "scaled", "--grid", "16", *GOOD, "--like", "flash-atn"], "flash-atn"),
        (["--entry", "scaled", "--grid", "16", *GOOD, "--seq", "9"], "--seq: not for --ptx"),
    ],
)
def test_what_cannot_be_traced_is_one_line(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("attnsim.ptx.program.STEPS_LIMIT", 1000)
    out = tmp_path / "kernel.yaml"
    registers = [] if "--registers" in arguments else ["--registers", "16"]
    assert traced(*arguments, *registers, "--out", str(out)) == BAD_INPUT
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1 and "Traceback" not in error
    assert not out.exists()


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("format: 2", "format: 1", "format 1; this version reads 2: trace the kernel again"),
        ("kind: wait", "kind: await", "kind 'await'; allowed: load"),
        ("bytes: 256", "bytes: -1", "give a whole number of 0 or more"),
        ("threads: 64", "threads: 0", "threads is 0; allowed: 1 or more"),
        ("- {kind: load, tensor: x, bytes: 256}\n", "", "waits for a load of x that was not started"),
        ("path: simt", "path: magic", "path"),
        ("bytes: 256}", "bytes: 256, exps: 3}", "'exps' of load; allowed: kind, tensor, bytes"),
        ("bytes: 256", "bytes: 1000000000000000000000000", "give a whole number of 0 or more"),
        (
            "kind: wait, tensor: x",
            "kind: delay, waits: x",
            "waits of delay is 'x'; allowed: step, block, write, or none",
        ),
        ("kind: wait, tensor: x", "kind: wait, waits: step", "'waits' of wait; allowed: kind, tensor"),
        ("is_backward: false", "is_backward: 3", "is_backward"),
        ("kind: load, tensor: x", "kind: load, tensor: w", "load of 'w', which uses do not name"),
        ("shared_memory_bytes: 0", "shared_memory_bytes: -1", "shared_memory_bytes is -1; allowed: 0 or more"),
        ("fp32_per_score: 0.0", "fp32_per_score: .nan", "fp32_per_score is nan"),
        ("unique_bytes: 4000", "unique_bytes: 0", "unique_bytes is 0; allowed: 1 or more"),
        ("blocks: [1.0", "blocks: [0.0", "blocks is 0.0; allowed: 1 or more"),
        ("memory_bytes: ", "memory_bytes: -", "memory_bytes is -"),
        ("times: 1", "times: 100000000000", "launches: blocks is"),
    ],
)
def test_a_kernel_file_that_is_wrong_is_one_line(
    old: str, new: str, told: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = file.read_text()
    assert old in text
    lines = [line for line in text.splitlines(keepends=True) if new or line.strip() != old.strip()]
    file.write_text("".join(lines).replace(old, new) if new else "".join(lines))
    assert main(["predict", "--kernel", str(file), "--gpu", "a100-sxm4-80gb"]) == BAD_INPUT
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"segments": [{"name": "s", "ops": [], "instructions": {}}], "repeats": [[1]]}, "runs an operation"),
        ({"repeats": [[0], [1]]}, "no block that is launched runs an operation"),
        (
            {"repeats": [[10**15]], "launches": [{"classes": [[0, 100_000]], "times": 1}]},
            "its blocks run 1e+20 segments",
        ),
    ],
)
def test_a_kernel_that_runs_nothing_or_too_much_is_refused(
    changed: dict[str, object], told: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = yaml.safe_load(file.read_text())
    (one,) = whole["kernels"]
    one["segments"], one["uses"] = one["segments"][:1], []
    one["segments"][0]["ops"] = [{"kind": "vector", "tensor": "P", "fp32": 1000, "issues": 40}]
    one |= {"repeats": [[1]], "launches": [{"classes": [[0, 10]], "times": 1}], **changed}
    file.write_text(yaml.safe_dump(whole))
    assert told in refusal(capsys, "predict", "--kernel", str(file), "--gpu", "a100-sxm4-80gb")


def test_a_kernel_whose_work_rounds_to_nothing_takes_picoseconds(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = yaml.safe_load(file.read_text())
    (one,) = whole["kernels"]
    one["segments"], one["uses"] = one["segments"][:1], []
    one["segments"][0]["ops"] = [{"kind": "mma", "tensor": "S", "flops": 0}]
    for blocks in (10, 300_000):  # played whole, and by a smaller grid
        one |= {"repeats": [[1]], "launches": [{"classes": [[0, blocks]], "times": 1}]}
        file.write_text(yaml.safe_dump(whole))
        command = ["predict", "--kernel", str(file), "--gpu", "a100-sxm4-80gb", "--launch", "kernel", "--json"]
        assert main(command) == 0
        (found,) = json.loads(capsys.readouterr().out)
        assert 0 < found["time_s"] < 1e-9


def test_a_launch_is_traced_as_json_and_one_that_does_nothing_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    idle = [*GOOD[:4], "--arg", "n=0", *GOOD[6:]]
    assert traced("--entry", "scaled", "--grid", "16", *GOOD, "--registers", "16", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["kernels"][0]["threads"] == 64
    assert traced("--entry", "scaled", "--grid", "16", *idle, "--registers", "16") == BAD_INPUT
    assert "scaled does nothing at this launch" in capsys.readouterr().err


def test_flags_that_a_file_answers_are_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more in (["--seq", "1024"], ["--tile", "128x64"], ["--algorithm", "flash"]):
        assert main(["predict", "--kernel", str(file), "--gpu", "a100-sxm4-80gb", *more]) == BAD_INPUT
        assert f"{more[0]} is not for --kernel" in capsys.readouterr().err
    assert main(["search", "tile", "--kernel", str(file), "--gpu", "a100-sxm4-80gb"]) == BAD_INPUT
    assert capsys.readouterr().err.count("\n") == 1
