"""Numbers as people read them: three significant digits, a unit that fits, never a power of ten."""

from __future__ import annotations

from math import floor, log10

NOTHING = "-"

_TINY = 0.0001


_CLOCK_BY = {"given": "as given", "boost": "boost", "power": "what the power limit allows"}


def clock_text(clock_hz: float, by: str) -> str:
    """A call's SM clock and what set it: "1654 MHz (what the power limit allows)"."""
    return f"{clock_hz / 1e6:.0f} MHz ({_CLOCK_BY[by]})"


def time_text(seconds: float | None) -> str:
    """Three significant digits and a unit: "4.33 ms"."""
    if seconds is None:
        return NOTHING
    scale, unit = _time_scale(seconds)
    return f"{number(seconds / scale)} {unit}"


def interval_text(low: float | None, high: float | None, around: float | None) -> str:
    """The interval in the unit of the time it surrounds: "3.9-4.8"."""
    if low is None or high is None or around is None:
        return NOTHING
    scale, _ = _time_scale(around)
    return f"{number(low / scale)}-{number(high / scale)}"


def _time_scale(seconds: float) -> tuple[float, str]:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale:
            return scale, unit
    return 1e-9, "ns"


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits, thousands separated and never in powers of ten."""
    if value is None:
        return NOTHING
    if abs(value) < _TINY:
        return "0" if value == 0 else f"<{_TINY}"
    decimals = digits - 1 - floor(log10(abs(value)))
    return f"{round(value, decimals):,.{max(0, min(decimals, 9))}f}"


def times_text(ratio: float | None) -> str:
    """A speedup: "8.60x"."""
    return NOTHING if ratio is None else f"{number(ratio)}x"
