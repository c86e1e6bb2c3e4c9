"""A measuring run on a GPU: checks every kernel, then times points until the time is used up.

Each point is appended to a file as soon as it is measured (:mod:`attnsim.kernels.gpu.records`), so that a killed run
can be resumed, and a finished one continued with more time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnsim.errors import InputError
from attnsim.kernels.catalog import OPERATIONS, Operation, find_operation
from attnsim.kernels.gpu.cuda_device import LASTING
from attnsim.kernels.gpu.grid import quick_cases
from attnsim.kernels.gpu.measuring import (
    Bench,
    by_value,
    correctness_points,
    machine_points,
    null_points,
    runs_on,
    time_points,
)
from attnsim.kernels.gpu.records import Point, Records, now, version_of
from attnsim.models.hardware.gpu import Gpu

Progress = Callable[[str], None]
"""Called with the key of each finished point."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The result of a run.

    Parameters
    ----------
    session : str
        Start time, which identifies the sessions of a run.
    wrong : dict of str to str
        Wrong operations, each with its first failure.
    stopped : str
        Reason why the run stopped early, other than time; "" if it did not.
    left : int
        Number of points that are not measured yet.
    """

    session: str
    wrong: dict[str, str] = field(default_factory=dict)
    stopped: str = ""
    left: int = 0


def chosen(names: Sequence[str], gpu: Gpu) -> tuple[list[Operation], list[str]]:
    """Return the operations to measure, the most valuable first, and the reasons why others are left out.

    Parameters
    ----------
    names : sequence of str
        Names of the catalog; without any, all operations that run on this GPU and have been proven on a GPU.

    Raises
    ------
    InputError
        If a named operation is unknown, or does not run on the GPU.
    """
    asked = [find_operation(name) for name in names]
    for one in asked:
        if reason := runs_on(one, gpu):
            raise InputError(f"{one.name} does not run here: {reason}")
    if asked:
        return by_value([one.name for one in asked]), []
    found, left_out = [], []
    for one in by_value(list(OPERATIONS)):
        reason = runs_on(one, gpu)
        if reason:
            left_out.append(f"{one.name} is left out: {reason}")
        elif one.experimental:
            left_out.append(f"{one.name} is left out: it is experimental; name it with --algorithms")
        else:
            found.append(one)
    return found, left_out


def measure(
    bench: Bench,
    records: Records,
    operations: Sequence[Operation],
    *,
    budget_s: float,
    keep_going: bool = False,
    progress: Progress = lambda key: None,
    clock: Callable[[], float] = time.monotonic,
) -> Finished:
    """Check and time operations until the time is used up.

    Parameters
    ----------
    records : Records
        Earlier records; their points are not measured again, unless a kernel has changed.
    operations : sequence of Operation
        The most valuable first.
    budget_s : float
        No point is started after so many seconds.
    keep_going : bool
        Skip wrong operations instead of stopping at the first.
    progress : callable
        Called with the key of each finished point.
    clock : callable
        Returns seconds.

    Raises
    ------
    InputError
        If the records are of another GPU.
    """
    deadline, session = clock() + budget_s, now()

    def run(points: Iterable[Point]) -> Iterator[dict[str, Any]]:
        for key, record in records.run(points, deadline, clock):
            progress(key)
            yield record

    _note_machine(bench, records, operations, session)
    found = wrong(records, operations)
    if not found or keep_going:
        for record in run(correctness_points(bench, operations, quick_cases)):
            if LASTING in record.get("error", ""):
                return Finished(session, wrong(records, operations), record["error"])
            if not record.get("ok") and not keep_going:
                break
    found = wrong(records, operations)
    if found and not keep_going:
        return Finished(session, found)
    right = [one for one in operations if one.name not in found]
    for record in run(null_points(bench, session)):
        if "error" in record:
            return Finished(session, found, f"a kernel that does nothing cannot be timed: {record['error']}")
    for record in run(time_points(bench, right, session)):
        if LASTING in record.get("error", ""):
            return Finished(session, found, f"{record['operation']}: {record['error']}")
    left = sum(point.key not in records.done for point in time_points(bench, right, session))
    return Finished(session, found, left=left)


def wrong(records: Records, operations: Iterable[Operation]) -> dict[str, str]:
    """Return the operations whose present kernels failed a check, with their first failure."""
    versions = {one.name: version_of(one) for one in operations}
    found: dict[str, str] = {}
    for record in records.done.values():
        if record.get("kind") != "correct" or versions.get(record["operation"]) != record["version"]:
            continue
        if not record.get("ok"):
            found.setdefault(record["operation"], f"{record['workload']}: {_complaint(record)}")
    return found


def _complaint(record: dict[str, Any]) -> str:
    if "error" in record:
        return str(record["error"])
    allowed = record["tolerance"]
    return ", ".join(
        f"{name} is not finite" if error is None else f"{name} is off by {error:.1e}, allowed {allowed:.1e}"
        for name, error in record["errors"].items()
        if error is None or error > allowed
    )


def _note_machine(bench: Bench, records: Records, operations: Sequence[Operation], session: str) -> None:
    (point,) = machine_points(bench, operations, session)
    machine = point.measure()
    before = {record["gpu"] for record in records.done.values() if record.get("kind") == "machine"}
    if before - {machine["gpu"]}:
        raise InputError(
            f"{records.path} holds measurements of {', '.join(sorted(before))}, this is {machine['gpu']}; take another "
            "--out"
        )
    records.append(point.key, {**point.about, **machine})
