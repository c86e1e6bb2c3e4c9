"""The study file of a report: that of a sweep, with a question, a date and a choice of pictures."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from attnsim.api.adapting.own import OwnTimings
from attnsim.errors import InputError, nearest, shown
from attnsim.files import read_yaml
from attnsim.models.question.workload import Workload
from attnsim.studies.points import Point, point
from attnsim.studies.study import Study, read_at
from attnsim.studies.study_file import study_of

PICTURES = ("roofline", "units", "timeline")
MOST_POINTS = 48
"""Most points of a study: each is replayed and gets a line, and more would not be read."""
MOST_WORKLOADS = 6
"""Different workloads: each gets its own table and pictures."""
LONGEST = {"title": 200, "question": 4000, "date": 100}


@dataclass(frozen=True, slots=True)
class ReportStudy:
    """A study with the question that a report answers.

    Parameters
    ----------
    study : Study
    question, date : str
        As the author wrote them; "" where nothing was.
    pictures : tuple of str
        Of `PICTURES`.
    name : str
        Of the file.
    text : str
        All of the file.
    own : OwnTimings or None
        Timings by which its answers are corrected.
    """

    study: Study
    question: str
    date: str
    pictures: tuple[str, ...]
    name: str
    text: str
    own: OwnTimings | None = None

    @property
    def title(self) -> str:
        """Title of the report."""
        return self.study.title or "Predicted attention"

    @property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Case:
    """One workload and everything that is asked about it.

    Parameters
    ----------
    name : str
        In a word or two, what tells it from the others; "" where it is the only one and the study does not name it.
    label : str
        The whole workload, with the name that the study gives it.
    workload : Workload
    questions : tuple of Point
        Unchanged GPUs before those made of them.
    """

    name: str
    label: str
    workload: Workload
    questions: tuple[Point, ...]


def read_report_study(path: str | Path) -> ReportStudy:
    """Read a study file of a report.

    Parameters
    ----------
    path : str or Path
        YAML with the keys of :func:`attnsim.studies.read_study`, and ``question``, ``date`` and ``pictures``.

    Raises
    ------
    InputError
        One line naming the file, the key, what was given and what is allowed.
    """
    path = Path(path)
    return read_at(f"{path.name}:", partial(_read, path), read_yaml(path, "study"))


def _read(path: Path, content: object) -> ReportStudy:
    own = {}
    if isinstance(content, Mapping):
        own = {key: content[key] for key in ("question", "date", "pictures") if key in content}
        content = {key: value for key, value in content.items() if key not in own}
    study = study_of(content)
    if study.kernels:
        raise InputError(
            "kernel is not for a report, which compares algorithms; take attnsim sweep, or predict --kernel"
        )
    if len(study) > MOST_POINTS:
        raise InputError(
            f"the study has {len(study):,} points; a report holds {MOST_POINTS}: take fewer values, or attnsim sweep"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})") from None
    asked = ReportStudy(
        study=study,
        question=_text("question", own.get("question", "")),
        date=_text("date", own.get("date", "")),
        pictures=_pictures(own.get("pictures", list(PICTURES))),
        name=path.name,
        text=text,
    )
    cases(asked)
    return asked


def _text(key: str, given: object) -> str:
    if not isinstance(given, (str, int, float)) and type(given).__name__ != "date":
        raise InputError(f"{key} is {shown(given)}; write a text")
    text = str(given).strip()
    if len(text) > LONGEST[key]:
        raise InputError(f"{key} has {len(text)} letters; allowed: {LONGEST[key]}")
    return text


def _pictures(given: object) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list):
        raise InputError(f"pictures is {shown(given)}; write a list of {', '.join(PICTURES)}; [] for none")
    for name in names:
        if name not in PICTURES:
            raise InputError(f"pictures names {shown(name)}; {nearest(str(name), PICTURES)}")
    return tuple(name for name in PICTURES if name in names)


def cases(asked: ReportStudy) -> tuple[Case, ...]:
    """The study's points by workload.

    A GPU that is changed is set beside the unchanged one, both on the tile that the code ships and, unless the study
    names tiles itself, on the best that fits.

    Raises
    ------
    InputError
        When a workload is impossible, or there are too many.
    """
    points = asked.study.columns(0, len(asked.study))
    tiles = next(axis.values for axis in asked.study.axes if axis.name == "tile")
    shapes = next((axis for axis in asked.study.axes if axis.kind == "shape"), None)
    grouped: dict[Workload, list[Point]] = {}
    labels: dict[Workload, str] = {}
    for row in range(points.count):
        one = point(points, row)
        w = one.workload()
        grouped.setdefault(w, []).append(one)
        if shapes is not None:
            labels.setdefault(w, shapes.labels[int(points.columns["shape"].codes[row])])
    if len(grouped) > MOST_WORKLOADS:
        raise InputError(f"the study has {len(grouped)} workloads; a report holds {MOST_WORKLOADS}: take fewer values")
    return tuple(
        Case(
            labels.get(w) or _apart(w, grouped),
            f"{labels[w]}: {w}" if w in labels else str(w),
            w,
            tuple(_completed(found, tiles == ("shipped",))),
        )
        for w, found in grouped.items()
    )


def _apart(w: Workload, others: Iterable[Workload]) -> str:
    """The words of a workload that not all have."""
    every = [str(one).split(", ") for one in others]
    return ", ".join(part for part in str(w).split(", ") if not all(part in words for words in every))


def _completed(found: Iterable[Point], retune: bool) -> list[Point]:
    """The questions with their unchanged GPUs first, and with retuned tiles where they are wanted."""
    every: list[Point] = []
    for one in map(_without_idle_changes, found):
        wanted = [replace(one, changes=()), one]
        if retune and one.changes:
            wanted += [replace(other, tile="retuned") for other in wanted]
        for other in wanted:
            if other not in every:
                every.append(other)
    order = {gpu.id: number for number, gpu in enumerate(dict.fromkeys(one.base for one in every))}
    gpus = list(dict.fromkeys((order[one.base.id], bool(one.changes), one.changes) for one in every))
    place = {gpu: number for number, gpu in enumerate(sorted(gpus, key=lambda item: item[:2]))}
    return sorted(every, key=lambda one: place[order[one.base.id], bool(one.changes), one.changes])


def _without_idle_changes(one: Point) -> Point:
    """The question about the unchanged GPU where its changes ("1x") change nothing."""
    try:
        gpu = one.gpu()
    except InputError:  # the answer will say why
        return one
    return one if gpu.changes else replace(one, changes=())
