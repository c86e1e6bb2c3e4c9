"""The answers that a report prints: predictions, explanations and traces of every workload of its study."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from attnsim.api import predict
from attnsim.api.answer import Outcome
from attnsim.api.comparing.ratios import Ratio
from attnsim.api.explaining import Explanation, explain
from attnsim.api.tables import one_line
from attnsim.api.tracing import trace
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Change, Gpu, Marks, marks
from attnsim.models.mechanisms import find_mechanism
from attnsim.reports.asking import Case, ReportStudy, cases
from attnsim.simulator.trace import Trace
from attnsim.studies.points import Point

Progress = Callable[[], None]
"""Says that one step is done."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One question with what was predicted, or why nothing was.

    Parameters
    ----------
    number : int
        From 1 within its case, as in the roofline; 0 where nothing was predicted.
    question : Point
    gpu : Gpu or None
        With its changes; None where they are impossible.
    prediction : Answer, TooLarge or None
    error : str
    """

    number: int
    question: Point
    gpu: Gpu | None
    prediction: Outcome | None
    error: str = ""

    @property
    def time_s(self) -> float | None:
        """Time of the call, where it fits the memory."""
        return self.prediction.time_s if self.prediction else None

    @property
    def exact(self) -> bool:
        """True if softmax attention is computed, and not something near it."""
        return find_mechanism(self.question.algorithm).exact

    @property
    def machine(self) -> str:
        """The GPU in words."""
        return machine_name(self.gpu.id, self.gpu.changes) if self.gpu else f"{self.question.base.id}, changed"


@dataclass(frozen=True, slots=True)
class Answered:
    """A case with its answers.

    Parameters
    ----------
    case : Case
    answers : tuple of Answer
    same_tile : tuple of str
        Retuned predictions left out because the shipped tile is the best.
    explanations : tuple of Explanation
        Of the fastest exact algorithm on each GPU, on the tile that its code ships where that fits.
    traces : tuple of (Answer, Trace)
        The best gain's call before and after it; of one GPU alone each algorithm.
    names : mapping of Gpu to str
        Short ones, the same in all cases of a report.
    """

    case: Case
    answers: tuple[Answer, ...]
    same_tile: tuple[str, ...]
    explanations: tuple[Explanation, ...]
    traces: tuple[tuple[Answer, Trace], ...]
    names: Mapping[Gpu, str] = field(default_factory=dict)

    @property
    def predictions(self) -> list[Outcome]:
        """In the order of their numbers."""
        return [one.prediction for one in self.answers if one.prediction is not None]

    @property
    def machines(self) -> list[Gpu]:
        """GPUs with a prediction, in order."""
        return machines_of(self.answers)

    @property
    def gains(self) -> list[Gain]:
        """The gain of each GPU, in their order."""
        return gains(self.answers)

    @property
    def marked(self) -> Marks:
        """The changes of each changed GPU of the report."""
        return {(gpu.id, gpu.changes): name.removeprefix(gpu.id) for gpu, name in self.names.items()}

    def machine(self, found: Outcome) -> str:
        """Short name of a prediction's GPU."""
        return next(name for gpu, name in self.names.items() if (gpu.id, gpu.changes) == (found.gpu, found.changes))


@dataclass(frozen=True, slots=True)
class Report:
    """A study with all its answers."""

    asked: ReportStudy
    cases: tuple[Answered, ...]

    @property
    def machines(self) -> list[Gpu]:
        """GPUs of all cases."""
        return list(dict.fromkeys(gpu for case in self.cases for gpu in case.machines))

    @property
    def names(self) -> dict[Gpu, str]:
        """Short names of all GPUs."""
        return labels(self.machines)


@dataclass(frozen=True, slots=True)
class Gain:
    """A call on two GPUs.

    Parameters
    ----------
    before, after : Answer
        On the GPU that is compared with, and on the one that was asked about.
    ratio : Ratio
    """

    before: Answer
    after: Answer
    ratio: Ratio


def machines_of(answers: Sequence[Answer]) -> list[Gpu]:
    """GPUs with a prediction, in order."""
    return list(dict.fromkeys(one.gpu for one in answers if one.gpu is not None and one.prediction))


def labels(gpus: Sequence[Gpu]) -> dict[Gpu, str]:
    """Short names of GPUs, as the pictures have them: a changed one with a star, several with letters."""
    found = marks((gpu.id, gpu.changes) for gpu in gpus)
    return {gpu: gpu.id + found.get((gpu.id, gpu.changes), "") for gpu in gpus}


def machine_name(gpu: str, changes: Sequence[Change]) -> str:
    """A GPU in words: its id and what was changed, without what it was before."""
    return ", ".join((gpu, *(change.setting for change in changes)))


def steps(asked: ReportStudy) -> int:
    """Steps of `answer`, for a progress bar."""
    return sum(len(case.questions) + 2 for case in cases(asked))


def answer(asked: ReportStudy, done: Progress = lambda: None) -> Report:
    """Predict, explain and trace everything that a report shows.

    Parameters
    ----------
    asked : ReportStudy
    done : callable, optional
        Called after each of `steps`.

    Raises
    ------
    InputError
        When no point of the study can be answered.
    """
    found = [_answered(case, asked, done) for case in cases(asked)]
    report = Report(asked, tuple(found))
    report = replace(report, cases=tuple(replace(case, names=report.names) for case in found))
    if not any(case.predictions for case in report.cases):
        first = next(one.error for case in report.cases for one in case.answers)
        raise InputError(f"{asked.name}: none of the points can be answered; the first: {first}")
    return report


