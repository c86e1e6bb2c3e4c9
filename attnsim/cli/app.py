"""The Typer application: one function per command, each in a file of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated

import typer

from attnsim import bounds
from attnsim.cli import (
    accuracy,
    adapt,
    algorithms,
    breakeven,
    check,
    demo,
    doctor,
    explain,
    explore,
    gpus,
    help,
    implementations,
    kernels,
    measure,
    models,
    plot,
    predict,
    probe,
    report,
    roofline,
    search,
    sensitivity,
    serving,
    sweep,
    trace,
    validate,
    whatif,
)

app = help.Commands(
    name="attnsim",
    help="Predict how attention runs on a GPU: time, bytes, what bounds it, and how far to trust the answer.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": help.WIDTH},
)

ASK, DRAW, STUDY, CHECK, MAINTAIN = "Ask", "Draw", "Study", "Check", "Maintain"
"""The groups of commands in the help, in this order."""

LLAMA = "--model llama-3-8b --seq 8k"
QUESTION = f"--gpu h100 {LLAMA}"


def _add(group: str, name: str, command: Callable[..., None], example: str) -> None:
    app.command(name, rich_help_panel=group, example=f"attnsim {name} {example}".strip())(command)


def _add_all(group: str, name: str, commands: typer.Typer) -> None:
    app.add_typer(commands, name=name, rich_help_panel=group)


_add(ASK, "predict", predict.predict, f"{QUESTION} --set hbm.bandwidth=6TB/s")
_add(ASK, "explain", explain.explain, f"flash {QUESTION}")
_add(ASK, "whatif", whatif.whatif, f"{QUESTION} --set hbm.bandwidth=6TB/s --set sm.exp_rate=1.5x")
_add(ASK, "explore", explore.explore, "")
_add(ASK, "breakeven", breakeven.breakeven, "--gpu h100 --heads 32 --kv-heads 8 --head-dim 128 --causal --seq 64k")
_add(ASK, "sensitivity", sensitivity.sensitivity, QUESTION)
_add(ASK, "algorithms", algorithms.algorithms, "")
_add(ASK, "implementations", implementations.implementations, "--gpu h100 --pass decode")
_add_all(ASK, "gpus", gpus.app)
_add_all(ASK, "models", models.app)
_add(DRAW, "roofline", roofline.roofline, f"{QUESTION} --out roofline.pdf --width column")
_add(DRAW, "trace", trace.trace, f"{QUESTION} --picture timeline.png")
_add_all(DRAW, "plot", plot.app)
_add(STUDY, "sweep", sweep.sweep, "study.yaml --out results")
_add(STUDY, "report", report.report, "study.yaml --out report.html")
_add_all(STUDY, "search", search.app)
_add(STUDY, "serving", serving.serving, "requests.csv --gpu h100 --model llama-3-8b --tokens 2048 --plot steps.png")
_add(CHECK, "check", check.check, "mine.csv --time-unit ms")
_add(CHECK, "adapt", adapt.adapt, "mine.csv --time-unit ms --out mine.yaml")
_add(CHECK, "validate", validate.validate, "--measured results --out validation")
_add(CHECK, "accuracy", accuracy.accuracy, "--claims")
_add_all(CHECK, "kernels", kernels.app)
_add(CHECK, "measure", measure.measure, "--out results --minutes 8")
_add(CHECK, "probe", probe.probe, "--out my-gpu.yaml")
_add(MAINTAIN, "fit", accuracy.fit, "--check")
_add(MAINTAIN, "demo", demo.demo, "")
_add(MAINTAIN, "doctor", doctor.doctor, "")


def _version(wanted: bool) -> None:
    if wanted:
        import attnsim

        print(f"attnsim {attnsim.__version__}")
        raise typer.Exit


def _unbounded(wanted: bool) -> None:
    if wanted:
        os.environ[bounds.UNBOUNDED] = "1"


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
    unbounded: Annotated[
        bool,
        typer.Option(
            "--unbounded",
            help="Go on where a command takes over 2 GiB or a minute.",
            callback=_unbounded,
            is_eager=True,
        ),
    ] = False,
) -> None:
    pass
