"""Names in a picture, beside what they name and clear of one another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from attnsim.by_hand import by_hand
from attnsim.models.hardware.units import UNITS
from attnsim.plots.styles import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patheffects import AbstractPathEffect
    from matplotlib.text import Text

LEVEL_NAMES = {unit.level: unit.short for unit in UNITS.values() if unit.level}

Boxes = npt.NDArray[np.float64]
"""Left, bottom, right, top in pixels, ``[boxes, 4]``."""

DOT = 6
"""Pixels a side of the boxes that a line is made of."""
CROSSED = by_hand(
    2.0,
    "a line right across a name, or another name on it, is worse than eight heights of the name away from its point",
)


@dataclass(frozen=True, slots=True)
class Spot:
    """A name and the place in data coordinates that it names; `bold` ones come first."""

    x: float
    y: float
    text: str
    colour: str
    bold: bool = False


def at_right(axes: Axes, named: Sequence[tuple[float, str, bool]], look: Style) -> None:
    """Names of level lines ``(height, text, above)`` at the right end, above or below, clear of one another."""
    pixel = frame_dpi(axes) / 72
    taken = np.concatenate((_markers(axes), _bars(axes)))
    for height, text, above in sorted(named, key=lambda one: (not one[2], one[0])):
        label = axes.annotate(
            text, (1, height), (0, 0.3 * look.size * (1 if above else -1)), axes.get_yaxis_transform(),
            "offset points", fontsize=look.size, ha="right", va="bottom" if above else "top", color=look.text,
            path_effects=halo(look), zorder=3,
        )  # fmt: skip
        for _ in range(len(taken)):  # left of those that are in the way
            inside = _shared(_box(label), taken) > 0
            if not inside.any():
                break
            x, y = label.get_position()
            label.set_position((x - (_box(label)[0, 2] - taken[inside, 0].min()) / pixel - 0.5 * look.size, y))
        taken = np.concatenate((taken, _box(label)))


def along(axes: Axes, named: Sequence[tuple[float, str]], look: Style) -> Boxes:
    """Names of slanted lines ``(bytes/s, text)`` along them, where they hide nothing; and the places that they take."""
    frame = np.array(axes.get_window_extent().extents)
    left, bottom = axes.get_xlim()[0], axes.get_ylim()[0]
    taken, lines, new = np.concatenate((_texts(axes), _markers(axes))), _lines(axes), np.empty((0, 4))
    size = look.size * frame_dpi(axes) / 72
    for rate, text in named:
        start = max(left, bottom * 1e12 / rate)
        ends = [(x, x * rate / 1e12) for x in (start, 9 * start)]
        (x0, y0), (x1, y1) = axes.transData.transform(ends)
        slope = float(np.arctan2(y1 - y0, x1 - x0))
        label = axes.text(
            start, start * rate / 1e12, text, fontsize=look.size, rotation=float(np.degrees(slope)),
            rotation_mode="anchor", va="bottom", color=look.text, zorder=3, path_effects=halo(look),
        )  # fmt: skip
        whole, across, up = label.get_window_extent(), np.cos(slope), np.sin(slope)
        long = max(0.0, float(whole.width) - size * abs(up)) / max(across, 0.1)
        steps = np.linspace(0, long, max(2, int(long / size)))
        best, least, kept = 0.0, np.inf, np.empty((0, 4))
        for shift in np.linspace(0.3 * size, 0.6 * (frame[2] - frame[0]), 40):
            x = x0 + (shift + steps) * across - 0.8 * size * up
            y = y0 + (shift + steps) * up + 0.8 * size * across
            boxes = np.stack((x, y, x, y), axis=1) + size / 2 * np.array((-1, -1, 1, 1))
            cost = (_shared(boxes, taken).sum() + 0.1 * _shared(boxes, lines).sum()) / size**2
            cost += 10 * _outside(boxes, frame) / size + shift / (frame[2] - frame[0])
            if cost < least:
                best, least, kept = float(shift), cost, boxes
        at = (x0 + best * across - 0.3 * size * up, y0 + best * up + 0.3 * size * across)
        label.set_position(tuple(axes.transData.inverted().transform(at)))
        taken, new = np.concatenate((taken, kept)), np.concatenate((new, kept))
    return new


def at_points(axes: Axes, spots: Sequence[Spot], look: Style, taken: Boxes) -> None:
    """Names of points, each at the nearest place that hides no marker, no line, no other name and nothing `taken`."""
    frame, pixel = np.array(axes.get_window_extent().extents), frame_dpi(axes) / 72
    names, lines = np.concatenate((taken, _texts(axes))), _lines(axes)
    taken = np.concatenate((names, _markers(axes), _bars(axes)))
    for spot in sorted(spots, key=lambda one: not one.bold):
        point = axes.transData.transform((spot.x, spot.y))
        label = axes.annotate(
            spot.text, (spot.x, spot.y), (0, 0), textcoords="offset points", fontsize=look.size, color=spot.colour,
            fontweight="bold" if spot.bold else "normal", ha="center", va="center", zorder=8, path_effects=halo(look),
        )  # fmt: skip
        box = label.get_window_extent()
        half = np.array((box.width, box.height)) / 2
        offsets = np.array(list(_around(box.width, box.height, look.size * pixel)))
        boxes = np.concatenate((point + offsets - half, point + offsets + half), axis=1)
        nearest = np.clip(point, boxes[:, :2], boxes[:, 2:])
        away = np.hypot(*(nearest - point).T)
        led = away > 1.6 * look.size * pixel
        cost = [
            40 * _shared(one, taken).sum() / (4 * half.prod())
            + CROSSED * _shared(one, lines).sum() / (DOT * box.height)
            + CROSSED * bool(_shared(one, names).any() or (leads and _shared(_dots(point, end), names).any()))
            + (20 * _outside(one, frame) + 0.25 * far) / box.height
            for one, end, far, leads in zip(boxes[:, None], nearest, away, led, strict=True)
        ]
        best = int(np.argmin(cost))
        label.set_position(tuple(offsets[best] / pixel))
        names, taken = (np.concatenate((some, boxes[best : best + 1])) for some in (names, taken))
        if led[best]:
            ends = axes.transData.inverted().transform([point, nearest[best]])
            axes.plot(*ends.T, color=spot.colour, linewidth=0.08 * look.size, zorder=7)


def _around(wide: float, tall: float, size: float) -> Iterator[tuple[float, float]]:
    """Offsets of the middle of a name, the nearest first."""
    for reach in (0.75, 1.2, 2.0, 3.0, 4.2, 5.6):
        away = reach * size
        for across, up in ((1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1), (0, 1), (0, -1), (0.5, 1), (-0.5, 1),
                           (0.5, -1), (-0.5, -1)):  # fmt: skip
            sideways = across * (wide / 2 + away) if abs(across) == 1 else across * wide * 0.8
            yield sideways, up * (tall / 2 + (away if abs(across) < 1 else 0.4 * away))


def _texts(axes: Axes) -> Boxes:
    """Places of the level texts that are there already."""
    level = [_box(text) for text in axes.texts if text.get_text() and not text.get_rotation()]
    return np.concatenate((np.empty((0, 4)), *level))


def _markers(axes: Axes) -> Boxes:
    found = [np.empty((0, 4))]
    for line in axes.lines:
        if line.get_marker() not in ("None", None, "", " "):
            half = 0.7 * line.get_markersize() * frame_dpi(axes) / 72
            at = axes.transData.transform(np.asarray(line.get_xydata()))
            found.append(np.concatenate((at - half, at + half), axis=1))
    return np.concatenate(found)


def _bars(axes: Axes) -> Boxes:
    """Places of the upright lines."""
    found = [np.empty((0, 4))]
    for line in axes.lines:
        ends = axes.transData.transform(np.asarray(line.get_xydata()))
        if len(ends) > 1 and np.ptp(ends[:, 0]) == 0:
            found.append(np.array([[*(ends.min(axis=0) - 3), *(ends.max(axis=0) + 3)]]))
    return np.concatenate(found)


def _lines(axes: Axes) -> Boxes:
    """Small boxes along every line."""
    found = [np.empty((0, 4))]
    for line in axes.lines:
        ends = axes.transData.transform(np.asarray(line.get_xydata()))
        for one, other in pairwise(ends):
            found.append(_dots(one, other))
    return np.concatenate(found)


def _dots(one: Boxes, other: Boxes) -> Boxes:
    """Small boxes from one place to another."""
    at = np.linspace(one, other, 2 + int(np.hypot(*(other - one)) / DOT))
    return np.concatenate((at - DOT / 2, at + DOT / 2), axis=1)


def _box(text: Text) -> Boxes:
    return np.array([text.get_window_extent().extents])


def _shared(some: Boxes, others: Boxes) -> Boxes:
    """Area that each of the others has in common with all of some."""
    sides = np.minimum(some[:, None, 2:], others[:, 2:]) - np.maximum(some[:, None, :2], others[:, :2])
    return np.asarray(np.maximum(0.0, sides).prod(axis=2).sum(axis=0))


def _outside(boxes: Boxes, frame: Boxes) -> float:
    """Pixels by which boxes stand out of a frame."""
    return float(np.maximum(0.0, frame[:2] - boxes[:, :2]).sum() + np.maximum(0.0, boxes[:, 2:] - frame[2:]).sum())


def frame_dpi(axes: Axes) -> float:
    """Dots per inch of the figure of axes."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    return float(figure.dpi)


def short(value: float) -> str:
    """Three figures, without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def halo(style: Style) -> list[AbstractPathEffect]:
    """A rim that keeps text legible on lines."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=0.3 * style.size, foreground=style.page)]


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
