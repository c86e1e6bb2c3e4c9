"""`attnsim trace`: slices that add up to the replay, tracks on which none overlaps, files that open."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from matplotlib.patches import Rectangle

import attnsim
import attnsim.api
from attnsim.api.asking import Conditions
from attnsim.api.tracing import trace, traces
from attnsim.cli import main
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.plots.timeline import document, overlap, timeline, write_trace
from attnsim.simulator.trace import MOST_SLICES, UNITS, Trace
from tests.unit.answering import refusal

SMALL = attnsim.Workload(batch=1, heads_q=8, seq_q=1000, head_dim=64, mask=attnsim.Mask.causal())
LARGE = attnsim.Workload(batch=8, heads_q=32, seq_q=16384, head_dim=128)
GPU = "h100-sxm5-80gb"

EVENT = {
    "type": "object",
    "required": ["ph", "pid", "tid", "name"],
    "properties": {
        "ph": {"enum": ["X", "M", "C"]},
        "pid": {"type": "integer", "minimum": 0},
        "tid": {"type": "integer", "minimum": 0},
        "name": {"type": "string", "minLength": 1},
        "ts": {"type": "number", "minimum": 0},
        "dur": {"type": "number", "minimum": 0},
        "args": {"type": "object"},
    },
    "allOf": [
        {"if": {"properties": {"ph": {"const": "X"}}}, "then": {"required": ["ts", "dur"]}},
        {"if": {"properties": {"ph": {"const": "C"}}}, "then": {"required": ["ts", "args"]}},
        {"if": {"properties": {"ph": {"const": "M"}}}, "then": {"required": ["args"]}},
    ],
}
"""Google's "Trace Event Format", the kinds of event that are used here."""


NAMES = ["naive", "flash-1", "flash-2", "flash-3", "linear"]


@pytest.fixture(scope="module", params=NAMES)
def found(request: pytest.FixtureRequest) -> Trace:
    return trace(SMALL, GPU, request.param)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_shown_whole_moves_the_schedules_bytes(name: str) -> None:
    few = load_gpu(GPU).replace("sm.count", 8)
    found = trace(SMALL, few, name, sms=8)
    assert any(kernel.stands_for == 1 for kernel in found.kernels)
    for kernel, shown in zip(found.schedule.kernels, found.kernels, strict=True):
        if shown.stands_for == 1 and not shown.shown:
            for unit, kind in (("copy", "load"), ("store", "store")):
                moved = sum(piece.bytes for piece in shown.slices if piece.unit == unit)
                assert moved == sum(size for (what, _), size in kernel.requested().items() if what == kind)
            assert sum(piece.unit == "block" for piece in shown.slices) == kernel.blocks


def test_kernels_follow_one_another_as_in_the_replay(found: Trace) -> None:
    for before, after in itertools.pairwise(found.kernels):
        assert after.start_s >= before.start_s + before.time_s
    last = found.kernels[-1]
    assert last.start_s + last.time_s == pytest.approx(found.replay.time_s)


def test_slices_lie_inside_their_block_and_units_are_busy_one_at_a_time(found: Trace) -> None:
    for kernel in found.kernels:
        begin = min(piece.start_s for piece in kernel.slices)
        assert begin >= 0 and all(piece.end_s >= piece.start_s for piece in kernel.slices)
        assert {piece.unit for piece in kernel.slices} <= {*UNITS}
        for sm, unit in itertools.product(range(kernel.sms), ("tensor", "softmax")):
            mine = sorted((p.start_s, p.end_s) for p in kernel.slices if p.sm == sm and p.unit == unit)
            assert all(a[1] <= b[0] + 1e-15 for a, b in itertools.pairwise(mine))


