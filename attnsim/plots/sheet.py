"""A picture of stacked panels with a title above, a caption below and the table that it shows beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnsim.errors import InputError
from attnsim.plots.files import check_caption, check_suffix, latex_caption, write_csv
from attnsim.plots.layout import DPI, Panel, Words, longest, stacked
from attnsim.plots.styles import SIZE, Style, applied, find_style
from attnsim.writing import write_whole, writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backend_bases import RendererBase
    from matplotlib.figure import Figure
    from matplotlib.patheffects import AbstractPathEffect
    from matplotlib.text import Annotation

UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""So that the same picture is the same file."""

NARROWEST = (0.95, 1.05)
"""Speedups that an axis shows at least, so that a change which brings nothing has no long bar and no long range."""

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture before it is drawn, in any style and width.

    Parameters
    ----------
    title, caption : str
        What is shown, and what a reader has to know of it.
    panels : tuple of Panel
        From above.
    rows : tuple of mapping
        The tidy table of what is drawn.
    left, right : tuple of str
        Texts beside the axes, whose margins hold the longest; left of them also the name of the axis.
    subtitle : str
        The GPU and the question.
    """

    title: str
    caption: str
    panels: tuple[Panel, ...]
    rows: tuple[Row, ...]
    left: tuple[str, ...] = ("0.001",)
    right: tuple[str, ...] = ()
    subtitle: str = ""

    def figure(self, style: str = "light", width: str = "page", caption: str = "picture") -> Figure:
        """All panels, with title and caption where they belong in the picture.

        Parameters
        ----------
        style, width : str
            As :func:`attnsim.plots.styles.find_style` has them.
        caption : {"picture", "file", "none"}
            Where title and caption go; only "picture" draws them.

        Raises
        ------
        InputError
            For an unknown style, width or place of the caption.
        """
        look = find_style(style, width)
        check_caption(caption)
        with applied(look):
            words = Words.of(self.title, self.subtitle, self.caption, look, width) if caption == "picture" else Words()
            sides = (
                0.34 * look.size / SIZE + longest(self.left, look),
                0.14 * look.size / SIZE + longest(self.right, look),
            )
            return stacked(self.panels, words, sides, look, width)

    def on(self, axes: Sequence[Axes], style: str = "light", width: str = "page") -> Figure:
        """The first panels on axes of the caller's, without title and caption.

        Raises
        ------
        InputError
            For more axes than panels, axes of several figures, or an unknown style or width.
        """
        look = find_style(style, width)
        figures = {one.get_figure(root=True) for one in axes}
        panels = [one for one in self.panels if not one.key]
        if not 1 <= len(axes) <= len(panels) or len(figures) > 1:
            raise InputError(
                f"{len(axes)} axes of {len(figures)} figures are given; allowed: 1 to {len(panels)} of one figure"
            )
        with applied(look):
            for panel, one in zip(panels, axes, strict=False):
                panel.draw(one, look)
            for panel in (one for one in self.panels if one.key):
                panel.draw(axes[0], look)
        (figure,) = figures
        assert figure is not None
        return figure

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the table: all keys of all rows."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row))

    @property
    def described(self) -> str:
        """Title, what was asked, and caption, in lines."""
        return "\n".join(filter(None, (self.title, self.subtitle, self.caption)))

    def write(self, out: Path, style: str = "light", width: str = "page", caption: str = "picture") -> list[Path]:
        """Write the picture and its table, and say where; with the caption "file" that, too.

        The caption of a picture for LaTeX is a ``.tex`` file with the caption's command, of others a ``.txt`` file.

        Raises
        ------
        InputError
            For an unknown suffix, style, width or place of the caption, or a path that cannot be written.
        """
        kind = check_suffix(out)
        look = find_style(style, width)
        figure = self.figure(style, width, caption)
        if kind != "png":
            keep_letters(figure, look)
        with applied(look), writing(out) as file:
            figure.savefig(file, format=kind, dpi=DPI[width], metadata=UNDATED.get(kind))
        table = out.with_suffix(".csv")
        write_csv(table, self.columns, self.rows)
        if caption != "file":
            return [out, table]
        latex = kind == "pgf" or look.serif
        text = out.with_suffix(".tex" if latex else ".txt")
        write_whole(text, f"{latex_caption(self.title, self.described) if latex else self.described}\n")
        return [out, table, text]


def keep_letters(figure: Figure, look: Style) -> None:
    """Have text with a rim drawn as a rim of outlines below and letters above; Matplotlib makes outlines of both."""
    from matplotlib.text import Text

    def draw(text: Text, renderer: RendererBase) -> None:
        rim, colour = text.get_path_effects(), text.get_color()
        text.set_color(look.page)
        type(text).draw(text, renderer)
        text.set_color(colour)
        text.set_path_effects([])
        type(text).draw(text, renderer)
        text.set_path_effects(rim)

    for one in figure.findobj(Text):
        if isinstance(one, Text) and one.get_path_effects():
            one.draw = partial(draw, one)  # type: ignore[method-assign]


def plain_axes(axes: Axes, look: Style, *, grid: str = "both") -> None:
    """Ticks, grid and spines as all panels have them."""
    axes.tick_params(labelsize=look.size, length=2.5, which="major")
    axes.tick_params(length=0, which="minor")
    axes.grid(True, axis=grid, color=look.grid, linewidth=0.7)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def named_rows(axes: Axes, places: Sequence[float], names: Sequence[str], look: Style) -> None:
    """The axes of bars or points below one another, each with its name on the left."""
    plain_axes(axes, look, grid="x")
    axes.set_yticks(places, names)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def speedup_axis(axes: Axes, seen: Sequence[float]) -> None:
    """The axis of speedups, at least as wide as what is drawn, ranges included."""
    room = 0.04 * (max(seen) - min(seen))
    axes.set_xlim(min(seen) - room, max(seen) + room)
    narrow = axes.get_window_extent().width < 1.5 * axes.figure.dpi
    axes.locator_params(axis="x", nbins=3 if narrow else 6)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")


def halo(style: Style) -> list[AbstractPathEffect]:
    """A rim that keeps text legible on lines."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=0.3 * style.size, foreground=style.page)]


