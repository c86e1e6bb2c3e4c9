"""`attnsim search`: the best tile for a GPU, and the best hardware within limits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnsim.cli import options, progress, show
from attnsim.cli.question_flags import QuestionFlags, asking
from attnsim.cli.roofline import check_picture
from attnsim.models.errors import InputError

if TYPE_CHECKING:
    from attnsim.studies.search import MeasuredTiles, TileSearch

app = typer.Typer(help="Search for the best tile of a GPU, or the best hardware within limits.", no_args_is_help=True)


@app.command("tile")
@asking(without=("head_dim_v", "latent"))
def tile(
    *,
    gpu: options.OneGpu,
    algorithm: options.AlgorithmName = "flash",
    implementation: options.ImplementationName = None,
    flags: QuestionFlags,
    changes: options.Changes = [],  # noqa: B006 Typer copies it
    cache: options.Cache = "warm",
    launch: options.Launch = "stream",
    top: Annotated[int, typer.Option(min=1, help="Tiles to print.")] = 12,
    json: options.Json = False,
) -> None:
    """Replay every tile and number of stages that fits a GPU, the fastest first."""
    from attnsim.models.hardware.files import load_gpu
    from attnsim.studies.search import measure_tiles, search_tiles

    w = flags.workload()
    machine = options.changed(load_gpu(gpu), changes)
    with progress.busy("replaying tiles"):
        found = search_tiles(w, machine, algorithm, implementation=implementation, cache=cache, launch=launch)
    measured, reason = None, ""
    try:
        measured = measure_tiles(w)
    except InputError as error:
        reason = str(error)
    if json:
        show.print_json([_tiles_record(found, measured, reason)])
        return
    out = show.console()
    out.print(f"{w}\n\n{machine.described}, {found.implementation}\n", soft_wrap=True)
    _print_tiles(out, found, top)
    _print_measured(out, measured, reason)


@app.command("hardware")
@asking(without=("head_dim_v", "latent"))
def hardware(
    *,
    vary: Annotated[
        list[str],
        typer.Option("--vary", metavar="KEY=LOW:HIGH[:STEP]", help="A figure to search over; repeat it."),
    ],
    limit: Annotated[
        list[str],
        typer.Option("--limit", metavar="NAME<=VALUE", help="time, energy, power or a GPU's figure; repeat it."),
    ] = [],  # noqa: B006 Typer copies it
    minimise: Annotated[str, typer.Option(help="time, energy, power or a GPU's figure; two with a comma.")] = "time",
    gpu: options.OneGpu = "h100-sxm5-80gb",
    algorithm: options.AlgorithmName = "flash",
    implementation: options.ImplementationName = None,
    flags: QuestionFlags,
    changes: options.Changes = [],  # noqa: B006 Typer copies it
    cache: options.Cache = "warm",
    launch: options.Launch = "stream",
    points: Annotated[int, typer.Option(min=1, help="Machines to answer at most.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Of the search.")] = 0,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="CSV of every machine answered.")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Picture of the front, .png, .svg, .pdf or .pgf, with its CSV.")
    ] = None,
    style: options.StyleName = "light",
    json: options.Json = False,
) -> None:
    """Find the hardware that answers a question best within limits, and what it trades."""
    from attnsim.cli.search_hardware import plot_front, print_search, rows_of
    from attnsim.models.hardware.files import load_gpu
    from attnsim.studies.hardware_search import search_hardware
    from attnsim.studies.hardware_space import Space

    if plot is not None:
        check_picture(plot)
    if out is not None:
        options.check_output(out)
    w = flags.workload()
    space = Space.read(options.changed(load_gpu(gpu), changes), vary, limit)
    with progress.rate("answering machines", min(points, space.size)) as done:
        found = search_hardware(
            w, space, algorithm, implementation=implementation, objectives=options.words([minimise], "--minimise"),
            points=points, seed=seed, cache=cache, launch=launch, done=done,
        )  # fmt: skip
    rows = rows_of(found)
    if out is not None:
        from attnsim.plots.files import write_csv

        write_csv(out, list(rows[0]), rows)
    if plot is not None:
        plot_front(found, rows, plot, f"{w}", style)
    if json:
        show.print_json(rows)
        return
    print_search(found, rows, f"{w}")
    files = dict.fromkeys(filter(None, (out, plot, plot and plot.with_suffix(".csv"))))
    print(f"written: {', '.join(map(str, files))}" if files else "", end="\n" * bool(files))


def _tiles_record(found: TileSearch, measured: MeasuredTiles | None, reason: str) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "implementation": found.implementation,
        "tiles": [asdict(one) for one in found.tiles],
        "short_list_regret": found.regret,
        "short_list_regret_with_stages": found.regret_with_stages,
        "measured": None if measured is None else asdict(measured) | {"regret": measured.regret},
        "not_measured": reason or None,
    }


def _print_tiles(out: Any, found: TileSearch, top: int) -> None:
    shown = list(found.tiles[:top])
    if found.shipped is not None and found.shipped not in shown:
        shown.append(found.shipped)
    rows: list[dict[str, object]] = [
        {
            "rank": found.tiles.index(one) + 1,
            "tile": one.tile,
            "time": show.time_text(one.time_s),
            "over best": f"{100 * (one.time_s / found.best.time_s - 1):.1f} %",
            "blocks/SM": one.blocks_per_sm,
            "limited by": one.limited_by,
            "waves": show.number(one.waves),
            "bound": show.bound_text(one.bound),
            "": "shipped" if one.shipped else "" if one.own_stages else "other stages",
        }
        for one in shown
    ]
    show.print_rows(out, "", rows, right=("time", "over best", "waves"), whole=("tile",))
    from attnsim.api.retuning import REPLAYED_CANDIDATES

    own = sum(one.own_stages for one in found.tiles)
    out.print(
        f"{len(found.tiles)} tiles fit, {own} of them with the implementation's own stages. The {REPLAYED_CANDIDATES} "
        f"that --tiles retuned replays lose {100 * found.regret:.2f} % to the best of those {own} and "
        f"{100 * found.regret_with_stages:.2f} % to the best of all."
    )
    out.print("Other stages are the model's alone: no measurement of such a kernel stands behind them.")


def _print_measured(out: Any, measured: MeasuredTiles | None, reason: str) -> None:
    if measured is None:
        out.print(f"not measured: {reason}")
        return
    rows: list[dict[str, object]] = [
        {"tile": one.tile, "measured": show.time_text(one.measured_s), "model": show.time_text(one.predicted_s)}
        for one in measured.tiles
    ]
    show.print_rows(out, f"\nown flash kernel measured on {measured.gpu}", rows, right=("measured", "model"))
    out.print(f"the model takes {measured.choice.tile}: regret {100 * measured.regret:.1f} % against the fastest")
