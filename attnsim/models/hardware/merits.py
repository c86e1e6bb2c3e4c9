"""What a machine is judged by beside its figures: names, units, and the columns of tables that they stand in."""

from __future__ import annotations

RESULTS = {"time": "s", "energy": "J", "power": "W", "area": "mm2", "cost": "USD"}
"""What a search over hardware can limit and minimise beside a GPU's figures, and its unit."""


def column(name: str, end: str = "") -> str:
    """The column of a result or of an end of its range: ``time_s``, ``time_low_s``; of a figure, its key."""
    return "_".join(filter(None, (name, end, RESULTS[name].lower()))) if name in RESULTS else name
