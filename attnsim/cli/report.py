"""`attnsim report`: a study's question and its answer as one page."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from attnsim.api.asking import read_conditions
from attnsim.cli import options, outputs, progress, show
from attnsim.cli.options import flag
from attnsim.reports.answers import answer, steps
from attnsim.reports.asking import read_report_study
from attnsim.reports.headline import changes, headline
from attnsim.reports.page import document_of, draw, parts
from attnsim.reports.sentences import short_answer
from attnsim.reports.writing import check_out, write_document


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
    written = [file for path, document in zip(out, documents, strict=True) for file in write_document(document, path)]
    if json:
        show.print_json([*parts(found), {"part": "files", "written": [str(path) for path in written]}])
        return

    print(f"{asked.title}\n")
    for line in (*headline(found), *changes(found)):
        print(textwrap.fill(line, show.WIDTH))
    print()
    for case in found.cases:
        print(case.case.label)
        for line in short_answer(case):
            print(textwrap.fill(line, show.WIDTH, initial_indent="  ", subsequent_indent="  "))
        print()
    print(f"written: {', '.join(map(str, written))}")
