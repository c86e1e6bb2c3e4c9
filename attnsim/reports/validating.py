"""The files of `attnsim validate --out`: the picture, the table of its points, and a page with all tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnsim.plots.document import Block, Document, Paragraph, Section, html_text
from attnsim.plots.errors import validation
from attnsim.reports.pictures import on_page
from attnsim.tables import Table
from attnsim.validation.checking.validate import SHARES, TITLES, Report
from attnsim.wording import share_text
from attnsim.writing import write_whole


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write ``validation.png``, the table of its points and ``validation.html``.

    Parameters
    ----------
    report : Report
    folder : Path
        Exists.

    Raises
    ------
    InputError
        When the folder cannot be written.
    """
    written = validation(report.points).write(folder / "validation.png")
    page = folder / "validation.html"
    write_whole(page, html_page(report))
    return [*written, page]


def html_page(report: Report) -> str:
    """A page that needs no other file."""
    verdict = (
        "Every committed calibration gives its committed errors."
        if report.ok
        else "Some committed calibrations no longer give their committed errors."
    )
    lead: list[Block] = [Paragraph(verdict), *([Paragraph(report.missing)] if report.missing else [])]
    alt = "Predicted over measured time, a line an implementation."
    shown = on_page(validation(report.points), "validation", "", alt)
    sections = [Section("picture", "Predicted over measured time", (shown,))]
    sections += [
        Section(name.replace("_", "-"), title, (table_of(title, report.tables[name]),))
        for name, title in TITLES.items()
        if report.tables[name]
    ]
    return html_text(Document("attnsim: predictions against measurements", tuple(lead), tuple(sections)))


def hypothetical_tables(rows: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    """A table for each GPU that is predicted from an older one."""
    for older, newer in dict.fromkeys((row["older"], row["newer"]) for row in rows):
        mine = [row for row in rows if (row["older"], row["newer"]) == (older, newer)]
        title = f"{newer} as if it did not exist, from {older}"
        yield table_of(title, mine, ("older", "newer", "numbers", "pairs"))


def table_of(title: str, rows: Sequence[Mapping[str, Any]], without: Collection[str] = ()) -> Table:
    """Rows of the validation with their shares in percent, columns of numbers on the right."""
    heads = {name: name.replace("_", " ") for row in rows for name in row if name not in without}
    right = [head for name, head in heads.items() if all(_is_number(row.get(name)) for row in rows)]
    return Table(title, [{head: _cell(name, row.get(name)) for name, head in heads.items()} for row in rows], right)


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _cell(name: str, value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float) and name in SHARES:
        return share_text(value)
    return f"{value:.2f}" if isinstance(value, float) and name in ("over", "bias") else value
