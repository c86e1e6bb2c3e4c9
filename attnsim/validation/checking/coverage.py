"""Whether the 90 % intervals hold nine measured times in ten, and how wide they have to be for that.

An interval of `attnsim.api.trust` is a half-width of log time. Each half-width is the 90th percentile of the errors of
predictions whose measured time was known and not used in the fit:

- *Own calibration.* Held-out rows, by the level of trust that a calibration without their group would have stated. The
  half-width is a multiple of the calibration's own spread (the mean size of its held-out log errors in that split). The
  multiple depends on the level alone and holds for all calibrations.
- *Numbers from elsewhere.* Rows predicted with the implementation's numbers of another architecture, with those of the
  implementation that it is `like`, or with the priors. Rows with a sliding window whose calibration saw no window
  belong here too.

`coverage` measures both with cross-fitting: a spread comes from the other groups of its split, a half-width from the
other calibrations or kernels. No row is judged by an interval that it helped to set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.api.trust import BORROWED, ELSEWHERE, LEVELS, PRIORS, WINDOWS, level_of
from attnsim.models.calibrations.calibration import calibrations, numbers_of
from attnsim.models.calibrations.choose import choose
from attnsim.models.calibrations.numbers import Numbers
from attnsim.validation.fitting.held_out import NEVER, HeldOut, held_out_predictions
from attnsim.validation.fitting.records import domain_of
from attnsim.validation.measured import aiconfigurator
from attnsim.validation.measured.datasets import Row, published_rows
from attnsim.validation.measured.groups import usable
from attnsim.validation.measured.predicting import predict_all

SHARE = 0.9
"""Share of the measured times that an interval is meant to hold."""

NOT_OWN = (ELSEWHERE, BORROWED, WINDOWS, PRIORS)

EXTRAPOLATED_ALL = "extrapolated, of any kind"

SERVING_SAMPLE = 24
"""Rows of the large tables for each GPU, kernel and pass."""


@dataclass(frozen=True, slots=True)
class Point:
    """A prediction whose answer is known and was not used.

    Parameters
    ----------
    kind : str
        Level of trust where the calibration is the implementation's own, else where the numbers come from.
    cell : str
        Calibration, or kernel and GPU. The points of a cell are judged by an interval set without them.
    log_error : float
        ``log(measured / predicted)``.
    spread : float
        The calibration's spread, of which the half-width is a multiple; 1 for numbers from elsewhere.
    """

    kind: str
    cell: str
    log_error: float
    spread: float


def own_points(found: Sequence[HeldOut] | None = None) -> list[Point]:
    """Held-out rows of own calibrations, each with the level that a calibration without its group would state."""
    held = [one for one in (held_out_predictions() if found is None else found) if one.split != NEVER]
    held = [one for one in held if usable(one.row)]
    by_split: dict[tuple[tuple[str, str], str], dict[str, list[HeldOut]]] = {}
    for one in held:
        by_split.setdefault((one.calibration, one.split), {}).setdefault(one.group, []).append(one)
    points = []
    for (name, _), by_group in by_split.items():
        for group, inside in by_group.items():
            rest = [one for other, some in by_group.items() if other != group for one in some]
            if not rest:
                continue
            spread = float(np.mean([abs(_log(one)) for one in rest]))
            seen = replace(calibrations()[name], domain=domain_of([one.row for one in rest]))
            for one in inside:
                level = level_of(one.row.workload, one.row.gpu, seen)
                points.append(Point(level, ", ".join(name), _log(one), spread))
    return points


def _log(one: HeldOut) -> float:
    return float(np.log(one.row.measured_s / one.predicted_s))


def elsewhere_points(sample: int = SERVING_SAMPLE) -> list[Point]:
    """Rows predicted with numbers of another architecture, of another implementation, or with the priors.

    The rows are the published ones, their own calibration hidden, and a sample of the large tables' rows whose
    implementation has no calibration on that GPU's architecture.
    """
    tasks = [task for row in published_rows() if usable(row) for task in _published_tasks(row)]
    for row in serving_rows(sample):
        chosen = choose(row.record, row.gpu)
        seen = chosen.own and chosen.calibration is not None and chosen.calibration.domain.windowed
        if row.workload.mask.is_windowed and not seen:
            tasks.append((WINDOWS, row, chosen.numbers))
        elif chosen.calibration is not None and not chosen.own:
            same = chosen.calibration.implementation == row.record.name
            tasks.append((ELSEWHERE if same else BORROWED, row, chosen.numbers))
            tasks.append((PRIORS, row, Numbers(gpu=chosen.numbers.gpu)))
    times = predict_all([(row, numbers) for _, row, numbers in tasks])
    return [
        Point(kind, f"{row.record.name}, {row.gpu.base_id}", float(np.log(row.measured_s / time)), 1.0)
        for (kind, row, _), time in zip(tasks, times, strict=True)
    ]


_Task = tuple[str, Row, Numbers]
"""Kind of a point, and the row and numbers that make it."""


def _published_tasks(row: Row) -> Iterable[_Task]:
    """A published row with its kernel's numbers of another architecture, with its stand-in's, and with the priors."""
    gpu = numbers_of(row.gpu)[0]
    everything = calibrations()
    name, architecture = row.record.name, row.gpu.architecture
    if (name, architecture) not in everything:
        return
    for (other, there), found in everything.items():
        if other == name and there != architecture:
            yield ELSEWHERE, row, Numbers(found.numbers, gpu)
    borrowed = everything.get((row.record.like, architecture))
    if borrowed is not None:
        yield BORROWED, row, Numbers(borrowed.numbers, gpu)
    yield PRIORS, row, Numbers(gpu=gpu)


def serving_rows(sample: int, seed: int = 0) -> list[Row]:
    """Rows of the large tables, evenly from each GPU, kernel and pass; none without that package."""
    if not aiconfigurator.available():
        return []
    cells = sorted(
        {
            (table.gpu, table.implementation, "decode" if table.kind.endswith("generation") else "fwd")
            for table in aiconfigurator.tables()
            if table.kept
        }
    )
    rows: list[Row] = []
    for gpu, name, passes in cells:
        some = aiconfigurator.rows(gpu=gpu, implementation=name, passes=passes, sample=sample, seed=seed)
        rows += [row for row in some if usable(row)]
    return rows


def half_width(points: Sequence[Point]) -> float:
    """The half-width, over the spread, that holds `SHARE` of the points."""
    return float(np.quantile(_scores(points), SHARE, method="higher"))


def _scores(points: Sequence[Point]) -> NDArray[np.float64]:
    return np.array([abs(point.log_error) / point.spread for point in points])


def coverage(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Cross-fitted coverage by kind, and over all extrapolated answers together.

    Returns
    -------
    list of dict
        ``kind, points, cells, coverage, mean_error, width_over_error, half_width``: `coverage` is the share of points
        inside intervals set without their cell, `mean_error` the mean size of the log errors, `width_over_error` the
        median half-width of those intervals over it; `half_width` is the one from all points, over the spread.
    """
    table, far = [], _Judged([], [], [])
    for kind in (*LEVELS, *NOT_OWN):
        mine = [point for point in points if point.kind == kind]
        if mine:
            judged = _judged(mine)
            table.append({"kind": kind} | judged.summary() | {"half_width": round(half_width(mine), 4)})
            if kind not in ("validated", "interpolated"):
                far = _Judged(far.points + judged.points, far.inside + judged.inside, far.widths + judged.widths)
    if far.points:
        table.append({"kind": EXTRAPOLATED_ALL} | far.summary())
    return table


@dataclass(frozen=True, slots=True)
class _Judged:
    """Points, whether each lies inside an interval set without its cell, and the half-widths of those."""

    points: list[Point]
    inside: list[bool]
    widths: list[float]

    def summary(self) -> dict[str, Any]:
        errors = [abs(point.log_error) for point in self.points]
        return {
            "points": len(self.points),
            "cells": len({(point.kind, point.cell) for point in self.points}),
            "coverage": round(float(np.mean(self.inside)), 4),
            "mean_error": round(float(np.mean(errors)), 4),
            "width_over_error": round(float(np.median(self.widths) / np.mean(errors)), 3),
        }


def _judged(points: Sequence[Point]) -> _Judged:
    found = _Judged([], [], [])
    for cell in sorted({point.cell for point in points}):
        here = [point for point in points if point.cell == cell]
        rest = [point for point in points if point.cell != cell]
        factor = half_width(rest or here)
        found.points.extend(here)
        found.inside.extend((_scores(here) <= factor).tolist())
        found.widths.extend(factor * point.spread for point in here)
    return found
