"""Predicts real GPUs as if they did not exist, from an older GPU's calibration, and compares with measurements.

`errors` answers "may I believe a prediction for hardware that is not built?". A pair of GPUs has an older one, which
exists, and a newer one, which is treated as not existing. Nothing that was fitted on a GPU outside `Pair.known` is
used: `choose` gets the set of existing GPUs. The kernels' numbers come from the older GPU's calibrations. The newer
chip's figures come from one of two views:

- "datasheet": the vendor's announcement (SMs, tensor and exponential rates, capacities, HBM bandwidth, clocks). Figures
  that need a microbenchmark are the older chip's: latencies in clocks, L2 bytes per clock and SM, and the achieved
  fractions of bandwidth and tensor rate.
- "gpu file": the committed file of the newer chip with its public microbenchmarks, none of which timed attention.

If both chips ran the same shape with the same software, `errors` also judges the *step*: predicted over measured
speedup. An error that a kernel's model makes on both chips cancels in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from attnsim.files import read_typed
from attnsim.models.calibrations.choose import choose
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS, runs_on
from attnsim.validation.measured import aiconfigurator
from attnsim.validation.measured.datasets import Row, error_summary, grouped, predict_all, published_rows
from attnsim.validation.measured.groups import SHORTEST

View = Literal["datasheet", "gpu file"]
VIEWS: tuple[View, ...] = ("datasheet", "gpu file")

SAMPLE = 48
"""Sample size of the large tables, for each kernel, pass and kind of mask."""


@dataclass(frozen=True, slots=True)
class Pair:
    """An older GPU, and a newer one that is treated as not existing.

    Parameters
    ----------
    known : frozenset of str
        GPUs that exist; numbers fitted on others are not used.
    """

    older: str
    newer: str
    known: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Questions:
    pairs: tuple[Pair, ...]
    same_in_clocks: tuple[str, ...]


_ASKED = read_typed(Path(__file__).with_name("hypothetical.yaml"), "pair", _Questions)
PAIRS = _ASKED.pairs


@dataclass(frozen=True, slots=True)
class Outcome:
    """One measured row of the newer GPU, predicted as if that GPU did not exist.

    Parameters
    ----------
    numbers_from : str
        Description of the origin of the kernel's numbers.
    step : float or None
        Predicted over measured speedup from the older GPU; None if the older GPU has no such row.
    older : float or None
        Predicted over measured time of that row on the older GPU.
    """

    pair: Pair
    view: View
    row: Row
    predicted_s: float
    numbers_from: str
    step: float | None
    older: float | None

    @property
    def ratio(self) -> float:
        """Predicted over measured time."""
        return self.predicted_s / self.row.measured_s


def as_announced(newer: Gpu, older: Gpu) -> Gpu:
    """Return the newer GPU as its datasheet describes it; other figures are the older GPU's."""
    values = {key: older.get(key) for key in _ASKED.same_in_clocks}
    per_clk_sm = older.l2.bandwidth_bytes_per_s / (older.sm.count * older.clock.boost_hz)
    values["l2.bandwidth"] = per_clk_sm * newer.sm.count * newer.clock.boost_hz
    values["clock.free"] = newer.clock.boost_hz
    return newer.with_values(values)


def numbers_for(row: Row, gpu: Gpu, pair: Pair) -> tuple[Numbers, str]:
    """Return numbers to predict a row, none of them fitted on a GPU that does not exist yet, and their origin."""
    chosen = choose(row.record, gpu, pair.known)
    return chosen.numbers, chosen.whose


def outcomes(pairs: Iterable[Pair] = PAIRS, sample: int = SAMPLE, only: Sequence[Row] | None = None) -> list[Outcome]:
    """Predict every row of the newer GPUs in both views.

    Parameters
    ----------
    sample : int
        Rows of the large tables for each kernel, pass and kind of mask; without that package, only the papers' rows.
    only : sequence of Row, optional
        Published rows to predict, instead of all published rows and the large tables.
    """
    asked = [(pair, row, twin) for pair in pairs for row, twin in _rows(pair, sample, only)]
    twins_s = _predicted((pair, twin, "gpu file") for pair, _, twin in asked if twin is not None)
    older = iter([time / row.measured_s for row, time, _ in twins_s])
    at_home = [None if twin is None else next(older) for _, _, twin in asked]
    found = []
    for view in VIEWS:
        newer = _predicted((pair, row, view) for pair, row, _ in asked)
        for (pair, row, _), home, (_, time, whose) in zip(asked, at_home, newer, strict=True):
            step = None if home is None else home / (time / row.measured_s)
            found.append(Outcome(pair, view, row, time, whose, step, home))
    return found


def _predicted(asked: Iterable[tuple[Pair, Row, View]]) -> list[tuple[Row, float, str]]:
    """Predict each row as if the pair's newer GPU did not exist: (row, seconds, origin of the numbers)."""
    tasks, sources = [], []
    for pair, row, view in asked:
        gpu = as_announced(row.gpu, load_gpu(pair.older)) if view == "datasheet" else row.gpu
        numbers, whose = numbers_for(row, gpu, pair)
        tasks.append((replace(row, gpu=gpu), numbers))
        sources.append((row, whose))
    return [(row, time, whose) for (row, whose), time in zip(sources, predict_all(tasks), strict=True)]


