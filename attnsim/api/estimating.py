"""A rough time before anything is played: the busiest unit, latencies that the residents of an SM share, whole waves.

It sorts the tiles of a retuning (:mod:`attnsim.api.playing`) and is the compute part of a sweep's closed forms
(:mod:`attnsim.studies.closed_form`), for one kernel or for columns of many.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from attnsim.by_hand import by_hand
from attnsim.models.schedule.schedule import Kernel

RAGGED_WAVES = by_hand(8, "waves from which on a last wave that is not full no longer matters to an estimate")


def compute_time(
    tensor: Any,
    vector: Any,
    disturbs: Any,
    *,
    interference: Any,
    own_path: Any,
    sms: Any,
    groups: Any,
    step: Any,
    block: Any,
    waves: Any,
    even: Any,
) -> Any:
    """Time of the SMs, numbers or arrays, in the unit that work and latencies are given in.

    Parameters
    ----------
    tensor, vector : float or ndarray
        All work of the tensor and the vector units, on one SM.
    disturbs : float or ndarray
        Work of the vector units that the tensor unit feels, see :func:`vector_times`.
    interference : float or ndarray
        Share of the work of one that the other waits for.
    own_path : float or ndarray
        Part of the work of the vector units that a warpgroup runs one pipe after another, beside products; else 0.
    sms, groups : float or ndarray
        SMs, and warpgroups on each.
    step, block : float or ndarray
        Latencies of all inner steps and of all blocks, shared by the blocks that run at once.
    waves : float or ndarray
    even : bool or ndarray
        Whether the blocks are shared out evenly however few waves there are.
    """
    busy = np.maximum(tensor + interference * disturbs, vector + interference * tensor) / sms
    whole = np.where(even | (waves >= RAGGED_WAVES), 1.0, np.ceil(waves) / waves)
    # Half of the products are of S, for which a softmax waits; those with V run beside it.
    chain = np.maximum(busy, np.where(own_path > 0, tensor / 2 + own_path * disturbs, 0.0) / sms)
    # A warpgroup's latency hides under what the others do meanwhile.
    return (np.maximum(busy, chain / groups + step) + block) * whole


def vector_times(parts: Sequence[Any], behind: Sequence[Any], counted: Any) -> tuple[Any, Any]:
    """Time of the vector units, of one kernel or of columns of many, and the part that the tensor unit feels.

    Parameters
    ----------
    parts : sequence
        Time on the exponential units and on the FP32 lanes.
    behind : sequence
        Time of the schedulers and then of integer lanes and load/store units, known where instructions are counted.
    counted : bool or ndarray of bool
        Whether they are: counted operations take as long as their busiest pipe, and those of all pipes are felt.
    """
    added = sum(parts)
    longest = np.where(counted, reduce(np.maximum, (*parts, *behind)), added)
    return longest, np.where(counted, added + sum(behind[1:]), added)


def step_waits(kernel: Kernel) -> int:
    """Waits for an inner step of all blocks."""
    return sum(
        int(n) * sum(op.waits == "step" for op in segment.ops)
        for n, segment in zip(kernel.executions, kernel.segments, strict=True)
    )
