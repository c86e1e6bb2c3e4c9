"""Predicted over measured time, one panel an implementation, and a page that holds the picture and the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnsim.models.writing import write_whole
from attnsim.plots.document import Block, Document, Image, Paragraph, Picture, Section, Table
from attnsim.plots.files import csv_text, write_csv
from attnsim.plots.html_page import html_text
from attnsim.plots.styles import COLOURS, SIZE
from attnsim.validation.checking.validate import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS_OF_PANELS = 5
BAND = 0.1
"""Errors within this share are inside the grey band."""
TITLE = (
    "Predicted over measured time; in the titles mean error and points. Filled: published rows that the fit did not "
    "see. Hollow: serving tables, our own runs and tables given. Grey: within 10 %."
)
MARKERS = "os^"
"""When the colours are used up they begin again with the next marker."""
RANGE = (0.4, 2.5)
"""Ratios drawn; those beyond are drawn at the edge."""

TITLES = {
    "error": "Errors on rows the fit did not see",
    "serving": "Serving tables (a sample), with the numbers that a question gets today",
    "own": "Our own kernels, measured",
    "given": "Tables of the user, measured",
    "dataset": "Rows of the serving tables",
    "hypothetical": "GPUs as if they did not exist",
    "trust": "90 % intervals: share of true times inside, and width",
    "stated": "The same of the intervals as stated, on serving rows that did not set them",
    "calibration": "Committed calibrations, mean errors then and now",
    "undetermined": "Fitted numbers that their rows leave open",
    "assumed": "What measured rows do not say of their conditions, and how it is taken",
    "noise": "Noise of the data: one measured time over another, mean size of the log",
    "error_by_length": "Errors by source, implementation, pass and length",
}
SHARES = ("mean", "median", "p90", "worst", "step", "at_home", "coverage", "mean_error", "committed", "now")


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
    picture, table, page = (folder / f"validation.{kind}" for kind in ("png", "csv", "html"))
    drawn = BytesIO()
    points = report.points
    validation_figure(points).savefig(drawn, format="png", dpi=110)
    write_whole(picture, drawn.getvalue())
    write_csv(table, list(points[0]), points)
    write_whole(page, html_page(report, drawn.getvalue()))
    return [picture, table, page]


def validation_figure(points: Sequence[Mapping[str, Any]]) -> Figure:
    """Predicted over measured time against the measured time, log-log, with a 10 % band.

    Parameters
    ----------
    points : sequence of mapping
        As `Report.points` gives them.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = sorted({str(point["implementation"]) for point in points})
    gpus = sorted({str(point["gpu"]) for point in points})
    lines = ceil(len(names) / COLUMNS_OF_PANELS)
    figure = Figure(figsize=(15, 1.6 + 2.2 * lines), facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.subplots(lines, COLUMNS_OF_PANELS, sharex=True, sharey=True, squeeze=False)
    panels = list(grid.flat)
    for axes, name in zip(panels, names, strict=False):
        _panel(axes, name, [point for point in points if point["implementation"] == name], gpus)
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    for axes in panels[max(0, len(names) - COLUMNS_OF_PANELS) : len(names)]:
        axes.tick_params(labelbottom=True)  # the lowest panel of each column names the times
    handles = [
        panels[0].plot([], [], _marker(place), markersize=5, color=COLOURS[place % len(COLOURS)], label=gpu)[0]
        for place, gpu in enumerate(gpus)
    ]
    height = figure.get_figheight()
    figure.subplots_adjust(left=0.05, right=0.985, bottom=0.95 / height, top=1 - 0.8 / height, hspace=0.3, wspace=0.08)
    figure.legend(handles=handles, loc="lower center", ncols=len(gpus), frameon=False, fontsize=SIZE)
    figure.text(0.05, 1 - 0.35 / height, TITLE, fontsize=10.5)
    figure.text(0.5, 0.42 / height, "measured time, s", fontsize=SIZE + 1, ha="center")
    figure.text(0.012, 0.5, "predicted over measured time", fontsize=SIZE + 1, rotation=90, va="center")
    return figure


def _marker(place: int) -> str:
    return MARKERS[min(place // len(COLOURS), len(MARKERS) - 1)]


def _panel(axes: Axes, name: str, points: Sequence[Mapping[str, Any]], gpus: Sequence[str]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(*RANGE)
    axes.set_yticks([0.5, 0.7, 1.0, 1.4, 2.0], ["0.5", "0.7", "1", "1.4", "2"])
    axes.minorticks_off()
    axes.axhspan(1 - BAND, 1 + BAND, color="#E4E4E4", zorder=0)
    axes.axhline(1.0, color="#888888", linewidth=0.8, zorder=1)
    for place, gpu in enumerate(gpus):
        colour = COLOURS[place % len(COLOURS)]
        for seen, face in ((True, colour), (False, "none")):
            mine = [point for point in points if point["gpu"] == gpu and (point["kind"] == "held out") == seen]
            shown = [min(max(point["ratio"], RANGE[0]), RANGE[1]) for point in mine]
            axes.plot(
                [point["measured_s"] for point in mine], shown, _marker(place), markersize=3, markerfacecolor=face,
                markeredgecolor=colour, markeredgewidth=0.6, alpha=0.8, clip_on=False,
            )  # fmt: skip
    error = sum(abs(point["ratio"] - 1) for point in points) / len(points)
    axes.set_title(f"{name}: {100 * error:.1f} %, {len(points)}", fontsize=SIZE, loc="left")
    axes.tick_params(labelsize=SIZE - 1)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def html_page(report: Report, picture: bytes) -> str:
    """A page that needs no other file.

    Parameters
    ----------
    report : Report
    picture : bytes
        PNG.
    """
    verdict = (
        "Every committed calibration gives its committed errors."
        if report.ok
        else "Some committed calibrations no longer give their committed errors."
    )
    lead: list[Block] = [Paragraph(verdict), *([Paragraph(report.missing)] if report.missing else [])]
    shown = Picture("validation", TITLE, "Predicted over measured time, a panel an implementation.", (Image(picture),),
                    csv_text(list(report.points[0]), report.points).encode(), widest=68)  # fmt: skip
    sections = [Section("picture", "Predicted over measured time", (shown,))]
    sections += [
        Section(name.replace("_", "-"), TITLES[name], (_table(TITLES[name], report.tables[name]),))
        for name in TITLES
        if report.tables[name]
    ]
    return html_text(Document("attnsim: predictions against measurements", tuple(lead), tuple(sections)))


def _table(caption: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    numeric = [name for name in columns if all(_is_number(row.get(name)) for row in rows)]
    return Table(
        caption,
        tuple(name.replace("_", " ") for name in columns),
        tuple(tuple(_cell(name, row.get(name)) for name in columns) for row in rows),
        right=tuple(name.replace("_", " ") for name in numeric),
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
