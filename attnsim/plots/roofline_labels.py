"""Labels of the roofline picture: beside their lines and points, clear of one another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnsim.api.roofline import LEVELS, Level
from attnsim.models.hardware.units import UNITS
from attnsim.plots.roofline_data import Drawn, Entry, ceiling_name
from attnsim.plots.styles import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patheffects import AbstractPathEffect

NAMES = {unit.level: unit.short for unit in UNITS.values() if unit.level}

Box = tuple[float, float, float, float]
"""Left, bottom, right, top as fractions of the axes."""


def ceiling_labels(axes: Axes, drawn: Sequence[Drawn], style: Style) -> None:
    """Ceilings are named at the right end, each rate once: above the line, the lower of two below."""
    _, right = axes.get_xlim()
    named: dict[tuple[str, float], str] = {}
    for number, machine in enumerate(drawn):
        for ceiling in machine.roofline.ceilings:
            if style.crowding > 1 and ceiling.unit in ("mma_sync", "fp32"):
                continue  # a column has room for two names
            unit = ceiling_name(ceiling.unit, machine.roofline.dtype)
            named.setdefault((unit, ceiling.flops_per_s / 1e12), style.colour(number))
    ordered = sorted(named, key=lambda key: key[1])
    heights = [to_axes(axes, right, rate)[1] for _, rate in ordered]
    gaps = [1.0, *np.diff(heights).tolist(), 1.0]
    shifted = 0.0
    for place, ((unit, rate), at) in enumerate(zip(ordered, heights, strict=True)):
        below, above = gaps[place] < 0.055 * style.crowding, gaps[place + 1] < 0.035 * style.crowding
        crowded = below and above
        shifted = shifted + 0.2 * style.crowding if crowded else 0.0
        under = above and not below
        axes.text(
            0.995 - shifted, at + (-0.006 if under else 0.004), f"{unit} {short(rate)}",
            color=named[unit, rate],
            fontsize=style.size, ha="right", va="top" if under else "bottom", transform=axes.transAxes,
            path_effects=halo(style), zorder=3,
        )  # fmt: skip


def diagonal_labels(axes: Axes, drawn: Sequence[Drawn], taken: list[Box], style: Style) -> None:
    """Each bandwidth once, along its line, where it hides no point and no other label."""
    left, right = axes.get_xlim()
    diagonals: dict[tuple[float, str], str] = {}
    for number, machine in enumerate(drawn):
        for diagonal in machine.roofline.diagonals:
            diagonals.setdefault((diagonal.bytes_per_s, diagonal.level), style.colour(number))
    for (rate, level), colour in sorted(diagonals.items()):
        start = max(left, axes.get_ylim()[0] * 1e12 / rate)
        slope = _slope(axes, start, rate)
        across = 0.105 * style.crowding * np.cos(np.radians(slope))

        def boxes(share: float, start: float = start, rate: float = rate, across: float = across) -> list[Box]:
            ends = [start * (right / left) ** (share + across * part) for part in np.linspace(0, 1, 8)]
            places = [to_axes(axes, x, x * rate / 1e12 * 1.08) for x in ends]
            wide, high = 0.01 * style.crowding, 0.012 * style.crowding
            return [(x - wide, y - high, x + wide, y + high) for x, y in places]

        shares = np.arange(0.015, 0.4, 0.015)
        there = tuple(taken)
        top = to_axes(axes, start, min(m.roofline.ceiling("tensor") for m in drawn) / 1e12)[1]

        def badness(
            share: float,
            top: float = top,
            boxes: Callable[[float], list[Box]] = boxes,
            there: tuple[Box, ...] = there,
        ) -> float:
            found = boxes(share)
            return sum(_overlap(box, there) for box in found) + share + 10 * (found[-1][3] > top)

        best = min(shares, key=badness)
        taken += boxes(best)
        x = start * (right / left) ** best
        axes.text(
            x, x * rate / 1e12 * 1.03, f"{NAMES[level]} {rate / 1e12:.3g} TB/s", color=colour, fontsize=style.size,
            rotation=slope, rotation_mode="anchor", va="bottom", zorder=3, path_effects=halo(style),
        )  # fmt: skip


def _slope(axes: Axes, x: float, rate: float) -> float:
    (x0, y0), (x1, y1) = axes.transData.transform([(x, x * rate / 1e12), (2 * x, 2 * x * rate / 1e12)])
    return float(np.degrees(np.arctan2(y1 - y0, x1 - x0)))


def ridges(axes: Axes, drawn: Sequence[Drawn], style: Style) -> None:
    """A dot where a diagonal meets the tensor ceiling, a thin line down, its intensity at the foot."""
    found: dict[tuple[float, float, Level], str] = {}
    for number, machine in enumerate(drawn):
        for level in LEVELS:
            x, y = machine.roofline.ridge(level), machine.roofline.ceiling("tensor") / 1e12
            found.setdefault((x, y, level), style.colour(number))
    ordered = sorted(found)
    places = spread([to_axes(axes, x, y)[0] for x, y, _ in ordered], 0.024 * style.crowding)
    bottom = axes.get_ylim()[0]
    for key, at in zip(ordered, places, strict=True):
        x, y, level = key
        colour = found[key]
        axes.plot([x], [y], marker="D", markersize=5, color=colour, zorder=4)
        axes.plot([x, x], [bottom, y], color=colour, linewidth=0.6, linestyle=(0, (1, 3)), zorder=1)
        axes.text(
            at, 0.012, f"{NAMES[level]} ridge {x:.3g}", color=colour, fontsize=style.size, rotation=90, ha="center",
            va="bottom", transform=axes.transAxes, path_effects=halo(style),
        )  # fmt: skip


def numbers(axes: Axes, shown: Sequence[Entry], taken: list[Box], style: Style) -> None:
    """Points on one another share a label; labels dodge what is there already. A column names the HBM points only."""
    groups: list[tuple[float, float, str, list[int]]] = []
    for entry in shown:
        colour = style.colour(entry.machine)
        for level, point in entry.points.items():
            if style.crowding > 1 and level != "hbm":
                continue  # the others lie at the same height
            x, y = to_axes(axes, point.intensity, point.flops_per_s / 1e12)
            for gx, gy, other, numbers in groups:
                if other == colour and abs(gx - x) < 0.012 and abs(gy - y) < 0.016:
                    numbers.append(entry.number)
                    break
            else:
                groups.append((x, y, colour, [entry.number]))
    for x, y, colour, numbers in groups:
        text = ",".join(map(str, dict.fromkeys(numbers)))
        width, height = (0.0115 * len(text) + 0.004) * style.crowding, 0.024 * style.crowding
        best = min(
            _offsets(width, style.crowding),
            key=lambda o: _overlap(_box(x, y, o, width, height), taken) + 0.02 * np.hypot(*o),
        )
        box = _box(x, y, best, width, height)
        taken.append(box)
        axes.annotate(
            text, (x, y), ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2), "axes fraction", "axes fraction",
            ha="center", va="center", fontsize=style.size + 1, fontweight="bold", color=colour, zorder=6,
            path_effects=halo(style),
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkB": 4, "shrinkA": 1},
        )  # fmt: skip


def _offsets(width: float, crowding: float) -> list[tuple[float, float]]:
    directions = [(0, 1), (0, -1), (1, 0), (-1, 0), (0.8, 0.8), (-0.8, 0.8), (0.8, -0.8), (-0.8, -0.8)]
    reaches = [crowding * reach for reach in (0.032, 0.05, 0.075, 0.11)]
    return [(dx * r * (0.6 + 15 * width / crowding), dy * r) for r in reaches for dx, dy in directions]


def _box(x: float, y: float, offset: tuple[float, float], w: float, h: float) -> Box:
    cx, cy = x + offset[0], y + offset[1]
    return (cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2)


def _overlap(box: Box, taken: Iterable[Box]) -> float:
    """Area shared with what is there already, and any part outside the axes."""
    a0, b0, a1, b1 = box
    shared = 0.0
    for c0, d0, c1, d1 in taken:
        shared += max(0.0, min(a1, c1) - max(a0, c0)) * max(0.0, min(b1, d1) - max(b0, d0))
    outside = max(0.0, -a0) + max(0.0, a1 - 1) + max(0.0, -b0) + max(0.0, b1 - 1)
    return 1e4 * shared + 1e2 * outside


def short(value: float) -> str:
    """Three figures, without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def halo(style: Style) -> list[AbstractPathEffect]:
    """A rim that keeps text legible on lines."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2.8, foreground=style.page)]


def to_axes(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Data coordinates as fractions of the axes."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    return float(np.log(x / left) / np.log(right / left)), float(np.log(y / bottom) / np.log(top / bottom))


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Ascending places moved apart to at least `gap`, each cluster kept centred on its mean."""
    clusters: list[list[float]] = []
    for place in places:
        clusters.append([place])
        while len(clusters) > 1:
            before, last = clusters[-2], clusters[-1]
            end = np.mean(before) + gap * (len(before) - 1) / 2
            start = np.mean(last) - gap * (len(last) - 1) / 2
            if start - end >= gap:
                break
            clusters[-2:] = [before + last]
    return [
        float(np.mean(cluster) + gap * (i - (len(cluster) - 1) / 2))
        for cluster in clusters
        for i in range(len(cluster))
    ]
