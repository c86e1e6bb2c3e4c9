"""Pictures as Matplotlib figures, from what `attnsim.compare` and its like return; nothing is written.

``attnsim.plot`` is this module. Every function draws a figure of its own, with title and caption, or on axes that it is
given, without them; a picture of several panels takes a sequence of axes, one for each panel from above, or fewer.
`rows` gives the tidy table behind a picture, `COLOURS` are the hues of all of them on a light page.

Examples
--------
>>> import attnsim
>>> question = attnsim.Workload(batch=1, heads_q=16, seq_q=1024, head_dim=128)
>>> found = attnsim.compare(question, "a100-sxm4-80gb", ["naive", "flash"])
>>> figure = attnsim.plot.units(found, width="column")
>>> figure.savefig("units.pdf")  # doctest: +SKIP
>>> [row["part"] for row in attnsim.plot.rows("units", found) if row["bounds"]]
['launch', 'tensor']
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnsim.errors import InputError, nearest, shown
from attnsim.plots.changes import split as _split
from attnsim.plots.changes import tornado as _tornado
from attnsim.plots.changes import whatif as _whatif
from attnsim.plots.check import check as _check
from attnsim.plots.density import breakeven as _breakeven
from attnsim.plots.density import density as _density
from attnsim.plots.roofline import roofline as _roofline
from attnsim.plots.scaling import scaling as _scaling
from attnsim.plots.scaling import waves as _waves
from attnsim.plots.sheet import Picture
from attnsim.plots.step import step as _step
from attnsim.plots.styles import COLOURS
from attnsim.plots.timeline import timeline as _timeline
from attnsim.plots.units import traffic as _traffic
from attnsim.plots.units import units as _units

__all__ = [
    "COLOURS", "breakeven", "check", "density", "roofline", "rows", "scaling", "split", "step", "timeline",
    "tornado", "traffic", "units", "waves", "whatif",
]  # fmt: skip

_LOOK = """ax : Axes or sequence of Axes, optional
    One for each panel from above, or fewer.
style : {"light", "dark", "print", "latex"}
width : {"page", "column"}

Raises
"""


_PICTURES: dict[str, Callable[..., Picture]] = {}
"""Pictures that have a function here, by its name."""


class _Draws(Protocol):
    def __call__(
        self,
        *arguments: Any,
        ax: Axes | Sequence[Axes] | None = None,
        style: str = "light",
        width: str = "page",
        **options: Any,
    ) -> Figure: ...


def _drawing(picture: Callable[..., Picture]) -> _Draws:
    """The function that draws a picture; its signature and text say how it looks, too."""

    def draw(
        *arguments: Any,
        ax: Axes | Sequence[Axes] | None = None,
        style: str = "light",
        width: str = "page",
        **options: Any,
    ) -> Figure:
        made = picture(*arguments, **options)
        return made.figure(style, width) if ax is None else made.on(_sequence(ax), style, width)

    look = [one for one in inspect.signature(draw).parameters.values() if one.kind is one.KEYWORD_ONLY]
    own = inspect.signature(picture)
    whole = own.replace(parameters=[*own.parameters.values(), *look], return_annotation="Figure")
    draw.__signature__ = whole  # type: ignore[attr-defined]
    draw.__name__ = draw.__qualname__ = picture.__name__
    _PICTURES[picture.__name__] = picture
    draw.__doc__ = inspect.cleandoc(picture.__doc__ or "").replace("\nRaises\n", _LOOK, 1)
    return draw


roofline = _drawing(_roofline)
timeline = _drawing(_timeline)
scaling = _drawing(_scaling)
units = _drawing(_units)
traffic = _drawing(_traffic)
waves = _drawing(_waves)
tornado = _drawing(_tornado)
breakeven = _drawing(_breakeven)
check = _drawing(_check)
split = _drawing(_split)
step = _drawing(_step)
density = _drawing(_density)
whatif = _drawing(_whatif)


def rows(picture: str, *arguments: Any, **options: Any) -> list[dict[str, object]]:
    """The tidy table behind a picture, as the commands write it beside the file.

    Parameters
    ----------
    picture : str
        Name of a function of this module.
    *arguments, **options
        As for that function, without `ax`, `style` and `width`.

    Raises
    ------
    InputError
        For an unknown picture, and as the picture does.
    """
    if picture not in _PICTURES:
        raise InputError(
            f"picture {shown(picture)} is not known; {nearest(str(picture), _PICTURES)}; all: {', '.join(_PICTURES)}"
        )
    return [dict(row) for row in _PICTURES[picture](*arguments, **options).rows]


def _sequence(ax: Axes | Sequence[Axes]) -> list[Axes]:
    """One or several axes, an array of `matplotlib.pyplot.subplots` included, as a list."""
    if isinstance(ax, Axes):
        return [ax]
    return [one for part in ax for one in _sequence(part)]
