"""Measured rows ready for prediction: the published tables, each row with its schedule."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np
from joblib import Parallel, delayed

from attnsim.errors import InputError
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import match
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.implementations.names import build_speed
from attnsim.models.question.case_row import Case, gpu_of, parse_row, workload_of
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule
from attnsim.simulator.program import Cache
from attnsim.simulator.replay import Replay, replay
from attnsim.tables import read_csv
from attnsim.validation.measured.sources import BATCHES, PUBLISHED, Role, role_of, sources


@dataclass(frozen=True, eq=False)
class Row:
    """A measured case, with its implementation's schedule (built on first use).

    `assumed` lists the conditions that the row leaves open, and the assumptions.
    """

    case: Case
    workload: Workload
    gpu: Gpu
    record: Implementation
    assumed: tuple[str, ...] = ()

    @cached_property
    def schedule(self) -> Schedule:
        """The kernels that the implementation launches."""
        return self.record.build(self.workload, self.gpu, None)

    @property
    def measured_s(self) -> float:
        """The measured time in seconds."""
        assert self.case.time_s is not None
        return self.case.time_s

    def predict_s(self, numbers: Numbers) -> float:
        """Return the replayed time in seconds with these numbers."""
        return self.replay(numbers).time_s

    def replay(self, numbers: Numbers) -> Replay:
        """Replay with these numbers, in the row's cache state, launch mode and build."""
        numbers = replace(numbers, speed=build_speed(self.record, self.workload, self.gpu))
        cache = "cold" if self.case.cache == "cold" else "warm"
        return replay(self.schedule, self.gpu, numbers, cache=cache, launch=self.case.launch)  # type: ignore[arg-type]


def row_of(case: Case) -> Row:
    """Resolve a case to its workload, its GPU and the record of its implementation.

    Raises
    ------
    InputError
        If it names no implementation, or an unknown one.
    """
    if case.implementation is None:
        raise InputError("a case has no implementation; say whose kernels were measured")
    w, gpu = workload_of(case), gpu_of(case)
    found = match(case.implementation, case.version or "", gpu, w)
    assumed = (case.assumed.get("cache"), case.assumed.get("launch"), found.assumed, found.taken)
    return Row(replace(case, gpu=gpu.id), w, gpu, found.record, tuple(filter(None, assumed)))


@lru_cache(maxsize=1)
def published_rows() -> tuple[Row, ...]:
    """Return every published row that a fit may use, in the order of the sources."""
    return tuple(row_of(case) for case in published_cases("fit"))


def published_cases(*roles: Role) -> Iterator[Case]:
    """Yield the cases of the published sources with one of these roles, in the order of the sources."""
    tables = dict.fromkeys(table for source in sources().values() for table in source.tables)
    for table in tables:
        for case in map(parse_row, read_csv(PUBLISHED / f"{table}.csv")):
            if role_of(case.source) in roles:
                yield _with_defaults(replace(case, clock_mhz=case.clock_mhz or sources()[case.source].clock_mhz))


def _with_defaults(case: Case) -> Case:
    # GPT-2 medium in figure 2 of the FlashAttention paper: with dropout and causal; see docs/design/unfused.md.
    return replace(case, causal=True, options={"dropout": "1"}) if case.source == "fa1_fig2" else case


@lru_cache(maxsize=4)
def batches(table: str) -> tuple[Row, ...]:
    """Return the rows of one of the tables of batches, in order."""
    return tuple(row_of(parse_row(row)) for row in read_csv(BATCHES / f"{table}.csv"))


def timed(row: Row, w: Workload | None = None) -> Schedule:
    """Return the schedule of the timed kernels, by default for the row's own workload.

    The cache write is one of vLLM's: LLMServingSim's profiler times the module `Attention` with all below it
    (``profiler/models/llama.yaml``, ``profiler/core/hooks/timings.py``), and its `forward` writes the cache.
    """
    return row.record.build(w or row.workload, row.gpu, None)


def played_s(schedule: Schedule, gpu: Gpu, numbers: Numbers, cache: Cache = "warm") -> float:
    """Return the time of a schedule's kernels in seconds, without the fixed time of the call."""
    return sum(kernel.time_s for kernel in replay(schedule, gpu, numbers, cache=cache, launch="kernel").kernels)


_CHUNKS = 8
"""Number of parts that rows are sent to processes in: few, because the rows of a part share data."""

Task = tuple[Row, Numbers]
"""A row, and the numbers for its prediction."""


@dataclass(frozen=True, slots=True)
class Time:
    """A replayed time in seconds, and the busy seconds of each unit within it."""

    time_s: float
    units_s: Mapping[str, float]


def predict_all(tasks: Sequence[Task]) -> list[float]:
    """Return the predicted time of each task in seconds, in order, using two processes."""
    return [one.time_s for one in play_all(tasks)]


def play_all(tasks: Sequence[Task]) -> list[Time]:
    """Return the predicted time of each task with the busy time of each unit."""
    chunks = [tasks[start::_CHUNKS] for start in range(_CHUNKS)]
    done = Parallel(n_jobs=min(2, os.cpu_count() or 1))(delayed(_play)(chunk) for chunk in chunks)
    found = [Time(0.0, {})] * len(tasks)
    for start, times in enumerate(done):
        found[start::_CHUNKS] = times
    return found


def _play(tasks: Sequence[Task]) -> list[Time]:
    played = (row.replay(numbers) for row, numbers in tasks)
    return [Time(one.time_s, one.units_s()) for one in played]


def errors_of(tasks: Sequence[Task]) -> list[float]:
    """Return the error size of each task, ``|predicted / measured - 1|``."""
    return [abs(time / row.measured_s - 1) for (row, _), time in zip(tasks, predict_all(tasks), strict=True)]


Thing = TypeVar("Thing")
Key = TypeVar("Key", bound=Hashable)


def grouped(things: Iterable[Thing], key: Callable[[Thing], Key]) -> dict[Key, list[Thing]]:
    """Group things by key, in the order in which keys first occur."""
    found: dict[Key, list[Thing]] = {}
    for one in things:
        found.setdefault(key(one), []).append(one)
    return found


Line = dict[str, Any]


def tabled(
    things: Iterable[Thing], columns: Sequence[str], cell: Callable[[Thing], Any], sums: Callable[[list[Thing]], Line]
) -> list[Line]:
    """Return a line for each cell, sorted: its names, in these columns, and the summary of its things."""
    cells = sorted(grouped(things, cell).items())
    return [dict(zip(columns, key, strict=True)) | sums(members) for key, members in cells]


def error_summary(errors: Iterable[float], digits: int = 4) -> dict[str, Any]:
    """Summarise error sizes such as ``|predicted / measured - 1|``: ``mean, median, p90``, rounded to `digits`."""
    values = np.array(list(errors))
    found = {"mean": values.mean(), "median": np.median(values), "p90": np.quantile(values, 0.9)}
    return {name: round(float(value), digits) for name, value in found.items()}
