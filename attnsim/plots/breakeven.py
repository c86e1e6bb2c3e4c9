"""The break-even density of sparse attention over the sequence length, a curve for each GPU and tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from attnsim.api.breakeven import BreakEven
from attnsim.models.writing import writing
from attnsim.plots.files import check_suffix, write_csv
from attnsim.plots.styles import DASHES, Style, applied, find_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = tuple(item.name for item in fields(BreakEven))
MARKERS = "os^DvPX*"
CAPTION_COLUMNS = 100


def breakeven_figure(rows: Sequence[BreakEven], out: Path, *, title: str = "", style: str = "light") -> Path:
    """Draw break-even densities over the length, and write the picture and its table.

    Parameters
    ----------
    rows : sequence of BreakEven
        Of one pattern.
    out : Path
        `.png`, `.svg`, `.pdf` or `.pgf`; the CSV has the same stem.
    title : str
        The question in words.
    style : {"light", "dark", "print", "latex"}

    Returns
    -------
    Path
        `out`.

    Raises
    ------
    InputError
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    out = Path(out)
    kind, look = check_suffix(out), find_style(style)
    with applied(look):
        caption = _caption(rows)
        legend, below = 0.2 * -(-len({_label(row) for row in rows}) // 2), 0.16 * len(caption)
        bottom = 0.62 + legend + below
        height = bottom + 3.0 + 0.4
        figure = Figure(figsize=(7.2, height), facecolor=look.page)
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0.09, bottom / height, 0.89, 3.0 / height))
        draw(axes, rows, style)
        figure.text(0.09, 1 - 0.25 / height, f"Break-even density: {title}", fontsize=look.size + 1, fontweight="bold")
        figure.legend(
            *axes.get_legend_handles_labels(), loc="lower center", ncols=2, frameon=False, fontsize=look.size,
            bbox_to_anchor=(0.535, (below + 0.06) / height),
        )  # fmt: skip
        figure.text(0.09, 0.08 / height, "\n".join(caption), fontsize=look.size - 0.5, color=look.faint)
        with writing(out) as file:
            figure.savefig(file, format=kind, dpi=150)
    write_csv(out.with_suffix(".csv"), COLUMNS, [row.to_dict() for row in rows])
    return out


def draw(axes: Axes, rows: Sequence[BreakEven], style: str = "light") -> None:
    """The curves alone, on axes of the caller's."""
    look = find_style(style)
    curves: dict[str, list[BreakEven]] = {}
    for row in rows:
        curves.setdefault(_label(row), []).append(row)
    lengths = sorted({row.seq for row in rows})
    gpus, tiles = ([*dict.fromkeys(one)] for one in ((row.gpu for row in rows), (_tile(row) for row in rows)))
    for number, (label, found) in enumerate(curves.items()):
        ordered = sorted(found, key=lambda row: row.seq)
        axes.plot(
            [row.seq for row in ordered], [100 * row.density for row in ordered],
            color=look.colour(gpus.index(found[0].gpu)), linestyle=DASHES[tiles.index(_tile(found[0])) % len(DASHES)],
            marker=MARKERS[number % len(MARKERS)], markersize=5, linewidth=1.6, label=label, clip_on=False, zorder=3,
        )  # fmt: skip
    _scales(axes, lengths, look)


def _scales(axes: Axes, lengths: Sequence[int], look: Style) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [_thousands(seq) for seq in lengths])
    axes.minorticks_off()
    axes.set_xlim(lengths[0] / 1.15, lengths[-1] * 1.15)
    axes.set_ylim(0, 100)
    axes.set_xlabel("sequence length, tokens", fontsize=look.size)
    axes.set_ylabel("visible share of the pairs, %", fontsize=look.size)
    axes.tick_params(labelsize=look.size)
    axes.grid(True, axis="y", color=look.grid, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _thousands(seq: int) -> str:
    return f"{seq // 1024} k" if seq % 1024 == 0 else str(seq)


def _label(row: BreakEven) -> str:
    return ", tile ".join(filter(None, (row.gpu, _tile(row))))


def _tile(row: BreakEven) -> str:
    """The tile that was asked for, if any."""
    return row.tile.split(",")[0] if row.tile_given else ""


def _caption(rows: Sequence[BreakEven]) -> list[str]:
    names = " and ".join(dict.fromkeys(row.sparse for row in rows))
    dense: dict[str, list[str]] = {}
    for row in rows:
        dense.setdefault(row.dense, []).append(row.gpu)
    played = (f"{name} on {', '.join(dict.fromkeys(gpus))}" for name, gpus in dense.items())
    text = f"Below a line the block-sparse kernel ({names}) is predicted to be faster than dense flash attention"
    return wrap(f"{text}: {'; '.join(played)}.", CAPTION_COLUMNS)
