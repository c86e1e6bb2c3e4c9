"""Case tables: a prediction beside every row, none dropped, in the order given."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from attnsim.api.answer import Answer, Outcome, TooLarge
from attnsim.api.answering import answer
from attnsim.api.asking import (
    USUAL,
    Calibrated,
    Conditions,
    KernelQuestion,
    Question,
    ask,
    read_algorithm,
    read_conditions,
)
from attnsim.api.bounds import limits_s
from attnsim.api.trust import LEVELS
from attnsim.by_hand import by_hand
from attnsim.errors import InputError, nearest, shown, some
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import Match, is_named, match
from attnsim.models.implementations.names import meanings_of, plain
from attnsim.models.mechanisms import ALGORITHMS, MECHANISMS, running
from attnsim.models.question.case_file import read_table, records
from attnsim.models.question.case_row import Case, gpu_of, parse_row, workload_of
from attnsim.models.question.columns import (
    ADDED_COLUMNS,
    MEASURED_COLUMNS,
    NOTHING_SAID,
    OPTIONS,
    SAID,
    Columns,
    Naming,
    read_columns,
)
from attnsim.models.question.headings import long_form
from attnsim.models.question.workload import Workload
from attnsim.simulator.program import Cache
from attnsim.simulator.replay import LaunchMode
from attnsim.wording import number

if TYPE_CHECKING:
    import pandas as pd

IN_ONE_PROCESS = 200
"""Questions up to which starting worker processes costs more than it saves."""

_CHUNK = 25
_T = TypeVar("_T")

Cells = dict[str, object]
"""One row's `ADDED_COLUMNS`, and `LIMITS`; a column left out is empty."""

LIMITS = "limits_s"
"""The key of an answer under which `attnsim.api.bounds.limits_s` stands."""

FAR = by_hand(
    30.0, "times off its prediction from which a time is suspicious by itself: published rows are 4.6 times off at most"
)
UNIT_NEAR = by_hand(
    1.7, "factor off a ratio of two units within which a time so far off is taken for one in the other unit"
)
UNITS_APART = {60.0: "s and min", 1e3: "us and ms, or ms and s", 1e6: "us and s"}
"""Units that are taken for each other, by how far they are apart."""

FLASH = ("flash", "flashattention", "flashattn", "attention", "dense", "denseattention")
"""Words for an algorithm that any fused kernel of dense attention runs, as :func:`plain` writes them."""


PROFILERS = {"ncu --csv": {"Kernel Name", "Block Size", "Grid Size"}, "nsys stats": {"Name", "Instances", "Avg (ns)"}}
"""Programs whose tables hold no call, and some of their columns, as NVIDIA's documentation of Nsight Compute and Nsight
Systems prints them."""


def predict_table(
    frame: pd.DataFrame,
    *,
    tiles: str = "shipped",
    mode: str = "fast",
    budget: int | None = None,
    calibration: Calibrated = None,
    processes: int = 2,
    progress: bool = True,
    naming: Naming = NOTHING_SAID,
) -> pd.DataFrame:
    """Predict every row of a case table.

    A row's `implementation` and `version` decide what is imitated (`attnsim.models.implementations.choose.match`);
    without a name it is the best available for its `algorithm`. What was taken for a version stands in `trust`. A
    `page_size` that the implementation does not stand for is refused. `window` applies to the row, whatever its
    algorithm; `clock_mhz` is the clock the replay runs at. Equal questions are answered once.

    Parameters
    ----------
    frame : pandas.DataFrame
        With the columns of a case table, in its names or in others' (`columns.toml`).
    tiles : {"shipped", "retuned"}
    mode : {"fast", "exact"}
    budget, calibration : optional
        As for `attnsim.predict`.
    processes : int
        Worker processes, above `IN_ONE_PROCESS` questions.
    progress : bool
        Whether to show progress on stderr, if that is a terminal.
    naming : Naming
        What the names of the columns do not tell.

    Returns
    -------
    pandas.DataFrame
        The rows in their order, one for each kernel that has a column of its own, with `ADDED_COLUMNS` appended,
        and `MEASURED_COLUMNS` where a column is a time; one that cannot be predicted has an empty `predicted_s` and
        the reason in `error`.

    Raises
    ------
    InputError
        For `tiles`, `mode`, `budget`, `calibration`, or columns whose meaning is not clear; never for a row.
    """
    conditions = read_conditions(tiles=tiles, mode=mode, budget=budget, calibration=calibration)
    frame, columns = read(frame, naming)
    rows = predict_rows(frame, columns, conditions, processes, progress)
    return with_answers(frame, rows, measured=columns.time is not None)


