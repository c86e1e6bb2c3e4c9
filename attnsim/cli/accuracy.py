"""`attnsim accuracy` and `attnsim fit`: how good the predictions are, and the fit behind them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import attnsim
from attnsim import wording
from attnsim.cli import given, options, show, table_flags
from attnsim.cli.look import Look
from attnsim.cli.options import flag, switch
from attnsim.cli.progress import busy
from attnsim.cli.question_flags import asking
from attnsim.errors import InputError
from attnsim.explore.state import calibration
from attnsim.models.question.case_file import write_table
from attnsim.models.question.headings import frame_of
from attnsim.plots.errors import accuracy as picture
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

_Table = list[dict[str, Any]]


def print_sources(json: bool) -> None:
    """Print the report, or its lines as one JSON list, each with its `kind`."""
    with busy("predicting"):
        found = sources_report()
    if json:
        show.print_json([{"kind": kind, **row} for kind, rows in found.items() for row in rows])
        if told := aiconfigurator.missing():
            print(told, file=sys.stderr)
        return
    out = show.console()
    show.print_rows(out, "Errors away from home: sources that their calibration has not seen", _shown(found["total"]))
    title = "By what is said of them, strangers apart from the others"
    show.print_groups(out, title, _shown(found["group"]), ("use", "level"))
    show.print_groups(out, "By source and GPU", _shown(found["source"]), ("laboratory", "source"))
    show.print_rows(
        out,
        "Components of ranges: standard deviations and half-widths of log time, in percent",
        [_component(row) for row in found["component"]],
    )
    out.print(
        "needed: the half-width that holds 90 % of the rows whose farthest component it is; of it: the stated one over "
        "it; held: rows inside with their laboratory, and with their chip, left out of the widths.\n"
    )
    _print_ratios(out, found)
    if found["refused"]:
        show.print_groups(out, "Rows without a prediction", found["refused"], ("source", "why"))
    if told := aiconfigurator.missing():
        out.print(told)


def _print_ratios(out: Console, found: dict[str, list[dict[str, Any]]]) -> None:
    """The ranges of ratios: their components, and what they hold pair by pair."""
    title = "Ranges of ratios, one kernel on two GPUs: standard deviations and half-widths of log ratio, in percent"
    show.print_rows(out, title, [_ratio(row) for row in found["ratio"]])
    show.print_rows(
        out, "By pair of GPUs, with the pair left out of the widths", [_ratio(row) for row in found["pair"]]
    )
    show.print_rows(
        out,
        "Two kernels on one GPU, with the laboratory left out of the widths",
        [_ratio(row) for row in found["kernels"]],
    )
    out.print(
        "numbers: each GPU's own, or the older one's carried over to the newer one's datasheet; speedup, error and "
        "half-width are medians; held: steps inside the stated range. change: times how far it moves the call.\n"
    )


def _ratio(row: dict[str, Any]) -> dict[str, Any]:
    """A line with its shares in percent."""
    shares = {"sd": "in trust", "error": "error", "half_width": "half-width", "held": "held"}
    texts = {shares[name]: "" if row[name] is None else f"{100 * row[name]:.1f}" for name in shares.keys() & row.keys()}
    texts |= {"speedup": wording.times_text(row["ratio"])} if "ratio" in row else {}
    names = {"ratio": "speedup", **shares}
    return {name: texts.get(name, row.get(key)) for key in row for name in [names.get(key, key)]}


def _shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with their shares in percent."""
    shares = ("mean", "median", "p90", "bias", "held")
    return [
        {key: wording.share_text(value, signed=key == "bias") if key in shares else value for key, value in row.items()}
        for row in rows
    ]


def _component(row: dict[str, Any]) -> dict[str, Any]:
    def percent(name: str) -> str:
        return "" if row[name] is None else f"{100 * row[name]:.1f}"

    return {
        "component": row["component"],
        "sources": row["sources"],
        "labs": row["laboratories"],
        "groups": row["groups"],
        "within": percent("within"),
        "in trust": percent("sd"),
        "half-width": percent("half_width"),
        "needed": percent("needed"),
        "of it": "" if row["ratio"] is None else f"{row['ratio']:.2f}",
        "held": percent("held"),
        "chip": percent("held_chip"),
    }


ROWS = 6
"""Rows that are drawn for each line of a picture: some two hundred predictions in all, a few seconds."""


