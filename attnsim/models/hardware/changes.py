"""Changes of a hypothetical GPU, and the text form of new values: "6 TB/s", "2x"."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from attnsim.by_hand import by_hand
from attnsim.errors import InputError, shown
from attnsim.models.hardware.figure import Field, show

FAR = by_hand(
    4.0,
    "a slip such as 1.5 for 1.5x is further off than that from every rate, latency and count of SMs of a real GPU; who "
    "wants a larger change writes its unit",
)
"""Ratio of a number without a unit to the present value, or its inverse, above which the number is taken for a slip."""
PERCENT = re.compile(r"\s*([+-]\d+(?:\.\d*)?)\s*%\s*")
BARE = re.compile(r"\s*(?:\d+(?:\.\d*)?|\.\d+)\s*")
TIMES = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*[x×]\s*")


@dataclass(frozen=True, slots=True)
class Change:
    """A changed figure, with those that changed along with it; its text is a sentence.

    Parameters
    ----------
    key
        `hbm.bandwidth`.
    old, new
        Values in SI units.
    unit
        Unit of both.
    follows
        Changes of figures that follow this one.
    """

    key: str
    old: float
    new: float
    unit: str
    follows: tuple[Change, ...] = ()

    @property
    def setting(self) -> str:
        """The new value alone: "hbm.bandwidth = 6 TB/s"."""
        return f"{self.key} = {show(self.new, self.unit)}"

    @property
    def keys(self) -> set[str]:
        """All figures whose values changed."""
        return {self.key, *(one.key for one in self.follows)}

    def __str__(self) -> str:
        follows = [
            f"; {one.key} follows: {_short(one.new, one.unit)}, was {_short(one.old, one.unit)}" for one in self.follows
        ]
        return f"{self.setting} (was {show(self.old, self.unit)}{''.join(follows)})"


def changes_text(changes: Iterable[Change]) -> str:
    """Changes in one line."""
    return "; ".join(map(str, changes))


def decimal(value: float) -> float:
    """The value rounded to 12 digits, without the error of binary multiplication: 1.1 times 1590 MHz is 1749 MHz."""
    return float(f"{value:.12g}")


def new_value(field: Field, old: float, given: object, *, of_range: bool = False) -> float:
    """Parse the new value for a figure that is `old`: a value, or a factor such as "2x".

    In text, a number without a unit is refused if it differs from the present value by more than a factor `FAR`; "=2"
    is exactly 2. The end of a range (`of_range`) may be any value.

    Raises
    ------
    InputError
        If the value is not allowed; the message lacks the key, as in `Field.parse`.
    """
    if isinstance(given, str) and given.lstrip().startswith("="):
        return field.parse(given.lstrip()[1:])
    if isinstance(given, str) and (more := PERCENT.fullmatch(given)):
        raise InputError(f"is {shown(given)}; write {1 + float(more[1]) / 100:g}x, so many times what it is")
    match = TIMES.fullmatch(given) if isinstance(given, str) else None
    if match is None:
        new = field.parse(given)
        if not of_range and isinstance(given, str) and BARE.fullmatch(given) and not near(new, old):
            raise InputError(_slip(field, old, given.strip()))
        return new
    text = match[0]
    if field.unit == "bool":
        raise InputError(f"is {shown(text)}; allowed: true or false")
    if old == 0:
        raise InputError(f"is {shown(text)}, but the present value is 0; give a value: {field.allowed()}")
    new = decimal(float(match[1]) * old)
    if not math.isfinite(new):
        raise InputError(f"is {shown(text)}; allowed: {field.allowed()}")
    if field.integer:
        new = float(round(new))  # "1.05x" of 108 SMs is allowed; the record shows the resulting 113
    field.check(new, f"{text.strip()} = {field.show(new)}")
    return new


Marks = Mapping[tuple[str, tuple[Change, ...]], str]
"""Suffix of a GPU's name in a table or a picture, by its id and changes."""


def marks(machines: Iterable[tuple[str, tuple[Change, ...]]]) -> Marks:
    """Suffixes: a star for a single changed GPU, or a letter for each of several: "h100-sxm5-80gb A"."""
    changed = [one for one in dict.fromkeys(machines) if one[1]]
    if len(changed) == 1:
        return {changed[0]: "*"}
    letters = string.ascii_uppercase
    return {one: f" {letters[at % len(letters)] * (1 + at // len(letters))}" for at, one in enumerate(changed)}


def _short(value: float, unit: str) -> str:
    """A figure's value with four significant digits; one that follows has twelve, which say nothing more."""
    return re.sub(r"\d+\.\d+", lambda found: f"{float(found[0]):.{max(4, found[0].index('.'))}g}", show(value, unit))


def near(new: float, old: float) -> bool:
    """Return whether a number without a unit is plausible as a new value."""
    return new == 0 or old == 0 or 1 / FAR <= new / old <= FAR


def _slip(field: Field, old: float, given: str) -> str:
    meant = f"={given}" if field.unit == "1" else f"{given} {field.unit}"
    return (
        f"is {shown(given)}, more than {FAR:g} times off the present {field.show(old)}; write {given}x for a "
        f"multiple of it, or '{meant}' for exactly that"
    )
