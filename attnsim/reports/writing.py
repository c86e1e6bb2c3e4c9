"""A report's files: one HTML page, or Markdown with a folder of pictures, written whole or not at all."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

from attnsim.models.errors import InputError
from attnsim.plots.document import Document, pictures_of
from attnsim.plots.files import write_atomically
from attnsim.plots.html_page import html_text
from attnsim.plots.markdown_page import markdown_text

SUFFIXES = (".html", ".htm", ".md")


def check_out(out: Path) -> None:
    """Refuse a file that is no page.

    Raises
    ------
    InputError
    """
    if out.suffix.lower() not in SUFFIXES:
        raise InputError(f"--out {out}: end the name with {', '.join(SUFFIXES)}, which choose the format")


def write_document(document: Document, out: Path) -> list[Path]:
    """Write a document in the format that the file's name asks for.

    Parameters
    ----------
    document : Document
    out : Path
        ``.html``, or ``.md`` with pictures in ``NAME_files`` beside it.

    Returns
    -------
    list of Path
        What was written.

    Raises
    ------
    InputError
        For another suffix, or when it cannot be written.
    """
    check_out(out)
    if out.suffix.lower() != ".md":
        _write(out, html_text(document))
        return [out]
    folder = out.with_name(f"{out.stem}_files")
    files = {}
    for picture in pictures_of(document.sections):
        files[f"{picture.name}.png"] = picture.images[-1].data
        if picture.table:
            files[f"{picture.name}.csv"] = picture.table
    new = bool(files) and not folder.exists()
    try:
        if files:
            _fill(folder, files)
        _write(out, markdown_text(document, folder.name))
    except InputError:
        if new:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return [out, *(folder / name for name in files)]


def _fill(folder: Path, files: dict[str, bytes]) -> None:
    """Put files into a folder that others may use too, after all of them have been written beside it."""
    made = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    try:
        made.mkdir()
        for name, data in files.items():
            (made / name).write_bytes(data)
        folder.mkdir(exist_ok=True)
        for name in files:
            (made / name).replace(folder / name)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _write(out: Path, text: str) -> None:
    data = text.encode()

    def write(path: Path) -> None:
        path.write_bytes(data)

    write_atomically(out, write)
