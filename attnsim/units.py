"""Quantities with units: "3.35 TB/s" to 3.35e12 and back.

The common units are a table here, because importing pint costs 0.3 s and reading one GPU file should not;
anything the table does not know ("30 Gbit/s", "0.5 GB/ms") goes to pint.
"""

from __future__ import annotations

import functools
import math
import re
from typing import Any, NamedTuple

from attnsim.errors import InputError


class _Unit(NamedTuple):
    dimension: str  # one of EXAMPLES' keys
    exponent: int  # power of ten to the SI unit
    binary: int  # bytes per unit where the prefix is a power of 1024, else 0


# One example per dimension, used in messages; the keys are all the dimensions. "1" is a plain number.
EXAMPLES = {
    "1": "0.9",
    "B": "228 KiB",
    "B/s": "3.35 TB/s",
    "Hz": "1410 MHz",
    "s": "2.6 us",
    "W": "700 W",
    "J": "20 mJ",
    "clk": "291 clk",
    "B/clk": "128 B/clk",
    "FLOP/clk": "2048 FLOP/clk",
    "op/clk": "16 op/clk",
    "mm2": "900 mm2",
    "USD": "2000 USD",
}

# Units in which only one prefix makes sense: a number without a unit can only mean this.
_BARE_NUMBER_ALLOWED = {"1", "clk", "B/clk", "FLOP/clk", "op/clk", "USD"}

_PREFIXES = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}


def _unit_table() -> dict[str, _Unit]:
    table = {"": _Unit("1", 0, 0), "%": _Unit("1", -2, 0)}
    for prefix, exponent in _PREFIXES.items():
        table[f"{prefix}B"] = _Unit("B", exponent, 0)
        table[f"{prefix}B/s"] = _Unit("B/s", exponent, 0)
        table[f"{prefix}Hz"] = _Unit("Hz", exponent, 0)
    for prefix, power in _BINARY.items():
        table[f"{prefix}B"] = _Unit("B", 0, 2**power)
        table[f"{prefix}B/s"] = _Unit("B/s", 0, 2**power)
    for prefix, exponent in {"": 0, "m": -3, "u": -6, "µ": -6, "μ": -6, "n": -9, "p": -12}.items():
        table[f"{prefix}s"] = _Unit("s", exponent, 0)
    for prefix, exponent in {"": 0, "k": 3, "m": -3, "u": -6}.items():
        table[f"{prefix}W"] = _Unit("W", exponent, 0)
        table[f"{prefix}J"] = _Unit("J", exponent, 0)
    table |= {name: _Unit("mm2", 0, 0) for name in ("mm2", "mm^2", "mm²")} | {"USD": _Unit("USD", 0, 0)}
    for name in ("clk", "cycle", "cycles"):
        table[name] = _Unit("clk", 0, 0)
        table[f"B/{name}"] = _Unit("B/clk", 0, 0)
        for flop in ("FLOP", "FLOPs", "flop", "flops"):
            table[f"{flop}/{name}"] = _Unit("FLOP/clk", 0, 0)
        for op in ("op", "ops"):
            table[f"{op}/{name}"] = _Unit("op/clk", 0, 0)
    return table


_UNITS = _unit_table()
# Prefixes a person would use: GPU clocks are spoken of in MHz, 1410 MHz rather than 1.41 GHz.
_WRITTEN = {
    "B": ["B", "kB", "MB", "GB", "TB", "PB", "KiB", "MiB", "GiB", "TiB"],
    "B/s": ["B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s", "EB/s"],
    "Hz": ["Hz", "kHz", "MHz"],
    "s": ["ps", "ns", "us", "ms", "s"],
    "W": ["W"],
}
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:[eE]([+-]?\d{1,4}))?\s*(.*?)\s*", re.DOTALL)


