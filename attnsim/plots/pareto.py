"""What a search over hardware found: two objectives of every machine, and the front."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from attnsim.models.errors import InputError
from attnsim.models.hardware.sections import FIELDS
from attnsim.models.writing import writing
from attnsim.plots.files import check_suffix, write_csv
from attnsim.plots.styles import Style, applied, find_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CAPTION_COLUMNS = 100
LABELS = {"time": ("time, ms", 1e3), "energy": ("energy, J", 1.0), "power": ("power, W", 1.0)}
LABELLED = 8
"""Most machines of a front that are numbered beside their markers."""


def pareto_figure(
    rows: Sequence[dict[str, Any]], objectives: tuple[str, str], out: Path, *, title: str, caption: str,
    style: str = "light",
) -> Path:  # fmt: skip
    """Draw two objectives of machines, and write the picture and its table.

    Parameters
    ----------
    rows : sequence of dict
        As `attnsim.cli.search` writes them: objectives under ``time_s``, ``energy_j``, ``power_w`` or a figure's key,
        ``feasible`` and ``front``.
    objectives : (str, str)
    out : Path
        `.png`, `.svg`, `.pdf` or `.pgf`; the CSV has the same stem.
    title, caption : str
    style : {"light", "dark", "print", "latex"}

    Raises
    ------
    InputError
        Also without a machine that keeps the limits.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    kind, look = check_suffix(out), find_style(style)
    if not any(row["feasible"] for row in rows):
        raise InputError("no machine keeps the limits, so there is no front to draw; widen a limit or a range")
    with applied(look):
        lines = wrap(caption, CAPTION_COLUMNS)
        bottom = 0.95 + 0.16 * len(lines)
        height = bottom + 3.4 + 0.4
        figure = Figure(figsize=(7.2, height), facecolor=look.page)
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0.1, bottom / height, 0.87, 3.4 / height))
        draw(axes, rows, objectives, look)
        figure.text(0.1, 1 - 0.26 / height, title, fontsize=look.size + 1, fontweight="bold")
        figure.legend(
            *axes.get_legend_handles_labels(), loc="lower center", ncols=3, frameon=False, fontsize=look.size,
            bbox_to_anchor=(0.535, (0.16 * len(lines) + 0.14) / height),
        )  # fmt: skip
        figure.text(0.1, 0.08 / height, "\n".join(lines), fontsize=look.size - 0.5, color=look.faint)
        with writing(out) as file:
            figure.savefig(file, format=kind, dpi=150)
    write_csv(out.with_suffix(".csv"), list(rows[0]), rows)
    return out


def column(objective: str) -> str:
    """The column of an objective: ``time_s``, ``energy_j``, ``power_w``, or a figure's key."""
    return {"time": "time_s", "energy": "energy_j", "power": "power_w"}.get(objective, objective)


def draw(axes: Axes, rows: Sequence[dict[str, Any]], objectives: tuple[str, str], look: Style) -> None:
    """The machines alone, on axes of the caller's: first objective across, second up."""
    scales = [LABELS.get(name, ("", 1.0))[1] for name in objectives]

    def places(wanted: Sequence[dict[str, Any]]) -> list[list[float]]:
        return [[row[column(name)] * scale for row in wanted] for name, scale in zip(objectives, scales, strict=True)]

    answered = [row for row in rows if row["time_s"] is not None]
    front = sorted((row for row in rows if row["front"]), key=lambda row: row[column(objectives[0])])
    beyond = [row for row in answered if not row["feasible"]]
    within = [row for row in answered if row["feasible"] and not row["front"]]
    if beyond:
        axes.plot(
            *places(beyond), linestyle="none", marker="x", markersize=4, color=look.faint, alpha=0.5,
            label="beyond a limit", zorder=2,
        )  # fmt: skip
    axes.plot(
        *places(within), linestyle="none", marker="o", markersize=4, markerfacecolor="none", color=look.colour(0),
        label="within the limits", zorder=3,
    )  # fmt: skip
    axes.plot(
        *places(front), linestyle="-", linewidth=1.2, drawstyle="steps-post", marker="D", markersize=6,
        color=look.colour(1), label="Pareto front", zorder=4,
    )  # fmt: skip
    if len(front) <= LABELLED:
        for number, (x, y) in enumerate(zip(*places(front), strict=True), start=1):
            axes.annotate(
                str(number), (x, y), xytext=(5, 5), textcoords="offset points", fontsize=look.size, color=look.text
            )
    axes.set_xlabel(_label(objectives[0]), fontsize=look.size)
    axes.set_ylabel(_label(objectives[1]), fontsize=look.size)
    axes.tick_params(labelsize=look.size)
    axes.grid(True, color=look.grid, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _label(objective: str) -> str:
    return LABELS[objective][0] if objective in LABELS else f"{objective}, {FIELDS[objective].unit}"
