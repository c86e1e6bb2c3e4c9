"""`attnsim validate`: everything recorded and published, set against what is predicted for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from attnsim import wording
from attnsim.cli import options, outputs, progress, show, table_flags
from attnsim.cli.options import flag, switch
from attnsim.cli.progress import budget, busy, steps
from attnsim.cli.question_flags import asking
from attnsim.errors import InputError
from attnsim.kernels.gpu.cuda_device import CudaDevice
from attnsim.models.question.case_file import read_cases
from attnsim.reports.accuracy import hypothetical_tables, table_of, write_report
from attnsim.tables import Block, Table, Unfolded
from attnsim.validation.checking.hypothetical import errors, outcomes
from attnsim.validation.checking.io_errors import compare_io
from attnsim.validation.checking.ratio_steps import step_errors
from attnsim.validation.checking.validate import STEPS, TITLES, Report
from attnsim.validation.checking.validate import validate as run
from attnsim.validation.measured import aiconfigurator
from attnsim.validation.measured.datasets import Row
from attnsim.validation.measured.own_runs import measure_here, own_rows, rows_of
from attnsim.validation.measuring.counters import count, profiler, read_counters, shapes

SAMPLE = 24
MINUTES = 3.0


@asking(without=("save_map",))
def validate(
    *,
    hypothetical: Annotated[
        bool, switch("Only real GPUs treated as if they did not exist, from older ones.", "--hypothetical")
    ] = False,
    io: Annotated[
        bool, switch("Only predicted against counted bytes: ncu on our kernels, or --counters.", "--io")
    ] = False,
    counters: Annotated[Path | None, flag("CSV", "With --io: what ncu counted elsewhere.")] = None,
    cases: Annotated[Path | None, flag("TABLE", "With --counters: the calls that ran, in order.")] = None,
    sample: Annotated[
        int, options.count("Rows of the large tables for each GPU, kernel and pass (extra datasets).")
    ] = SAMPLE,
    minutes: Annotated[
        float, options.amount("On a machine with a GPU: measure our kernels on it first; 0 does not.")
    ] = MINUTES,
    measured: Annotated[list[Path], flag("PATH", "Your tables, or folders of attnsim measure; repeat it.")] = [],  # noqa: B006 Typer copies it
    columns: table_flags.ColumnFlags,
    out: Annotated[Path | None, flag("DIR", "Write a picture, its table and an HTML page there.")] = None,
    json: options.Json = False,
) -> None:
    """Predict what was measured and say how wrong it is; takes minutes.

    Ends with 1 if a committed calibration no longer gives its committed errors.
    """
    _check(hypothetical=hypothetical, io=io, counters=counters, cases=cases, measured=measured, out=out)
    if not measured:
        columns.check_without("--measured")
    if hypothetical:
        _hypothetical(sample, json)
        return
    if io:
        _io(counters, cases, json)
        return
    if out is not None:
        outputs.make_folder(out)

    naming = columns.naming()
    given = [row for table in measured for row in rows_of(table, naming, table_flags.print_columns)]
    own, missing = _own(minutes)
    with steps("validating", STEPS) as advance:
        report = run(sample, advance, own, given)
    files: list[Path] = []
    if out is not None:
        with busy("drawing"):
            files = write_report(report, out)
    records = ({"table": name, **row} for name, rows in report.tables.items() for row in rows)
    show.give(json, records, _blocks(report, missing, files))
    if not report.ok:
        raise typer.Exit(1)


def _check(
    *, hypothetical: bool, io: bool, counters: Path | None, cases: Path | None, measured: list[Path], out: Path | None
) -> None:
    part = "--hypothetical" if hypothetical else "--io" if io else ""
    if hypothetical and io:
        raise InputError("--hypothetical and --io exclude each other; give one")
    if part and out is not None:
        raise InputError(f"--out writes the whole validation; leave {part} out")
    if part and measured:
        raise InputError(f"--measured belongs to the whole validation; leave {part} out")
    if (counters is None) != (cases is None):
        given, other = ("--counters", "--cases") if counters else ("--cases", "--counters")
        raise InputError(f"{given} is given without {other}; counters and the calls that ran belong together")
    if counters is not None and not io:
        raise InputError("--counters belongs to --io; add it")


def _own(minutes: float) -> tuple[list[Row], str]:
    """Our kernels' measured rows: committed ones, and this GPU's."""
    rows = list(own_rows())
    if minutes == 0:
        return rows, ""
    with progress.gpu_errors(), budget("measuring", 60 * minutes) as shown:
        here, missing = measure_here(minutes, shown)
    return rows + here, missing


def _io(counters: Path | None, cases: Path | None, json: bool) -> None:
    if counters is not None and cases is not None:
        found = compare_io(read_counters(counters), read_cases(cases))
    else:
        profiler()
        with progress.gpu_errors():
            asked = list(shapes(CudaDevice().gpu))
        with steps("profiling", len(asked)) as advance:
            found = []
            for one, case in asked:
                found += compare_io(count(one, case), [case])
                advance()
    title = "Predicted and counted bytes, each kernel from a cold L2"
    show.give(json, found, [Table(title, [line for row in found for line in _bytes(row)])])


def _bytes(row: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    """A line for each quantity, in MB."""
    for name, quantity in (("HBM read", "hbm_read"), ("HBM write", "hbm_write"), ("L2", "l2")):
        error = row[f"{quantity}_error"]
        yield {
            "implementation": row["implementation"],
            "kernel": row["kernel"],
            "workload": row["workload"],
            "what": name,
            "predicted MB": f"{row[f'{quantity}_bytes'] / 1e6:.4g}",
            "counted MB": f"{row[f'{quantity}_counted'] / 1e6:.4g}",
            "error": "" if error is None else f"{100 * error:+.1f} %",
        }


def _hypothetical(sample: int, json: bool) -> None:
    with busy("predicting GPUs as if they did not exist"):
        tables = {"time": errors(outcomes(sample=sample)), "step": step_errors()}
    records = ({"kind": kind, **row} for kind, rows in tables.items() for row in rows)
    steps = Table("Steps of which the measured speedup alone is known", [_step(row) for row in tables["step"]])
    show.give(json, records, [*hypothetical_tables(tables["time"]), steps, *filter(None, [aiconfigurator.missing()])])


def _step(row: Mapping[str, Any]) -> dict[str, object]:
    low, high = row["measured_low"], row["measured_high"]
    measured = f"{low:.2f}x" if low == high else f"{low:.2f} to {high:.2f}x"
    named = {"step": f"{row['older']} to {row['newer']}", "implementation": row["implementation"]}
    asked = {"head_dim": row["head_dim"], "figures of the": row["view"]}
    return (
        named
        | asked
        | {
            "predicted": wording.ratio_text(row["predicted"], row["low"], row["high"]),
            "measured": measured,
            "off": f"{100 * row['error']:.1f} %",
        }
    )


_PRINTED = (
    *("undetermined", "dataset", "serving", "own", "given", "hypothetical", "trust", "stated", "calibration", "error"),
    *("assumed", "noise"),
)
"""The tables in the order in which they are printed; those of hypothetical GPUs have a title each."""


def _blocks(report: Report, missing: str, files: Sequence[Path]) -> Iterator[Block]:
    for name in _PRINTED:
        rows = report.tables[name]
        if name == "hypothetical":
            yield from hypothetical_tables(rows)
        elif rows:
            yield table_of(TITLES[name], rows, ("numbers",) if name == "serving" else ())
    yield from map(Unfolded, filter(None, (report.missing, missing)))
    yield from (f"written: {path}" for path in files)
    if not report.ok:
        yield "a committed calibration no longer gives its committed errors; see `attnsim fit --record`"
