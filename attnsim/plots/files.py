"""Pictures and their tables, written whole or not at all."""

from __future__ import annotations

import csv
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from attnsim.models.errors import InputError

SUFFIXES = (".png", ".svg", ".pdf", ".pgf")

LATEX = ("xelatex", "lualatex", "pdflatex")
"""What measures the text of a PGF picture."""


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


def write_atomically(out: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file beside `out`, then put it in its place.

    Raises
    ------
    InputError
        When the folder is missing or cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.stem}-", suffix=out.suffix)
        os.close(handle)
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror}; give --out a folder that exists") from None
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, out)
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def write_csv(out: Path, columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    """A tidy table: one header, missing entries empty."""
    text = csv_text(columns, rows)

    def write(path: Path) -> None:
        path.write_text(text, encoding="utf-8", newline="")

    write_atomically(out, write)


def csv_text(columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> str:
    """The text of such a table."""
    out = io.StringIO()
    table = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return out.getvalue()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
