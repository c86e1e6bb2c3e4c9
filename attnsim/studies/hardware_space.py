"""The space of a hardware search: varied figures, limits, and a user's prices."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from attnsim.errors import InputError, nearest, shown
from attnsim.models.hardware.area import area_mm2
from attnsim.models.hardware.gpu import TIMES, Gpu, decimal, new_value
from attnsim.models.hardware.sections import FIELDS, Interval, changeable_alone
from attnsim.models.hardware.units import RESULTS
from attnsim.units import EXAMPLES, parse_quantity

FINE = 64
"""Number of steps of a range without a given step, if its figure is no count."""
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge}


@dataclass(frozen=True, slots=True)
class Range:
    """A figure and its allowed values.

    Parameters
    ----------
    values : tuple of float
        Ascending, SI units.
    """

    key: str
    values: tuple[float, ...]

    @classmethod
    def parse(cls, text: str, gpu: Gpu) -> Range:
        """Read ``sm.count=100:200`` or ``sm.shared_memory=96KiB:256KiB:32KiB`` (low : high : step), or a list.

        Values may be multiples of the GPU's value: ``l2.bandwidth=1x:2x``.

        Without a step, counts vary in steps of one and other figures in `FINE` steps. ``hbm.bandwidth=3TB/s,6TB/s``
        lists values.
        """
        key, equals, given = (part.strip() for part in text.partition("="))
        if not (key and equals and given):
            raise InputError(f"--vary {shown(text)} is not KEY=LOW:HIGH[:STEP]; write --vary sm.count=100:200")
        field = changeable_alone(key)
        if field.unit == "bool":
            raise InputError(f"--vary {key}: a feature does not vary; give a figure such as sm.count")
        parts = given.split(":") if ":" in given else given.split(",")
        ends, steps = (parts[:2], parts[2:]) if ":" in given else (parts, [])
        try:
            old = gpu.get(key)
            numbers = [new_value(field, old, part.strip(), of_range=True) for part in ends]
            step = _step(steps[0], field.unit, old) if steps else 1.0
        except InputError as error:
            raise InputError(f"--vary {key} {error}") from None
        if ":" not in given:
            return cls(key, tuple(sorted(set(numbers))))
        low, high = numbers
        if len(steps) > 1 or low > high or step <= 0:
            raise InputError(f"--vary {shown(text)}: give LOW:HIGH or LOW:HIGH:STEP, LOW not above HIGH, STEP above 0")
        if not steps and not (field.integer and field.unit == "1"):
            step = (high - low) / FINE
        if step == 0:
            return cls(key, (low,))
        number = math.floor((high - low + 0.5 * field.integer) / step + 1e-9)
        if number > 1_000_000:
            raise InputError(f"--vary {shown(text)} has {number} values; allowed: a million; give a larger step")
        values = [decimal(low + step * i) for i in range(number + 1)]
        return cls(key, tuple(dict.fromkeys(min(high, float(round(one))) if field.integer else one for one in values)))


def _step(text: str, unit: str, old: float) -> float:
    """Parse a step in the figure's unit, or in multiples of its present value."""
    match = TIMES.fullmatch(text)
    return float(match[1]) * old if match else parse_quantity(text, unit)


