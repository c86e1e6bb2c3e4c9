"""Version of the code that an answer was computed with."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib import metadata, resources
from pathlib import Path

_SUFFIXES = (".py", ".toml", ".yaml", ".csv")
_APART = ("models/calibrations", "validation/measurements")
"""Fitted numbers and measurements, which have digests of their own."""


def version() -> str:
    """Version of the installed package, as in ``attnsim.__version__``."""
    try:
        return metadata.version("attnsim")
    except metadata.PackageNotFoundError:
        return "0+unknown"  # run from a source tree that is not installed


@lru_cache(maxsize=2)
def code_digest(*packages: str) -> str:
    """SHA-256 of the sources and tables of packages of attnsim, without fitted numbers and measurements."""
    found = hashlib.sha256()
    root = Path(str(resources.files("attnsim")))
    for package in packages:
        for path in sorted((root / package).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.suffix in _SUFFIXES and (path.suffix == ".py" or not name.startswith(_APART)):
                found.update(f"{name}\n".encode())
                found.update(path.read_bytes())
    return found.hexdigest()
