"""`attnsim validate`: everything recorded and published, set against what is predicted for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from attnsim import wording
from attnsim.cli import on_gpu, options, outputs, show, table_flags
from attnsim.cli.options import flag, switch
from attnsim.cli.progress import budget, busy, steps
from attnsim.cli.question_flags import asking
from attnsim.errors import InputError
from attnsim.kernels.gpu.cuda_device import CudaDevice
from attnsim.models.question.case_file import read_cases
from attnsim.reports.validating import write_report
from attnsim.validation.checking.hypothetical import errors, outcomes
from attnsim.validation.checking.io_errors import compare_io
from attnsim.validation.checking.ratio_steps import step_errors
from attnsim.validation.checking.validate import SHARES, STEPS, TITLES, Report
from attnsim.validation.checking.validate import validate as run
from attnsim.validation.measured import aiconfigurator
from attnsim.validation.measured.datasets import Row
from attnsim.validation.measured.own_runs import measure_here, own_rows, rows_of
from attnsim.validation.measuring.counters import count, profiler, read_counters, shapes

SAMPLE = 24
MINUTES = 3.0
_RATIOS = ("over", "bias")


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
    own, told = _own(minutes)
    with steps("validating", STEPS) as advance:
        report = run(sample, advance, own, given)
    written = []
    if out is not None:
        with busy("drawing"):
            written = write_report(report, out)
    if json:
        show.print_json([{"table": name, **row} for name, rows in report.tables.items() for row in rows])
    else:
        _print(show.console(), report, told, written)
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
    with on_gpu.told(), budget("measuring", 60 * minutes) as shown:
        here, told = measure_here(minutes, shown)
    return rows + here, told


def _io(counters: Path | None, cases: Path | None, json: bool) -> None:
    if counters is not None and cases is not None:
        found = compare_io(read_counters(counters), read_cases(cases))
    else:
        profiler()
        with on_gpu.told():
            asked = list(shapes(CudaDevice().gpu))
        with steps("profiling", len(asked)) as advance:
            found = []
            for one, case in asked:
                found += compare_io(count(one, case), [case])
                advance()
    if json:
        show.print_json(found)
        return
    title = "Predicted and counted bytes, each kernel from a cold L2"
    show.print_rows(show.console(), title, [line for row in found for line in _bytes(row)])


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
        rows, steps = errors(outcomes(sample=sample)), step_errors()
    if json:
        show.print_json([{"kind": "time", **row} for row in rows] + [{"kind": "step", **row} for row in steps])
        return
    out = show.console()
    _print_hypothetical(out, rows)
    show.print_rows(out, "Steps of which the measured speedup alone is known", [_step(row) for row in steps])
    if aiconfigurator.missing():
        out.print(aiconfigurator.missing())


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

    if isinstance(value, float) and name in SHARES:
        return f"{100 * value:.1f} %"
    if isinstance(value, float) and name in _RATIOS:
        return f"{value:.2f}"
    return value


_PRINTED = (
    *("undetermined", "dataset", "serving", "own", "given", "hypothetical", "trust", "stated", "calibration", "error"),
    *("assumed", "noise"),
)
"""The tables in the order in which they are printed; those of hypothetical GPUs have a title each."""
_COUNTED = ("undetermined", "dataset", "assumed")
_LEFT_OUT = {"serving": ("numbers",)}


def _print(out: Console, report: Report, told: str, written: Sequence[Path]) -> None:
    for name in _PRINTED:
        rows, title = report.tables[name], TITLES[name]
        if name == "hypothetical":
            _print_hypothetical(out, rows)
        elif rows:
            show.print_rows(
                out, title, rows if name in _COUNTED else [_shown(row, _LEFT_OUT.get(name, ())) for row in rows]
            )
    for line in (report.missing, told):
        if line:
            out.print(line, soft_wrap=True)
    for path in written:
        out.print(f"written: {path}")
    if not report.ok:
        out.print("a committed calibration no longer gives its committed errors; see `attnsim fit --record`")
