"""The cells of a prediction, as every table for people has them: terminal, notebook, report and explorer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attnsim.models.hardware.units import bound_text
from attnsim.wording import NOTHING, clock_text, interval_text, number, time_text

COLUMNS: Mapping[str, Callable[[Any], object]] = {
    "time": lambda one: time_text(one.time_s) if one.fits else "too large",
    "90 % range": lambda one: interval_text(one.time_low_s, one.time_high_s, one.time_s),
    "HBM GB": lambda one: number(None if one.hbm_bytes is None else one.hbm_bytes / 1e9),
    "TFLOP/s": lambda one: number(one.useful_flops_per_s and one.useful_flops_per_s / 1e12),
    "busiest": lambda one: bound_text(one.busiest),
    "blocks /SM": lambda one: one.blocks_per_sm,
    "waves": lambda one: number(one.waves),
    "floor": lambda one: time_text(one.floor_s),
    "trust": lambda one: one.trust.level,
    "bound": lambda one: str(one.bound or NOTHING),
    "SM clock": lambda one: clock_text(one.clock_hz, one.clock_by) if one.clock_hz and one.clock_by else NOTHING,
}
"""The cells that every table has of a prediction, by the heads of their columns."""


def cells(one: Any, *heads: str) -> dict[str, object]:
    """Cells of an answer, whether it fits or not; a head may be folded."""
    return {head: COLUMNS[head.replace("\n", " ")](one) for head in heads}
