"""Measured calls whose sequences differ in length: the tables of ``measurements/batches``, with their schedules."""

from __future__ import annotations

import csv
from functools import lru_cache

from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.question.case_row import parse_row
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule
from attnsim.simulator.prepare import Cache
from attnsim.simulator.replay import replay
from attnsim.validation.measured.datasets import Row, row_of
from attnsim.validation.measured.sources import BATCHES


@lru_cache(maxsize=4)
def batches(table: str) -> tuple[Row, ...]:
    """The rows of one of the tables, in order."""
    with (BATCHES / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        return tuple(row_of(parse_row(row)) for row in csv.DictReader(file))


def timed(row: Row, w: Workload | None = None) -> Schedule:
    """The kernels that were timed; of another workload on the same GPU, where one is given.

    The cache write is one of vLLM's: LLMServingSim's profiler times the module `Attention` with all below it
    (``profiler/models/llama.yaml``, ``profiler/core/hooks/timings.py``), and its `forward` writes the cache.
    """
    return row.record.build(w or row.workload, row.gpu, None)


def played_s(schedule: Schedule, gpu: Gpu, numbers: Numbers, cache: Cache = "warm") -> float:
    """Time of a schedule's kernels, without what a call takes beside them."""
    return sum(kernel.time_s for kernel in replay(schedule, gpu, numbers, cache=cache, launch="kernel").kernels)
