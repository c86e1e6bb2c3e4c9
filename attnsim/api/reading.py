"""A person's table of calls as it is: a file or a frame, long or with a column a kernel, and what its columns are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from attnsim.errors import InputError
from attnsim.models.implementations.choose import is_named
from attnsim.models.question.case_file import read_table
from attnsim.models.question.column_names import read_columns
from attnsim.models.question.columns import NOTHING_SAID, Columns, Naming
from attnsim.models.question.headings import long_form

if TYPE_CHECKING:
    import pandas as pd


def read(table: pd.DataFrame | str | Path, naming: Naming = NOTHING_SAID) -> tuple[pd.DataFrame, Columns]:
    """A table with one call a row, and which of its columns is which.

    Parameters
    ----------
    table : pandas.DataFrame, str or Path
        A file is CSV, Parquet, Markdown or what a benchmark printed.
    naming : Naming
        What the names of the columns do not tell.

    Returns
    -------
    frame : pandas.DataFrame
        As it was given; where kernels or passes have columns of their own, a row for each, with the line of its row.
    columns : Columns

    Raises
    ------
    InputError
        When the table as a whole cannot be read; one line.
    """
    if not isinstance(table, (str, Path)):
        return _read(table, naming)
    frame = read_table(table)
    try:
        return _read(frame, naming)
    except InputError as error:
        raise InputError(f"{table}: {error}") from None


def _read(frame: pd.DataFrame, naming: Naming) -> tuple[pd.DataFrame, Columns]:
    import pandas as pd

    gathered: list[tuple[str, str]] = []
    if isinstance(frame, pd.DataFrame) and frame.columns.is_unique:  # others are refused below
        frame, naming, gathered = long_form(frame, naming, is_named)
    return frame, replace(read_columns(frame, naming), gathered=tuple(gathered))
