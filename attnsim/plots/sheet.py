"""A picture of stacked panels with a title above, a caption below and the table that it shows beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from attnsim.models.errors import InputError
from attnsim.models.writing import writing
from attnsim.plots.files import check_suffix, write_csv
from attnsim.plots.styles import COLUMN_INCHES, SIZE, Style, applied, find_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE_INCHES = 7.2
GAP = 0.64
"""Inches between panels: ticks and name of the upper x axis, heading of the lower panel."""
DPI = {"page": 150, "column": 300}

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes.

    Parameters
    ----------
    draw : callable
        Draws on axes in a style.
    inches : float
        Height on a page.
    """

    draw: Callable[[Axes, Style], None]
    inches: float


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture before it is drawn, in any style and width.

    Parameters
    ----------
    title, caption : str
    panels : tuple of Panel
        From above.
    columns : tuple of str
    rows : tuple of mapping
        The tidy table of what is drawn.
    left, right : tuple of str
        Texts beside the axes, whose margins hold the longest; left of them also the name of the axis.
    page : callable, optional
        Draws the whole figure in a style and width, where it is not the panels below one another.
    """

    title: str
    caption: str
    panels: tuple[Panel, ...]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    left: tuple[str, ...] = ("0.001",)
    right: tuple[str, ...] = ()
    page: Callable[[Style, str], Figure] | None = None

    def figure(self, style: str = "light", width: str = "page") -> Figure:
        """All panels with title and caption.

        Raises
        ------
        InputError
            For an unknown style or width.
        """
        look = find_style(style, width)
        if self.page is not None:
            with applied(look):
                return self.page(look, width)
        scale = look.size / SIZE
        wide = PAGE_INCHES if width == "page" else COLUMN_INCHES
        with applied(look):
            left = 0.34 * scale + _longest(self.left, look)
            right = 0.14 * scale + _longest(self.right, look)
            title = _wrapped(self.title, wide - 0.2, 1.1 * (look.size + 1), look)
            caption = _wrapped(self.caption, wide - 0.2, look.size - 0.5, look)
            line = 1.36 * (look.size - 0.5) / 72
            above = 0.1 + 1.3 * len(title) * (look.size + 1) / 72 + 0.32 * scale
            below = 0.08 + line * len(caption) + 0.46 * scale
            heights = [scale * panel.inches for panel in self.panels]
            tall = above + sum(heights) + GAP * scale * (len(heights) - 1) + below
            figure = new_figure(wide, tall, look, dpi=DPI[width])
            top = tall - above
            for panel, height in zip(self.panels, heights, strict=True):
                axes = figure.add_axes(
                    (left / wide, (top - height) / tall, (wide - left - right) / wide, height / tall)
                )
                panel.draw(axes, look)
                top -= height + GAP * scale
            text = "\n".join(title)
            figure.text(0.1 / wide, 1 - 0.08 / tall, text, fontsize=look.size + 1, fontweight="bold", va="top")
            text = "\n".join(caption)
            figure.text(0.1 / wide, 0.06 / tall, text, fontsize=look.size - 0.5, color=look.faint, va="bottom")
        return figure

    def on(self, axes: Sequence[Axes], style: str = "light", width: str = "page") -> Figure:
        """The first panels on axes of the caller's, without title and caption.

        Raises
        ------
        InputError
            For more axes than panels, axes of several figures, or an unknown style or width.
        """
        look = find_style(style, width)
        figures = {one.get_figure(root=True) for one in axes}
        if not 1 <= len(axes) <= len(self.panels) or len(figures) > 1:
            raise InputError(
                f"{len(axes)} axes of {len(figures)} figures are given; allowed: 1 to {len(self.panels)} of one figure"
            )
        with applied(look):
            for panel, one in zip(self.panels, axes, strict=False):
                panel.draw(one, look)
        (figure,) = figures
        assert figure is not None
        return figure

    def write(self, out: Path, style: str = "light", width: str = "page") -> list[Path]:
        """Write the picture and its table, and say where.

        Raises
        ------
        InputError
            For an unknown suffix, style or width, or a path that cannot be written.
        """
        kind = check_suffix(out)
        figure = self.figure(style, width)
        with applied(find_style(style, width)), writing(out) as file:
            figure.savefig(file, format=kind, dpi=DPI[width])
        table = out.with_suffix(".csv")
        write_csv(table, self.columns, self.rows)
        return [out, table]


def new_figure(wide: float, tall: float, look: Style, dpi: float = 100) -> Figure:
    """An empty figure of a size in inches, which needs no screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(wide, tall), dpi=dpi, facecolor=look.page)
    FigureCanvasAgg(figure)
    return figure


def plain_axes(axes: Axes, look: Style, *, grid: str = "both") -> None:
    """Ticks, grid and spines as all panels have them."""
    axes.tick_params(labelsize=look.size, length=2.5, which="major")
    axes.tick_params(length=0, which="minor")
    axes.grid(True, axis=grid, color=look.grid, linewidth=0.7)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def heading(axes: Axes, text: str, look: Style) -> None:
    """What a panel shows, above it on the left."""
    axes.set_title(text, loc="left", fontsize=look.size, color=look.faint, pad=4)


def _wrapped(text: str, inches: float, size: float, look: Style) -> list[str]:
    """Lines of words that fit."""
    blank = _text_inches("n n", size, look.serif) - _text_inches("nn", size, look.serif)
    lines: list[list[str]] = [[]]
    left = inches
    for word in text.split():
        wide = 1.03 * _text_inches(word, size, look.serif) + blank  # letters on whole pixels take more
        if wide > left and lines[-1]:
            lines.append([])
            left = inches
        lines[-1].append(word)
        left -= wide
    return [" ".join(line) for line in lines if line]


def _longest(texts: Sequence[str], look: Style) -> float:
    return max((_text_inches(line, look.size, look.serif) for text in texts for line in text.split("\n")), default=0.0)


@lru_cache(maxsize=1024)
def _text_inches(text: str, size: float, serif: bool) -> float:
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    family = ["STIXGeneral", "DejaVu Serif"] if serif else None
    width, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(family=family, size=size), False)
    return float(width) / 72
