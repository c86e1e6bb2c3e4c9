"""A picture of stacked panels with a title above, a caption below and the table that it shows beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from attnsim.errors import InputError
from attnsim.plots.files import check_caption, check_suffix, latex_caption, write_csv
from attnsim.plots.styles import COLUMN_INCHES, SIZE, Style, applied, find_style
from attnsim.writing import write_whole, writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backend_bases import RendererBase
    from matplotlib.figure import Figure
    from matplotlib.patheffects import AbstractPathEffect
    from matplotlib.text import Annotation

PAGE_INCHES = 7.2
WIDE = {"page": PAGE_INCHES, "column": COLUMN_INCHES}
LINE = 1.36
"""Height of a line over that of its letters."""
DPI = {"page": 150, "column": 300}
TRIES = 4
"""Layouts until no text leaves the picture."""
EDGE = 0.06
"""Inches that stay free at the edges, and between texts of two panels."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes.

    Parameters
    ----------
    draw : callable
        Draws on axes in a style.
    inches : float
        Height on a page.
    apart : bool
        Whether its axes are as wide as its own texts leave them; the others stand above one another.
    same_row : bool
        Whether it stands right of the panel before it.
    key : bool
        Whether it says what the others' lines are.
    """

    draw: Callable[[Axes, Style], None]
    inches: float
    apart: bool = False
    same_row: bool = False
    key: bool = False


@dataclass(frozen=True, slots=True)
class Words:
    """Title, question and caption in lines, and the inches that they take above and below the panels."""

    title: str = ""
    subtitle: str = ""
    caption: str = ""
    above: float = 0.0
    below: float = 0.0

    @classmethod
    def of(cls, title: str, subtitle: str, caption: str, look: Style, width: str) -> Words:
        """Words broken into lines that fit."""
        wide = WIDE[width] - 0.2
        above = wrapped(title, wide, 1.1 * (look.size + 1), look)
        question = wrapped(subtitle, wide, look.size, look)
        below = wrapped(caption, wide, look.size - 0.5, look)
        return cls(
            "\n".join(above),
            "\n".join(question),
            "\n".join(below),
            LINE * (len(above) * (look.size + 1) + len(question) * look.size) / 72,
            LINE * len(below) * (look.size - 0.5) / 72,
        )

    def write(self, figure: Figure, look: Style) -> None:
        """Put them into the corners of a figure."""
        wide, tall = figure.get_size_inches()
        under = 1 - (EDGE + LINE * (look.size + 1) * (1 + self.title.count("\n")) / 72) / tall
        for text, y, size, colour, weight in (
            (self.title, 1 - EDGE / tall, look.size + 1, look.text, "bold"),
            (self.subtitle, under, look.size, look.faint, "normal"),
            (self.caption, EDGE / tall, look.size - 0.5, look.faint, "normal"),
        ):
            if text:
                figure.text(
                    0.1 / wide,
                    y,
                    text,
                    fontsize=size,
                    color=colour,
                    fontweight=weight,
                    linespacing=look.spacing,
                    va="bottom" if text is self.caption else "top",
                )


Sides = tuple[float, float]
"""Inches left and right of axes."""


def stacked(panels: Sequence[Panel], words: Words, sides: Sides, look: Style, width: str) -> Figure:
    """Panels below one another, some beside one another, as far apart as their texts need.

    Parameters
    ----------
    panels : sequence of Panel
    words : Words
    sides : (float, float)
        About how much room the texts left and right of the axes take; what they need is measured.
    look : Style
    width : {"page", "column"}
    """
    margins = [(EDGE, EDGE) if panel.same_row else sides for panel in panels]
    for _ in range(TRIES):
        figure, needed = _once(panels, words, margins, look, width)
        wanted = _alike(panels, needed)
        short = max(one[side] - have[side] for one, have in zip(wanted, margins, strict=True) for side in (0, 1))
        if short < EDGE / 4:
            break
        margins = [(max(have[0], want[0]), max(have[1], want[1])) for have, want in zip(margins, wanted, strict=True)]
    return figure


def _rows(panels: Sequence[Panel]) -> list[list[int]]:
    """Places of the panels that stand beside one another."""
    rows: list[list[int]] = []
    for place, panel in enumerate(panels):
        if panel.same_row and rows:
            rows[-1].append(place)
        else:
            rows.append([place])
    return rows


def _alike(panels: Sequence[Panel], needed: Sequence[Sides]) -> list[Sides]:
    """Margins that are the same for panels above one another, but for those `apart`."""
    columns = [column for row in _rows(panels) for column in range(len(row))]
    shared: dict[int, Sides] = {}
    for column, panel, (left, right) in zip(columns, panels, needed, strict=True):
        before = shared.get(column, (0.0, 0.0))
        shared[column] = before if panel.apart else (max(before[0], left), max(before[1], right))
    return [one if panel.apart else shared[column] for column, panel, one in zip(columns, panels, needed, strict=True)]


def _once(
    panels: Sequence[Panel], words: Words, margins: Sequence[Sides], look: Style, width: str
) -> tuple[Figure, list[Sides]]:
    """The figure with given margins, and the margins that the texts of each panel need."""
    wide, rows = WIDE[width], _rows(panels)
    heights = [look.size / SIZE * max(panels[place].inches for place in row) for row in rows]
    figure = new_figure(wide, sum(heights), look, dpi=DPI[width])
    every: list[Axes] = []
    for row, height in zip(rows, heights, strict=True):
        inches = max(0.2, (wide - sum(sum(margins[place]) for place in row)) / len(row))
        start = 0.0
        for place in row:
            start += margins[place][0]
            size = (inches / wide, height / sum(heights))
            every.append(figure.add_axes((start / wide, 0, *size), label=str(place)))
            panels[place].draw(every[-1], look)
            start += inches + margins[place][1]
    beyond = [_beyond(axes) for axes in every]
    top = EDGE + words.above + (EDGE if words.title else 0.0)
    bottoms = []
    for row, height in zip(rows, heights, strict=True):
        top += max(beyond[place][3] for place in row) + height
        bottoms.append(top)
        top += max(beyond[place][2] for place in row) + 2 * EDGE
    tall = top - EDGE + words.below + (EDGE if words.caption else 0.0)
    figure.set_size_inches(wide, tall)
    for row, height, bottom in zip(rows, heights, bottoms, strict=True):
        for place in row:
            box = every[place].get_position()
            every[place].set_position((box.x0, 1 - bottom / tall, box.width, height / tall))
    words.write(figure, look)
    return figure, [(one[0] + EDGE, one[1] + EDGE) for one in beyond]


def _beyond(axes: Axes) -> tuple[float, float, float, float]:
    """Inches by which what belongs to axes stands out of them: left, right, below, above."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    whole = axes.get_tightbbox(cast(Any, figure.canvas).get_renderer())
    box = axes.get_window_extent()
    assert whole is not None
    out = (box.x0 - whole.x0, whole.x1 - box.x1, box.y0 - whole.y0, whole.y1 - box.y1)
    return tuple(max(0.0, float(one) / figure.dpi) for one in out)  # type: ignore[return-value]


