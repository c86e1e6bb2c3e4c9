"""What a user's own timings would have gained on published tables, and the scales of that process fitted on them.

Each group is the rows of one source, GPU, kernel and pass: some are taken as the user's timings, chosen by the rule of
`attnsim adapt --suggest` or at random, and the others are answered with them. With `--fit` scales are fitted on groups
of other laboratories, four parts in turn, and beside those of `attnsim/api/adapting/own.py`.

    python benchmarks/adapting.py --rows rows.csv [--sample 14] [--fit]

`--rows` keeps what was predicted, a minute of replays, for the next call; `--fit` fits the scales anew (minutes).
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # from a clone with nothing installed

import numpy as np
from scipy.optimize import minimize

from attnsim.api.adapting.own import (
    COORDINATES,
    SCALES,
    Near,
    Points,
    Scales,
    coordinates,
    likelihood,
    most_telling,
    prior_of,
)
from attnsim.api.answering import answer
from attnsim.api.asking import Question
from attnsim.api.tables import question_of
from attnsim.errors import InputError
from attnsim.models.question.case_row import Case
from attnsim.validation.checking.evidence import serving_rows
from attnsim.validation.measured.datasets import grouped, published_cases
from attnsim.validation.measured.own_runs import own_rows
from attnsim.validation.measured.sources import ROLES, laboratory_of, role_of, source_of

FEWEST = 12
"""Rows of a group."""
COUNTS = (0, 1, 3, 5, 10)
"""Timings that are taken."""
DRAWS = 3
"""Of random rows, whose figures are averaged."""
PARTS = 4
"""In which laboratories are left out."""
WORSE = 0.01
"""Mean error by which a group counts as worse than without timings."""
FITTED = ("noise", "factor", "near", "octaves", "constant_s", "freedom")


@dataclass(frozen=True)
class Line:
    """A measured row, as the process sees it; `low` and `high` are the model's own range over its answer."""

    laboratory: str
    role: str
    group: str
    shape: tuple[float, ...]
    sd: float
    predicted_s: float
    low: float
    high: float
    measured_s: float


@dataclass(frozen=True)
class Score:
    """How answers of a group meet its times, and those of the model alone on the same rows."""

    errors: np.ndarray
    inside: float
    width: float
    alone: float


def main() -> None:
    parser = argparse.ArgumentParser(description="What own timings gain on published tables.")
    parser.add_argument("--rows", type=Path, help="CSV of what was predicted; made where it is not there")
    parser.add_argument("--sample", type=int, default=14, help="rows of a group (14)")
    parser.add_argument("--fit", action="store_true", help="fit the scales, each laboratory left out")
    asked = parser.parse_args()
    lines = read(asked.rows) if asked.rows and asked.rows.exists() else predicted(asked.sample)
    if asked.rows and not asked.rows.exists():
        write(asked.rows, lines)
    groups = {name: one for name, one in grouped(lines, lambda one: one.group).items() if len(one) >= FEWEST}
    laboratories = sorted({one[0].laboratory for one in groups.values()})
    print(f"{len(groups)} groups of {len(laboratories)} laboratories, {sum(map(len, groups.values()))} rows")
    unseen = {name: one for name, one in groups.items() if one[0].role != "fit"}
    print("scales of the package")
    show(groups, dict.fromkeys(laboratories, SCALES))
    print(f"{len(unseen)} groups of tables that no fit has seen")
    show(unseen, dict.fromkeys(laboratories, SCALES))
    if asked.fit:
        print(f"all laboratories: {told(fitted(list(groups.values())))}")
        without = {}
        for part in range(PARTS):
            left = laboratories[part::PARTS]
            scales = fitted([one for one in groups.values() if one[0].laboratory not in left])
            without |= dict.fromkeys(left, scales)
            print(f"without {', '.join(left)}: {told(scales)}")
        print("scales that have not seen the laboratory")
        show(groups, without)
        print("the same of tables that no fit has seen")
        show(unseen, without)


Asked = tuple[str, Case, Question]


def asked_groups(sample: int) -> dict[str, list[Asked]]:
    """Rows of the tables at hand, 16-bit, dense or with a window, by source, GPU, kernel and pass."""
    cases = [*published_cases(*ROLES), *(row.case for row in own_rows()), *(row.case for row in serving_rows(sample))]
    asked: list[Asked] = []
    for case in cases:
        try:
            question = question_of(case)
        except InputError:
            continue
        w = question.w
        if case.time_s and w.element_bytes == 2 and w.mask.is_band and not w.lengths and w.selection is None:
            group = f"{source_of(case.source)}, {question.gpu.id}, {question.record.name}, {w.passes}"
            asked.append((group, case, question))
    return grouped(asked, lambda one: one[0])


