"""Gains of changes of a GPU: several one after the other, each for several cases, and of each figure a little."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from attnsim.api.answer import Answer
from attnsim.api.asking import Question
from attnsim.api.comparing.ratios import Ratio
from attnsim.api.comparing.splitting import Part, Split
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Change
from attnsim.models.hardware.sections import show
from attnsim.plots.series import about, identity, names_of
from attnsim.plots.sheet import (
    NARROWEST,
    Panel,
    Picture,
    bar,
    heading,
    legend,
    named_rows,
    note,
    side_text,
    size_of,
    speedup_axis,
    whisker,
)
from attnsim.plots.styles import Style, figure_hue
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
    bar(axes, row, start, ends[1], colour, height=0.56)
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
    labels = [_label_whatif(next(one for one in changed if one["change"] == name)) for name in names]
    texts = [f"   {_text_whatif(one)}" for one in changed]
    tall = LINE * max(len(cases), *(one.count("\n") + 1 for one in labels)) + 0.1
    draw = partial(_draw_whatif, changed=changed, names=names, cases=cases, labels=labels, pitch=LINE / tall)
    return Picture(
        f"What each change of the GPU brings{_whom(records)}",
        _caption_whatif(changed),
        (Panel(draw, tall * len(names)),),
        tuple(records),
        left=tuple(labels),
        right=tuple(texts),
        subtitle=_asked(records),
    )


def _draw_whatif(
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
        side_text(axes, row, _text_whatif(one), look)
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
        shapes = [
            axes.plot([], [], MARKERS[hue % len(MARKERS)], color=look.colour(hue), markersize=0.55 * look.size)[0]
            for hue in range(len(cases))
        ]
        where: Any = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.3, "handletextpad": 0.1}
        legend(axes, look, shapes, told, **where)


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


def _label_whatif(one: Record) -> str:
    """The settings of a row, its die, and that it breaks a limit or is larger than the reticle."""
    area = [f"{number(one['area_mm2'])} mm2"] if one["area_mm2"] else []
    large = ["beyond the reticle"] if one["beyond_reticle"] else []
    limits = ["breaks a limit"] if one["breaks"] else []
    return "\n".join((*textwrap.wrap(one["change"], 24, break_on_hyphens=False), *area, *large, *limits))


def _text_whatif(one: Record) -> str:
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


def _caption_whatif(changed: Sequence[Record]) -> str:
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


TORNADO_ROW = 0.33
"""Inches of two bars and the room around them."""
LESS = "/////"
"""Hatch of the bars of lower figures."""
SMALLEST = 0.0005
"""Changes of time that round to none."""
SMALL = 0.005
"""Changes of time below are not told apart from none."""


class Answered(Protocol):
    """An elasticity as the picture needs it; `attnsim.studies.sensitivity.Elasticity` is one."""

    @property
    def figure(self) -> str: ...  # noqa: D102
    @property
    def value(self) -> float: ...  # noqa: D102
    @property
    def elasticity(self) -> float: ...  # noqa: D102
    @property
    def down(self) -> float | None: ...  # noqa: D102
    @property
    def up(self) -> float | None: ...  # noqa: D102
    @property
    def step(self) -> float: ...  # noqa: D102


def tornado(elasticities: Mapping[str, Sequence[Answered]], question: str = "") -> Picture:
    """Change of the time with one figure of the GPU higher or lower, the largest on top, a panel for each algorithm.

    Parameters
    ----------
    elasticities : mapping of str to sequence of Elasticity
        By the name of the algorithm, as :func:`attnsim.sensitivity` gives them, all of one step.
    question : str
        In words.

    Raises
    ------
    InputError
        When no figure moves any of the times, or the steps differ.
    """
    moved = {name: [one for one in each if _size(one) >= SMALL] for name, each in elasticities.items()}
    if not any(moved.values()):
        raise InputError("no figure of the GPU moves the time; give elasticities of at least one question")
    step, *others = sorted({one.step for each in elasticities.values() for one in each})
    if others:
        raise InputError(f"the elasticities have steps {step:g} and {others[0]:g}; ask all with one step")
    widest = max(abs(change) for each in moved.values() for one in each for change in changes(one) if change)
    panels = []
    for name, each in moved.items():
        ordered = sorted(each, key=lambda one: -_size(one))
        draw = partial(_draw_tornado, name=name, found=ordered, widest=widest, last=name == list(moved)[-1])
        panels.append(Panel(draw, TORNADO_ROW * max(1, len(ordered)) + 0.1))
    rows = tuple(_row_tornado(name, one) for name, each in elasticities.items() for one in each)
    return Picture(
        f"Change of the time with one figure of the GPU {100 * step:g} % higher or lower",
        _caption_tornado(moved, step),
        tuple(panels),
        rows,
        left=tuple(one.figure for each in moved.values() for one in each),
        subtitle=question,
    )


def changes(one: Answered) -> tuple[float | None, float | None]:
    """Relative change of the time with the figure divided by ``1 + step``, and multiplied by it.

    From the one-sided elasticities, which are replayed: ``t / t0 = (figure / figure0) ** elasticity``.
    """
    less = None if one.down is None else (1 + one.step) ** -one.down - 1
    more = None if one.up is None else (1 + one.step) ** one.up - 1
    return less, more


def _size(one: Answered) -> float:
    return max(abs(change) for change in (*changes(one), 0.0) if change is not None)


def _draw_tornado(axes: Axes, look: Style, *, name: str, found: Sequence[Answered], widest: float, last: bool) -> None:
    for place, one in enumerate(found):
        colour = look.colour(figure_hue(one.figure))
        for change, up, hatch in zip(changes(one), (-0.2, 0.2), (LESS, ""), strict=True):
            if change is None:
                continue
            inside = look.page if hatch else colour
            bar(axes, up - place, 0, 100 * change, inside, height=0.38, hatch=hatch, edgecolor=colour, linewidth=0.6)
            side = 1 if change > 0 else -1
            text = f"{100 * change:+.1f} %" if abs(change) >= SMALLEST else "0.0 %"
            ha = "left" if side > 0 else "right"
            note(axes, text, (100 * change, up - place), look, (0.35 * side, 0), ha=ha)
    axes.axvline(0, color=look.text, linewidth=0.9, zorder=4)
    named_rows(axes, [-number for number in range(len(found))], [one.figure for one in found], look)
    axes.set_ylim(-max(len(found), 1) + 0.4, 0.5)
    half = size_of(axes)[0] / 2
    ends = 100 * widest / max(0.2, 1 - 4.4 * look.size / 72 / half)  # beside the longest bar stands its number
    axes.set_xlim(-ends, ends)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:+g}" if value else "0")
    if last:
        axes.set_xlabel("change of the time, %", fontsize=look.size)
    heading(axes, name, look)


def _caption_tornado(moved: Mapping[str, Sequence[Answered]], step: float) -> str:
    still = [name for name, each in moved.items() if not each]
    return (
        f"Upper bar, plain: the figure times {1 + step:g}; lower, hatched: over {1 + step:g}. Colours: the "
        "unit that the figure is of. Each change is replayed by itself, with tiles as they are and latencies in clocks "
        "following the clock; scheduling may make times jump. Figures that move a time by less than "
        f"{100 * SMALL:g} % are in the table only." + "".join(f" Nothing moves {name}." for name in still)
    ).strip()


def _row_tornado(name: str, one: Answered) -> dict[str, object]:
    less, more = changes(one)
    return {
        "name": name,
        "figure": one.figure,
        "value": one.value,
        "elasticity": one.elasticity,
        "less_time_change": less,
        "more_time_change": more,
        "step": one.step,
        "elasticity_less": one.down,
        "elasticity_more": one.up,
    }
