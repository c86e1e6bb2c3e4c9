"""A run's process watched by another: one that hangs, or dies, costs its point and not the run.

A kernel that waits for ever, as a wrong barrier would let it, cannot be ended by the process that launched it. The run
therefore notes each point before it begins, with the time that it may take, and its parent, which never touches the
GPU, ends it, records the point and starts it anew with the time that is left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnsim.kernels.gpu.records import FILE_NAME, Point, Records

AGAIN = 75
"""Exit code of a run that asks to be started anew: its device stays in error."""
START_S = 180.0
"""For drivers, packages and clocks to come up."""
LOOK_S = 0.2
NOW = "now.json"
"""The point that is being measured, in the run's folder."""


def noted(points: Iterable[Point], folder: Path, limit_s: float) -> Iterator[Point]:
    """The points, each of which says that it begins and how many seconds it may take."""

    def begin(point: Point) -> dict[str, Any]:
        _note(folder, {"key": point.key, "about": dict(point.about), "ends": time.time() + limit_s, "limit_s": limit_s})
        return point.measure()

    for point in points:
        yield replace(point, measure=lambda point=point: begin(point))


def watch(start: Callable[[float], list[str]], folder: Path, seconds: float) -> int:
    """Run a command until it is done, ending it at points that take too long.

    Parameters
    ----------
    start : callable
        Seconds that are left to a command that measures for so long.
    folder : Path
        Where it notes its points and keeps its records.
    seconds : float
        For all of it.

    Returns
    -------
    int
        The exit code of the command; 1 where it died or hung before its first point, or could not be ended.
    """
    deadline = time.monotonic() + seconds
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # not without the process
    try:
        return _watched(start, folder, deadline)
    finally:
        signal.signal(signal.SIGTERM, before)


def _watched(start: Callable[[float], list[str]], folder: Path, deadline: float) -> int:
    while True:
        _note(folder, {"key": "", "ends": time.time() + START_S, "limit_s": START_S})
        process = subprocess.Popen(start(max(0.0, deadline - time.monotonic())), start_new_session=True)
        try:
            complaint = _followed(process, folder)
        finally:
            gone = _ended(process)
        if not complaint and process.returncode != AGAIN:
            return process.returncode
        point = _noted(folder)
        if complaint and not point["key"]:
            print(f"the run {complaint} before its first point", flush=True)
            return 1
        if complaint:
            print(f"{point['key']}: {complaint}", flush=True)
            record = {**point["about"], "error": complaint, "ended": True}
            Records(folder / FILE_NAME).append(point["key"], record)
        if not gone:
            print("it cannot be ended; the GPU may have to be reset", flush=True)
            return 1


def _followed(process: subprocess.Popen[bytes], folder: Path) -> str:
    """What went wrong, once it has ended or has to be; "" for an exit of its own."""
    while process.poll() is None:
        point = _noted(folder)
        if time.time() > point["ends"]:
            return f"ended after {point['limit_s']:g} s"
        time.sleep(LOOK_S)
    return f"died of signal {-process.returncode}" if process.returncode < 0 else ""


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process and its children are gone."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        return False
    return True


def _note(folder: Path, what: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f"{NOW}.new"
    new.write_text(json.dumps(what), encoding="utf-8")
    new.replace(folder / NOW)


def _noted(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / NOW).read_text(encoding="utf-8"))
    return found
