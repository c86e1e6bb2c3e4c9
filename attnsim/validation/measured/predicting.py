"""Many measured rows predicted at once, and their errors summed up."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnsim.models.calibrations.numbers import Numbers
from attnsim.validation.measured.datasets import Row

_CHUNKS = 8
"""Parts that the rows are handed to processes in: few, because the rows of a part share what is sent with them."""

Task = tuple[Row, Numbers]
"""A row, and the numbers to predict it with."""


@dataclass(frozen=True, slots=True)
class Time:
    """A replayed time in seconds, and the busy seconds of each unit within it."""

    time_s: float
    units_s: Mapping[str, float]


def predict_all(tasks: Sequence[Task]) -> list[float]:
    """The predicted time of each task in seconds, in their order, by two processes."""
    return [one.time_s for one in play_all(tasks)]


def play_all(tasks: Sequence[Task]) -> list[Time]:
    """The same with the busy time of each unit."""
    from joblib import Parallel, delayed

    chunks = [tasks[start::_CHUNKS] for start in range(_CHUNKS)]
    done = Parallel(n_jobs=min(2, os.cpu_count() or 1))(delayed(_play)(chunk) for chunk in chunks)
    found = [Time(0.0, {})] * len(tasks)
    for start, times in enumerate(done):
        found[start::_CHUNKS] = times
    return found


def _play(tasks: Sequence[Task]) -> list[Time]:
    played = (row.replay(numbers) for row, numbers in tasks)
    return [Time(one.time_s, one.units_s()) for one in played]


def error_summary(errors: Iterable[float], digits: int = 4) -> dict[str, Any]:
    """Size of errors such as ``|predicted / measured - 1|``: ``mean, median, p90``, rounded to so many digits."""
    values = np.array(list(errors))
    found = {"mean": values.mean(), "median": np.median(values), "p90": np.quantile(values, 0.9)}
    return {name: round(float(value), digits) for name, value in found.items()}
