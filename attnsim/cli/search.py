"""`attnsim search`: the best tile for a GPU, and the best hardware within limits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from attnsim.cli import given, help, options, outputs, progress, show
from attnsim.cli.cases import cases_of
from attnsim.cli.look import Plot
from attnsim.cli.options import flag, switch
from attnsim.cli.question_flags import CallFlags, asking
from attnsim.errors import InputError
from attnsim.plots.files import write_csv
from attnsim.reports.search import best_block, front, measured_tiles, search_blocks, tiles_record, tiles_table
from attnsim.studies.hardware_case import described
from attnsim.studies.hardware_search import rows_of, search_hardware, split_best
from attnsim.studies.hardware_space import Prices, Space
from attnsim.studies.search import measure_tiles, search_tiles
from attnsim.tables import Block, written

app = help.Commands(help="Search for the best tile of a GPU, or the best hardware within limits.", no_args_is_help=True)


@app.command("tile", example="attnsim search tile --gpu h100 --model llama-3-8b --seq 8k")
@asking()
def tile(
    *,
    call: CallFlags,
    top: Annotated[int, options.count("Tiles to print.", None)] = 12,
    verbose: options.Details = False,
    json: options.Json = False,
) -> None:
    """Replay every tile and number of stages that fits a GPU, the fastest first."""
    w = call.flags.workload()
    with progress.busy("replaying tiles"):
        found = search_tiles(w, call.machine, call.algorithm, **call.conditions)
    measured, reason = None, ""
    try:
        measured = measure_tiles(w)
    except InputError as error:
        reason = str(error)

    def blocks() -> Iterator[Block]:
        yield f"{call.flags.title}{w}\n\n{call.machine.described}, {found.implementation}\n"
        yield from tiles_table(found, top, verbose)
        if found.own:
            yield f"all times {found.own}"
        yield from measured_tiles(measured, reason if verbose else "")

    show.give(json, [tiles_record(found, measured, reason)], blocks(), verbose)


@app.command(
    "hardware",
    example="attnsim search hardware --model llama-3-8b --seq 8k --vary sm.count=100:160",
)
@asking(without=("caption",), gpu="h100-sxm5-80gb")
def hardware(
    *,
    context: typer.Context,
    vary: Annotated[list[str], flag("KEY=LOW:HIGH[:STEP]", "A figure to search over, values or 1x:2x; repeat it.")],
    limit: Annotated[
        list[str], flag("NAME<=VALUE", "time, energy, power, area, cost or a figure; values or 1.1x.")
    ] = [],  # noqa: B006 Typer copies it
    minimise: Annotated[str, flag(None, "time, energy, power, area, cost or a figure; two with a comma.")] = "time",
    case: Annotated[list[str], flag("CASE:WEIGHT", "A workload of several: 'pass=decode, seq=8192: 0.5'.")] = [],  # noqa: B006 Typer copies it
    cost: Annotated[
        str, flag("SUM", "Your prices, in US dollars: 'sm.count*5 + l2.capacity*2/MiB + area*0.3/mm2'.")
    ] = "",
    layer: Annotated[
        bool, switch("Of a model: the whole layer, projections and MLP with the attention.", "--layer")
    ] = False,
    call: CallFlags,
    split: Annotated[
        bool, switch("What each figure of the best machine brings: alone, last, on average.", "--split")
    ] = False,
    points: Annotated[int, options.count("Machines to answer at most.", None)] = 200,
    seed: Annotated[int, options.count("Of the search.", None, low=0)] = 0,
    out: Annotated[Path | None, flag("FILE", "CSV of every machine answered.")] = None,
    plot: Plot,
    verbose: options.Details = False,
    json: options.Json = False,
) -> None:
    """Find the hardware that answers a question best within limits, and what it trades.

    Ends with 1 if no machine keeps the limits.
    """
    if out is not None:
        outputs.check_output(out)
    if split and len(vary) + len(call.changes) < 2:
        raise InputError("--split shares out several figures and one varies; give --vary KEY=LOW:HIGH twice or more")
    cases, algorithm = cases_of(call.flags, case, "--layer" if layer else ""), call.algorithm
    if layer and not given.is_given(context, "algorithm"):  # as attnsim predict --layer asks
        algorithm = ""
    prices = Prices.parse(cost) if cost else None
    space = Space.read(call.machine, vary, limit)
    goals = options.words([minimise], "--minimise")
    with progress.steps("answering machines", min(points, space.size)) as done:
        found = search_hardware(
            cases,
            space,
            algorithm or None,
            objectives=goals,
            prices=prices,
            points=points,
            seed=seed,
            done=done,
            **call.conditions,
        )
    rows = rows_of(found)
    questions = [described(one, call.flags.title) for one in cases]
    if out is not None:
        write_csv(out, list(rows[0]), rows)
    drawn = plot.draw(lambda: front(found, "; ".join(questions)))
    best = split_best(found) if split else None
    table = search_blocks(found, rows, questions, cost)
    parts = [best_block(best)] if split else []
    files = written((out, *drawn))
    show.give(json, [best.to_dict()] if best else rows, chain(table, parts, files), verbose)
    if not found.feasible:
        raise typer.Exit(1)