def _of(what: str) -> Any:
    """A flag that chooses rows by a name."""
    return flag("NAMES", f"Only rows of this {what}, by its name or how that begins; with commas.")


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
    plot: Annotated[Path | None, flag("FILE", "Only a picture of some rows of every library, and its CSV.")] = None,
    rows: Annotated[int, options.count("Rows of each line of the picture at most.", None)] = ROWS,
    look: Look,
    verbose: options.Verbose = False,
    json: options.Json = False,
) -> None:
    """Show errors on measurements that the fit did not see; `-v` and `--out`: each of them, and every constant."""
    if claims + sources + batches + steps + (forecasts is not None) + (plot is not None) > 1:
        names = "--claims, --sources, --batches, --steps, --forecasts and --plot"
        raise InputError(f"{names} exclude each other; give one of them")
    look.check_asked(context, plot)
    if claims or sources or batches or steps or forecasts is not None or plot is not None:
        other = "is about the errors of all measurements, which are not asked for"
        given.refuse(context, other, ("gpu", "implementation", "source", "out", "verbose"))
    if plot is not None:
        _plot(plot, rows, look, json)
        return
    given.refuse(context, "is about the picture of --plot, which is not asked for", ("rows",))
    if forecasts is not None:
        _forecasts(forecasts, json)
        return
    for asked, told in ((batches, _batches), (steps, _steps), (claims, _claims), (sources, print_sources)):
        if asked:
            told(json)
            return
    wanted = {"gpu": gpu, "implementation": implementation, "source": source}
    _errors(
        {kind: options.words([text], f"--{kind}") if text else [] for kind, text in wanted.items()}, out, verbose, json
    )


def _errors(wanted: Wanted, path: Path | None, verbose: bool, json: bool) -> None:
    """The errors of chosen rows, in ten lines and a sentence; every one of them in a file, as JSON, or below."""
    if path is not None:
        table_flags.check_table(path)
    check_wanted(wanted)
    with busy("predicting measurements"):
        held, tables = evidence(wanted)
    rows = [{"kind": kind, **row} for kind, some in tables.items() for row in some]
    if path is not None:
        write_table(frame_of(rows), path)
    if json:
        show.print_json(rows)
        return
    out = show.console()
    if held:
        show.print_rows(out, "Errors on rows the fit did not see", [_overview(row) for row in overview(held)])
        out.print(f"To cite: attnsim {attnsim.__version__} (calibration {calibration()}): {sentence(held)}.\n")
    if verbose or not held:
        print_tables(out, *tables.values())
    if path is not None:
        out.print(f"written: {path}")
    elif not verbose:
        out.print("-v prints every line and every constant, --out FILE.csv writes them.")


def _plot(plot: Path, rows: int, look: Look, json: bool) -> None:
    with busy("predicting held-out rows"):
        drawn = picture(sampled(rows), rows)
    written = look.write(drawn, plot)
    if json:
        show.print_json(drawn.rows)
        return
    print(f"written: {', '.join(map(str, written))}")


def _forecasts(path: Path, json: bool) -> None:
    tables = score(path)
    if json:
        show.print_json([{"table": name, **row} for name, rows in tables.items() for row in rows])
        return
    out = show.console()
    for name, title in (("time", "Forecast times"), ("ratio", "Forecast ratios over another chip")):
        if tables[name]:
            show.print_groups(out, f"{title}, by release", _shown(tables[name]), ("release", "gpu"))
    if tables["not scored"]:
        show.print_rows(out, "Rows that are not scored", tables["not scored"], whole=("why",))


def _batches(json: bool) -> None:
    tables = batch_tables()
    if json:
        show.print_json([{"table": name, **row} for name, rows in tables.items() for row in rows])
        return
    for name, rows in tables.items():
        title = f"{name.capitalize()}: errors on rows whose role is {rows[0]['role']!r}"
        shown = [{key: value for key, value in row.items() if key != "role"} for row in rows]
        show.print_rows(show.console(), title, [_percent(row) for row in shown])


def _steps(json: bool) -> None:
    with busy("predicting steps"):
        steps, shares = steps_table(interventions()), shares_table()
    if json:
        show.print_json([{"table": "step", **row} for row in steps] + [{"table": "share", **row} for row in shares])
        return
    out = show.console()
    title = "Measured steps in which one thing changed, by what the numbers that predict them have seen"
    show.print_groups(out, title, [_step(row) for row in steps], ("kind", "step", "use"))
    out.print(
        "held out: no number rests on both rows; left out: predicted by a fold without either; fit: seen. measured, "
        "predicted: medians of how many times faster the second is; error: mean size of the log of one over the other; "
        "direction: right, of steps of more than 5 %; held: inside the stated range.\n"
    )
    show.print_rows(out, "Shares of pipes, as profilers read them and as played", [_shares(row) for row in shares])
    if told := aiconfigurator.missing():
        out.print(told)


def _step(row: dict[str, Any]) -> dict[str, Any]:
    """A line with its steps as people read them and its shares in percent."""
    ratios, shares = ("measured", "predicted"), ("error", "direction", "held")
    texts = {name: wording.times_text(row[name]) for name in ratios}
    return row | texts | {name: "" if row[name] is None else f"{100 * row[name]:.0f} %" for name in shares}


def _shares(row: dict[str, Any]) -> dict[str, Any]:
    return {name: f"{100 * value:.1f} %" if isinstance(value, float) else value for name, value in row.items()}


