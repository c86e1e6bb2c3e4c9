"""Figure of a GPU: declaration, unit, range, readers and source; and the uncertainty of constants."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from attnsim.errors import InputError, shown
from attnsim.units import EXAMPLES, format_quantity, parse_quantity

Kind = Literal["datasheet", "measured", "derived", "assumed"]
Reader = Literal["rate", "replay", "limit", "links", "nobody"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a GPU, with its source.

    Parameters
    ----------
    value
        The number in SI units (bytes, bytes/s, Hz, s, W) or per SM and clock.
    unit
        Its unit as in `Field.unit`: "B/s", "FLOP/clk", "clk", ...
    kind
        "datasheet" (vendor's document), "measured", "derived" (arithmetic on other figures) or
        "assumed" (a stated rule, or a value nobody could be cited for).
    source
        Citation, or the rule.
    """

    value: float
    unit: str
    kind: Kind
    source: str


@dataclass(frozen=True, slots=True)
class Field:
    """Declaration of one figure.

    Parameters
    ----------
    name
        Second part of its key: `bandwidth` of `hbm.bandwidth`.
    unit
        SI unit, "1" for plain numbers and "bool" for features.
    low, high
        Allowed range in SI units, ends included. Wide on purpose: hypothetical machines are the point, so the
        range only keeps out what is a slip (a bandwidth in bytes, a fraction above one).
    integer
        Whether the value must be whole.
    read
        "rate": the replay and the closed forms read it, and no tile depends on it. "replay": the replay alone reads it.
        "limit": it may decide which kernels run, and on what tile. "links": only several GPUs' collectives read it.
        "nobody": no prediction reads it.
    instead
        Of a figure that nobody reads: what is read in its place, in words.
    attribute
        Name within the section's dataclass: `bandwidth_bytes_per_s` of `hbm`.
    """

    name: str
    unit: str
    low: float
    high: float
    integer: bool
    read: Reader
    instead: str
    attribute: str = ""

    def allowed(self) -> str:
        """The allowed range in words: "1 GB/s to 10 PB/s"."""
        if self.unit == "bool":
            return "true or false"
        whole = "whole numbers from " if self.integer and self.unit == "1" else ""
        return f"{whole}{format_quantity(self.low, self.unit)} to {format_quantity(self.high, self.unit)}"

    def example(self) -> str:
        """Example of a value in the text form."""
        return "108" if self.integer and self.unit == "1" else EXAMPLES[self.unit]

    def show(self, value: float) -> str:
        """The value with its unit, as the files write it."""
        return show(value, self.unit)

    def stored(self, value: float) -> float | int | bool:
        """The value in the type that the section keeps it in."""
        return bool(value) if self.unit == "bool" else int(value) if self.integer else value

    def parse(self, given: object) -> float:
        """Parse "6 TB/s", a number in SI units or a truth value into an SI value.

        Raises
        ------
        InputError
            If the value is not allowed; the message lacks the key, which the caller knows.
        """
        if self.unit == "bool":
            if given in (True, False, "true", "false"):
                return float(given in (True, "true"))
            raise InputError(f"is {given!r}; allowed: true or false")
        if isinstance(given, bool) or not isinstance(given, (str, int, float)):
            raise InputError(f"is {shown(given)}; write a value such as {self.example()!r}")
        try:
            value = parse_quantity(given, self.unit) if isinstance(given, str) else float(given)
        except InputError as error:
            reason = str(error).split("' ", 1)[-1]  # the message starts with the given text
            raise InputError(f"is {shown(given)}, which {reason}; allowed: {self.allowed()}") from None
        except OverflowError:
            raise InputError(f"is too large a number; allowed: {self.allowed()}") from None
        self.check(value, given)
        return value

    def check(self, value: float, given: object) -> None:
        """Refuse a value outside the range, or a fraction of something countable."""
        if not self.low <= value <= self.high:  # also false for nan
            advice = "give a positive value" if value <= 0 < self.low else "give a value in this range"
            example = EXAMPLES[self.unit] if self.unit != "1" else ""
            such = f" such as {example!r}" if example else ""
            raise InputError(f"is {shown(given)}; allowed: {self.allowed()}; {advice}{such}")
        if self.integer and value != int(value):
            raise InputError(f"is {shown(given)}, not a whole number of {'bytes' if self.unit == 'B' else 'units'}")


def figure(
    name: str, unit: str, low: float, high: float, read: Reader = "rate", *, integer: bool = False, instead: str = ""
) -> Any:
    """Declare an attribute of a GPU's section as the figure `name`; parameters as for `Field`."""
    return dataclasses.field(metadata={"figure": Field(name, unit, low, high, integer, read, instead)})


def fields_of(section: type) -> dict[str, Field]:
    """The figures that a section declares, by name."""
    declared = {item.name: item.metadata["figure"] for item in dataclasses.fields(section)}
    return {one.name: dataclasses.replace(one, attribute=attribute) for attribute, one in declared.items()}


def show(value: float, unit: str) -> str:
    """A figure's value with its unit, as the files write it."""
    if unit == "bool":
        return "true" if value else "false"
    return format_quantity(value, unit)


_Ends = TypeVar("_Ends", bound="Interval")


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its uncertainty: low, typical and high in the same unit."""

    low: float
    typical: float
    high: float

    def over(self, divisor: float) -> Interval:
        """Divide low, typical and high by `divisor`."""
        return Interval(self.low / divisor, self.typical / divisor, self.high / divisor)

    def times(self: _Ends, other: Interval) -> _Ends:
        """Multiply low, typical and high by those of `other`."""
        return replace(
            self, low=self.low * other.low, typical=self.typical * other.typical, high=self.high * other.high
        )


@dataclass(frozen=True, slots=True)
class Constant(Interval):
    """A constant of a data file.

    Parameters
    ----------
    unit : str
        In words: "pJ/FLOP", "of TDP", "mm2 per stack".
    kind : {"datasheet", "published", "derived", "assumed"}
    """

    unit: str
    kind: str
    source: str


def propagated(figure: Callable[[Mapping[str, float]], float], constants: Mapping[str, Interval]) -> Interval:
    """Propagate the intervals of constants to a figure: each constant moves to its ends while the others stay typical.

    Errors of the constants are taken as independent: their effects add in quadrature, separately below and above the
    typical figure.
    """
    values = {name: one.typical for name, one in constants.items()}
    typical = figure(values)
    moved = [
        [figure(values | {name: end}) - typical for end in (one.low, one.high)]
        for name, one in constants.items()
        if one.low < one.high
    ]
    down = math.hypot(*(max(0.0, -min(ends)) for ends in moved))
    up = math.hypot(*(max(0.0, *ends) for ends in moved))
    return Interval(typical - down, typical, typical + up)
