"""The first turns of an SM as a picture: what is copied, multiplied and exponentiated at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from attnsim.models.errors import InputError
from attnsim.models.writing import writing
from attnsim.plots.files import check_suffix, write_csv
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


def timeline_figure(names: Sequence[str], found: Sequence[Trace], out: Path) -> list[Path]:
    """Draw one SM's first turns, one panel a trace, all on one scale, and write the slices beside the picture.

    Parameters
    ----------
    names : sequence of str
        Titles of the panels.
    found : sequence of Trace
    out : Path
        `.png`, `.svg` or `.pdf`; the CSV has the same stem.

    Returns
    -------
    list of Path
        Picture and table.

    Raises
    ------
    InputError
        Nothing to draw, an unknown suffix, or a path that cannot be written.
    """
    kind = check_suffix(out)
    figure, rows = timeline_page(names, found)
    with writing(out) as file:
        figure.savefig(file, format=kind, dpi=150)
    table = out.with_suffix(".csv")
    write_csv(table, COLUMNS, rows)
    return [out, table]


def timeline_page(names: Sequence[str], found: Sequence[Trace]) -> tuple[Figure, list[dict[str, object]]]:
    """The figure, and the rows of the table behind it; arguments as above."""
    main, span = _longest_kernels(found)
    rows: list[dict[str, object]] = [
        {
            "panel": name, "implementation": one.schedule.implementation, "kernel": kernel.name, "unit": piece.unit,
            "tensor": piece.tensor, "start_us": round(piece.start_s * 1e6, 6), "end_us": round(piece.end_s * 1e6, 6),
            "bytes": piece.bytes,
        }
        for name, one, kernel in zip(names, found, main, strict=True)
        for piece in _shown(kernel, span)
    ]  # fmt: skip
    return _draw(names, found, main, span), rows


def timeline_axes_of(axes: Sequence[Axes], names: Sequence[str], found: Sequence[Trace]) -> None:
    """Draw on axes of the caller's, one for each trace, all on one scale."""
    main, span = _longest_kernels(found)
    for one, name, trace, kernel in zip(axes, names, found, main, strict=True):
        _panel(one, name, trace, kernel, span)


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


def _draw(names: Sequence[str], found: Sequence[Trace], main: Sequence[KernelTrace], span: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = 1.1 + 1.75 * len(main)
    figure = Figure(figsize=(10, height), facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(main), 1, sharex=True, squeeze=False)[:, 0]
    used: dict[str, str] = {}
    for axes, name, one, kernel in zip(panels, names, found, main, strict=True):
        used |= _panel(axes, name, one, kernel, span)
    panels[-1].set_xlabel("microseconds from the start of the kernel, first SM", fontsize=9)
    handles = [panels[0].barh([0], [0], color=colour, label=tensor) for tensor, colour in used.items()]
    figure.subplots_adjust(left=0.075, right=0.985, top=1 - 0.42 / height, bottom=0.82 / height, hspace=0.5)
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), frameon=False, fontsize=8.5)
    return figure


def _panel(axes: Axes, name: str, one: Trace, kernel: KernelTrace, span: float) -> dict[str, str]:
    used: dict[str, str] = {}
    for piece in _shown(kernel, span):
        name_of = piece.tensor.split(" ")[0]
        colour = COLOURS.get(name_of, OTHER)
        used[MEANINGS.get(name_of, "other")] = colour
        lane = len(LANES) - 1 - LANES.index(piece.unit)
        end = min(piece.end_s, span)
        alpha = 0.55 if piece.unit == "copy" else 1.0  # copies of several tensors are in flight together
        axes.barh(
            [lane], [(end - piece.start_s) * 1e6], left=[piece.start_s * 1e6], height=0.74, color=colour, alpha=alpha,
            edgecolor="white", linewidth=0.5,
        )  # fmt: skip
    tensor, softmax, both = overlap(kernel, span)
    hidden = (
        f"{100 * both / min(tensor, softmax):.0f} % of the shorter under the other" if min(tensor, softmax) else "-"
    )
    blocks = f"{kernel.blocks_per_sm} block{'s' * (kernel.blocks_per_sm > 1)} an SM"
    axes.set_title(f"{name}: {one.schedule.implementation}, {one.schedule.tile_text}, {blocks}", fontsize=9, loc="left")
    text = f"tensor busy {100 * tensor:.0f} %, softmax {100 * softmax:.0f} %; {hidden}"
    axes.set_title(text, fontsize=8.5, loc="right", color="#555555")
    axes.set_yticks(range(len(LANES)), [*reversed(LANES)], fontsize=8.5)
    axes.set_xlim(0, span * 1e6)
    axes.set_ylim(-0.6, len(LANES) - 0.4)
    axes.tick_params(labelsize=8.5, length=2)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return used
