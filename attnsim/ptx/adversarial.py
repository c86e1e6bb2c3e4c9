"""Adversarial inputs for kernels: growing scores, one large outlier, all rows equal, one NaN.

With random normal inputs, scores lie close together. An online softmax then seldom takes the branch that rescales O,
and a kernel whose rescaling is wrong passes.
"""

from __future__ import annotations

import numpy as np

from attnsim.arrays import Floats
from attnsim.by_hand import by_hand
from attnsim.errors import InputError, nearest

INPUTS = ("normal", "growing", "outlier", "equal", "nan")
"""Kinds: normal numbers; rows along one direction, longest in the middle; one outlier row; all ones; one NaN."""

GROWTH = by_hand(3.0, "how much longer than the outer rows the middle one is, in their lengths: scores grow 4 fold")
SPREAD = by_hand(0.1, "deviation of growing rows from their direction, so that no two products are equal")
OUTLIER = by_hand(32.0, "how far out the outlier is: its scores decide a softmax, its products fit into fp16")
PLACE = by_hand(
    2 / 3, "where the outlier and the NaN are: in a late tile of keys, but in none of the first or the last"
)


def fill(shape: tuple[int, ...], kind: str, random: np.random.Generator) -> Floats:
    """Fill an array with numbers of a kind; rows are the second last dimension, or the elements of a 1-D array.

    Parameters
    ----------
    kind : str
        One of :data:`INPUTS`. If Q and K are both "growing", every score is positive, and scores grow from either end
        to the middle. A kernel that walks over the keys in either direction therefore meets growing scores.

    Raises
    ------
    InputError
        For another kind.
    """
    check_kind(kind)
    rows, width = (shape[-2], shape[-1]) if len(shape) > 1 else (shape[0], 1)
    normal = random.standard_normal((*shape[:-2], rows, width))
    match kind:
        case "growing":
            direction = np.where(np.arange(width) % 2, -1.0, 1.0)
            inwards = 1 - np.abs(np.linspace(-1, 1, rows) if rows > 1 else np.zeros(1))
            normal = (1 + GROWTH * inwards[:, None]) * direction + SPREAD * normal
        case "outlier":
            normal[..., int(rows * PLACE), :] *= OUTLIER
        case "equal":
            normal = np.ones_like(normal)
        case "nan":
            normal[(0,) * (normal.ndim - 2) + (int(rows * PLACE), 0)] = np.nan
    return normal.reshape(shape)


def check_kind(kind: str) -> None:
    """Raise InputError for a name that is not one of :data:`INPUTS`."""
    if kind not in INPUTS:
        raise InputError(f"unknown inputs {kind!r}; {nearest(kind, INPUTS)}; allowed: {', '.join(INPUTS)}")
