"""Somebody's own timings held against predictions, row by row."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import cast

import pandas as pd

from attnsim.api.adapting.audit import Audit, audit
from attnsim.api.asking import Calibrated, read_conditions
from attnsim.api.tables import (
    LIMITS,
    AnsweredRow,
    far_question,
    far_text,
    implementation_of,
    predict_rows,
    read,
    with_answers,
)
from attnsim.by_hand import by_hand
from attnsim.errors import InputError, shown
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.question.case_file import records
from attnsim.models.question.columns import MEASURED, Columns, Naming, given_cells
from attnsim.wording import share_text

MASKED_TWICE = 2.0
"""How often the FLOPs of all pairs of a square call hold those of a causal one, at most."""
HALF_A_DECADE = by_hand(0.5, "decades from a power of 1,000 within which a median error is taken for a wrong unit")


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How near predictions are to the times of some rows.

    Parameters
    ----------
    implementation : str
        Whose code was predicted; "all" for every row.
    gpu : str
        Where the rows ran; "" for every row, and where all ran on one GPU.
    rows : int
        Those that have a time and a prediction.
    mean, median : float
        Of the size of the error, ``|predicted / measured - 1|``.
    bias : float
        Geometric mean of predicted over measured, less 1: above 0 where predictions are too long.
    inside : int
        Rows whose time lies in the prediction's 90 % range.
    """

    implementation: str
    gpu: str
    rows: int
    mean: float
    median: float
    bias: float
    inside: int

    @property
    def coverage(self) -> float:
        """The share of the rows inside."""
        return self.inside / self.rows

    def to_dict(self) -> dict[str, object]:
        """The fields and the coverage, ready for JSON."""
        return asdict(self) | {"coverage": self.coverage}


