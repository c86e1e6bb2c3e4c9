"""`--kernel FILE` of `attnsim predict`, `explain` and `trace`: a kernel that was lifted from its instructions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnsim import wording
from attnsim.cli import fit_tables, given, options, outputs, progress, show
from attnsim.cli.options import flag
from attnsim.models.hardware.units import bound_text

if TYPE_CHECKING:
    from attnsim.api.answer import Answer
    from attnsim.api.asking import KernelQuestion
    from attnsim.api.lifted import KernelExplanation

File = Annotated[
    Path | None,
    flag(
        "FILE",
        "A kernel file that attnsim kernels trace wrote, in place of a question.",
        "--kernel",
        panel=options.MACHINE,
    ),
]

WITHOUT_RANGE = "Times of the replay; attnsim predict has the call's with its 90 % range."

WITH_FILE = {"kernel", "gpu", "changes", "cache", "launch", "budget", "json"}
"""Parameters that go with a kernel file in every command; the file holds shapes, tile and numbers."""


def refuse_others(context: typer.Context, *more: str) -> None:
    """Refuse every flag that a kernel file answers itself.

    Raises
    ------
    InputError
    """
    why = "is not for --kernel, whose file holds shapes, tile and fitted numbers; trace the kernel again for others"
    given.refuse(context, why, but={*WITH_FILE, *more})


def predict(
    context: typer.Context, file: Path, gpu: list[str], changes: list[str], json: bool, **conditions: Any
) -> None:
    """Predict a kernel file on one or several GPUs, each unchanged and changed."""
    refuse_others(context, "mode")
    from attnsim.api.lifted import predict_kernel
    from attnsim.models.schedule.kernel_file import read_kernels

    kernels = read_kernels(file)
    with progress.plays() as told:
        found = [
            predict_kernel(kernels, one, told=told, **conditions)
            for one in options.beside_unchanged(list(gpu), changes)
        ]
    if json:
        show.print_json(one.to_dict() for one in found)
        return
    out = show.console()
    first = kernels.kernels[0].origin
    out.print(f"{kernels.name} from {first.source}, sm_{first.arch}, {first.inputs} inputs\n")
    show.print_rows(out, "", [_row(one, found[0]) for one in found], right=("time", "vs first", "blocks/SM"))
    for text in dict.fromkeys(str(reason) for one in found for reason in one.trust.reasons[:1]):
        out.print(f"trust: {found[0].trust.level}: {text}")


def _row(one: Answer[KernelQuestion], first: Answer[KernelQuestion]) -> dict[str, object]:
    return {
        "gpu": one.machine,
        "time": wording.time_text(one.time_s),
        "90 % range": wording.interval_text(one.time_low_s, one.time_high_s, one.time_s),
        "vs first": wording.times_text(first.time_s / one.time_s),
        "busiest": bound_text(one.busiest),
        "HBM MB": wording.number((one.hbm_read_bytes + one.hbm_write_bytes) / 1e6),
        "blocks/SM": one.blocks_per_sm,
    }


def explain(context: typer.Context, file: Path, gpu: str, changes: list[str], json: bool, **conditions: Any) -> None:
    """Explain a kernel file on a GPU."""
    refuse_others(context)
    from attnsim.api.lifted import explain_kernel

    machine = options.beside_unchanged([gpu], changes)[-1]
    with progress.plays() as told:
        found = explain_kernel(file, machine, told=told, **conditions)
    if json:
        show.print_json([found.to_dict()])
    else:
        _print(found)


def _print(found: KernelExplanation) -> None:
    out, asked = show.console(), found.prediction
    out.print(f"{asked.implementation} on {asked.machine}\n")
    out.print(f"{found.loop_nest}\n")
    fit_tables.print_kernels(out, found.fits)
    tensors = [
        {
            "kernel": row["kernel"],
            "tensor": row["tensor"],
            "": row["direction"],
            "L2": wording.number(float(str(row["l2_bytes"])) / 1e6, 4),
            "HBM": wording.number(float(str(row["hbm_bytes"])) / 1e6, 4),
        }
        for row in found.tensors
    ]
    show.print_rows(out, "Bytes, MB: asked of the L2, passed on to HBM", tensors, right=("L2", "HBM"))
    fit_tables.print_levers(out, found.levers, bounded=found.turn is not None)
    out.print("Speedups are of replays, without a range.")
    if found.turn is not None:
        one = found.turn
        out.print(f"{one.figure} {one.factor:.2f}x: {one.next_unit.replace('_', ' ')} is as busy, {one.speedup:.2f}x")
    ranged = wording.interval_text(asked.time_low_s, asked.time_high_s, asked.time_s)
    out.print(f"Time {wording.time_text(asked.time_s)} ({ranged}), bound by {found.bound.words}.")
    out.print(f"trust: {asked.trust.summary}")


def trace(
    context: typer.Context,
    file: Path,
    gpu: list[str],
    changes: list[str],
    out: Path | None,
    picture: Path | None,
    look: outputs.Look,
    json: bool,
    **conditions: Any,
) -> None:
    """Show what the units of an SM do while they run a kernel file."""
    refuse_others(context, "out", "picture", "sms", "style", "width", "caption")
    from attnsim.api.lifted import trace_kernel
    from attnsim.models.schedule.kernel_file import read_kernels
    from attnsim.plots import perfetto
    from attnsim.plots.timeline import timeline

    kernels = read_kernels(file)
    found = options.beside_unchanged(list(gpu), changes)
    chosen = found if picture is not None else found[-1:]
    with progress.busy("replaying"):
        traces = [trace_kernel(kernels, machine, **conditions) for machine in chosen]
    written: list[Path] = []
    if out is not None:
        written.append(perfetto.write_trace(traces[-1], out, {"kernel": kernels.name, "gpu": chosen[-1].described}))
    if picture is not None:
        titles = ["; ".join((one.id, *(change.setting for change in one.changes))) for one in chosen]
        drawn = timeline(traces, titles, f"{kernels.name}, lifted from PTX")
        written += look.write(drawn, picture)
    rows = [
        {"gpu": machine.described, "kernel": kernel.name, "time_s": kernel.time_s, "slices": len(kernel.slices)}
        for machine, one in zip(chosen, traces, strict=True)
        for kernel in one.kernels
    ]
    if json:
        show.print_json(rows)
        return
    console = show.console()
    shown = [row | {"time_s": wording.time_text(float(str(row["time_s"])))} for row in rows]
    show.print_rows(console, "Kernels", shown, right=("time_s", "slices"))
    console.print(WITHOUT_RANGE)
    console.print(f"written: {', '.join(map(str, written))}", soft_wrap=True)
