"""Interventions: measured pairs of rows that differ in one thing, whose predicted step tests the model's causes.

Errors that a kernel's model makes on both sides cancel in a step; the effect of a figure, a mask or an order of
operations does not. `use` says which of the rows the predicting numbers have seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from itertools import combinations
from typing import Any, Literal

import numpy as np

from attnsim.api.answer import Answer, answered
from attnsim.api.asking import Conditions, Question
from attnsim.api.comparing.ratios import Ratio
from attnsim.api.playing import Played
from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.files import read_typed
from attnsim.models.calibrations.choose import choose
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.implementations.flash_attention import ABLATIONS
from attnsim.models.mechanisms import MECHANISMS
from attnsim.models.question.case_row import Case
from attnsim.validation.checking.accuracy import DENSE, group_of
from attnsim.validation.checking.evidence import SERVING_SAMPLE
from attnsim.validation.checking.ratio_steps import pairs_of_gpus, serving_pairs, step_errors
from attnsim.validation.fitting.held_out import NEVER, unseen
from attnsim.validation.measured.datasets import Row, grouped, published_cases, row_of
from attnsim.validation.measured.groups import usable
from attnsim.validation.measured.sources import MEASUREMENTS, ROLES

Use = Literal["held out", "left out", "fit"]
"""Use of a pair's rows by the numbers that predict it:

- "held out": no number rests on the sources of both rows;
- "left out": numbers do, but the pair is predicted by a fold that was fitted without either row;
- "fit": the numbers have seen the rows."""

MOVES = by_hand(0.05, "log of a measured step up to which its direction is two cards' noise")
"""SGLang's prefill on H100 and H200 differs by so much, though it does not use the memory, their one difference
(docs/hypothetical.md)."""

ONE_FIELD = {
    "head_dim": ("head_dim", "head_dim_v"),
    "head_dim at one width": ("head_dim", "head_dim_v", "heads_q", "heads_kv"),
    "causal": ("causal",),
    "window": ("window",),
    "clock": ("clock_mhz",),
}
"""Steps within one table: the columns in which two rows differ; "one width" keeps heads times head_dim."""


@dataclass(frozen=True, slots=True)
class Ablation:
    """Two implementations of a source; one of them `lacks` what the other `has`."""

    source: str
    brings: str
    lacks: str
    has: str


@dataclass(frozen=True, slots=True)
class Between:
    """Two sources whose rows differ in the GPU, and at most in the batch."""

    older: str
    newer: str


@dataclass(frozen=True, slots=True)
class Declared:
    """Schema of the file of declared steps, which cannot be found automatically."""

    ablations: tuple[Ablation, ...]
    between: tuple[Between, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two measured rows that differ in one thing: `kind`; `what` describes the change, if a kind has several."""

    kind: str
    what: str
    one: Row
    two: Row

    @property
    def rows(self) -> tuple[Row, Row]:
        """Both rows."""
        return self.one, self.two

    @property
    def sources(self) -> tuple[str, str]:
        """Sources of both rows."""
        return self.one.case.source, self.two.case.source

    @property
    def whose(self) -> str:
        """Owner of the kernels for a line: the chapter, or the kernel, with head_dim for steps between GPUs."""
        name = self.two.record.name
        if self.group != DENSE:
            return self.group
        return f"{name}, head_dim {self.two.case.head_dim}" if self.kind == "GPU" else name

    @property
    def group(self) -> str:
        """Kind of attention that the rows run."""
        return group_of(self.two.record.name)


@dataclass(frozen=True, slots=True)
class Stepped:
    """A pair's step: the measured and the predicted speedup of its second row over its first, with the stated range."""

    kind: str
    what: str
    group: str
    whose: str
    use: Use
    measured: float
    predicted: Ratio


@lru_cache(maxsize=1)
def declared() -> Declared:
    """Return the committed steps, which cannot be found automatically."""
    return read_typed(MEASUREMENTS / "steps.yaml", "steps", Declared)


