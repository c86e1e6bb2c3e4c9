"""What was changed in a hypothetical GPU, and how a person writes a new value: "6 TB/s", "2x"."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from attnsim.models.errors import InputError, shown
from attnsim.models.hardware.figure import Field, show

TIMES = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*[x×]\s*")


@dataclass(frozen=True, slots=True)
class Change:
    """A figure that was changed, and those that moved along; as text, the sentence that says so.

    Parameters
    ----------
    key
        `hbm.bandwidth`.
    old, new
        SI units.
    unit
        Of both.
    follows
        Changes that follow this one.
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
        """The figures that are not what they were."""
        return {self.key, *(one.key for one in self.follows)}

    def __str__(self) -> str:
        follows = [
            f"; {one.key} follows: {show(one.new, one.unit)}, was {show(one.old, one.unit)}" for one in self.follows
        ]
        return f"{self.setting} (was {show(self.old, self.unit)}{''.join(follows)})"


def told(changes: Iterable[Change]) -> str:
    """Changes in one line."""
    return "; ".join(map(str, changes))


def new_value(field: Field, old: float, given: object) -> float:
    """The value that a person gives in place of `old`: itself, or so many times the old one.

    Raises
    ------
    InputError
        Without the key, as `Field.parse`.
    """
    match = TIMES.fullmatch(given) if isinstance(given, str) else None
    if match is None:
        return field.parse(given)
    text = match[0]
    if field.unit == "bool":
        raise InputError(f"is {shown(text)}; allowed: true or false")
    if old == 0:
        raise InputError(f"is {shown(text)}, but the present value is 0; give a value: {field.allowed()}")
    new = float(match[1]) * old
    if not math.isfinite(new):
        raise InputError(f"is {shown(text)}; allowed: {field.allowed()}")
    if field.integer:
        new = float(round(new))  # "1.05x" of 108 SMs is a fair question; the record shows the 113 it became
    field.check(new, f"{text.strip()} = {field.show(new)}")
    return new
