"""The flags that say how a picture looks, and where its title and caption go."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import typer

from attnsim.cli import given, options
from attnsim.cli.outputs import check_output
from attnsim.plots.files import check_caption, check_suffix
from attnsim.plots.sheet import Picture
from attnsim.plots.styles import find_style


@dataclass(frozen=True, kw_only=True)
class Look:
    """The flags that say how a picture looks, and where its title and caption go."""

    style: options.StyleName = "light"
    width: options.PictureWidth = "page"
    caption: options.CaptionPlace = "picture"

    def check(self, *files: Path) -> None:
        """Refuse, before anything is computed, files of a picture that could not be drawn or written."""
        find_style(self.style, self.width)
        check_caption(self.caption)
        for out in files:
            check_suffix(out)
            check_output(out)

    def check_asked(self, context: typer.Context, out: Path | None, flag: str = "--plot") -> None:
        """Check a picture where it is asked for; else refuse the flags about its look."""
        if out is not None:
            self.check(out)
        else:
            why = f"is about the picture of {flag}, which is not asked for"
            given.refuse(context, why, ("style", "width", "caption"))

    def write(self, picture: Picture, *files: Path) -> list[Path]:
        """Write the picture into each file, with its table and caption, and list all that was written."""
        written = [picture.write(out, self.style, self.width, self.caption) for out in files]
        return list(dict.fromkeys(itertools.chain.from_iterable(written)))


@dataclass(frozen=True, kw_only=True)
class Plot(Look):
    """A picture that a command draws where it is asked for, and how it looks; else these flags are refused."""

    context: typer.Context
    plot: options.Plot = None

    def __post_init__(self) -> None:
        """Refuse what could not be drawn or written, before anything is computed."""
        self.check_asked(self.context, self.plot)

    def draw(self, picture: Callable[[], Picture]) -> list[Path]:
        """Write the picture where it is asked for."""
        return self.write(picture(), self.plot) if self.plot else []
