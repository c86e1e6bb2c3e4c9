"""A user's prices: a sum of GPU figures, each times a number, ``sm.count*5 + l2.capacity*2/MiB``."""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnsim.errors import InputError, nearest, shown
from attnsim.models.hardware.area import area_mm2
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.sections import FIELDS, Interval
from attnsim.units import EXAMPLES, parse_quantity

AREA = "area"
_HOW = "write a sum of figures times a number, such as 'sm.count*5 + l2.capacity*2/MiB + area*0.3/mm2'"


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices per figure.

    Parameters
    ----------
    terms : tuple of (str, float)
        Figure, or "area", and its price per SI unit (area: per mm2).
    text : str
        As given.
    """

    terms: tuple[tuple[str, float], ...]
    text: str

    @classmethod
    def parse(cls, text: str) -> Prices:
        """Parse an expression; only sums of products are allowed, and nothing is evaluated."""
        terms = tuple(_term(part.strip(), text) for part in text.split("+"))
        names = [name for name, _ in terms]
        if len(set(names)) < len(names):
            raise InputError(f"--cost has {next(name for name in names if names.count(name) > 1)} twice; add them up")
        return cls(terms, text)

    def cost(self, gpu: Gpu) -> Interval:
        """Return the cost of a GPU in the currency of the prices; its range comes from the area alone.

        Raises
        ------
        InputError
            If the area has a price and the GPU's die is not known.
        """
        fixed = sum(gpu.get(name) * price for name, price in self.terms if name != AREA)
        per_mm2 = sum(price for name, price in self.terms if name == AREA)
        area = area_mm2(gpu) if per_mm2 else Interval(0.0, 0.0, 0.0)
        return Interval(*(fixed + per_mm2 * end for end in (area.low, area.typical, area.high)))


def _term(part: str, text: str) -> tuple[str, float]:
    """Parse a figure and its price per SI unit."""
    one, times, other = (word.strip() for word in part.partition("*"))
    if not times or "*" in other:
        raise InputError(f"--cost {shown(text)}: {shown(part)} is not FIGURE*NUMBER; {_HOW}")
    figure, price = (one, other) if one[:1].isalpha() else (other, one)
    if figure != AREA and figure not in FIELDS:
        raise InputError(f"--cost: {shown(figure)} is not known; {nearest(figure, (AREA, *FIELDS))}; {_HOW}")
    unit = "mm2" if figure == AREA else FIELDS[figure].unit
    number, _, per = (word.strip() for word in price.partition("/"))
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise InputError(f"--cost: {figure} costs {shown(number)}; allowed: a number from 0")
    if not per and unit != "1":
        wanted = EXAMPLES[unit].partition(" ")[2]
        raise InputError(f"--cost: {figure} is in {unit}; say per how much, such as {figure}*{number}/{wanted}")
    try:
        size = parse_quantity(f"1 {per.strip('()')}", unit) if per else 1.0
    except InputError as error:
        raise InputError(f"--cost: the price of {figure} is per {shown(per)}: {error}") from None
    return figure, value / size
