"""A run that was killed goes on where it stopped."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnsim.errors import InputError
from attnsim.kernels.gpu.records import Point, Records


def points(done: list[str], count: int = 4) -> list[Point]:
    def measure(key: str) -> Callable[[], dict[str, Any]]:
        def run() -> dict[str, Any]:
            done.append(key)
            if key == "p1":
                raise RuntimeError("no such kernel")
            return {"value": len(done)}

        return run

    return [Point(f"p{i}", measure(f"p{i}")) for i in range(count)]


def test_points_are_done_once_and_failures_do_not_stop_the_rest(tmp_path: Path) -> None:
    done: list[str] = []
    path = tmp_path / "run" / "records.jsonl"
    first = list(Records(path).run(points(done), deadline_s=float("inf")))
    assert [key for key, _ in first] == done == ["p0", "p1", "p2", "p3"]
    assert first[1][1]["error"] == "RuntimeError: no such kernel"
    again = list(Records(path).run(points(done, 5), deadline_s=float("inf")))
    assert [key for key, _ in again] == ["p4"]


def test_a_line_cut_off_by_a_kill_is_measured_again(tmp_path: Path) -> None:
    done: list[str] = []
    path = tmp_path / "records.jsonl"
    list(Records(path).run(points(done, 3), deadline_s=float("inf")))
    path.write_bytes(path.read_bytes()[:-7])
    records = Records(path)
    assert set(records.done) == {"p0", "p1"}
    assert [key for key, _ in records.run(points(done, 3), deadline_s=float("inf"))] == ["p2"]
    assert [json.loads(line)["key"] for line in path.read_text().splitlines()] == ["p0", "p1", "p2"]


def test_a_file_with_nothing_but_a_cut_off_line_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"key": "p0"')
    assert Records(path).done == {}
    assert path.read_text() == ""


def test_nothing_is_begun_after_the_deadline(tmp_path: Path) -> None:
    done: list[str] = []
    now = iter([0.0, 0.0, 1.0, 1.0, 1.0, 5.0, 9.0])
    list(Records(tmp_path / "r").run(points(done), deadline_s=3.0, clock=lambda: next(now)))
    assert done == ["p0", "p1"]


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text("source,gpu\n1,2\n")
    with pytest.raises(InputError, match=r"line 1: not a record"):
        Records(path)
