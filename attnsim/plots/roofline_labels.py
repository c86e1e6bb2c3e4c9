"""Names in a picture, beside what they name and clear of one another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attnsim.api.roofline import Ceiling, Level, Point
from attnsim.by_hand import by_hand
from attnsim.models.hardware.units import UNITS
from attnsim.plots.roofline_data import Drawn, Entry, ceiling_name
from attnsim.plots.sheet import dots, halo, note, plain_axes
from attnsim.plots.styles import Style, algorithm_hue
from attnsim.wording import times_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text


POINT = 0.82
"""Size of a point, in sizes of letters."""
SHAPES = "osD^vP"
"""Markers of the points, by GPU; the ridge of its roof has its marker."""
FADED = (1.0, 0.62, 0.45)
"""How strong the roofs are drawn, by GPU; the last for all others."""
MANY = 6
"""Names up to which each has its unit and the range of its gain; they are in the CSV, too."""
FAR = by_hand(1.25, "at a smaller ratio of rates an arrow would hide the points that it joins")
REACHED = (0, (4, 2.5))
FURTHER = (0, (1, 1.4))


@dataclass(frozen=True, slots=True)
class Shown:
    """Content of a roofline picture.

    Parameters
    ----------
    machines : sequence of Drawn
    entries : sequence of Entry
    levels : sequence of str
        Levels of memory with a roof; points are named at the first.
    ceilings : sequence of str
        Rates of arithmetic beside the tensor cores'.
    """

    machines: Sequence[Drawn]
    entries: Sequence[Entry]
    levels: Sequence[Level] = ("hbm",)
    ceilings: Sequence[str] = ()

    @property
    def placed(self) -> list[Entry]:
        """Entries that fit the memory."""
        return [one for one in self.entries if self.levels[0] in one.points]

    def base_of(self, entry: Entry) -> Point:
        """The point of the same call on the unchanged GPU; its own where there is none."""
        return (entry.base or entry).points[self.levels[0]]

    @property
    def moved(self) -> list[Entry]:
        """Calls on a changed GPU that are far enough from the unchanged one's for an arrow."""

        def far(one: Entry) -> bool:
            old, new = self.base_of(one), one.points[self.levels[0]]
            ratios = (new.flops_per_s / old.flops_per_s, new.intensity / old.intensity)
            return any(abs(math.log(ratio)) > math.log(FAR) for ratio in ratios)

        return [one for one in self.placed if one.base and self.levels[0] in one.base.points and far(one)]

    def shape(self, entry: Entry) -> str:
        """The marker of a call: its GPU's, and another where several implementations of its algorithm are there."""
        item = entry.prediction
        same = dict.fromkeys(
            one.prediction.implementation
            for one in self.entries
            if one.machine == entry.machine and one.prediction.algorithm == item.algorithm
        )
        return SHAPES[(entry.machine + len(self.machines) * list(same).index(item.implementation)) % len(SHAPES)]


def draw(axes: Axes, look: Style, *, shown: Shown) -> None:
    """Draw roofs, points and arrows, each named where it is."""
    plain_axes(axes, look)
    _scales(axes, shown, look)
    for number, machine in enumerate(shown.machines):
        _roofs(axes, machine, shown, number, look)
    _points(axes, shown, look)
    _arrows(axes, shown, look)
    at_right(axes, _flat_names(shown), look)
    at_points(axes, _spots(shown, look), look, along(axes, _slope_names(shown), look))


def _scales(axes: Axes, shown: Shown, look: Style) -> None:
    xs = [one.points[level].intensity for one in shown.placed for level in shown.levels if level in one.points]
    xs += [machine.roofline.ridge(level) for machine in shown.machines for level in shown.levels]
    tops = [machine.roofline.ceiling("tensor") for machine in shown.machines]
    tops += [ceiling.flops_per_s for machine in shown.machines for ceiling in _further(machine, shown)]
    lows = [min(filter(None, (one.flops_per_s, one.measured_flops_per_s))) for one in shown.placed]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(min(xs) / 3, max(xs) * 4)
    axes.set_ylim(min([*lows, min(tops) / 6]) / 2.2 / 1e12, max(tops) * 1.7 / 1e12)
    where = LEVEL_NAMES[shown.levels[0]] if len(shown.levels) == 1 else "the level"
    axes.set_xlabel(f"useful FLOPs per byte of {where}", fontsize=look.size)
    axes.set_ylabel("useful TFLOP/s", fontsize=look.size)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,g}")
        axis.set_minor_formatter(lambda _value, _: "")


