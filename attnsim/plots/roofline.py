"""The roofline picture: one pair of axes, and beside or below it a table that names the numbered points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from attnsim.api.prediction import Prediction
from attnsim.api.roofline import LEVELS
from attnsim.models.errors import InputError
from attnsim.models.hardware.changes import told
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.plots import roofline_axes
from attnsim.plots.roofline_data import COLUMNS, Drawn, Entry, entries, machines, rows
from attnsim.plots.roofline_labels import short
from attnsim.plots.sheet import Panel, Picture, new_figure
from attnsim.plots.styles import COLUMN_INCHES, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Roofline: predicted attention"


def roofline(
    predictions: Sequence[Prediction],
    gpus: Sequence[Gpu | str] | None = None,
    *,
    measured: Sequence[float | None] = (),
) -> Picture:
    """Rooflines of GPUs, one colour each, with predictions on them, and a table that names the points.

    Parameters
    ----------
    predictions : sequence of Prediction
        On those GPUs; one that does not fit is listed, not drawn.
    gpus : sequence of Gpu or str, optional
        By default those of the predictions, which have to be built in and unchanged.
    measured : sequence of float or None
        Seconds that each call took; empty where none was measured.

    Raises
    ------
    InputError
        No GPU, or a prediction for another GPU.

    Examples
    --------
    >>> import attnsim
    >>> question = attnsim.Workload(batch=1, heads_q=16, seq_q=1024, head_dim=128)
    >>> figure = attnsim.plot.roofline(attnsim.compare(question, "a100-sxm4-80gb"))
    >>> figure.axes[0].get_ylabel()
    'useful TFLOP/s'
    """
    drawn = machines(_gpus(predictions, gpus), predictions)
    shown = entries(drawn, predictions, measured)
    panel = Panel(partial(roofline_axes.draw, drawn=drawn, shown=shown), 0)
    return Picture(
        TITLE,
        " ".join(caption_lines(drawn, shown)),
        (panel,),
        COLUMNS,
        tuple(rows(drawn, shown)),
        page=lambda look, width: (_page if width == "page" else _column)(drawn, shown, look),
    )


def _gpus(predictions: Sequence[Prediction], gpus: Sequence[Gpu | str] | None) -> list[Gpu]:
    if gpus is not None:
        return [load_gpu(one) if isinstance(one, str) else one for one in gpus]
    changed = next((one for one in predictions if one.changes), None)
    if changed is not None:
        raise InputError(f"a prediction is for {changed.gpu} with {changed.changes[0]}; give that GPU with gpus=[...]")
    return [load_gpu(name) for name in dict.fromkeys(one.gpu for one in predictions)]


def _page(drawn: Sequence[Drawn], shown: Sequence[Entry], style: Style) -> Figure:
    lines = 7 + len(shown) + 2 * len(drawn)
    height = max(7.5, 0.235 * lines + 1.6)
    figure = new_figure(15.5, height, style)
    caption = caption_lines(drawn, shown)
    bottom = (0.72 + 0.155 * len(caption)) / height
    axes = figure.add_axes((0.05, bottom, 0.475, 1 - 0.48 / height - bottom))
    table = figure.add_axes((0.545, 0.02, 0.445, 0.96))
    axes.grid(True, which="major", color=style.grid, linewidth=0.7)
    roofline_axes.draw(axes, style, drawn=drawn, shown=shown)
    axes.set_title(TITLE, loc="left", fontsize=12, fontweight="bold")
    _table(table, drawn, shown, height, style)
    figure.text(0.05, 0.14 / height, "\n".join(caption), fontsize=style.size, va="bottom", color=style.faint)
    return figure


def _column(drawn: Sequence[Drawn], shown: Sequence[Entry], style: Style) -> Figure:
    """Axes above, the numbered points below; the caption is the paper's."""
    line = 0.105
    below = line * (len(shown) + len(drawn) + 2.2)
    height = 2.9 + below
    figure = new_figure(COLUMN_INCHES, height, style)
    axes = figure.add_axes((0.14, (below + 0.36) / height, 0.83, (2.9 - 0.41) / height))
    axes.tick_params(labelsize=style.size, length=2)
    roofline_axes.draw(axes, style, drawn=drawn, shown=shown)
    axes.xaxis.labelpad = axes.yaxis.labelpad = 1.5
    axes.xaxis.label.set_fontsize(style.size + 0.5)
    axes.yaxis.label.set_fontsize(style.size + 0.5)
    table = figure.add_axes((0.02, 0, 0.97, below / height))
    table.set_axis_off()
    y, step = 0.99, line / below
    columns: tuple[float, ...] = (0.0, 0.05, 0.33, 0.66, 0.78, 0.9, 1.0)
    small = replace(style, size=style.size - 0.4)
    for number, machine in enumerate(drawn):
        _row(table, y, (0.0,), (f"● {machine.label}",), style.colour(number), small, left=1)
        y -= step
    head = ("", "algorithm", "implementation", "HBM", "TFLOP/s", "roof", "bound")
    y = _row(table, y, columns, head, style.text, small, left=3, bold=True) - step
    for entry in shown:
        cells = _cells(entry)
        chosen = (cells[0], cells[1], cells[2], cells[3], cells[6], cells[7], entry.bound)
        y = _row(table, y, columns, chosen, style.colour(entry.machine), small, left=3) - step
    return figure


