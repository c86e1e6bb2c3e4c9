"""`attnsim serving`: attention of a serving trace, step by step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnsim import wording
from attnsim.cli import options, outputs, show, table_flags
from attnsim.cli.options import flag
from attnsim.cli.progress import busy
from attnsim.cli.question_flags import QuestionFlags, asking

if TYPE_CHECKING:
    from attnsim.api.serving_steps import Served

STEPS = "Steps"
_NOT_OF_STEPS = (
    "batch",
    "seq",
    "seq_kv",
    "lengths",
    "passes",
    "operations",
    "page_size",
    "prefix",
    "tree",
    "selection",
)


@asking(without=_NOT_OF_STEPS)
def serving(
    trace: Annotated[
        Path,
        typer.Argument(metavar="TRACE", help="Requests, CSV, JSON, JSONL or Parquet: prompt, output and arrival."),
    ],
    *,
    context: typer.Context,
    maps: table_flags.Maps = [],  # noqa: B006 Typer copies it
    time_unit: table_flags.TimeUnit = None,
    gpu: options.OneGpu = "",
    implementation: options.ImplementationName = None,
    flags: QuestionFlags,
    changes: options.Changes = [],  # noqa: B006 Typer copies it
    tokens: Annotated[int, options.count("Tokens of a step at most.", STEPS)] = 2048,
    sequences: Annotated[int, options.count("Sequences that run at a time at most.", STEPS)] = 256,
    rest: Annotated[float, options.amount("Time of a step beside attention, ms.", STEPS, metavar="MS")] = 0.0,
    stride: Annotated[int, options.count("Predict one of N steps that decode alike.", STEPS)] = 8,
    launch: options.Launch = "graph",
    calibration: options.Calibration = None,
    out: Annotated[Path | None, flag("FILE", "The steps, CSV or Parquet.")] = None,
    plot: Annotated[Path | None, flag("FILE", "Picture of the steps, and its CSV.")] = None,
    look: outputs.Look,
    json: options.Json = False,
) -> None:
    """Step through a serving trace: chunked prefill, a token budget, continuous batching; attention's time by step."""
    from attnsim.api.requests import read_requests
    from attnsim.api.serving_steps import serve
    from attnsim.models.hardware.files import load_gpu
    from attnsim.models.llm.asked import title_of

    look.check_asked(context, plot)
    if out is not None:
        table_flags.check_table(out)
    found = read_requests(trace, table_flags.naming(maps, time_unit))
    question = flags.workload(seq=1)
    machine = options.changed(load_gpu(gpu), changes)
    layers, others = flags.filled.model.layers if flags.filled else 1, flags.others(seq=1)
    with busy("stepping"):
        served = serve(
            found, question, machine, implementation, layers=layers, others=others, tokens=tokens, sequences=sequences,
            rest_s=1e-3 * rest, stride=stride, launch=launch, cache=flags.cache, calibration=calibration,
        )  # fmt: skip
    written = _written(served, out, plot, look)
    if json:
        show.print_json(served.rows())
        return
    whole = replace(flags.filled, part="") if flags.filled else None
    _print(served, title_of(whole, flags.tp), flags.cache, len(found), written)


def _written(served: Served, out: Path | None, plot: Path | None, look: outputs.Look) -> list[Path]:
    written = []
    if out is not None:
        import pandas as pd

        from attnsim.models.question.case_file import write_table

        write_table(pd.DataFrame(served.rows()), out)
        written.append(out)
    if plot is not None:
        from attnsim.plots.serving import serving as picture

        written += look.write(picture(served), plot)
    return written


def _print(served: Served, title: str, cache: str | None, requests: int, written: list[Path]) -> None:
    from attnsim.api.serving_steps import LEFT_OUT

    out = show.console()
    out.print(f"{title}{requests} requests on {served.gpu}, {served.layers} layers as {served.implementation}\n")
    rows = [
        {
            "steps": row["kind"],
            "number": str(row["steps"]),
            "tokens": f"{row['tokens']:,}",
            "attention": wording.time_text(row["time_s"]),
            "share": f"{row['share']:.0%}",
            "longest": wording.time_text(row["longest_s"]),
        }
        for row in served.by_kind()
    ]
    show.print_rows(out, "Attention by kind of step", rows, right=("number", "tokens", "attention", "share", "longest"))
    total, end = wording.time_text(served.attention_s), wording.time_text(served.end_s)
    total += f" (90 % range {wording.interval_text(*served.range_s, served.attention_s)})"
    counted = f"{len(served.steps)} steps, {served.predicted} of them predicted"
    out.print(f"{total} of attention in {counted}; the trace ends at {end}.")
    out.print(f"L2 before each layer: {cache or 'cold where sequences decode, since the other layers have run'}.")
    out.print(LEFT_OUT)
    for path in written:
        out.print(f"wrote {path}")
