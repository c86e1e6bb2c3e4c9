"""Requests of a serving trace: how many tokens each brings and asks for, and when."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from typing import NamedTuple

from attnsim.errors import InputError, Taken, nearest, shown
from attnsim.models.question.words import cell_number

NAMES = {
    "arrival": ("arrival", "arrival_s", "time", "time_s"),
    "prompt": ("prompt", "prompt_tokens", "input", "input_tokens", "contexttokens", "context_tokens"),
    "output": ("output", "output_tokens", "generatedtokens", "generated_tokens"),
}
"""What the columns may be called."""
LONGEST = 1 << 24
LONGEST_S = 1e7
"""Some months: latest arrival, and longest rest of a step."""


class Request(NamedTuple):
    """One request.

    Parameters
    ----------
    arrival_s : float
    prompt, output : int
        Tokens that it brings, and that it asks for.
    """

    arrival_s: float
    prompt: int
    output: int


def read_requests(path: str | Path) -> tuple[Request, ...]:
    """The requests of a CSV file: columns ``prompt``, ``output`` and, where they do not come at once, ``arrival``.

    Raises
    ------
    InputError
        One line: the file, the line, what was given, what is allowed.

    Warns
    -----
    Taken
        Naming the columns that are not used.
    """
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            if not reader.fieldnames:
                raise InputError(f"{path} is empty; write columns prompt and output, and a line a request")
            columns = {name: _column(path, reader.fieldnames, name) for name in NAMES}
            lines = list(reader)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; give a CSV file with columns prompt and output") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as CSV: {error}") from None
    if unused := [name for name in reader.fieldnames if name not in columns.values()]:
        allowed = "; ".join(f"{ours}: {', '.join(names)}" for ours, names in NAMES.items())
        warnings.warn(f"{path}: not used: {', '.join(map(shown, unused))}; columns are {allowed}", Taken, stacklevel=2)
    if not lines:
        raise InputError(f"{path} has no requests; write columns prompt and output, and a line a request")
    found = []
    for number, line in enumerate(lines, 2):
        if None in line or None in line.values():
            wanted = len(reader.fieldnames)
            raise InputError(f"{path}, line {number} has more or fewer cells than there are columns; give {wanted}")
        cells = {name: (line.get(theirs) or "").strip() if theirs else "0" for name, theirs in columns.items()}
        values = {name: cell_number(cell, f"{path}, line {number}: {name}") for name, cell in cells.items()}
        for name in ("prompt", "output"):
            if not 1 <= values[name] <= LONGEST or values[name] != int(values[name]):
                raise InputError(
                    f"{path}, line {number}: {name} is {cells[name]}; allowed: whole numbers from 1 to {LONGEST}"
                )
        if not 0 <= values["arrival"] <= LONGEST_S:
            raise InputError(
                f"{path}, line {number}: arrival is {cells['arrival']}; allowed: seconds from 0 to {LONGEST_S:g}"
            )
        found.append(Request(values["arrival"], int(values["prompt"]), int(values["output"])))
    return tuple(sorted(found, key=lambda one: one.arrival_s))


def _column(path: str | Path, have: object, ours: str) -> str | None:
    theirs = {str(name).strip().lower(): str(name) for name in have}  # type: ignore[attr-defined]
    found = next((theirs[name] for name in NAMES[ours] if name in theirs), None)
    if found is None and ours != "arrival":
        raise InputError(
            f"{path} has no column {ours}; {nearest(ours, list(theirs))}; allowed: {', '.join(NAMES[ours])}"
        )
    return found
