"""Many measured rows predicted at once, and their errors summed up."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from attnsim.models.calibrations.numbers import Numbers
from attnsim.validation.measured.datasets import Row

_CHUNKS = 8
"""Parts that the rows are handed to processes in: few, because the rows of a part share what is sent with them."""

Task = tuple[Row, Numbers]
"""A row, and the numbers to predict it with."""


def predict_all(tasks: Sequence[Task]) -> list[float]:
    """The predicted time of each task in seconds, in their order, by two processes."""
    from joblib import Parallel, delayed

    chunks = [tasks[start::_CHUNKS] for start in range(_CHUNKS)]
    done = Parallel(n_jobs=min(2, os.cpu_count() or 1))(delayed(_predict)(chunk) for chunk in chunks)
    found = [0.0] * len(tasks)
    for start, times in enumerate(done):
        found[start::_CHUNKS] = times
    return found


def _predict(tasks: Sequence[Task]) -> list[float]:
    return [row.predict_s(numbers) for row, numbers in tasks]


def error_summary(errors: Iterable[float], digits: int = 4) -> dict[str, Any]:
    """Size of errors such as ``|predicted / measured - 1|``: ``mean, median, p90``, rounded to so many digits."""
    values = np.array(list(errors))
    found = {"mean": values.mean(), "median": np.median(values), "p90": np.quantile(values, 0.9)}
    return {name: round(float(value), digits) for name, value in found.items()}