def _roofs(axes: Axes, machine: Drawn, shown: Shown, number: int, look: Style) -> None:
    left, right = axes.get_xlim()
    roofline, tensor = machine.roofline, machine.roofline.ceilings[0]
    slopes = [one for one in roofline.diagonals if one.level in shown.levels]
    faded = FADED[min(number, len(FADED) - 1)]
    for peak, rates, dash, width in (
        (tensor.flops_per_s, [one.bytes_per_s for one in slopes], "-", 0.19),
        (
            tensor.achievable_flops_per_s or tensor.flops_per_s,
            [one.achievable_bytes_per_s for one in slopes],
            REACHED,
            0.15,
        ),
    ):
        lines = [(np.array([left, peak / rate]), np.array([left * rate, peak])) for rate in rates]
        lines.append((np.array([peak / max(rates), right]), np.full(2, peak)))
        for x, y in lines:
            axes.plot(x, y / 1e12, color=look.text, alpha=faded, linewidth=width * look.size, linestyle=dash, zorder=2)
    for ceiling in _further(machine, shown):
        x = np.array([ceiling.flops_per_s / max(one.bytes_per_s for one in slopes), right])
        axes.plot(
            x,
            np.full(2, ceiling.flops_per_s / 1e12),
            color=look.faint,
            alpha=faded,
            linewidth=0.13 * look.size,
            linestyle=FURTHER,
            zorder=2,
        )
    if len(shown.machines) > 1:
        at = [roofline.ridge(shown.levels[0])], [tensor.flops_per_s / 1e12]
        dots(axes, at, look, look.text, 0.6, SHAPES[number % len(SHAPES)], zorder=4)


def _further(machine: Drawn, shown: Shown) -> list[Ceiling]:
    return [one for one in machine.roofline.ceilings if one.unit in shown.ceilings]


def _flat_names(shown: Shown) -> list[tuple[float, str, bool]]:
    """Heights of the flat roofs in TFLOP/s, what they are, and whether the name stands above the line."""
    alone = len(shown.machines) == 1
    found: dict[tuple[float, float | None], list[str]] = {}
    named: list[tuple[float, str, bool]] = []
    for machine in shown.machines:
        tensor = machine.roofline.ceilings[0]
        found.setdefault((tensor.flops_per_s, tensor.achievable_flops_per_s), []).append(machine.short)
        for one in _further(machine, shown):
            text = f"{'' if alone else machine.short + ': '}{ceiling_name(one.unit, machine.roofline.dtype)} "
            named.append((one.flops_per_s / 1e12, f"{text}{short(one.flops_per_s / 1e12)}", True))
    for (peak, reached), machines in found.items():
        if alone:
            named.append((peak / 1e12, f"datasheet {short(peak / 1e12)} TFLOP/s", True))
            if reached and reached < peak:
                named.append((reached / 1e12, f"kernels reach {short(reached / 1e12)}", False))
        else:
            named.append((peak / 1e12, f"{', '.join(machines)}: {short(peak / 1e12)} TFLOP/s", True))
    return named


