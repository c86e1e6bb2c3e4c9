"""A measuring run with a GPU that is made up: what is measured first, what is kept, and what becomes of it."""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnsim.api import predict_table
from attnsim.errors import InputError
from attnsim.kernels.catalog import OPERATIONS, Operation
from attnsim.kernels.gpu.cuda_device import LASTING
from attnsim.kernels.gpu.grid import CONDITIONS, candidates, cases, informative, quick_cases
from attnsim.kernels.gpu.prepared import DRAWN, RepeatedNormals, prepare
from attnsim.kernels.gpu.records import Records, version_of
from attnsim.kernels.gpu.timing import Timing
from attnsim.models.hardware.files import load_gpu
from attnsim.models.question.case_file import read_table
from attnsim.models.question.case_row import parse_row, workload_of
from attnsim.ptx.outcome import Outcome
from attnsim.validation.measured.datasets import row_of
from attnsim.validation.measured.own_runs import measured_frame, measured_rows, summary, wrong_kernels
from attnsim.validation.measuring.measure import chosen, measure
from tests.unit.answering import answer, refusal
from tests.unit.fake_bench import GPU, Clock, FakeDevice, FakeWatch, make_bench, outcome, zeros


@pytest.fixture
def right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Operation, "exercise", lambda *_: outcome(0.0))


def some(*names: str) -> list[Operation]:
    return [OPERATIONS[name] for name in names]


def kinds(records: Records) -> Counter[str]:
    return Counter(record["kind"] for record in records.done.values())


def test_everything_is_checked_before_anything_is_timed(tmp_path: Path, right: None) -> None:
    records, told = Records(tmp_path / "records.jsonl"), list[str]()
    operations = some("flash", "decode")
    finished = measure(make_bench(), records, operations, budget_s=150, progress=told.append, clock=Clock())
    assert not finished.wrong and not finished.stopped and finished.left > 1000
    order = [record["kind"] for record in records.done.values()]
    assert [kind for kind, _ in itertools.groupby(order)] == ["machine", "correct", "null", "time"]
    assert kinds(records)["correct"] == sum(len(list(quick_cases(one))) for one in operations)
    assert told == list(records.done)[1:]
    point = next(record for record in records.done.values() if record["kind"] == "time")
    assert point["kept"] == 25 and point["throttled"] == 5 and point["reasons"] == ["power cap"]
    assert sum(len(burst["samples_s"]) for burst in point["bursts"]) == 30
    assert {"operation", "implementation", "version", "workload", "cache", "launch", "session"} <= point.keys()


def test_a_run_that_is_taken_up_again_measures_what_is_left(tmp_path: Path, right: None) -> None:
    path, operations = tmp_path / "records.jsonl", some("flash")
    measure(make_bench(), Records(path), operations, budget_s=80, clock=Clock())
    first = Records(path)
    path.write_bytes(path.read_bytes()[:-9])  # killed in the middle of a line
    again = Records(path)
    measure(make_bench(), again, operations, budget_s=60, clock=Clock())
    assert kinds(again)["correct"] == kinds(first)["correct"] and kinds(again)["time"] > kinds(first)["time"]
    uninterrupted = Records(tmp_path / "other.jsonl")
    measure(make_bench(), uninterrupted, operations, budget_s=200, clock=Clock())
    points = [key for key, record in again.done.items() if record["kind"] == "time"]
    assert points == [key for key, record in uninterrupted.done.items() if record["kind"] == "time"][: len(points)]


