"""A loop nest as builders write it down: segments in program order, each with how often every block class runs it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from attnsim.arrays import Ints
from attnsim.models.schedule.operation import Segment

Nest = list[tuple[Segment, ArrayLike]]
"""Segments and their counts: one number for all block classes, ``[classes]``, or ``[classes, turns]`` where the outer
loop has several turns."""


def loop_nest(nest: Sequence[tuple[Segment, ArrayLike]]) -> tuple[tuple[Segment, ...], Ints]:
    """`segments` and `repeats` of a :class:`~attnsim.models.schedule.schedule.Kernel`.

    Segments that no block runs are left out.

    Returns
    -------
    (tuple of Segment, ndarray of int, shape [classes, turns, segments])
    """
    each = [np.asarray(count) for _, count in nest]
    used = [bool(count.any()) for count in each]
    kept = [count for count, keep in zip(each, used, strict=True) if keep]
    shape = np.broadcast_shapes(*{count.shape for count in each})
    counts = np.empty((len(kept), *shape), dtype=np.int64)
    for number, count in enumerate(kept):
        counts[number] = count
    classes, turns = (*shape, 1, 1)[:2]
    repeats = np.ascontiguousarray(counts.reshape(-1, classes * turns).T).reshape(classes, turns, -1)
    return tuple(segment for (segment, _), keep in zip(nest, used, strict=True) if keep), repeats
