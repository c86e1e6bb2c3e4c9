"""The flags about a table that somebody gives: what its columns mean, and where another one goes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attnsim.cli import outputs
from attnsim.cli.options import flag
from attnsim.errors import InputError

if TYPE_CHECKING:
    from attnsim.models.question.columns import Columns, Naming

Maps = Annotated[list[str], flag("OURS=THEIRS", "Which column of the table is ours, such as heads_q=n_heads.", "--map")]
TimeUnit = Annotated[str | None, flag("UNIT", "s, ms, us or ns, where the column of times has none.", "--time-unit")]


def naming(maps: list[str], time_unit: str | None, gpu: str | None = None, implementation: str | None = None) -> Naming:
    """What the flags say of a table's columns.

    Raises
    ------
    InputError
    """
    from attnsim.models.question.columns import Naming

    found: dict[str, str] = {}
    for text in maps:
        ours, equals, theirs = (part.strip() for part in text.partition("="))
        if not (ours and equals and theirs):
            raise InputError(f"--map {text!r} is not OURS=THEIRS; write --map heads_q=n_heads")
        if ours in found:
            raise InputError(f"--map {ours} is given twice; keep one")
        found[ours] = theirs
    return Naming(found, time_unit, gpu, implementation)


def check_without_table(maps: list[str], time_unit: str | None, flag: str) -> None:
    """Refuse what is said of a table's columns where the flag with the table is not given.

    Raises
    ------
    InputError
    """
    if maps or time_unit is not None:
        raise InputError(
            f"{'--map' if maps else '--time-unit'} is about the table of {flag}; add {flag}, or leave it out"
        )


def check_table(out: Path) -> None:
    """Refuse, before anything is computed, a table that could not be written.

    Raises
    ------
    InputError
    """
    if out.suffix.lower() not in (".csv", ".parquet", ".pq"):
        raise InputError(f"{out}: end the name with .csv or .parquet, which choose the format")
    outputs.check_output(out)


def print_columns(columns: Columns) -> None:
    """Say on stderr which column was read as which, where a name is not ours."""
    if columns.foreign:
        for line in columns.table():
            unit = f" in {line['unit']}" if line["unit"] else ""
            print(f"column {line['column']}: {line['read_as']}{unit}", file=sys.stderr)
