"""Tables that come with the package: CSV with a line of names; lines that begin with # are for people."""

from __future__ import annotations

import csv
from importlib.resources.abc import Traversable
from pathlib import Path


def read_csv(where: Path | Traversable) -> list[dict[str, str]]:
    """The rows of a table, every cell as text.

    Raises
    ------
    ValueError
        When a row has more or fewer cells than there are names.
    """
    names, *rows = csv.reader(line for line in where.read_text("utf-8").splitlines() if not line.startswith("#"))
    return [dict(zip(names, row, strict=True)) for row in rows]
