"""How wrong the predictions of a chapter of mechanisms are, kernel by kernel: of sparse and of linear attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attnsim.models.calibrations.calibration import calibrations, numbers_of
from attnsim.models.calibrations.choose import choose
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.files import builtin_gpu_ids
from attnsim.models.mechanisms import MECHANISMS
from attnsim.models.mechanisms.mechanism import Group
from attnsim.validation.fitting.held_out import unseen_folds
from attnsim.validation.measured.datasets import Row, published_cases, row_of
from attnsim.validation.measured.groups import usable
from attnsim.validation.measured.predicting import error_summary, predict_all

UNSEEN, LEFT_OUT = "no row of this GPU or table fitted", "a GPU left out"


def family_rows(group: Group) -> list[Row]:
    """Published rows of the mechanisms of a chapter, whatever they may be used for, but those that time launches."""
    cases = published_cases("fit", "choose", "test")
    rows = [
        row_of(case) for case in cases if case.algorithm in MECHANISMS and MECHANISMS[case.algorithm].group == group
    ]
    return [row for row in rows if usable(row)]


def family_table(group: Group) -> list[dict[str, Any]]:
    """Errors of a chapter by mechanism, implementation, pass and what was left out of the fit.

    Returns
    -------
    list of dict
        ``mechanism, implementation, pass, left_out, gpus, rows, mean, median, p90, worst``; errors are fractions of the
        measured time. `left_out`: a band of lengths or a head_dim of a fit's own rows; `LEFT_OUT`, where the numbers
        are those that would be taken if the row's GPU did not exist; or `UNSEEN`, for rows of tables that nothing was
        fitted on.
    """
    tasks = [(row, split, numbers) for row in family_rows(group) for split, numbers in numbers_without(row)]
    times = predict_all([(row, numbers) for row, _, numbers in tasks])
    cells: dict[tuple[str, ...], list[tuple[str, float]]] = {}
    for (row, split, _), time in zip(tasks, times, strict=True):
        key = row.case.algorithm, row.record.name, row.case.passes, split
        cells.setdefault(key, []).append((row.gpu.base_id, abs(time / row.measured_s - 1)))
    return [_line(key, found) for key, found in sorted(cells.items())]


def _line(key: tuple[str, ...], found: Sequence[tuple[str, float]]) -> dict[str, Any]:
    errors = [error for _, error in found]
    line = dict(zip(("mechanism", "implementation", "pass", "left_out"), key, strict=True))
    counts = {"gpus": len({gpu for gpu, _ in found}), "rows": len(errors)}
    return {**line, **counts, **error_summary(errors), "worst": round(max(errors), 4)}


def numbers_without(row: Row) -> list[tuple[str, Numbers]]:
    """What was left out, and the numbers that were fitted without it."""
    own = calibrations().get((row.record.name, row.gpu.architecture))
    if own is None or row.case.source not in own.sources:
        return [(UNSEEN, choose(row.record, row.gpu).numbers)]
    found = [(split, numbers) for (split, _), numbers in unseen_folds(row, own.folds)]
    others = set(builtin_gpu_ids()) - {row.gpu.base_id}
    elsewhere = choose(row.record, row.gpu, others)
    # What the chip itself reaches was not fitted on these rows.
    numbers = replace(elsewhere.numbers, gpu=numbers_of(row.gpu)[0])
    return [*found, (LEFT_OUT, numbers)] if elsewhere.calibration is not None else found