def _answered(case: Case, asked: ReportStudy, done: Progress) -> Answered:
    answers: list[Answer] = []
    same: list[str] = []
    for one in case.questions:
        found = _predicted(one, asked, 1 + sum(other.prediction is not None for other in answers))
        if one.tile == "retuned" and (what := _without_gain(found, answers)) is not None:
            same += [what] if what else []
        else:
            answers.append(found)
        done()
    explanations = tuple(_explanations(answers, asked))
    done()
    traces = tuple(_traces(answers, asked)) if "timeline" in asked.pictures else ()
    done()
    return Answered(case, tuple(answers), tuple(dict.fromkeys(same)), explanations, traces)


def _predicted(one: Point, asked: ReportStudy, number: int) -> Answer:
    gpu = None
    try:
        gpu = one.gpu()
        found = predict(
            one.workload(), gpu, one.algorithm, implementation=one.implementation, **_conditions(one, asked)
        )
    except InputError as error:
        return Answer(0, one, gpu, None, one_line(error))
    return Answer(number, one, gpu, found)


def _conditions(one: Point, asked: ReportStudy) -> dict[str, Any]:
    return {**one.tiles(), "cache": asked.study.cache, "launch": asked.study.launch, "calibration": asked.own}


def _without_gain(found: Answer, before: Sequence[Answer]) -> str | None:
    """Why a retuned prediction needs no line of its own, "" for a reason nobody asks for; None where it needs one."""
    if found.prediction is None or found.prediction.tiles != "retuned":
        return ""
    for other in before:
        if other.prediction is None or other.gpu != found.gpu:
            continue
        same = (other.prediction.implementation, other.prediction.tile)
        if same == (found.prediction.implementation, found.prediction.tile):
            return f"{found.question.algorithm} on {found.machine}: the shipped tile is the best that fits"
    return None


def base_of(one: Answer, answers: Sequence[Answer]) -> Answer | None:
    """The answer for the unchanged GPU, on a tile chosen in the same way if there is one."""
    if one.prediction is None or not one.question.changes:
        return None
    same = [
        other
        for other in answers
        if other.prediction is not None
        and other.question.base == one.question.base
        and not other.question.changes
        and other.question.algorithm == one.question.algorithm
        and other.question.implementation == one.question.implementation
    ]
    alike = [other for other in same if other.question.tile == one.question.tile]
    return next(iter(alike or same), None)


def fastest(answers: Sequence[Answer]) -> Answer | None:
    """The fastest exact one, else the fastest; on GPUs that exist only tiles that exist."""
    timed = [
        one for one in answers if one.time_s is not None and (one.question.changes or one.question.tile != "retuned")
    ]
    exact = [one for one in timed if one.exact]
    return min(exact or timed, key=lambda one: one.time_s or 0.0, default=None)


def compared_with(one: Answer, answers: Sequence[Answer]) -> Answer | None:
    """The call on the unchanged GPU; for a GPU that exists, on the first GPU."""
    if one.question.changes:
        return base_of(one, answers)
    first = next((other.gpu for other in answers if other.prediction is not None), None)
    alike = (
        other
        for other in answers
        if other.gpu == first != one.gpu
        and other.prediction is not None
        and (other.question.algorithm, other.question.tile) == (one.question.algorithm, one.question.tile)
    )
    return next(alike, None)


def gains(answers: Sequence[Answer]) -> list[Gain]:
    """The gain of each GPU: a changed one for the call that is fastest without the change, others for the fastest."""
    found = []
    machines = machines_of(answers)
    for gpu in machines[1:]:
        here = [one for one in answers if one.gpu == gpu]
        if gpu.changes:
            before = fastest([one for one in answers if one.gpu and one.gpu.id == gpu.id and not one.gpu.changes])
            after = next((one for one in here if before is not None and base_of(one, answers) is before), None)
        else:
            before, after = fastest([one for one in answers if one.gpu == machines[0]]), fastest(here)
        if before is None or after is None or before.prediction is None or after.prediction is None:
            continue
        ratio = after.prediction.speedup_over(before.prediction)
        if ratio is not None:
            found.append(Gain(before, after, ratio))
    return found


def _explanations(answers: Sequence[Answer], asked: ReportStudy) -> list[Explanation]:
    found = []
    for gpu in dict.fromkeys(one.gpu for one in answers if one.gpu is not None):
        here = [one for one in answers if one.gpu == gpu]
        best = fastest([one for one in here if one.question.tile != "retuned"]) or fastest(here)
        if best is not None and best.prediction is not None:
            w = best.prediction.workload
            used = best.prediction.implementation
            found.append(
                explain(w, gpu, best.question.algorithm, implementation=used, **_conditions(best.question, asked))
            )
    return found


def _traces(answers: Sequence[Answer], asked: ReportStudy) -> list[tuple[Answer, Trace]]:
    """The call of the best gain on both GPUs, of one GPU alone each algorithm; on shipped tiles, which are traced."""
    shipped = [one for one in answers if one.question.tile == "shipped" and one.time_s is not None]
    best = max(gains(shipped), key=lambda one: one.ratio.value, default=None)
    if best is not None:
        wanted = [best.before, best.after]
    else:
        wanted = list({one.question.algorithm: one for one in reversed(shipped) if one.gpu == shipped[0].gpu}.values())
        wanted.reverse()
    return [(one, _traced(one.prediction, one.gpu, asked)) for one in wanted if one.prediction and one.gpu]


def _traced(one: Outcome, gpu: Gpu, asked: ReportStudy) -> Trace:
    return trace(
        one.workload,
        gpu,
        one.algorithm,
        implementation=one.implementation,
        cache=asked.study.cache,
        launch=asked.study.launch,
        calibration=asked.own,
        sms=1,
    )
