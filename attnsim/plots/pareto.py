"""A search over hardware: two objectives of every machine, the front with names, the unchanged machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from attnsim.errors import InputError
from attnsim.models.hardware.sections import FIELDS
from attnsim.models.hardware.units import RESULTS, column
from attnsim.plots.sheet import Panel, Picture, dots, legend, longest, note, plain_axes, size_of
from attnsim.plots.styles import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TIMES = (("s", 1.0), ("ms", 1e3), ("µs", 1e6))
"""Units of time, the longest first, and how many of them are in a second."""
SMALL = 0.47
"""Size of machines that are not on the front, in sizes of letters."""
NAME_SHARE = 0.55
"""Share of the width beyond which the name of a machine takes a line for each figure."""


def pareto(
    rows: Sequence[dict[str, Any]],
    objectives: tuple[str, str],
    title: str,
    subtitle: str,
    caption: str,
    *,
    keys: Sequence[str] = (),
    limits: Mapping[str, float] | None = None,
    mixed: bool = False,
) -> Picture:
    """The picture of two objectives of machines.

    Parameters
    ----------
    rows : sequence of dict
        As `attnsim.studies.hardware_search` makes them: objectives under ``time_s``, ``energy_j``, ``power_w``,
        ``area_mm2``, ``cost_usd`` or a figure's key, with their low and high ends; ``feasible``, ``front`` and
        ``unchanged``.
    objectives : (str, str)
    title, subtitle, caption : str
    keys : sequence of str
        Figures that machines are named by.
    limits : mapping of str to float
        Values that an objective may not exceed, drawn as lines.
    mixed : bool
        Whether time is that of a mix of workloads, per second of the unchanged machine.

    Raises
    ------
    InputError
        Without a machine that keeps the limits.
    """
    if not any(row["feasible"] and not row["unchanged"] for row in rows):
        raise InputError("no machine keeps the limits, so there is no front to draw; widen a limit or a range")
    shown = [row for row in rows if all(row[column(name)] is not None for name in objectives)]
    if not shown:
        raise InputError(f"{' or '.join(objectives)} is not known of these machines, so there is nothing to draw")
    panel = Panel(partial(_draw, rows=shown, objectives=objectives, keys=keys, limits=limits or {}, mixed=mixed), 3.6)
    return Picture(title, caption, (panel,), tuple(rows), left=("0.001 share",), subtitle=subtitle)


def _draw(
    axes: Axes,
    look: Style,
    *,
    rows: Sequence[dict[str, Any]],
    objectives: tuple[str, str],
    keys: Sequence[str],
    limits: Mapping[str, float],
    mixed: bool,
) -> None:
    """The first objective across, the second up."""
    unit, per_second = next((one for one in TIMES if rows[0]["time_s"] * one[1] >= 1), TIMES[-1])
    scales = [per_second if name == "time" else 1.0 for name in objectives]

    def places(wanted: Sequence[dict[str, Any]]) -> list[list[float]]:
        return [[row[column(name)] * scale for row in wanted] for name, scale in zip(objectives, scales, strict=True)]

    others = [row for row in rows if not row["unchanged"]]
    front = sorted((row for row in others if row["front"]), key=lambda row: row[column(objectives[0])])
    beyond = [row for row in others if not row["feasible"]]
    within = [row for row in others if row["feasible"] and not row["front"]]
    base = [row for row in rows if row["unchanged"]]
    if beyond:
        dots(axes, places(beyond), look, look.faint, SMALL, "x", alpha=0.5, label="beyond a limit", zorder=2)
    dots(axes, places(within), look, look.colour(0), SMALL, inside="none", label="within the limits", zorder=3)
    axes.plot(
        *places(front),
        linestyle="-",
        linewidth=1.2,
        drawstyle="steps-post",
        marker="D",
        markersize=0.7 * look.size,
        color=look.colour(1),
        label="Pareto front" if len(front) > 1 else f"least {objectives[0]}",
        zorder=4,
    )
    if base:
        dots(axes, places(base), look, look.text, 1.53, "*", label="unchanged", zorder=5)
    for name, scale, line in zip(objectives, scales, (axes.axvline, axes.axhline), strict=True):
        if name in limits:
            line(limits[name] * scale, color=look.faint, linewidth=1.0, linestyle="--", zorder=1)
            _name_limit(axes, name == objectives[0], limits[name] * scale, look)
    _name(axes, front, list(zip(*places(front), strict=True)), _names(front, base, keys), look)
    axes.set_xlabel(_label(objectives[0], unit, mixed), fontsize=look.size)
    axes.set_ylabel(_label(objectives[1], unit, mixed), fontsize=look.size)
    legend(axes, look, loc="best", markerscale=0.7)
    plain_axes(axes, look)


def _names(front: Sequence[dict[str, Any]], base: Sequence[dict[str, Any]], keys: Sequence[str]) -> list[str]:
    """Names of the machines of the front: figures that differ from the unchanged machine, with their values."""
    old = base[0] if base else {}
    return [
        ", ".join(f"{key} {FIELDS[key].show(row[key])}" for key in keys if row[key] != old.get(key)) for row in front
    ]


def _name(
    axes: Axes,
    front: Sequence[dict[str, Any]],
    places: Sequence[tuple[float, float]],
    names: Sequence[str],
    look: Style,
) -> None:
    """Names below and to the left of the front, where no machine is; one too near to the last has none."""
    axes.margins(0.1)
    inches = size_of(axes)[0]
    names = [name if longest([name], look) < NAME_SHARE * inches else name.replace(", ", "\n") for name in names]
    share = min(0.9, (longest(names, look) + 0.15) / inches)
    low, high = axes.get_xlim()
    named = [place[0] for name, place in zip(names, places, strict=True) if name]
    axes.set_xlim(min([low, *((first - share * high) / (1 - share) for first in named)]), high)
    axes.autoscale(False)
    last = None
    for name, place in zip(names, places, strict=True):
        height = axes.transData.transform(place)[1] * 72 / axes.figure.dpi
        if not name or (last is not None and abs(height - last) < 1.4 * look.size * (1 + name.count("\n"))):
            continue
        last = height
        note(axes, name, place, look, (-0.8, -0.1), ha="right", va="top", zorder=6)


def _name_limit(axes: Axes, across: bool, value: float, look: Style) -> None:
    """The word "limit" beside its line, at the end of it."""
    where = (value, 1.0) if across else (1.0, value)
    transform = axes.get_xaxis_transform() if across else axes.get_yaxis_transform()
    how: Any = {
        "color": look.faint,
        "ha": "right",
        "va": "top" if across else "bottom",
        "rotation": 90 if across else 0,
    }
    note(axes, f"limit {value:,.4g}", where, look, (-0.35, -0.35 if across else 0.35), transform, **how)


def _label(objective: str, unit: str, mixed: bool) -> str:
    if objective == "time":
        return f"time of the mix (unchanged machine: 1 s), {unit}" if mixed else f"time, {unit}"
    told = RESULTS[objective].replace("mm2", "mm²") if objective in RESULTS else FIELDS[objective].unit
    return f"{objective}, {told}"
