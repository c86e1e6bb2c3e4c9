"""Runs operations on generated inputs and compares them with the float64 reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.bounds import check_cost
from attnsim.kernels.device import Array, Device
from attnsim.models.question.workload import Workload
from attnsim.models.references.softmax import attention, scores_bytes
from attnsim.ptx.counters import decode, encode
from attnsim.ptx.outcome import Outcome, fill

BYTES_OF_EACH = 2 * (8 + 2)
"""Memory for each element in bytes: two copies in float64, two in 16 bits."""


def kind_of(array: str, inputs: str) -> str:
    """Return the kind of numbers of one array: only Q and K are adversarial, the others are normal.

    With "nan", only Q has a NaN: it must appear in that row of O, and in no other.
    """
    return inputs if array in ("Q" if inputs == "nan" else "QK") else "normal"


def random_arrays(
    w: Workload, seed: int | np.random.Generator, names: str = "QKV", inputs: str = "normal", scores: bool = True
) -> tuple[NDArray[Any], ...]:
    """Generate arrays in the workload's format, with the shape of Q (for the letters Q and O) or of K and V.

    Parameters
    ----------
    names : str
        One letter for each array: "QKV", "QKVO".
    inputs : str
        One of :data:`attnsim.ptx.outcome.INPUTS`, for Q and K.
    scores : bool
        True if the reference will hold every score, so that their memory counts.

    Raises
    ------
    InputError
        If the arrays or the reference take too much memory.
    """
    random = np.random.default_rng(seed)
    rows = (w.batch, w.heads_q, w.seq_q, w.head_dim)
    keys = (w.batch, w.heads_kv, w.seq_kv, w.head_dim)
    memory_bytes = sum(BYTES_OF_EACH * math.prod(rows if name in "QO" else keys) for name in names)
    memory_bytes += scores_bytes(w.batch * w.heads_q, w.seq_q, w.seq_kv) if scores else 0
    check_cost(f"arrays of {w}", memory_bytes=memory_bytes)
    return tuple(encode(fill(rows if name in "QO" else keys, kind_of(name, inputs), random), w.dtype) for name in names)


def exercise_attention(
    operation: Callable[..., tuple[Array, Array]], device: Device, w: Workload, seed: int = 0, inputs: str = "normal"
) -> Outcome:
    """Run an operation and the float64 reference on generated inputs.

    Parameters
    ----------
    operation : callable
        (device, q, k, v, mask=...) to O and log-sum-exp.
    """
    q, k, v = random_arrays(w, seed, inputs=inputs)
    asked: dict[str, Any] = {"softcap": w.softcap} if w.softcap else {}
    asked |= {"sinks": np.random.default_rng(seed).normal(scale=3.0, size=w.heads_q)} if w.sinks else {}
    o, lse = operation(device, *(device.upload(array) for array in (q, k, v)), mask=w.mask, **asked)
    expected_o, expected_lse = attention(decode(q), decode(k), decode(v), w.mask, **asked)
    return outcome(device, {"O": (o, expected_o), "LSE": (lse, expected_lse)})


def outcome(device: Device, outputs: Mapping[str, tuple[Array, NDArray[Any]]]) -> Outcome:
    """Download an operation's outputs and pair them with the reference's."""
    return Outcome(
        {name: decode(device.download(got)) for name, (got, _) in outputs.items()},
        {name: want for name, (_, want) in outputs.items()},
    )