@dataclass(frozen=True, eq=False)
class Check:
    """A table of timings and what is predicted for it.

    Parameters
    ----------
    frame : pandas.DataFrame
        As it was given.
    columns : Columns
        How its columns were read.
    answered : tuple of AnsweredRow
        A row each, in its order.
    corrected : bool
        Whether timings of one's own corrected the answers.
    """

    frame: pd.DataFrame
    columns: Columns
    answered: tuple[AnsweredRow, ...]
    corrected: bool = False

    def __repr__(self) -> str:
        every = self.accuracy[0] if self.accuracy else None
        text = (
            f"mean error {share_text(every.mean)}, {every.inside} of {every.rows} inside" if every else "none answered"
        )
        return f"<Check of {len(self.answered)} rows: {text}>"

    @property
    def rows(self) -> pd.DataFrame:
        """The table with the columns of `attnsim.predict_table` beside its own; the index is the line of the file."""
        return with_answers(self.frame, self.answered, measured=True)

    @property
    def summary(self) -> pd.DataFrame:
        """:class:`Accuracy` of all rows, and by implementation and GPU where there are several."""
        return pd.DataFrame([one.to_dict() for one in self.accuracy])

    @property
    def mapping(self) -> pd.DataFrame:
        """How each column was read: ``column, read_as, unit``."""
        return pd.DataFrame(self.columns.table(), columns=["column", "read_as", "unit"])

    @property
    def lines(self) -> list[tuple[object, AnsweredRow]]:
        """Each row with its line."""
        return list(zip(self.frame.index, self.answered, strict=True))

    @property
    def line_name(self) -> str:
        """Word that the rows are counted by: "line" of a CSV file, else "row"."""
        return str(self.frame.index.name or "row")

    @property
    def accuracy(self) -> list[Accuracy]:
        """Accuracy of all rows that count, then by implementation and GPU where several are; empty without one."""
        answered = [row for row in self.answered if row.counts]
        several = len({row.gpu for row in answered}) > 1
        parts: dict[tuple[str, str], list[AnsweredRow]] = {}
        for row in answered:
            parts.setdefault((str(row.answer["used_implementation"]), row.gpu if several else ""), []).append(row)
        if not parts:
            return []
        each = [accuracy_of(name, rows, gpu) for (name, gpu), rows in parts.items()]
        return [accuracy_of("all", answered), *(each if len(each) > 1 else [])]

    @cached_property
    def audit(self) -> Audit:
        """Which rows are plausible, suspicious or impossible, and the likeliest reason; replays where some are far off.

        Answers that one's own timings corrected are not audited: the audit is of the model's own.
        """
        table = self.frame, self.columns, self.answered
        return Audit(*table) if self.corrected else audit(*table)

    @property
    def doubt(self) -> str:
        """Why the unit of the times is doubted, in a line: the median is off by a power of 1,000. Else empty."""
        ratios = [row.ratio for row in self.answered if row.ratio]
        if not ratios or self.columns.time is None:
            return ""
        decades = -math.log10(statistics.median(ratios))
        thousands = round(decades / 3)
        if not thousands or abs(decades - 3 * thousands) > HALF_A_DECADE:
            return ""
        times, column = "times" if thousands > 0 else "times shorter than", self.columns.time
        asked = f"is column {shown(column.theirs)} really in {column.unit}? "
        asked += "write its unit into its name, or give --time-unit"
        if column.theirs in self.columns.made:
            asked = "are they in the units that the table says?"
        return f"measured times are about {1000 ** abs(thousands):,} {times} the predicted ones: {asked}"

    @property
    def impossible(self) -> dict[str, list[object]]:
        """Lines of the rows whose time no GPU can have taken, by the reason."""
        return _lines_of((row.impossible, line) for line, row in self.lines if row.impossible)

    @property
    def far(self) -> dict[str, list[object]]:
        """Lines of the rows whose time is too far off its prediction to be an error of it, by the reason."""
        found: dict[str, list[tuple[object, float]]] = {}
        for line, row in self.lines:
            if row.far is not None:
                found.setdefault(far_question(row.far), []).append((line, row.far))
        return {far_text([far for _, far in rows]): [line for line, _ in rows] for rows in found.values()}

    @property
    def failed(self) -> dict[str, list[object]]:
        """Lines of the rows without an answer, by the reason."""
        return _lines_of((str(row.answer.get("error") or ""), line) for line, row in self.lines if row.ratio is None)

    @property
    def left_out(self) -> dict[str, list[object]]:
        """Lines of the rows that stand in no mean and no picture, by the reason."""
        return self.failed | self.impossible | self.far

    @property
    def taken(self) -> list[tuple[str, str]]:
        """Names of GPUs and implementations in the table, and ours of each that is called otherwise."""
        found: dict[tuple[str, str], None] = {}
        for cells, row in zip(records(self.frame), self.answered, strict=True):
            if row.case is not None and row.ratio is not None:
                gpu, used = str(self.columns.cell(cells, "gpu")).strip(), str(row.answer["used_implementation"])
                for given, name in ((gpu, row.gpu), (implementation_of(row.case) or "", used)):
                    found |= {} if given.lower() in ("", name) else {(given, name): None}
        return list(found)

    @property
    def question(self) -> tuple[dict[str, str], list[dict[str, str]]]:
        """The questions of the table, under its own names: cells that all rows share, and each row's others."""
        kept = [one.theirs for one in self.columns.columns if one.ours not in (*MEASURED, "notes", "source")]
        cells = [{name: str(row[name]) for name in kept} for row in records(self.frame)]
        same = {name: cells[0][name] for name in kept if len(cells) > 1 and len({row[name] for row in cells}) == 1}
        return same, [{name: cell for name, cell in row.items() if name not in same} for row in cells]

    @property
    def assumed(self) -> dict[tuple[object, ...], list[str]]:
        """Assumptions that fill what answered rows leave open, by the lines of these rows; by none where all do."""
        answered = [(line, row.case) for line, row in self.lines if row.case and row.ratio is not None]
        lines: dict[str, list[object]] = {}
        for line, case in answered:
            for text in case.assumed.values():
                lines.setdefault(text, []).append(line)
        found: dict[tuple[object, ...], list[str]] = {}
        for text in sorted(lines):
            found.setdefault(tuple(lines[text] if len(lines[text]) < len(answered) else ()), []).append(text)
        return found

    def to_dicts(self) -> list[dict[str, object]]:
        """Mapping, rows, summary and reasons of the audit, ready for JSON; `table` says which."""
        lines = zip(self.lines, self.audit.rows, strict=True)
        rows = ({"line": line, **row.to_dict(), "verdict": verdict} for (line, row), verdict in lines)
        cells = {
            "mapping": self.columns.table(),
            "row": list(rows),
            "summary": [one.to_dict() for one in self.accuracy],
            "reason": self.audit.reasons,
        }
        return [{"table": name, **one} for name, several in cells.items() for one in several]


def _lines_of(pairs: Iterable[tuple[str, object]]) -> dict[str, list[object]]:
    """Lines by their reason."""
    found: dict[str, list[object]] = {}
    for reason, line in pairs:
        found.setdefault(reason, []).append(line)
    return found


def accuracy_of(name: str, rows: Sequence[AnsweredRow], gpu: str = "") -> Accuracy:
    """The accuracy of rows that have a time and a prediction, at least one."""
    ratios = [row.ratio for row in rows if row.ratio is not None]
    errors = [abs(ratio - 1) for ratio in ratios]
    return Accuracy(
        name,
        gpu,
        len(ratios),
        statistics.fmean(errors),
        statistics.median(errors),
        math.exp(statistics.fmean(map(math.log, ratios))) - 1,
        sum(row.in_range is True for row in rows),
    )


