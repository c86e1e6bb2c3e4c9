"""Published rows and our own, each predicted with numbers that were fitted without it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from attnsim.models.calibrations.calibration import Fold, calibrations
from attnsim.models.calibrations.choose import choose
from attnsim.models.calibrations.numbers import Numbers
from attnsim.validation.measured.datasets import Row, predict_all, published_rows
from attnsim.validation.measured.groups import groups
from attnsim.validation.measured.own_runs import own_rows

NEVER = "never fitted"
"""Split of rows whose implementation has no calibration of its own: it borrows the nearest."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A prediction of a row by numbers that were fitted without it.

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


def held_out_predictions(rows: Iterable[Row] | None = None) -> list[HeldOut]:
    """Rows, by default all published ones and those of our own runs, by every fold that did not see them."""
    every = (*published_rows(), *own_rows()) if rows is None else rows
    tasks = [(row, fold, numbers) for row in every for fold, numbers in unseen(row)]
    times = predict_all([(row, numbers) for row, _, numbers in tasks])
    return [HeldOut(row, *fold, time) for (row, fold, _), time in zip(tasks, times, strict=True)]


def unseen_folds(row: Row, folds: Mapping[Fold, Numbers]) -> Iterable[tuple[Fold, Numbers]]:
    """The folds that left a row's group out."""
    return [(fold, folds[fold]) for fold in groups(row).items() if fold in folds]


def unseen(row: Row) -> Iterable[tuple[Fold, Numbers]]:
    """The numbers to predict a row with that were fitted without it."""
    own = calibrations().get((row.record.name, row.gpu.architecture))
    if own is None or row.case.source not in own.sources:
        return [((NEVER, ""), choose(row.record, row.gpu).numbers)]
    return unseen_folds(row, own.folds)