def _slope_names(shown: Shown) -> list[tuple[float, str]]:
    """Bytes/s of the slanted roofs, and what they are."""
    found: dict[tuple[Level, float, float], list[str]] = {}
    for machine in shown.machines:
        for one in machine.roofline.diagonals:
            if one.level in shown.levels:
                key = (one.level, one.bytes_per_s, one.achievable_bytes_per_s)
                found.setdefault(key, []).append(machine.short)
    named = []
    for (level, rate, reached), machines in found.items():
        name = f"{LEVEL_NAMES[level]} {rate / 1e12:.3g} TB/s"
        if len(shown.machines) > 1:
            name = f"{', '.join(machines)}: {name}"
        elif reached < rate and len(shown.levels) > 1:  # short lines have no room for words
            name = f"{LEVEL_NAMES[level]} {reached / 1e12:.3g} of {rate / 1e12:.3g} TB/s"
        elif reached < rate:
            name += f", kernels reach {reached / 1e12:.3g}"
        named.append((rate, name))
    return named


def _points(axes: Axes, shown: Shown, look: Style) -> None:
    """Predictions with their 90 % ranges, hollow for GPUs that do not exist and where a measured call stands by."""
    main, *others = shown.levels
    for entry in shown.placed:
        colour, shape = look.colour(algorithm_hue(entry.prediction.algorithm)), shown.shape(entry)
        point = entry.points[main]
        x, y = point.intensity, point.flops_per_s / 1e12
        taken = entry.measured_flops_per_s
        hollow = bool(taken or entry.prediction.changes)
        if entry.interval_flops_per_s:
            ends = [rate / 1e12 for rate in entry.interval_flops_per_s]
            wide, cap = 0.11 * look.size, 0.6 * POINT * look.size
            axes.plot([x, x], ends, "_-", color=colour, linewidth=wide, markersize=cap, zorder=4)
        inside, rim = look.page if hollow else colour, 0.16 * POINT * look.size
        dots(axes, ([x], [y]), look, colour, POINT, shape, inside, markeredgewidth=rim, zorder=5)
        if taken:
            dots(axes, ([x], [taken / 1e12]), look, colour, POINT, shape, zorder=6)
        for level in others:
            if level in entry.points:
                there = entry.points[level].intensity
                axes.plot([x, there], [y, y], color=colour, linewidth=0.08 * look.size, zorder=3)
                dots(axes, ([there], [y]), look, colour, 0.55 * POINT, shape, zorder=5)


def _arrows(axes: Axes, shown: Shown, look: Style) -> None:
    """From a point on the unchanged GPU to the one on the changed GPU."""
    main = shown.levels[0]
    for entry in shown.moved:
        before, new = shown.base_of(entry), entry.points[main]
        axes.annotate(
            "",
            (new.intensity, new.flops_per_s / 1e12),
            (before.intensity, before.flops_per_s / 1e12),
            arrowprops={
                "arrowstyle": "-|>",
                "color": look.colour(algorithm_hue(entry.prediction.algorithm)),
                "linewidth": 0.16 * look.size,
                "mutation_scale": 1.1 * look.size,
                "shrinkA": 0.0,
                "shrinkB": 0.35 * look.size,
            },
            zorder=6,
        )


def _spots(shown: Shown, look: Style) -> list[Spot]:
    """The names of the points, those of one place together; of calls of one name only the fastest is named."""
    main, *others = shown.levels
    best: dict[str, Entry] = {}
    for entry in shown.placed:
        name = _name(entry, shown)
        if name not in best or (entry.flops_per_s or 0.0) > (best[name].flops_per_s or 0.0):
            best[name] = entry
    brief = len(best) > MANY
    found, unit = [], "" if brief or look.crowding > 1 else " TFLOP/s"
    apart = max(best.values(), key=lambda one: _apart(one, others), default=None)
    labels: dict[int, Spot] = {}
    for name, entry in best.items():
        point, colour = entry.points[main], look.colour(algorithm_hue(entry.prediction.algorithm))
        rate = entry.measured_flops_per_s or point.flops_per_s
        base = labels.get(entry.base.number) if entry.base and entry not in shown.moved else None
        text = f"{name}: {short(rate / 1e12)}{'' if base else unit}{_against(entry, shown, brief)}"
        if base is not None:  # at nearly the same place: one name for both, in lines
            base.lines.append(text)
            continue
        spot = Spot(point.intensity, rate / 1e12, [text], colour, bold=True)
        labels[entry.number] = spot
        found.append(spot)
        if entry is apart:
            found += [
                Spot(entry.points[level].intensity, point.flops_per_s / 1e12, [LEVEL_NAMES[level]], colour)
                for level in others
                if level in entry.points
            ]
    return found


