"""`attnsim check` and `adapt`: your own timings beside predictions, and answers that are corrected by them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from attnsim import wording
from attnsim.api.adapting.adapt import Adapted, script
from attnsim.api.adapting.adapt import adapt as adapted
from attnsim.api.adapting.adapt import suggest as suggested
from attnsim.api.checking import Accuracy, Check
from attnsim.api.checking import check as run
from attnsim.api.tables import AnsweredRow
from attnsim.cli import options, outputs, show, table_flags
from attnsim.cli.look import Plot
from attnsim.cli.options import flag, switch
from attnsim.cli.question_flags import asking
from attnsim.errors import InputError, some
from attnsim.models.question.case_file import write_table
from attnsim.plots.check import check as picture
from attnsim.tables import Block, Table, texts, written


@asking()
def check(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="CSV or Parquet: a call a line, columns named freely.")
    ],
    *,
    columns: table_flags.ColumnFlags,
    gpu: Annotated[str | None, flag("ID", "GPU of all rows, whatever the table says.")] = None,
    implementation: Annotated[str | None, flag("NAME", "Whose kernels all rows are, whatever the table says.")] = None,
    calibration: options.Calibration = None,
    out: Annotated[Path | None, flag("FILE", "The table with the predictions, CSV or Parquet.")] = None,
    apply: Annotated[
        Path | None, flag("FILE", "A copy of the table with the columns set as the likeliest reasons say.")
    ] = None,
    plot: Plot,
    json: options.Json = False,
) -> None:
    """Compare your own timings with predictions: error and 90 % range of each row, bias and coverage of all.

    Ends with 0 if every row was answered, 1 if some were not, or cannot be right, 2 if the table cannot be read.
    """
    naming = columns.naming(gpu, implementation)
    if out is not None:
        table_flags.check_table(out)
    if apply is not None:
        table_flags.check_table(apply)
        if apply.resolve() == table.resolve():
            raise InputError(f"--apply {apply} is the table itself, which is never changed; give another name")

    found = run(
        table,
        maps=naming.maps,
        time_unit=naming.time_unit,
        gpu=gpu,
        implementation=implementation,
        cells=naming.cells,
        calibration=calibration,
    )
    files = []
    if out is not None:
        write_table(found.rows, out)
        files.append(out)
    files += plot.draw(lambda: picture(found))
    if apply is not None and found.audit.reasons:
        write_table(found.audit.mended(), apply)
        files.append(apply)
    files += columns.save(found.columns, naming)
    show.give(json, found.to_dicts(), chain(_blocks(found), written(files)))
    if apply is not None and not found.audit.reasons:
        print(f"--apply {apply}: not written, because no reason is named", file=sys.stderr)
        raise typer.Exit(1)
    if found.left_out:
        raise typer.Exit(1)


def _blocks(found: Check) -> Iterator[Block]:
    heads = {"column": "column", "read_as": "read as", "unit": "unit"}
    yield Table("Columns", texts(found.columns.table(), {}, heads), whole=("column",))
    same, questions = found.question
    shared = [f"{name} {cell}" for name, cell in same.items() if cell]
    if shared:
        yield f"all rows: {', '.join(shared)}\n"
    lines: list[dict[str, object]] = [{found.line_name: str(line)} for line, _ in found.lines]
    answers = [_answer(row) for row in found.answered]
    names = {one.theirs for one in found.columns.columns if one.is_name} | {"inside", "trust"}

    def table(*parts: Sequence[Mapping[str, object]]) -> Table:
        rows = [dict(chain.from_iterable(one.items() for one in row)) for row in zip(lines, *parts, strict=True)]
        return Table("", rows, right=rows[0].keys() - names, whole=rows[0])

    asked = table(questions, answers)  # what was answered stands in the first part where there are several
    yield asked if show.fits(show.console(), asked) else table(answers, questions)
    if found.accuracy:
        several = any(one.gpu for one in found.accuracy)
        parts = [_accuracy(one, several) for one in found.accuracy]
        yield Table("Predicted against measured", parts, right=_NUMBERS)
    if found.doubt:
        yield found.doubt
    yield from found.audit.lines
    if found.taken:
        yield f"names: {', '.join(f'{given} is {name}' for given, name in found.taken)}"
    for lines_of, of_them in sorted(found.assumed.items(), key=lambda item: len(item[0])):
        of_lines = f"{found.line_name} {some(map(str, lines_of), 'trust in --json')} " if lines_of else ""
        yield f"{of_lines}left open: {'; '.join(of_them)}"
    for reason, where in (found.impossible | found.far).items():
        yield f"{found.line_name} {', '.join(dict.fromkeys(map(str, where)))}, in no mean: {reason}"
    for reason, where in found.failed.items():
        yield f"{found.line_name} {', '.join(dict.fromkeys(map(str, where)))} without an answer: {reason}"


def _answer(row: AnsweredRow) -> dict[str, object]:
    return {
        "measured": wording.time_text(row.measured_s),
        "predicted": wording.time_text(row.predicted_s),
        "90 % range": wording.interval_text(row.low_s, row.high_s, row.predicted_s),
        "error": wording.error_text(row.ratio),
        "inside": {True: "yes", False: "NO", None: wording.NOTHING}[row.in_range],
        "trust": row.level,
    }


_NUMBERS = ("rows", "mean |error|", "median", "median |error|", "bias", "inside", "inside the 90 % range")


def _accuracy(one: Accuracy, with_gpu: bool) -> dict[str, object]:
    inside = f"{one.inside} of {one.rows}"
    head: dict[str, object] = {"implementation": one.implementation}
    if with_gpu:  # 80 columns hold no long heads then
        head |= {"GPU": one.gpu, "rows": one.rows, "mean |error|": wording.share_text(one.mean)}
        head |= {"median": wording.share_text(one.median), "bias": wording.share_text(one.bias, signed=True)}
        return head | {"inside": inside}
    return head | {
        "rows": one.rows,
        "mean |error|": wording.share_text(one.mean),
        "median |error|": wording.share_text(one.median),
        "bias": wording.share_text(one.bias, signed=True),
        "inside the 90 % range": f"{inside} ({wording.share_text(one.coverage, 0)})",
    }


@asking(without=("save_map",))
def adapt(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="CSV or Parquet: a call a line, columns named freely.")
    ],
    columns: table_flags.ColumnFlags,
    gpu: Annotated[str | None, flag("ID", "GPU of all rows, whatever the table says.")] = None,
    implementation: Annotated[str | None, flag("NAME", "Whose kernels all rows are, whatever the table says.")] = None,
    as_stated: Annotated[
        bool,
        switch(
            "Adapt although check names a reason why rows may not be what they state, and to rows that are far off.",
            "--as-stated",
        ),
    ] = False,
    out: Annotated[Path | None, flag("FILE", "The calibration, a YAML file that --calibration takes.")] = None,
    suggest: Annotated[
        int | None, options.count("Instead, name N questions to time, of each kernel and pass.", None, high=100)
    ] = None,
    json: options.Json = False,
) -> None:
    """Correct answers near a few timings of your own, or name the shapes to time (--suggest).

    Ends with 0 if every row was used, 1 if some could not be, 2 if none can be.
    """
    naming = columns.naming(gpu, implementation)
    said: dict[str, Any] = {
        "maps": naming.maps,
        "time_unit": naming.time_unit,
        "gpu": gpu,
        "implementation": implementation,
        "cells": naming.cells,
    }
    if suggest is not None:
        if out is not None:
            raise InputError("--out is the calibration of a table's timings, and --suggest makes none; leave one out")

        asked = suggested(table, suggest, **said)
        if json:
            show.print_json([{"implementation": one.record.name, "question": str(one.w)} for one in asked])
        else:
            print(script(asked), end="")
            print("a table for attnsim adapt is what this prints on the GPU", file=sys.stderr)
        return
    if out is not None:
        if out.suffix not in (".yaml", ".yml"):
            raise InputError(f"{out}: end the name of a calibration with .yaml")
        outputs.check_output(out)

    found = adapted(table, as_stated=as_stated, **said)
    if out is not None:
        found.write(out)
    show.give(json, found.rows, _adapted(found, out))
    if found.left_out:
        raise typer.Exit(1)


def _adapted(found: Adapted, out: Path | None) -> Iterator[Block]:
    line = found.check.line_name
    rows = [
        {
            line: ", ".join(map(str, row["rows"])),
            "measured": wording.time_text(row["measured_s"]),
            "model": wording.time_text(row["predicted_s"]),
            "error": wording.error_text(row["predicted_s"] / row["measured_s"]),
            "by the others": wording.time_text(row["by_the_others_s"]),
            "their error": wording.error_text(row["by_the_others_s"] and row["by_the_others_s"] / row["measured_s"]),
            "kernel": f"{row['implementation']}, {row['pass']}",
            "question": row["question"],
        }
        for row in found.rows
    ]
    yield Table(f"Timings on {found.own.gpu}", rows, right=rows[0].keys() - {"kernel", "question"})
    yield from found.notes
    for reason, where in found.left_out.items():
        yield f"{line} {', '.join(map(str, where))} not used: {reason}"
    if out is not None:
        yield f"written: {out}; give it to a question as --calibration {out}"