def test_the_file_has_the_format_and_no_slices_overlap_on_a_track(found: Trace) -> None:
    text = json.loads(json.dumps(document(found, {"gpu": GPU}), allow_nan=False))
    jsonschema.Draft202012Validator.check_schema(EVENT)
    one_event = jsonschema.Draft202012Validator(EVENT)  # the schema is looked at once, not with each event
    for event in text["traceEvents"]:
        one_event.validate(event)
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in text["traceEvents"]:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    named = {(e["pid"], e["tid"]) for e in text["traceEvents"] if e["name"] == "thread_name"}
    assert {*tracks} <= named
    for mine in tracks.values():
        mine.sort(key=lambda event: event["ts"])
        assert all(a["ts"] + a["dur"] <= b["ts"] + 2e-6 for a, b in itertools.pairwise(mine))


def test_a_large_grid_is_sampled_and_says_so() -> None:
    found = trace(LARGE, GPU)
    (kernel,) = found.kernels
    assert "on one SM that stands for 132" in kernel.shown and len(kernel.slices) <= MOST_SLICES
    file = document(found, {})
    assert file["otherData"][f"shown of {kernel.name}"] == kernel.shown
    assert [one["args"]["shown"] for one in file["traceEvents"] if one["name"] == kernel.name] == [kernel.shown]
    assert {piece.sm for piece in kernel.slices} == {0}


PATTERNS = [
    name for name, item in attnsim.api.ALGORITHMS.items() if item.mask and item.leaves_out and not item.selection
]


@pytest.mark.parametrize("name", ["sliding-window", "sparse", *PATTERNS])
def test_a_windowed_question_has_one_answer(name: str) -> None:
    """compare, predict, explain and trace, of one algorithm and of several, play the same mask."""
    question = attnsim.Workload(1, 12, 4096, 64, mask=attnsim.Mask.sliding_window(512))
    gpu = "a100-sxm4-80gb"
    answer, (compared,) = attnsim.predict(question, gpu, name), attnsim.compare(question, gpu, [name])
    explained = attnsim.explain(question, gpu, name).prediction
    several = traces(question, attnsim.load_gpu(gpu), [name], conditions=Conditions(), sms=2)
    assert answer.workload == compared.workload == explained.workload
    times = [answer.time_s, compared.time_s, explained.time_s]
    assert {*times, trace(question, gpu, name).replay.time_s, several[0][1].replay.time_s} == {answer.time_s}
    assert answer.workload.mask == (
        attnsim.Mask.sliding_window(512)
        if name in ("sliding-window", "sparse")
        else attnsim.Mask.parse(attnsim.api.ALGORITHMS[name].mask) & attnsim.Mask.causal()
    )


def test_flash_3_hides_softmax_that_flash_1_does_not() -> None:
    hidden = {}
    for name in ("flash-1", "flash-3"):
        (kernel,) = trace(LARGE, GPU, name).kernels
        end = sorted(piece.end_s for piece in kernel.slices if piece.unit == "softmax")[40]
        tensor, softmax, both = overlap(kernel, end)
        hidden[name] = both / min(tensor, softmax)
    assert hidden["flash-3"] > 0.5 > hidden["flash-1"]


def test_the_picture_and_its_table(tmp_path: Path) -> None:
    names = ["flash-1", "flash-2"]
    picture, table = timeline([trace(SMALL, GPU, name) for name in names], names).write(tmp_path / "first.svg")
    text = picture.read_text(encoding="utf-8")
    assert "<svg" in text and "load K" in text
    lines = table.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("panel,implementation,kernel,unit") and {line.split(",")[0] for line in lines[1:]} == {
        *names
    }


def test_the_picture_has_a_bar_for_each_tile_and_none_hides_another() -> None:
    found = trace(LARGE, GPU, "flash-2")
    picture = timeline([found], ["flash-2"])
    (axes,) = picture.figure().axes
    lane = [text.get_text() for text in axes.get_yticklabels()].index("load K")
    bars = [one for one in axes.patches if isinstance(one, Rectangle) and lane - 0.5 < one.get_y() < lane + 0.5]
    loads = [row for row in picture.rows if (row["unit"], row["tensor"]) == ("copy", "K")]
    assert len(bars) == len(loads) > 4
    assert sorted(round(bar.get_x(), 6) for bar in bars) == pytest.approx(
        sorted(float(str(row["start_us"])) for row in loads)
    )
    together = 0
    for one, other in combinations(bars, 2):
        if max(one.get_x(), other.get_x()) < min(bar.get_x() + bar.get_width() for bar in (one, other)) - 1e-9:
            together += 1
            assert abs(one.get_y() - other.get_y()) > 0.9 * one.get_height()
    assert together, "the blocks of an SM load at the same time"


