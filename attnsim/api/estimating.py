"""A rough time before anything is played: the busiest unit, latencies that the residents of an SM share, whole waves.

It sorts the tiles of a retuning (:mod:`attnsim.api.retuning`) and is the compute part of a sweep's closed forms
(:mod:`attnsim.studies.closed_form`), for one kernel or for columns of many.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnsim.models.by_hand import by_hand
from attnsim.models.schedule.schedule import Kernel

RAGGED_WAVES = by_hand(8, "waves from which on a last wave that is not full no longer matters to an estimate")


def compute_time(
    tensor: Any, vector: Any, *, interference: Any, sms: Any, groups: Any, step: Any, block: Any, waves: Any, even: Any
) -> Any:
    """Time of the SMs, numbers or arrays, in the unit that work and latencies are given in.

    Parameters
    ----------
    tensor, vector : float or ndarray
        All work of the tensor and the vector units, on one SM.
    interference : float or ndarray
        Share of the shorter that the longer waits for.
    sms, groups : float or ndarray
        SMs, and warpgroups on each.
    step, block : float or ndarray
        Latencies of all inner steps and of all blocks, shared by the blocks that run at once.
    waves : float or ndarray
    even : bool or ndarray
        Whether the blocks are shared out evenly however few waves there are.
    """
    busy = (np.maximum(tensor, vector) + interference * np.minimum(tensor, vector)) / sms
    whole = np.where(even | (waves >= RAGGED_WAVES), 1.0, np.ceil(waves) / waves)
    # A warpgroup's latency hides under what the others do meanwhile.
    return (np.maximum(busy, busy / groups + step) + block) * whole


def step_waits(kernel: Kernel) -> int:
    """Waits for an inner step of all blocks."""
    return sum(
        int(n) * sum(op.kind == "delay" and op.tensor == "step" for op in segment.ops)
        for n, segment in zip(kernel.executions, kernel.segments, strict=True)
    )
