"""Work around loads into registers: addresses before they begin, and what a warp does before it waits for them."""

from __future__ import annotations

from collections.abc import Sequence

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.own.resources import counts_of
from attnsim.models.schedule.instructions import StepCounts
from attnsim.models.schedule.operation import TileOp

LOADING, FLYING = "+loads", "+flight"
"""Endings of a part: what of it a warp does up to the last of the loads that it then waits for, and from there on until
it waits."""
AROUND = (LOADING, FLYING, "")
"""A part up to its loads, while they are under way, and behind the wait for them."""


def around(label: str, gpu: Gpu, part: str = "") -> tuple[StepCounts | None, ...]:
    """Counts of a part of a kernel up to its loads, while they are under way, and behind the wait for them."""
    found = (counts_of(label, gpu, part + where) for where in AROUND)
    return tuple(one if one and one.issued else None for one in found)


def loaded(loads: Sequence[TileOp], work: Sequence[TileOp | None]) -> tuple[TileOp, ...]:
    """Loads and the waits for them, with the work around them in the order of `AROUND`; None where there is none."""
    before, meanwhile, behind = ((one,) if one else () for one in work)
    return *before, *loads, *meanwhile, *(TileOp("wait", one.tensor) for one in loads), *behind