@dataclass(frozen=True, slots=True)
class Limit:
    """An upper or lower limit for machines: ``power<=700 W``, ``area<=1.1x``.

    Parameters
    ----------
    name : str
        A name of `RESULTS`, or a figure's key.
    sign : {"<=", ">="}
    value : float
        SI units, or a multiple of the unchanged machine's value.
    text : str
        As given.
    times : bool
        True if `value` is a multiple.
    """

    name: str
    sign: str
    value: float
    text: str
    times: bool = False

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Read a limit."""
        match = re.fullmatch(r"\s*([a-z0-9_.]+)\s*(<=|>=)\s*(.+?)\s*", text)
        if match is None:
            raise InputError(f"--limit {shown(text)} is not NAME<=VALUE or NAME>=VALUE; write --limit 'power<=700 W'")
        name, sign, given = match.groups()
        check_name(name, "--limit")
        multiple = TIMES.fullmatch(given)
        try:
            if multiple:
                value = float(multiple[1])
            else:
                value = parse_quantity(given, RESULTS[name]) if name in RESULTS else FIELDS[name].parse(given)
        except InputError as error:
            raise InputError(f"--limit {name} {error}; or a multiple of the unchanged GPU's such as 1.1x") from None
        if name in RESULTS and value <= 0:
            raise InputError(f"--limit {shown(text)}: every machine's {name} is above 0; give a value above 0")
        return cls(name, sign, value, f"{name} {sign} {given}", times=bool(multiple))

    def over(self, unchanged: float) -> Limit:
        """Return the limit with a multiple of the unchanged machine's result turned into a value."""
        if not self.times:
            return self
        value = self.value * unchanged
        text = f"{value:.4g} {RESULTS[self.name]}" if self.name in RESULTS else FIELDS[self.name].show(value)
        return replace(self, value=value, text=f"{self.text} ({text})", times=False)

    def excess(self, value: float) -> float:
        """Return the relative excess of a value over the limit, 0 within it."""
        if _OPERATORS[self.sign](value, self.value):
            return 0.0
        return abs(value - self.value) / max(abs(self.value), 1e-30)


def check_name(name: str, flag: str) -> None:
    """Raise InputError for a name that is neither a result nor a figure."""
    if name not in RESULTS and name not in FIELDS:
        raise InputError(f"{flag} {shown(name)} is not known; {nearest(name, (*RESULTS, *FIELDS))}")


@dataclass(frozen=True, slots=True)
class Space:
    """The machines of a search.

    Parameters
    ----------
    gpu : Gpu
        The unchanged GPU.
    """

    gpu: Gpu
    ranges: tuple[Range, ...]
    limits: tuple[Limit, ...]

    @classmethod
    def read(cls, gpu: Gpu, vary: Sequence[str], limits: Sequence[str]) -> Space:
        """Parse the space from text.

        Raises
        ------
        InputError
            For a range or limit that cannot be read, or if a limit leaves no value of a figure.
        """
        ranges = tuple(Range.parse(text, gpu) for text in vary)
        keys = [one.key for one in ranges]
        if not keys:
            raise InputError("nothing varies; give --vary KEY=LOW:HIGH, such as --vary sm.count=100:200")
        if len(set(keys)) < len(keys):
            raise InputError(f"--vary {next(key for key in keys if keys.count(key) > 1)} is given twice; keep one")
        read = [Limit.parse(text) for text in limits]
        known = tuple(one.over(gpu.get(one.name)) if one.name in FIELDS else one for one in read)
        narrowed = tuple(_narrowed(one, known) for one in ranges)
        for limit in known:
            if limit.name in FIELDS and limit.name not in keys and limit.excess(gpu.get(limit.name)):
                value = FIELDS[limit.name].show(gpu.get(limit.name))
                raise InputError(f"--limit {limit.text}: {gpu.id} has {value} and it does not vary; vary or --set it")
        return cls(gpu, narrowed, known)

    @property
    def size(self) -> int:
        """Number of machines."""
        return math.prod(len(one.values) for one in self.ranges)

    def values(self, index: Sequence[int]) -> dict[str, float]:
        """Return the figures of a machine, given its index in each range."""
        return {one.key: one.values[at] for one, at in zip(self.ranges, index, strict=True)}

    def machine(self, index: Sequence[int]) -> Gpu:
        """Return the machine at an index.

        Raises
        ------
        InputError
            If figures contradict each other.
        """
        return with_figures(self.gpu, self.values(index))


def with_figures(gpu: Gpu, values: Mapping[str, float]) -> Gpu:
    """Return the GPU with these figures changed, in this order.

    Raises
    ------
    InputError
        If figures contradict each other.
    """
    for key, value in values.items():
        gpu = gpu.replace(key, value)
    return gpu


def _narrowed(one: Range, limits: Sequence[Limit]) -> Range:
    own = [limit for limit in limits if limit.name == one.key]
    values = tuple(value for value in one.values if not any(limit.excess(value) for limit in own))
    if not values:
        raise InputError(f"--limit {own[0].text} leaves no value of --vary {one.key}; widen one of them")
    return Range(one.key, values)


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
