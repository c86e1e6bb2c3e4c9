"""The files of `attnsim validate --out`: the picture, the table of its points, and a page with all tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnsim.plots.document import Block, Document, Paragraph, Section, html_text
from attnsim.plots.errors import validation
from attnsim.reports.pictures import on_page
from attnsim.tables import Table
from attnsim.validation.checking.validate import SHARES, TITLES, Report
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
        Section(name.replace("_", "-"), title, (_table(title, report.tables[name]),))
        for name, title in TITLES.items()
        if report.tables[name]
    ]
    return html_text(Document("attnsim: predictions against measurements", tuple(lead), tuple(sections)))


def _table(caption: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    names = {name: name.replace("_", " ") for row in rows for name in row}
    numeric = [shown for name, shown in names.items() if all(_is_number(row.get(name)) for row in rows)]
    return Table(
        caption, [{shown: _cell(name, row.get(name)) for name, shown in names.items()} for row in rows], right=numeric
    )


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _cell(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{100 * value:.1f} %" if name in SHARES else f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else str(value)
