"""Cache of compiled kernels on disk: ``$XDG_CACHE_HOME/attnsim/kernels``.

An entry is one file, named by the hash of everything that decides its content. It is written under a temporary name and
then renamed, so that several processes may write the same entry. An unreadable entry counts as absent.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import os
import time
import zlib
from pathlib import Path

from attnsim.errors import InputError
from attnsim.ptx.nvrtc import Compiled
from attnsim.writing import write_whole

KEPT_DAYS = 60
""":func:`prune` removes entries that were not read for so many days."""


def folder() -> Path:
    """Return the folder of the cache (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return home / "attnsim" / "kernels"


def _path(key: str) -> Path:
    return folder() / f"{key}.json.gz"


def read(key: str) -> Compiled | None:
    """The entry of a key, if there is a readable one."""
    path = _path(key)
    try:
        entry = json.loads(gzip.decompress(path.read_bytes()))
        found = Compiled(str(entry["ptx"]), base64.b64decode(entry["cubin"], validate=True), str(entry["log"]))
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return found


def write(key: str, found: Compiled) -> None:
    """Keep an entry; a folder that cannot be written is no reason to fail."""
    entry = {"ptx": found.ptx, "cubin": base64.b64encode(found.cubin).decode(), "log": found.log}
    path = _path(key)
    with contextlib.suppress(OSError, InputError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, gzip.compress(json.dumps(entry).encode(), compresslevel=4, mtime=0))


def prune() -> int:
    """Remove entries that have not been read for :data:`KEPT_DAYS` days; returns how many."""
    oldest = time.time() - KEPT_DAYS * 86400
    removed = 0
    with contextlib.suppress(OSError):
        for path in folder().glob("*.json.gz"):
            if path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)
                removed += 1
    return removed
