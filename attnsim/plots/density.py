"""Time and speedup over the density of the mask, a curve with its range for each kernel, and the break-even."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from attnsim.api.answer import Outcome
from attnsim.api.comparing.breakeven import BreakEven
from attnsim.api.libraries import never_run
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import changes_text
from attnsim.plots.roofline_data import short_names
from attnsim.plots.series import (
    NEVER_RUN,
    Kernel,
    engineering,
    identity,
    kernels_of,
    key_panel,
    length_text,
    results,
    shared_words,
)
from attnsim.plots.sheet import Panel, Picture, band, dots, heading, note, plain_axes, size_of
from attnsim.plots.styles import Style
from attnsim.wording import times_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


def density(predictions: Sequence[Outcome]) -> Picture:
    """Predicted time over the visible share of the pairs, a panel for each GPU, a line for each kernel.

    Parameters
    ----------
    predictions : sequence of Answer
        As `attnsim.densities` gives them: one of a dense kernel is a level line, several of a sparse one a curve.

    Raises
    ------
    InputError
        Without a kernel at several densities.

    Examples
    --------
    >>> import attnsim
    >>> found = attnsim.densities(attnsim.Workload(1, 16, 4096, 64), "a100-sxm4-80gb", shares=[0.1, 0.5, 1.0])
    >>> len(attnsim.plot.density(found).axes)
    2
    """
    panels = [list(some) for _, some in groupby(predictions, key=lambda one: (one.gpu, one.changes))]
    kernels = kernels_of((one.implementation, one.implementation, one.algorithm) for one in predictions)
    if not any(len(_lines(some)[name]) > 1 for some in panels for name in _lines(some)):
        raise InputError("no kernel at several densities to draw; give what attnsim.densities returns")
    inches = 2.6 if len(panels) == 1 else 1.9
    rows = tuple(_row(one, _share(one, some)) for some in panels for one in some)
    return Picture(
        "Time of attention over the density of the mask",
        _caption(predictions),
        (
            key_panel(kernels),
            *(Panel(partial(_draw, found=some, kernels=kernels, last=some is panels[-1]), inches) for some in panels),
        ),
        rows,
        left=("100 ms",),
        subtitle=f"{', '.join(dict.fromkeys(map(_machine, predictions)))}: {shared_words(predictions)}",
    )


def _lines(found: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """The points of each kernel that fit the memory, the sparsest first."""
    lines: dict[str, list[Outcome]] = {one.implementation: [] for one in found}
    for one in sorted(found, key=lambda one: one.workload.visible_pairs):
        lines[one.implementation] += [one] if one.fits else []
    return lines


def _share(one: Outcome, beside: Sequence[Outcome]) -> float:
    return one.workload.visible_pairs / max(other.workload.visible_pairs for other in beside)


def _draw(axes: Axes, look: Style, *, found: Sequence[Outcome], kernels: Mapping[str, Kernel], last: bool) -> None:
    least = min(_share(one, found) for one in found)
    for name, points in _lines(found).items():
        if not points:
            continue
        level, line = len(points) == 1, kernels[name].line(look)
        across = [80 * least, 115.0] if level else [100 * _share(one, found) for one in points]
        low, time_s, high = (
            [getattr(one, end) or 0.0 for one in points] * (2 if level else 1)
            for end in ("time_low_s", "time_s", "time_high_s")
        )
        band(axes, across, low, high, line["color"])
        axes.plot(across, time_s, zorder=3, **line)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(80 * least, 115)
    places = [one for one in TICKS if 80 * least <= one <= 115]
    axes.xaxis.set_ticks(places, [f"{one:g}" for one in places])
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    axes.yaxis.set_major_formatter(lambda value, _: engineering(value, "s"))
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    plain_axes(axes, look)
    heading(axes, f"{_machine(found[0])}: predicted time; band: 90 % range", look)
    if last:
        axes.set_xlabel("visible pairs, %", fontsize=look.size)


def _machine(one: Outcome) -> str:
    return f"{one.gpu}*" if one.changes else one.gpu


def _caption(predictions: Sequence[Outcome]) -> str:
    changed = dict.fromkeys(f"{_machine(one)}: with {changes_text(one.changes)}" for one in predictions if one.changes)
    tight = dict.fromkeys(one.implementation for one in predictions if not one.fits)
    sparsest = min(predictions, key=lambda one: one.workload.visible_pairs).workload.mask
    about = f"Level: dense attention. Curves: masks from '{sparsest}' to every pair"
    thin = [NEVER_RUN for one in predictions if never_run(one.implementation)][:1]
    said = [about, *thin, *changed, *(f"{name} ends where it does not fit the memory" for name in tight)]
    return " ".join(f"{one}." for one in said)


def _row(one: Outcome, share: float) -> dict[str, object]:
    return {
        **identity(one),
        "mask": str(one.workload.mask),
        "density": share,
        **results(one, "time_s", "time_low_s", "time_high_s", "tile", "busiest", "fits"),
        "trust": one.trust.level,
    }


LEFT, RIGHT = 0.06, 0.25
"""Densities up to which a label has room below the curves, and to the right of its line."""
SPARSEST = 0.01
"""Lowest density that is drawn where nobody's mask is sparser."""
NARROW = 0.28
"""Inches of a panel over points of its text, below which only every third tick has room."""