def check(
    table: pd.DataFrame | str | Path,
    *,
    maps: Mapping[str, str] | None = None,
    time_unit: str | None = None,
    gpu: str | None = None,
    implementation: str | None = None,
    cells: Mapping[str, str] | None = None,
    calibration: Calibrated = None,
    processes: int = 2,
    progress: bool = True,
) -> Check:
    """Hold a table of measured times against predictions.

    Parameters
    ----------
    table : pandas.DataFrame, str or Path
        One call a row, or one a kernel in columns of their own, in the names of a case table or in others'
        (`columns.toml`); a file is CSV, Parquet, Markdown or what a benchmark printed.
    maps : mapping of str to str, optional
        Their column by ours, where the name does not tell: ``{"heads_q": "n_heads"}``.
    time_unit : {"s", "ms", "us", "ns", "tflops", "gbs"}, optional
        Of columns of times whose names have no unit; a rate where kernels have columns of their own.
    gpu, implementation : str, optional
        Of all rows, whatever the table says.
    cells : mapping of str to str, optional
        What all rows say that the table leaves open, by column: ``{"heads": "32"}``.
    calibration : OwnTimings, str or Path, optional
        As for `attnsim.predict`.
    processes : int
        Worker processes, for large tables.
    progress : bool
        Whether to show progress on stderr, if that is a terminal.

    Returns
    -------
    Check
        Never without a row; rows without an answer have the reason in `error`.

    Raises
    ------
    InputError
        For a table that cannot be read as a whole: no rows, no time, a column that could be two, an unknown unit; and
        for a GPU or implementation of all rows that is not known.

    Examples
    --------
    >>> import attnsim, pandas
    >>> mine = pandas.DataFrame({"B": [2], "H": [16], "N": [4096], "d": [128], "latency (ms)": [1.9], "causal": [True]})
    >>> found = attnsim.check(mine, gpu="NVIDIA A100-SXM4-80GB", implementation="flash-attn.2")
    >>> list(found.rows["in_range"])
    [True]
    >>> int(found.summary["inside"].iloc[0])
    1
    """
    naming = Naming(maps or {}, time_unit, gpu, implementation, given_cells(cells or {}))
    conditions = read_conditions(calibration=calibration)
    if gpu is not None:
        load_gpu(gpu)
    if implementation is not None:
        find_implementation(implementation)
    frame, columns = read(table, naming)
    where = f"{table}: " if isinstance(table, (str, Path)) else ""
    if columns.time is None:
        names = ", ".join(map(shown, columns.unused)) or "none that is not used"
        raise InputError(
            f"{where}no column is a time or a throughput (left over: {names}); write --map {MEASURED[0]}=COLUMN, and "
            "--time-unit where its name has no unit"
        )
    if not len(frame):
        raise InputError(f"{where}no rows below the column names; a table to check has a call a line")
    rows = predict_rows(frame, columns, conditions, processes=processes, progress=progress)
    return Check(frame, columns, tuple(_doubted(_timed(row, columns)) for row in rows), conditions.own is not None)


def _timed(row: AnsweredRow, columns: Columns) -> AnsweredRow:
    """A row; without a time it has that as its error."""
    if row.case is None or row.measured_s is not None or columns.time is None:
        return row
    return AnsweredRow(row.case, {"error": f"{columns.time.theirs} is empty; a row to check needs a time"})


def _doubted(row: AnsweredRow) -> AnsweredRow:
    """A row; one whose time is below a limit of its GPU has that as its error, and no trust."""
    limits = cast("Mapping[str, float]", row.answer.get(LIMITS) or {})
    if row.case is None or row.measured_s is None or row.measured_s >= max(limits.values(), default=0.0):
        return row
    which = max(limits, key=lambda name: limits[name])
    factor = limits[which] / row.measured_s
    if which == "peak":  # a person reads it against the datasheet's, which is at another clock than the highest
        clocks = load_gpu(row.gpu).clock
        factor *= max(clocks.boost_hz, clocks.full_hz) / clocks.tensor_hz
    said = f"measured is {factor:.1f}x above the GPU's {which}: impossible"
    if which == "peak" and factor <= MASKED_TWICE:
        if "tflops" in row.case.assumed and row.case.causal:
            said += (
                "; possible if it is exactly twice the useful FLOPs of a causal call: the column counts masked pairs"
            )
        elif "causal" in row.case.assumed:
            said += "; possible if it is causal, which the row does not say"
    return replace(row, answer=row.answer | {"error": said, "trust": f"impossible: {said}"})
