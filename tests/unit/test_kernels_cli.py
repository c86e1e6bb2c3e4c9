"""`attnsim kernels` and `attnsim doctor`: what people and programs read from them, with no GPU here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attnsim.cli import doctor
from attnsim.kernels.catalog import OPERATIONS, Operation
from attnsim.kernels.cpu_device import Count
from attnsim.kernels.gpu import environment
from attnsim.kernels.gpu.environment import Host
from attnsim.kernels.resources import ResourceRow
from attnsim.ptx.outcome import Outcome
from attnsim.simulator import compiled, players, twin
from tests.unit.answering import answer, refusal

RUN = ["kernels", "run", "flash", "--cpu", "--heads", "2", "--kv-heads", "1", "--seq", "70"]


def test_the_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = answer(capsys, "kernels")
    assert text == answer(capsys, "kernels", "list")[0]
    assert all(f"\n{name} " in text for name in OPERATIONS) and "experimental" in text
    assert max(map(len, text.splitlines())) <= 100
    records = json.loads(answer(capsys, "kernels", "list", "--json")[0])
    assert [record["name"] for record in records] == list(OPERATIONS)
    assert all(record["kernels"] for record in records)


def test_a_run_puts_counts_beside_the_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    text, err = answer(capsys, *RUN, "--causal", "--dtype", "fp16")
    assert err == "" and "tiles of a100-sxm4-80gb" in text and "WRONG" not in text and "differs" not in text
    rows = {tuple(line.split()[1:3]): line.split() for line in text.splitlines() if line.startswith("flash_forward ")}
    assert rows["load", "K"][-1] == "=" and rows["store", "O"][-3:-1] == ["17,920", "17,920"]  # 2 x 70 x 64 x 2 bytes
    (record,) = json.loads(answer(capsys, *RUN, "--json")[0])
    assert record["errors"]["O"] <= record["tolerance"] and record["kernel"] == "flash"
    counts = {(one["kernel"], one["quantity"]): one for one in record["counts"]}
    assert counts["flash_forward", "store LSE"]["counted"] == 560
    assert counts["flash_forward", "bank conflicts"]["planned"] is None


def test_the_gpu_whose_tiles_are_taken_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert "tiles of rtx-3090" in answer(capsys, *RUN, "--gpu", "rtx-3090")[0]


def test_a_wrong_result_or_byte_is_told_and_the_code_is_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: object) -> Outcome:
        return Outcome({"O": np.array([1.0, np.nan])}, {"O": np.array([1.0, 2.0])})

    monkeypatch.setattr(Operation, "exercise", wrong)
    off = [Count("flash_forward", "load K", "B", 10, 12)]
    monkeypatch.setattr("attnsim.kernels.cpu_device.compare", lambda *_: off)
    text, err = answer(capsys, *RUN, code=1)
    assert "WRONG" in text and "differs" in text
    assert err.startswith("error: flash on") and "O is off by inf" in err and "load K is 10, in the schedule 12" in err
    (record,) = json.loads(answer(capsys, *RUN, "--json", code=1)[0])
    assert record["errors"] == {"O": None}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["kernels", "run", "flsh", "--cpu"], "unknown kernel 'flsh'; nearest: flash"),
        ([*RUN, "--dtype", "fp32"], "--dtype fp32: the kernels take fp16 and bf16"),
        ([*RUN, "--gpu", "h1000"], "unknown GPU 'h1000'"),
        ([*RUN, "--gpu", "v100-sxm2-32gb"], "has compute capability 7.0"),
        ([*RUN, "--causal", "--mask", "window 3"], "mask 'window 3' says all of the mask"),
        ([*RUN, "--seed", "-1"], "--seed"),
        (["kernels", "run", "flash-hopper", "--cpu", "--gpu", "a100-sxm4-80gb"], "needs compute capability 9.0"),
        (["kernels", "check", "--arch", "75"], "--arch 75 is not known; allowed: 80, 86"),
        (["kernels", "check", "--kernel", "nosuch"], "unknown kernel 'nosuch'"),
        (["kernels", "check", "--write", "--arch", "80"], "--write writes the whole table"),
        (["kernels", "check", "--kernel", "flash-hopper", "--arch", "80"], "leave out --arch"),
        (["kernels", "--json", "list"], "--json comes after"),
    ],
)
def test_bad_input_is_one_line_and_code_2(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told in refusal(capsys, *arguments)


def test_without_a_gpu_a_run_says_what_is_missing_and_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    out, err = answer(capsys, *(word for word in RUN if word != "--cpu"), code=2)
    assert out == "" and "needs CuPy" in err and "pip install 'attnsim[gpu]'" in err and "add --cpu" in err


def test_check_prints_registers_and_resident_blocks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    two = OPERATIONS["decode"].variants()[:2]  # the rest is the resource table's to compile
    monkeypatch.setattr(Operation, "variants", lambda self: two)
    text, err = answer(capsys, "kernels", "check", "--kernel", "decode", "--arch", "sm_80,89")
    assert (
        err == "" and "sm_80: a100-pcie-80gb, a100-sxm4-40gb, a100-sxm4-80gb" in text and "0 with local memory" in text
    )
    assert max(map(len, text.splitlines())) <= 100
    rows = json.loads(answer(capsys, "kernels", "check", "--kernel", "decode", "--arch", "80", "--json")[0])
    assert all(row["arch"] == "80" and row["registers"] > 0 and row["spill_bytes"] == 0 for row in rows)
    assert all(set(row["blocks_per_sm"]) >= {"a100-sxm4-80gb"} for row in rows)


def fake_rows(work: Iterable[object], done: object) -> list[ResourceRow]:
    return [ResourceRow(f"flash({i},64)", "80", 128, 8 * i, 8 * i, 65536, 128, "0" * 16) for i in range(2)]


def test_a_spill_is_told_and_the_code_is_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnsim.cli.kernels.inspect_all", fake_rows)
    text, err = answer(capsys, "kernels", "check", code=1)
    assert "1 with local memory" in text
    assert err.startswith("error: 1 of 2 compilations use local memory, the most flash(1,64) on sm_80: 8 bytes")


def test_write_replaces_the_table_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = tmp_path / "kernel_resources.csv"
    monkeypatch.setattr("attnsim.cli.kernels.GOLDEN", target)
    monkeypatch.setattr("attnsim.cli.kernels.inspect_all", lambda *_: fake_rows((), None)[:1])
    text, _ = answer(capsys, "kernels", "check", "--write")
    assert f"written: {target}" in text and [*tmp_path.iterdir()] == [target]
    assert target.read_text() == (
        "kernel,arch,registers,spill_bytes,stack_bytes,shared_memory_bytes,threads,source_hash\n"
        '"flash(0,64)",80,128,0,0,65536,128,0000000000000000\n'
    )


def test_doctor_says_of_each_part_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    findings = {one["what"]: one for one in json.loads(answer(capsys, "doctor", "--json")[0])}
    assert {"packages", "player", "NVRTC", "CUDA sources", "interpreter", "GPU", "driver", "CuPy"} < findings.keys()
    for name in ("packages", "player", "NVRTC", "CUDA sources", "interpreter"):
        assert findings[name]["status"] == "ok", findings[name]
    assert all(one["fix"] for one in findings.values() if one["status"] == "missing")
    text, err = answer(capsys, "doctor")
    assert err == "" and all(f"\n{name} " in text for name in findings)
    assert max(len(line) for line in text.splitlines() if ": " not in line) <= 100


def test_beside_a_gpu_what_is_absent_is_missing_and_has_its_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = Host(cards=1, driver_cuda=0, gpus=(), trouble="no driver")
    monkeypatch.setattr(Host, "here", lambda: bare)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setitem(sys.modules, "cupy", None)
    text, _ = answer(capsys, "doctor")
    assert "CuPy: pip install 'attnsim[gpu]'" in text and "profiler: install Nsight Compute" in text
    old = environment._driver(replace(bare, driver_cuda=12040))
    assert old.status == "missing" and "12.4" in old.found and "cupy-cuda12x" in old.fix


def test_doctor_says_who_plays_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    there = doctor.player()
    assert there.status == "ok" and "compiled twin, numba " in there.found and "agrees with it" in there.found
    assert f"SimPy for the first {players.PLAYED_BY_SIMPY:,} executions" in there.found
    one = types.SimpleNamespace(stats=types.SimpleNamespace(cache_path=None))
    with monkeypatch.context() as changed:  # nowhere to keep code
        changed.setattr(compiled, "advance", one)
        anew = doctor.player()
    assert anew.status == "missing" and "anew by every process" in anew.found and "NUMBA_CACHE_DIR" in anew.fix
    with monkeypatch.context() as changed:
        changed.setattr(twin, "play", lambda *work: replace(players.by_simpy(*work), time=1))
        wrong = doctor.player()
    assert wrong.status == "missing" and "do not agree" in wrong.found
    off = subprocess.run(
        [sys.executable, "-c", "from attnsim.cli import doctor; print(doctor.player())"],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "SimPy: NUMBA_DISABLE_JIT is set" in off.stdout and "unset NUMBA_DISABLE_JIT" in off.stdout
    monkeypatch.delattr("attnsim.simulator.twin")
    monkeypatch.setitem(sys.modules, "attnsim.simulator.twin", None)
    old = doctor.player()
    assert old.status == "missing" and old.found.startswith("SimPy: ") and "--upgrade numba" in old.fix
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    absent = doctor.player()
    assert absent.found == "SimPy: numba is not installed; the same answers, some thirty times slower"
    assert absent.fix == "pip install numba"


def test_forbidden_counters_are_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Host(cards=1, driver_cuda=13000, gpus=("one",), trouble="")
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(environment, "read", lambda path: "RmProfilingAdminOnly: 1\n")
    monkeypatch.setattr(environment, "tried", lambda command: (1, "==ERROR== ERR_NVGPUCTRPERM - no permission"))
    found = environment._counters(there)
    assert found.status == "missing" and "administrators only" in found.found
    assert "NVreg_RestrictProfilingToAdminUsers=0" in found.fix
    monkeypatch.setattr(environment, "tried", lambda command: (0, "dram__bytes_read.sum byte 4,194,304"))
    assert environment._counters(there).status == "ok"
    monkeypatch.setattr(environment, "tried", lambda command: (0, "========= ERROR SUMMARY: 0 errors"))
    assert environment._sanitizer(there).status == "ok"
