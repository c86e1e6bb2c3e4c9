"""`--kernel FILE` of `attnsim predict`, `explain` and `trace`: a kernel that was lifted from its instructions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from attnsim import wording
from attnsim.api.answer import Answer
from attnsim.api.asking import KernelQuestion
from attnsim.api.lifted import KernelExplanation, explain_kernel, predict_kernel
from attnsim.cli import fit_tables, given, progress, question_flags, show
from attnsim.cli.help import MACHINE
from attnsim.cli.options import flag
from attnsim.models.hardware.units import bound_text
from attnsim.models.schedule.kernel_file import read_kernels

File = Annotated[
    Path | None,
    flag(
        "FILE",
        "A kernel file that attnsim kernels trace wrote, in place of a question.",
        "--kernel",
        panel=MACHINE,
    ),
]

WITHOUT_RANGE = "Times of the replay; attnsim predict has the call's with its 90 % range."

WITH_FILE = {"kernel", "gpu", "changes", "cache", "launch", "budget", "json", "verbose"}
"""Parameters that go with a kernel file in every command; the file holds shapes, tile and numbers."""


def refuse_others(context: typer.Context, *more: str) -> None:
    """Refuse every flag that a kernel file answers itself."""
    why = "is not for --kernel, whose file holds shapes, tile and fitted numbers; trace the kernel again for others"
    given.refuse(context, why, but={*WITH_FILE, *more})


def predict(
    context: typer.Context,
    file: Path,
    gpu: list[str],
    changes: list[str],
    verbose: bool,
    json: bool,
    conditions: dict[str, Any],
) -> None:
    """Predict a kernel file on one or several GPUs, each unchanged and changed."""
    refuse_others(context, "mode")
    del conditions["calibration"]

    kernels = read_kernels(file)
    with progress.plays() as report:
        found = [
            predict_kernel(kernels, one, progress=report, **conditions)
            for one in question_flags.beside_unchanged(list(gpu), changes)
        ]
    if json:
        show.print_json(one.to_dict() for one in found)
        return
    out = show.console()
    first = kernels.kernels[0].origin
    out.print(f"{kernels.name} from {first.source}, sm_{first.arch}, {first.inputs} inputs\n")
    show.print_rows(out, "", [_row(one, found[0]) for one in found], right=("time", "vs first", "blocks/SM"))
    _print_trust(out, found, verbose)


def _row(one: Answer[KernelQuestion], first: Answer[KernelQuestion]) -> dict[str, object]:
    return {
        "gpu": one.machine,
        "time": wording.time_text(one.time_s),
        "90 % range": wording.interval_text(one.time_low_s, one.time_high_s, one.time_s),
        "vs first": str(one.speedup_over(first)),
        "busiest": bound_text(one.busiest),
        "HBM MB": wording.number((one.hbm_read_bytes + one.hbm_write_bytes) / 1e6),
        "blocks/SM": one.blocks_per_sm,
    }


def _print_trust(
    out: Console, found: Sequence[Answer[KernelQuestion]], verbose: bool, more: Iterable[str] = ()
) -> None:
    """Level and range of predictions of a kernel file; why, and what `more` there is to say, with `verbose`."""
    trusts = [one.trust for one in found]
    spread = wording.spread_text(min(one.low for one in trusts), max(one.high for one in trusts))
    reasons = [f"trust: {reason}" for one in trusts for reason in one.reasons]
    show.print_remarks(out, f"{trusts[0].level}: {spread}. -v says why.", [*more, *reasons], verbose)


def explain(
    context: typer.Context,
    file: Path,
    gpu: str,
    changes: list[str],
    verbose: bool,
    json: bool,
    conditions: dict[str, Any],
) -> None:
    """Explain a kernel file on a GPU."""
    refuse_others(context)
    del conditions["calibration"], conditions["mode"]
    machine = question_flags.beside_unchanged([gpu], changes)[-1]
    with progress.plays() as report:
        found = explain_kernel(file, machine, progress=report, **conditions)
    if json:
        show.print_json([found.to_dict()])
    else:
        _print(found, verbose)


def _print(found: KernelExplanation, verbose: bool) -> None:
    out, asked = show.console(), found.prediction
    out.print(f"{asked.implementation} on {asked.machine}\n")
    out.print(f"{found.loop_nest}\n")
    fit_tables.print_kernels(out, found.kernels)
    tensors = [
        {
            "kernel": row.kernel,
            "tensor": row.tensor,
            "": row.direction,
            "L2": wording.number(row.l2_bytes / 1e6, 4),
            "HBM": wording.number(row.hbm_bytes / 1e6, 4),
        }
        for row in found.tensors
    ]
    show.print_rows(out, "Bytes, MB: asked of the L2, passed on to HBM", tensors, right=("L2", "HBM"))
    fit_tables.print_levers(out, found.levers, bounded=found.turn is not None)
    if found.turn is not None:
        one = found.turn
        out.print(f"{one.figure} {one.factor:.2f}x: {one.next_unit.replace('_', ' ')} is as busy, {one.speedup:.2f}x")
    ranged = wording.interval_text(asked.time_low_s, asked.time_high_s, asked.time_s)
    out.print(f"Time {wording.time_text(asked.time_s)} ({ranged}), bound by {found.bound.words}.")
    _print_trust(out, [asked], verbose, ("Speedups are of replays, without a range.", *fit_tables.COLUMNS))