def _table(axes: Axes, drawn: Sequence[Drawn], shown: Sequence[Entry], height: float, style: Style) -> None:
    """The GPUs with their ceilings and ridges, then the numbered points."""
    axes.set_axis_off()
    line = 0.235 / (0.96 * height)
    columns: tuple[float, ...] = (0.0, 0.315, 0.385, 0.46, 0.6, 0.74, 0.805, 0.925, 1.0)
    head: tuple[str, ...] = ("GPU", "tensor", "fp32", "exp", "HBM TB/s", "L2 TB/s", "smem", "HBM ridge", "L2")
    y = _row(axes, 1.0, columns, head, style.text, style, left=1, bold=True) - line
    for number, machine in enumerate(drawn):
        roofline = machine.roofline
        rates = [short(roofline.ceiling(unit) / 1e12) for unit in ("tensor", "fp32", "exp")]
        bands = [f"{d.bytes_per_s / 1e12:.3g} ({d.achievable_bytes_per_s / 1e12:.3g})" for d in roofline.diagonals[:2]]
        bands.append(short(roofline.bandwidth("smem") / 1e12))
        ridges = [short(roofline.ridge(level)) for level in LEVELS[:2]]
        cells: tuple[str, ...] = (f"● {machine.label}", *rates, *bands, *ridges)
        y = _row(axes, y, columns, cells, style.colour(number), style, left=1) - line
    y -= 0.6 * line
    columns = (0.0, 0.035, 0.262, 0.425, 0.645, 0.705, 0.768, 0.865, 0.928, 1.0)
    head = ("", "algorithm", "implementation", "GPU", "HBM", "L2", "smem", "TFLOP/s", "roof", "bound")
    y = _row(axes, y, columns, head, style.text, style, left=4, bold=True) - line
    for entry in shown:
        about = _cells(entry)
        cells = (*about[:3], drawn[entry.machine].label, *about[3:], entry.bound)
        y = _row(axes, y, columns, cells, style.colour(entry.machine), style, left=4) - line


def _cells(entry: Entry) -> tuple[str, ...]:
    """Number, algorithm, implementation, intensity at each level, TFLOP/s and share of the roof."""
    item = entry.prediction
    name = item.algorithm if item.tiles == "shipped" else f"{item.algorithm}, {item.tiles}"
    intensity = [short(entry.points[level].intensity) if level in entry.points else "–" for level in LEVELS]
    rate, roof = entry.flops_per_s, entry.roof_flops_per_s
    achieved = short(rate / 1e12) if rate else "–"
    share = f"{100 * rate / roof:.0f} %" if rate and roof else "–"
    return str(entry.number), name, item.implementation, *intensity, achieved, share


def _row(
    axes: Axes,
    y: float,
    columns: Sequence[float],
    cells: Sequence[str],
    colour: str,
    style: Style,
    *,
    left: int,
    bold: bool = False,
) -> float:
    """One line of the table: the first `left` cells begin at their column, the others end there."""
    for number, (x, cell) in enumerate(zip(columns, cells, strict=True)):
        axes.text(
            x, y, cell, fontsize=style.size, ha="left" if number < left else "right", va="top", color=colour,
            fontweight="bold" if bold else "normal", transform=axes.transAxes,
        )  # fmt: skip
    return y


def caption_lines(drawn: Sequence[Drawn], shown: Sequence[Entry]) -> list[str]:
    """What a reader has to know: FLOP convention, clocks, caches, what solid, dashed, hollow and filled mean."""
    caches = sorted({entry.prediction.cache for entry in shown})
    clocks = ", ".join(f"{m.label} {m.gpu.clock.tensor_hz / 1e6:.0f} MHz" for m in drawn)
    per_exp = ", ".join(sorted({f"{machine.roofline.flops_per_exp:.4g}" for machine in drawn}))
    filled = " Filled: measured." if any(entry.measured_s for entry in shown) else ""
    text = [
        "Useful FLOPs: 2 B H (visible pairs)(d + dv) forward, 2.5 times that backward. Hollow: predicted, at the "
        f"intensity of HBM (circle), L2 (square) and shared memory (triangle); bar: 90 % range.{filled}",
        f"Solid: datasheet; dashed: achievable. Ceilings in TFLOP/s at {clocks}; "
        f"exp at {per_exp} FLOPs per exponential.",
        "Table: useful FLOPs per byte; roof: share of the lowest of tensor, exp, HBM, L2 and smem roofs there; "
        "in brackets achievable." + (f" L2 cache {' and '.join(caches)}." if caches else ""),
    ]
    text += [f"{machine.label}: {told(machine.gpu.changes)}" for machine in drawn if machine.gpu.changes]
    return text
