"""The exception for bad input: a single line saying what was given, what is allowed, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

QUOTED = 200
"""Most characters of the input in a message."""


class InputError(ValueError):
    """Bad input from a person: a spec file, a shape, a table row or a flag.

    The message is one line and self-contained; the command line prints it and exits with code 2. No word of it, such as
    a quoted input, has more than `QUOTED` characters.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(" ".join(map(shortened, message.split(" "))))


def shortened(given: str) -> str:
    """At most `QUOTED` characters of the text; a quotation mark at its end is kept."""
    end = given[-1] if given[-1:] in ("'", '"') else ""
    return given if len(given) <= QUOTED else f"{given[: QUOTED - 3 - len(end)]}...{end}"


class Taken(UserWarning):
    """Warning about the interpretation of an ambiguous word; the command line prints it as a line on stderr."""


def nearest(given: str, names: Iterable[str]) -> str:
    """Text naming the closest of `names`: "nearest: hbm.bandwidth, l2.bandwidth"."""
    known = list(names)
    # Also compare by parts: 'bandwidth' alone, 'clock', 'a100' or 'gb300-nvl72' should find their relatives.
    close = difflib.get_close_matches(given, known, n=3, cutoff=0.6)
    parts = _parts(given)
    related = [name for name in known if given and (parts <= _parts(name) or _parts(name) <= parts)]
    picks = list(dict.fromkeys([*related, *close]))[:4] or difflib.get_close_matches(given, known, n=3, cutoff=0.0)
    return f"nearest: {', '.join(picks)}"


def some(names: Iterable[str], more: str, most: int = 6) -> str:
    """The first of many names, and the number of the others; `more` says where they are listed."""
    known = list(names)
    left = len(known) - most
    return ", ".join(known) if left < 2 else f"{', '.join(known[:most])} and {left} more ({more})"


def _parts(name: str) -> set[str]:
    return set(name.replace("-", ".").split("."))


def shown(given: object) -> str:
    """A person's input on one line, shortened for a message."""
    text = " ".join(repr(given).split())
    return text if len(text) <= 70 else f"{text[:66]}...'"
