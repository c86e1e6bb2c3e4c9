"""The first turns of an SM as a picture: what is copied, multiplied and exponentiated at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from attnsim.models.errors import InputError
from attnsim.plots.sheet import Panel, Picture, new_figure
from attnsim.plots.styles import Style
from attnsim.simulator.trace import KernelTrace, Slice, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = ("panel", "implementation", "kernel", "unit", "tensor", "start_us", "end_us", "bytes")
LANES = ("copy", "tensor", "softmax", "store")
COLOURS = {"K": "#56B4E9", "V": "#0072B2", "Q": "#8FA6B5", "S": "#D55E00", "O": "#E69F00", "P": "#009E73"}
"""Okabe and Ito's (jfly.uni-koeln.de/color); other tensors are grey."""
MEANINGS = {"K": "K", "V": "V", "Q": "Q", "S": "S = Q K^T", "O": "O, P V", "P": "P, softmax"}
OTHER = "#BBBBBB"
TURNS = 5
"""Softmax steps of a warpgroup that the picture begins with."""


def timeline(traces: Sequence[Trace], names: Sequence[str] | None = None) -> Picture:
    """What one SM's units do in the first turns of each trace's longest kernel, a panel a trace, all on one scale.

    Parameters
    ----------
    traces : sequence of Trace
        As `attnsim.api.tracing.trace` gives them.
    names : sequence of str, optional
        Titles; by default the algorithms of the schedules.

    Raises
    ------
    InputError
        For names that are not as many as traces, and when there is nothing to draw.

    Examples
    --------
    >>> import attnsim
    >>> from attnsim.api.tracing import trace
    >>> question = attnsim.Workload(batch=1, heads_q=16, seq_q=1024, head_dim=128)
    >>> found = [trace(question, "a100-sxm4-80gb", name) for name in ("flash-1", "flash-2")]
    >>> figure = attnsim.plot.timeline(found)
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['store', 'softmax', 'tensor', 'copy']
    """
    titles = names if names is not None else [one.schedule.algorithm for one in traces]
    if len(titles) != len(traces):
        raise InputError(f"{len(titles)} names for {len(traces)} traces; give one for each, or none")
    main, span = _longest_kernels(traces)
    rows = tuple(
        {
            "panel": name, "implementation": one.schedule.implementation, "kernel": kernel.name, "unit": piece.unit,
            "tensor": piece.tensor, "start_us": round(piece.start_s * 1e6, 6), "end_us": round(piece.end_s * 1e6, 6),
            "bytes": piece.bytes,
        }
        for name, one, kernel in zip(titles, traces, main, strict=True)
        for piece in _shown(kernel, span)
    )  # fmt: skip
    panels = tuple(
        Panel(partial(_panel, name=name, one=one, kernel=kernel, span=span), 1.75)
        for name, one, kernel in zip(titles, traces, main, strict=True)
    )
    shown = {piece.tensor.split(" ")[0]: 0 for kernel in main for piece in _shown(kernel, span)}
    legend = {MEANINGS.get(tensor, "other"): COLOURS.get(tensor, OTHER) for tensor in shown}
    return Picture("First turns of an SM", "", panels, COLUMNS, rows, page=partial(_page, panels=panels, legend=legend))


def _longest_kernels(found: Sequence[Trace]) -> tuple[list[KernelTrace], float]:
    """The kernel of each trace that takes longest, and the seconds that are drawn of them."""
    main = [max(one.kernels, key=lambda kernel: kernel.time_s) for one in found]
    if not main or not all(kernel.slices for kernel in main):
        raise InputError("no kernel with operations to draw")
    return main, median(_span(kernel) for kernel in main)


def _first_sm(kernel: KernelTrace) -> list[Slice]:
    return [piece for piece in kernel.slices if piece.sm == 0 and piece.unit in LANES]