def note(
    axes: Axes,
    text: str,
    at: Any,
    look: Style,
    aside: tuple[float, float] = (0.0, 0.0),
    where: Any = "data",
    *,
    rim: bool = False,
    **how: Any,
) -> Annotation:
    """Write a text at a place, moved `aside` by sizes of its letters; a rim keeps it legible on lines."""
    how = {"fontsize": look.size, "color": look.text, "va": "center", "annotation_clip": False, **how}
    how |= {"path_effects": halo(look)} if rim else {}
    return axes.annotate(text, at, (look.size * aside[0], look.size * aside[1]), where, "offset points", **how)


def side_text(axes: Axes, y: float, text: str, look: Style, *, bold: bool = False) -> None:
    """Write a text right of the axes, at the height of a row."""
    weight = "bold" if bold else "normal"
    note(axes, text, (1, y), look, (0.6, 0), axes.get_yaxis_transform(), fontweight=weight)


def cells(axes: Axes, y: float, texts: Sequence[str], bold: Sequence[bool], look: Style, *, head: bool = False) -> None:
    """Numbers or their heads in columns right of the axes."""
    for number, (text, strong) in enumerate(zip(texts, bold, strict=True)):
        how: Any = {
            "fontweight": "bold" if strong else "normal",
            "color": look.faint if head else look.text,
            "ha": "right",
        }
        note(axes, text, (1, y), look, (4.8 + 5.4 * number, 0), axes.get_yaxis_transform(), **how)


def whisker(axes: Axes, y: float, ends: tuple[float, float, float], look: Style, **how: Any) -> None:
    """A range around a value, `ends` being low, value and high, with the marker that `how` asks for, if any."""
    low, value, high = ends
    drawn: dict[str, Any] = {
        "fmt": "none",
        "color": look.text,
        "capsize": 0.25 * look.size,
        "linewidth": 0.12 * look.size,
        "zorder": 5,
    }
    axes.errorbar([value], [y], xerr=[[value - low], [high - value]], **drawn | how)


def band(axes: Axes, across: Sequence[float], low: Sequence[float], high: Sequence[float], colour: str) -> None:
    """The range around a line."""
    axes.fill_between(across, low, high, color=colour, alpha=0.16, linewidth=0, zorder=2)


def key(axes: Axes, entries: Sequence[tuple[str, str]], look: Style) -> None:
    """Write a colour key, ``(text, colour)``, above a panel on the right."""
    aside = 0.0
    for text, colour in reversed(entries):
        how: Any = {"ha": "right", "va": "baseline", "color": colour, "fontweight": "bold"}
        note(axes, text, (1, 1), look, (-aside / look.size, 0.5), "axes fraction", **how)
        aside += 72 * 1.12 * longest([text], look) + 0.7 * look.size


def heading(axes: Axes, text: str, look: Style) -> None:
    """Write the title of a panel, above it on the left."""
    axes.set_title(text, loc="left", fontsize=look.size, color=look.faint, pad=4)
