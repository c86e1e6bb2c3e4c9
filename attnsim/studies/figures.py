"""The figures of many hypothetical GPUs as columns: what `Gpu.replace` does, for whole arrays of values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from attnsim.models.arrays import Floats
from attnsim.models.hardware.figure import FIELDS
from attnsim.models.hardware.gpu import Gpu
from attnsim.studies.study import Points

RATES = (
    "sm.count", "sm.shared_memory_bandwidth", "sm.fp32_rate", "sm.exp_rate",
    "tensor.fp16", "tensor.bf16", "tensor.tf32", "tensor.fp8", "tensor.mma_sync_fraction",
    "l2.capacity", "l2.bandwidth", "hbm.capacity", "hbm.bandwidth", "hbm.achievable_fraction",
    "clock.tensor", "clock.sustained", "launch.stream", "launch.graph",
)  # fmt: skip
"""Figures that a closed form reads."""

UNREAD = (
    "sm.shared_memory_latency", "tensor.mma_latency", "l2.latency", "l2.partitions", "hbm.latency", "clock.base",
    "clock.boost", "power.tdp",
)  # fmt: skip
"""Figures that no closed form reads and no tile depends on. Any other figure may decide the tile or the kernel: points
that differ in one are grouped, and the tile is asked for once a group."""

Changes = tuple[tuple[str, float, bool], ...]
"""(key, value in SI units or factor, whether it is a factor) in the order of the study."""


@lru_cache(maxsize=4096)
def changed(gpu: Gpu, changes: Changes) -> Gpu:
    """A GPU with these changes, one after the other.

    Raises
    ------
    InputError
        When a figure leaves its range or contradicts another.
    """
    for key, value, multiple in changes:
        new = value * gpu.get(key) if multiple else value
        gpu = gpu.replace(key, float(round(new)) if multiple and FIELDS[key].integer else new)
    return gpu


def figures(points: Points) -> dict[str, Floats]:
    """The figures of `RATES` at each point, a column each.

    Parameters
    ----------
    points : Points

    Returns
    -------
    dict of str to ndarray, shape [points]
    """
    gpus = points.columns["gpu"]
    found = {key: np.array([gpu.get(key) for gpu in gpus.values])[gpus.codes] for key in RATES}
    for column in points.columns.values():
        key = column.axis.name
        if column.axis.kind != "change" or key not in RATES:
            continue
        values = column.array().astype(np.float64)
        new = values * found[key] if column.axis.multiple else values
        if FIELDS[key].integer:
            new = np.round(new)
        if key == "clock.tensor":  # the sustained clock follows, as in attnsim.models.hardware.changes.followers
            moved = new != found[key]
            follows = np.round(found["clock.sustained"] * (new / found[key]))
            found["clock.sustained"] = np.where(moved, follows, found["clock.sustained"])
        found[key] = new
    return found


def out_of_range(points: Points, found: Mapping[str, Floats]) -> NDArray[np.bool_]:
    """Points at which a changed figure leaves what is allowed, as a multiple of another may."""
    wrong = np.zeros(points.count, dtype=bool)
    for column in points.columns.values():
        key = column.axis.name
        if column.axis.kind == "change" and key in RATES:
            field = FIELDS[key]
            wrong |= ~((field.low <= found[key]) & (found[key] <= field.high))
    return wrong