def read(table: pd.DataFrame | str | Path, naming: Naming = NOTHING_SAID) -> tuple[pd.DataFrame, Columns]:
    """A table with one call a row, and which of its columns is which.

    Parameters
    ----------
    table : pandas.DataFrame, str or Path
        A file is CSV, Parquet, Markdown or what a benchmark printed.
    naming : Naming
        What the names of the columns do not tell.

    Returns
    -------
    frame : pandas.DataFrame
        As it was given; where kernels or passes have columns of their own, a row for each, with the line of its row.
    columns : Columns

    Raises
    ------
    InputError
        When the table as a whole cannot be read; one line.
    """
    if not isinstance(table, (str, Path)):
        return _read(table, naming)
    frame = read_table(table)
    try:
        return _read(frame, naming)
    except InputError as error:
        raise InputError(f"{table}: {error}") from None


def _read(frame: pd.DataFrame, naming: Naming) -> tuple[pd.DataFrame, Columns]:
    import pandas as pd

    names = set(map(str, frame.columns)) if isinstance(frame, pd.DataFrame) else set()
    if program := next((name for name, columns in PROFILERS.items() if columns <= names), ""):
        raise InputError(
            f"these are the columns of {program}, which names kernels and not what the call was; write a table with a "
            "call a line: batch, heads, seq, head_dim, causal, and the time of its kernels together, such as time_us"
        )
    gathered: list[tuple[str, str]] = []
    if isinstance(frame, pd.DataFrame) and frame.columns.is_unique:  # others are refused below
        frame, naming, gathered = long_form(frame, naming, is_named)
    return frame, replace(read_columns(frame, naming), gathered=tuple(gathered), made=SAID - names)


@dataclass(frozen=True, slots=True)
class AnsweredRow:
    """A row of a table with what is predicted for it.

    Parameters
    ----------
    case : Case or None
        None where the row cannot be read.
    answer : mapping of str to object
        By `ADDED_COLUMNS`.
    """

    case: Case | None
    answer: Cells

    @property
    def measured_s(self) -> float | None:
        """The time that the row states."""
        return self.case.time_s if self.case else None

    @property
    def predicted_s(self) -> float | None:
        """The predicted time; None where there is none."""
        return cast("float | None", self.answer.get("predicted_s"))

    @property
    def low_s(self) -> float | None:
        """The lower end of the prediction's 90 % range."""
        return cast("float | None", self.answer.get("predicted_low_s"))

    @property
    def high_s(self) -> float | None:
        """The upper end."""
        return cast("float | None", self.answer.get("predicted_high_s"))

    @property
    def ratio(self) -> float | None:
        """The predicted over the measured time."""
        return self.predicted_s / self.measured_s if self.predicted_s and self.measured_s else None

    @property
    def impossible(self) -> str:
        """Why no GPU can have taken the time that the row states; "" where one can, or there is no prediction."""
        return str(self.answer.get("error") or "") if self.predicted_s else ""

    @property
    def far(self) -> float | None:
        """The measured over the predicted time where no error of a prediction is as large; None elsewhere."""
        if self.ratio is None or self.impossible or 1 / FAR < self.ratio < FAR:
            return None
        return 1 / self.ratio

    @property
    def counts(self) -> bool:
        """Whether the row has a time and a prediction that means and pictures hold."""
        return self.ratio is not None and not self.impossible and self.far is None

    @property
    def in_range(self) -> bool | None:
        """Whether the measured time lies in the range; None of one that is impossible."""
        if self.impossible or self.low_s is None or self.high_s is None or self.measured_s is None:
            return None
        return self.low_s <= self.measured_s <= self.high_s

    @property
    def gpu(self) -> str:
        """Id of the GPU that an answered row is of, whatever the row calls it."""
        return load_gpu(self.case.gpu).id if self.case else ""

    @property
    def level(self) -> str:
        """The level of trust alone."""
        return str(self.answer.get("trust", "")).partition(":")[0]

    def to_dict(self) -> Cells:
        """By `ADDED_COLUMNS` and `MEASURED_COLUMNS`."""
        error = None if self.ratio is None else 100 * (self.ratio - 1)
        answer = {name: cell for name, cell in self.answer.items() if name != LIMITS}
        return {**answer, "measured_s": self.measured_s, "error_percent": error, "in_range": self.in_range}


