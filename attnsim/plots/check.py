"""Measured over predicted time of somebody's own rows, over the length, with the range of each prediction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from attnsim.api.checking import Accuracy, Check
from attnsim.errors import InputError
from attnsim.plots.series import MARKERS, length_text
from attnsim.plots.sheet import Panel, Picture, dots, heading, legend, plain_axes
from attnsim.plots.styles import Style
from attnsim.wording import share_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TICKS = (0.1, 0.14, 0.2, 0.33, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.7, 2.0, 3.0, 5.0, 7.0, 10.0)
MOST_NAMES, MOST_HEIGHTS = 12, 10
"""Ticks that have room for their names."""
WIDEST = 0.27
"""Widest bar, as a share of a length's room."""
MANY = 60
"""Rows above which their points are smaller."""
LEGEND_LINE = 0.17
"""Inches of a line of the legend, on a page."""


Row = Mapping[str, Any]


class _Across(NamedTuple):
    """The x axis: its name, the names of its ticks from 0 on, and of each row its place and its width."""

    name: str
    ticks: list[str]
    places: list[float]
    widths: list[float]


def check(found: Check) -> Picture:
    """Measured over predicted time, a point a row with a time and a prediction, and the 90 % range of each.

    Parameters
    ----------
    found : Check
        As `attnsim.check` gives it.

    Raises
    ------
    InputError
        When no row was answered, or all are impossible or too far off.

    Examples
    --------
    >>> import attnsim, pandas
    >>> mine = pandas.DataFrame({"B": [2], "H": [16], "N": [4096], "d": [128], "ms": [1.9]})
    >>> figure = attnsim.plot.check(attnsim.check(mine, gpu="a100-sxm4-80gb", implementation="flash-attn.2"))
    >>> figure.axes[0].get_ylabel()
    'measured over predicted'
    """
    rows = _rows(found)
    if not rows:
        why, lines = next(iter(found.left_out.items()))
        raise InputError(f"no row counts, so there is nothing to draw; {found.line_name} {lines[0]}: {why}")
    across = _across(rows, found.line_name)
    labels = _labels(rows)
    inches = 2.5 + LEGEND_LINE * len(labels)
    return Picture(
        "Measured over predicted time",
        _caption(found, rows),
        (Panel(partial(_draw, rows=rows, across=across, labels=labels, inches=inches), inches),),
        tuple(rows),
        left=("1.40",),
        subtitle=f"{len(rows)} rows on {', '.join(dict.fromkeys(str(row['gpu']) for row in rows))}",
    )


def _rows(found: Check) -> list[dict[str, Any]]:
    answered = [(line, row, row.case) for line, row in found.lines if row.case and row.counts]
    several = len({row.gpu for _, row, _ in answered}) > 1
    rows = []
    for line, row, case in answered:
        code, gpu = str(row.answer["used_implementation"]), row.gpu
        assert row.measured_s and row.predicted_s and row.low_s and row.high_s
        rows.append(
            {
                "line": line, "series": f"{code}, {gpu}" if several else code, "gpu": gpu, "implementation": code,
                "batch": case.batch, "seq_q": case.seq_q, "seq_kv": case.seq_kv, "measured_s": row.measured_s,
                "predicted_s": row.predicted_s, "predicted_low_s": row.low_s, "predicted_high_s": row.high_s,
                "measured_over_predicted": row.measured_s / row.predicted_s, "low": row.low_s / row.predicted_s,
                "high": row.high_s / row.predicted_s, "in_range": row.in_range, "trust": row.level,
            }
        )  # fmt: skip
    return rows


def _across(rows: Sequence[Row], line: str) -> _Across:
    """Lengths where the rows have several, their rows side by side, one place a row; else the rows in their order."""
    lengths = sorted({row["seq_kv"] for row in rows})
    order = list(dict.fromkeys(row["series"] for row in rows))
    if len(lengths) == 1:
        return _Across(
            f"{line} of the table", [str(row["line"]) for row in rows], [*range(len(rows))], [0.8] * len(rows)
        )
    places, widths = [0.0] * len(rows), [0.0] * len(rows)
    for number, length in enumerate(lengths):
        mine = [at for at, row in enumerate(rows) if row["seq_kv"] == length]
        room = min(0.8 / len(mine), WIDEST)
        left = number - room * len(mine) / 2
        for turn, at in enumerate(sorted(mine, key=lambda at: order.index(rows[at]["series"]))):
            places[at], widths[at] = left + room * (turn + 0.5), room * (0.85 if len(mine) <= MOST_NAMES else 1.0)
    return _Across("sequence length, tokens", [length_text(one) for one in lengths], places, widths)


