"""Panels below one another with words above and below, as far apart as their texts need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from attnsim.plots.styles import COLUMN_INCHES, SIZE, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
