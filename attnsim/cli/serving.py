"""`attnsim serving`: a serving trace step by step, of a model or of attention alone."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from attnsim.api.requests import read_requests
from attnsim.api.serving_steps import serve, timed_attention, timed_model
from attnsim.cli import given, options, question_flags, show, table_flags
from attnsim.cli.look import Plot
from attnsim.cli.options import flag
from attnsim.cli.progress import busy
from attnsim.cli.question_flags import CallFlags, asking
from attnsim.models.hardware.files import load_gpu
from attnsim.models.question.case_file import write_table
from attnsim.models.question.headings import frame_of
from attnsim.plots.step import serving as picture
from attnsim.reports.studies import serving_tables
from attnsim.tables import written

STEPS = "Steps"
_NOT_OF_STEPS = (
    *("batch", "seq", "seq_kv", "lengths", "passes", "operations", "page_size", "prefix", "tree", "selection"),
)


@asking(without=(*_NOT_OF_STEPS, "algorithm", "set_columns", "save_map"), gpu="", launch="graph")
def serving(
    trace: Annotated[
        Path,
        typer.Argument(metavar="TRACE", help="Requests, CSV, JSON, JSONL or Parquet: prompt, output and arrival."),
    ],
    *,
    context: typer.Context,
    columns: table_flags.ColumnFlags,
    call: CallFlags,
    tokens: Annotated[int, options.count("Tokens of a step at most.", STEPS)] = 2048,
    sequences: Annotated[int, options.count("Sequences that run at a time at most.", STEPS)] = 256,
    rest: Annotated[float, options.amount("Time of a step beside what is timed, ms.", STEPS, metavar="MS")] = 0.0,
    stride: Annotated[int, options.count("Predict one of N steps that decode alike.", STEPS)] = 8,
    ep: options.ExpertGpus = None,
    out: Annotated[Path | None, flag("FILE", "The steps, CSV or Parquet.")] = None,
    plot: Plot,
    verbose: options.Details = False,
    json: options.Json = False,
) -> None:
    """Step through a serving trace: chunked prefill, a token budget, continuous batching.

    With --model a step is all that the model runs, as predict --layer --lengths answers it; else attention alone.
    """
    if out is not None:
        table_flags.check_table(out)
    found = read_requests(trace, columns.naming())
    flags = call.flags
    asked = {**vars(call.how), "implementation": call.implementation}
    if flags.model is None:
        given.refuse(context, "goes with --model, whose experts it divides", ("ep",))
        machine = call.machine
        asked |= {"prompt": found[0].prompt, "cache": flags.cache}
        timing = timed_attention(flags.workload(seq=1), machine, **asked)
    else:
        machine = question_flags.changed(load_gpu(call.gpu), call.changes, joined=max(flags.tp, ep or 0) > 1)
        asked |= {"dtype": flags.dtype, "tp": flags.tp, "ep": ep or 0, "cache": flags.cache or "cold"}
        timing = timed_model(flags.whole, machine, kernel=flags.kernel, **asked)
    with busy("stepping"):
        served = serve(
            found,
            timing,
            machine,
            of="model" if flags.model else "attention",
            tokens=tokens,
            sequences=sequences,
            rest_s=1e-3 * rest,
            stride=stride,
        )
    files = []
    if out is not None:
        write_table(frame_of(served.rows()), out)
        files.append(out)
    files += plot.draw(lambda: picture(served))
    shared = [f"{flags.tp} GPUs share each layer"] * (flags.tp > 1) + [f"{ep} the experts"] * ((ep or 0) > 1)
    title = f"{', '.join([flags.whole.id, *shared])}: " if flags.model else ""
    blocks = chain(serving_tables(served, title, flags.cache, len(found)), written(files))
    show.give(json, served.rows(), blocks, verbose)
