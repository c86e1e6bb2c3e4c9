"""Answers to a chunk of points as an Arrow table: closed forms, and replays where they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnsim.api import predict
from attnsim.api.tables import ADDED_COLUMNS, Answer, answer_columns, one_line
from attnsim.models.hardware.sections import FIELDS
from attnsim.studies.closed_answers import Closed, closed_forms
from attnsim.studies.closed_form import BOUNDS
from attnsim.studies.figures import figures
from attnsim.studies.questions import Question, counts, field_values, question
from attnsim.studies.study import Chunk, Points, Study
from attnsim.studies.texts import Texts
from attnsim.studies.uncertainty import uncertainty

if TYPE_CHECKING:
    import pyarrow as pa

CLOSED_FORM, REPLAY = "closed-form", "replay"
NOT_PLAYED = "extrapolated: closed form, nothing was played"
"""What a closed form says of its trust: no interval was measured for it."""
BYTES = ("hbm_read_bytes", "hbm_write_bytes")
SECONDS = ("predicted_s", "predicted_low_s", "predicted_high_s")
TEXTS = ("bound", "used_implementation", "trust", "error")


def answer(study: Study, chunk: Chunk) -> pa.Table:
    """The points of one chunk with their answers, a row each.

    Parameters
    ----------
    study : Study
    chunk : Chunk

    Returns
    -------
    pyarrow.Table
        ``point``, the axes, the workload, ``method`` and `attnsim.api.tables.ADDED_COLUMNS`. A point that cannot be
        answered has an empty ``predicted_s`` and the reason in ``error``.
    """
    points = study.columns(chunk.first, chunk.stop)
    answers = _Answers(points.count)
    replayed = np.ones(points.count, dtype=bool)
    if study.method != REPLAY:
        replayed = _closed(study, points, answers, chunk.replays)
    for row in np.flatnonzero(replayed):
        answers.put(int(row), replay(question(points, int(row)), study.cache, study.launch))
    return _table(study, points, answers, replayed)


def replay(asked: Question, cache: str, launch: str) -> Answer:
    """The answer of a replay; never raises."""
    retuned = asked.tile == "retuned"
    try:
        return answer_columns(
            predict(
                asked.workload(),
                asked.machine(),
                asked.algorithm,
                implementation=asked.implementation,
                tiles="retuned" if retuned else "shipped",
                tile=None if asked.tile in ("shipped", "retuned") else asked.tile,
                cache=cache,
                launch=launch,
                baseline=False,
            )
        )
    except Exception as error:
        return {"error": one_line(error)}


class _Answers:
    """`ADDED_COLUMNS` of some points, nothing known at first."""

    def __init__(self, count: int) -> None:
        self.seconds = {name: np.full(count, np.nan) for name in SECONDS}
        self.bytes = {name: np.full(count, -1, dtype=np.int64) for name in BYTES}
        self.texts = {name: Texts(count) for name in TEXTS}

    def put(self, row: int, found: Answer) -> None:
        """One point's answer, in place of what was known of it."""
        for name, column in (*self.seconds.items(), *self.bytes.items()):
            column[row] = (np.nan if name in SECONDS else -1) if (value := found.get(name)) is None else value
        for name, texts in self.texts.items():
            texts.put(row, str(found.get(name) or ""))

    def arrays(self) -> dict[str, pa.Array]:
        """Arrow columns in the order of `ADDED_COLUMNS`."""
        import pyarrow as pa

        made = {name: pa.array(values, from_pandas=True) for name, values in self.seconds.items()}
        made |= {name: pa.array(values, mask=values < 0) for name, values in self.bytes.items()}
        made |= {name: _named(texts.values, texts.codes) for name, texts in self.texts.items()}
        return {name: made[name] for name in ADDED_COLUMNS}


def _closed(study: Study, points: Points, answers: _Answers, replays: int | None) -> NDArray[np.bool_]:
    """Put in closed forms; which points are left to be replayed."""
    closed = closed_forms(points, study.cache, study.launch)
    rows, found = closed.rows, closed.estimate
    answers.texts["error"] = closed.error
    answers.seconds["predicted_s"][rows] = found.time_s
    answers.bytes["hbm_read_bytes"][rows] = np.round(closed.work.hbm_read_bytes)
    answers.bytes["hbm_write_bytes"][rows] = np.round(closed.work.hbm_write_bytes)
    answers.texts["trust"].put(rows, NOT_PLAYED)
    named = (
        ("bound", BOUNDS, found.bound),
        ("used_implementation", [item.record.name for item in closed.plans], closed.which),
    )
    for name, names, which in named:
        texts = answers.texts[name]
        texts.codes[rows] = np.array([texts.code(text) for text in names], dtype=np.int64)[which]
    if study.method == CLOSED_FORM:
        return np.zeros(points.count, dtype=bool)
    return doubtful(study, points, closed, replays)


def doubtful(study: Study, points: Points, closed: Closed, replays: int | None) -> NDArray[np.bool_]:
    """The points to be replayed: the most uncertain, `replays` of them at most."""
    doubt = np.zeros(points.count)
    doubt[closed.rows] = uncertainty(closed)
    tiles, code = field_values(points, "tile", "shipped")
    doubt[np.array([tile == "retuned" for tile in tiles])[code]] = np.inf  # the best tile is found by replays alone
    order = np.argsort(-doubt, kind="stable")[: int((doubt > 1).sum())]
    chosen = np.zeros(points.count, dtype=bool)
    chosen[order if replays is None else order[:replays]] = True
    return chosen


def _table(study: Study, points: Points, answers: _Answers, replayed: NDArray[np.bool_]) -> pa.Table:
    import pyarrow as pa

    columns: dict[str, pa.Array] = {"point": pa.array(np.arange(points.first, points.first + points.count))}
    columns |= _asked(study, points)
    columns["method"] = _named([CLOSED_FORM, REPLAY], replayed)
    return pa.table(columns | answers.arrays())


def _asked(study: Study, points: Points) -> dict[str, pa.Array]:
    """What each point asks: GPU, figures, algorithm, workload."""
    import pyarrow as pa

    found: dict[str, pa.Array] = {}
    rates = figures(points)
    for column in points.columns.values():
        axis = column.axis
        if axis.kind in ("gpu", "shape"):
            found[axis.name] = _named(list(axis.labels), column.codes)
        elif axis.kind == "choice":
            found[axis.name] = _named(list(column.values), column.codes)
        elif axis.kind == "change":
            found[axis.name] = pa.array(rates[axis.name] if axis.name in rates else _figure(points, axis.name))
    for name, default in (("passes", "fwd"), ("dtype", "bf16"), ("mask", "full")):
        values, codes = field_values(points, name, default)
        found["pass" if name == "passes" else name] = _named([str(value) for value in values], codes)
    values, codes = field_values(points, "dropout", False)
    found["dropout"] = pa.array(np.array(values, dtype=bool)[codes])
    found |= {name: pa.array(values) for name, values in counts(points).items()}
    still = np.zeros(points.count, dtype=np.int64)
    return found | {"cache": _named([study.cache], still), "launch": _named([study.launch], still)}


def _figure(points: Points, key: str) -> NDArray[np.float64]:
    """A figure that no closed form reads, at each point."""
    column = points.columns[key]
    values = column.array().astype(np.float64)
    if not column.axis.multiple:
        return values
    gpus = points.columns["gpu"]
    scaled = np.array([gpu.get(key) for gpu in gpus.values])[gpus.codes] * values
    return np.round(scaled) if FIELDS[key].integer else scaled


def _named(names: list[str], codes: NDArray[Any]) -> pa.Array:
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(names, type=pa.string()))