def _span(kernel: KernelTrace) -> float:
    """Seconds until every resident block has done some turns."""
    turns = sorted(piece.end_s for piece in _first_sm(kernel) if piece.unit == "softmax")
    if not turns:
        return max(piece.end_s for piece in _first_sm(kernel))
    return turns[min(len(turns) - 1, 2 * TURNS * kernel.blocks_per_sm)]


def _shown(kernel: KernelTrace, span: float) -> list[Slice]:
    return [piece for piece in _first_sm(kernel) if piece.start_s < span]


def overlap(kernel: KernelTrace, span: float) -> tuple[float, float, float]:
    """Shares of the time from the first MMA to `span` in which the tensor cores, the softmax, and both are busy."""
    pieces = _shown(kernel, span)
    begin = min((piece.start_s for piece in pieces if piece.unit == "tensor"), default=0.0)
    edges = []
    for piece in pieces:
        if piece.unit in ("tensor", "softmax") and piece.end_s > begin:
            unit = piece.unit == "softmax"
            edges += [(max(piece.start_s, begin), unit, 1), (min(piece.end_s, span), unit, -1)]
    busy, active, before = [0.0, 0.0, 0.0], [0, 0], begin
    for time_s, unit, change in sorted(edges):
        width = time_s - before
        for place in (0, 1):
            busy[place] += width * (active[place] > 0)
        busy[2] += width * (active[0] > 0 and active[1] > 0)
        active[unit] += change
        before = time_s
    whole = max(span - begin, 1e-15)
    return busy[0] / whole, busy[1] / whole, busy[2] / whole


def _page(look: Style, width: str, *, panels: Sequence[Panel], legend: Mapping[str, str]) -> Figure:
    if width != "page":
        raise InputError(f"width {width!r} is too narrow for a timeline; allowed: page")
    height = 1.1 + sum(panel.inches for panel in panels)
    figure = new_figure(10, height, look)
    every = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, panel in zip(every, panels, strict=True):
        panel.draw(axes, look)
    every[-1].set_xlabel("microseconds from the start of the kernel, first SM", fontsize=9)
    handles = [every[0].barh([0], [0], color=colour, label=tensor) for tensor, colour in legend.items()]
    figure.subplots_adjust(left=0.075, right=0.985, top=1 - 0.42 / height, bottom=0.82 / height, hspace=0.5)
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), frameon=False, fontsize=8.5)
    return figure


def _panel(axes: Axes, look: Style, *, name: str, one: Trace, kernel: KernelTrace, span: float) -> None:
    for piece in _shown(kernel, span):
        colour = COLOURS.get(piece.tensor.split(" ")[0], OTHER)
        lane = len(LANES) - 1 - LANES.index(piece.unit)
        end = min(piece.end_s, span)
        alpha = 0.55 if piece.unit == "copy" else 1.0  # copies of several tensors are in flight together
        axes.barh(
            [lane], [(end - piece.start_s) * 1e6], left=[piece.start_s * 1e6], height=0.74, color=colour, alpha=alpha,
            edgecolor=look.page, linewidth=0.5,
        )  # fmt: skip
    tensor, softmax, both = overlap(kernel, span)
    hidden = (
        f"{100 * both / min(tensor, softmax):.0f} % of the shorter under the other" if min(tensor, softmax) else "-"
    )
    blocks = f"{kernel.blocks_per_sm} block{'s' * (kernel.blocks_per_sm > 1)} an SM"
    axes.set_title(f"{name}: {one.schedule.implementation}, {one.schedule.tile_text}, {blocks}", fontsize=9, loc="left")
    text = f"tensor busy {100 * tensor:.0f} %, softmax {100 * softmax:.0f} %; {hidden}"
    axes.set_title(text, fontsize=8.5, loc="right", color=look.faint)
    axes.set_yticks(range(len(LANES)), [*reversed(LANES)], fontsize=8.5)
    axes.set_xlim(0, span * 1e6)
    axes.set_ylim(-0.6, len(LANES) - 0.4)
    axes.tick_params(labelsize=8.5, length=2)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
