"""`attnsim trace`: a replay as a trace for Perfetto, and the first turns of an SM as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnsim.cli import options, show
from attnsim.cli.heading import check_window, heading
from attnsim.cli.progress import busy
from attnsim.cli.question_flags import QuestionFlags, asking
from attnsim.models.errors import InputError


@asking(without=("model", "latent"))
def trace(
    *,
    gpu: options.OneGpu,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Trace, .json or .json.gz, for ui.perfetto.dev; one algorithm.")
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="First turns of an SM, .png, .svg or .pdf; a panel an algorithm."),
    ] = None,
    algorithm: options.AlgorithmNames = "flash",
    flags: QuestionFlags,
    changes: options.Changes = [],  # noqa: B006
    cache: options.Cache = "warm",
    sms: Annotated[int, options._count("SMs in the trace, where the grid is small enough to be played whole.")] = 2,
    json: options.Json = False,
) -> None:
    """Show which unit of an SM does what when."""
    from attnsim.models.hardware.files import load_gpu
    from attnsim.plots import perfetto
    from attnsim.plots.timeline import timeline

    names = options.words([algorithm], "--algorithm")
    _check(out, picture, names)
    question = flags.workload()
    check_window(question, names, flags.window)
    machine = options.changed(load_gpu(gpu), changes)
    from attnsim.api.tracing import traces

    with busy("replaying"):
        found = traces(question, machine, names, cache=cache, launch="stream", sms=sms)
    written: list[Path] = []
    about = {"workload": str(question), "gpu": machine.described}
    if out is not None:
        written.append(perfetto.write_trace(found[0], out, about))
    if picture is not None:
        written += timeline(found, names).write(picture)
    kernels = [(name, one.schedule.implementation, kernel) for name, one in zip(names, found, strict=True)
               for kernel in one.kernels]  # fmt: skip
    if json:
        show.print_json(
            {
                "algorithm": name,
                "implementation": implementation,
                "kernel": kernel.name,
                "start_s": kernel.start_s,
                "time_s": kernel.time_s,
                "sms": kernel.sms,
                "slices": len(kernel.slices),
                "left_out": kernel.left_out,
            }
            for name, implementation, kernel in kernels
        )
        return
    console = show.console()
    console.print(f"{heading(question)}\n")
    lines = [
        {
            "algorithm": name,
            "implementation": implementation,
            "kernel": kernel.name,
            "start": show.time_text(kernel.start_s),
            "time": show.time_text(kernel.time_s),
            "slices": f"{len(kernel.slices):,}",
            "shown": kernel.left_out or "everything",
        }
        for name, implementation, kernel in kernels
    ]
    show.print_rows(console, about["gpu"], lines)
    console.print(f"written: {', '.join(map(str, written))}", soft_wrap=True)


def _check(out: Path | None, picture: Path | None, names: list[str]) -> None:
    from attnsim.cli.roofline import check_picture
    from attnsim.plots import perfetto

    if out is None and picture is None:
        raise InputError("nothing to write; give --out trace.json.gz, --picture timeline.png or both")
    if out is not None:
        perfetto.check_suffix(out)
        options.check_output(out)
        if len(names) > 1:
            raise InputError(f"--out holds one algorithm, {len(names)} are given; give one, or only --picture")
    if picture is not None:
        check_picture(picture)
