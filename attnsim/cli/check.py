"""`attnsim check`: a table of one's own timings, each beside its prediction."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from attnsim import wording
from attnsim.api.checking import Accuracy, Check
from attnsim.api.checking import check as run
from attnsim.api.tables import AnsweredRow
from attnsim.cli import options, show, table_flags
from attnsim.cli.look import Look
from attnsim.cli.options import flag
from attnsim.cli.question_flags import asking
from attnsim.errors import InputError, some
from attnsim.models.question.case_file import write_table
from attnsim.plots.check import check as picture
from attnsim.tables import Table


@asking()
def check(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="CSV or Parquet: a call a line, columns named freely.")
    ],
    *,
    context: typer.Context,
    columns: table_flags.ColumnFlags,
    gpu: Annotated[str | None, flag("ID", "GPU of all rows, whatever the table says.")] = None,
    implementation: Annotated[str | None, flag("NAME", "Whose kernels all rows are, whatever the table says.")] = None,
    calibration: options.Calibration = None,
    out: Annotated[Path | None, flag("FILE", "The table with the predictions, CSV or Parquet.")] = None,
    apply: Annotated[
        Path | None, flag("FILE", "A copy of the table with the columns set as the likeliest reasons say.")
    ] = None,
    plot: Annotated[Path | None, flag("FILE", "Picture of measured over predicted, and its CSV.")] = None,
    look: Look,
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
    look.check_asked(context, plot)

    found = run(
        table,
        maps=naming.maps,
        time_unit=naming.time_unit,
        gpu=gpu,
        implementation=implementation,
        cells=naming.cells,
        calibration=calibration,
    )
    written = _written(found, out, plot, look)
    if apply is not None and found.audit.reasons:
        write_table(found.audit.mended(), apply)
        written.append(apply)
    written += columns.save(found.columns, naming)
    if json:
        show.print_json(found.to_dicts())
    else:
        _print(show.console(), found, written)
    if apply is not None and not found.audit.reasons:
        print(f"--apply {apply}: not written, because no reason is named", file=sys.stderr)
        raise typer.Exit(1)
    if found.left_out:
        raise typer.Exit(1)


def _written(found: Check, out: Path | None, plot: Path | None, look: Look) -> list[Path]:
    written = []
    if out is not None:
        write_table(found.rows, out)
        written.append(out)
    if plot is not None:
        written += look.write(picture(found), plot)
    return written


def _print(out: Console, found: Check, written: list[Path]) -> None:
    show.print_rows(out, "Columns", [_column(line) for line in found.columns.table()], whole=("column",))
    same, questions = found.question
    told = [f"{name} {cell}" for name, cell in same.items() if cell]
    if told:
        out.print(f"all rows: {', '.join(told)}\n")
    lines: list[dict[str, object]] = [{found.line_name: str(line)} for line, _ in found.lines]
    answers = [_answer(row) for row in found.answered]
    table = [line | question | answer for line, question, answer in zip(lines, questions, answers, strict=True)]
    if not show.fits(out, Table("", table)):  # what was answered stands in the first part
        table = [line | answer | question for line, question, answer in zip(lines, questions, answers, strict=True)]
    names = [one.theirs for one in found.columns.columns if one.is_name]
    show.print_rows(out, "", table, right=table[0].keys() - {"inside", "trust", *names}, whole=table[0])
    if found.accuracy:
        several = any(one.gpu for one in found.accuracy)
        parts = [_accuracy(one, several) for one in found.accuracy]
        show.print_rows(out, "Predicted against measured", parts, right=_NUMBERS)
    if found.doubt:
        out.print(found.doubt)
    for line in found.audit.lines:
        out.print(line)
    if found.taken:
        out.print(f"names: {', '.join(f'{given} is {name}' for given, name in found.taken)}")
    for lines_of, texts in sorted(found.assumed.items(), key=lambda item: len(item[0])):
        of_lines = f"{found.line_name} {some(map(str, lines_of), 'trust in --json')} " if lines_of else ""
        out.print(f"{of_lines}left open: {'; '.join(texts)}")
    for reason, where in (found.impossible | found.far).items():
        out.print(f"{found.line_name} {', '.join(dict.fromkeys(map(str, where)))}, in no mean: {reason}")
    for reason, where in found.failed.items():
        out.print(f"{found.line_name} {', '.join(dict.fromkeys(map(str, where)))} without an answer: {reason}")
    for path in written:
        out.print(f"written: {path}")


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


def _column(line: dict[str, object]) -> dict[str, object]:
    return {"column": line["column"], "read as": line["read_as"], "unit": line["unit"]}


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
