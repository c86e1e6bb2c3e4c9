"""`attnsim kernels run --ptx`, `--cuda` and `--triton`: what people and programs read from them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.unit.answering import answer, refusal

PTX = str(Path(__file__).parents[1] / "data" / "foreign.ptx")
SCALED = ["--entry", "scaled", "--arg", "x=fp32[100]", "--arg", "y=fp32[100]:empty", "--arg", "n=100"]
RUN = ["kernels", "run", "--ptx", PTX, *SCALED, "--arg", "scale=0.5", "--grid", "2"]


@pytest.fixture
def reference(tmp_path: Path) -> str:
    path = tmp_path / "reference_for_scaled.py"
    path.write_text(
        "def scaled(x, scale):\n    return scale * x\n\n\n"
        "def wrong(x):\n    return {'y': x}\n\n\n"
        "def broken(z):\n    return z\n\n\n"
        "def leaves(x):\n    raise SystemExit(3)\n"
    )
    return str(path)


def test_a_run_answers_with_outputs_traffic_counts_and_pipes(
    capsys: pytest.CaptureFixture[str], reference: str, tmp_path: Path
) -> None:
    kept = tmp_path / "y.npz"
    text, err = answer(capsys, *RUN, "--check", f"{reference}:scaled", "--out", str(kept))
    assert err == "" and max(map(len, (line for line in text.splitlines() if str(kept) not in line))) <= 100
    rows = [line.split() for line in text.splitlines()]
    assert ["x", "load", "400", "13", "416"] in rows and ["y", "store", "400", "13", "416"] in rows
    assert ["y", "0.0e+00", "0.0e+00", "1.0e-05", "ok"] in rows and ["flops", "100"] in rows
    assert "no race, missing wait" in text and np.load(kept)["y"].shape == (100,)
    (record,) = json.loads(answer(capsys, *RUN, "--json", "--check", f"{reference}:scaled")[0])
    assert record["block"] == [64, 1, 1] and record["faults"] == [] and record["inputs"] == "normal"
    assert record["differences"] == [{"output": "y", "max_abs": 0.0, "max_rel": 0.0, "allowed": 1e-5, "ok": True}]
    # Of each of four warps a load and a store; its four parameters, which vanish, stand beside two moves.
    issued = record["warp_instructions_by_pipe"]
    assert issued["LSU"] == 4 * 2 and issued["moves"] == 4 * (4 + 2)
    assert {(one["argument"], one["sector_bytes"]) for one in record["global_memory"]} == {("x", 416), ("y", 416)}


def test_an_output_that_is_off_is_told_and_the_code_is_1(capsys: pytest.CaptureFixture[str], reference: str) -> None:
    text, err = answer(capsys, *RUN, "--check", f"{reference}:wrong", code=1)
    assert "WRONG" in text and err.startswith("error: scaled: y is off by 5.0e-01, allowed 1.0e-05")
    assert answer(capsys, *RUN, "--check", f"{reference}:wrong", "--tolerance", "0.6")[1] == ""


def test_a_race_is_told_with_its_line_and_the_code_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["kernels", "run", "--ptx", PTX, "--entry", "race", "--grid", "1", "--block", "128"]
    words += ["--arg", "y=fp32[128]:empty"]
    out, err = answer(capsys, *words, code=1)
    assert out == "" and "(line 79 of the PTX)" in err and "no barrier between" in err
    (record,) = json.loads(answer(capsys, *words, "--json", code=1)[0])
    (fault,) = record["faults"]
    assert fault["kind"] == "Race" and "(line 79 of the PTX)" in fault["where"]
    assert "no barrier between" in fault["what"]


def test_inputs_may_be_adversarial(capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for kind in ("normal", "growing", "outlier", "equal", "nan"):
        (record,) = json.loads(answer(capsys, *RUN, "--inputs", kind, "--json")[0])
        (found[kind],) = record["outputs"]
    assert found["equal"]["min"] == found["equal"]["max"] == 0.5 and found["nan"]["NaN"] == 1
    assert max(abs(found["outlier"]["max"]), abs(found["outlier"]["min"])) > 3 * found["normal"]["max"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--ptx", PTX, "--grid", "1"], "has 5 entry points; choose one: recursive, scaled, endless, unknown, race"),
        (["--ptx", PTX, *SCALED, "--arg", "scale=1"], "--grid is ''; give one to three whole numbers"),
        (["--ptx", "none.ptx", "--grid", "1"], "none.ptx: cannot be read (No such file or directory); give a PTX file"),
        (["--ptx", __file__, "--grid", "1"], "no entry point"),
        (["--ptx", np.__file__.replace("__init__.py", "_core"), "--grid", "1"], "Is a directory); give a PTX file"),
        (["--ptx", PTX, "--entry", "race", "--grid", "1", "--block", "1,1,65"], "allowed: 1 x 1 x 1 to 1024 x 1024 x"),
        (["--ptx", PTX, "--arch", "80", "--grid", "1"], "--arch and --option are for compilers"),
        (["--ptx", PTX, "--grid", "1", "--heads", "3"], "--heads: not for --ptx; only with NAME"),
        (["--ptx", PTX, "--cuda", "k.cu", "--grid", "1"], "--ptx and --cuda are given; give one of NAME"),
        (["--ptx", PTX, "--grid", "1", "--tolerance", "1"], "--tolerance is for --check"),
        (["--ptx", PTX, "--grid", "1", "--inputs", "growin"], "unknown inputs 'growin'; nearest: growing"),
        (["--cuda", "none.cu", "--grid", "1"], "none.cu: cannot be read (No such file or directory); give a CUDA file"),
        (["--triton", "k.py:f", "--grid", "1", "--block", "128"], "Triton says itself what they are"),
        (["--triton", "k.py:f", "--grid", "1", "--option", "warps"], "--option 'warps': for Triton give NAME=NUMBER"),
        (["--triton", "k.py:f", "--grid", "1"], "k.py: no such file"),
        (["flash", "--cpu", "--grid", "1"], "--grid: not for flash; only with --ptx, --cuda or --triton"),
        ([], "nothing to run is given; give one of NAME"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnsim.ptx.program.STEPS_LIMIT", 1000)
    assert told in refusal(capsys, "kernels", "run", *words)


def test_a_reference_that_does_not_fit_is_one_line(capsys: pytest.CaptureFixture[str], reference: str) -> None:
    _, err = answer(capsys, *RUN, "--check", f"{reference}:broken", code=2)
    assert err == "error: broken asks for z; the arguments are x, y, n, scale\n"
    _, err = answer(capsys, *RUN, "--check", f"{reference}:leaves", code=2)
    assert err == "error: leaves fails: SystemExit: 3\n"


def test_triton_is_imported_only_when_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    (tmp_path / "somebodys_kernel.py").write_text("def f(x):\n    pass\n")
    where = f"{tmp_path / 'somebodys_kernel.py'}:f"
    _, err = answer(capsys, "kernels", "run", "--triton", where, "--grid", "1", "--arg", "x=fp16[4]", code=2)
    assert "needs Triton" in err and "pip install 'attnsim[triton]'" in err