def test_kernels_that_have_changed_are_measured_again(
    tmp_path: Path, right: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, operations = tmp_path / "records.jsonl", some("flash")
    measure(make_bench(), Records(path), operations, budget_s=60, clock=Clock())
    for module in ("kernels.gpu.measuring", "validation.measuring.measure"):
        monkeypatch.setattr(f"attnsim.{module}.version_of", lambda one: "f" * 16)
    records = Records(path)
    before = len(records.done)
    measure(make_bench(), records, operations, budget_s=60, clock=Clock())
    new = [record for record in list(records.done.values())[before:] if record["kind"] in ("correct", "time")]
    assert new and {record["version"] for record in new} == {"f" * 16}


def wrong_in(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Operation, "exercise", lambda one, *_: outcome(0.5 if one.name == name else 0.0))


def test_a_wrong_kernel_stops_the_run_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_in("decode", monkeypatch)
    records, operations = Records(tmp_path / "records.jsonl"), some("flash", "decode", "naive")
    for _ in range(2):  # and so it does when it is started again
        finished = measure(make_bench(), records, operations, budget_s=500, clock=Clock())
        assert list(finished.wrong) == ["decode"] and "O is off by 5.0e-01, allowed" in finished.wrong["decode"]
        assert "time" not in kinds(records)


def test_a_kernel_that_fails_is_as_good_as_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Outcome:
        raise InputError("flash_forward does not compile")

    monkeypatch.setattr(Operation, "exercise", fails)
    finished = measure(make_bench(), Records(tmp_path / "r"), some("flash"), budget_s=99, clock=Clock())
    assert "does not compile" in finished.wrong["flash"]


def test_a_device_in_error_ends_the_run_and_one_point_that_fails_does_not(tmp_path: Path, right: None) -> None:
    bench, records = make_bench(), Records(tmp_path / "r")
    measure(bench, records, some("flash"), budget_s=70, clock=Clock())
    watch = bench.watch
    assert isinstance(watch, FakeWatch)
    watch.error = "too little memory"
    bench_null_works = replace(bench, watch=NullWorks(watch))
    finished = measure(bench_null_works, records, some("flash"), budget_s=40, clock=Clock())
    failed = [record for record in records.done.values() if "error" in record]
    assert len(failed) > 3 and not finished.stopped
    assert all(record["operation"] == "flash" for record in failed)
    watch.error = f"illegal address; {LASTING}, start a new one"
    finished = measure(bench_null_works, records, some("flash"), budget_s=40, clock=Clock())
    assert LASTING in finished.stopped and finished.stopped.startswith("flash")
    assert len([record for record in records.done.values() if "error" in record]) == len(failed) + 1


class NullWorks:
    """The watch, but for a kernel that does nothing."""

    def __init__(self, watch: FakeWatch) -> None:
        self.watch = watch

    def time(self, call: Callable[[], object], mode: Any = "cold", **options: Any) -> Timing:
        return (FakeWatch() if options["samples"] == 100 else self.watch).time(call, mode, **options)


def test_another_gpus_folder_is_refused_and_left_as_it_is(tmp_path: Path, right: None) -> None:
    path = tmp_path / "records.jsonl"
    measure(make_bench(), Records(path), some("flash"), budget_s=30, clock=Clock())
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"holds measurements of NVIDIA H200, this is NVIDIA L4; take another --out"):
        measure(make_bench("NVIDIA L4"), Records(path), some("flash"), budget_s=30, clock=Clock())
    assert path.read_bytes() == before


def test_which_operations_are_measured() -> None:
    found, left_out = chosen([], GPU)
    assert [one.name for one in found] == [name for name in OPERATIONS if name != "flash-hopper"]
    assert left_out == ["flash-hopper is left out: it is experimental; name it with --algorithms"]
    assert [one.name for one in chosen(["flash-hopper", "flash"], GPU)[0]] == ["flash", "flash-hopper"]
    with pytest.raises(InputError, match=r"flash-hopper does not run here: .*needs compute capability 9\.0"):
        chosen(["flash-hopper"], load_gpu("a100-sxm4-80gb"))
    with pytest.raises(InputError, match="unknown kernel 'flsh'; nearest: flash"):
        chosen(["flsh"], GPU)


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_first_points_show_every_level_and_later_ones_keep_their_distance(name: str) -> None:
    points = candidates(OPERATIONS[name], GPU)
    order = list(informative(points))
    assert len(order) == len(points) == len(set(order))
    first = order[:14]
    for kind in range(len(points[0].levels)):
        assert {point.levels[kind] for point in first} == {point.levels[kind] for point in points}
    if name != "linear-decode":  # which has one length
        # No two of the first are neighbours: they differ by more than two octaves of length, or a setting and one.
        places = np.array([point.place() for point in first])
        assert min(np.abs(a - b).sum() for a, b in itertools.combinations(places, 2)) > 2