def _apart(entry: Entry, levels: Sequence[Level]) -> float:
    """How far apart the levels' intensities of a call lie, as a ratio."""
    found = sorted(entry.points[level].intensity for level in levels if level in entry.points)
    return min((other / one for one, other in pairwise(found)), default=1.0)


def _name(entry: Entry, shown: Shown) -> str:
    one = entry.prediction
    same = {
        other.prediction.implementation
        for other in shown.entries
        if other.prediction.algorithm == one.algorithm and other.machine == entry.machine
    }
    name = one.algorithm if len(same) == 1 else one.implementation
    machine = shown.machines[entry.machine]
    if len({other.gpu.id for other in shown.machines}) > 1:
        name += f", {machine.short}"
    elif machine.gpu.changes:
        name += machine.mark
    return name if one.tiles == "shipped" else f"{name}, {one.tiles}"


def _against(entry: Entry, shown: Shown, brief: bool) -> str:
    """The gain over the unchanged GPU, or the share of the roof that kernels reach there."""
    gain = entry.prediction.speedup_over(entry.base.prediction) if entry.base else None
    if gain is not None:
        return f", {times_text(gain.value) if brief else gain}"
    if entry.measured_s:
        return ""
    point = entry.points[shown.levels[0]]
    roof = shown.machines[entry.machine].roofline.reached(shown.levels[0], point.intensity)
    return f" ({100 * point.flops_per_s / roof:.0f} %)"


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
    """A name in lines and the place in data coordinates that it names; `bold` ones come first."""

    x: float
    y: float
    lines: list[str]
    colour: str
    bold: bool = False


def at_right(axes: Axes, named: Sequence[tuple[float, str, bool]], look: Style) -> None:
    """Names of level lines ``(height, text, above)`` at the right end, above or below, clear of one another."""
    pixel = axes.figure.dpi / 72
    taken = np.concatenate((_markers(axes), _bars(axes)))
    for height, text, above in sorted(named, key=lambda one: (not one[2], one[0])):
        aside, va = (0, 0.3 if above else -0.3), "bottom" if above else "top"
        where = axes.get_yaxis_transform()
        label = note(axes, text, (1, height), look, aside, where, rim=True, ha="right", va=va, zorder=3)
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
    size = look.size * axes.figure.dpi / 72
    for rate, text in named:
        start = max(left, bottom * 1e12 / rate)
        ends = [(x, x * rate / 1e12) for x in (start, 9 * start)]
        (x0, y0), (x1, y1) = axes.transData.transform(ends)
        slope = float(np.arctan2(y1 - y0, x1 - x0))
        label = axes.text(
            start,
            start * rate / 1e12,
            text,
            fontsize=look.size,
            rotation=float(np.degrees(slope)),
            rotation_mode="anchor",
            va="bottom",
            color=look.text,
            zorder=3,
            path_effects=halo(look),
        )
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
    frame, pixel = np.array(axes.get_window_extent().extents), axes.figure.dpi / 72
    names, lines = np.concatenate((taken, _texts(axes))), _lines(axes)
    taken = np.concatenate((names, _markers(axes), _bars(axes)))
    for spot in sorted(spots, key=lambda one: not one.bold):
        point = axes.transData.transform((spot.x, spot.y))
        how: Any = {"fontweight": "bold" if spot.bold else "normal", "color": spot.colour, "ha": "center", "zorder": 8}
        label = note(axes, "\n".join(spot.lines), (spot.x, spot.y), look, rim=True, **how)
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
            half = 0.7 * line.get_markersize() * axes.figure.dpi / 72
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


def short(value: float) -> str:
    """Three figures, without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


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