def _rows(pair: Pair, sample: int, only: Sequence[Row] | None) -> list[tuple[Row, Row | None]]:
    """Return the rows of the newer GPU, each with the row of the same question on the older one, or None."""
    published = [row for row in published_rows() if _wanted(row)]
    older = {question(row): row for row in published if row.gpu.base_id == pair.older}
    # Rows at a clock of their own are of a locked card, the same design.
    of_newer = [row for row in published if row.gpu.base_id == pair.newer and (only is None or row in only)]
    # A kernel that the older GPU does not run, such as Hopper's own, has no numbers to carry over.
    found = [(row, older.get(question(row))) for row in of_newer if _transfers(row, pair)]
    for gpu, name, passes in aiconfigurator.cells() if only is None else ():
        if gpu == pair.newer and runs_on(IMPLEMENTATIONS[name], load_gpu(gpu)):
            there = twins(pair.older, name, passes)
            measured = [row for windowed in (False, True) for row in _sampled(gpu, name, passes, windowed, sample)]
            found += [(row, there.get(question(row))) for row in measured]
    return found


def _transfers(row: Row, pair: Pair) -> bool:
    """True if a kernel runs on the older GPU, and it or another kernel of its library was fitted on an existing GPU."""
    found = choose(row.record, row.gpu, pair.known).calibration
    kin = found is not None and found.implementation.partition(".")[0] == row.record.library
    return kin and runs_on(row.record, load_gpu(pair.older))


def _sampled(gpu: str, implementation: str, passes: str, windowed: bool, sample: int) -> list[Row]:
    some = aiconfigurator.rows(
        gpu=gpu, implementation=implementation, passes=passes, windowed=windowed, sample=2 * sample
    )
    return [row for row in some if _wanted(row)][:: 2 if len(some) > sample else 1][:sample]


@lru_cache(maxsize=4)
def twins(gpu: str, implementation: str, passes: str) -> dict[tuple[object, ...], Row]:
    """Return rows of the large tables by `question`; empty if the implementation does not run on the GPU."""
    if not runs_on(IMPLEMENTATIONS[implementation], load_gpu(gpu)):
        return {}
    return {question(row): row for row in aiconfigurator.rows(gpu=gpu, implementation=implementation, passes=passes)}


def _wanted(row: Row) -> bool:
    return max(row.case.seq_q, row.case.seq_kv) >= SHORTEST and row.workload.element_bytes == 2


def question(row: Row) -> tuple[object, ...]:
    """Return the key of comparable rows: shape, kernel, caller, cache and launch."""
    case = row.case
    caller = (case.version or "").partition(" ")[0]
    w = replace(row.workload, dtype="bf16") if row.workload.element_bytes == 2 else row.workload
    return (row.record.name, w, caller, case.options.get("kernel"), case.cache, case.launch)


def errors(found: Sequence[Outcome] | None = None) -> list[dict[str, Any]]:
    """Return the errors by pair, kernel and pass.

    Returns
    -------
    list of dict
        ``older, newer, implementation, pass, numbers, view, rows, mean, median, p90, bias, pairs, step, at_home``:
        errors of the time as fractions. `bias` is the geometric mean of predicted over measured; `pairs` the number of
        rows that the older GPU has too, `step` the mean error of their speedup, `at_home` their mean error on the older
        GPU.
    """

    def cell(one: Outcome) -> tuple[str, ...]:
        return one.pair.older, one.pair.newer, one.row.record.name, pass_of(one.row), one.numbers_from, one.view

    cells = grouped(outcomes() if found is None else found, cell)
    places = {(pair.older, pair.newer): place for place, pair in enumerate(PAIRS)}
    names = ("older", "newer", "implementation", "pass", "numbers", "view")
    cells_in_order = sorted(cells, key=lambda key: (places[key[0], key[1]], key[2:5], VIEWS.index(key[5])))
    return [dict(zip(names, key, strict=True)) | _summary(cells[key]) for key in cells_in_order]


def pass_of(row: Row) -> str:
    """Return the pass of a row, with ", window" for a sliding window."""
    return row.case.passes + (", window" if row.workload.mask.is_windowed else "")


def _summary(some: Sequence[Outcome]) -> dict[str, Any]:
    ratios = np.array([one.ratio for one in some])
    steps = [abs(one.step - 1) for one in some if one.step is not None]
    home = [abs(one.older - 1) for one in some if one.older is not None]
    return {
        "rows": len(some),
        **error_summary(np.abs(ratios - 1)),
        "bias": round(math.exp(float(np.log(ratios).mean())), 4),
        "pairs": len(steps),
        "step": round(float(np.mean(steps)), 4) if steps else None,
        "at_home": round(float(np.mean(home)), 4) if home else None,
    }
