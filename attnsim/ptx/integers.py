"""Integer arithmetic; NumPy's integers wrap as a GPU's do."""

from __future__ import annotations

import numpy as np

from attnsim.ptx.elementwise import Function, elementwise
from attnsim.ptx.lanes import Values
from attnsim.ptx.machine import Machine, Step, operation, unsupported, value_type
from attnsim.ptx.registers import DTYPES, Dtype
from attnsim.ptx.syntax import Instruction


def _divide(a: Values, b: Values) -> Values:
    """Towards zero; by zero all ones, as NVIDIA's integer division returns."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    quotient = a // safe
    if a.dtype.kind == "i":
        quotient = quotient + ((quotient * safe != a) & ((a < 0) != (safe < 0)))
    return np.where(b == 0, ~b.dtype.type(0), quotient).astype(a.dtype)


_FUNCTIONS: dict[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "div": _divide,
    "rem": lambda a, b: np.where(b == 0, a, np.fmod(a, np.where(b == 0, b.dtype.type(1), b))),
    "min": np.minimum,
    "max": np.maximum,
    "neg": np.negative,
    "abs": np.abs,
    "sad": lambda a, b, c: np.where(a < b, b - a, a - b) + c,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "cnot": lambda a: (a == 0).astype(a.dtype),
}


@operation("and", "or", "xor", "not", "cnot")
def compile_integer(instruction: Instruction, machine: Machine) -> Step:
    """Arithmetic of integers, and bitwise logic, of predicates too."""
    kind = value_type(instruction)
    dtype = DTYPES[kind]
    modifiers, name = instruction.modifiers, instruction.name
    known = {kind, "lo", "hi", "wide"} if name in ("mul", "mad") else {kind, "sat"}
    if not set(modifiers) <= known:
        raise unsupported(instruction)
    if name in ("mul", "mad"):
        return _multiply(instruction, machine, kind)
    function = _FUNCTIONS[name]
    if "sat" in modifiers:
        limits, exact = np.iinfo(dtype), _FUNCTIONS[name]
        function = lambda a, b: np.clip(  # noqa: E731
            exact(a.astype(np.int64), b.astype(np.int64)), limits.min, limits.max
        ).astype(dtype)
    return elementwise(instruction, machine, function, (kind,) * (len(instruction.operands) - 1), kind)


def _multiply(instruction: Instruction, machine: Machine, kind: str) -> Step:
    """``mul`` and ``mad``: the low half, the high half, or (``.wide``) all of the product."""
    dtype, result = DTYPES[kind], kind
    product: Function
    if "wide" in instruction.modifiers:
        result = f"{kind[0]}{2 * int(kind[1:])}"
        product = _whole(DTYPES[result])
    elif "hi" in instruction.modifiers:
        product = _high_64 if dtype.itemsize == 8 else _high(dtype)
    else:
        product = np.multiply
    if instruction.name.startswith("mul"):
        return elementwise(instruction, machine, product, (kind, kind), result)
    return elementwise(instruction, machine, lambda a, b, c: product(a, b) + c, (kind, kind, result), result)


def _whole(wide: Dtype) -> Function:
    return lambda a, b: a.astype(wide) * b.astype(wide)


def _high(dtype: Dtype) -> Function:
    wide, bits = np.dtype(f"{dtype.kind}8"), 8 * dtype.itemsize
    return lambda a, b: ((a.astype(wide) * b.astype(wide)) >> wide.type(bits)).astype(dtype)


def _high_64(a: Values, b: Values) -> Values:
    """Upper 64 bits of the 128-bit product, by schoolbook multiplication of 32-bit halves."""
    half, low = np.uint64(32), np.uint64(0xFFFF_FFFF)
    x, y = a.view(np.uint64), b.view(np.uint64)
    x0, x1, y0, y1 = x & low, x >> half, y & low, y >> half
    middle = x1 * y0 + ((x0 * y0) >> half)
    high = x1 * y1 + (middle >> half) + (((middle & low) + x0 * y1) >> half)
    if a.dtype.kind == "i":
        high = high - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    result: Values = high.view(a.dtype)
    return result


@operation("dp4a", "dp2a")
def compile_byte_product(instruction: Instruction, machine: Machine) -> Step:
    """``dp4a``: sum of four products of bytes."""
    if instruction.name != "dp4a":
        raise unsupported(instruction)
    a_type, b_type = instruction.modifiers[-2:]
    result = "s32" if "s32" in (a_type, b_type) else "u32"

    def parts(values: Values, kind: str) -> Values:
        return np.ascontiguousarray(values).view(np.int8 if kind == "s32" else np.uint8).reshape(-1, 4).astype(np.int64)

    def product(a: Values, b: Values, c: Values) -> Values:
        products: Values = parts(a, a_type) * parts(b, b_type)
        total: Values = products.sum(axis=1) + c.astype(np.int64)
        return total.astype(DTYPES[result])

    return elementwise(instruction, machine, product, (a_type, b_type, result), result)