def interventions(sample: int = SERVING_SAMPLE) -> list[Stepped]:
    """Predict every measured step as a user's question.

    Parameters
    ----------
    sample : int
        Largest number of pairs of a kernel, for each pair of sources and kind of step.
    """
    cells = grouped(_pairs(sample), lambda pair: (pair.kind, pair.what, pair.whose, *pair.sources))
    pairs = [pair for members in cells.values() for pair in members[:: -(-len(members) // sample)]]
    found = []
    for pair in pairs:
        use, *numbers = _numbers(pair)
        one, two = map(_prediction_of, pair.rows, numbers)
        ratio = two.speedup_over(one)
        assert ratio is not None
        measured = pair.one.measured_s / pair.two.measured_s
        found.append(Stepped(pair.kind, pair.what, pair.group, pair.whose, use, measured, ratio))
    return found + [_of_stated(row) for row in step_errors() if row["view"] == "gpu file"]


def _pairs(sample: int) -> Iterator[Pair]:
    rows = _medians(_rows())
    for ablation in declared().ablations:
        named = {row.case.implementation: row for row in rows if row.case.source == ablation.source}
        yield Pair("ablation", ablation.brings, named[ablation.lacks], named[ablation.has])
    for one, two in (*pairs_of_gpus(rows), *_between(rows), *serving_pairs(sample)):
        if one.gpu.architecture == two.gpu.architecture:
            yield Pair("GPU", f"{one.gpu.base_id} > {two.gpu.base_id}", one, two)
    for kind, cells in ONE_FIELD.items():
        for members in grouped(rows, partial(_other_columns, cells=cells)).values():
            for one, two in combinations(sorted(members, key=partial(_values, cells=cells)), 2):
                if _values(one, cells)[0] != _values(two, cells)[0]:
                    yield Pair(kind, f"{_text(one, cells[0])} > {_text(two, cells[0])}", one, two)


def _rows() -> Iterator[Row]:
    """Yield published rows of every role that have a schedule; an ablation gets the schedule of its kernel."""
    for case in published_cases(*ROLES):
        with suppress(InputError):
            row = row_of(case)
            build = ABLATIONS.get(case.implementation or "", row.record.build)
            row = replace(row, record=replace(row.record, build=build))
            if row.schedule and usable(row):
                yield row


def _medians(rows: Iterable[Row]) -> list[Row]:
    """Merge the rows of one source for one question into one row with their median time."""
    return [
        replace(members[0], case=replace(members[0].case, time_s=float(np.median([row.measured_s for row in members]))))
        for members in grouped(rows, lambda row: _other_columns(row, ())).values()
    ]


def _other_columns(row: Row, cells: tuple[str, ...]) -> tuple[object, ...]:
    """Return the key of rows that differ only in some columns; at one width if the number of heads is free."""
    case = row.case
    free = {*cells, "time_s", "assumed", "options"}
    width = (case.heads_q * case.head_dim, case.heads_q / case.heads_kv) if "heads_q" in cells else ()
    rest = (getattr(case, one.name) for one in fields(Case) if one.name not in free)
    return (row.record.name, width, *sorted(case.options.items()), *rest)


def _values(row: Row, cells: tuple[str, ...]) -> tuple[float, ...]:
    return tuple(float(getattr(row.case, name) or 0) for name in cells)


def _text(row: Row, cell: str) -> str:
    value = getattr(row.case, cell)
    return ("full", "causal")[value] if isinstance(value, bool) else str(value or "none")


def _between(rows: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    """Yield the pairs of `Between`."""
    for asked in declared().between:
        older, newer = (
            {
                (row.record.name, replace(row.workload, batch=1, dtype="bf16")): row
                for row in rows
                if row.case.source == name
            }
            for name in (asked.older, asked.newer)
        )
        yield from ((older[key], newer[key]) for key in older if key in newer)


def _numbers(pair: Pair) -> tuple[Use, Numbers, Numbers]:
    one, two = (dict(unseen(row)) for row in pair.rows)
    for fold in one:
        if fold in two and fold[0] != NEVER:
            return "left out", one[fold], two[fold]
    use: Use = "held out" if (NEVER, "") in {*one, *two} else "fit"
    first, second = (choose(row.record, row.gpu).numbers for row in pair.rows)
    return use, first, second


def _prediction_of(row: Row, numbers: Numbers) -> Answer[Question]:
    """Return the prediction of a row with these numbers; an ablation is a kernel that nobody ships."""
    case, schedule, played = row.case, row.schedule, row.replay(numbers)
    conditions = Conditions(cache=case.cache, launch=case.launch)  # type: ignore[arg-type]
    asked = Question(row.workload, row.gpu, MECHANISMS[case.algorithm], row.record, conditions)
    chosen = replace(choose(row.record, row.gpu), numbers=numbers)
    if case.implementation not in ABLATIONS:
        return answered(Played(asked, chosen, schedule, played))
    schedule = replace(schedule, tile=case.implementation)
    return replace(answered(Played(asked, chosen, schedule, played)), tiles="given")


def _of_stated(row: Mapping[str, Any]) -> Stepped:
    """Return a step for which only the speedup is known."""
    ratio = Ratio(row["predicted"], row["low"], row["high"])
    measured = math.sqrt(row["measured_low"] * row["measured_high"])
    what, name = f"{row['older']} > {row['newer']}", row["implementation"]
    return Stepped("GPU", what, group_of(name), f"{name}, head_dim {row['head_dim']}", "held out", measured, ratio)


def steps_table(found: Iterable[Stepped]) -> list[dict[str, Any]]:
    """Return the steps by kind, change and kernel; first all of them by use.

    Returns
    -------
    list of dict
        ``kind, step, implementation, use, pairs, measured, predicted, error, direction, held``: medians of the measured
        and the predicted step; mean size of the log of their ratio; share with the measured direction among steps
        beyond `MOVES` (None if there are none); share inside the stated range.
    """
    found = list(found)
    lines: dict[tuple[str, str, str, str], list[Stepped]] = {}
    for key in (lambda one: ("all", "", "", one.use), lambda one: ("all", "", one.group, one.use), _line):
        lines |= grouped(sorted(found, key=key), key)
    columns = ("kind", "step", "implementation", "use")
    return [dict(zip(columns, key, strict=True)) | _summary(members) for key, members in lines.items()]


def _line(one: Stepped) -> tuple[str, str, str, Use]:
    return one.kind, one.what, one.whose, one.use


def _summary(some: Sequence[Stepped]) -> dict[str, Any]:
    measured, predicted = np.log([(one.measured, one.predicted.value) for one in some]).T
    moves = np.abs(measured) > MOVES
    held = [one.predicted.low <= one.measured <= one.predicted.high for one in some]
    return {
        "pairs": len(some),
        "measured": round(float(np.exp(np.median(measured))), 4),
        "predicted": round(float(np.exp(np.median(predicted))), 4),
        "error": round(float(np.abs(predicted - measured).mean()), 4),
        "direction": round(float((measured * predicted > 0)[moves].mean()), 4) if moves.any() else None,
        "held": round(float(np.mean(held)), 4),
    }
