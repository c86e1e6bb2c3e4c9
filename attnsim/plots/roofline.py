"""The roofline picture: ceilings and diagonals of GPUs, predicted points, and a table that names them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnsim.models.gpu import Gpu
from attnsim.models.roofline import LEVELS
from attnsim.plots.files import check_suffix, write_atomically, write_csv
from attnsim.plots.roofline_data import COLUMNS, Entry, Machine, Predicted, entries, machines, rows
from attnsim.plots.roofline_labels import (
    COLOURS,
    SIZE,
    Box,
    ceiling_labels,
    diagonal_labels,
    numbers,
    ridges,
    short,
    to_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES = {"tensor": "-", "exp": ":", "fp32": "-."}
MARKERS = {"hbm": "o", "l2": "s"}


def roofline_figure(gpus: Sequence[Gpu], predictions: Sequence[Predicted], out: Path) -> Path:
    """Draw the rooflines of `gpus` with `predictions` on them, and write the picture and the CSV behind it.

    Parameters
    ----------
    gpus : sequence of Gpu
        One colour each.
    predictions : sequence
        Objects such as `attnsim.api.Prediction`, on those GPUs; one that does not fit is listed, not drawn.
    out : Path
        `.png`, `.svg` or `.pdf`; the CSV has the same stem.

    Returns
    -------
    Path
        `out`.

    Raises
    ------
    InputError
        No GPU, a prediction for another GPU, an unknown suffix, or a path that cannot be written.
    """
    out = Path(out)
    kind = check_suffix(out)
    drawn = machines(gpus, predictions)
    shown = entries(drawn, predictions)
    figure = _draw(drawn, shown)
    write_atomically(out, lambda path: figure.savefig(path, format=kind, dpi=150))
    write_csv(out.with_suffix(".csv"), COLUMNS, rows(drawn, shown))
    return out


def _draw(drawn: Sequence[Machine], shown: Sequence[Entry]) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = 7 + len(shown) + 2 * len(drawn)
    height = max(7.5, 0.235 * lines + 1.6)
    figure = Figure(figsize=(15.5, height), facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.05, 0.62 / height + 0.075, 0.475, 1 - 1.1 / height - 0.075))
    table = figure.add_axes((0.545, 0.02, 0.445, 0.96))
    _scales(axes, drawn, shown)
    for number, machine in enumerate(drawn):
        _lines(axes, machine, COLOURS[number % len(COLOURS)])
    ceiling_labels(axes, drawn)
    ridges(axes, drawn)
    taken = _markers(axes, shown)
    diagonal_labels(axes, drawn, taken)
    numbers(axes, shown, taken)
    _table(table, drawn, shown, height)
    figure.text(0.05, 0.16 / height, _caption(drawn, shown), fontsize=SIZE, va="bottom", color="#333333")
    return figure


def _scales(axes: Axes, drawn: Sequence[Machine], shown: Sequence[Entry]) -> None:
    points = [point for entry in shown for point in entry.points.values()]
    ridges = [machine.roofline.ridge(level) for machine in drawn for level in LEVELS]
    tops = [c.flops_per_s for machine in drawn for c in machine.roofline.ceilings]
    xs = [point.intensity for point in points] + ridges
    ys = [point.flops_per_s for point in points] + [min(tops)]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(min(min(xs) / 4, min(ridges) / 12), max(xs) * 6)
    low = min(min(ys) / 3, min(tops) / 8)
    axes.set_ylim(low / 1e12, max(tops) * 2.2 / 1e12)
    axes.set_xlabel("useful FLOPs per byte moved")
    axes.set_ylabel("useful TFLOP/s")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(True, which="major", color="#E4E4E4", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.set_title("Roofline: predicted attention", loc="left", fontsize=12, fontweight="bold")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _lines(axes: Axes, machine: Machine, colour: str) -> None:
    """Diagonals up to the tensor ceiling, ceilings from where the L2 reaches them."""
    left, right = axes.get_xlim()
    roofline = machine.roofline
    top = roofline.ceiling("tensor")
    for diagonal in roofline.diagonals:
        width = 1.8 if diagonal.level == "hbm" else 1.0
        for rate, style in ((diagonal.bytes_per_s, "-"), (diagonal.achievable_bytes_per_s, (0, (5, 3)))):
            x = np.array([left, top / rate])
            axes.plot(x, x * rate / 1e12, color=colour, linewidth=width, linestyle=style, zorder=2)
    l2 = roofline.bandwidth("l2")
    for ceiling in roofline.ceilings:
        x = np.array([ceiling.flops_per_s / l2, right])
        y = np.full(2, ceiling.flops_per_s / 1e12)
        width = 1.8 if ceiling.unit == "tensor" else 1.2
        axes.plot(x, y, color=colour, linewidth=width, linestyle=STYLES[ceiling.unit], zorder=2)


def _markers(axes: Axes, shown: Sequence[Entry]) -> list[Box]:
    """Hollow markers, and the places that they take."""
    taken = []
    for entry in shown:
        for level, point in entry.points.items():
            x, y = to_axes(axes, point.intensity, point.flops_per_s / 1e12)
            taken.append((x - 0.009, y - 0.012, x + 0.009, y + 0.012))
            axes.plot(
                [point.intensity], [point.flops_per_s / 1e12], MARKERS[level], markersize=8,
                markerfacecolor="white",
                markeredgecolor=COLOURS[entry.machine % len(COLOURS)], markeredgewidth=1.6, zorder=5,
            )  # fmt: skip
    return taken


def _table(axes: Axes, drawn: Sequence[Machine], shown: Sequence[Entry], height: float) -> None:
    """The GPUs with their ceilings and ridges, then the numbered points."""
    axes.set_axis_off()
    line = 0.235 / (0.96 * height)
    columns: tuple[float, ...] = (0.0, 0.335, 0.41, 0.485, 0.63, 0.775, 0.885, 1.0)
    head: tuple[str, ...] = ("GPU", "tensor", "fp32", "exp", "HBM TB/s", "L2 TB/s", "HBM ridge", "L2 ridge")
    y = _row(axes, 1.0, columns, head, "black", left=1, bold=True) - line
    for number, machine in enumerate(drawn):
        roofline = machine.roofline
        rates = [short(c.flops_per_s / 1e12) for c in roofline.ceilings]
        bands = [f"{d.bytes_per_s / 1e12:.3g} ({d.achievable_bytes_per_s / 1e12:.3g})" for d in roofline.diagonals]
        ridges = [short(roofline.ridge(level)) for level in LEVELS]
        cells: tuple[str, ...] = (f"● {machine.label}", *rates, *bands, *ridges)
        y = _row(axes, y, columns, cells, COLOURS[number % len(COLOURS)], left=1) - line
    y -= 0.6 * line
    columns = (0.0, 0.035, 0.265, 0.465, 0.71, 0.776, 0.868, 0.928, 1.0)
    head = ("", "algorithm", "implementation", "GPU", "HBM", "L2", "TFLOP/s", "roof", "bound")
    y = _row(axes, y, columns, head, "black", left=4, bold=True) - line
    for entry in shown:
        item = entry.prediction
        tiles = getattr(item, "tiles", "shipped")
        name = item.algorithm if tiles == "shipped" else f"{item.algorithm}, {tiles}"
        intensity = [short(entry.points[lv].intensity) if lv in entry.points else "–" for lv in LEVELS]
        rate, roof = entry.flops_per_s, entry.roof_flops_per_s
        achieved = short(rate / 1e12) if rate else "–"
        share = f"{100 * rate / roof:.0f} %" if rate and roof else "–"
        cells = (
            str(entry.number),
            name,
            item.implementation,
            drawn[entry.machine].label,
            *intensity,
            achieved,
            share,
        )
        y = _row(axes, y, columns, (*cells, entry.bound), COLOURS[entry.machine % len(COLOURS)], left=4) - line


def _row(
    axes: Axes,
    y: float,
    columns: Sequence[float],
    cells: Sequence[str],
    colour: str,
    *,
    left: int,
    bold: bool = False,
) -> float:
    """One line of the table: the first `left` cells begin at their column, the others end there."""
    for number, (x, cell) in enumerate(zip(columns, cells, strict=True)):
        axes.text(
            x, y, cell, fontsize=SIZE, ha="left" if number < left else "right", va="top", color=colour,
            fontweight="bold" if bold else "normal", transform=axes.transAxes,
        )  # fmt: skip
    return y


def _caption(drawn: Sequence[Machine], shown: Sequence[Entry]) -> str:
    caches = sorted({str(getattr(entry.prediction, "cache", "")) for entry in shown} - {""})
    clocks = ", ".join(f"{m.label} {m.gpu.clock.tensor_hz / 1e6:.0f} MHz" for m in drawn)
    per_exp = ", ".join(sorted({f"{machine.roofline.flops_per_exp:.4g}" for machine in drawn}))
    text = [
        "Useful FLOPs: 2 B H (visible pairs)(d + dv) forward, 2.5 times that backward. "
        "Markers: circle at HBM intensity, square at L2 intensity.",
        f"Diagonals: solid datasheet, dashed achievable. Ceilings in TFLOP/s at {clocks}; "
        f"exp at {per_exp} FLOPs per exponential.",
        "Table: HBM and L2 in useful FLOPs per byte; "
        "roof: share of the lowest of tensor, exp, HBM and L2 roofs there; "
        "in brackets achievable." + (f" L2 cache {' and '.join(caches)}." if caches else ""),
    ]
    text += [f"{machine.label}: {'; '.join(machine.gpu.changes)}" for machine in drawn if machine.gpu.changes]
    return "\n".join(text)