def predict_rows(
    frame: pd.DataFrame,
    columns: Columns,
    conditions: Conditions = USUAL,
    processes: int = 2,
    progress: bool = True,
) -> list[AnsweredRow]:
    """The rows of a table, each with its answer; equal questions are answered once."""
    rows: list[AnsweredRow] = []
    rows_of: dict[Case, list[int]] = {}
    for place, row in enumerate(records(frame)):
        try:
            case = parse_row(row, columns)
        except Exception as error:
            rows.append(AnsweredRow(None, {"error": one_line(error)}))
            continue
        rows.append(AnsweredRow(case, {}))
        rows_of.setdefault(replace(case, time_s=None, source=""), []).append(place)
    for places, found in zip(rows_of.values(), _answers(list(rows_of), conditions, processes, progress), strict=True):
        for place in places:
            rows[place] = replace(rows[place], answer=found)
    return rows


def far_question(far: float) -> str:
    """The question that a time raises which is so far off its prediction, `AnsweredRow.far`."""
    for apart, units in UNITS_APART.items():
        if apart / UNIT_NEAR <= max(far, 1 / far) <= apart * UNIT_NEAR:
            return f"is a unit wrong ({units})?"
    return "is a shape or a unit wrong?"


def far_text(far: Sequence[float]) -> str:
    """How far times that raise one question are off their predictions, and the question."""
    ends = dict.fromkeys(f"{number(one, 2)}x" for one in (min(far), max(far)))
    return f"measured is {' to '.join(ends)} the prediction: {far_question(far[0])}"


def with_answers(frame: pd.DataFrame, rows: Sequence[AnsweredRow], measured: bool) -> pd.DataFrame:
    """A table with `ADDED_COLUMNS` and, where times were measured, `MEASURED_COLUMNS` beside its own."""
    import pandas as pd

    result, cells = frame.copy(), [row.to_dict() for row in rows]
    for column in (*ADDED_COLUMNS, *(MEASURED_COLUMNS if measured else ())):
        kind = _KINDS.get(column.rpartition("_")[2], "object")
        result[column] = pd.Series([found.get(column) for found in cells], index=frame.index, dtype=kind)
    return result


_KINDS = {"bytes": "Int64", "s": "float64", "percent": "float64", "range": "boolean"}
"""Types of the added columns, by how their names end."""


def _answers(cases: Sequence[Case], conditions: Conditions, processes: int, progress: bool) -> Iterator[Cells]:
    if len(cases) <= IN_ONE_PROCESS or processes < 2 or (os.cpu_count() or 1) < 2:
        yield from _shown((predict_case(case, conditions) for case in cases), len(cases), progress)
        return
    from joblib import Parallel, delayed

    chunks = [cases[first : first + _CHUNK] for first in range(0, len(cases), _CHUNK)]
    work = Parallel(n_jobs=processes, return_as="generator")(delayed(_chunk)(chunk, conditions) for chunk in chunks)
    yield from _shown((found for part in work for found in part), len(cases), progress)


def _chunk(cases: Sequence[Case], conditions: Conditions) -> list[Cells]:
    return [predict_case(case, conditions) for case in cases]


def _shown(answers: Iterable[_T], total: int, progress: bool) -> Iterator[_T]:
    """Pass answers through, with a progress bar on stderr if that is a terminal."""
    if not progress or not sys.stderr.isatty():
        yield from answers
        return
    import rich.progress

    yield from rich.progress.track(
        answers, "predicting", total, console=rich.console.Console(stderr=True), transient=True
    )


def predict_case(case: Case, conditions: Conditions = USUAL) -> Cells:
    """The added columns of one row; never raises."""
    try:
        predicted = answer(question_of(case, conditions))
        found = answer_columns(predicted)
        if not isinstance(predicted, TooLarge):
            asked = predicted.question
            found[LIMITS] = limits_s(predicted.run.schedule, asked.useful, asked.gpu, asked.conditions.cache)
        return _with_unknown(found, case.not_understood) if case.not_understood else found
    except Exception as error:
        return {"error": one_line(error)}


