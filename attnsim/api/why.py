"""Why a call takes as long as it does, in one sentence: which unit bounds it, and by how much another one could."""

from __future__ import annotations

from attnsim.api.levers import two_busiest
from attnsim.api.prediction import Prediction
from attnsim.models.hardware.units import UNITS, unit_text
from attnsim.wording import times_text


def unturned(bound: str | None) -> str:
    """What is said of a call whose bound no unit's figure moves."""
    what = {
        "launch": "Launches take more than half of the time: fewer kernels, or a CUDA graph, before a faster GPU.",
        "latency": "No unit is busy for 35 % of the time: latency bounds it, too few blocks or too short a "
        "pipeline to hide it.",
    }
    return what.get(bound or "", f"Bound by {unit_text(bound)}; no other unit has work.")


def why(one: Prediction) -> str:
    """What bounds a call and what would turn it, in one sentence; without a replay."""
    busiest = two_busiest(one.bound, one.units_s)
    if busiest is None or not one.time_s:
        return f"{one.algorithm}: {unturned(one.bound)}"
    first, second, factor = busiest
    shares = {unit: f"{100 * one.units_s[unit] / one.time_s:.0f} %" for unit in (first, second)}
    figure = UNITS[first].figure_for(one.workload.dtype)
    return (
        f"{one.algorithm}: bound by {unit_text(first)}, busy {shares[first]} of the time; next {unit_text(second)}, "
        f"{shares[second]}. With {figure} {times_text(factor)} the two are equally "
        "busy."
    )
