"""`attnsim plot`: predictions as pictures, each with the table behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from attnsim.api.asking import ask, read_conditions
from attnsim.api.comparing.baselines import check_baseline
from attnsim.api.comparing.breakeven import crossover
from attnsim.api.comparing.densities import densities
from attnsim.api.comparing.splitting import split as shared_out
from attnsim.api.explaining import explain
from attnsim.cli import help, options, progress
from attnsim.cli.options import flag
from attnsim.cli.plot_flags import Asked
from attnsim.cli.question_flags import NOT_OF_DENSITIES, asking
from attnsim.errors import InputError
from attnsim.plots.changes import split as draw_split
from attnsim.plots.changes import tornado as draw_tornado
from attnsim.plots.density import density as draw_density
from attnsim.plots.scaling import crossing_pairs
from attnsim.plots.scaling import scaling as draw_scaling
from attnsim.plots.scaling import waves as draw_waves
from attnsim.plots.series import about, names_of
from attnsim.plots.units import traffic as draw_traffic
from attnsim.plots.units import units as draw_units
from attnsim.studies.sensitivity import elasticities

app = help.Commands(
    help="Draw predictions, a CSV beside each picture. Others: attnsim roofline, trace --picture, breakeven --plot.",
    no_args_is_help=True,
)


@app.command("scaling", example="attnsim plot scaling --gpu h100 --model llama-3-8b --seq 1k:64k")
@asking(without=("lengths",), algorithm="naive,flash,linear", seq="512:131072", out=[Path("scaling.png")])
def scaling(asked: Asked, *, baseline: options.Baseline = None) -> None:
    """Time and speedup over the length, with 90 % ranges, crossovers, and where memory ends a line."""
    questions = asked.questions()
    if len(questions) < 2 or len({one.batch for one in questions}) > 1:
        raise InputError(f"scaling has one --batch and several lengths; write --seq 512:131072, not {asked.seq}")
    machines, crossings = asked.machines(), []
    check_baseline(baseline, questions[0], machines, asked.names, asked.implementations)
    found = [one for _, one in asked.answers(questions)]
    lengths = sorted(one.seq_kv for one in questions)
    usual = asked.flags.seq_kv is None and asked.tiles == "shipped"
    if len(machines) == 1 and not asked.implementations and usual:
        with progress.busy("looking for crossovers"):
            span: dict[str, Any] = {"shortest": lengths[0], "longest": lengths[-1], "step": min(64, lengths[0])}
            crossings = [
                crossover(slower, faster, questions[0], machines[0], **span, **asked.conditions)
                for slower, faster in crossing_pairs(found)
            ]
    asked.finish(draw_scaling(found, crossings, baseline))


@app.command("units", example="attnsim plot units --gpu h100 --model llama-3-8b --seq 8k")
@asking(out=[Path("units.png")])
def units(asked: Asked) -> None:
    """Draw how long each unit is busy within the call: what is hidden under what."""
    asked.finish(draw_units(asked.predictions()))


@app.command("traffic", example="attnsim plot traffic --gpu h100 --model llama-3-8b --seq 8k")
@asking(without=("calibration",), out=[Path("traffic.png")])
def traffic(asked: Asked) -> None:
    """Bytes by tensor through HBM, asked of the L2, and in shared memory."""
    found = [
        explain(
            one.workload,
            machine,
            one.algorithm,
            implementation=one.implementation,
            tiles=asked.tiles,
            cache=asked.flags.l2,
            launch=asked.how.launch,
        )
        for machine, one in asked.answers([asked.question()])
    ]
    asked.finish(draw_traffic(found))


@app.command("waves", example="attnsim plot waves --gpu h100 --model llama-3-8b --seq 256:8k:256")
@asking(without=("lengths",), algorithm="flash", seq="256:8192:256", out=[Path("waves.png")])
def waves(asked: Asked) -> None:
    """Waves of thread blocks over the length or the batch, how empty the last is, and the time per useful FLOP."""
    if len(asked.questions()) < 2:
        raise InputError(f"waves are a curve over lengths or batches; write --seq 256:8192:256, not {asked.seq}")
    asked.finish(draw_waves(asked.predictions()))


@app.command("tornado", example="attnsim plot tornado --gpu h100 --model llama-3-8b --seq 8k")
@asking(without=("calibration",), out=[Path("tornado.png")])
def tornado(
    asked: Asked,
    *,
    step: Annotated[float, options.amount("By how much each figure is raised and lowered, relative.")] = 0.1,
) -> None:
    """Draw by how much each figure of the GPU moves the time."""
    answers = asked.answers([asked.question()])
    predictions = [one for _, one in answers]
    found = {}
    with progress.steps("varying figures", len(answers)) as done:
        for (gpu, one), name in zip(answers, names_of(predictions), strict=True):
            question = ask(
                one.workload,
                gpu,
                one.algorithm,
                one.implementation,
                read_conditions(tiles=asked.tiles, cache=asked.flags.l2, launch=asked.how.launch),
            )
            found[name] = elasticities(question, step)
            done()
    asked.finish(draw_tornado(found, about(predictions)))


@app.command("density", example="attnsim plot density --gpu a100,h100 --heads 16 --head-dim 128 --seq 16k --causal")
@asking(without=("algorithm", "tiles", *NOT_OF_DENSITIES), out=[Path("density.png")])
def density(
    asked: Asked,
    *,
    pattern: Annotated[str, flag(None, "What grows: random, window or bigbird.")] = "random",
    block: Annotated[int, options.count("Tokens of a block of the pattern.")] = 64,
) -> None:
    """Time of dense flash and of sparse kernels (--implementation) over the density of the mask."""
    machines = asked.machines()
    with progress.steps("predicting", len(machines)) as done:
        found = densities(
            asked.question(),
            machines,
            pattern=pattern,
            block=block,
            sparse=asked.implementations,
            cache=asked.flags.l2,
            launch=asked.how.launch,
            calibration=asked.how.calibration,
            done=done,
        )
    asked.finish(draw_density(found))


@app.command(
    "split",
    example="attnsim plot split --gpu h100 --model llama-3-8b --seq 8k --set l2.bandwidth=2x --set sm.exp_rate=1.5x",
)
@asking(algorithm="flash", out=[Path("split.png")])
def split(asked: Asked) -> None:
    """Draw what each of several --set brings: steps from the unchanged GPU to the changed one."""
    options.check_split(asked.changes)
    changed = [(gpu, one) for gpu, one in asked.answers([asked.question()]) if gpu.changes]
    answers = [(gpu, one) for gpu, one in changed if one.fits] or changed[:1]  # whose split says why it has none
    with progress.steps("splitting", len(answers)) as done:
        found = []
        for gpu, one in answers:
            found.append(
                shared_out(one.workload, gpu, one.algorithm, implementation=one.implementation, **asked.conditions)
            )
            done()
    asked.finish(draw_split(found))
