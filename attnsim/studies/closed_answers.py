"""Answers a chunk of points in closed form: groups them, finds each group's plan, estimates all at once.

The uncertainty of the answers is rated, so that replays can replace the uncertain ones. A closed form knows how much
work each unit has, but not when. It is good if one unit determines the time and the others overlap with it. It is
uncertain if

- the second longest of compute, L2 and HBM takes nearly as long as the longest (`BALANCED`): their overlap then
  matters, and only a replay shows it;
- the grid has few waves (`FEW_WAVES`): the last wave and the occupancy of the SMs then matter;
- launches and the fixed time of the call are a large part of the answer (`LAUNCH_SHARE`): in small calls, latencies
  that the closed form adds up may overlap.

Against the replay, on 256 points each of prefill, decode and unfused attention (A100 and H100 with bandwidth, SMs and
tensor rate scaled by 0.5 to 2; benchmarks/sweep_speed.py prints them): of the points without any of these marks, 74 to
81 % are within 10 % (67 % for unfused attention); of the other points, 24 to 27 % (85 %).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.api.asking import read_algorithm
from attnsim.api.playing import too_large
from attnsim.arrays import Floats, Ints
from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.studies.closed_form import (
    BOUNDS,
    COLUMNS,
    MOST_FLOPS,
    Estimate,
    Work,
    counted_work,
    estimate,
    scheduled_work,
)
from attnsim.studies.plans import Plan, plan
from attnsim.studies.points import TILE_FREE, counts, figures, out_of_range, point
from attnsim.studies.study import Points

LENGTHS = ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv")
"""Fields that do not affect the tile: points that differ only in these and in rates share a plan."""
_LARGEST_CODE = 1 << 40


@dataclass(frozen=True, slots=True)
class Closed:
    """Closed-form answers.

    Parameters
    ----------
    error : ndarray of str
        Reason why a point has no answer; empty if it has one.
    rows : ndarray of int
        Points with an answer; the columns below belong to them.
    plans, which : tuple of Plan, ndarray of int
        Plans, and the index of each point's plan.
    gpu : dict of str to ndarray
        Figures of the points' GPUs.
    """

    error: NDArray[np.object_]
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
    error = np.full(points.count, "", dtype=object)
    sizes = counts(points)
    gpu = figures(points)
    odd = out_of_range(points, gpu) | (sizes["heads_q"] % sizes["heads_kv"] != 0)
    for row in np.flatnonzero(odd):
        question = point(points, int(row))
        try:
            question.gpu()
            question.workload()
        except InputError as problem:
            error[row] = str(problem)
    plans, which = _plans(points, error)
    good = error == ""
    dense = np.prod([sizes[name].astype(np.float64) for name in ("batch", "heads_q", "seq_q", "seq_kv")], axis=0)
    small = 2 * dense * (sizes["head_dim"] + sizes["head_dim_v"]) <= MOST_FLOPS
    known = np.array([*(item.vectorised for item in plans), False])[which] & good & small
    work = {name: np.full(points.count, np.nan) for name in COLUMNS}

    def put(rows: Any, found: Mapping[str, Any]) -> None:
        for name, values in found.items():
            work[name][rows] = values

    if known.any():
        rows = np.flatnonzero(known)
        put(rows, counted_work(rows, groups(points, TILE_FREE), sizes, plans, which, gpu, cache == "warm"))
    for row in np.flatnonzero(good & ~known):
        try:
            put(row, scheduled_work(point(points, int(row)).ask(cache, launch), plans[which[row]]))
        except InputError as problem:
            error[row] = str(problem)
    _refuse_large(work["peak_bytes"], gpu["hbm.capacity"], error)
    rows = np.flatnonzero(error == "")
    if len(rows) < points.count:
        which = which[rows]
        gpu, work = ({name: column[rows] for name, column in columns.items()} for columns in (gpu, work))
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


def _plans(points: Points, error: NDArray[np.object_]) -> tuple[tuple[Plan, ...], Ints]:
    """Return the groups' plans, and the index of each point's plan; -1 without a plan, with the reason in `error`."""
    rows = np.flatnonzero(error == "")
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
            error[rows[group == number]] = str(problem)
    which = np.full(points.count, -1, dtype=np.int64)
    which[rows] = plan_of[group]
    return tuple(plans), which


def _refuse_large(peak: Floats, capacity: Floats, error: NDArray[np.object_]) -> None:
    """Set the error of calls that do not fit the memory; sizes have three digits, so that few texts differ."""
    large = np.flatnonzero((error == "") & (peak > capacity))
    unit = 10.0 ** (np.floor(np.log10(peak[large])) - 2)
    rounded = np.round(peak[large] / unit) * unit
    pairs, which = np.unique(np.stack([rounded, capacity[large]]), axis=1, return_inverse=True)
    error[large] = np.array([too_large(*pair) for pair in pairs.T.tolist()], dtype=object)[which]


BALANCED = by_hand(0.6, "share of the longest of compute, L2 and HBM from which on the second is near it")
"""The errors of decode grow from 0.5 on, those of prefill hardly before 0.9."""
FEW_WAVES = by_hand(4.0, "waves below which the grid's edges count, except where keys are split to fill the chip")
LAUNCH_SHARE = by_hand(0.1, "share of launches and the call's fixed time from which on the call is small")


def uncertainty(closed: Closed) -> Floats:
    """Return the uncertainty of each closed form, ``[points]``; above 1, a replay should replace it."""
    found = closed.estimate
    parts = np.sort(np.stack([found.compute_s, *found.units_s[[BOUNDS.index("l2"), BOUNDS.index("hbm")]]]), axis=0)
    balance = parts[-2] / np.maximum(parts[-1], 1e-300)
    launches = found.units_s[BOUNDS.index("launch")] / found.time_s
    split = np.array([item.schedule.splits.partial for item in closed.plans], dtype=bool)[closed.which]
    waves = np.where(split, np.inf, found.waves)
    return np.asarray(np.maximum(np.maximum(balance / BALANCED, launches / LAUNCH_SHARE), FEW_WAVES / waves))
