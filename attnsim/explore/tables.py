"""Files that the page saves: pictures and tables, the same bytes as the command writes or prints."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from attnsim.errors import InputError, shown
from attnsim.explore.pictures import Shown, shown_as
from attnsim.explore.saying import COMMANDS
from attnsim.explore.state import State
from attnsim.plots.files import csv_text
from attnsim.plots.sheet import Picture

DRAWN = {"svg": "image/svg+xml", "pdf": "application/pdf", "png": "image/png", "csv": "text/csv"}
"""Formats of a saved picture."""
PRINTED = {"json": "application/json", "csv": "text/csv"}
"""Formats of a saved table that the command line prints: its ``--json``, and the rows on the page."""


@dataclass(frozen=True)
class File:
    """A file for the page to save."""

    name: str
    kind: str
    data: bytes


def export(name: object, state: State, form: object, style: object = "light") -> File:
    """A picture, or the table behind it, as the command writes it."""
    found = shown_as(str(name), state)
    if found.picture:
        return drawn(str(name), found.picture, form, style)
    kind = _kind(form, PRINTED)
    data = _printed(str(name), state) if form == "json" else _rows(found)
    return File(f"{name}.{form}", kind, data)


def drawn(name: str, picture: Picture, form: object, style: object) -> File:
    """A picture of a command, or the table that the command writes beside it."""
    kind = _kind(form, DRAWN)
    if form == "csv":
        return File(f"{name}.csv", kind, csv_text(picture.columns, list(picture.rows)).encode())
    with TemporaryDirectory() as folder:
        out = Path(folder) / f"{name}.{form}"
        picture.write(out, str(style))
        return File(out.name, kind, out.read_bytes())


def _kind(form: object, kinds: dict[str, str]) -> str:
    if not isinstance(form, str) or form not in kinds:
        raise InputError(f"format is {shown(form)}; allowed: {', '.join(kinds)}")
    return kinds[form]


def _rows(found: Shown) -> bytes:
    return csv_text(found.columns, [*found.base, *found.rows]).encode()


def _printed(name: str, state: State) -> bytes:
    """Output of the command, which is run."""
    command = [sys.executable, "-m", "attnsim", *COMMANDS[name](state), "--json"]
    ran = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    if ran.returncode:
        raise InputError(ran.stderr.decode(errors="replace").strip().rpartition("\n")[2].removeprefix("error: "))
    return ran.stdout