def test_a_small_card_gets_no_workload_that_does_not_fit() -> None:
    card = load_gpu("l4")
    longest = {
        name: max(point.workload.seq_kv for point in candidates(OPERATIONS[name], card)) for name in ("naive", "flash")
    }
    assert longest["naive"] < longest["flash"] <= 32768
    for point in candidates(OPERATIONS["naive"], card):
        w = point.workload
        assert 2 * w.batch * w.heads_q * w.seq_q * w.seq_kv * 2 < card.hbm.capacity_bytes / 2


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_can_be_prepared_and_called(name: str) -> None:
    device, one = FakeDevice(), OPERATIONS[name]
    for w in cases(one, 127):
        call = prepare(one, device, w, zeros)
        before = len(device.launched)
        call()
        assert len(device.launched) > before


class FakeArray(np.ndarray[Any, Any]):
    """An array whose bytes are copied as CuPy's are."""

    @property
    def data(self) -> Any:
        return self

    def copy_from_device_async(self, source: Any, size: int) -> None:
        count = size // self.itemsize
        np.asarray(self)[:count] = np.asarray(source)[:count]


@pytest.mark.parametrize("count", [1, 1000, DRAWN, DRAWN + 1, 3 * DRAWN + 5])
def test_random_inputs_fill_their_arrays(count: int) -> None:
    device = FakeDevice()
    device.empty = lambda shape, dtype: np.full(shape, 0xFFFF, dtype).view(FakeArray)  # type: ignore[method-assign]
    device.upload = lambda array: array.view(FakeArray)  # type: ignore[method-assign]
    found = np.asarray(RepeatedNormals(device, 3)((count, 1), "bf16", 0))
    assert found.shape == (count, 1) and not (found == 0xFFFF).any()
    assert (found[: count - DRAWN] == found[DRAWN:]).all() if count > DRAWN else True
    other = np.asarray(RepeatedNormals(device, 3)((count, 1), "bf16", 1))
    assert (found != other).any()


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """A short run of every operation."""
    found = Records(tmp_path_factory.mktemp("run") / "records.jsonl")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Operation, "exercise", lambda *_: outcome(0.0))
        measure(make_bench(), found, some(*OPERATIONS), budget_s=600, clock=Clock())
    return found


def test_the_table_is_read_by_predictions_and_by_the_fit(records: Records, tmp_path: Path) -> None:
    rows = measured_rows(records.done.values())
    assert len(rows) == kinds(records)["time"] > 60
    path = tmp_path / "measurements.csv"
    measured_frame(rows).to_csv(path, index=False)
    frame = read_table(path)
    keys = [record for record in records.done.values() if record["kind"] == "time"]
    for raw, record in zip(frame.to_dict("records"), keys, strict=True):
        case = parse_row({str(name): cell for name, cell in raw.items()})
        assert not case.assumed
        assert (case.source, case.gpu, case.version) == ("synthetic", "h200-sxm-141gb", record["version"])
        assert str(workload_of(case)) == record["key"].split(f"{record['mode']} ", 1)[1]
        assert (case.cache, case.launch) == CONDITIONS[record["mode"]]
        assert case.time_s == pytest.approx(record["median_s"], rel=1e-5) and case.clock_mhz == 1755.0
        row = row_of(case)
        assert row.schedule.kernels and row.measured_s == case.time_s
    short = frame[frame["seq_kv"].astype(int) <= 4096].groupby("implementation").head(2)
    predicted = predict_table(short, processes=1, progress=False)
    assert list(predicted["error"]) == [""] * len(predicted)
    assert list(predicted["used_implementation"]) == list(short["implementation"])


def test_a_mask_that_a_case_table_cannot_hold_has_no_row(records: Records) -> None:
    everything = [json.loads(json.dumps(record)) for record in records.done.values()]
    point = next(record for record in everything if record["kind"] == "time")
    before = len(measured_rows(everything))
    point["workload"] |= {"mask": "causal, window 64, global 16", "band": False}
    assert len(measured_rows(everything)) == before - 1


