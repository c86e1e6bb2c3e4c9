"""Files written atomically."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from attnsim.errors import InputError

TEMPORARY = ".tmp"
"""Ending of the name of a file that is not whole yet."""


@contextlib.contextmanager
def writing(path: Path, *, on_failure: str = "") -> Iterator[Path]:
    """Write a file atomically: to a temporary file in the same folder, which is renamed at the end.

    Parameters
    ----------
    path : Path
        A link stays a link, and a file that is replaced keeps its permissions.
    on_failure : str
        Advice for the reader of the message.

    Yields
    ------
    Path
        The file to write to. An error in the block leaves `path` unchanged.

    Raises
    ------
    InputError
        If it cannot be written, including for a full disk.
    """
    target = path.resolve()
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}{TEMPORARY}")
    try:
        try:
            temporary.touch(exist_ok=False)
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            if target.exists():
                shutil.copymode(target, temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        advice = {
            errno.ENOENT: "give a folder that exists",
            errno.ENOSPC: "free some space and give the same command again",
        }.get(error.errno or 0, on_failure)
        reason = f"{error.strerror or error}{'; ' if advice else ''}{advice}"
        raise InputError(f"{path} cannot be written: {reason}") from None


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file of known content, UTF-8 if it is text, as :func:`writing` does."""
    with writing(path) as file:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
