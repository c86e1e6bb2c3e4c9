"""`--kernel FILE` of `attnsim predict`, `explain` and `trace`: a kernel that was lifted from its instructions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnsim import wording
from attnsim.api.answer import Answer
from attnsim.api.asking import KernelQuestion
from attnsim.api.lifted import KernelExplanation, explain_kernel, predict_kernel
from attnsim.cli import given, progress, question_flags, show
from attnsim.cli.help import MACHINE
from attnsim.cli.options import flag
from attnsim.models.schedule.kernel_file import read_kernels
from attnsim.reports.explanations import COLUMNS, LEVERS, bytes_table, kernels_table, levers_table
from attnsim.reports.predictions import cells
from attnsim.tables import Block, Remarks, Table

if TYPE_CHECKING:
    from attnsim.cli.predict import PredictFlags

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
        rows = [_row(one, found[0]) for one in found]
        yield Table("", rows, ("time", "vs first", "blocks/SM"))
        yield _trust(found)

    show.give(asked.json, (one.to_dict() for one in found), blocks(), asked.verbose)


def _row(one: Answer[KernelQuestion], first: Answer[KernelQuestion]) -> dict[str, object]:
    return {
        "gpu": one.machine,
        **cells(one, "time", "90 % range"),
        "vs first": str(one.speedup_over(first)),
        **cells(one, "busiest"),
        "HBM MB": wording.number((one.hbm_read_bytes + one.hbm_write_bytes) / 1e6),
        "blocks/SM": one.blocks_per_sm,
    }


def _trust(found: Sequence[Answer[KernelQuestion]], more: Iterable[str] = ()) -> Remarks:
    """Level and range of predictions of a kernel file; why, and what `more` there is to say, where it is asked for."""
    trusts = [one.trust for one in found]
    spread = wording.spread_text(min(one.low for one in trusts), max(one.high for one in trusts))
    reasons = [f"trust: {reason}" for one in trusts for reason in one.reasons]
    return Remarks(f"{trusts[0].level}: {spread}. -v says why.", [*more, *reasons])


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
    show.give(json, [found.to_dict()], _explanation(found), verbose)


def _explanation(found: KernelExplanation) -> Iterator[Block]:
    asked = found.prediction
    yield f"{asked.implementation} on {asked.machine}\n"
    yield f"{found.loop_nest}\n"
    yield kernels_table(found.kernels)
    yield bytes_table(found.tensors)
    yield levers_table(found.levers, LEVERS, as_busy=True, bounded=found.turn is not None)
    if found.turn is not None:
        one = found.turn
        yield f"{one.figure} {one.factor:.2f}x: {one.next_unit.replace('_', ' ')} is as busy, {one.speedup:.2f}x"
    time, ranged = cells(asked, "time", "90 % range").values()
    yield f"Time {time} ({ranged}), bound by {found.bound.words}."
    yield _trust([asked], ("Speedups are of replays, without a range.", COLUMNS))
