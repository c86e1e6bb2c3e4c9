"""`attnsim report`: a study's question and its answer as one page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from attnsim.api.asking import read_conditions
from attnsim.cli import options, outputs, progress, show
from attnsim.cli.options import flag
from attnsim.reports.answers import answer, steps
from attnsim.reports.asking import read_report_study
from attnsim.reports.headline import changes, headline, short_answer
from attnsim.reports.page import check_out, document_of, draw, parts, write_document
from attnsim.tables import WIDTH, Block, folded, written


def report(
    study: Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="As for sweep, with a question; few points.")],
    out: Annotated[list[Path], flag("FILE", "Page, .html or .md; repeat it for both.")] = [  # noqa: B006 Typer copies it
        Path("report.html")
    ],
    calibration: options.Calibration = None,
    json: options.Json = False,
) -> None:
    """Answer a study in a page that can be judged and repeated: predictions, pictures, sources, errors."""
    for path in out:
        check_out(path)
        outputs.check_output(path)
    asked = replace(read_report_study(study), own=read_conditions(calibration=calibration).own)
    with progress.steps("answering", steps(asked)) as advance:
        found = answer(asked, advance)
    with progress.steps("drawing", len(found.cases)) as advance:
        drawn = draw(found, advance)
    documents = [document_of(found, drawn, path.name) for path in out]
    files = [file for path, document in zip(out, documents, strict=True) for file in write_document(document, path)]
    last = {"part": "files", "written": [str(path) for path in files]}

    def blocks() -> Iterator[Block]:
        yield f"{asked.title}\n"
        yield from (*headline(found), *changes(found), "")
        for case in found.cases:
            yield case.case.label
            yield from (textwrap.indent(folded(line, WIDTH - 2), "  ") for line in short_answer(case))
            yield ""
        yield from written(files)

    show.give(json, [*parts(found), last], blocks())
