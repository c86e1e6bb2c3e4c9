"""Gains of changes of a GPU for several cases: a point with its range for each, the changes below one another."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from attnsim.errors import InputError
from attnsim.plots.layout import Panel
from attnsim.plots.sheet import NARROWEST, Picture, named_rows, side_text, speedup_axis, whisker
from attnsim.plots.styles import Style
from attnsim.wording import number, times_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Record = Mapping[str, Any]
LINE = 0.17
"""Inches of a point and the room around it."""
MARKERS = "osD^vP*X"


def whatif(records: Sequence[Record]) -> Picture:
    """Speedups by each change of a GPU, a point with its 90 % range for each case.

    Parameters
    ----------
    records : sequence of mapping
        As :meth:`attnsim.studies.whatif.WhatIf.records` gives them; the first ones are of the unchanged GPU.

    Raises
    ------
    InputError
        Where no change has a speedup.
    """
    changed = [one for one in records if one["change"] != records[0]["change"]]
    if not any(one["speedup"] for one in changed):
        raise InputError("nothing to draw; give at least one change of a case that fits both GPUs")
    names = list(dict.fromkeys(one["change"] for one in changed))
    cases = list(dict.fromkeys((one["of"], one["case"]) for one in changed))
    labels = [_label(next(one for one in changed if one["change"] == name)) for name in names]
    texts = [f"   {_text(one)}" for one in changed]
    tall = LINE * max(len(cases), *(one.count("\n") + 1 for one in labels)) + 0.1
    draw = partial(_draw, changed=changed, names=names, cases=cases, labels=labels, pitch=LINE / tall)
    return Picture(
        f"What each change of the GPU brings{_whom(records)}",
        _caption(changed),
        (Panel(draw, tall * len(names)),),
        tuple(records),
        left=tuple(labels),
        right=tuple(texts),
        subtitle=_asked(records),
    )


def _draw(
    axes: Axes,
    look: Style,
    *,
    changed: Sequence[Record],
    names: Sequence[str],
    cases: Sequence[tuple[str, str]],
    labels: Sequence[str],
    pitch: float,
) -> None:
    ends = list(NARROWEST)
    for one in changed:
        hue = cases.index((one["of"], one["case"]))
        row, value = -names.index(one["change"]) - pitch * (hue - (len(cases) - 1) / 2), one["speedup"]
        side_text(axes, row, _text(one), look)
        if not value:
            continue
        low, high = one["speedup_low"], one["speedup_high"]
        ends += [low, high]
        colour = look.colour(hue)
        whisker(
            axes,
            row,
            (low, value, high),
            look,
            fmt=MARKERS[hue % len(MARKERS)],
            color=colour,
            linewidth=1.2,
            markersize=0.55 * look.size,
            markerfacecolor=look.page if one["breaks"] else colour,
        )
    for row in range(1, len(names)):
        axes.axhline(0.5 - row, color=look.grid, linewidth=0.7)
    axes.axvline(1, color=look.text, linewidth=0.9, zorder=2)
    named_rows(axes, [-row for row in range(len(names))], labels, look)
    axes.spines["left"].set_visible(True)
    speedup_axis(axes, ends)
    axes.set_ylim(0.5 - len(names), 0.5)
    axes.set_xlabel("speedup over the unchanged GPU", fontsize=look.size)
    if len(cases) > 1:
        told = [", ".join(filter(None, one)) for one in cases]
        marks = [
            axes.plot([], [], MARKERS[hue % len(MARKERS)], color=look.colour(hue), markersize=0.55 * look.size)[0]
            for hue in range(len(cases))
        ]
        axes.legend(
            marks,
            told,
            loc="lower left",
            bbox_to_anchor=(0, 1),
            frameon=False,
            fontsize=look.size,
            borderaxespad=0.3,
            handletextpad=0.1,
        )


def _whom(records: Sequence[Record]) -> str:
    """The model, and how many GPUs share each of its layers, where all cases agree."""
    models, shared = ({one[name] for one in records} for name in ("model", "tp"))
    (model, tp) = (models.pop() if len(models) == 1 else "", shared.pop() if len(shared) == 1 else 1)
    return f"{f' {model}' * bool(model)}{f' on {tp} GPUs' * (tp > 1)}"


def _asked(records: Sequence[Record]) -> str:
    """The GPU, its tiles, and the question of each case."""
    tiles = "retuned tiles on both GPUs" if records[0]["tile_speedup"] else "shipped tiles"
    questions = {one["case"]: one["question"] for one in records if one["bound"]}  # a mix has none
    told = (f"{name}: {question}" if name else question for name, question in questions.items())
    return "; ".join((f"{records[0]['gpu']}, {tiles}", *told))


def _label(one: Record) -> str:
    """The settings of a row, its die, and that it breaks a limit or is larger than the reticle."""
    area = [f"{number(one['area_mm2'])} mm2"] if one["area_mm2"] else []
    large = ["beyond the reticle"] if one["beyond_reticle"] else []
    limits = ["breaks a limit"] if one["breaks"] else []
    return "\n".join((*textwrap.wrap(one["change"], 24, break_on_hyphens=False), *area, *large, *limits))


def _text(one: Record) -> str:
    """Text right of a point."""
    if not one["power_w"]:
        return "no answer"
    watts = f"{number(one['power_w'])} W"
    if _limited(one):
        watts += " (limited)"
    elif _above(one):
        watts += f" (> {number(one['power_limit_w'])} W)"
    return f"{times_text(one['speedup'])}  {', '.join(filter(None, (one['bound'], watts)))}"


def _limited(one: Record) -> bool:
    """Whether the power limit lowers the clock of a call."""
    return not {"power", "least"}.isdisjoint(one["clock_by"].split("; "))


def _above(one: Record) -> bool:
    """Whether a call would draw more than the power limit, and is too short for the limit to lower its clock."""
    return bool(one["power_w"]) and not _limited(one) and one["power_w"] > one["power_limit_w"]


def _caption(changed: Sequence[Record]) -> str:
    hollow = " Hollow: the machine breaks a limit." if any(one["breaks"] for one in changed) else ""
    retuned = " Retuned tiles are those of the unchanged GPU too." if changed[0]["tile_speedup"] else ""
    limited = " Limited: the power limit lowers the clock of the SMs." if any(map(_limited, changed)) else ""
    above = (
        " Above the power limit (>): run again and again, the call would be slower."
        if any(map(_above, changed))
        else ""
    )
    return (
        f"Points: speedup; whiskers: its 90 % range.{hollow}{retuned} Beside: the speedup, what bounds the call (of a "
        f"layer: what is busiest) and watts; on the left the die.{limited}{above} Watts and area by published "
        "constants, off by a tenth to a third; the table has their ranges."
    )
