"""Tables: results as every place shows them, and the CSV files that come with the package."""

from __future__ import annotations

import csv
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path

from attnsim.wording import NOTHING


@dataclass(frozen=True)
class Table:
    """A result for people; a terminal, a report and a web page all print this.

    Parameters
    ----------
    heading : str
    rows : sequence of mapping
        Cells by the name of their column; a row need not have all.
    right : collection of str
        Columns that are aligned to the right, besides those of plain numbers.
    whole : collection of str
        Columns whose cells a terminal never folds.
    heads : int
        How many of the first columns name the row.
    """

    heading: str
    rows: Sequence[Mapping[str, object]]
    right: Collection[str] = ()
    whole: Collection[str] = ()
    heads: int = 1

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in the order in which rows have them."""
        return list(dict.fromkeys(key for row in self.rows for key in row))

    @property
    def cells(self) -> list[list[str]]:
        """The texts of each row."""
        columns = self.columns
        return [[cell_text(row.get(name)) for name in columns] for row in self.rows]

    def is_right(self, column: str) -> bool:
        """True if a column is aligned to the right."""
        return column in self.right or all(isinstance(row.get(column), int | float | None) for row in self.rows)


def cell_text(value: object) -> str:
    """A cell: numbers in four digits, lists with commas, a dash for nothing."""
    if value is None:
        return NOTHING
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def read_csv(where: Path | Traversable) -> list[dict[str, str]]:
    """The rows of a CSV file that comes with the package, every cell as text; lines that begin with # are for people.

    Raises
    ------
    ValueError
        If a row has more or fewer cells than there are names.
    """
    names, *rows = csv.reader(line for line in where.read_text("utf-8").splitlines() if not line.startswith("#"))
    return [dict(zip(names, row, strict=True)) for row in rows]
