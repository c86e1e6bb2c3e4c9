"""Element formats in NumPy: bf16 and packed pairs, which NumPy lacks, are held as raw bits."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnsim.ptx.lanes import Values

FORMATS = {
    "fp16": "float16",
    "bf16": "uint16",
    "fp32": "float32",
    "fp64": "float64",
    "i8": "int8",
    "u8": "uint8",
    "i16": "int16",
    "i32": "int32",
    "u32": "uint32",
    "i64": "int64",
    "u64": "uint64",
}
"""Formats of elements and how NumPy holds them; ``uint16`` holds the bits of bf16."""

POISON = 0xFF
"""Byte that fills fresh memory, so that unwritten elements are noticed: a NaN in each floating-point format."""


def bf16_to_float(bits: Values) -> Values:
    """Convert bf16 to float32, exactly: bf16 is the upper half of a float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


@functools.cache
def floats(kind: str) -> Values:
    """Return a table of all f16 or bf16 values as float32, indexed by their bits."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    return bf16_to_float(bits) if kind == "bf16" else bits.view(np.float16).astype(np.float32)


def float_to_bf16(values: Values, toward_zero: bool = False) -> Values:
    """Bits of the nearest bf16, ties to even (or the next towards zero); NaN becomes 0x7fff as on a GPU."""
    bits = values.astype(np.float32, copy=False).view(np.uint32)
    up = np.uint32(0) if toward_zero else np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = ((bits + up) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FFF), rounded)


def float_to_half(values: Values, toward_zero: bool = False) -> Values:
    """The nearest fp16, ties to even (or the next towards zero)."""
    half = values.astype(np.float16)
    if toward_zero:
        over = np.abs(half.astype(values.dtype)) > np.abs(values)
        half = np.where(over, (half.view(np.uint16) - over).view(np.float16), half)
    return half


def halves(packed: Values, bf16: bool) -> Values:
    """Unpack the two values of each register, ``[lanes, 2]``, low half first: float16, or float32 for bf16."""
    bits = np.ascontiguousarray(packed).view(np.uint16).reshape(-1, 2)
    return bf16_to_float(bits) if bf16 else bits.view(np.float16)


def pack(values: Values, bf16: bool) -> Values:
    """Pack values ``[lanes, 2]`` into registers, rounded to nearest."""
    bits = float_to_bf16(values) if bf16 else values.astype(np.float16).view(np.uint16)
    return np.ascontiguousarray(bits).view(np.uint32).reshape(-1)


def encode(values: ArrayLike, dtype: str) -> NDArray[Any]:
    """Round to nearest even into a 16-bit format.

    Parameters
    ----------
    dtype : {"fp16", "bf16"}

    Returns
    -------
    ndarray of float16, or of uint16 with the bits of bf16
    """
    if dtype == "fp16":
        return np.asarray(values, dtype=np.float16)
    single = np.ascontiguousarray(values, dtype=np.float32)
    return np.where(np.isnan(single), np.uint16(0x7FC0), float_to_bf16(single))


def decode(values: NDArray[Any]) -> NDArray[np.float64]:
    """Decode a float16, bf16 (uint16) or float32 array to float64."""
    if values.dtype == np.uint16:
        return bf16_to_float(values).astype(np.float64)
    return values.astype(np.float64)