def question_of(case: Case, conditions: Conditions = USUAL) -> Question:
    """The question of a row, with the cache and the launches that the row states.

    Raises
    ------
    InputError
        When the row names something that is not known or does not run.
    """
    version, name = case.version or "", implementation_of(case)
    w, gpu = _workload(case), gpu_of(case)
    named = match(name, version, gpu, w, case.whose) if name else None
    conditions = replace(conditions, cache=cast(Cache, case.cache), launch=cast(LaunchMode, case.launch))
    algorithm = _algorithm(case, named, w, gpu)
    return ask(w, gpu, algorithm, named, conditions, _assumed(case, named), version=version)


def _with_unknown(found: Cells, names: Sequence[str]) -> Cells:
    """An answer to a row of which something was not understood, which no measurement validates."""
    level, _, reason = str(found["trust"]).partition(": ")
    unknown = f"{', '.join(map(shown, names))} not understood"
    return found | {"trust": f"{LEVELS[1] if level == LEVELS[0] else level}: {unknown}; {reason}"}


def answer_columns(found: Outcome | Answer[KernelQuestion]) -> Cells:
    """An answer as `ADDED_COLUMNS`; of a kernel file, its kernels are what is used."""
    return {
        "predicted_s": found.time_s,
        "predicted_low_s": found.time_low_s,
        "predicted_high_s": found.time_high_s,
        "hbm_read_bytes": found.hbm_read_bytes,
        "hbm_write_bytes": found.hbm_write_bytes,
        "busiest": found.busiest,
        "used_implementation": found.question.implementation,
        "trust": f"{found.trust.level}: {found.trust.reason}",
        "error": found.too_large if isinstance(found, TooLarge) else "",
    }


def implementation_of(case: Case) -> str | None:
    """The name of a row's implementation: what stands under algorithm where that is none, "FA3" or "sdpa"."""
    if case.implementation or case.algorithm.partition("@")[0] in MECHANISMS:
        return case.implementation
    with suppress(InputError):
        match(case.algorithm, whose=case.whose)
        return case.algorithm
    return case.algorithm if meanings_of(case.algorithm) else None  # which has no schedule, and a reason


def _workload(case: Case) -> Workload:
    unknown = [key for key in case.options if key not in OPTIONS]
    if unknown:
        raise InputError(f"options has {shown(unknown[0])}; {nearest(unknown[0], OPTIONS)}; leave others out")
    dropout = case.options.get("dropout", "0")
    try:
        rate = float(dropout)
    except ValueError:
        raise InputError(f"options has dropout={shown(dropout)}; allowed: 0, 1 or a rate below 1") from None
    if not 0 <= rate <= 1:
        raise InputError(f"options has dropout={dropout}; allowed: 0, 1 or a rate below 1")
    return replace(workload_of(case), page_size=case.page_size or 0)


def _algorithm(case: Case, named: Match | None, w: Workload, gpu: Gpu) -> str:
    """The row's algorithm; what its implementation runs where the row has none, or a property of the question.

    Raises
    ------
    InputError
        Where nobody knows it, or the implementation does not run it.
    """
    known = MECHANISMS.get(case.algorithm.partition("@")[0])
    if named is None or (known and known.name in ALGORITHMS and known.run_by(named.record)):
        return case.algorithm
    runs = running(named.record)[0].name
    chosen = known and named.caller and known.run_by(named.caller)
    chosen = chosen or (plain(case.algorithm) in FLASH and ALGORITHMS["flash"].run_by(named.record))
    if "algorithm" in case.assumed or case.algorithm == implementation_of(case) or chosen:
        return runs
    with suppress(InputError):  # the word may be a name of the same
        if known is None and match(case.algorithm, case.version or "", gpu, w).record.name == named.record.name:
            return runs
    if known is None:
        read_algorithm(case.algorithm)
    elif known.name in ALGORITHMS or not known.run_by(named.record) or known.refuses(w):
        raise InputError(
            f"algorithm is {shown(case.algorithm)} and implementation {shown(case.implementation)}, which is "
            f"{named.record.name} and runs {runs}; write {runs}, leave one of them empty, or take one of "
            f"{some(known.implementations or ['none'], f'attnsim explain {known.name}', 3)}"
        )
    return runs


def _assumed(case: Case, named: Match | None) -> list[str]:
    said = [text for column, text in case.assumed.items() if named is None or column != "algorithm"]
    return [*said, *filter(None, [named.assumed if named else ""])]


def one_line(error: Exception) -> str:
    """The text of an exception in the column `error`."""
    text = " ".join(str(error).split())
    return text if isinstance(error, InputError) else f"internal error: {type(error).__name__}: {text}"
