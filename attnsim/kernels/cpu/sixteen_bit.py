"""bf16, tf32 and packed pairs, which NumPy has no types for; all work is done in float32 or wider."""

from __future__ import annotations

import functools

import numpy as np

from attnsim.kernels.cpu.lanes import Values


def bf16_to_float(bits: Values) -> Values:
    """Exact: bf16 is the upper half of a float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


@functools.cache
def floats(kind: str) -> Values:
    """All values of f16 or bf16 as float32, by their bits."""
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
    """Both values of each register, ``[lanes, 2]``, low half first: float16, or float32 for bf16."""
    bits = np.ascontiguousarray(packed).view(np.uint16).reshape(-1, 2)
    return bf16_to_float(bits) if bf16 else bits.view(np.float16)


def pack(values: Values, bf16: bool) -> Values:
    """Registers from ``[lanes, 2]`` values, rounded to nearest."""
    bits = float_to_bf16(values) if bf16 else values.astype(np.float16).view(np.uint16)
    return np.ascontiguousarray(bits).view(np.uint32).reshape(-1)
