"""Numbers for people: three significant digits, a suitable unit, never a power of ten."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10

NOTHING = "-"

_TINY = 0.0001


_CLOCK_BY = {
    "given": "as given",
    "boost": "boost",
    "load": "under load",
    "power": "what the power limit allows",
    "least": "the lowest; the power limit asks for less",
}


_LAUNCHED = {
    "graph": "launched in a CUDA graph",
    "stream": "launched in a stream",
    "host": "launched from Python",
    "kernel": "launches not counted",
}


def launched_text(launch: str) -> str:
    """How kernels are launched: "launched in a CUDA graph"."""
    return _LAUNCHED[launch]


def clock_text(clock_hz: float, by: str) -> str:
    """SM clock of a call and its origin: "1654 MHz (what the power limit allows)"."""
    return f"{clock_hz / 1e6:.0f} MHz ({_CLOCK_BY[by]})"


def time_text(seconds: float | None) -> str:
    """Three significant digits and a unit: "4.33 ms"."""
    if seconds is None:
        return NOTHING
    scale, unit = _time_scale(seconds)
    return f"{number(seconds / scale)} {unit}"


def ratio_text(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """A speedup with its range, in as many decimals: "1.14x (1.08-1.19)"; alone where the range is no wider."""
    text = times_text(value)
    if value is None or low is None or high is None:
        return text
    ends = ends_text(value, low, high)
    return text if ends[0] == ends[1] else f"{text} ({'-'.join(ends)})"


def ends_text(value: float, low: float, high: float) -> tuple[str, str]:
    """The ends of a speedup's range, in as many decimals as it has: "1.08", "1.19"."""
    decimals = len(number(value).partition(".")[2])
    return f"{low:,.{decimals}f}", f"{high:,.{decimals}f}"


def interval_text(low: float | None, high: float | None, around: float | None) -> str:
    """The interval in the unit of the time inside it: "3.9-4.8"."""
    if low is None or high is None or around is None:
        return NOTHING
    scale, _ = _time_scale(around)
    return f"{number(low / scale)}-{number(high / scale)}"


def spread_text(low: float, high: float) -> str:
    """Two factors around 1: "±6 %", or "-18 to +22 %" if the sides differ."""
    down, up = 100 * (1 - low), 100 * (high - 1)
    return f"±{up:.0f} %" if round(down) == round(up) else f"-{down:.0f} to +{up:.0f} %"


def beyond_text(name: str, value: float, low: float, high: float) -> str:
    """A number's distance from what was measured: "seq_q of 32,768 is twice the largest that was measured, 16,384"."""
    if value > high:
        times = value / high
        many = "twice" if 1.95 <= times < 2.05 else f"{times:.0f} times" if times >= 9.5 else f"{times:.2g} times"
        return f"{name} of {value:,} is {many} the largest that was measured, {high:,}"
    share = "half" if 0.495 <= value / low < 0.505 else f"{number(100 * value / low, 2)} %"
    return f"{name} of {value:,} is {share} of the smallest that was measured, {low:,}"


def _time_scale(seconds: float) -> tuple[float, str]:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale:
            return scale, unit
    return 1e-9, "ns"


def number(value: float | None, digits: int = 3) -> str:
    """A number with `digits` significant digits, thousands separated and never in powers of ten."""
    if value is None:
        return NOTHING
    if abs(value) < _TINY:
        return "0" if value == 0 else f"<{_TINY}"
    decimals = digits - 1 - floor(log10(abs(value)))
    return f"{round(value, decimals):,.{max(0, min(decimals, 9))}f}"


def share_text(share: float | None, digits: int = 1, *, signed: bool = False) -> str:
    """A share in percent: "8.4 %", signed "+8.4 %"."""
    if share is None:
        return NOTHING
    return f"{100 * share:{'+' if signed else ''}.{digits}f} %"


def error_text(ratio: float | None) -> str:
    """The error of a prediction, by its ratio to what was measured: "+8.4 %"."""
    return share_text(None if ratio is None else ratio - 1, signed=True)


def times_text(ratio: float | None) -> str:
    """A speedup: "8.60x"."""
    return NOTHING if ratio is None else f"{number(ratio)}x"


def and_text(names: Sequence[str]) -> str:
    """Names in a sentence: "a, b and c"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
