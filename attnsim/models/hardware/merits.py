"""Figures of merit of a machine (time, energy, power, area, cost): names, units and table columns."""

from __future__ import annotations

RESULTS = {"time": "s", "energy": "J", "power": "W", "area": "mm2", "cost": "USD"}
"""Results that a search over hardware can limit and minimise in addition to a GPU's figures, with units."""


def column(name: str, end: str = "") -> str:
    """Column of a result or of an end of its range: ``time_s``, ``time_low_s``; for a figure, its key."""
    return "_".join(filter(None, (name, end, RESULTS[name].lower()))) if name in RESULTS else name
