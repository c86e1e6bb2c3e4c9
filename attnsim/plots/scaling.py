"""Time, speedup and waves of thread blocks over the sequence length or the batch, a line for each algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

from attnsim.api.answer import Outcome
from attnsim.api.comparing.baselines import UNCHANGED, UNFUSED, Ratios, ratios_over, ratios_over_unchanged
from attnsim.api.comparing.breakeven import Crossover
from attnsim.api.comparing.ratios import Ratio
from attnsim.errors import InputError
from attnsim.plots.roofline_labels import short
from attnsim.plots.series import (
    FLOPS,
    Over,
    Series,
    about,
    approximations,
    end_labels,
    engineering,
    error_text,
    identity,
    length_text,
    place,
    results,
    series_of,
)
from attnsim.plots.sheet import Panel, Picture, band, dots, heading, note, plain_axes
from attnsim.plots.styles import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
FINE_STEPS = (0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2, 2.5, 3, 4)
"""Ticks of speedups that differ by more than 4 times, and by less."""
NEAR = 0.15
"""Difference of log length below which two crossings share a label."""


def scaling(
    predictions: Sequence[Outcome], crossovers: Sequence[Crossover] = (), baseline: str | None = None
) -> Picture:
    """Time over the sequence length, and below it the speedup over a baseline, both with their 90 % ranges.

    Parameters
    ----------
    predictions : sequence of Answer
        Of several lengths; one that does not fit the memory ends its line.
    crossovers : sequence of Crossover
        As `attnsim.api.comparing.breakeven.crossover` gives them, to be marked.
    baseline : str, optional
        As for `attnsim.api.comparing.baselines.ratios_over`; by default the unchanged GPU where one is changed.

    Raises
    ------
    InputError
        Without predictions, for two of one algorithm, GPU and length, or without a row of the baseline's name.

    Examples
    --------
    >>> import attnsim
    >>> questions = [attnsim.Workload(1, 16, seq, 64) for seq in (1024, 2048)]
    >>> found = [one for question in questions for one in attnsim.compare(question, "a100-sxm4-80gb")]
    >>> len(attnsim.plot.scaling(found).axes)
    2
    """
    lines = series_of(predictions)
    marked = sorted((one for one in crossovers if one.seq and one.time_s), key=lambda one: one.seq or 0)
    named = tuple(line.label + error_text(line.points[0]) for line in lines)
    panels = [Panel(partial(_times, lines=lines, marked=marked), 2.7)]
    found = _ratios(predictions, baseline)
    ratios = {id(one): ratio for one, ratio in zip(predictions, found.ratios, strict=True)}
    if any(found.ratios):
        panels.append(Panel(partial(_speedups, lines=lines, ratios=ratios, over=found.over), 1.8))
    return Picture(
        "Time of attention over the sequence length",
        _caption(predictions, lines, marked) + _over(found),
        tuple(panels),
        (
            *(_row(line.label, one, found.over, ratios[id(one)]) for line in lines for one in line.points),
            *map(_crossover_row, marked),
        ),
        left=("100 ms",),
        right=named,
        subtitle=about(predictions),
    )


def _over(found: Ratios) -> str:
    """Caption text about the ratios."""
    if not any(found.ratios):
        return ""
    return f" {found.note}." if found.note else " Unfused: torch.baddbmm." if found.over == UNFUSED else ""


def _ratios(predictions: Sequence[Outcome], baseline: str | None) -> Ratios:
    if baseline is None and any(one.changes for one in predictions):
        return ratios_over_unchanged(predictions, predictions)
    return ratios_over(predictions, baseline)


def crossing_pairs(predictions: Sequence[Outcome]) -> list[tuple[str, str]]:
    """Algorithms whose order changes between two lengths that both fit: (slower, faster) at the longer ones.

    Of lines on one GPU, one implementation each; a pair that crosses more than once counts by its longest lengths.
    """
    times: dict[str, dict[int, float]] = {}
    for one in predictions:
        if one.time_s is not None:
            times.setdefault(one.algorithm, {})[place(one)] = one.time_s
    found = []
    for first, second in combinations(times, 2):
        both = sorted(times[first].keys() & times[second].keys())
        ahead = [times[first][at] < times[second][at] for at in both]
        if any(before != after for before, after in pairwise(ahead)):
            found.append((second, first) if ahead[-1] else (first, second))
    return found


def _times(axes: Axes, look: Style, *, lines: Sequence[Series], marked: Sequence[Crossover]) -> None:
    for line in lines:
        _line(axes, line, [one.time_s or 0.0 for one in line.drawn], look)
        lower, upper = ([getattr(one, end) or 0.0 for one in line.drawn] for end in ("time_low_s", "time_high_s"))
        band(axes, [place(one) for one in line.drawn], lower, upper, look.colour(line.hue))
    _length_axis(axes, lines, look)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: engineering(value, "s"))
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 1.5)  # room for a name above the highest line
    heading(axes, "predicted time; band: 90 % range", look)
    _rings(axes, marked, look)
    whole = [line for line in lines if line.drawn and line.drawn[-1] is line.points[-1]]
    ends = [(*_end(line), line.label + error_text(line.points[0]), look.colour(line.hue)) for line in whole]
    end_labels(axes, ends, look)
    _memory_ends(axes, [line for line in lines if line.drawn and line not in whole], look)


def _end(line: Series) -> tuple[int, float]:
    last = line.drawn[-1]
    return place(last), last.time_s or 0.0


def _memory_ends(axes: Axes, cut: Sequence[Series], look: Style) -> None:
    """Crosses where the next length does not fit, and the names of these lines above the highest."""
    for at in dict.fromkeys(_end(line)[0] for line in cut):
        here = sorted((line for line in cut if _end(line)[0] == at), key=lambda line: _end(line)[1])
        for line in here:
            x, y = _end(line)
            dots(axes, ([x], [y]), look, look.text, 0.95, "x", markeredgewidth=1.4, zorder=6)
        text = f"{', '.join(line.label for line in here)}: up to {length_text(at)}"
        how: Any = {"ha": "right", "va": "baseline", "color": look.colour(here[-1].hue), "zorder": 6}
        note(axes, text, _end(here[-1]), look, (-0.6, 0.6), rim=True, **how)


def _rings(axes: Axes, marked: Sequence[Crossover], look: Style) -> None:
    """Rings around crossings, those at one place with one label."""
    labels: dict[tuple[int, float], list[str]] = {}
    for number, one in enumerate(marked, 1):
        at = (one.seq or 0, one.time_s or 0.0)
        near = next((other for other in labels if abs(math.log(other[0] / at[0])) < NEAR), at)
        labels.setdefault(near, []).append(str(number))
        dots(axes, ([at[0]], [at[1]]), look, look.text, 1.0, inside="none", markeredgewidth=1.0, zorder=7)
    for at, numbers in labels.items():
        note(axes, ",".join(numbers), at, look, (0, -1.5), rim=True, ha="center", fontweight="bold", zorder=8)


def _speedups(
    axes: Axes, look: Style, *, lines: Sequence[Series], ratios: Mapping[int, Ratio | None], over: str
) -> None:
    """How many times faster each line is than the baseline; bands: the range of that ratio."""
    ends = []
    for line in lines:
        known = [(one, ratio) for one in line.drawn if (ratio := ratios[id(one)]) is not None]
        if any(ratio.value != 1 for _, ratio in known):
            gains = [ratio.value for _, ratio in known]
            _line(axes, replace(line, points=tuple(one for one, _ in known)), gains, look)
            lower, upper = ([getattr(ratio, end) for _, ratio in known] for end in ("low", "high"))
            band(axes, [place(one) for one, _ in known], lower, upper, look.colour(line.hue))
            ends.append((place(known[-1][0]), gains[-1], line.label, look.colour(line.hue)))
    axes.axhline(1.0, color=look.text, linewidth=0.1 * look.size, zorder=1)
    _length_axis(axes, lines, look)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    low, high = min(low, 0.9), max(high, 1.1)
    axes.set_ylim(low, high)
    steps = STEPS if high / low > 4 else FINE_STEPS
    ticks = [one for one in steps if low <= one <= high]
    axes.set_yticks(
        [one for number, one in enumerate(reversed(ticks)) if number % -(-len(ticks) // 7) == 0 or one == 1]
    )
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    axes.set_xlabel("sequence length, tokens", fontsize=look.size)
    meant = {UNFUSED: "unfused attention", UNCHANGED: "the unchanged GPU"}
    heading(axes, f"speedup over {meant.get(over, over)}; band: 90 % range", look)
    end_labels(axes, ends, look)


def _line(axes: Axes, line: Series, heights: Sequence[float], look: Style) -> None:
    how: dict[str, Any] = {"markeredgecolor": look.page, "markeredgewidth": 0.5, "zorder": 4}
    how |= line.line(look, 0.19, 0.55) | {"markevery": max(1, len(heights) // 12)}
    axes.plot([place(one) for one in line.drawn], heights, **how)
    limited = [(place(one), height) for one, height in zip(line.drawn, heights, strict=True) if _limited(one)]
    if limited:
        at, rim = list(zip(*limited, strict=True)), 0.14 * look.size
        dots(axes, at, look, look.colour(line.hue), 0.6, line.marker, look.page, markeredgewidth=rim, zorder=5)


def _limited(one: Outcome) -> bool:
    """Whether the power limit holds the clock below the boost."""
    return one.clock_by in ("power", "least")


def _length_axis(axes: Axes, lines: Sequence[Series], look: Style) -> None:
    plain_axes(axes, look)
    lengths = sorted({place(one) for line in lines for one in line.points})
    shown = [at for at in lengths if at & (at - 1) == 0] or lengths
    axes.set_xscale("log", base=2)
    axes.set_xticks(shown[:: max(1, -(-len(shown) // 12))])
    axes.xaxis.set_major_formatter(lambda value, _: length_text(value))
    axes.set_xlim(lengths[0] / 1.15, lengths[-1] * 1.15)


def _caption(predictions: Sequence[Outcome], lines: Sequence[Series], marked: Sequence[Crossover]) -> str:
    text = approximations(predictions)
    none = [line.label for line in lines if not line.drawn]
    if none:
        text += f" {', '.join(none)}: too large for the memory at every length."
    if any(line.drawn and line.drawn[-1] is not line.points[-1] for line in lines):
        text += " Cross: the next length does not fit the memory."
    if any(_limited(one) for one in predictions):
        text += " Hollow: the power limit lowers the clock of the SMs."
    if marked:
        told = "; ".join(
            f"{n}: {one.faster} beats {one.slower} from {one.seq:,} tokens" for n, one in enumerate(marked, 1)
        )
        text += f" Rings: {told}."
    return text.strip()


def _row(label: str, one: Outcome, over: str, ratio: Ratio | None) -> dict[str, object]:
    return {
        **{"kind": "prediction", "series": label, **identity(one, "batch", "seq_q", "seq_kv")},
        **results(one, "time_s", "time_low_s", "time_high_s", "speedup_vs_naive"),
        "baseline": over if ratio else None,
        **{f"speedup{end}": ratio and getattr(ratio, end[1:] or "value") for end in ("", "_low", "_high")},
        **results(one, "flops_useful", "peak_memory_bytes", "fits"),
        "trust": one.trust.level,
        **results(one, "clock_hz", "clock_by"),
        "slower": None,
    }


def _crossover_row(one: Crossover) -> dict[str, object]:
    return {
        "kind": "crossover",
        "series": one.faster,
        "algorithm": one.faster,
        "slower": one.slower,
        "gpu": one.gpu,
        "seq_kv": one.seq,
        "time_s": one.time_s,
    }


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
    rows = tuple(_row_waves(line.label, one) for line in lines for one in line.drawn)
    return Picture(
        f"Waves and what they cost, over the {'batch' if over == 'batch' else 'sequence length'}",
        _caption_waves(predictions, lines, over),
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
        how, every = line.line(look, 0.15, 0.45 if len(xs) < 40 else 0.28), max(1, round(look.crowding * len(xs) / 40))
        axes.plot(xs, ys, zorder=3, markevery=every, **how)
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


def _caption_waves(predictions: Sequence[Outcome], lines: Sequence[Series], over: Over) -> str:
    missing = sum(one.time_s is None for one in predictions)
    text = (
        "A wave is a block in every place that the SMs have for the longest kernel's blocks ("
        "beside the line: how many an SM holds); places of the last wave that no block takes stay idle. "
        f"Lines join the {'batches' if over == 'batch' else 'lengths'} asked for; what lies between is not "
        f"predicted. Where waves jump, another kernel or tile is taken. {FLOPS}"
    )
    return text + (f" {missing} too large for the memory." if missing else "")


def _row_waves(label: str, one: Outcome) -> dict[str, object]:
    return {
        "series": label,
        **identity(one, "batch", "seq_q", "seq_kv"),
        **results(one, "blocks_per_sm", "waves"),
        "empty_share_of_last_wave": empty_share(one),
        **results(one, "time_s", "flops_useful"),
        "time_per_useful_flop_s": (one.time_s or 0.0) / one.flops_useful,
        "busiest": one.busiest,
    }
