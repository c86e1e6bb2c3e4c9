"""`attnsim check` and `adapt`: your own timings beside predictions, and answers that are corrected by them."""

from __future__ import annotations

import sys
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from attnsim.api.adapting.adapt import adapt as adapted
from attnsim.api.adapting.adapt import script
from attnsim.api.adapting.adapt import suggest as suggested
from attnsim.api.checking import check as run
from attnsim.cli import options, outputs, show, table_flags
from attnsim.cli.look import Plot
from attnsim.cli.options import flag, switch
from attnsim.cli.question_flags import asking
from attnsim.errors import InputError
from attnsim.models.question.case_file import write_table
from attnsim.plots.check import check as picture
from attnsim.reports.timings import adapted_tables, check_tables
from attnsim.tables import written


@asking()
def check(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="CSV or Parquet: a call a line, columns named freely.")
    ],
    *,
    columns: table_flags.ColumnFlags,
    gpu: Annotated[str | None, flag("ID", "GPU of all rows, whatever the table says.")] = None,
    implementation: Annotated[str | None, flag("NAME", "Whose kernels all rows are, whatever the table says.")] = None,
    calibration: options.Calibration = None,
    out: Annotated[Path | None, flag("FILE", "The table with the predictions, CSV or Parquet.")] = None,
    apply: Annotated[
        Path | None, flag("FILE", "A copy of the table with the columns set as the likeliest reasons say.")
    ] = None,
    plot: Plot,
    json: options.Json = False,
) -> None:
    """Compare your own timings with predictions: error and 90 % range of each row, bias and coverage of all.

    Ends with 0 if every row was answered, 1 if some were not, or cannot be right, 2 if the table cannot be read.
    """
    naming = columns.naming(gpu, implementation)
    if out is not None:
        table_flags.check_table(out)
    if apply is not None:
        table_flags.check_table(apply)
        if apply.resolve() == table.resolve():
            raise InputError(f"--apply {apply} is the table itself, which is never changed; give another name")

    found = run(
        table,
        maps=naming.maps,
        time_unit=naming.time_unit,
        gpu=gpu,
        implementation=implementation,
        cells=naming.cells,
        calibration=calibration,
    )
    files = []
    if out is not None:
        write_table(found.rows, out)
        files.append(out)
    files += plot.draw(lambda: picture(found))
    if apply is not None and found.audit.reasons:
        write_table(found.audit.mended(), apply)
        files.append(apply)
    files += columns.save(found.columns, naming)
    show.give(json, found.to_dicts(), chain(check_tables(found, partial(show.fits, show.console())), written(files)))
    if apply is not None and not found.audit.reasons:
        print(f"--apply {apply}: not written, because no reason is named", file=sys.stderr)
        raise typer.Exit(1)
    if found.left_out:
        raise typer.Exit(1)


@asking(without=("save_map",))
def adapt(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="CSV or Parquet: a call a line, columns named freely.")
    ],
    columns: table_flags.ColumnFlags,
    gpu: Annotated[str | None, flag("ID", "GPU of all rows, whatever the table says.")] = None,
    implementation: Annotated[str | None, flag("NAME", "Whose kernels all rows are, whatever the table says.")] = None,
    as_stated: Annotated[
        bool,
        switch(
            "Adapt although check names a reason why rows may not be what they state, and to rows that are far off.",
            "--as-stated",
        ),
    ] = False,
    out: Annotated[Path | None, flag("FILE", "The calibration, a YAML file that --calibration takes.")] = None,
    suggest: Annotated[
        int | None, options.count("Instead, name N questions to time, of each kernel and pass.", None, high=100)
    ] = None,
    json: options.Json = False,
) -> None:
    """Correct answers near a few timings of your own, or name the shapes to time (--suggest).

    Ends with 0 if every row was used, 1 if some could not be, 2 if none can be.
    """
    naming = columns.naming(gpu, implementation)
    said: dict[str, Any] = {
        "maps": naming.maps,
        "time_unit": naming.time_unit,
        "gpu": gpu,
        "implementation": implementation,
        "cells": naming.cells,
    }
    if suggest is not None:
        if out is not None:
            raise InputError("--out is the calibration of a table's timings, and --suggest makes none; leave one out")

        asked = suggested(table, suggest, **said)
        if json:
            show.print_json([{"implementation": one.record.name, "question": str(one.w)} for one in asked])
        else:
            print(script(asked), end="")
            print("a table for attnsim adapt is what this prints on the GPU", file=sys.stderr)
        return
    if out is not None:
        if out.suffix not in (".yaml", ".yml"):
            raise InputError(f"{out}: end the name of a calibration with .yaml")
        outputs.check_output(out)

    found = adapted(table, as_stated=as_stated, **said)
    if out is not None:
        found.write(out)
    show.give(json, found.rows, adapted_tables(found, out))
    if found.left_out:
        raise typer.Exit(1)
