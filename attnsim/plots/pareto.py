"""What a search over hardware found: two objectives of every machine, and the front."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from attnsim.models.errors import InputError
from attnsim.models.hardware.sections import FIELDS
from attnsim.plots.sheet import Panel, Picture, plain_axes
from attnsim.plots.styles import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABELS = {"time": ("time, ms", 1e3), "energy": ("energy, J", 1.0), "power": ("power, W", 1.0)}
LABELLED = 8
"""Most machines of a front that are numbered beside their markers."""


def pareto(rows: Sequence[dict[str, Any]], objectives: tuple[str, str], title: str, caption: str) -> Picture:
    """The picture of two objectives of machines.

    Parameters
    ----------
    rows : sequence of dict
        As `attnsim.cli.search_hardware` writes them: objectives under ``time_s``, ``energy_j``, ``power_w`` or a
        figure's key, ``feasible`` and ``front``.
    objectives : (str, str)
    title, caption : str

    Raises
    ------
    InputError
        Without a machine that keeps the limits.
    """
    if not any(row["feasible"] for row in rows):
        raise InputError("no machine keeps the limits, so there is no front to draw; widen a limit or a range")
    panel = Panel(partial(_draw, rows=rows, objectives=objectives), 3.4)
    return Picture(title, caption, (panel,), tuple(rows[0]), tuple(rows), left=("0.001 share",))


def column(objective: str) -> str:
    """The column of an objective: ``time_s``, ``energy_j``, ``power_w``, or a figure's key."""
    return {"time": "time_s", "energy": "energy_j", "power": "power_w"}.get(objective, objective)


def _draw(axes: Axes, look: Style, *, rows: Sequence[dict[str, Any]], objectives: tuple[str, str]) -> None:
    """The first objective across, the second up."""
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
    axes.legend(frameon=False, fontsize=look.size)
    plain_axes(axes, look)


def _label(objective: str) -> str:
    return LABELS[objective][0] if objective in LABELS else f"{objective}, {FIELDS[objective].unit}"
