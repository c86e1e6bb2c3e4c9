"""How long each unit of the GPU is busy within the time of a call: what is hidden under what."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from attnsim.api.prediction import Prediction
from attnsim.models.errors import InputError
from attnsim.models.hardware.units import UNITS
from attnsim.plots.series import about, engineering, identity, names_of
from attnsim.plots.sheet import Panel, Picture, heading, plain_axes
from attnsim.plots.styles import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = ("name", "algorithm", "implementation", "gpu", "changes", "part", "seconds", "share", "bounds")

WAITS = "waits for data"
LAUNCH = "launch"
HEIGHT = 0.165
"""Inches of a row."""
WIDEST = 5.0
"""Ratio of times up to which all calls are drawn on one scale of time."""


def units(predictions: Sequence[Prediction]) -> Picture:
    """How long each unit is busy within each call, a frame as long as the call around them.

    Parameters
    ----------
    predictions : sequence of Prediction
        Several algorithms, GPUs or shapes; those that do not fit the memory are told in the caption.

    Raises
    ------
    InputError
        When none fits.
    """
    labels = _labels(predictions)
    shown = [(label, one) for label, one in zip(labels, predictions, strict=True) if one.time_s]
    if not shown:
        raise InputError(f"nothing to draw: {predictions[0].notes[0]}")
    times = [one.time_s or 0.0 for _, one in shown]
    relative = max(times) > WIDEST * min(times)
    lines = sum(len(_parts(one)) + 2 for _, one in shown)
    missing = [label for label, one in zip(labels, predictions, strict=True) if not one.time_s]
    return Picture(
        "Busy time of each unit within the call",
        _caption([one for _, one in shown], missing),
        (Panel(partial(_draw, shown=shown, relative=relative), HEIGHT * lines),),
        COLUMNS,
        tuple(row for label, one in shown for row in _rows(label, one)),
        left=(*(unit.label for unit in UNITS.values()), WAITS),
        right=("100 %     123 ms",),
    )


def _labels(predictions: Sequence[Prediction]) -> list[str]:
    """Names, with the length where it differs."""
    names = names_of(predictions)
    if len({one.workload.seq_kv for one in predictions}) == 1:
        return names
    return [f"{name}, {one.workload.seq_kv:,} keys" for name, one in zip(names, predictions, strict=True)]


def _parts(one: Prediction) -> list[tuple[str, float]]:
    """Launch, units and waits with their seconds, launches left out where there are none."""
    launch = [(LAUNCH, one.launch_s)] if one.launch_s else []
    return [
        *launch,
        *((unit, one.units_s[unit]) for unit in UNITS if unit in one.units_s),
        (WAITS, one.exposed_s or 0.0),
    ]


def _draw(axes: Axes, look: Style, *, shown: Sequence[tuple[str, Prediction]], relative: bool) -> None:
    from matplotlib.patches import Rectangle

    ticks: list[tuple[float, str]] = []
    longest = max(one.time_s or 0.0 for _, one in shown)
    scale = 100.0 if relative else longest
    y = 0.0
    for label, one in shown:
        whole = one.time_s or 0.0
        across = scale if relative else whole
        launch = (one.launch_s or 0.0) / whole * across
        parts = _parts(one)
        axes.text(0, y, f"{label}: {engineering(whole, 's')}", fontsize=look.size, fontweight="bold", va="center")
        low = y - 0.5 - len(parts)
        axes.add_patch(
            Rectangle((0, low), across, len(parts), fill=False, edgecolor=look.text, linewidth=0.9, zorder=5)
        )
        axes.add_patch(Rectangle((0, low), launch, len(parts), facecolor=look.faint, alpha=0.22, linewidth=0, zorder=1))
        for number, (part, seconds) in enumerate(parts, 1):
            bar = seconds / whole * across
            start = 0.0 if part == LAUNCH else launch
            bounds = part == one.bound
            axes.barh(
                [y - number], [bar], left=[start], height=0.72, zorder=3, color=_colour(part, look),
                edgecolor=look.page, linewidth=0, hatch="////" if part == WAITS else "",
            )  # fmt: skip
            weight = "bold" if bounds else "normal"
            for text, aside in ((f"{100 * seconds / whole:.0f} %", 3.6), (engineering(seconds, "s"), 9.1)):
                axes.annotate(
                    text, (1, y - number), (aside * look.size, 0), axes.get_yaxis_transform(), "offset points",
                    fontsize=look.size, fontweight=weight, va="center", ha="right", annotation_clip=False,
                )  # fmt: skip
            ticks.append((y - number, UNITS[part].label if part in UNITS else part))
        y -= len(parts) + 2
    plain_axes(axes, look, grid="x")
    axes.set_yticks([at for at, _ in ticks], [text for _, text in ticks])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_ylim(y + 1.4, 0.7)
    axes.set_xlim(0, scale * 1.002)
    heading(axes, "frame: the call; bars: its units", look)
    if relative:
        axes.set_xlabel("share of the call's time, %", fontsize=look.size)
    else:
        axes.locator_params(axis="x", nbins=6)
        axes.xaxis.set_major_formatter(lambda value, _: engineering(value, "s") if value else "0")
        axes.set_xlabel("time", fontsize=look.size)


def _colour(part: str, look: Style) -> str:
    return look.colour(int(UNITS[part].moves)) if part in UNITS else look.faint


def _caption(shown: Sequence[Prediction], missing: Sequence[str]) -> str:
    text = (
        f"{about(shown)} Bars: work of a unit over its rate, averaged over the SMs. Units work at the same time: bars "
        "overlap in time and do not add up to the call (frame). Bold: the unit that bounds it. Grey from the left: "
        "launches, under which nothing runs. Hatched: warpgroups waiting for data, on average. What the longest bar "
        "leaves of the frame is latency, uneven SMs and dependences. Tensor cores: executed FLOPs, whole tiles and "
        "recomputation included."
    )
    return text + "".join(f" {label}: does not fit the memory." for label in missing)


def _rows(label: str, one: Prediction) -> list[dict[str, object]]:
    whole = one.time_s or 0.0
    parts = [("total", whole), *_parts(one), ("idle", one.units_s["idle"])]
    return [
        {"name": label, **identity(one)}
        | {"part": part, "seconds": seconds, "share": seconds / whole, "bounds": part == one.bound}
        for part, seconds in parts
    ]
