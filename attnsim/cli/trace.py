"""`attnsim trace`: a replay as a trace for Perfetto, and the first turns of an SM as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from attnsim import wording
from attnsim.api.asking import read_conditions
from attnsim.api.lifted import trace_kernel
from attnsim.api.tracing import traces
from attnsim.cli import given, lifted, options, outputs, question_flags, show
from attnsim.cli.look import Look
from attnsim.cli.options import flag
from attnsim.cli.progress import busy
from attnsim.cli.question_flags import LaunchFlags, QuestionFlags, asking
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.schedule.kernel_file import read_kernels
from attnsim.plots.timeline import check_trace, timeline, timeline_of, write_trace
from attnsim.reports.predictions import check_window, heading
from attnsim.tables import Block, Table, texts, written


@asking()
def trace(
    *,
    context: typer.Context,
    gpu: options.ManyGpus,
    kernel: options.KernelFile = None,
    out: Annotated[Path | None, flag("FILE", "Trace, .json or .json.gz, for ui.perfetto.dev; one algorithm.")] = None,
    picture: Annotated[
        Path | None, flag("FILE", "First turns of an SM, .png, .svg or .pdf; a panel an algorithm and GPU.")
    ] = None,
    algorithm: options.AlgorithmNames = "flash",
    implementation: options.ImplementationNames = "",
    flags: QuestionFlags,
    changes: options.Changes = [],  # noqa: B006
    how: LaunchFlags,
    sms: Annotated[
        int, options.count("SMs in the trace, where the grid is small enough to be played whole.", None)
    ] = 2,
    look: Look,
    json: options.Json = False,
) -> None:
    """Show which unit of an SM does what when; a picture has the unchanged GPU beside one that --set changes."""
    look.check_asked(context, picture, "--picture")
    if kernel is not None:
        given.refuse(context, lifted.WHY, ("calibration",))
        _check(out, picture, len(options.words(gpu, "--gpu")))
        conditions: dict[str, Any] = {"cache": flags.l2, "launch": how.launch, "sms": sms}
        _trace_kernel(context, kernel, gpu, changes, out, picture, look, json, **conditions)
        return
    names = options.words([algorithm], "--algorithm")
    imitated = options.some_words(implementation, "--implementation")
    bases = [load_gpu(one) for one in options.words(gpu, "--gpu")]
    _check(out, picture, max(len(names), len(imitated)) * len(bases))
    question = flags.workload()
    check_window(question, names, flags.window)
    changed = [question_flags.changed(base, changes) for base in bases]
    pairs = zip(bases if picture else changed, changed, strict=True)
    machines = list(dict.fromkeys(one for pair in pairs for one in pair))

    asked = read_conditions(**how.with_l2(flags.l2))
    with busy("replaying"):
        found = [
            (machine, name, one)
            for machine in machines
            for name, one in traces(question, machine, names, implementation=imitated, conditions=asked, sms=sms)
        ]
    files: list[Path] = []
    title = f"{flags.title}{question}"
    if out is not None:
        about = {"workload": title, "gpu": machines[-1].described}
        files.append(write_trace(found[-1][2], out, about))
    if picture is not None:
        files += look.write(timeline_of(found, title), picture)
    kernels = [
        (machine, name, one.schedule.implementation, kernel) for machine, name, one in found for kernel in one.kernels
    ]
    records = [
        {
            "gpu": machine.described,
            "algorithm": name,
            "implementation": implementation,
            "kernel": kernel.name,
            "start_s": kernel.start_s,
            "time_s": kernel.time_s,
            "sms": kernel.sms,
            "slices": len(kernel.slices),
            "shown": kernel.shown or "everything",
        }
        for machine, name, implementation, kernel in kernels
    ]
    formats = dict.fromkeys(("start_s", "time_s"), wording.time_text) | {"slices": "{:,}".format}
    heads = {key: key.removesuffix("_s") for key in records[0] if key not in ("gpu", "sms")}

    def blocks() -> Iterator[Block]:
        yield f"{flags.title}{heading(question, names)}\n"
        for machine in machines:
            mine = [row for row, one in zip(records, kernels, strict=True) if one[0] == machine]
            yield Table(machine.described, texts(mine, formats, heads))
        yield lifted.WITHOUT_RANGE
        if how.calibration is not None:
            yield f"times of a call all multiplied alike, as {how.calibration} corrects it: attnsim predict says how"
        yield from written(files)

    show.give(json, records, blocks())


def _check(out: Path | None, picture: Path | None, runs: int) -> None:
    if out is None and picture is None:
        raise InputError("nothing to write; give --out trace.json.gz, --picture timeline.png or both")
    if out is not None:
        check_trace(out)
        outputs.check_output(out)
        if runs > 1:
            raise InputError(f"--out holds one trace, {runs} are given; give one algorithm and GPU, or only --picture")


def _trace_kernel(
    context: typer.Context,
    file: Path,
    gpu: list[str],
    changes: list[str],
    out: Path | None,
    picture: Path | None,
    look: Look,
    json: bool,
    **conditions: Any,
) -> None:
    """Show what the units of an SM do while they run a kernel file."""
    lifted.refuse_others(context, "out", "picture", "sms", "style", "width", "caption")

    kernels = read_kernels(file)
    found = question_flags.beside_unchanged(list(gpu), changes)
    chosen = found if picture is not None else found[-1:]
    with busy("replaying"):
        traces = [trace_kernel(kernels, machine, **conditions) for machine in chosen]
    files: list[Path] = []
    if out is not None:
        files.append(write_trace(traces[-1], out, {"kernel": kernels.name, "gpu": chosen[-1].described}))
    if picture is not None:
        titles = ["; ".join((one.id, *(change.setting for change in one.changes))) for one in chosen]
        drawn = timeline(traces, titles, f"{kernels.name}, lifted from PTX")
        files += look.write(drawn, picture)
    rows = [
        {"gpu": machine.described, "kernel": kernel.name, "time_s": kernel.time_s, "slices": len(kernel.slices)}
        for machine, one in zip(chosen, traces, strict=True)
        for kernel in one.kernels
    ]
    table = Table("Kernels", texts(rows, {"time_s": wording.time_text}), right=("time_s", "slices"))
    show.give(json, rows, [table, lifted.WITHOUT_RANGE, *written(files)])
