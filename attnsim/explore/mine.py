"""One's own timings, dropped on the page: checked, said and saved as `attnsim check` does it."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attnsim.api.checking import Check
from attnsim.api.checking import check as checked
from attnsim.errors import InputError, shown
from attnsim.explore.pictures import Shown
from attnsim.explore.saying import File, cited, drawn
from attnsim.explore.state import MOST, names_file
from attnsim.plots.check import check as picture_of
from attnsim.wording import share_text

NAME = "mine"
"""Name of the picture on the page."""
TABLE = "table.csv"
"""Name of a table that has none, and of every table in its errors."""
WORDS = ("time_unit", "gpu", "implementation")
"""Flags of `attnsim check` beside ``--map``."""


@dataclass(frozen=True)
class Mine:
    """A table of timings and how it is to be read.

    Parameters
    ----------
    text : str
        Of the file.
    maps : tuple of (str, str)
        Their column by ours.
    words : tuple of (str, str)
        Flags of `attnsim check` that have a value.
    file : str
        Its name.
    """

    text: str
    maps: tuple[tuple[str, str], ...]
    words: tuple[tuple[str, str], ...]
    file: str

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Mine:
        """From a request: ``csv`` the text; ``map``, ``time_unit``, ``gpu``, ``implementation`` and ``file`` may be."""
        maps = body.get("map") or {}
        if not isinstance(maps, Mapping) or not all(isinstance(one, str) for one in (*maps.values(), *maps)):
            raise InputError(f"map is {shown(maps)}; give an object of texts")
        texts = {name: body.get(name, "") for name in ("csv", "file", *WORDS)}
        for name, value in texts.items():
            if not isinstance(value, str):
                raise InputError(f"{name} is {shown(value)}; give a text")
        text, file, *words = texts.values()
        if len(file) > MOST or not file.isprintable():
            raise InputError(f"file is {shown(file)}; allowed: at most {MOST:,} letters on one line")
        given = tuple((name, word) for name, word in zip(WORDS, words, strict=True) if word)
        _refuse_files(text, words)
        return cls(text, tuple(maps.items()), given, file or TABLE)


@lru_cache(maxsize=2)
def _checked(mine: Mine) -> Check:
    options: dict[str, Any] = dict(mine.words)
    with TemporaryDirectory() as folder:
        path = Path(folder) / TABLE
        path.write_text(mine.text, encoding="utf-8")
        try:
            return checked(path, maps=dict(mine.maps), processes=1, progress=False, **options)
        except InputError as error:
            raise InputError(str(error).replace(str(path), TABLE)) from None


def check(mine: Mine) -> dict[str, object]:
    """The table beside its predictions: how its columns were read, rows, bias and coverage."""
    found = _checked(mine)
    refused = [{"line": line, "reason": why} for why, lines in found.left_out.items() for line in lines]
    every = found.accuracy[0] if found.accuracy else None
    summary = (
        f"{every.rows} rows: mean error {share_text(every.mean)}, bias {share_text(every.bias, signed=True)}, "
        f"{every.inside} of {every.rows} inside their 90 % range ({share_text(every.coverage, 0)})"
        if every
        else "no row counts"
    )
    picture = picture_of(found) if every else None
    columns, rows = (picture.columns, picture.rows) if picture else ((), ())
    more = {"mapping": found.columns.table(), "accuracy": [one.to_dict() for one in found.accuracy], "refused": refused}
    return Shown("Measured over predicted time", summary, columns, rows, picture=picture, more=more).to_dict()


def said(mine: Mine) -> dict[str, object]:
    """The command, the same in Python, and an entry for BibTeX."""
    file = f"./{mine.file}" if mine.file.startswith("-") else mine.file
    maps = [part for ours, theirs in mine.maps for part in ("--map", f"{ours}={theirs}")]
    words = [part for name, word in mine.words for part in (f"--{name.replace('_', '-')}", word)]
    given = "".join(f", {name}={word!r}" for name, word in (("maps", dict(mine.maps)), *mine.words) if word)
    python = (
        f"import attnsim\n\nfound = attnsim.check({mine.file!r}{given})\nprint(found.summary)\n"
        "attnsim.plot.check(found).savefig('check.svg')\n"
    )
    return {**cited(["attnsim", "check", file, *maps, *words, "--plot", "check.svg"]), "python": python}


def export(mine: Mine, form: object, style: object) -> File:
    """The picture of the command, or the table behind it."""
    return drawn("check", picture_of(_checked(mine)), form, style)


def _refuse_files(text: str, others: list[str]) -> None:
    """Refuse a table that names files: the page reads none."""
    try:
        cells = [cell for line in csv.reader(text.splitlines()) for cell in line]
    except csv.Error as error:
        raise InputError(f"{TABLE} cannot be read as CSV: {error}") from None
    for cell in (*cells, *others):
        if names_file(cell):
            raise InputError(f"{TABLE} names {shown(cell)}, a file; the page reads none: attnsim check does")
