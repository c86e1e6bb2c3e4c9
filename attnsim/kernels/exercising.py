"""Random inputs for attention, and an operation's answer to them beside the float64 reference's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.kernels.arrays import decode, encode
from attnsim.kernels.device import Array, Device
from attnsim.kernels.outcome import Outcome
from attnsim.models.question.workload import Workload
from attnsim.models.references.softmax import attention


def random_arrays(w: Workload, seed: int, names: str = "QKV") -> tuple[NDArray[Any], ...]:
    """Normal numbers in the workload's format, in the shape of Q (or O, by the letter O) or of K and V."""
    random = np.random.default_rng(seed)
    rows = (w.batch, w.heads_q, w.seq_q, w.head_dim)
    keys = (w.batch, w.heads_kv, w.seq_kv, w.head_dim)
    return tuple(encode(random.standard_normal(rows if name in "QO" else keys), w.dtype) for name in names)


def exercise_attention(
    operation: Callable[..., tuple[Array, Array]], device: Device, w: Workload, seed: int = 0
) -> Outcome:
    """O and LSE of random inputs.

    Parameters
    ----------
    operation : callable
        (device, q, k, v, mask=...) to O and log-sum-exp.
    device : Device
    w : Workload
    seed : int
    """
    q, k, v = random_arrays(w, seed)
    o, lse = operation(device, *(device.upload(array) for array in (q, k, v)), mask=w.mask)
    expected_o, expected_lse = attention(decode(q), decode(k), decode(v), w.mask)
    return Outcome(
        {"O": decode(device.download(o)), "LSE": decode(device.download(lse))},
        {"O": expected_o, "LSE": expected_lse},
    )
