"""Arithmetic of PTX in NumPy, a line for each operation: what the compiled loops are held to, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.ptx.counters import float_to_bf16

Values = NDArray[Any]
Function = Callable[..., Values]

TYPES: dict[str, Any] = {
    "pred": np.bool_,
    "f32": np.float32,
    "f64": np.float64,
    **{f"{of}{bits}": f"{kind}{bits // 8}" for of, kind in (("u", "u"), ("b", "u"), ("s", "i")) for bits in (32, 64)},
}


def selected(a: Values, b: Values, chosen: Values) -> Values:
    """One of two."""
    return np.where(chosen, a, b)


BOTH: dict[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "abs": np.abs,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "mov": np.copy,
    "mad": lambda a, b, c: a * b + c,
    "selp": selected,
}
INTEGERS: dict[str, Function] = {**BOTH, "min": np.minimum, "max": np.maximum}
FLOATS: dict[str, Function] = {
    **BOTH,
    "min": np.fmin,
    "max": np.fmax,
    "fma": lambda a, b, c: (a.astype(np.float64) * b + c).astype(np.float32),
}
ORDERS: dict[str, Function] = {
    "eq": np.equal,
    "ne": lambda a, b: (a < b) | (a > b),  # which does not hold for NaN
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def reference(opcode: str) -> Function:
    """The function of an opcode, on raw values of its operands' widths; what it returns is as wide as its result."""
    name, *modifiers = opcode.split(".")
    kind = modifiers[-1]
    if name == "cvt" and "x2" in modifiers[-2]:
        return packed_bf16 if modifiers[-2] == "bf16x2" else packed_halves
    dtype = np.dtype(TYPES[kind])
    if name == "cvt":
        return lambda a: a.view(dtype).astype(TYPES[modifiers[-2]])
    if name == "setp":
        return lambda a, b: ORDERS[modifiers[0]](a.view(dtype), b.view(dtype))
    if name in ("shl", "shr"):
        return lambda a, amount: shifted(a.view(dtype), amount, left=name == "shl")
    if "wide" in modifiers:
        wide = f"{dtype.kind}8"
        return lambda a, b, *c: a.view(dtype).astype(wide) * b.view(dtype).astype(wide) + (c[0].view(wide) if c else 0)
    function = (FLOATS if dtype.kind == "f" else INTEGERS)[name]
    return lambda *values: function(*(value if value.dtype == bool else value.view(dtype) for value in values))


def shifted(a: Values, amount: Values, left: bool) -> Values:
    """By the width or more everything is shifted out; the sign stays."""
    bits = 8 * a.itemsize
    least = np.minimum(amount, bits - 1).astype(a.dtype)
    found = np.left_shift(a, least) if left else np.right_shift(a, least)
    return found if a.dtype.kind == "i" and not left else np.where(amount >= bits, 0, found).astype(a.dtype)


def packed_halves(high: Values, low: Values) -> Values:
    """Two float32 in 16 bits each, the first above."""
    bits = [one.view(np.float32).astype(np.float16).view(np.uint16).astype(np.uint32) for one in (high, low)]
    return bits[0] << np.uint32(16) | bits[1]


def packed_bf16(high: Values, low: Values) -> Values:
    """The same as bf16."""
    bits = [float_to_bf16(one.view(np.float32)).astype(np.uint32) for one in (high, low)]
    return bits[0] << np.uint32(16) | bits[1]
