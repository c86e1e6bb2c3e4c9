"""A value and how far off it may be, and where a constant of that kind comes from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

_Ends = TypeVar("_Ends", bound="Interval")


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and how far off it may be; all three in one unit."""

    low: float
    typical: float
    high: float

    def over(self, divisor: float) -> Interval:
        """Every end divided."""
        return Interval(self.low / divisor, self.typical / divisor, self.high / divisor)

    def times(self: _Ends, other: Interval) -> _Ends:
        """Each end by that of the other."""
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
    source : str
    """

    unit: str
    kind: str
    source: str


def propagated(figure: Callable[[Mapping[str, float]], float], constants: Mapping[str, Interval]) -> Interval:
    """A figure of several constants, each moved to its ends while the others stay typical.

    Errors of the constants are taken as independent: their effects add in quadrature, those below and those above the
    typical figure apart.
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
