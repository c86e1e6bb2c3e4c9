"""`attnsim adapt`: a few timings of one's own, and answers that are corrected by them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from attnsim import wording
from attnsim.api.adapting.adapt import Adapted, script
from attnsim.api.adapting.adapt import adapt as run
from attnsim.api.adapting.adapt import suggest as suggested
from attnsim.cli import options, outputs, show, table_flags
from attnsim.cli.options import flag, switch
from attnsim.cli.question_flags import asking
from attnsim.errors import InputError
from attnsim.tables import Block, Table


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

    found = run(table, as_stated=as_stated, **said)
    if out is not None:
        found.write(out)
    show.give(json, found.rows, _blocks(found, out))
    if found.left_out:
        raise typer.Exit(1)


def _blocks(found: Adapted, out: Path | None) -> Iterator[Block]:
    line = found.check.line_name
    rows = [
        {
            line: ", ".join(map(str, row["rows"])),
            "measured": wording.time_text(row["measured_s"]),
            "model": wording.time_text(row["predicted_s"]),
            "error": wording.error_text(row["predicted_s"] / row["measured_s"]),
            "by the others": wording.time_text(row["by_the_others_s"]),
            "their error": wording.error_text(row["by_the_others_s"] and row["by_the_others_s"] / row["measured_s"]),
            "kernel": f"{row['implementation']}, {row['pass']}",
            "question": row["question"],
        }
        for row in found.rows
    ]
    yield Table(f"Timings on {found.own.gpu}", rows, right=rows[0].keys() - {"kernel", "question"})
    yield from found.notes
    for reason, where in found.left_out.items():
        yield f"{line} {', '.join(map(str, where))} not used: {reason}"
    if out is not None:
        yield f"written: {out}; give it to a question as --calibration {out}"