def test_a_kernel_that_a_check_found_wrong_has_no_row_and_another_version_of_it_has(records: Records) -> None:
    everything = list(records.done.values())
    flash = OPERATIONS["flash"]
    check = {"kind": "smoke", "operation": "flash", "workload": "seq 200", "inputs": "growing", "ok": False}
    there = {row["implementation"] for row in measured_rows(everything)}
    assert flash.implementation in there
    older = [*everything, {**check, "version": "of old"}]
    assert len(measured_rows(older)) == len(measured_rows(everything))
    wrong = [*everything, {**check, "version": version_of(flash)}]
    assert there - {row["implementation"] for row in measured_rows(wrong)} == {flash.implementation}
    assert "flash" not in {row["operation"] for row in summary(wrong)}
    assert wrong_kernels(wrong) == {("flash", version_of(flash)): "seq 200, growing inputs"}


def test_points_without_a_machine_are_refused(records: Records) -> None:
    points = [record for record in records.done.values() if record["kind"] == "time"]
    with pytest.raises(InputError, match="no machine record"):
        measured_rows(points)
    machine = next(record for record in records.done.values() if record["kind"] == "machine")
    with pytest.raises(InputError, match="have no machine record beside them"):
        measured_rows([{**machine, "session": "another"}, *points])


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch, right: None) -> None:
    """The command finds a GPU, and half a minute is over after some hundred points."""
    for module in ("cli.measure", "validation.measured.own_runs"):
        monkeypatch.setattr(f"attnsim.{module}.attached_bench", lambda seed: make_bench())
    whole = measure
    clocked: Callable[..., Any] = lambda *a, **k: whole(*a, **{**k, "budget_s": 130}, clock=Clock())  # noqa: E731
    monkeypatch.setattr("attnsim.cli.measure.run", clocked)
    monkeypatch.setattr("attnsim.validation.measured.own_runs.measure", clocked)


def test_the_command_ends_with_a_table_and_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], on_a_gpu: None
) -> None:
    out = tmp_path / "run"
    command = ("measure", "--out", str(out), "--algorithms", "flash,naive")
    text, err = answer(capsys, *command)
    assert err == "" and "NVIDIA H200 (h200-sxm-141gb), driver 580.65.06" in text
    assert "a kernel that does nothing, stream, cold: " in text and "the same command goes on" in text
    assert f"written: {out / 'measurements.csv'}" in text
    assert max(len(line) for line in text.splitlines() if not line.startswith("written")) <= 100
    rows = json.loads(answer(capsys, *command, "--json")[0])
    assert {row["kind"] for row in rows} == {"machine", "null", "kernel", "time"}
    timed = [row for row in rows if row["kind"] == "time"]
    assert len(read_table(out / "measurements.csv")) == len(timed)


def test_a_wrong_kernel_is_one_line_and_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], on_a_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong_in("flash", monkeypatch)
    out, err = answer(capsys, "measure", "--out", str(tmp_path / "run"), "--algorithms", "flash,naive", code=1)
    assert out == "" and err.startswith("error: flash is wrong: batch 1, heads 4/1, seq 127") and err.count("\n") == 1
    out, err = answer(
        capsys, "measure", "--out", str(tmp_path / "run"), "--algorithms", "flash,naive", "--keep-going", code=1
    )
    assert "naive" in out and "error: flash is wrong" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--out", "{here}"], "--out {here} is a file; give a folder"),
        (["--out", "{new}", "--from", "nowhere.jsonl"], "--from nowhere.jsonl is no file"),
        (["--out", "{new}", "--from", "{here}"], "line 1: not a record"),
        (["--out", "{new}", "--minutes", "-1"], "--minutes"),
        (["--out", "{new}"], "needs CuPy"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    here, new = tmp_path / "file", tmp_path / "new"
    here.write_text("not a record\n")
    given = [word.format(here=here, new=new) for word in arguments]
    assert told.format(here=here) in refusal(capsys, "measure", *given)
    assert not new.exists()
