"""The break-even density of sparse attention over the sequence length, a curve for each GPU and tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING

from attnsim.api.breakeven import BreakEven
from attnsim.plots.series import length_text
from attnsim.plots.sheet import Panel, Picture, plain_axes
from attnsim.plots.styles import DASHES, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = tuple(item.name for item in fields(BreakEven))
MARKERS = "os^DvPX*"


def breakeven(rows: Sequence[BreakEven], title: str = "") -> Picture:
    """The picture of break-even densities over the length.

    Parameters
    ----------
    rows : sequence of BreakEven
        Of one pattern.
    title : str
        The question in words.
    """
    return Picture(
        f"Break-even density: {title}",
        _caption(rows),
        (Panel(partial(_draw, rows=rows), 3.0),),
        COLUMNS,
        tuple(row.to_dict() for row in rows),
        left=("100 share",),
    )


def _draw(axes: Axes, look: Style, *, rows: Sequence[BreakEven]) -> None:
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
    axes.legend(frameon=False, fontsize=look.size, loc="best")
    _scales(axes, lengths, look)


def _scales(axes: Axes, lengths: Sequence[int], look: Style) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [length_text(seq) for seq in lengths])
    axes.minorticks_off()
    axes.set_xlim(lengths[0] / 1.15, lengths[-1] * 1.15)
    axes.set_ylim(0, 100)
    axes.set_xlabel("sequence length, tokens", fontsize=look.size)
    axes.set_ylabel("visible share of the pairs, %", fontsize=look.size)
    plain_axes(axes, look, grid="y")


def _label(row: BreakEven) -> str:
    return ", tile ".join(filter(None, (row.gpu, _tile(row))))


def _tile(row: BreakEven) -> str:
    """The tile that was asked for, if any."""
    return row.tile.split(",")[0] if row.tile_given else ""


def _caption(rows: Sequence[BreakEven]) -> str:
    names = " and ".join(dict.fromkeys(row.sparse for row in rows))
    dense: dict[str, list[str]] = {}
    for row in rows:
        dense.setdefault(row.dense, []).append(row.gpu)
    played = (f"{name} on {', '.join(dict.fromkeys(gpus))}" for name, gpus in dense.items())
    text = f"Below a line the block-sparse kernel ({names}) is predicted to be faster than dense flash attention"
    return f"{text}: {'; '.join(played)}."
