"""Interventions: measured pairs in which one thing differs, whose predicted step says whether causes are right.

Errors that a kernel's model makes on both sides cancel in a step; what a figure, a mask or an order of operations is
worth does not. Each pair is a field wider than its rows: `use` says what the numbers that predict it have seen.
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
"""Of a pair's numbers: no number rests on both of its rows' sources; numbers do, and it is predicted by a fold that was
fitted without either row; or its numbers have seen them."""

MOVES = by_hand(0.05, "log of a measured step up to which its direction is two cards' noise")
"""SGLang's prefill on H100 and H200, whose one difference it does not use, differs so much (docs/hypothetical.md)."""

ONE_FIELD = {
    "head_dim": ("head_dim", "head_dim_v"),
    "head_dim at one width": ("head_dim", "head_dim_v", "heads_q", "heads_kv"),
    "causal": ("causal",),
    "window": ("window",),
    "clock": ("clock_mhz",),
}
"""Steps within one table: the cells in which two of its rows differ; "one width" has as many heads times head_dim."""


@dataclass(frozen=True, slots=True)
class Ablation:
    """Two implementations of a source, of which one lacks what the other brings."""

    source: str
    brings: str
    lacks: str
    has: str


@dataclass(frozen=True, slots=True)
class Between:
    """Two sources whose rows differ in the GPU, and in the batch at most."""

    older: str
    newer: str


@dataclass(frozen=True, slots=True)
class Declared:
    """The file: steps that nothing finds by itself."""

    ablations: tuple[Ablation, ...]
    between: tuple[Between, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two measured rows that differ in one thing: `kind` and, of several of a kind, `what` it goes from and to."""

    kind: str
    what: str
    one: Row
    two: Row

    @property
    def rows(self) -> tuple[Row, Row]:
        """Both."""
        return self.one, self.two

    @property
    def sources(self) -> tuple[str, str]:
        """Those of both."""
        return self.one.case.source, self.two.case.source

    @property
    def whose(self) -> str:
        """Whose kernels, those of a chapter together, and of which width where the step is between GPUs."""
        name = self.two.record.name
        if self.group != DENSE:
            return self.group
        return f"{name}, head_dim {self.two.case.head_dim}" if self.kind == "GPU" else name

    @property
    def group(self) -> str:
        """What kind of attention they run."""
        return group_of(self.two.record.name)


@dataclass(frozen=True, slots=True)
class Stepped:
    """A pair's step: how many times faster its second row was measured, and is predicted, with the range stated."""

    kind: str
    what: str
    group: str
    whose: str
    use: Use
    measured: float
    predicted: Ratio


@lru_cache(maxsize=1)
def declared() -> Declared:
    """The committed steps that nothing finds by itself."""
    return read_typed(MEASUREMENTS / "steps.yaml", "steps", Declared)


def interventions(sample: int = SERVING_SAMPLE) -> list[Stepped]:
    """Every measured step, predicted as a user would be told it.

    Parameters
    ----------
    sample : int
        Pairs of a kernel at most, for each pair of sources and kind of step.
    """
    cells = grouped(_pairs(sample), lambda pair: (pair.kind, pair.what, pair.whose, *pair.sources))
    pairs = [pair for mine in cells.values() for pair in mine[:: -(-len(mine) // sample)]]
    found = []
    for pair in pairs:
        use, *numbers = _numbers(pair)
        one, two = map(_told, pair.rows, numbers)
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
        for mine in grouped(rows, partial(_beside, cells=cells)).values():
            for one, two in combinations(sorted(mine, key=partial(_values, cells=cells)), 2):
                if _values(one, cells)[0] != _values(two, cells)[0]:
                    yield Pair(kind, f"{_text(one, cells[0])} > {_text(two, cells[0])}", one, two)


def _rows() -> Iterator[Row]:
    """Published rows of every role that have a schedule; those of an ablation have that of its kernel."""
    for case in published_cases(*ROLES):
        with suppress(InputError):
            row = row_of(case)
            build = ABLATIONS.get(case.implementation or "", row.record.build)
            row = replace(row, record=replace(row.record, build=build))
            if row.schedule and usable(row):
                yield row


def _medians(rows: Iterable[Row]) -> list[Row]:
    """Rows with the median of the times that one source gives one question."""
    return [
        replace(mine[0], case=replace(mine[0].case, time_s=float(np.median([row.measured_s for row in mine]))))
        for mine in grouped(rows, lambda row: _beside(row, ())).values()
    ]


def _beside(row: Row, cells: tuple[str, ...]) -> tuple[object, ...]:
    """All that a row says of its question and conditions beside some cells; at one width where the heads are free."""
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
    """The pairs of `Between`."""
    for asked in declared().between:
        older, newer = (
            {
                (row.record.name, replace(row.workload, batch=1, dtype="bf16")): row
                for row in rows
                if row.case.source == name
            }
            for name in (asked.older, asked.newer)
        )
        yield from ((older[key], newer[key]) for key in older.keys() & newer.keys())


def _numbers(pair: Pair) -> tuple[Use, Numbers, Numbers]:
    one, two = (dict(unseen(row)) for row in pair.rows)
    for fold in one.keys() & two.keys():
        if fold[0] != NEVER:
            return "left out", one[fold], two[fold]
    use: Use = "held out" if (NEVER, "") in {*one, *two} else "fit"
    first, second = (choose(row.record, row.gpu).numbers for row in pair.rows)
    return use, first, second


def _told(row: Row, numbers: Numbers) -> Answer[Question]:
    """What a user is told of a row with these numbers; an ablation is a kernel that nobody ships."""
    case, schedule, played = row.case, row.schedule, row.replay(numbers)
    conditions = Conditions(cache=case.cache, launch=case.launch)  # type: ignore[arg-type]
    asked = Question(row.workload, row.gpu, MECHANISMS[case.algorithm], row.record, conditions)
    chosen = replace(choose(row.record, row.gpu), numbers=numbers)
    if case.implementation not in ABLATIONS:
        return answered(Played(asked, chosen, schedule, played))
    schedule = replace(schedule, tile=case.implementation)
    return replace(answered(Played(asked, chosen, schedule, played)), tiles="given")


def _of_stated(row: Mapping[str, Any]) -> Stepped:
    """A step of which the speedup alone is known."""
    ratio = Ratio(row["predicted"], row["low"], row["high"])
    measured = math.sqrt(row["measured_low"] * row["measured_high"])
    what, name = f"{row['older']} > {row['newer']}", row["implementation"]
    return Stepped("GPU", what, group_of(name), f"{name}, head_dim {row['head_dim']}", "held out", measured, ratio)


def steps_table(found: Iterable[Stepped]) -> list[dict[str, Any]]:
    """The steps by kind, by what changes and by whose kernels; first all of them, by what their numbers have seen.

    Returns
    -------
    list of dict
        ``kind, step, implementation, use, pairs, measured, predicted, error, direction, held``: medians of the measured
        and the predicted step, the mean size of the log of one over the other, the share of those that go the measured
        way, of steps beyond `MOVES` (None where none is), and the share inside the stated range.
    """
    found = list(found)
    lines: dict[tuple[str, str, str, str], list[Stepped]] = {}
    for key in (lambda one: ("all", "", "", one.use), lambda one: ("all", "", one.group, one.use), _line):
        lines |= grouped(sorted(found, key=key), key)
    columns = ("kind", "step", "implementation", "use")
    return [dict(zip(columns, key, strict=True)) | _summary(mine) for key, mine in lines.items()]


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