def test_the_command_writes_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, picture = tmp_path / "trace.json.gz", tmp_path / "turns.png"
    shape = ["--gpu", GPU, "--heads", "4", "--seq", "512", "--head-dim", "64"]
    assert main(["trace", *shape, "--out", str(out), "--picture", str(picture)]) == 0
    text = capsys.readouterr().out
    assert "written:" in text and "attnsim predict has the call's with its 90 % range" in text
    assert json.loads(gzip.decompress(out.read_bytes()))["otherData"]["gpu"] == GPU
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.with_suffix(".csv").exists()
    assert main(["trace", *shape, "--out", str(out), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["kernel"] == "flash_fwd" and row["slices"] > 0


def test_a_picture_has_the_unchanged_gpu_beside_the_changed_one_on_one_scale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = ["--heads", "32", "--kv-heads", "8", "--seq", "4096", "--head-dim", "128", "--pass", "decode"]
    picture, out = tmp_path / "both.svg", tmp_path / "changed.json"
    one = ["trace", "--gpu", GPU, *shape, "--set", "hbm.bandwidth=2x", "--out", str(out)]
    look = ["--picture", str(picture), "--style", "dark", "--width", "column", "--caption", "file"]
    assert main([*one, *look, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    unchanged, changed = dict.fromkeys(row["gpu"] for row in rows)
    assert unchanged == GPU and changed.startswith(f"{GPU}; hbm.bandwidth = 6.7 TB/s")
    with picture.with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        pieces = list(csv.DictReader(file))
    panels = dict.fromkeys(piece["panel"] for piece in pieces)
    assert [*panels] == [f"flash, {GPU}", f"flash, {GPU}*"]
    told = picture.with_suffix(".txt").read_text(encoding="utf-8")
    assert f"seq 1 x 4096, head_dim 128, bf16, decode, full; {GPU}*: hbm.bandwidth = 6.7 TB/s (was" in told
    assert json.loads(out.read_bytes())["otherData"]["gpu"] == changed, "the file holds the one that was asked about"
    assert main([*one, "--json"]) == 0
    assert {row["gpu"] for row in json.loads(capsys.readouterr().out)} == {changed}


def test_the_same_trace_is_the_same_file(tmp_path: Path) -> None:
    first, second = (write_trace(trace(SMALL, GPU), tmp_path / name) for name in ("a.json.gz", "b.json.gz"))
    assert gzip.decompress(first.read_bytes()) == gzip.decompress(second.read_bytes())


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "--out trace.json.gz"),
        (["--out", "trace.txt"], ".json"),
        (["--out", "nowhere/trace.json"], "not a folder"),
        (["--picture", "turns.gif"], ".png"),
        (["--out", "trace.json", "--algorithm", "flash,naive"], "one trace, 2 are given; give one algorithm and GPU"),
        (["--out", "trace.json", "--gpu", "a100-sxm4-80gb"], "one trace, 2 are given; give one algorithm and GPU"),
        (["--picture", "turns.png", "--style", "drak"], "dark"),
        (["--picture", "turns.png", "--width", "wide"], "column"),
        (["--picture", "turns.png", "--caption", "below"], "file"),
        (["--out", "trace.json", "--sms", "40"], "1 to 16"),
        (["--out", "trace.json", "--algorithm", "flush"], "not known"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    err = refusal(capsys, "trace", "--gpu", GPU, "--heads", "4", "--seq", "512", "--head-dim", "64", *arguments)
    assert word in err and not list(tmp_path.iterdir())


def test_what_does_not_fit_the_card_is_refused() -> None:
    with pytest.raises(InputError, match=r"does not fit: needs 70\.6 TB, the card has 80 GB; take a smaller"):
        trace(attnsim.Workload(batch=64, heads_q=64, seq_q=65536, head_dim=128), GPU, "naive")
