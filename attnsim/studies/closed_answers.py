"""Answers a chunk of points in closed form: groups them, finds each group's plan, estimates all at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.api.asking import read_algorithm
from attnsim.api.playing import too_large
from attnsim.arrays import Floats, Ints
from attnsim.errors import InputError
from attnsim.studies.closed_form import Estimate, Work, estimate
from attnsim.studies.plans import Plan, plan
from attnsim.studies.points import TILE_FREE, counts, figures, out_of_range, point
from attnsim.studies.study import Points
from attnsim.studies.work import MOST_FLOPS, fill, fill_row

LENGTHS = ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv")
"""Fields that do not affect the tile: points that differ only in these and in rates share a plan."""
_LARGEST_CODE = 1 << 40


class Texts:
    """A column of texts with few distinct values, dictionary-encoded; all empty at first."""

    def __init__(self, count: int) -> None:
        self.codes = np.zeros(count, dtype=np.int64)
        self._code_of = {"": 0}

    @property
    def values(self) -> list[str]:
        """The distinct texts, by code."""
        return list(self._code_of)

    @property
    def empty(self) -> NDArray[np.bool_]:
        """True for points without a text, ``[points]``."""
        return np.asarray(self.codes == 0)

    def put(self, rows: Any, texts: Sequence[str], which: Any = 0) -> None:
        """Set the text of some points: the same for all, or each the text of its index in `which`."""
        codes = [self._code_of.setdefault(text, len(self._code_of)) for text in texts]
        self.codes[rows] = np.array(codes, dtype=np.int64)[which]


@dataclass(frozen=True, slots=True)
class Closed:
    """Closed-form answers.

    Parameters
    ----------
    error : Texts
        Reason why a point has no answer; empty if it has one.
    rows : ndarray of int
        Points with an answer; the columns below belong to them.
    plans, which : tuple of Plan, ndarray of int
        Plans, and the index of each point's plan.
    gpu : dict of str to ndarray
        Figures of the points' GPUs.
    """

    error: Texts
    rows: Ints
    plans: tuple[Plan, ...]
    which: Ints
    gpu: dict[str, Floats]
    work: Work
    estimate: Estimate


def closed_forms(points: Points, cache: str, launch: str) -> Closed:
    """Answer points in closed form.

    Parameters
    ----------
    cache : {"warm", "cold"}
    launch : {"stream", "host", "graph", "kernel"}
    """
    error = Texts(points.count)
    sizes = counts(points)
    gpu = figures(points)
    odd = out_of_range(points, gpu) | (sizes["heads_q"] % sizes["heads_kv"] != 0)
    for row in np.flatnonzero(odd):
        question = point(points, int(row))
        try:
            question.gpu()
            question.workload()
        except InputError as problem:
            error.put(row, [str(problem)])
    plans, which = _plans(points, error)
    work = Work.empty(points.count)
    _fill(points, work, error, sizes, plans, which, gpu, cache, launch)
    _refuse_large(work.peak_bytes, gpu["hbm.capacity"], error)
    good = error.empty
    rows = np.flatnonzero(good)
    if len(rows) < points.count:
        work, which = work.take(good), which[good]
        gpu = {key: column[good] for key, column in gpu.items()}
    return Closed(error, rows, plans, which, gpu, work, estimate(work, gpu, plans, which, launch))


def groups(points: Points, alike: Collection[str]) -> Ints:
    """Return a group number for each point; points that differ only in the axes `alike` are in one group."""
    code = np.zeros(points.count, dtype=np.int64)
    size = 1
    for column in points.columns.values():
        if column.axis.name in alike or len(column.values) == 1:
            continue
        if size * len(column.values) > _LARGEST_CODE:
            code = np.unique(code, return_inverse=True)[1]
            size = points.count
        code = code * len(column.values) + column.codes
        size *= len(column.values)
    return code


def _plans(points: Points, error: Texts) -> tuple[tuple[Plan, ...], Ints]:
    """Return the groups' plans, and the index of each point's plan; -1 without a plan, with the reason in `error`."""
    rows = np.flatnonzero(error.empty)
    alike: tuple[str, ...] = (*LENGTHS, *TILE_FREE)
    if any(read_algorithm(name).splits for name in points.columns["algorithm"].values):  # refused with many queries
        alike = tuple(name for name in alike if name != "seq_q")
    _, first, group = np.unique(groups(points, alike)[rows], return_index=True, return_inverse=True)
    plans: list[Plan] = []
    plan_of = np.full(len(first), -1, dtype=np.int64)
    for number, row in enumerate(rows[first]):
        try:
            plans.append(plan(point(points, int(row))))
            plan_of[number] = len(plans) - 1
        except InputError as problem:
            error.put(rows[group == number], [str(problem)])
    which = np.full(points.count, -1, dtype=np.int64)
    which[rows] = plan_of[group]
    return tuple(plans), which


def _fill(
    points: Points,
    work: Work,
    error: Texts,
    sizes: dict[str, Ints],
    plans: tuple[Plan, ...],
    which: Ints,
    gpu: dict[str, Floats],
    cache: str,
    launch: str,
) -> None:
    good = error.empty
    dense = np.prod([sizes[name].astype(np.float64) for name in ("batch", "heads_q", "seq_q", "seq_kv")], axis=0)
    small = 2 * dense * (sizes["head_dim"] + sizes["head_dim_v"]) <= MOST_FLOPS
    known = np.array([*(item.vectorised for item in plans), False])[which] & good & small
    if known.any():
        same = groups(points, TILE_FREE)
        fill(work, np.flatnonzero(known), same, sizes, plans, which, gpu, cache == "warm")
    for row in np.flatnonzero(good & ~known):
        try:
            fill_row(work, int(row), point(points, int(row)).ask(cache, launch), plans[which[row]])
        except InputError as problem:
            error.put(row, [str(problem)])


def _refuse_large(peak: Floats, capacity: Floats, error: Texts) -> None:
    """Set the error of calls that do not fit the memory; sizes have three digits, so that few texts differ."""
    large = np.flatnonzero(error.empty & (peak > capacity))
    unit = 10.0 ** (np.floor(np.log10(peak[large])) - 2)
    rounded = np.round(peak[large] / unit) * unit
    pairs, which = np.unique(np.stack([rounded, capacity[large]]), axis=1, return_inverse=True)
    error.put(large, [too_large(*pair) for pair in pairs.T.tolist()], which)