def _labels(rows: Sequence[Row]) -> dict[str, str]:
    """Legend entries, by series."""
    labels = {}
    for name in dict.fromkeys(str(row["series"]) for row in rows):
        mine = [row for row in rows if row["series"] == name]
        error = sum(abs(1 / row["measured_over_predicted"] - 1) for row in mine) / len(mine)
        inside = sum(bool(row["in_range"]) for row in mine)
        labels[name] = f"{name}: mean |error| {share_text(error)}, {inside} of {len(mine)} inside"
    return labels


def _draw(
    axes: Axes, look: Style, *, rows: Sequence[Row], across: _Across, labels: Mapping[str, str], inches: float
) -> None:
    size = 0.6 if len(rows) <= MANY else 0.4
    for number, (name, label) in enumerate(labels.items()):
        colour, marker = look.colour(number), MARKERS[number % len(MARKERS)]
        mine = [at for at, row in enumerate(rows) if row["series"] == name]
        axes.bar(
            [across.places[at] for at in mine],
            [rows[at]["high"] - rows[at]["low"] for at in mine],
            [across.widths[at] for at in mine],
            [rows[at]["low"] for at in mine],
            color=colour,
            alpha=0.2,
            zorder=2,
        )
        for inside, face in ((True, colour), (False, look.page)):
            shown = [at for at in mine if rows[at]["in_range"] is inside]
            places, ratios = (
                [across.places[at] for at in shown],
                [rows[at]["measured_over_predicted"] for at in shown],
            )
            dots(axes, (places, ratios), look, colour, size, marker, face, markeredgewidth=1.1, zorder=4)
        dots(axes, ((), ()), look, colour, size, marker, label=label)
    axes.axhline(1.0, color=look.text, linewidth=0.8, zorder=3)
    _scales(axes, look, rows, across, LEGEND_LINE * (len(labels) + 0.6) / inches)
    legend(axes, look, loc="upper left", handletextpad=0.2, labelspacing=0.25, borderaxespad=0.2)
    heading(axes, "points: your rows, hollow where outside; bars: 90 % ranges", look)


def _scales(axes: Axes, look: Style, rows: Sequence[Row], across: _Across, legend: float) -> None:
    """Axes, with a share of the height left to the legend above all that is drawn."""
    ends = [row[name] for row in rows for name in ("low", "high", "measured_over_predicted")]
    low, high = math.log(min(ends)) - 0.04, math.log(max(ends)) + 0.04
    axes.set_yscale("log")
    axes.set_ylim(math.exp(low), math.exp(low + (high - low) / (1 - legend)))
    chosen = _ticks(low, high, (high - low) / (1 - legend) / MOST_HEIGHTS)
    axes.set_yticks(chosen, [f"{one:g}" for one in chosen])
    axes.set_ylabel("measured over predicted", fontsize=look.size)
    few = max(1, -(-len(across.ticks) // MOST_NAMES))
    axes.set_xticks(range(0, len(across.ticks), few), across.ticks[::few])
    axes.set_xlim(-0.5, len(across.ticks) - 0.5)
    axes.set_xlabel(across.name, fontsize=look.size)
    plain_axes(axes, look, grid="y")
    axes.minorticks_off()


def _ticks(low: float, high: float, apart: float) -> list[float]:
    """Ratios to name between two logarithms, 1 among them and no two nearer than `apart`."""
    inside = [one for one in TICKS if low <= math.log(one) <= high]
    kept = [1.0]
    for one in sorted(inside, key=lambda one: abs(math.log(one))):
        if all(abs(math.log(one / other)) >= apart for other in kept):
            kept.append(one)
    return sorted(kept)


def _caption(found: Check, rows: Sequence[Row]) -> str:
    every: Accuracy = found.accuracy[0]
    left = len(found.answered) - len(rows)
    text = (
        f"{every.inside} of {every.rows} times lie in the 90 % range of their prediction. Predictions are off by "
        f"{share_text(every.mean)} on average; their bias is {share_text(every.bias, signed=True)}. Above 1: slower "
        "than predicted."
    )
    return text + (f" Rows left out: {left}." if left else "")
