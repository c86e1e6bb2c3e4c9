"""The Typer application: one function per command, each in a file of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from attnsim.cli import (
    accuracy,
    algorithms,
    breakeven,
    demo,
    doctor,
    explain,
    gpus,
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
    sweep,
    trace,
    validate,
)

app = typer.Typer(
    name="attnsim",
    help="Predict how attention runs on a GPU: time, bytes, what bounds it, and how far to trust the answer.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("predict")(predict.predict)
app.command("explain")(explain.explain)
app.add_typer(gpus.app, name="gpus")
app.add_typer(models.app, name="models")
app.command("algorithms")(algorithms.algorithms)
app.command("implementations")(implementations.implementations)
app.command("roofline")(roofline.roofline)
app.add_typer(plot.app, name="plot")
app.command("breakeven")(breakeven.breakeven)
app.command("trace")(trace.trace)
app.command("report")(report.report)
app.command("accuracy")(accuracy.accuracy)
app.command("fit")(accuracy.fit)
app.command("measure")(measure.measure)
app.command("probe")(probe.probe)
app.command("validate")(validate.validate)
app.command("sweep")(sweep.sweep)
app.command("sensitivity")(sensitivity.sensitivity)
app.add_typer(search.app, name="search")
app.command("demo")(demo.demo)
app.add_typer(kernels.app, name="kernels")
app.command("doctor")(doctor.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        import attnsim

        print(f"attnsim {attnsim.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass
