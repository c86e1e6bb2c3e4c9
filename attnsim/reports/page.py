"""The document: what stands in a report, in which order."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import attnsim
from attnsim.api.answer import Outcome
from attnsim.api.cells import cells
from attnsim.api.comparing.baselines import UNCHANGED, UNFUSED
from attnsim.api.comparing.levers import BETTER
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import changes_text
from attnsim.plots.document import (
    Block,
    Bullets,
    Details,
    Document,
    Paragraph,
    Picture,
    Section,
    html_text,
    markdown_text,
    pictures_of,
)
from attnsim.reports import pictures
from attnsim.reports.answers import Answer, Answered, Report, base_of
from attnsim.reports.evidence import (
    FigureLine,
    applying,
    calibrations_used,
    error_blocks,
    figure_lines,
    files_used,
    repeat_blocks,
    residuals,
    uses,
)
from attnsim.reports.explanations import anew_sentences, bound_sentences, levers_table
from attnsim.reports.headline import answer_table, changes, headline, short_answer
from attnsim.reports.predictions import TEXTS, caption
from attnsim.tables import Table
from attnsim.wording import NOTHING, ratio_text
from attnsim.writing import write_whole, writing

Progress = Callable[[], None]
Blocks = list[Block | Section]


Drawn = dict[str, list[Picture]]
"""Pictures by the address of their section."""


def draw(report: Report, done: Progress = lambda: None) -> Drawn:
    """The pictures that the study asks for.

    Parameters
    ----------
    report : Report
    done : callable, optional
        Called after each case.
    """
    made: dict[str, tuple[str, Callable[[Answered, str], list[Picture]]]] = {
        "rooflines": ("roofline", pictures.roofline_pictures),
        "busy": ("units", pictures.units_pictures),
        "timelines": ("timeline", pictures.timeline_pictures),
    }
    found: Drawn = {ident: [] for ident in made}
    for place, case in enumerate(report.cases, 1):
        for ident, (name, drawn_of) in made.items():
            if name in report.asked.pictures and case.predictions:
                found[ident] += drawn_of(case, f"{name}-{place}")
        done()
    return found


def parts(report: Report) -> list[dict[str, Any]]:
    """The report as plain objects, one for each thing that it says, its kind under "part"."""
    asked, found = report.asked, uses(report.cases)
    out: list[dict[str, Any]] = [
        {"part": "question", "title": asked.title, "question": asked.question, "date": asked.date}
    ]
    out += [{"part": "headline", "text": line} for line in headline(report)]
    out += [
        {"part": "gpu", "name": name, "gpu": gpu.id, "changes": changes_text(gpu.changes)}
        for gpu, name in report.names.items()
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


def document_of(report: Report, drawn: Drawn, out: str = "report.html") -> Document:
    """The report as a document.

    Parameters
    ----------
    report : Report
    drawn : mapping of str to list of Picture
        From `draw`.
    out : str
        Name of the file, for the command that makes it again.
    """
    asked, found = report.asked, uses(report.cases)
    lead: list[Block] = [Paragraph(text) for text in (asked.question, asked.date) if text]
    lead += [Paragraph(line, strong=True) for line in headline(report)]
    if changed := changes(report):
        lead.append(Bullets(tuple(changed)))
    sections = [Section("answer", "The short answer", (answer_table(report),))]
    for ident, title in (("rooflines", "Rooflines"), ("busy", "What is busy"), ("timelines", "Timelines")):
        if drawn.get(ident):
            sections.append(Section(ident, title, tuple(drawn[ident])))
    sections += [
        Section("words", "In words, and how far to trust it", _by_case(report, "words", _words)),
        Section("errors", "How wrong these predictions are", tuple(error_blocks(found))),
        Section("predictions", "Predictions", _by_case(report, "predictions", _predictions)),
        Section("bounds", "What bounds it, and what would move the bound", _by_case(report, "bounds", _bounds)),
        Section("hardware", "The hardware", tuple(_hardware(report))),
        Section("again", "How to make this report again", tuple(repeat_blocks(report.asked, found, out))),
    ]
    return Document(asked.title, tuple(lead), tuple(sections), f"Made by attnsim {attnsim.__version__}.")


def _by_case(report: Report, ident: str, blocks: Callable[[Answered], Sequence[Block]]) -> tuple[Block | Section, ...]:
    """Blocks of each case, under a heading of their own where there are several."""
    if len(report.cases) == 1:
        only = report.cases[0]
        return (Paragraph(f"{only.case.label}."), *blocks(only))
    return tuple(
        Section(f"{ident}-{place}", one.case.label, tuple(blocks(one))) for place, one in enumerate(report.cases, 1)
    )


def _words(case: Answered) -> list[Block]:
    return [Bullets(tuple(short_answer(case)))] if case.predictions else [Paragraph("No point could be answered.")]


def _hardware(report: Report) -> Blocks:
    gpus = report.machines
    first, rest = figure_lines(gpus)
    blocks: Blocks = [
        Paragraph(
            "Kinds: datasheet, the vendor's document; measured; derived, arithmetic on other figures; assumed, a rule "
            "or a value chosen by whoever asked."
        )
    ]
    caption = "Figures that differ" if len(gpus) > 1 else f"Figures of {gpus[0].id} that times are computed from"
    if any(gpu.changes for gpu in gpus):
        caption += "; a changed GPU is named where it differs from the unchanged one"
    blocks.append(_figures(caption, first))
    if rest:
        summary = "All other figures" if len(gpus) == 1 else "All other figures, of equal value on all GPUs"
        blocks.append(Details(summary, (_figures("Other figures", rest),)))
    return blocks


def _figures(caption: str, lines: Sequence[FigureLine]) -> Table:
    """Lines with the GPUs they are about, where a figure has several."""
    count = Counter(one.figure for one in lines)
    owned = max(count.values()) > 1
    rows = [
        {"figure": one.figure}
        | ({"GPU": "all" if count[one.figure] == 1 else ", ".join(one.gpus)} if owned else {})
        | {"value": one.value, "kind": one.kind, "source": one.source}
        for one in lines
    ]
    return Table(caption, rows, right=("value",), heads=1 + owned)


def _predictions(case: Answered) -> list[Block]:
    answered = [(one, one.prediction) for one in case.answers if one.prediction is not None]
    failed = [
        f"Not answered: {one.question.algorithm} on {one.machine}: {one.error}" for one in case.answers if one.error
    ]
    if not answered:
        return [Bullets(tuple(failed))]
    changed = any(found.changes for _, found in answered)
    rows = [_row(one, found, case, changed) for one, found in answered]
    over = [UNFUSED, *([UNCHANGED] if changed else [])]
    meaning = caption(case.case.workload, over, {found.algorithm for _, found in answered}, retuned=changed)
    blocks: list[Block] = [
        Table(
            "Predicted times, and the range in which nine of ten are expected",
            rows,
            right=rows[0].keys() - set(TEXTS),
            heads=3,
            remarks=[f"{meaning} busiest: the busiest unit of the longest kernel."],
        ),
        Table(
            "Whose kernels, on which tile, and why each is trusted so far",
            [_grounds(*one) for one in answered],
            right=("no.",),
        ),
    ]
    notes = list(dict.fromkeys(note for _, found in answered for note in found.notes))
    if [*failed, *case.same_tile, *notes]:
        blocks.append(Bullets((*failed, *case.same_tile, *notes)))
    return blocks


def _row(one: Answer, found: Outcome, case: Answered, changed: bool) -> dict[str, object]:
    base = base_of(one, case.answers)
    ratio = found.speedup_over(base.prediction) if base and base.prediction else None
    return {
        "no.": str(one.number),
        "GPU": case.names[one.gpu] if one.gpu else "",
        "algorithm": f"{found.algorithm}{'' if found.tiles == 'shipped' else f', {found.tiles}'}",
        **cells(found, "time", "90 % range"),
        f"vs {UNFUSED}": ratio_text(found.speedup_vs_naive, found.speedup_vs_naive_low, found.speedup_vs_naive_high),
        **({f"vs {UNCHANGED}": str(ratio or NOTHING)} if changed else {}),
        **cells(found, "HBM GB", "TFLOP/s", "busiest", "trust"),
    }


def _grounds(one: Answer, found: Outcome) -> dict[str, str]:
    named = {"no.": str(one.number), "implementation": found.implementation, "tile": found.tile or NOTHING}
    return named | {"trust": found.trust.level, "reasons": found.trust.reason}


def _bounds(case: Answered) -> list[Block]:
    blocks: list[Block] = []
    for found in case.explanations:
        one = found.prediction
        what = f"{one.algorithm} ({one.implementation}) on {case.machine(one)}"
        title = f"{what}: units, and the speedup with each figure {BETTER:g} times as good (a latency half as long)"
        table = levers_table(found.levers, title)
        blocks.append(Paragraph(f"{what}. {' '.join((*bound_sentences(found), *anew_sentences(found)))}"))
        blocks.append(Details("Figure by figure", (table,)) if one.changes else table)
    return blocks or [Paragraph("Nothing fits the memory.")]


SUFFIXES = (".html", ".htm", ".md")


def check_out(out: Path) -> None:
    """Refuse a file that is no page."""
    if out.suffix.lower() not in SUFFIXES:
        raise InputError(f"--out {out}: end the name with {', '.join(SUFFIXES)}, which choose the format")


def write_document(document: Document, out: Path) -> list[Path]:
    """Write a document in the format that the file's name asks for.

    Parameters
    ----------
    document : Document
    out : Path
        ``.html``, or ``.md`` with pictures in ``NAME_files`` beside it.

    Returns
    -------
    list of Path
        What was written.

    Raises
    ------
    InputError
        For another suffix, or when it cannot be written.
    """
    check_out(out)
    if out.suffix.lower() != ".md":
        write_whole(out, html_text(document))
        return [out]
    folder = out.with_name(f"{out.stem}_files")
    text, files = markdown_text(document, folder.name), {}
    for picture in pictures_of(document.sections):
        files[f"{picture.name}.png"] = picture.images[-1].data
        if picture.table:
            files[f"{picture.name}.csv"] = picture.table
    new = bool(files) and not folder.exists()
    try:
        with contextlib.ExitStack() as opened:  # nothing takes its name before all of it is written, the page last
            opened.enter_context(writing(out)).write_text(text, encoding="utf-8")
            if files:
                folder.mkdir(exist_ok=True)
            for name, data in files.items():
                opened.enter_context(writing(folder / name)).write_bytes(data)
    except InputError:
        if new:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return [out, *(folder / name for name in files)]