def breakeven(rows: Sequence[BreakEven], title: str = "") -> Picture:
    """The speedup over dense attention by density, a panel for each GPU and length, a curve for each kernel and tile.

    Rings mark the densities at which sparse and dense take equally long, lines beside them those at which an end of the
    90 % range is 1; a diamond is the mask that was asked about.

    Parameters
    ----------
    rows : sequence of BreakEven
        As `attnsim.breakeven` returns them, of one pattern.
    title : str
        The question in words.

    Raises
    ------
    InputError
        Without rows.

    Examples
    --------
    >>> import attnsim
    >>> found = attnsim.breakeven(attnsim.Workload(1, 16, 1, 128), "a100-sxm4-80gb", [2048])
    >>> len(attnsim.plot.breakeven(found).axes)
    2
    """
    if not rows:
        raise InputError("no break-even to draw; give what attnsim.breakeven returns")
    panels = [list(some) for _, some in groupby(rows, key=lambda row: (row.at.machine, row.at.seq))]
    kernels = kernels_of((_label(row), row.at.sparse, "sparse") for row in rows)
    across = columns_of([rows[0].at.machine for rows in panels])
    inches = {1: 2.6, 2: 2.0}.get(across, 1.6)
    draw = partial(_draw_even, kernels=kernels, limits=_limits(rows), short=short_names({row.at.gpu for row in rows}))
    return Picture(
        "Speedup of sparse over dense attention",
        _caption_even(rows),
        (
            key_panel(kernels),
            *(
                Panel(
                    partial(draw, rows=some, first=not place % across, last=place >= len(panels) - across),
                    inches,
                    same_row=bool(place % across),
                )
                for place, some in enumerate(panels)
            ),
        ),
        tuple(one for row in rows for one in _rows(row)),
        left=("100x",),
        subtitle="; ".join(filter(None, (", ".join(dict.fromkeys(row.at.machine for row in rows)), title))),
    )


def columns_of(machines: Sequence[str]) -> int:
    """How many panels stand beside one another: those of a GPU, at most three."""
    most = max(machines.count(one) for one in machines)
    return next((wide for wide in (3, 2) if most >= wide and not most % wide), 1)


def _draw_even(
    axes: Axes,
    look: Style,
    *,
    rows: Sequence[BreakEven],
    kernels: Mapping[str, Kernel],
    limits: tuple[tuple[float, float], tuple[float, float]],
    short: Mapping[str, str],
    first: bool,
    last: bool,
) -> None:
    for row in rows:
        line = kernels[_label(row)].line(look)
        across = [100 * point.density for point in row.points]
        low, value, high = ([getattr(point.speedup, end) for point in row.points] for end in ("low", "value", "high"))
        band(axes, across, low, high, line["color"])
        share = row.band if look.crowding == 1 else row.band.partition(" (")[0]
        axes.plot(across, value, zorder=3, label=f"below {share}", **line)
    axes.axhline(1.0, color=look.text, linewidth=0.8, zorder=1)
    _scales(axes, limits, look, first, last)
    for row in rows:
        _mark_even(axes, row, kernels[_label(row)], look)
    _mark_yours(axes, rows, kernels, look)
    axes.legend(
        frameon=True,
        framealpha=1,
        facecolor=look.page,
        edgecolor=look.page,
        fontsize=look.size,
        loc="upper right",
        borderpad=0.1,
        borderaxespad=0.1,
        handlelength=1.8,
        handletextpad=0.4,
        labelspacing=0.2,
    )
    seq, dense = rows[0].at.seq, " or ".join(dict.fromkeys(row.at.dense for row in rows))
    mark = "*" * bool(rows[0].at.changes)  # what they are stands above all panels
    over = f", over {dense}" if look.crowding == 1 else f"\nover {dense}"
    heading(axes, f"{short[rows[0].at.gpu]}{mark}, {length_text(seq)} tokens{over}", look)


