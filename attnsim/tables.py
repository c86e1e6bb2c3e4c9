"""Tables: results as every place shows them, and the CSV files that come with the package."""

from __future__ import annotations

import csv
import io
import itertools
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from attnsim.wording import NOTHING

WIDTH = 80
"""Columns of a table in a pipe, and of sentences anywhere."""

REMARKS = 2
"""Lines below tables at most, where no details are asked for."""


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
    remarks : sequence of str
        Lines below the table that are always said.
    """

    heading: str
    rows: Sequence[Mapping[str, object]]
    right: Collection[str] = ()
    whole: Collection[str] = ()
    heads: int = 1
    remarks: Sequence[str] = ()

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

    @property
    def html(self) -> str:
        """The table as a notebook shows it."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.cells)
        below = "".join(f"<p>{escape(line)}</p>" for line in self.remarks)
        caption = f"<caption>{escape(self.heading)}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


@dataclass(frozen=True)
class Remarks:
    """Sentences below the tables of an answer.

    Parameters
    ----------
    short : str
        Level and range; a terminal prints two lines of it at most.
    details : iterable of str
        All there is to say, each line once, in place of `short` where details are asked for.
    """

    short: str
    details: Iterable[str]


class Unfolded(str):
    """A line that stays whole in a terminal of any width, such as one that names files."""


Block = str | Table | Remarks
"""A part of an answer, as people read it."""


def written(files: Iterable[Path | None]) -> Iterator[Block]:
    """The line that names the files which were written, each once; no line where there are none."""
    if names := [str(one) for one in dict.fromkeys(files) if one]:
        yield Unfolded(f"written: {', '.join(names)}")


def folded(text: str, width: int = WIDTH) -> str:
    """A text in lines of at most `WIDTH` columns, or fewer; words are never cut, its own line ends stay."""
    lines = (
        textwrap.wrap(line, min(width, WIDTH), break_long_words=False, break_on_hyphens=False) or [""]
        for line in text.split("\n")
    )
    return "\n".join(itertools.chain.from_iterable(lines))


def grouped(title: str, rows: Sequence[Mapping[str, object]], by: Sequence[str]) -> Iterator[Block]:
    """A title, and a table for each run of rows that agree in the columns `by`, whose values are its heading.

    Columns that are empty in all rows of a table are left out of it.
    """
    if title:
        yield f"{title}\n"
    for values, some in itertools.groupby(rows, key=lambda row: [row[name] for name in by]):
        mine = list(some)
        empty = {name for name in mine[0] if all(row[name] in (None, "") for row in mine)}
        heading = ", ".join(str(value) for value in values if value)
        yield Table(heading, [{k: v for k, v in row.items() if k not in empty and k not in by} for row in mine])


def texts(
    rows: Sequence[Mapping[str, Any]],
    formats: Mapping[str, Callable[[Any], object]],
    heads: Mapping[str, str] | None = None,
    without: Collection[str] = (),
) -> list[dict[str, object]]:
    """Rows for people: cells as the format of their column writes them, "" for nothing.

    Parameters
    ----------
    rows
    formats
        By column; a column without one keeps its cells.
    heads
        The heads of the columns that are shown, in their order; default: all columns by their own names.
    without
        Columns that are left out.
    """
    shown = (heads or {key: key for row in rows for key in row if key not in without}) if rows else {}
    return [{head: _formatted(row[key], formats.get(key)) for key, head in shown.items() if key in row} for row in rows]


def _formatted(value: object, form: Callable[[Any], object] | None) -> object:
    if form is None:
        return value
    return "" if value is None else form(value)


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


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """The text of a tidy table: one header, missing entries empty."""
    out = io.StringIO()
    table = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return out.getvalue()
