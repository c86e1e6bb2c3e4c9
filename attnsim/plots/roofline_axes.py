"""The roofline itself on one pair of axes: ceilings, diagonals, ridges, points, arrows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnsim.api.roofline import LEVELS
from attnsim.plots.roofline_data import Drawn, Entry
from attnsim.plots.roofline_labels import Box, ceiling_labels, diagonal_labels, numbers, ridges, to_axes
from attnsim.plots.styles import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINES = {"tensor": "-", "mma_sync": (0, (7, 2)), "exp": ":", "fp32": "-."}
WIDTHS = {"hbm": 1.8, "l2": 1.2, "smem": 0.8}
MARKERS = {"hbm": "o", "l2": "s", "smem": "^"}
DASHED = (0, (5, 3))


def draw(axes: Axes, style: Style, *, drawn: Sequence[Drawn], shown: Sequence[Entry]) -> None:
    """Draw rooflines and numbered points.

    Predicted points are hollow, their 90 % range a bar at the HBM intensity; measured ones are filled. An arrow leads
    from a prediction on a GPU to the same one on a hypothetical GPU made of it.
    """
    _scales(axes, drawn, shown)
    for number, machine in enumerate(drawn):
        _lines(axes, machine, style.colour(number))
    ceiling_labels(axes, drawn, style)
    ridges(axes, drawn, style)
    taken = _markers(axes, shown, style)
    _arrows(axes, shown, style)
    diagonal_labels(axes, drawn, taken, style)
    numbers(axes, shown, taken, style)


def _scales(axes: Axes, drawn: Sequence[Drawn], shown: Sequence[Entry]) -> None:
    points = [point for entry in shown for point in entry.points.values()]
    ridges = [machine.roofline.ridge(level) for machine in drawn for level in LEVELS]
    tops = [c.flops_per_s for machine in drawn for c in machine.roofline.ceilings]
    xs = [point.intensity for point in points] + ridges
    ys = [point.flops_per_s for point in points] + [min(tops)]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(min(min(xs) / 4, min(ridges) / 6), max(xs) * 6)
    low = min(min(ys) / 3, min(tops) / 8)
    axes.set_ylim(low / 1e12, max(tops) * 2.2 / 1e12)
    axes.set_xlabel("useful FLOPs per byte moved")
    axes.set_ylabel("useful TFLOP/s")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _lines(axes: Axes, machine: Drawn, colour: str) -> None:
    """Diagonals up to the tensor ceiling, ceilings from where shared memory reaches them."""
    left, right = axes.get_xlim()
    roofline = machine.roofline
    top = roofline.ceiling("tensor")
    for diagonal in roofline.diagonals:
        for rate, line in ((diagonal.bytes_per_s, "-"), (diagonal.achievable_bytes_per_s, DASHED)):
            if line == "-" or rate < diagonal.bytes_per_s:
                x = np.array([left, top / rate])
                axes.plot(
                    x,
                    x * rate / 1e12,
                    color=colour,
                    linewidth=WIDTHS.get(diagonal.level, 0.6),
                    linestyle=line,
                    zorder=2,
                )
    fastest = max(diagonal.bytes_per_s for diagonal in roofline.diagonals)
    for ceiling in roofline.ceilings:
        width = 1.8 if ceiling.unit == "tensor" else 1.2
        x = np.array([ceiling.flops_per_s / fastest, right])
        height = np.full(2, ceiling.flops_per_s / 1e12)
        axes.plot(x, height, color=colour, linewidth=width, linestyle=LINES[ceiling.unit], zorder=2)
        if ceiling.unit == "tensor" and ceiling.achievable_flops_per_s:
            reached = np.full(2, ceiling.achievable_flops_per_s / 1e12)
            axes.plot(x, reached, color=colour, linewidth=1.0, linestyle=DASHED, zorder=2)


def _markers(axes: Axes, shown: Sequence[Entry], style: Style) -> list[Box]:
    """Markers, and the places that they take."""
    taken = []
    size = 8.0 if style.crowding == 1 else 5.0
    for entry in shown:
        colour = style.colour(entry.machine)
        for level, point in entry.points.items():
            x, y = to_axes(axes, point.intensity, point.flops_per_s / 1e12)
            wide, high = 0.009 * style.crowding, 0.012 * style.crowding
            taken.append((x - wide, y - high, x + wide, y + high))
            axes.plot(
                [point.intensity], [point.flops_per_s / 1e12], MARKERS[level], markersize=size,
                markerfacecolor=style.page, markeredgecolor=colour, markeredgewidth=0.2 * size, zorder=5,
            )  # fmt: skip
            if entry.measured_flops_per_s:
                axes.plot(
                    [point.intensity], [entry.measured_flops_per_s / 1e12], MARKERS[level], markersize=size,
                    color=colour, zorder=4,
                )  # fmt: skip
        if "hbm" in entry.points and entry.interval_flops_per_s:
            at, ends = entry.points["hbm"].intensity, [rate / 1e12 for rate in entry.interval_flops_per_s]
            axes.plot([at, at], ends, "_-", color=colour, linewidth=0.9, markersize=0.6 * size, zorder=3)
    return taken


def _arrows(axes: Axes, shown: Sequence[Entry], style: Style) -> None:
    """From a point on the unchanged GPU to the one on the hypothetical GPU, at the HBM intensity."""
    by_number = {entry.number: entry for entry in shown}
    for entry in shown:
        before = by_number.get(entry.base or 0)
        if before is None or "hbm" not in entry.points or "hbm" not in before.points:
            continue
        old, new = before.points["hbm"], entry.points["hbm"]
        axes.annotate(
            "", (new.intensity, new.flops_per_s / 1e12), (old.intensity, old.flops_per_s / 1e12),
            arrowprops={"arrowstyle": "->", "color": style.text, "linewidth": 1.0, "mutation_scale": 8,
                        "shrinkA": 3, "shrinkB": 3}, zorder=6,
        )  # fmt: skip
