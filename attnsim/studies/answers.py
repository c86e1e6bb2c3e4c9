"""Answers a chunk of points as an Arrow table, by closed forms and by replays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from attnsim.api import answering
from attnsim.api.adapting.own import OwnTimings
from attnsim.api.lifted import predict_kernel
from attnsim.api.tables import Cells, answer_columns, one_line
from attnsim.models.question.columns import ADDED_COLUMNS
from attnsim.studies.closed_answers import Texts, closed_forms, uncertainty
from attnsim.studies.closed_form import BOUNDS
from attnsim.studies.points import Point, counts, field_values, figures, point
from attnsim.studies.study import COLUMNS, Chunk, Points, Study, Values

CLOSED_FORM, REPLAY = "closed-form", "replay"
NOT_PLAYED = "extrapolated: closed form, nothing was played"
"""Trust text of closed forms: no interval was measured for them."""
BYTES = ("hbm_read_bytes", "hbm_write_bytes")
SECONDS = ("predicted_s", "predicted_low_s", "predicted_high_s")
TEXTS = ("busiest", "used_implementation", "trust", "error")


def answer(study: Study, chunk: Chunk) -> pa.Table:
    """Answer the points of one chunk, one row per point.

    Returns
    -------
    pyarrow.Table
        ``point``, the axes, the workload (not for kernel files), ``method`` and
        `attnsim.models.question.columns.ADDED_COLUMNS`. A point without an answer has an empty ``predicted_s`` and the
        reason in ``error``.
    """
    points = study.columns(chunk.first, chunk.stop)
    answers = _Answers(points.count)
    replayed = np.ones(points.count, dtype=bool)
    if study.method != REPLAY:
        replayed = _closed(study, points, answers, chunk.replays)
    for row in np.flatnonzero(replayed):
        answers.put(int(row), replay(point(points, int(row)), study.cache, study.launch, study.own))
    columns: dict[str, pa.Array] = {"point": pa.array(np.arange(chunk.first, chunk.stop))}
    columns |= _question_columns(points)
    if not study.kernels:
        columns |= _workload(points)
    still = np.zeros(points.count, dtype=np.int64)
    columns |= {"cache": _named([study.cache], still), "launch": _named([study.launch], still)}
    columns["method"] = _named([CLOSED_FORM, REPLAY], replayed)
    return pa.table(columns | answers.arrays())


def replay(question: Point, cache: str, launch: str, own: OwnTimings | None = None) -> Cells:
    """Answer a point by replay; never raises, but returns the error as text."""
    try:
        if question.kernel is not None:
            return answer_columns(predict_kernel(question.kernel, question.gpu(), cache=cache, launch=launch))
        return answer_columns(answering.answer(question.ask(cache, launch, own)))
    except Exception as error:
        return {"error": one_line(error)}


class _Answers:
    """`ADDED_COLUMNS` of some points, all empty at first."""

    def __init__(self, count: int) -> None:
        self.numbers = {name: np.full(count, np.nan) for name in (*SECONDS, *BYTES)}
        self.texts = {name: Texts(count) for name in TEXTS}

    def put(self, row: int, found: Cells) -> None:
        """Set the answer of one point."""
        for name, column in self.numbers.items():
            column[row] = np.nan if (value := found.get(name)) is None else value
        for name, texts in self.texts.items():
            texts.put(row, [str(found.get(name) or "")])

    def arrays(self) -> dict[str, pa.Array]:
        """Return the Arrow columns in the order of `ADDED_COLUMNS`."""
        made = {name: pa.array(values, from_pandas=True) for name, values in self.numbers.items()}
        made |= {name: made[name].cast(pa.int64()) for name in BYTES}
        made |= {name: _named(texts.values, texts.codes) for name, texts in self.texts.items()}
        return {name: made[name] for name in ADDED_COLUMNS}


def _closed(study: Study, points: Points, answers: _Answers, replays: int | None) -> NDArray[np.bool_]:
    """Fill in closed forms; returns the points to replay: the most uncertain ones, at most `replays`."""
    closed = closed_forms(points, study.cache, study.launch)
    rows, found = closed.rows, closed.estimate
    answers.texts["error"] = closed.error
    answers.numbers["predicted_s"][rows] = found.time_s
    for name in BYTES:
        answers.numbers[name][rows] = np.round(closed.work[name])
    answers.texts["trust"].put(rows, [NOT_PLAYED])
    answers.texts["busiest"].put(rows, BOUNDS, found.busiest)
    answers.texts["used_implementation"].put(rows, [item.record.name for item in closed.plans], closed.which)
    chosen = np.zeros(points.count, dtype=bool)
    if study.method != CLOSED_FORM:
        doubt = np.zeros(points.count)
        doubt[rows] = uncertainty(closed)
        tiles = points.columns["tile"]  # the best tile is found by replays alone
        doubt[np.array([tile == "retuned" for tile in tiles.values])[tiles.codes]] = np.inf
        if study.own is not None:
            timed = [bool(study.own.of(one.record.name, one.w.passes, one.gpu)) for one in closed.plans]
            doubt[rows[np.array(timed, dtype=bool)[closed.which]]] = np.inf
        order = np.argsort(-doubt, kind="stable")[: int((doubt > 1).sum())]
        chosen[order if replays is None else order[:replays]] = True
    return chosen


def _question_columns(points: Points) -> dict[str, pa.Array]:
    """Return the columns of each point's question other than the workload: GPU, figures, algorithm or kernel file."""
    found: dict[str, pa.Array] = {}
    changed = figures(points)
    for name, column in points.columns.items():
        if column.axis.kind == "change":
            found[name] = pa.array(changed[name])
        elif column.axis.kind != "workload":
            found[name] = _named(column.axis.labels or column.values, column.codes)
    return found


def _workload(points: Points) -> dict[str, pa.Array]:
    """Return the columns of each point's workload."""
    found: dict[str, pa.Array] = {}
    for name, default in (("passes", "fwd"), ("dtype", "bf16"), ("mask", "full")):
        values, codes = field_values(points, name, default)
        found[COLUMNS[name]] = _named([str(value) for value in values], codes)
    values, codes = field_values(points, "dropout", False)
    found["dropout"] = pa.array(np.array(values, dtype=bool)[codes])
    values, codes = field_values(points, "operations", "")
    found["operations"] = _named([str(value) for value in values], codes)
    values, codes = field_values(points, "lengths", "")
    if any(values):
        found["lengths"] = _named([str(value) for value in values], codes)
    return found | {name: pa.array(values) for name, values in counts(points).items()}


def _named(names: Values, codes: NDArray[Any]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(names, type=pa.string()))
