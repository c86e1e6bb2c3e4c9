"""`attnsim plot`: predictions as pictures, each with the table behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnsim.cli import progress
from attnsim.cli.plot_flags import Asked, asking
from attnsim.models.errors import InputError

app = typer.Typer(
    help="Draw predictions, a CSV beside each picture. Others: attnsim roofline, trace --picture, breakeven --plot.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("scaling")
@asking(algorithm="naive,flash,linear", seq="512:131072", out=Path("scaling.png"))
def scaling(asked: Asked) -> None:
    """Time and speedup over the length, with 90 % ranges, crossovers, and where memory ends a line."""
    from attnsim.api.crossover import crossover
    from attnsim.plots.scaling import crossing_pairs
    from attnsim.plots.scaling import scaling as picture

    questions = asked.questions()
    if len(questions) < 2 or len({one.batch for one in questions}) > 1:
        raise InputError(f"scaling has one --batch and several lengths; write --seq 512:131072, not {asked.seq}")
    found = [one for _, one in asked.answers(questions)]
    machines, crossings = asked.machines(), []
    lengths = sorted(one.seq_kv for one in questions)
    if len(machines) == 1 and not asked.implementations and asked.flags.seq_kv is None:
        with progress.busy("looking for crossovers"):
            crossings = [
                crossover(slower, faster, questions[0], machines[0], shortest=lengths[0], longest=lengths[-1],
                          step=min(64, lengths[0]), cache=asked.cache, launch=asked.launch)
                for slower, faster in crossing_pairs(found)
            ]  # fmt: skip
    asked.finish(picture(found, crossings))


@app.command("units")
@asking(out=Path("units.png"))
def units(asked: Asked) -> None:
    """How long each unit is busy within the call: what is hidden under what."""
    from attnsim.plots.units import units as picture

    asked.finish(picture(asked.predictions()))


@app.command("traffic")
@asking(out=Path("traffic.png"))
def traffic(asked: Asked) -> None:
    """Bytes by tensor through HBM, asked of the L2, and in shared memory."""
    from attnsim.api.explaining import explain
    from attnsim.plots.traffic import traffic as picture

    found = [
        explain(
            one.workload, machine, one.algorithm, implementation=one.implementation, cache=asked.cache,
            launch=asked.launch,
        )
        for machine, one in asked.answers([asked.question()])
    ]  # fmt: skip
    asked.finish(picture(found))


@app.command("waves")
@asking(algorithm="flash", seq="256:8192:256", out=Path("waves.png"))
def waves(asked: Asked) -> None:
    """Waves of thread blocks over the length or the batch, how empty the last is, and the time per useful FLOP."""
    from attnsim.plots.occupancy import waves as picture

    asked.finish(picture(asked.predictions()))


@app.command("tornado")
@asking(out=Path("tornado.png"))
def tornado(
    asked: Asked,
    *,
    step: Annotated[float, typer.Option(help="By how much each figure is raised and lowered, relative.")] = 0.1,
) -> None:
    """Which figure of the GPU moves the time by how much."""
    from attnsim.api.asking import ask, read_conditions
    from attnsim.plots.series import about, names_of
    from attnsim.plots.tornado import tornado as picture
    from attnsim.studies.sensitivity import elasticities

    answers = asked.answers([asked.question()])
    predictions = [one for _, one in answers]
    found = {}
    with progress.steps("varying figures", len(answers)) as done:
        for (gpu, one), name in zip(answers, names_of(predictions), strict=True):
            question = ask(
                one.workload, gpu, one.algorithm, one.implementation,
                read_conditions(cache=asked.cache, launch=asked.launch),
            )  # fmt: skip
            found[name] = elasticities(question, step)
            done()
    asked.finish(picture(found, step, about(predictions)))
