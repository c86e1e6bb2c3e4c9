"""Steps from a GPU to a newer one of which only the measured speedup is known: predicted beside measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnsim.api.ratios import moved
from attnsim.files import read_typed
from attnsim.models.calibrations.choose import choose
from attnsim.models.calibrations.components import ratio_widths
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.simulator.replay import replay
from attnsim.validation.checking.hypothetical import VIEWS, View, as_announced
from attnsim.validation.measured.predicting import Time

LENGTHS = (2048, 4096, 8192)
BATCH, HEADS = 4, 32
"""Shapes of the predicted step, since the measured one is stated without: long enough that no launch counts."""


@dataclass(frozen=True, slots=True)
class Step:
    """A measured speedup: that of the newer GPU over the older one lies between `low` and `high`."""

    older: str
    newer: str
    implementation: str
    head_dim: int
    causal: bool
    low: float
    high: float


def step_errors() -> list[dict[str, Any]]:
    """The steps of ``steps.yaml``, in both views of the newer GPU, with nothing that was fitted on it.

    Returns
    -------
    list of dict
        ``older, newer, implementation, head_dim, view, measured_low, measured_high, predicted, low, high, error``:
        `predicted` is the geometric mean over `LENGTHS`, `low` to `high` the range that a ratio states, which no such
        step has made, `error` how far the prediction lies outside of what was measured, as a fraction.
    """
    steps = read_typed(Path(__file__).with_name("steps.yaml"), "step", tuple[Step, ...])
    return [_error(step, view) for step in steps for view in VIEWS]


def _error(step: Step, view: View) -> dict[str, Any]:
    older, newer = load_gpu(step.older), load_gpu(step.newer)
    then = as_announced(newer, older) if view == "datasheet" else newer
    pairs = [(_time(step, older, n), _time(step, then, n)) for n in LENGTHS]
    found = math.exp(float(np.mean([math.log(one.time_s / two.time_s) for one, two in pairs])))
    sizes = {"machines": 1.0, "change": float(np.mean([moved(one, two) for one, two in pairs]))}
    half = ratio_widths().half_width(ratio_widths().sd[name] * size for name, size in sizes.items())
    return {
        "older": step.older,
        "newer": step.newer,
        "implementation": step.implementation,
        "head_dim": step.head_dim,
        "view": view,
        "measured_low": step.low,
        "measured_high": step.high,
        "predicted": round(found, 4),
        "low": round(found * math.exp(-half), 4),
        "high": round(found * math.exp(half), 4),
        "error": round(max(step.low / found, found / step.high, 1.0) - 1, 4),
    }


def _time(step: Step, gpu: Gpu, seq: int) -> Time:
    """A call with the numbers that were fitted on the older GPU."""
    mask = Mask.causal() if step.causal else Mask.full()
    w = Workload(batch=BATCH, heads_q=HEADS, seq_q=seq, head_dim=step.head_dim, mask=mask)
    record = IMPLEMENTATIONS[step.implementation]
    numbers = choose(record, load_gpu(step.older)).numbers
    played = replay(record.build(w, gpu, None), gpu, numbers)
    return Time(played.time_s, played.units_s())
