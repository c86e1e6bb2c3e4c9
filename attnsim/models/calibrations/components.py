"""Uncertainty of a predicted time: its components, and the range that they add up to.

A component is one difference between a question and the measurements behind its numbers: another laboratory, another
version, another chip. Each adds a variance of log time. They are measured by
`attnsim.validation.checking.components`, and written by `attnsim fit --record`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from attnsim.files import read_written

PRIORS = "priors"
"""Component of numbers that are all at their priors."""

COMPONENTS = {
    "laboratory": "another laboratory's machine and script",
    "clock": "the clock under load of another laboratory's card, where none is given",
    "version": "a version or build of the software that is not known to be the one measured",
    "shape": "shapes far from those measured",
    "chip": "another chip of the architecture",
    "pass": "a pass, tile or feature that was never measured alone",
    "kernel": "another kernel's numbers",
    "architecture": "numbers of another architecture",
    "window": "a sliding window, never measured",
    "operations": "unfused attention whose operations are not known",
    PRIORS: "nothing fitted at all",
}
"""Components by name, those nearest to the measurements first."""

RATIOS = {
    "machines": "two cards, each with its own clocks, host and measurement",
    "change": "what the changed figures do, in proportion to how far they move the time or a unit",
    "architectures": "another architecture, on which the code runs other instructions and tiles",
    "borrowed": "numbers of one of two architectures that are another architecture's or kernel's",
}
"""Components of a ratio of two times of one kernel, the nearest first."""

WITHIN, TIMING, HOST = "within", "timing", "host"
"""Three more, independent of sources: errors of the calibration on its own measurements, the sensitivity to timing, and
the host's time if it bounds the call.
"""

NORMAL_90 = 1.6449
"""Half-width of the 90 % interval of a normal distribution, over its standard deviation."""

RMS_OVER_MEAN = math.sqrt(math.pi / 2)
"""Standard deviation over mean absolute value of a normal distribution about 0."""


@dataclass(frozen=True, slots=True)
class Widths:
    """The committed components.

    Parameters
    ----------
    factor : float
        Half-width of the 90 % interval over the root of the summed variances.
    within : float
        Standard deviation of log time on the calibration's own measurements, over its mean held-out error.
    sd : mapping of str to float
        Standard deviation of log time that each component adds.
    """

    factor: float
    within: float
    sd: Mapping[str, float]

    def parts(self, spread: float, components: Iterable[str]) -> dict[str, float]:
        """Standard deviations of log time by name: the calibration's own mean error, and each given component."""
        return {WITHIN: self.within * spread} | {name: self.sd[name] for name in components}

    def half_width(self, sds: Iterable[float]) -> float:
        """Half-width of the 90 % interval of log time for independent errors with these standard deviations."""
        return self.factor * math.hypot(*sds)


@lru_cache(maxsize=1)
def widths() -> Widths:
    """The committed widths of a time."""
    data = _committed()
    return Widths(data["factor"], data["within"], {name: found["sd"] for name, found in data["components"].items()})


@lru_cache(maxsize=1)
def ratio_widths() -> Widths:
    """The committed widths of a ratio of two times of one kernel."""
    data = _committed()["ratios"]
    return Widths(data["factor"], 0.0, {name: found["sd"] for name, found in data["components"].items()})


@lru_cache(maxsize=1)
def _committed() -> dict[str, Any]:
    found: dict[str, Any] = read_written(resources.files("attnsim.models").joinpath("calibrations", "trust.yaml"))
    return found
