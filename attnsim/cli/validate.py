"""`attnsim validate`: everything recorded and published, set against what is predicted for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnsim.cli import options, show
from attnsim.cli.progress import busy, steps
from attnsim.models.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from attnsim.validation.validate import Report

SAMPLE = 24
_SHARES = ("mean", "median", "p90", "worst", "step", "at_home", "coverage", "mean_error", "committed", "now")
_RATIOS = ("over", "bias")


def validate(
    hypothetical: Annotated[
        bool,
        typer.Option("--hypothetical", help="Only real GPUs treated as if they did not exist, from older ones."),
    ] = False,
    sample: Annotated[
        int, options._count("Rows of the large tables for each GPU, kernel and pass (extra datasets).")
    ] = SAMPLE,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write a picture, its table and an HTML page there.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Predict what was measured and say how wrong it is; takes minutes.

    Ends with 1 if a committed calibration no longer gives its committed errors.
    """
    if hypothetical and out is not None:
        raise InputError("--out writes the whole validation; leave --hypothetical out")
    if hypothetical:
        _hypothetical(sample, json)
        return
    if out is not None:
        _make_folder(out)
    from attnsim.validation.validate import STEPS
    from attnsim.validation.validate import validate as run

    with steps("validating", STEPS) as advance:
        report = run(sample, advance)
    written = []
    if out is not None:
        from attnsim.plots.validation import write_report

        with busy("drawing"):
            written = write_report(report, out)
    if json:
        show.print_json([{"table": name, **row} for name, rows in report.tables.items() for row in rows])
    else:
        _print(show.console(), report, written)
    if not report.ok:
        raise typer.Exit(1)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {folder} cannot be made a folder: {error.strerror or error}") from None


def _hypothetical(sample: int, json: bool) -> None:
    from attnsim.validation import aiconfigurator
    from attnsim.validation.hypothetical import errors, outcomes

    with busy("predicting GPUs as if they did not exist"):
        rows = errors(outcomes(sample=sample))
    if json:
        show.print_json(rows)
        return
    out = show.console()
    _print_hypothetical(out, rows)
    if aiconfigurator.missing():
        out.print(aiconfigurator.missing())


def _print_hypothetical(out: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    for older, newer in dict.fromkeys((row["older"], row["newer"]) for row in rows):
        mine = [row for row in rows if (row["older"], row["newer"]) == (older, newer)]
        leave = ("older", "newer", "numbers", "pairs")
        title = f"{newer} as if it did not exist, from {older}"
        show.print_rows(out, title, [_shown(row, leave) for row in mine])


def _shown(row: Mapping[str, Any], leave: Sequence[str] = ()) -> dict[str, object]:
    """A record with its shares in percent."""
    return {name.replace("_", " "): _text(name, value) for name, value in row.items() if name not in leave}


def _text(name: str, value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float) and name in _SHARES:
        return f"{100 * value:.1f} %"
    if isinstance(value, float) and name in _RATIOS:
        return f"{value:.2f}"
    return value


def _print(out: Console, report: Report, written: Sequence[Path]) -> None:
    if report.undetermined:
        show.print_rows(out, "Fitted numbers that their rows leave open", report.undetermined)
    if report.datasets:
        show.print_rows(out, "Rows of the serving tables", report.datasets)
    if report.serving:
        title = "Serving tables (a sample), with the numbers that a question gets today"
        show.print_rows(out, title, [_shown(row, ("numbers",)) for row in report.serving])
    _print_hypothetical(out, report.hypothetical)
    show.print_rows(out, "90 % intervals: true times inside, and width", [_shown(row) for row in report.trust])
    if report.stated:
        title = "The same of the intervals as stated, on serving rows that did not set them"
        show.print_rows(out, title, [_shown(row) for row in report.stated])
    title = "Committed calibrations, mean errors on held-out rows"
    show.print_rows(out, title, [_shown(row) for row in report.differences])
    show.print_rows(out, "Errors on rows the fit did not see", [_shown(row) for row in report.errors])
    if report.noise:
        title = "Noise of the data: one measured time over another, mean size of the log"
        show.print_rows(out, title, [_shown(row) for row in report.noise])
    if report.missing:
        out.print(report.missing)
    for path in written:
        out.print(f"written: {path}")
    if not report.ok:
        out.print("a committed calibration no longer gives its committed errors; see `attnsim fit --record`")
