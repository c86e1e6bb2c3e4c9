"""Pictures and their tables, written whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from attnsim.errors import InputError
from attnsim.tables import csv_text
from attnsim.writing import write_whole

SUFFIXES = (".png", ".svg", ".pdf", ".pgf")

LATEX = ("xelatex", "lualatex", "pdflatex")
"""Programs that measure the text of a PGF picture."""

CAPTIONS = ("picture", "file", "none")
"""Places of title and caption: in the picture, in a file of its own, or nowhere."""
LATEX_CHARACTERS = str.maketrans(
    {one: f"\\{one}" for one in "&%$#_{}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "<": "$<$", ">": "$>$"}
    | {"µ": r"\textmu{}", "\n": "\n\n"}
)


def check_suffix(out: Path) -> str:
    """The format that a file name asks for.

    Raises
    ------
    InputError
        For a suffix that is not a picture's.
    """
    suffix = out.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"{out.name}: no picture ends in {suffix or 'nothing'}; allowed: {', '.join(SUFFIXES)}")
    if suffix == ".pgf" and not any(shutil.which(program) for program in LATEX):
        raise InputError(f"a .pgf picture needs one of {', '.join(LATEX)} on PATH; or take .pdf with the style latex")
    return suffix[1:]


def write_csv(out: Path, columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    """A tidy table: one header, missing entries empty."""
    write_whole(out, csv_text(columns, rows))


def check_caption(caption: str) -> None:
    """Refuse a place for the caption that there is not."""
    if caption not in CAPTIONS:
        raise InputError(f"caption {caption!r} is not known; allowed: {', '.join(CAPTIONS)}")


def latex_caption(title: str, text: str) -> str:
    """A caption for LaTeX, its characters escaped, with the title as the short name that paragraphs need."""
    short, whole = (one.translate(LATEX_CHARACTERS) for one in (title, text))
    return f"\\caption[{{{short}}}]{{{whole}}}"