def predicted(sample: int) -> list[Line]:
    """Those rows as they are answered, so many of a group."""
    rng, lines = np.random.default_rng(0), list[Line]()
    for group, found in asked_groups(sample).items():
        if len(found) >= FEWEST:
            for row in rng.permutation(len(found))[:sample]:
                _, case, question = found[row]
                try:
                    one = answer(question)
                except InputError:
                    continue
                if one.time_s is not None:
                    prior = prior_of(question.w, question.gpu, question.record, one.calibration, one.trust)
                    about = laboratory_of(case.source), role_of(case.source), group, coordinates(question.w), prior.sd
                    lines.append(Line(*about, one.time_s, one.trust.low, one.trust.high, case.time_s))
    return lines


def fitted(groups: Sequence[Sequence[Line]]) -> Scales:
    """The scales under which the groups' errors are likeliest, each group with one weight."""
    made = [(points(one), off(one)) for one in groups]

    def loss(logs: np.ndarray) -> float:
        scales = replace(SCALES, **dict(zip(FITTED, np.exp(logs), strict=True)))
        return -sum(likelihood(*one, scales) / len(one[1]) for one in made)

    start = np.log([getattr(SCALES, name) for name in FITTED])
    best = minimize(loss, start, method="Nelder-Mead", options={"maxfev": 400, "xatol": 0.02, "fatol": 0.01})
    return replace(SCALES, **dict(zip(FITTED, map(float, np.exp(best.x)), strict=True)))


def show(groups: dict[str, list[Line]], scales: dict[str, Scales]) -> None:
    """The table: each group has the same weight, medians are over rows."""
    print(f"{'rows':>5} {'chosen':10} {'mean':>6} {'median':>6} {'p90':>6} {'inside':>6} {'width':>6} {'worse':>6}  %")
    for count in COUNTS:
        for way in ("suggested", "random") if count else ("none",):
            found = [scored(one, count, way, scales[one[0].laboratory]) for one in groups.values()]
            rows = np.concatenate([one.errors for one in found])
            means = np.array([one.errors.mean() for one in found])
            worse = np.mean([mean > one.alone + WORSE for mean, one in zip(means, found, strict=True)])
            parts = means.mean(), np.median(rows), np.quantile(rows, 0.9), np.mean([one.inside for one in found])
            width = np.median([one.width for one in found])
            shares = " ".join(f"{100 * part:6.1f}" for part in parts)
            print(f"{count:5} {way:10} {shares} {width:6.2f} {100 * worse:6.1f}")


def scored(lines: list[Line], count: int, way: str, scales: Scales) -> Score:
    """The rest of a group answered with so many of its rows."""
    every, found = points(lines), off(lines)
    low, high = (np.log([getattr(one, end) for one in lines]) for end in ("low", "high"))
    drawn = [_chosen(every, count, way, draw, scales) for draw in range(DRAWS if way == "random" else 1)]
    errors, alone, inside, widths = [], [], [], []
    for mine in drawn:
        rest = np.setdiff1d(np.arange(len(lines)), mine)
        said, down, up = np.zeros(len(rest)), low[rest], high[rest]
        if count:
            made = Near(every[mine], found[mine], scales).at(every[rest])
            said, down, up = made.log, made.log - made.half_width, made.log + made.half_width
        errors.append(np.abs(np.expm1(said - found[rest])))
        alone.append(np.abs(np.expm1(-found[rest])).mean())
        inside.append(np.mean((down <= found[rest]) & (found[rest] <= up)))
        widths.append(np.median(np.exp(up - down)))
    return Score(np.concatenate(errors), *(float(np.mean(one)) for one in (inside, widths, alone)))


def _chosen(every: Points, count: int, way: str, draw: int, scales: Scales) -> list[int]:
    if way == "suggested":
        return most_telling(every, every, every[[]], count, scales)
    return list(np.random.default_rng(draw).permutation(len(every.sd))[:count])


def points(lines: Sequence[Line]) -> Points:
    return Points.of([(one.shape, one.sd, one.predicted_s) for one in lines])


def off(lines: Sequence[Line]) -> np.ndarray:
    return np.log([one.measured_s / one.predicted_s for one in lines])


def told(scales: Scales) -> str:
    return ", ".join(f"{one.name} {getattr(scales, one.name):.3g}" for one in fields(scales))


def write(path: Path, lines: Iterable[Line]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        out.writerow(("laboratory", "role", "group", *COORDINATES, "sd", "predicted_s", "low", "high", "measured_s"))
        out.writerows(
            (x.laboratory, x.role, x.group, *x.shape, x.sd, x.predicted_s, x.low, x.high, x.measured_s) for x in lines
        )


def read(path: Path) -> list[Line]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    last = 3 + len(COORDINATES)
    return [Line(*row[:3], tuple(map(float, row[3:last])), *map(float, row[last:])) for row in rows]


if __name__ == "__main__":
    main()
