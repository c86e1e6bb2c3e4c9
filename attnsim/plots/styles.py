"""Colours and sizes of the pictures: on a light page, on a dark one, in grey print, beside LaTeX."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from attnsim.models.errors import InputError

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#AA4499", "#A67C00", "#3B9AD9", "#000000")
"""Okabe and Ito's colours (jfly.uni-koeln.de/color), the light ones darkened to be read as text."""

SIZE = 8.5
"""Smallest text of a page, in points."""

COLUMN_INCHES = 3.4
"""Width of a column of a two-column paper."""


@dataclass(frozen=True, slots=True)
class Style:
    """How a picture looks.

    Parameters
    ----------
    name : str
    page, text, faint, grid : str
        Colours of the background, of text, of remarks and of the grid.
    colours : tuple of str
        Of what is compared, in order; told apart by people who see red and green alike.
    serif : bool
        Text as LaTeX sets it.
    size : float
        Smallest text, in points.
    crowding : float
        Room that a label takes of the axes, over that on a page.
    """

    name: str
    page: str
    text: str
    faint: str
    grid: str
    colours: tuple[str, ...]
    serif: bool = False
    size: float = SIZE
    crowding: float = 1.0

    def colour(self, number: int) -> str:
        """The colour of the `number`-th thing compared."""
        return self.colours[number % len(self.colours)]


STYLES = {
    one.name: one
    for one in (
        Style("light", "white", "black", "#333333", "#E4E4E4", COLOURS),
        Style(
            "dark", "#15181C", "#F2F2F2", "#C8C8C8", "#3A3F45",
            ("#56B4E9", "#F0803C", "#2FC79A", "#E08BD0", "#F0C93A", "#9AD1F5", "#FFFFFF"),
        ),
        Style("print", "white", "black", "#222222", "#DDDDDD", ("#000000", "#6E6E6E", "#3A3A3A", "#969696")),
        Style("latex", "white", "black", "#222222", "#E4E4E4", COLOURS, serif=True),
    )
}  # fmt: skip

DASHES = ("-", (0, (6, 2)), (0, (3, 1.5)), (0, (1, 1)))
"""Of what is compared, in print, where colours are too alike."""


WIDTHS = ("page", "column")


def find_style(name: str, width: str = "page") -> Style:
    """The style of a name, for a page or a column of a two-column paper.

    Raises
    ------
    InputError
    """
    if name not in STYLES:
        raise InputError(f"style {name!r} is not known; allowed: {', '.join(STYLES)}")
    if width not in WIDTHS:
        raise InputError(f"width {width!r} is not known; allowed: {', '.join(WIDTHS)}")
    return STYLES[name] if width == "page" else replace(STYLES[name], size=6.0, crowding=1.9)


@contextmanager
def applied(style: Style) -> Iterator[None]:
    """Matplotlib's own defaults for text, ticks and axes, within the block."""
    import matplotlib as mpl

    settings: dict[str, object] = {
        "text.color": style.text,
        "axes.labelcolor": style.text,
        "axes.edgecolor": style.text,
        "axes.facecolor": style.page,
        "xtick.color": style.text,
        "ytick.color": style.text,
        "figure.facecolor": style.page,
        "savefig.facecolor": style.page,
        "svg.hashsalt": "attnsim",  # the same picture is the same file
    }
    if style.serif:
        settings |= {"font.family": "serif", "font.serif": ["STIXGeneral", "DejaVu Serif"], "mathtext.fontset": "stix",
                     "axes.unicode_minus": False}  # fmt: skip
    with mpl.rc_context(settings):  # type: ignore[arg-type]
        yield
