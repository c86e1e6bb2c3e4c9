"""Where a command may write, refused before anything is computed, or made; and how its pictures look."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attnsim.cli import given, options
from attnsim.errors import InputError

if TYPE_CHECKING:
    from attnsim.plots.sheet import Picture


@dataclass(frozen=True, kw_only=True)
class Look:
    """The flags that say how a picture looks, and where its title and caption go."""

    style: options.StyleName = "light"
    width: options.PictureWidth = "page"
    caption: options.CaptionPlace = "picture"

    def check(self, out: Path) -> None:
        """Refuse, before anything is computed, a picture that could not be drawn or written.

        Raises
        ------
        InputError
        """
        from attnsim.plots.files import check_caption, check_suffix
        from attnsim.plots.styles import find_style

        check_suffix(out)
        find_style(self.style, self.width)
        check_caption(self.caption)
        check_output(out)

    def check_asked(self, context: typer.Context, out: Path | None, flag: str = "--plot") -> None:
        """The same of a picture that may be asked for; without it, refuse to say how it looks.

        Raises
        ------
        InputError
        """
        if out is not None:
            self.check(out)
        else:
            why = f"is about the picture of {flag}, which is not asked for"
            given.refuse(context, why, ("style", "width", "caption"))

    def write(self, picture: Picture, out: Path) -> list[Path]:
        """Write the picture and what belongs beside it, and say where."""
        return picture.write(out, self.style, self.width, self.caption)


def check_output(path: Path) -> None:
    """Refuse, before anything is computed, a file that could not be written.

    Raises
    ------
    InputError
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder; give a file name")
    folder = path.parent
    if not folder.is_dir():
        raise InputError(f"{path} cannot be written: {folder} is not a folder")


def make_folder(path: Path) -> None:
    """Make the folder of ``--out`` where it is not there.

    Raises
    ------
    InputError
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {path} cannot be made a folder: {error.strerror or error}") from None


def new_gpu_file(path: Path, force: bool) -> str:
    """The id of a GPU whose file is to be written, after refusing what could not be.

    Raises
    ------
    InputError
    """
    import re

    from attnsim.models.hardware.file_format import ID_PATTERN
    from attnsim.models.hardware.files import known_gpu_ids

    if path.suffix.lower() not in (".yaml", ".yml"):
        raise InputError(f"{path}: end the name with .yaml")
    name = path.stem.lower()
    if not re.fullmatch(ID_PATTERN, name):
        raise InputError(f"{path}: the name becomes the GPU's id; allowed: letters, digits, '.', '_' and '-'")
    if name in known_gpu_ids():
        raise InputError(f"{path}: {name} is a built-in GPU; choose another name")
    check_output(path)
    if path.exists() and not force:
        raise InputError(f"{path} exists; give another name, or --force to replace it")
    return name
