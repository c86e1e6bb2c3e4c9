"""`attnsim accuracy` and `attnsim fit`: how good the predictions are, and the fit behind them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import attnsim
from attnsim.cli import given, options, show, table_flags
from attnsim.cli.look import Plot
from attnsim.cli.options import flag, switch
from attnsim.cli.progress import busy
from attnsim.cli.question_flags import asking
from attnsim.errors import InputError
from attnsim.models.question.case_file import write_table
from attnsim.models.question.headings import frame_of
from attnsim.plots.errors import accuracy as picture
from attnsim.reports.accuracy import (
    batches_blocks,
    checked_blocks,
    claims_blocks,
    forecasts_blocks,
    kinds_of,
    overview_blocks,
    sources_blocks,
    steps_blocks,
)
from attnsim.tables import Unfolded, written
from attnsim.validation.checking.accuracy import Wanted, check_wanted, evidence, sampled
from attnsim.validation.checking.batches import batch_tables
from attnsim.validation.checking.claims import above, counts, gpt2_medium, measured_rows, shares_table, speedups
from attnsim.validation.checking.forecasts import score
from attnsim.validation.checking.interventions import interventions, steps_table
from attnsim.validation.checking.validate import differences, sources_report
from attnsim.validation.checking.validate import record as write_records
from attnsim.validation.fitting.fit import fit as run
from attnsim.validation.measured import aiconfigurator

ROWS = 6
"""Rows that are drawn for each line of a picture: some two hundred predictions in all, a few seconds."""


def _of(what: str) -> Any:
    """A flag that chooses rows by a name."""
    return flag("NAMES", f"Only rows of this {what}, by its name or how that begins; with commas.")


@dataclass(frozen=True, kw_only=True)
class SomePlot(Plot):
    """The picture of some rows."""

    plot: Annotated[Path | None, flag("FILE", "Only a picture of some rows of every library, and its CSV.")] = None


@asking()
def accuracy(
    *,
    context: typer.Context,
    claims: Annotated[bool, switch("Figures that papers state, beside what the replay counts.", "--claims")] = False,
    sources: Annotated[
        bool, switch("Errors on sources that no fit has seen, and what ranges are made of.", "--sources")
    ] = False,
    batches: Annotated[bool, switch("Errors on measured calls whose sequences differ in length.", "--batches")] = False,
    steps: Annotated[
        bool, switch("Errors of measured steps, in which one thing changed, and shares of pipes.", "--steps")
    ] = False,
    gpu: Annotated[str, _of("GPU")] = "",
    implementation: Annotated[str, _of("implementation")] = "",
    source: Annotated[str, _of("table (see docs/accuracy.md)")] = "",
    out: Annotated[Path | None, flag("FILE", "Every error and constant as a table, CSV or Parquet.")] = None,
    forecasts: Annotated[Path | None, flag("FILE", "Hold measured rows against what was forecast of them.")] = None,
    plot: SomePlot,
    rows: Annotated[int, options.count("Rows of each line of the picture at most.", None)] = ROWS,
    verbose: options.Verbose = False,
    json: options.Json = False,
) -> None:
    """Show errors on measurements that the fit did not see; `-v` and `--out`: each of them, and every constant."""
    if claims + sources + batches + steps + (forecasts is not None) + (plot.plot is not None) > 1:
        names = "--claims, --sources, --batches, --steps, --forecasts and --plot"
        raise InputError(f"{names} exclude each other; give one of them")
    if claims or sources or batches or steps or forecasts is not None or plot.plot is not None:
        other = "is about the errors of all measurements, which are not asked for"
        given.refuse(context, other, ("gpu", "implementation", "source", "out", "verbose"))
    if plot.plot is not None:
        with busy("predicting held-out rows"):
            drawn = picture(sampled(rows), rows)
        show.give(json, drawn.rows, written(plot.draw(lambda: drawn)))
        return
    given.refuse(context, "is about the picture of --plot, which is not asked for", ("rows",))
    wanted = {"gpu": gpu, "implementation": implementation, "source": source}
    named = {kind: options.some_words(text, f"--{kind}") for kind, text in wanted.items()}
    if forecasts is not None:
        tables = score(forecasts)
        show.give(json, kinds_of(tables, "table"), forecasts_blocks(tables))
    elif batches:
        tables = batch_tables()
        show.give(json, kinds_of(tables, "table"), batches_blocks(tables))
    elif steps:
        with busy("predicting steps"):
            tables = {"step": steps_table(interventions()), "share": shares_table()}
        show.give(json, kinds_of(tables, "table"), steps_blocks(**tables))
    elif claims:
        tables = {"gpt2_medium": gpt2_medium(), "speedup": speedups(), "count": counts()}
        show.give(json, kinds_of(tables), claims_blocks(**tables))
    elif sources:
        with busy("predicting"):
            tables = sources_report()
        show.give(json, kinds_of(tables), sources_blocks(tables))
        if json and (missing := aiconfigurator.missing()):
            print(missing, file=sys.stderr)
    else:
        _errors(named, out, verbose, json)


def _errors(wanted: Wanted, path: Path | None, verbose: bool, json: bool) -> None:
    """The errors of chosen rows, in ten lines and a sentence; every one of them in a file, as JSON, or below."""
    if path is not None:
        table_flags.check_table(path)
    check_wanted(wanted)
    with busy("predicting measurements"):
        held, tables = evidence(wanted)
    rows = list(kinds_of(tables))
    if path is not None:
        write_table(frame_of(rows), path)
    show.give(json, rows, overview_blocks(held, tables, path, verbose))


def fit(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[JOB[:IMPLEMENTATION]]...", help="Fits to run; default: all.")
    ] = None,
    check: Annotated[
        bool,
        switch(
            "Fit nothing: fail if a calibration no longer gives its errors, or a row lies above a ceiling.", "--check"
        ),
    ] = False,
    record: Annotated[
        bool, switch("Fit nothing: write errors, residuals and the widths of trust anew.", "--record")
    ] = False,
    json: options.Json = False,
) -> None:
    """Fit the calibrations to the committed measurements anew; takes minutes."""
    if check + record + bool(names) > 1:
        raise InputError("--check, --record and names of fits exclude each other; give one of them")
    if check:
        _check(json)
        return
    folder = Path(str(attnsim.__file__)).parent / "models" / "calibrations"

    def progress(line: str) -> None:
        print(line, file=sys.stderr)

    try:
        files = [] if record else run(folder, names or [], progress)
        if record:
            files = write_records(folder, progress)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror or error}") from None
    show.give(json, ({"written": str(path)} for path in files), map(Unfolded, files))


def _check(json: bool) -> None:
    """Print the committed errors beside the recomputed ones; exit with 1 if they differ, or if a row cannot be true."""
    with busy("predicting held-out rows"):
        rows = differences()
    with busy("holding measured rows against ceilings"):
        beyond = above(measured_rows())
    show.give(json, [*rows, *beyond], checked_blocks(rows, beyond))
    if not all(row["same"] for row in rows) or not all(row["reason"] for row in beyond):
        raise typer.Exit(1)