def print_tables(out: Console, summary: _Table, sparse: _Table, gated: _Table, errors: _Table, numbers: _Table) -> None:
    """The errors by what is predicted, of sparse and linear attention by kernel, by measurements; and the constants."""
    show.print_rows(out, "Errors on rows the fit did not see, by what is predicted", [_percent(r) for r in summary])
    for chapter, rows in (("Sparse attention", sparse), ("Linear attention with gates", gated)):
        title = f"{chapter}: errors of each kernel, on rows that no fit has seen"
        show.print_groups(out, title, [_percent(row) for row in rows], ("mechanism", "implementation"))
    by = ("source", "implementation", "gpu")
    show.print_groups(out, "By measurements, implementation and GPU", [_percent(row) for row in errors], by)
    title = "Constants that are neither datasheet nor public source"
    show.print_groups(out, title, [_constant(row) for row in numbers], ("owner",))


def _percent(row: dict[str, Any]) -> dict[str, Any]:
    """The row with its errors in percent."""
    return {
        name: f"{100 * value:.1f} %" if name in ("mean", "median", "p90", "worst", "committed", "now") else value
        for name, value in row.items()
    }


def _overview(row: dict[str, Any]) -> dict[str, Any]:
    """A line of the first table, under heads that need no key."""
    names = {"mean": "mean error", "p90": "9 in 10 below"}
    return {names.get(name, name): cell for name, cell in _percent(row).items()}


def _constant(row: dict[str, Any]) -> dict[str, Any]:
    """A constant with its interval in one cell and its unit behind its meaning: narrow enough for 80 columns."""
    interval = "" if row["low"] is None else f"{row['low']:.4g} to {row['high']:.4g}"
    unit = "" if row["unit"] in ("", "1") else f" ({row['unit']})"
    shown = {"number": row["number"], "value": row["value"], "95 % interval": interval, "fitted": row["fitted"]}
    return {"owner": row["owner"], **shown, "meaning": row["meaning"] + unit}


def _claims(json: bool) -> None:
    gpt2, stated, exact = gpt2_medium(), speedups(), counts()
    if json:
        kinds = (("gpt2_medium", gpt2), ("speedup", stated), ("count", exact))
        show.print_json([{"kind": kind, **row} for kind, rows in kinds for row in rows])
        return
    out = show.console()
    table = [
        {
            "algorithm": row["algorithm"],
            "mask": row["mask"],
            "": row["note"],
            "assumed": "yes" if row["assumed"] else "",
            "HBM": f"{row['hbm_bytes'] / 1e9:.1f} GB",
            "paper": f"{row['published_bytes'] / 1e9:.1f} GB",
            "ratio": f"{row['bytes_ratio']:.2f}",
            "time": f"{row['time_s'] * 1e3:.1f} ms",
            "stated": f"{row['published_s'] * 1e3:.1f} ms",
            "of it": f"{row['time_ratio']:.2f}",
        }
        for row in gpt2
    ]
    show.print_rows(out, f"GPT-2 medium, forward + backward, {GPT2_GPU} ({PAPER}, figure 2)", table)
    for setting in dict.fromkeys(row["setting"] for row in stated):
        rows = [row for row in stated if row["setting"] == setting]
        title = f"{rows[0]['claim']}, {rows[0]['gpu']}: {setting}\n({rows[0]['source']})"
        show.print_rows(out, title, [_speedup(row) for row in rows], right=("paper", "full", "causal, dropout"))
    out.print("full: without mask and dropout. The fused kernel is played without dropout's random numbers.\n")
    show.print_rows(
        out,
        "What follows from shapes and datasheets",
        [
            {
                "claim": row["claim"],
                "stated": f"{row['stated']:,.10g}",
                "ours": f"{row['ours']:,.10g}",
                "error": f"{100 * row['error']:.1f} %",
            }
            for row in exact
        ],
        right=("stated", "ours", "error"),
        whole=("claim",),
    )


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
        written = [] if record else run(folder, names or [], progress)
        if record:
            written = write_records(folder, progress)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror or error}") from None
    if json:
        show.print_json({"written": str(path)} for path in written)
        return
    for path in written:
        print(path)


def _check(json: bool) -> None:
    """Print the committed errors beside the recomputed ones; exit with 1 if they differ, or if a row cannot be true."""
    with busy("predicting held-out rows"):
        rows = differences()
    with busy("holding measured rows against ceilings"):
        beyond = above(measured_rows())
    if json:
        show.print_json([*rows, *beyond])
    else:
        out = show.console()
        table = [_percent(row | {"same": "yes" if row["same"] else "NO"}) for row in rows]
        show.print_rows(out, "Committed calibrations, mean errors on held-out rows", table)
        for row in beyond:
            if not row["reason"]:
                out.print(
                    f"above a ceiling: {row['source']}, {row['implementation']} on {row['gpu']}, {row['question']}: "
                    f"measured {wording.time_text(row['measured_s'])}, {row['unit']} alone needs "
                    f"{wording.time_text(row['least_s'])}"
                )
        out.print(
            f"{sum(bool(row['reason']) for row in beyond)} rows lie above a ceiling for a known reason (above.yaml)"
        )
    if not all(row["same"] for row in rows) or not all(row["reason"] for row in beyond):
        raise typer.Exit(1)
