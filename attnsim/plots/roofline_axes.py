"""The roofline itself on one pair of axes: for each GPU a roof as the datasheet has it and one as kernels reach it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from attnsim.api.ratios import speedup
from attnsim.api.roofline import Ceiling, Level
from attnsim.plots.colours import algorithm_hue
from attnsim.plots.roofline_data import Drawn, Entry, ceiling_name
from attnsim.plots.roofline_labels import LEVEL_NAMES, Spot, along, at_points, at_right, frame_dpi, short
from attnsim.plots.sheet import plain_axes
from attnsim.plots.styles import Style
from attnsim.wording import times_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHAPES = "osD^vP"
"""Of the points, by GPU; the ridge of its roof has the same."""
FADED = (1.0, 0.62, 0.45)
"""How strong the roofs are drawn, by GPU; the last for all others."""
MANY = 6
"""Names up to which each has its unit and the range of its gain; they are in the CSV, too."""
REACHED = (0, (4, 2.5))
FURTHER = (0, (1, 1.4))


@dataclass(frozen=True, slots=True)
class Shown:
    """What a roofline shows.

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
        """Those that fit the memory."""
        return [one for one in self.entries if self.levels[0] in one.points]

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
        (tensor.achievable_flops_per_s or tensor.flops_per_s, [one.achievable_bytes_per_s for one in slopes],
         REACHED, 0.15),
    ):  # fmt: skip
        lines = [(np.array([left, peak / rate]), np.array([left * rate, peak])) for rate in rates]
        lines.append((np.array([peak / max(rates), right]), np.full(2, peak)))
        for x, y in lines:
            axes.plot(x, y / 1e12, color=look.text, alpha=faded, linewidth=width * look.size, linestyle=dash, zorder=2)
    for ceiling in _further(machine, shown):
        x = np.array([ceiling.flops_per_s / max(one.bytes_per_s for one in slopes), right])
        axes.plot(
            x, np.full(2, ceiling.flops_per_s / 1e12), color=look.faint, alpha=faded, linewidth=0.13 * look.size,
            linestyle=FURTHER, zorder=2,
        )  # fmt: skip
    if len(shown.machines) > 1:
        axes.plot(
            [roofline.ridge(shown.levels[0])], [tensor.flops_per_s / 1e12], SHAPES[number % len(SHAPES)],
            color=look.text, markersize=0.6 * look.size, zorder=4,
        )  # fmt: skip


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
    size = 0.82 * look.size
    for entry in shown.placed:
        colour, shape = look.colour(algorithm_hue(entry.prediction.algorithm)), shown.shape(entry)
        point = entry.points[main]
        x, y = point.intensity, point.flops_per_s / 1e12
        taken = entry.measured_flops_per_s
        hollow = bool(taken or entry.prediction.changes)
        if entry.interval_flops_per_s:
            ends = [rate / 1e12 for rate in entry.interval_flops_per_s]
            axes.plot([x, x], ends, "_-", color=colour, linewidth=0.11 * look.size, markersize=0.6 * size, zorder=4)
        axes.plot(
            [x], [y], shape, markersize=size, markerfacecolor=look.page if hollow else colour, markeredgecolor=colour,
            markeredgewidth=0.16 * size, zorder=5,
        )  # fmt: skip
        if taken:
            axes.plot([x], [taken / 1e12], shape, markersize=size, color=colour, zorder=6)
        for level in others:
            if level in entry.points:
                there = entry.points[level].intensity
                axes.plot([x, there], [y, y], color=colour, linewidth=0.08 * look.size, zorder=3)
                axes.plot([there], [y], shape, markersize=0.55 * size, color=colour, zorder=5)


def _arrows(axes: Axes, shown: Shown, look: Style) -> None:
    """From a point on the unchanged GPU to the one on the changed GPU."""
    main = shown.levels[0]
    for entry in shown.placed:
        before = entry.base.points.get(main) if entry.base else None
        new = entry.points[main]
        if before is None:
            continue
        ends = axes.transData.transform([(one.intensity, one.flops_per_s / 1e12) for one in (before, new)])
        if np.hypot(*(ends[1] - ends[0])) > 1.3 * look.size * frame_dpi(axes) / 72:  # else it hides the points
            axes.annotate(
                "", (new.intensity, new.flops_per_s / 1e12), (before.intensity, before.flops_per_s / 1e12),
                arrowprops={"arrowstyle": "-|>", "color": look.colour(algorithm_hue(entry.prediction.algorithm)),
                            "linewidth": 0.16 * look.size, "mutation_scale": 1.1 * look.size, "shrinkA": 0.0,
                            "shrinkB": 0.35 * look.size}, zorder=6,
            )  # fmt: skip


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
    for name, entry in best.items():
        point, colour = entry.points[main], look.colour(algorithm_hue(entry.prediction.algorithm))
        rate = entry.measured_flops_per_s or point.flops_per_s
        text = f"{name}: {short(rate / 1e12)}{unit}{_against(entry, shown, brief)}"
        found.append(Spot(point.intensity, rate / 1e12, text, colour, bold=True))
        if entry is apart:
            found += [
                Spot(entry.points[level].intensity, point.flops_per_s / 1e12, LEVEL_NAMES[level], colour)
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
    same = {other.prediction.implementation for other in shown.entries if other.prediction.algorithm == one.algorithm
            and other.machine == entry.machine}  # fmt: skip
    name = one.algorithm if len(same) == 1 else one.implementation
    machine = shown.machines[entry.machine]
    if len({other.gpu.id for other in shown.machines}) > 1:
        name += f", {machine.short}"
    elif machine.gpu.changes:
        name += machine.short[len(machine.short.rstrip("*")) :]
    return name if one.tiles == "shipped" else f"{name}, {one.tiles}"


def _against(entry: Entry, shown: Shown, brief: bool) -> str:
    """The gain over the unchanged GPU, or the share of the roof that kernels reach there."""
    gain = speedup(entry.base.prediction, entry.prediction) if entry.base else None
    if gain is not None:
        return f", {times_text(gain.value) if brief else gain}"
    if entry.measured_s:
        return ""
    point = entry.points[shown.levels[0]]
    roof = shown.machines[entry.machine].roofline.reached(shown.levels[0], point.intensity)
    return f" ({100 * point.flops_per_s / roof:.0f} %)"