def _limits(rows: Sequence[BreakEven]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Both axes, the same in every panel."""
    yours = [row.yours for row in rows if row.yours is not None]
    known = [point for row in rows for point in row.points]
    sparsest = min(max(SPARSEST, min(point.density for point in known)), *(point.density for point in yours), 1.0)
    shown = [point for point in known if point.density >= 0.9 * sparsest] + yours
    lows, highs = ([getattr(point.speedup, end) for point in shown] for end in ("low", "high"))
    return (80 * sparsest, 115), (0.8 * min(lows), 2.2 * max(highs))


def _scales(
    axes: Axes, limits: tuple[tuple[float, float], tuple[float, float]], look: Style, first: bool, last: bool
) -> None:
    narrow = size_of(axes)[0] < NARROW * look.size
    ticks = TICKS[::3] if narrow else TICKS
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*limits[0])
    axes.set_ylim(*limits[1])
    for axis, (low, high), unit, named in zip((axes.xaxis, axes.yaxis), limits, ("", "x"), (last, first), strict=True):
        places = [one for one in ticks if low <= one <= high]
        axis.set_ticks(places, [f"{one:g}{unit}" if named else "" for one in places])
        axis.set_minor_formatter(lambda value, _: "")
    plain_axes(axes, look)
    if last:
        axes.set_xlabel("visible pairs, %", fontsize=look.size)


def _mark_even(axes: Axes, row: BreakEven, kernel: Kernel, look: Style) -> None:
    """A ring where both take equally long, with the range of that density; one kernel's within another's."""
    if not 0 < row.density < 1:
        return
    colour = look.colour(kernel.hue)
    across, wide = [100 * max(row.density_low, 1e-4), 100 * row.density_high], 0.6 * look.size / (1 + kernel.before)
    axes.plot(across, [1, 1], color=colour, alpha=0.45, linewidth=wide, solid_capstyle="butt", zorder=4)
    dots(axes, ([100 * row.density], [1]), look, colour, 0.8, inside=look.page, markeredgewidth=1.4, zorder=6)


def _mark_yours(axes: Axes, rows: Sequence[BreakEven], kernels: Mapping[str, Kernel], look: Style) -> None:
    """The mask that was asked about: a line at its density, a diamond with its range for each kernel."""
    found = [(row, row.yours) for row in rows if row.yours is not None]
    if not found:
        return
    axes.axvline(100 * found[0][1].density, color=look.faint, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
    best = max(found, key=lambda one: one[1].speedup.value)[1]
    for place, (row, point) in enumerate(found):
        colour, at = look.colour(kernels[_label(row)].hue), 100 * point.density
        axes.plot([at, at], [point.speedup.low, point.speedup.high], color=colour, linewidth=1.2, zorder=6)
        size = 0.95 / (1 + 0.45 * place)  # the second within the first where they agree
        dots(axes, ([at], [point.speedup.value]), look, look.page, size, "D", colour, markeredgewidth=0.6, zorder=8)
    below, before = best.density < LEFT, best.density > RIGHT  # where curves are high; where the frame is near
    note(
        axes,
        f"your mask: {times_text(best.speedup.value)}",
        (100 * best.density, 0.1 if below else 0.64),
        look,
        (-0.4 if before else 0.4, 0),
        ("data", "axes fraction"),
        rim=True,
        ha="right" if before else "left",
        zorder=9,
    )


def _label(row: BreakEven) -> str:
    """The kernel, with the tile that was asked for, if any."""
    return f"{row.at.sparse}, tile {row.at.shape}" if row.tile_given else row.at.sparse


def _caption_even(rows: Sequence[BreakEven]) -> str:
    thin = f" {NEVER_RUN}." if any(never_run(row.at.sparse) for row in rows) else ""
    text = (
        "Band: 90 % range. Beside its line: the visible share below which a kernel is faster than dense attention; "
        f"rings: both take equally long; thick lines: between ends of the speedup's 90 % range that are 1.{thin}"
    )
    yours = next((row.yours.mask for row in rows if row.yours), "")
    return f"{text} Diamonds: {yours}." if yours else text


def _rows(row: BreakEven) -> list[dict[str, object]]:
    """The curve, the break-even and the mask that was asked about."""
    of_pattern = {"pattern": row.pattern, "block": row.block}
    ends = {name: getattr(row, name) for name in ("density", "density_low", "density_high")}
    found = [{"kind": "pattern", **point.to_dict(), **of_pattern} for point in row.points]
    found.append({"kind": "break-even", **row.at.to_dict(), **of_pattern, **ends})
    return found + ([{"kind": "yours", **row.yours.to_dict()}] if row.yours else [])