def new_figure(wide: float, tall: float, look: Style, dpi: float = 100) -> Figure:
    """An empty figure of a size in inches, which needs no screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(wide, tall), dpi=dpi, facecolor=look.page)
    FigureCanvasAgg(figure)
    return figure


def wrapped(text: str, inches: float, size: float, look: Style) -> list[str]:
    """Lines of words that fit."""
    blank = _text_inches("n n", size, look.fonts) - _text_inches("nn", size, look.fonts)
    lines: list[list[str]] = [[]]
    left = inches
    for word in text.replace(" %", "\u00a0%").split(" "):
        wide = 1.03 * _text_inches(word, size, look.fonts) + blank  # letters on whole pixels take more
        if wide > left and lines[-1]:
            lines.append([])
            left = inches
        lines[-1].append(word)
        left -= wide
    return [one for line in lines if (one := " ".join(line))]


def longest(texts: Sequence[str], look: Style) -> float:
    """Inches of the longest line."""
    return max((_text_inches(line, look.size, look.fonts) for text in texts for line in text.split("\n")), default=0.0)


@lru_cache(maxsize=1024)
def _text_inches(text: str, size: float, fonts: tuple[str, ...]) -> float:
    from matplotlib import font_manager, textpath

    width, _, _ = textpath.text_to_path.get_text_width_height_descent(
        text, font_manager.FontProperties(family=fonts, size=size), text.count("$") > 1
    )
    return float(width) / 72


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
    axes.locator_params(axis="x", nbins=3 if size_of(axes)[0] < 1.5 else 6)
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


def size_of(axes: Axes) -> tuple[float, float]:
    """Inches of the width and the height of axes."""
    box = axes.get_window_extent()
    return float(box.width / axes.figure.dpi), float(box.height / axes.figure.dpi)


def dots(
    axes: Axes,
    at: Sequence[Sequence[float]],
    look: Style,
    colour: str,
    size: float,
    shape: str = "o",
    inside: str = "",
    **how: Any,
) -> None:
    """Draw markers at places ``(x, y)``, sized as letters are, the rim in a colour, the inside in this or another."""
    how = {"markerfacecolor": inside or colour, "markeredgecolor": colour, **how}
    axes.plot(*at, shape, markersize=size * look.size, **how)


def bar(axes: Axes, y: float, start: float, end: float, colour: str, **how: Any) -> None:
    """Draw a level bar from one value to another."""
    how = {"zorder": 3, **how}
    axes.barh([y], [end - start], left=[start], color=colour, **how)


def legend(axes: Axes, look: Style, *entries: Any, **how: Any) -> None:
    """Write the legend of axes, or one of lines and their names, without a frame."""
    axes.legend(*entries, frameon=False, fontsize=look.size, **how)


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
