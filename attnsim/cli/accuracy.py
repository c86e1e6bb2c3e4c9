"""`attnsim accuracy` and `attnsim fit`: how good the predictions are, and the fit behind them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import attnsim
from attnsim import wording
from attnsim.cli import given, options, show, table_flags
from attnsim.cli.look import Plot
from attnsim.cli.options import flag, switch
from attnsim.cli.progress import busy
from attnsim.cli.question_flags import asking
from attnsim.errors import InputError
from attnsim.explore.state import calibration
from attnsim.models.question.case_file import write_table
from attnsim.models.question.headings import frame_of
from attnsim.plots.errors import accuracy as picture
from attnsim.tables import Block, Table, Unfolded, grouped, texts, written
from attnsim.validation.checking.accuracy import Wanted, check_wanted, evidence, overview, sampled, sentence
from attnsim.validation.checking.batches import batch_tables
from attnsim.validation.checking.claims import (
    GPT2_GPU,
    PAPER,
    above,
    counts,
    gpt2_medium,
    measured_rows,
    shares_table,
    speedups,
)
from attnsim.validation.checking.forecasts import score
from attnsim.validation.checking.interventions import interventions, steps_table
from attnsim.validation.checking.validate import differences, sources_report
from attnsim.validation.checking.validate import record as write_records
from attnsim.validation.fitting.fit import fit as run
from attnsim.validation.measured import aiconfigurator
from attnsim.wording import share_text

_Table = list[dict[str, Any]]

SHARES = dict.fromkeys(("mean", "median", "p90", "worst", "committed", "now", "held"), share_text)
SHARES |= {"bias": partial(share_text, signed=True)}


def percent(share: float) -> str:
    """A share in percent, under a heading that says so."""
    return f"{100 * share:.1f}"


OF_LOGS: dict[str, Callable[[Any], object]] = dict.fromkeys(
    ("within", "sd", "half_width", "needed", "held", "held_chip", "error"), percent
)
"""Formats of standard deviations and half-widths of log time or log ratio."""
COMPONENT = {
    **{name: name for name in ("component", "sources")},
    **{"laboratories": "labs", "groups": "groups", "within": "within", "sd": "in trust", "half_width": "half-width"},
    **{"needed": "needed", "ratio": "of it", "held": "held", "held_chip": "chip"},
}
RATIO = {"ratio": "speedup", "sd": "in trust", "half_width": "half-width"}


def _sources(found: Mapping[str, _Table]) -> Iterator[Block]:
    """The errors on sources that no fit has seen, and what ranges are made of."""
    total = texts(found["total"], SHARES)
    yield Table("Errors away from home: sources that their calibration has not seen", total)
    title = "By what is said of them, strangers apart from the others"
    yield from grouped(title, texts(found["group"], SHARES), ("use", "level"))
    yield from grouped("By source and GPU", texts(found["source"], SHARES), ("laboratory", "source"))
    yield Table(
        "Components of ranges: standard deviations and half-widths of log time, in percent",
        texts(found["component"], OF_LOGS | {"ratio": "{:.2f}".format}, COMPONENT),
    )
    yield (
        "needed: the half-width that holds 90 % of the rows whose farthest component it is; of it: the stated one over "
        "it; held: rows inside with their laboratory, and with their chip, left out of the widths.\n"
    )
    for kind, title in (
        (
            "ratio",
            "Ranges of ratios, one kernel on two GPUs: standard deviations and half-widths of log ratio, in percent",
        ),
        ("pair", "By pair of GPUs, with the pair left out of the widths"),
        ("kernels", "Two kernels on one GPU, with the laboratory left out of the widths"),
    ):
        heads = {key: RATIO.get(key, key) for row in found[kind] for key in row}
        yield Table(title, texts(found[kind], OF_LOGS | {"ratio": wording.times_text}, heads))
    yield (
        "numbers: each GPU's own, or the older one's carried over to the newer one's datasheet; speedup, error and "
        "half-width are medians; held: steps inside the stated range. change: times how far it moves the call.\n"
    )
    if found["refused"]:
        yield from grouped("Rows without a prediction", found["refused"], ("source", "why"))
    if missing := aiconfigurator.missing():
        yield missing


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
        show.give(json, _kinds(tables, "table"), _forecasts(tables))
    elif batches:
        tables = batch_tables()
        show.give(json, _kinds(tables, "table"), _batches(tables))
    elif steps:
        with busy("predicting steps"):
            tables = {"step": steps_table(interventions()), "share": shares_table()}
        show.give(json, _kinds(tables, "table"), _steps(**tables))
    elif claims:
        tables = {"gpt2_medium": gpt2_medium(), "speedup": speedups(), "count": counts()}
        show.give(json, _kinds(tables), _claims(**tables))
    elif sources:
        with busy("predicting"):
            tables = sources_report()
        show.give(json, _kinds(tables), _sources(tables))
        if json and (missing := aiconfigurator.missing()):
            print(missing, file=sys.stderr)
    else:
        _errors(named, out, verbose, json)


def _kinds(tables: Mapping[str, _Table], key: str = "kind") -> Iterator[dict[str, Any]]:
    """The rows of all tables, each with the name of its table."""
    return ({key: name, **row} for name, rows in tables.items() for row in rows)


def _errors(wanted: Wanted, path: Path | None, verbose: bool, json: bool) -> None:
    """The errors of chosen rows, in ten lines and a sentence; every one of them in a file, as JSON, or below."""
    if path is not None:
        table_flags.check_table(path)
    check_wanted(wanted)
    with busy("predicting measurements"):
        held, tables = evidence(wanted)
    rows = list(_kinds(tables))
    if path is not None:
        write_table(frame_of(rows), path)
    show.give(json, rows, _overview(held, tables, path, verbose))


def _overview(held: Any, tables: Mapping[str, _Table], path: Path | None, verbose: bool) -> Iterator[Block]:
    if held:
        names = {"mean": "mean error", "p90": "9 in 10 below"}
        heads = {key: names.get(key, key) for row in overview(held) for key in row}
        yield Table("Errors on rows the fit did not see", texts(overview(held), SHARES, heads))
        yield f"To cite: attnsim {attnsim.__version__} (calibration {calibration()}): {sentence(held)}.\n"
    if verbose or not held:
        yield from every_error(*tables.values())
    if path is not None:
        yield f"written: {path}"
    elif not verbose:
        yield "-v prints every line and every constant, --out FILE.csv writes them."


def _forecasts(tables: Mapping[str, _Table]) -> Iterator[Block]:
    for name, title in (("time", "Forecast times"), ("ratio", "Forecast ratios over another chip")):
        if tables[name]:
            yield from grouped(f"{title}, by release", texts(tables[name], SHARES), ("release", "gpu"))
    if tables["not scored"]:
        yield Table("Rows that are not scored", tables["not scored"], whole=("why",))


def _batches(tables: Mapping[str, _Table]) -> Iterator[Block]:
    for name, rows in tables.items():
        title = f"{name.capitalize()}: errors on rows whose role is {rows[0]['role']!r}"
        yield Table(title, texts(rows, SHARES, without=("role",)))


def _steps(step: _Table, share: _Table) -> Iterator[Block]:
    formats = dict.fromkeys(("measured", "predicted"), wording.times_text)
    formats |= dict.fromkeys(("error", "direction", "held"), partial(share_text, digits=0))
    title = "Measured steps in which one thing changed, by what the numbers that predict them have seen"
    yield from grouped(title, texts(step, formats), ("kind", "step", "use"))
    yield (
        "held out: no number rests on both rows; left out: predicted by a fold without either; fit: seen. measured, "
        "predicted: medians of how many times faster the second is; error: mean size of the log of one over the other; "
        "direction: right, of steps of more than 5 %; held: inside the stated range.\n"
    )
    floats = {name: share_text for row in share for name, value in row.items() if isinstance(value, float)}
    yield Table("Shares of pipes, as profilers read them and as played", texts(share, floats))
    if missing := aiconfigurator.missing():
        yield missing


def every_error(summary: _Table, sparse: _Table, gated: _Table, errors: _Table, numbers: _Table) -> Iterator[Block]:
    """The errors by what is predicted, of sparse and linear attention by kernel, by measurements; and the constants."""
    yield Table("Errors on rows the fit did not see, by what is predicted", texts(summary, SHARES))
    for chapter, rows in (("Sparse attention", sparse), ("Linear attention with gates", gated)):
        title = f"{chapter}: errors of each kernel, on rows that no fit has seen"
        yield from grouped(title, texts(rows, SHARES), ("mechanism", "implementation"))
    by = ("source", "implementation", "gpu")
    yield from grouped("By measurements, implementation and GPU", texts(errors, SHARES), by)
    yield from grouped(
        "Constants that are neither datasheet nor public source", [_constant(row) for row in numbers], ("owner",)
    )


def _constant(row: dict[str, Any]) -> dict[str, Any]:
    """A constant with its interval in one cell and its unit behind its meaning: narrow enough for 80 columns."""
    interval = "" if row["low"] is None else f"{row['low']:.4g} to {row['high']:.4g}"
    unit = "" if row["unit"] in ("", "1") else f" ({row['unit']})"
    shown = {"number": row["number"], "value": row["value"], "95 % interval": interval, "fitted": row["fitted"]}
    return {"owner": row["owner"], **shown, "meaning": row["meaning"] + unit}


def _claims(gpt2_medium: _Table, speedup: _Table, count: _Table) -> Iterator[Block]:
    formats: dict[str, Callable[[Any], object]] = {
        "assumed": lambda one: "yes" if one else "",
        **dict.fromkeys(("hbm_bytes", "published_bytes"), lambda size: f"{size / 1e9:.1f} GB"),
        **dict.fromkeys(("time_s", "published_s"), lambda time_s: f"{time_s * 1e3:.1f} ms"),
        **dict.fromkeys(("bytes_ratio", "time_ratio"), "{:.2f}".format),
    }
    heads = {"algorithm": "algorithm", "mask": "mask", "note": "", "assumed": "assumed", "hbm_bytes": "HBM"}
    heads |= {"published_bytes": "paper", "bytes_ratio": "ratio", "time_s": "time", "published_s": "stated"}
    title = f"GPT-2 medium, forward + backward, {GPT2_GPU} ({PAPER}, figure 2)"
    yield Table(title, texts(gpt2_medium, formats, heads | {"time_ratio": "of it"}))
    for setting in dict.fromkeys(row["setting"] for row in speedup):
        rows = [row for row in speedup if row["setting"] == setting]
        title = f"{rows[0]['claim']}, {rows[0]['gpu']}: {setting}\n({rows[0]['source']})"
        yield Table(title, [_speedup(row) for row in rows], right=("paper", "full", "causal, dropout"))
    yield "full: without mask and dropout. The fused kernel is played without dropout's random numbers.\n"
    shown = texts(
        count,
        dict.fromkeys(("stated", "ours"), "{:,.10g}".format) | {"error": share_text},
        {name: name for name in ("claim", "stated", "ours", "error")},
    )
    yield Table("What follows from shapes and datasheets", shown, ("stated", "ours", "error"), ("claim",))


def _speedup(row: dict[str, Any]) -> dict[str, Any]:
    """A stated speedup beside ours, without a mask and causal with dropout, and how far each is out of the range."""
    low, high = row["low"], row["high"]
    return {
        "seq": row["seq"],
        "paper": f"{low:g}x" if low == high else f"{low:g} to {high:g}x",
        "full": wording.times_text(row["full"]),
        "off": _missed(row["full_error"]),
        "causal, dropout": wording.times_text(row["causal"]),
        "off ": _missed(row["causal_error"]),
    }


def _missed(error: float) -> str:
    return "within" if error == 0 else f"{100 * error:+.0f} %"


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
    show.give(json, [*rows, *beyond], _checked(rows, beyond))
    if not all(row["same"] for row in rows) or not all(row["reason"] for row in beyond):
        raise typer.Exit(1)


def _checked(rows: _Table, beyond: _Table) -> Iterator[Block]:
    table = texts(rows, SHARES | {"same": lambda same: "yes" if same else "NO"})
    yield Table("Committed calibrations, mean errors on held-out rows", table)
    for row in beyond:
        if not row["reason"]:
            yield (
                f"above a ceiling: {row['source']}, {row['implementation']} on {row['gpu']}, {row['question']}: "
                f"measured {wording.time_text(row['measured_s'])}, {row['unit']} alone needs "
                f"{wording.time_text(row['least_s'])}"
            )
    yield f"{sum(bool(row['reason']) for row in beyond)} rows lie above a ceiling for a known reason (above.yaml)"
