"""`attnsim roofline`: the ceilings of GPUs and the predicted points under them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from attnsim.api import predict
from attnsim.api.answer import Outcome
from attnsim.api.comparing.baselines import ratios_over, ratios_over_unchanged
from attnsim.cli import given, options, show, table_flags
from attnsim.cli.options import flag
from attnsim.cli.plot_flags import Drawn
from attnsim.cli.question_flags import asking
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.question.columns import Naming
from attnsim.plots.roofline import roofline as picture
from attnsim.reports.predictions import heading, predicted, trusted
from attnsim.reports.timings import measured_calls
from attnsim.tables import Block, written
from attnsim.validation.measured.own_runs import rows_of


@asking(without=("lengths", "save_map"), seq=8192, out=[Path("roofline.png")])
def roofline(
    *,
    context: typer.Context,
    asked: Drawn,
    measured: Annotated[Path | None, flag("TABLE", "Draw the calls of a case table, and how long they took.")] = None,
    columns: table_flags.ColumnFlags,
    levels: Annotated[str, flag(None, "Levels of memory with a roof: some of hbm,l2,smem.")] = "hbm",
    ceilings: Annotated[str, flag(None, "Further roofs: some of exp,fp32,mma_sync.")] = "",
    verbose: options.Details = False,
) -> None:
    """Draw rooflines with predicted points, and a CSV of them beside the picture; 32 heads of 128 without a model.

    A GPU that --set changes is drawn beside the unchanged one.
    """
    roofs = partial(
        picture,
        levels=options.words([levels], "--levels"),
        ceilings=options.some_words(ceilings, "--ceilings"),
    )
    if measured is not None:
        unchanged = [load_gpu(name) for name in options.words(asked.gpu, "--gpu")]
        given.refuse(context, "is given with --measured, whose table holds the questions", but=_WITH_MEASURED)
        found, times = _measured(measured, columns.naming(), unchanged)
        files = asked.look.write(roofs(found, unchanged, measured=times), *asked.out)
        records = ({**one.to_dict(), "measured_s": time_s} for one, time_s in zip(found, times, strict=True))
        show.give(asked.json, records, measured_calls(found, times, files))
        return
    columns.check_without("--measured")
    flags = asked.flags
    if flags.model is None:
        flags = replace(flags, heads=flags.heads or 32, head_dim=flags.head_dim or 128)
    question = flags.workload()
    answers = asked.answers([question])
    predictions = [one for _, one in answers]
    files = asked.look.write(roofs(predictions, asked.machines()), *asked.out)

    def blocks() -> Iterator[Block]:
        yield f"{flags.title}{heading(question, [one.algorithm for one in predictions])}\n"
        for machine, some in groupby(answers, key=lambda pair: pair[0]):
            found = [one for _, one in some]
            over = ratios_over_unchanged(found, predictions) if machine.changes else ratios_over(found)
            yield predicted(machine.described, found, [over], verbose)
        yield from trusted(predictions, verbose)
        yield from written(files)

    show.give(asked.json, (item.to_dict() for item in predictions), blocks(), verbose)


_WITH_MEASURED = {
    *("gpu", "out", "measured", "levels", "ceilings", "style", "width", "caption", "json", *table_flags.NAMES),
}

MOST_ROWS = 40
"""Most rows of a table in one picture."""


def _measured(table: Path, naming: Naming, gpus: Sequence[Gpu]) -> tuple[list[Outcome], list[float]]:
    """The measured calls of a table on some GPUs, predicted, and their times."""
    known = {gpu.id: gpu for gpu in gpus}
    rows = [row for row in rows_of(table, naming, table_flags.print_columns) if row.case.gpu in known]
    if not 1 <= len(rows) <= MOST_ROWS:
        raise InputError(
            f"{table} has {len(rows)} rows of {', '.join(known)}; a picture holds 1 to {MOST_ROWS}: give fewer rows"
        )
    found = [
        predict(
            row.workload,
            known[row.case.gpu],
            row.case.algorithm,
            implementation=row.record.name,
            cache=row.case.cache,
            launch=row.case.launch,
            baseline=False,
        )
        for row in rows
    ]
    return found, [row.measured_s for row in rows]
