"""`--kernel FILE` of `attnsim predict`, `explain` and `trace`: a kernel that was lifted from its instructions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from attnsim.api.lifted import explain_kernel, predict_kernel
from attnsim.cli import given, progress, question_flags, show
from attnsim.cli.predict_flags import PredictFlags
from attnsim.models.schedule.kernel_file import read_kernels
from attnsim.reports.explanations import file_explanation, file_row, file_trust
from attnsim.tables import Block, Table

WITHOUT_RANGE = "Times of the replay; attnsim predict has the call's with its 90 % range."

WITH_FILE = {"kernel", "gpu", "changes", "cache", "launch", "budget", "json", "verbose"}
"""Parameters that go with a kernel file in every command; the file holds shapes, tile and numbers."""


def refuse_others(context: typer.Context, *more: str) -> None:
    """Refuse every flag that a kernel file answers itself."""
    why = "is not for --kernel, whose file holds shapes, tile and fitted numbers; trace the kernel again for others"
    given.refuse(context, why, but={*WITH_FILE, *more})


WHY = "corrects implementations that are known, not a --kernel file"


def predict(file: Path, asked: PredictFlags) -> None:
    """Predict a kernel file on one or several GPUs, each unchanged and changed."""
    given.refuse(asked.context, WHY, ("calibration",))
    refuse_others(asked.context, "mode")
    conditions = asked.how.with_l2(asked.flags.l2)
    del conditions["calibration"]

    kernels = read_kernels(file)
    with progress.plays() as report:
        found = [
            predict_kernel(kernels, one, progress=report, **conditions)
            for one in question_flags.beside_unchanged(asked.gpu, asked.changes)
        ]
    first = kernels.kernels[0].origin

    def blocks() -> Iterator[Block]:
        yield f"{kernels.name} from {first.source}, sm_{first.arch}, {first.inputs} inputs\n"
        rows = [file_row(one, found[0]) for one in found]
        yield Table("", rows, ("time", "vs first", "blocks/SM"))
        yield file_trust(found)

    show.give(asked.json, (one.to_dict() for one in found), blocks(), asked.verbose)


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
    given.refuse(context, WHY, ("calibration",))
    refuse_others(context)
    del conditions["calibration"], conditions["mode"]
    machine = question_flags.beside_unchanged([gpu], changes)[-1]
    with progress.plays() as report:
        found = explain_kernel(file, machine, progress=report, **conditions)
    show.give(json, [found.to_dict()], file_explanation(found), verbose)
