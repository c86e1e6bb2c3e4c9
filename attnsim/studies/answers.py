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
from attnsim.studies.closed_answers import closed_forms, uncertainty
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
    answers: dict[str, Any] = {name: np.full(points.count, np.nan) for name in (*SECONDS, *BYTES)}
    answers |= {name: np.full(points.count, "", dtype=object) for name in TEXTS}
    replayed = np.ones(points.count, dtype=bool)
    if study.method != REPLAY:
        replayed = _closed(study, points, answers, chunk.replays)
    for row in np.flatnonzero(replayed):
        found = replay(point(points, int(row)), study.cache, study.launch, study.own)
        for name, column in answers.items():
            value = found.get(name)
            column[row] = value if value is not None else "" if name in TEXTS else np.nan
    columns: dict[str, pa.Array] = {"point": pa.array(np.arange(chunk.first, chunk.stop))}
    columns |= _question_columns(points)
    if not study.kernels:
        columns |= _workload(points)
    still = np.zeros(points.count, dtype=np.int64)
    columns |= {"cache": _named([study.cache], still), "launch": _named([study.launch], still)}
    columns["method"] = _named([CLOSED_FORM, REPLAY], replayed)
    made = {name: pa.array(answers[name], from_pandas=True) for name in ADDED_COLUMNS}
    made |= {name: made[name].cast(pa.int64()) for name in BYTES}
    made |= {name: made[name].dictionary_encode() for name in TEXTS}
    return pa.table(columns | made)


def replay(question: Point, cache: str, launch: str, own: OwnTimings | None = None) -> Cells:
    """Answer a point by replay; never raises, but returns the error as text."""
    try:
        if question.kernel is not None:
            return answer_columns(predict_kernel(question.kernel, question.gpu(), cache=cache, launch=launch))
        return answer_columns(answering.answer(question.ask(cache, launch, own)))
    except Exception as error:
        return {"error": one_line(error)}


def _closed(study: Study, points: Points, answers: dict[str, Any], replays: int | None) -> NDArray[np.bool_]:
    """Fill in closed forms; returns the points to replay: the most uncertain ones, at most `replays`."""
    closed = closed_forms(points, study.cache, study.launch)
    rows, found = closed.rows, closed.estimate
    answers["error"][:] = closed.error
    answers["predicted_s"][rows] = found.time_s
    for name in BYTES:
        answers[name][rows] = np.round(closed.work[name])
    answers["trust"][rows] = NOT_PLAYED
    answers["busiest"][rows] = np.array(BOUNDS, dtype=object)[found.busiest]
    answers["used_implementation"][rows] = np.array([one.record.name for one in closed.plans], object)[closed.which]
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
