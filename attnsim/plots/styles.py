"""Colours and sizes of the pictures: on a light page, on a dark one, in grey print, beside LaTeX."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnsim.errors import InputError
from attnsim.models.hardware.units import UNITS as HARDWARE
from attnsim.models.mechanisms import ALGORITHMS

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


def _hue(name: str) -> int:
    """The place of a hue in the list of a style."""
    return int(_TABLE["hues"].index(name))


INK = _hue("ink")
"""The hue of text."""
TENSORS, GROUPS, FAMILIAR, _UNITS = (
    {name: _hue(hue) for name, hue in _TABLE[part].items()} for part in ("tensors", "groups", "algorithms", "units")
)
UNITS = {one.name: _UNITS["moving" if one.moves else "computing"] for one in HARDWARE.values()} | _UNITS
"""Units. The lanes of all number formats share a hue, and load/store units that of the shared memory which they
reach."""
STEPS = {name: (text, _hue(hue) if hue else None) for name, (text, hue) in _TABLE["steps"].items()}
"""Groups of the parts of a model's step, in the order in which they are drawn: what they are called, and the hue."""


def tensor_hue(name: str) -> int | None:
    """The hue of a tensor, its copies, transposes and parts included ("K'", "copy K", "O partial"); None: grey."""
    words = name.removeprefix("copy ").replace("(", " ").replace(")", " ").replace("'", "").split()
    return next((TENSORS[word] for word in words[:1] if word in TENSORS), None)


def unit_hue(name: str) -> int | None:
    """The hue of a unit; None: grey, as launches and waits are."""
    return UNITS.get(name)


def algorithm_hue(name: str) -> int:
    """The hue of an algorithm; ``NAME@N`` has that of ``NAME``."""
    base = name.partition("@")[0]
    if base in FAMILIAR:
        return FAMILIAR[base]
    return GROUPS[ALGORITHMS[base].group] if base in ALGORITHMS else INK


def figure_hue(figure: str) -> int | None:
    """The hue of the unit that a figure of the GPU belongs to ("l2.latency": the L2's); None: grey, as the clock is."""
    named = [name for name, unit in HARDWARE.items() if unit.figure == figure]
    group = figure.partition(".")[0]
    return unit_hue(named[0]) if named else unit_hue(group)


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
    page, text, faint, middle, grid : str
        Colours of the background, of text, of remarks, of what has no hue, and of the grid.
    colours : tuple of str
        The hues of :mod:`attnsim.plots.styles`.
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
    middle: str
    grid: str
    colours: tuple[str, ...]
    serif: bool = False
    size: float = SIZE
    crowding: float = 1.0

    def colour(self, hue: int | None) -> str:
        """A hue as the style has it; None is grey. What has no hue of its own, GPUs say, takes them in order."""
        return self.middle if hue is None else self.colours[hue % len(self.colours)]

    def dash(self, hue: int, before: int = 0) -> Any:
        """How a line is dashed that has `before` others of its hue before it."""
        return DASHES[(before + self._same(hue)) % len(DASHES)]

    @property
    def fonts(self) -> tuple[str, ...]:
        """Families that Matplotlib brings along, the first that has a letter counts."""
        return ("STIXGeneral", "DejaVu Serif") if self.serif else ("DejaVu Sans",)

    @property
    def spacing(self) -> float:
        """Line spacing: 1.2 times the text size, in Matplotlib's measure, which is the height of the font's "lp"."""
        return 0.95 if self.serif else 1.2

    def _same(self, hue: int) -> int:
        """How many hues before this one have its colour."""
        return self.colours[: hue % len(self.colours)].count(self.colour(hue))


STYLES = {name: Style(name, **{**look, "colours": tuple(look["colours"])}) for name, look in _TABLE["styles"].items()}
COLOURS = STYLES["light"].colours
"""The hues on a light page."""

DASHES = ("-", (0, (5, 2)), (0, (2.5, 1.5)), (0, (1, 1)))
"""Dash patterns of lines that share a colour."""


WIDTHS = ("page", "column")


def find_style(name: str, width: str = "page") -> Style:
    """The style of a name, for a page or a column of a two-column paper."""
    if name not in STYLES:
        raise InputError(f"style {name!r} is not known; allowed: {', '.join(STYLES)}")
    if width not in WIDTHS:
        raise InputError(f"width {width!r} is not known; allowed: {', '.join(WIDTHS)}")
    return STYLES[name] if width == "page" else replace(STYLES[name], size=6.0, crowding=1.9)


def ink_on(colour: str) -> str:
    """Black or white, whichever is better read on a colour."""
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(colour)
    return "black" if 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 > 0.18 else "white"


@contextmanager
def applied(style: Style) -> Iterator[None]:
    """Matplotlib's own defaults for text, ticks and axes, within the block."""
    import matplotlib as mpl

    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    blank = ("axes.facecolor", "figure.facecolor", "savefig.facecolor")
    settings: dict[str, Any] = {
        "font.family": list(style.fonts)
    }  # by name: a figure is often saved outside of this block
    settings |= dict.fromkeys(inked, style.text) | dict.fromkeys(blank, style.page) | _TABLE["matplotlib"]
    if style.serif:
        settings |= {"mathtext.fontset": "stix", "axes.unicode_minus": False}
    with mpl.rc_context(settings):  # type: ignore[arg-type]
        yield
