"""The parts of a report as plain objects, for `--json`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import attnsim
from attnsim.reports.answers import Report
from attnsim.reports.hardware import figure_lines
from attnsim.reports.sentences import bound_sentences, short_answer
from attnsim.reports.trusting import applying, calibrations_used, files_used, residuals, uses


def parts(report: Report) -> list[dict[str, Any]]:
    """One object for each thing that a report says, its kind under "part"."""
    asked, found = report.asked, uses(report.cases)
    out: list[dict[str, Any]] = [
        {"part": "question", "title": asked.title, "question": asked.question, "date": asked.date}
    ]
    differing, rest = figure_lines(report.machines)
    for lines, differs in ((differing, True), (rest, False)):
        out += [{"part": "figure", "differs": differs, **asdict(line)} for line in lines]
    for case in report.cases:
        label = {"case": case.case.label}
        out += [{"part": "answer", **label, "text": text} for text in short_answer(case)]
        for one in case.answers:
            about = {"number": one.number, "tile": one.question.tile, "error": one.error}
            predicted = one.prediction.to_dict() if one.prediction else {}
            out.append({"part": "prediction", **label, **about, **predicted})
        out += [
            {"part": "bound", **label, "text": " ".join(bound_sentences(one)), **one.to_dict()}
            for one in case.explanations
        ]
    for calibration in calibrations_used(found):
        held = {"calibration": [calibration.implementation, calibration.architecture], "splits": residuals(calibration)}
        out.append({"part": "errors", **held, **asdict(calibration.held_out)})
    out += [{"part": "gap", **{**asdict(one), "check": dict(one.check)}} for one in applying(found)]
    out.append({"part": "versions", "attnsim": attnsim.__version__, "study": asked.digest, **files_used(found)})
    return out
