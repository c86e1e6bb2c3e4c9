"""Gains of several changes of a GPU: steps from the unchanged GPU to the changed one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from attnsim.api.answer import Answer
from attnsim.api.asking import Question
from attnsim.api.comparing.ratios import Ratio
from attnsim.api.comparing.splitting import Part, Split
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Change
from attnsim.models.hardware.sections import show
from attnsim.plots.layout import Panel
from attnsim.plots.series import about, identity, names_of
from attnsim.plots.sheet import NARROWEST, Picture, heading, named_rows, side_text, speedup_axis, whisker
from attnsim.plots.styles import Style
from attnsim.wording import number, times_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RATIOS = ("first", "last", "mean")
ROW = 0.36
"""Inches of a bar and the room around it: its label has two lines."""
TOGETHER = "all together"


def split(splits: Sequence[Split[Answer[Question]]]) -> Picture:
    """Steps from the unchanged GPU to the changed one, a bar for what each change brings on average over all orders.

    Parameters
    ----------
    splits : sequence of Split
        As `attnsim.split` gives them; a panel for each.

    Raises
    ------
    InputError
        Without any.
    """
    if not splits:
        raise InputError("nothing to draw; give at least one split, as attnsim.split returns it")
    names = names_of([one.changed for one in splits])
    last = len(splits) - 1
    labels = [_label(part.change) for one in splits for part in one.parts]
    texts = [_text(ratio) for one in splits for ratio in (*(part.mean for part in one.parts), one.together)]
    return Picture(
        "What each change of the GPU brings",
        _caption(splits),
        tuple(
            Panel(partial(_draw, name=name, found=one, last=place == last), ROW * (len(one.parts) + 1))
            for place, (name, one) in enumerate(zip(names, splits, strict=True))
        ),
        tuple(row for name, one in zip(names, splits, strict=True) for row in _rows(name, one)),
        left=(*labels, TOGETHER),
        right=tuple(f"   {line}" for text in texts for line in text.split("\n")),
        subtitle=about([one.changed for one in splits]),
    )


def _draw(axes: Axes, look: Style, *, name: str, found: Split[Answer[Question]], last: bool) -> None:
    parts = sorted(found.parts, key=lambda part: -part.mean.value)
    start, seen = 1.0, [*NARROWEST]
    for row, part in enumerate(parts):
        end = start * part.mean.value
        seen += _bar(axes, -row, start, part.mean, look.colour(0 if end >= start else 1), look)
        axes.plot([end, end], [-row + 0.28, -row - 1.28], color=look.faint, linewidth=0.7, zorder=2)
        for ratio, inside, size in ((part.first, look.page, 0.75), (part.last, look.text, 0.4)):
            seen.append(start * ratio.value)
            (dot,) = axes.plot(seen[-1], -row, "o", markersize=size * look.size, zorder=6)
            dot.set(markerfacecolor=inside, markeredgecolor=look.text, markeredgewidth=0.8)
        start = end
    rows = len(parts)
    seen += _bar(axes, -rows, 1.0, found.together, look.middle, look)
    for row, ratio in enumerate((*(part.mean for part in parts), found.together)):
        side_text(axes, -row, _text(ratio), look, bold=row == rows)
    axes.axvline(1, color=look.text, linewidth=0.9, zorder=4)
    labels = [*(_label(part.change) for part in parts), TOGETHER]
    named_rows(axes, [-row for row in range(rows + 1)], labels, look)
    speedup_axis(axes, seen)
    axes.set_ylim(-rows - 0.5, 0.5)
    if last:
        axes.set_xlabel("speedup over the unchanged GPU", fontsize=look.size)
    heading(axes, f"{name}   ○ alone  ● after the others", look)


def _bar(axes: Axes, row: float, start: float, ratio: Ratio, colour: str, look: Style) -> tuple[float, ...]:
    """A bar from `start` by a ratio with the range of that ratio, and the places that it takes."""
    ends = (start * ratio.low, start * ratio.value, start * ratio.high)
    axes.barh([row], [ends[1] - start], left=[start], height=0.56, color=colour, zorder=3)
    whisker(axes, row, ends, look)
    return ends


def _label(change: Change) -> str:
    return f"{change.key}\n{show(change.new, change.unit)}"


def _text(ratio: Ratio) -> str:
    """A ratio above its range, as narrow as it can be."""
    return f"{times_text(ratio.value)}\n{number(ratio.low)}-{number(ratio.high)}"


def _caption(splits: Sequence[Split[Answer[Question]]]) -> str:
    return (
        "Bars: the change's mean speedup over all orders in which the changes can come, one after the other, the "
        "largest first; together they are the whole (grey). Whiskers, and beside: its 90 % range. Hollow: the change "
        "alone; filled: after all others; where the two lie apart, changes help or spare one another."
    )


def _rows(name: str, found: Split[Answer[Question]]) -> list[dict[str, object]]:
    together = dict.fromkeys(RATIOS, found.together)
    of_all = {"figure": TOGETHER, "change": "", "alone_time_s": found.changed.time_s}
    whole = of_all | {"without_time_s": found.unchanged.time_s} | _ratios(together)
    mine: list[dict[str, object]] = [_row(part) for part in found.parts]
    return [{"name": name} | identity(found.changed) | row for row in (*mine, whole)]


def _row(part: Part[Answer[Question]]) -> dict[str, object]:
    own: dict[str, object] = {"figure": part.change.key, "change": part.change.setting}
    times = {"alone_time_s": part.alone.time_s, "without_time_s": part.without.time_s}
    return own | times | _ratios({name: getattr(part, name) for name in RATIOS})


def _ratios(given: dict[str, Ratio]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, ratio in given.items():
        found |= {name: ratio.value, f"{name}_low": ratio.low, f"{name}_high": ratio.high}
    return found
