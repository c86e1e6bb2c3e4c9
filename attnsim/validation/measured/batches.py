"""Measured calls whose sequences differ in length: the tables of ``measurements/batches``, with their schedules."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from functools import lru_cache

from attnsim.models.calibrations.choose import choose
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.question.case_row import Case, gpu_of, parse_row, workload_of
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule
from attnsim.simulator.prepare import Cache
from attnsim.simulator.replay import replay
from attnsim.validation.measured.sources import BATCHES

NOT_TIMED = ("cache_write", "store_cache", "prepare")
"""Kernels that these laboratories' timers leave out: they wrap the attention call alone."""


@dataclass(frozen=True, eq=False)
class Batch:
    """A measured call.

    Parameters
    ----------
    case : Case
    notes : str
        What the row is to others of its table.
    """

    case: Case
    notes: str

    @property
    def record(self) -> Implementation:
        """Whose kernels ran."""
        return find_implementation(self.case.implementation or "")

    @property
    def gpu(self) -> Gpu:
        """The GPU as its file has it."""
        return gpu_of(self.case)

    @property
    def workload(self) -> Workload:
        """The question."""
        return workload_of(self.case)

    @property
    def measured_s(self) -> float:
        """The time that the row states."""
        return self.case.time_s or 0.0

    @property
    def numbers(self) -> Numbers:
        """The fitted numbers that a question on this GPU has."""
        return choose(self.record, self.gpu).numbers

    def schedule(self, w: Workload | None = None) -> Schedule:
        """The kernels that were timed; of another workload on the same GPU, where one is given."""
        whole = self.record.build(w or self.workload, self.gpu, None)
        return replace(whole, kernels=tuple(one for one in whole.kernels if one.name not in NOT_TIMED))


def played_s(schedule: Schedule, gpu: Gpu, numbers: Numbers, cache: Cache = "warm") -> float:
    """Time of a schedule's kernels, without what a call takes beside them."""
    return sum(kernel.time_s for kernel in replay(schedule, gpu, numbers, cache=cache, launch="kernel").kernels)


@lru_cache(maxsize=4)
def batches(table: str) -> tuple[Batch, ...]:
    """The rows of one of the tables, in order."""
    with (BATCHES / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        return tuple(Batch(parse_row(row), row["notes"]) for row in csv.DictReader(file))
