"""Published rows, each predicted with numbers that were fitted without it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from attnsim.models.calibrations.calibration import calibrations, numbers_of
from attnsim.models.calibrations.choose import choose
from attnsim.models.calibrations.numbers import Numbers
from attnsim.validation.fitting.fit import groups
from attnsim.validation.measured.datasets import Row, published_rows

NEVER = "never fitted"
"""Split of rows whose implementation has no calibration of its own: it borrows the nearest."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A prediction of a row that did not see it.

    Parameters
    ----------
    row : Row
    split : str
        What was left out of the fit: a "band" of lengths and heads, a "head_dim", or `NEVER`.
    group : str
        Which of them; "" when never fitted.
    predicted_s : float
    """

    row: Row
    split: str
    group: str
    predicted_s: float

    @property
    def error(self) -> float:
        """Share of the measured time, ``|predicted / measured - 1|``."""
        return abs(self.predicted_s / self.row.measured_s - 1)

    @property
    def calibration(self) -> tuple[str, str]:
        """Implementation and architecture."""
        return self.row.record.name, self.row.gpu.architecture


def held_out_predictions() -> list[HeldOut]:
    """Every published row by every fold that did not see it."""
    from joblib import Parallel, delayed

    rows = published_rows()
    tasks: list[_Task] = []
    for index, row in enumerate(rows):
        tasks += ((index, split, group, numbers) for split, group, numbers in _unseen(row))
    chunks = [tasks[start::8] for start in range(8)]
    done = Parallel(n_jobs=min(2, os.cpu_count() or 1))(delayed(_predict)(chunk) for chunk in chunks)
    found = sorted(one for chunk in done for one in chunk)
    return [HeldOut(rows[index], split, group, predicted) for index, split, group, predicted in found]


_Task = tuple[int, str, str, Numbers]


def _predict(tasks: Sequence[_Task]) -> list[tuple[int, str, str, float]]:
    rows = published_rows()
    return [(index, split, group, rows[index].predict_s(numbers)) for index, split, group, numbers in tasks]


def _unseen(row: Row) -> Iterable[tuple[str, str, Numbers]]:
    """The numbers to predict a row with that were fitted without it, by split and group."""
    own = calibrations().get((row.record.name, row.gpu.architecture))
    if own is not None and row.case.source in own.sources:
        for split, group in groups(row).items():
            if f"{split}: {group}" in own.folds:
                numbers = own.folds[f"{split}: {group}"]
                if row.gpu.base_id != own.gpu:
                    numbers = replace(numbers, gpu=numbers_of(row.gpu)[0])
                yield split, group, numbers
        return
    yield NEVER, "", choose(row.record, row.gpu).numbers