def parse_quantity(text: str, unit: str) -> float:
    """Read a number with its unit as an SI value.

    Parameters
    ----------
    text
        "3.35 TB/s", "228 KiB", "1410 MHz", "2.6us", "2048 FLOP/clk". GB is 1e9 bytes, GiB 2**30. A unit
        may be left out only where no prefix is in use (plain numbers, clk, and rates per clk).
    unit
        The SI unit wanted, a key of `EXAMPLES`: "B/s".

    Raises
    ------
    InputError
        Not a number, no unit, an unknown unit, or a unit of another dimension.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise InputError(f"{_shown(text)} is not {_a_quantity(unit)}")
    mantissa, power, name = match.groups()
    exponent = int(power or 0)
    if name in ("KB", "KB/s"):
        raise InputError(f"{_shown(text)} is ambiguous; write KiB for 1024 bytes or kB for 1000")
    known = _UNITS.get(name)
    if known is None:
        value = _parse_with_pint(text, float(f"{mantissa}e{exponent}"), name, unit)
    else:
        bare = name == "" and unit in _BARE_NUMBER_ALLOWED
        if name == "" and not bare:
            raise InputError(f"{_shown(text)} has no unit; write {_a_quantity(unit)}")
        if known.dimension != unit and not bare:
            raise InputError(f"{_shown(text)} is in {name or 'no unit'}, not {_a_quantity(unit)}")
        # Shifting the decimal exponent keeps "2.6 us" exactly 2.6e-06, which 2.6 * 1e-6 is not.
        value = float(f"{mantissa}e{exponent + known.exponent}") * (known.binary or 1)
    if not math.isfinite(value):
        raise InputError(f"{_shown(text)} is not finite; write {_a_quantity(unit)}")
    return value


def format_quantity(value: float, unit: str) -> str:
    """Write an SI value with the prefix a person would use: 3.35e12, "B/s" gives "3.35 TB/s".

    Reading the text back with `parse_quantity` gives the same value exactly.
    """
    if unit not in _WRITTEN:
        return _number(value) if unit == "1" else f"{_number(value)} {unit}"
    near = [name for name in _WRITTEN[unit] if 1 <= abs(value) / _factor(name) < 10_000]
    sensible = _exact(value, unit, near) or _exact(value, unit, _WRITTEN[unit])
    if not sensible:
        return f"{value!r} {unit}"
    # The shortest exact text: 228 KiB rather than 233.472 kB, 80 GB rather than 78125000 KiB.
    return min(sensible, key=lambda pair: (len(pair[0]), -_factor(pair[1])))[0]


def _exact(value: float, unit: str, names: list[str]) -> list[tuple[str, str]]:
    """The value as text in each of some units, where reading it back gives the same."""
    candidates = [(f"{_number(value / _factor(name))} {name}", name) for name in names]
    return [(text, name) for text, name in candidates if parse_quantity(text, unit) == value]


def _factor(name: str) -> float:
    unit = _UNITS[name]
    return float(unit.binary or 10.0**unit.exponent)


def _number(value: float) -> str:
    return next((text for text in (f"{value:.12g}", f"{value:.15g}") if float(text) == value), f"{value!r}")


def _shown(text: str) -> str:
    short = text if len(text) <= 60 else f"{text[:57]}..."
    return repr(short)


def _a_quantity(unit: str) -> str:
    return "a plain number such as '0.9'" if unit == "1" else f"a value in {unit} such as {EXAMPLES[unit]!r}"


@functools.lru_cache(maxsize=1)
def _pint_registry() -> Any:
    import pint

    registry: Any = pint.UnitRegistry(cache_folder=None)
    registry.define("clk = [clock] = cycle_ = clks")
    registry.define("FLOP = [floating_point_operation] = FLOP = FLOPs = flop = flops")
    registry.define("op = [operation] = op = ops")
    return registry


def _parse_with_pint(text: str, number: float, name: str, unit: str) -> float:
    # pint evaluates arithmetic: only letters and the signs of a product of units may reach it.
    if len(name) > 40 or not re.fullmatch(r"[A-Za-zµμ][A-Za-zµμ0-9/*^ ]*", name):
        raise InputError(f"{_shown(text)} has no known unit; write {_a_quantity(unit)}")
    registry = _pint_registry()
    names = {
        "1": "",
        "B": "byte",
        "B/s": "byte/second",
        "s": "second",
        "W": "watt",
        "J": "joule",
        "Hz": "hertz",
        "mm2": "mm^2",
    }
    wanted = names.get(unit, unit).replace("B/clk", "byte/clk")
    try:
        quantity = registry.Quantity(number, name)
        return float(quantity.to(wanted).magnitude)
    except Exception as error:  # pint raises its own, tokenizer's and arithmetic errors on odd unit names
        if type(error).__name__ == "DimensionalityError":
            raise InputError(f"{_shown(text)} is in {name}, not {_a_quantity(unit)}") from None
        raise InputError(f"{_shown(text)} has the unknown unit {_shown(name)}; write {_a_quantity(unit)}") from None
