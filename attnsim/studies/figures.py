"""The figures of many hypothetical GPUs as columns: what `Gpu.replace` does, for whole arrays of values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from attnsim.models.arrays import Floats
from attnsim.models.hardware.gpu import Gpu, sustained_clock
from attnsim.models.hardware.sections import FIELDS
from attnsim.studies.study import Points

RATES = tuple(key for key, field in FIELDS.items() if field.read == "rate")
"""Figures that a closed form reads."""

TILE_FREE = tuple(key for key, field in FIELDS.items() if field.read != "limit")
"""Figures on which no tile depends. Points that differ in another one are grouped, and the tile is asked for once a
group."""

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
        if key == "clock.tensor":
            moved = new != found[key]
            follows = np.round(sustained_clock(found["clock.sustained"], found[key], new))
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
