"""Time of one step of a model by its parts, and of the steps of a serving trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from attnsim.api.serving_steps import Served, Step
from attnsim.api.step_answer import StepAnswer
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import changes_text, marks
from attnsim.plots.roofline_labels import short
from attnsim.plots.series import engineering, key_rows
from attnsim.plots.sheet import (
    Panel,
    Picture,
    bar,
    cells,
    dots,
    heading,
    legend,
    longest,
    named_rows,
    plain_axes,
    side_text,
    size_of,
    whisker,
)
from attnsim.plots.styles import STEPS, Style, ink_on
from attnsim.wording import interval_text, share_text, times_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LAUNCHES = "launches"
ROW = 0.185
"""Inches of a part and the room around it."""
WHOLE = 0.46
"""Inches of a step as one bar."""
KEY = 0.3
"""Inches of the key of colours, two rows."""
FEW = 4
"""Lengths that the question names."""
DETAILED = 3
"""Steps whose parts are drawn; of more only the groups are, and the table has the parts."""

Row = dict[str, Any]


def step(answers: Sequence[StepAnswer]) -> Picture:
    """One step of a model, a bar for each of its parts and the whole as a bar of groups.

    Parameters
    ----------
    answers : sequence of StepAnswer
        Of one model and batch, as :func:`attnsim.api.step.step` gives them, on one GPU or several.

    Raises
    ------
    InputError
        Without any.
    """
    if not answers:
        raise InputError("no step to draw; give at least one, as attnsim.api.step.step returns it")
    known = marks((one.gpu, one.changes) for one in answers)
    names = [f"{one.gpu}{known.get((one.gpu, one.changes), '')}" for one in answers]
    tables = [list(_rows(name, one)) for name, one in zip(names, answers, strict=True)]
    first, whole_s = answers[0], max(one.time_s for one in answers)
    detailed = list(zip(names, tables, strict=True)) if len(answers) <= DETAILED else []
    parts = [[row for row in table if row["kind"] == "part"] for _, table in detailed]
    longest_s = max((row["time_high_s"] for table in parts for row in table), default=0.0)
    drawn = {row["group"] for table in tables for row in table if row["kind"] == "group" and row["time_s"]}
    groups = [name for name in STEPS if name in drawn]
    lengths = f" ({', '.join(map(str, first.lengths))})" if len(first.lengths) <= FEW else ""
    tokens = f"{first.new_tokens:,} new tokens of {first.sequences:,} sequences{lengths}"
    changed = [f"{name}: {changes_text(one.changes)}" for name, one in zip(names, answers, strict=True) if one.changes]
    return Picture(
        f"One step of {first.model.id}: {engineering(first.time_s, 's')}",
        "Above: the whole step; its 90 % range has all parts at their lower or upper ends, and what is left out. "
        "Below: all runs of a part together, with its share; whiskers: 90 % range; grey at the left: launches.",
        (
            Panel(partial(_whole, names=names, tables=tables, longest_s=whole_s), WHOLE * len(answers), apart=True),
            Panel(partial(_key, groups=groups), KEY, apart=True, key=True),
            *(
                Panel(partial(_parts, name=name, rows=rows, longest_s=longest_s), ROW * len(rows))
                for (name, _), rows in zip(detailed, parts, strict=True)
            ),
        ),
        tuple(row for table in tables for row in table),
        left=("161 x norm and residual",),
        right=("   123 ms   12.3 %",),
        subtitle="; ".join(
            (
                ", ".join(dict.fromkeys(one.gpu for one in answers)),
                *([f"{first.gpus} GPUs share each layer"] if first.gpus > 1 else []),
                f"{tokens}, {first.cache} L2, launch {first.launch}",
                *changed,
            )
        ),
    )


def _rows(name: str, answer: StepAnswer) -> Iterator[Row]:
    """Every part, every group without its launches, the launches, and the step."""
    here: Row = {"name": name, "gpu": answer.gpu, "changes": changes_text(answer.changes)}
    groups: dict[str, float] = dict.fromkeys(STEPS, 0.0)
    for number, part in answer.parts:
        time_s, launch_s = number * (part.time_s or 0.0), number * (part.launch_s or 0.0)
        groups[part.group] += time_s - launch_s
        groups[LAUNCHES] += launch_s
        yield here | {
            "kind": "part",
            "group": part.group,
            "part": part.name,
            "times": number,
            "each_s": part.time_s,
            "time_s": time_s,
            "time_low_s": number * (part.time_low_s or 0.0),
            "launch_s": launch_s,
            "time_high_s": number * (part.time_high_s or 0.0),
            "share": time_s / answer.time_s,
            "bound": part.busiest,
        }
    for group, time_s in groups.items():
        yield here | {"kind": "group", "group": group, "time_s": time_s, "share": time_s / answer.time_s}
    ends = {"time_low_s": answer.time_low_s, "time_high_s": answer.time_high_s}
    yield here | {"kind": "step", "time_s": answer.time_s, "share": 1.0, "launch_s": groups[LAUNCHES]} | ends


def _whole(axes: Axes, look: Style, *, names: Sequence[str], tables: Sequence[Sequence[Row]], longest_s: float) -> None:
    """Each step as one bar of groups, which have their names and shares where there is room."""
    inches = size_of(axes)[0]
    unchanged: dict[str, float] = {}
    for place, (*rows, whole) in enumerate(tables):
        start = 0.0
        for row in (row for row in rows if row["kind"] == "group"):
            (name, hue), time_s, share = STEPS[row["group"]], row["time_s"], share_text(row["share"], 0)
            colour = look.colour(hue)
            bar(axes, -place, start, start + time_s, colour, height=0.86, edgecolor=look.page, linewidth=0.5)
            room = 0.96 * inches * time_s / longest_s
            text = next((text for text in (f"{name}\n{share}", share) if longest([text], look) < room), "")
            middle = (start + time_s / 2, -place)
            axes.text(*middle, text, fontsize=look.size, color=ink_on(colour), ha="center", va="center")
            start += time_s
        ends = interval_text(whole["time_low_s"], whole["time_high_s"], start)
        base = unchanged.setdefault(whole["gpu"], start)
        faster = f"{times_text(base / start)} as fast" if whole["changes"] and base != start else ""
        words = filter(None, (engineering(start, "s"), ends, faster))
        side_text(axes, -place, "\n".join(words), look, bold=True)
    _finish(axes, [-place for place in range(len(names))], names, longest_s, look)
    heading(axes, "the whole step, by groups of parts", look)


def _key(axes: Axes, look: Style, *, groups: Sequence[str]) -> None:
    """The colours of all groups with their names, which narrow ones have no room for in the bar."""
    found = [STEPS[name] for name in groups]
    squares = [{"color": look.colour(hue), "marker": "s", "linestyle": "", "markersize": look.size} for _, hue in found]
    key_rows(axes, squares, [name for name, _ in found], look, 0.8)


def _parts(axes: Axes, look: Style, *, name: str, rows: Sequence[Row], longest_s: float) -> None:
    for place, row in enumerate(rows):
        time_s, launch_s = row["time_s"], row["launch_s"]
        for start, end, hue in ((0.0, launch_s, None), (launch_s, time_s, STEPS[row["group"]][1])):
            bar(axes, -place, start, end, look.colour(hue), height=0.7)
        whisker(axes, -place, _ends(row), look)
        cells(axes, -place, [engineering(time_s, "s"), share_text(row["share"])], [False, False], look)
    labels = [f"{row['times']} x {row['part']}" if row["times"] != 1 else str(row["part"]) for row in rows]
    _finish(axes, [-place for place in range(len(rows))], labels, longest_s, look)
    heading(axes, f"{name}: parts in launch order", look)


def _ends(row: Row) -> tuple[float, float, float]:
    return row["time_low_s"], row["time_s"], row["time_high_s"]


def _finish(axes: Axes, places: Sequence[float], labels: Sequence[str], longest_s: float, look: Style) -> None:
    named_rows(axes, places, labels, look)
    axes.set_ylim(places[-1] - 0.55, 0.55)
    axes.set_xlim(0, 1.01 * longest_s)
    axes.locator_params(axis="x", nbins=6 if look.crowding == 1 else 3)
    axes.xaxis.set_major_formatter(lambda value, _: engineering(value, "s", like=longest_s) if value else "0")


KINDS = {"prefill": 1, "mixed": 2, "decode": 0}
"""Kinds of step, and the hue of each."""


def serving(found: Served) -> Picture:
    """Time by step, beside prompt tokens, decodes and keys.

    Parameters
    ----------
    found : Served
        As :func:`attnsim.api.serving_steps.serve` gives it.
    """
    kinds = [kind for kind in KINDS if any(one.kind == kind for one in found.steps)]
    quantities: tuple[tuple[str, Callable[[Step], float]], ...] = (
        (f"{found.of}, ms a step", lambda one: 1e3 * one.time_s),
        ("prompt tokens", lambda one: one.prefill_tokens),
        ("sequences that decode", lambda one: one.decodes),
        ("keys attended", lambda one: one.keys),
    )
    panels = tuple(
        Panel(
            partial(_draw, found=found, kinds=kinds, value=value, text=text, first=not number, last=number == 3),
            0.8 if number else 1.6,
        )
        for number, (text, value) in enumerate(quantities)
    )
    return Picture(
        "Attention's time by step of a serving trace" if found.of == "attention" else "A serving trace step by step",
        f"{len(found.steps)} steps, {found.predicted} of them predicted: while the same sequences decode, a step has "
        f"the time of one before it. Attention as {found.implementation} runs it. {found.left_out}",
        panels,
        tuple(found.rows()),
        left=("1,000k",),
        right=tuple(kinds),
        subtitle=f"{found.gpu}, {found.implementation}, {1e3 * found.time_s:.4g} ms of {found.of} in all",
    )


def _draw(
    axes: Axes,
    look: Style,
    *,
    found: Served,
    kinds: list[str],
    value: Callable[[Step], float],
    text: str,
    first: bool,
    last: bool,
) -> None:
    plain_axes(axes, look)
    for kind in kinds:
        mine = [one for one in found.steps if one.kind == kind]
        at = [one.number for one in mine], [value(one) for one in mine]
        size = 0.45 if len(found.steps) < 200 else 0.25
        dots(axes, at, look, look.colour(KINDS[kind]), size, label=kind, markeredgewidth=0, zorder=3)
    axes.set_xlim(0, len(found.steps) + 1)
    axes.set_ylim(0, 1.08 * max(value(one) for one in found.steps) or 1)
    axes.yaxis.set_major_formatter(lambda number, _: short(number) if number else "0")
    heading(axes, text, look)
    if last:
        axes.set_xlabel("step", fontsize=look.size)
    if first:
        legend(axes, look, loc="upper left", bbox_to_anchor=(1.0, 1.0))
