"""Arrays of our operations: checks of those that are given, their parameters, and generated ones for comparisons."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnsim.bounds import check_cost
from attnsim.errors import InputError
from attnsim.kernels.device import Array, Device
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.references.softmax import attention, scores_bytes
from attnsim.ptx.counters import decode, encode
from attnsim.ptx.outcome import Outcome, fill

NO_LIMIT = 1 << 30
"""Kernels' value for an unlimited band: longer than any sequence, and small enough not to overflow when added to."""

DTYPES = {"float16": "fp16", "uint16": "bf16"}
"""Array types and the formats that they hold; NumPy has no bf16, so its bits travel as ``uint16``."""


def attention_workload(
    q: Any,
    k: Any,
    v: Any,
    mask: Mask | None = None,
    *,
    passes: str = "fwd",
    head_dims: tuple[int, ...] = (64, 128, 256),
    patterns: bool = False,
) -> Workload:
    """Check three arrays ``[batch, heads, seq, head_dim]`` and return their workload.

    Parameters
    ----------
    head_dims : tuple of int
        Widths that the kernel takes.
    patterns : bool
        True if the kernel supports masks with patterns, not only bands.

    Raises
    ------
    InputError
        If the kernel does not support the types, layout, shapes or mask.
    """
    if mask is not None and not (mask.is_band or patterns):
        raise InputError(f"this kernel plays diagonal bands only, the mask is {mask}; take sparse_forward")
    for name, array in (("Q", q), ("K", k), ("V", v)):
        check_array(name, array, 4)
    dtypes = {DTYPES[str(array.dtype)] for array in (q, k, v)}
    if len(dtypes) > 1:
        raise InputError(f"Q is {q.dtype}, K {k.dtype}, V {v.dtype}; give all three the same type")
    batch, heads_q, seq_q, head_dim = q.shape
    if tuple(k.shape) != tuple(v.shape) or k.shape[0] != batch or k.shape[3] != head_dim:
        raise InputError(
            f"K is {list(k.shape)} and V {list(v.shape)} beside Q {list(q.shape)}; K and V must be equal in shape, and "
            "agree with Q in batch and head_dim"
        )
    if head_dim not in head_dims:
        raise InputError(f"head_dim is {head_dim}; this kernel takes {', '.join(map(str, head_dims))}")
    _, heads_kv, seq_kv, _ = k.shape
    band, dtype = mask or Mask(), dtypes.pop()
    return Workload(batch, heads_q, seq_q, head_dim, heads_kv, seq_kv, dtype=dtype, passes=passes, mask=band)


def check_array(name: str, array: Any, dimensions: int, dtypes: tuple[str, ...] = tuple(DTYPES)) -> None:
    """Raise InputError for an array of another type, rank or layout than a kernel takes, or an empty one."""
    if not hasattr(array, "dtype") or str(array.dtype) not in dtypes:
        given = getattr(array, "dtype", type(array).__name__)
        raise InputError(f"{name} is {given}; allowed: {', '.join(dtypes)} (uint16 holds the bits of bf16)")
    if array.ndim != dimensions or 0 in array.shape:
        raise InputError(f"{name} has shape {list(array.shape)}; allowed: {dimensions} dimensions of 1 or more")
    if not array.flags.c_contiguous:
        raise InputError(f"{name} is not contiguous; pass it through ascontiguousarray first")


def factor_of(w: Workload, scale: float | None, *, positive: bool = False) -> float:
    """Return the factor of Q K^T: `scale`, by default ``1 / sqrt(head_dim)``.

    Parameters
    ----------
    positive : bool
        Require a positive factor, so that the largest score stays the largest.

    Raises
    ------
    InputError
        If `scale` is not finite, or not positive.
    """
    if scale is None:
        return float(w.head_dim**-0.5)
    if positive and not 0 < scale < math.inf:
        raise InputError(f"scale is {scale}; allowed: more than 0; change the sign of Q instead")
    if not math.isfinite(scale):
        raise InputError(f"scale is {scale}; allowed: a finite number, or none for 1 / sqrt(head_dim)")
    return scale


def scale_log2(factor: float) -> dict[str, np.float32]:
    """Return the kernel argument for exponentials to base 2: the factor times log2(e)."""
    return {"scale_log2": np.float32(factor * math.log2(math.e))}


def score_options(
    upload: Callable[[Any], Any], w: Workload, factor: float, softcap: float, sinks: ArrayLike | None
) -> dict[str, Any]:
    """Return the arguments of ``options.cuh`` for softcap and sinks; empty if the call has neither."""
    if not softcap and sinks is None:
        return {}
    if not 0 <= softcap < math.inf:
        raise InputError(f"softcap is {softcap}; allowed: a bound above 0, such as 50, or 0 for none")
    given = np.zeros(1, np.float32) if sinks is None else np.ascontiguousarray(sinks, np.float32)
    if sinks is not None and given.shape != (w.heads_q,):
        raise InputError(f"sinks have shape {list(given.shape)}; give one for each of {w.heads_q} query heads")
    bounded = {"tanh_scale": np.float32(factor / softcap if softcap else 0.0), **scale_log2(softcap or factor)}
    return {"sinks": upload(given), **int32(sink_heads=0 if sinks is None else w.heads_q), **bounded}


def int32(**numbers: int) -> dict[str, np.int32]:
    """Convert integers to int32 kernel arguments."""
    return {name: np.int32(number) for name, number in numbers.items()}


def reaches(mask: Mask) -> dict[str, np.int32]:
    """Return the kernel arguments for the reach of a band to the left and right of the diagonal."""
    found = {"left": mask.left, "right": mask.right}
    return int32(**{name: NO_LIMIT if reach is None else min(reach, NO_LIMIT) for name, reach in found.items()})


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
