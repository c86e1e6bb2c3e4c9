"""Time over the density of the mask: dense attention as a level line, sparse kernels as curves, with their ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from attnsim.api.answer import Outcome
from attnsim.api.libraries import never_run
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import changes_text
from attnsim.plots.layout import Panel
from attnsim.plots.series import NEVER_RUN, Kernel, engineering, identity, kernels_of, key_panel, shared_words
from attnsim.plots.sheet import Picture, band, heading, plain_axes
from attnsim.plots.styles import Style

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
        "time_s": one.time_s,
        "time_low_s": one.time_low_s,
        "time_high_s": one.time_high_s,
        "tile": one.tile,
        "busiest": one.busiest,
        "fits": one.fits,
        "trust": one.trust.level,
    }
