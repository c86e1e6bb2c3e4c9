"""Waves of thread blocks over the length or the batch, how empty the last one is, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from attnsim.api.answer import Outcome
from attnsim.errors import InputError
from attnsim.plots.layout import Panel
from attnsim.plots.roofline_labels import short
from attnsim.plots.series import FLOPS, Over, Series, about, end_labels, identity, length_text, place, series_of
from attnsim.plots.sheet import Picture, heading, plain_axes
from attnsim.plots.styles import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINEAR = 8.0
"""Ratio of times per FLOP up to which their axis is linear."""


def waves(predictions: Sequence[Outcome], over: Over | None = None) -> Picture:
    """Waves of thread blocks, the empty part of the last one, and the time per useful FLOP.

    Parameters
    ----------
    predictions : sequence of Answer
        Of several lengths or batches, close enough to show the steps.
    over : {"seq", "batch"}, optional
        What is varied; by default the one that differs.

    Raises
    ------
    InputError
        When none fits the memory, or two are of one algorithm, GPU and length.
    """
    if over is None:
        batches, lengths = ({place(one, what) for one in predictions} for what in ("batch", "seq"))
        over = "batch" if len(batches) > 1 and len(lengths) == 1 else "seq"
    lines = [line for line in series_of(predictions, over) if line.drawn]
    if not lines:
        raise InputError(f"nothing to draw: {predictions[0].notes[0]}")
    draw = partial(_draw, lines=lines, over=over)
    panels = (
        Panel(partial(draw, value=lambda one: one.waves or 0.0, text="waves of the longest kernel", named=_name), 1.5),
        Panel(partial(draw, value=lambda one: 100 * empty_share(one), text="empty part of the last wave, %"), 1.1),
        Panel(partial(draw, value=_ms_per_teraflop, text="ms per useful TFLOP (not from zero)", last=True), 1.7),
    )
    rows = tuple(_row(line.label, one) for line in lines for one in line.drawn)
    return Picture(
        f"Waves and what they cost, over the {'batch' if over == 'batch' else 'sequence length'}",
        _caption(predictions, lines, over),
        panels,
        rows,
        left=("1,000",),
        right=tuple(map(_name, lines)),
        subtitle=about(predictions),
    )


def empty_share(one: Outcome) -> float:
    """Share of the last wave's places for thread blocks that stay empty."""
    return math.ceil((one.waves or 0.0) - 1e-9) - (one.waves or 0.0)


def _ms_per_teraflop(one: Outcome) -> float:
    return 1e15 * (one.time_s or 0.0) / one.flops_useful


def _draw(
    axes: Axes,
    look: Style,
    *,
    lines: Sequence[Series],
    over: Over,
    value: Callable[[Outcome], float],
    text: str,
    named: Callable[[Series], str] = lambda line: line.label,
    last: bool = False,
) -> None:
    from matplotlib.ticker import LogLocator

    plain_axes(axes, look)
    ends = []
    for line in lines:
        xs, ys = [place(one, over) for one in line.drawn], [value(one) for one in line.drawn]
        axes.plot(
            xs,
            ys,
            color=look.colour(line.hue),
            linewidth=0.15 * look.size,
            marker=line.marker,
            zorder=3,
            markersize=(0.45 if len(xs) < 40 else 0.28) * look.size,
            linestyle=look.dash(line.hue, line.before),
            markevery=max(1, round(look.crowding * len(xs) / 40)),
        )
        ends.append((xs[-1], ys[-1], named(line), look.colour(line.hue)))
    places = sorted({place(one, over) for line in lines for one in line.drawn})
    axes.set_xlim(places[0] - 0.02 * (places[-1] - places[0] or 1), places[-1] + 0.02 * (places[-1] - places[0] or 1))
    heights = [value(one) for line in lines for one in line.drawn]
    low, high = min(heights), max(heights)
    if last and high > LINEAR * low:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(lambda _value, _: "")
    elif last:
        axes.set_ylim(low - 0.12 * (high - low or low), high + 0.12 * (high - low or low))
    else:
        axes.set_ylim(0, 1.08 * high or 1)
    axes.yaxis.set_major_formatter(lambda number, _: short(number) if number else "0")
    axes.xaxis.set_major_formatter(lambda number, _: length_text(number) if over == "seq" else f"{number:g}")
    if over == "seq":
        axes.set_xticks(_ticks(places))
    heading(axes, text, look)
    if last:
        axes.set_xlabel("batch" if over == "batch" else "sequence length, tokens", fontsize=look.size)
    end_labels(axes, ends, look)


def _ticks(places: Sequence[int]) -> list[int]:
    """Round lengths within: multiples of a power of two, at most nine."""
    step = 1 << max(0, math.ceil(math.log2(max(1, places[-1] - places[0]) / 8)))
    return [at for at in range(-(-places[0] // step) * step, places[-1] + 1, step) if at]


def _name(line: Series) -> str:
    found = sorted({one.blocks_per_sm or 0 for one in line.drawn})
    held = " to ".join(map(str, dict.fromkeys((found[0], found[-1]))))
    return f"{line.label}, {held} block{'s' * (found[-1] > 1)} per SM"


def _caption(predictions: Sequence[Outcome], lines: Sequence[Series], over: Over) -> str:
    missing = sum(one.time_s is None for one in predictions)
    text = (
        "A wave is a block in every place that the SMs have for the longest kernel's blocks ("
        "beside the line: how many an SM holds); places of the last wave that no block takes stay idle. "
        f"Lines join the {'batches' if over == 'batch' else 'lengths'} asked for; what lies between is not "
        f"predicted. Where waves jump, another kernel or tile is taken. {FLOPS}"
    )
    return text + (f" {missing} too large for the memory." if missing else "")


def _row(label: str, one: Outcome) -> dict[str, object]:
    return {
        "series": label,
        **identity(one),
        "batch": one.workload.batch,
        "seq_q": one.workload.seq_q,
        "seq_kv": one.workload.seq_kv,
        "blocks_per_sm": one.blocks_per_sm,
        "waves": one.waves,
        "empty_share_of_last_wave": empty_share(one),
        "time_s": one.time_s,
        "flops_useful": one.flops_useful,
        "time_per_useful_flop_s": (one.time_s or 0.0) / one.flops_useful,
        "busiest": one.busiest,
    }
