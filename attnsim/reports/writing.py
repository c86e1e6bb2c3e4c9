"""A report's files: one HTML page, or Markdown with a folder of pictures, written whole or not at all."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from attnsim.errors import InputError
from attnsim.plots.document import Document, html_text, markdown_text, pictures_of
from attnsim.writing import write_whole, writing

SUFFIXES = (".html", ".htm", ".md")


def check_out(out: Path) -> None:
    """Refuse a file that is no page."""
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
        write_whole(out, html_text(document))
        return [out]
    folder = out.with_name(f"{out.stem}_files")
    text, files = markdown_text(document, folder.name), {}
    for picture in pictures_of(document.sections):
        files[f"{picture.name}.png"] = picture.images[-1].data
        if picture.table:
            files[f"{picture.name}.csv"] = picture.table
    new = bool(files) and not folder.exists()
    try:
        with contextlib.ExitStack() as opened:  # nothing takes its name before all of it is written, the page last
            opened.enter_context(writing(out)).write_text(text, encoding="utf-8")
            if files:
                folder.mkdir(exist_ok=True)
            for name, data in files.items():
                opened.enter_context(writing(folder / name)).write_bytes(data)
    except InputError:
        if new:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return [out, *(folder / name for name in files)]
