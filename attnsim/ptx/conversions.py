"""``cvt``: between integers and floats of all widths, and pairs of floats into one register."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnsim.ptx.elementwise import Function, elementwise
from attnsim.ptx.floats import flush, not_negative
from attnsim.ptx.formats import bf16_to_float, float_to_bf16, float_to_half
from attnsim.ptx.lanes import Values
from attnsim.ptx.machine import Machine, Step, operation, unsupported
from attnsim.ptx.registers import DTYPES, Dtype
from attnsim.ptx.syntax import Instruction

_TO_INTEGER: dict[str, Function] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_FLOATS = ("f16", "bf16", "tf32", "f32", "f64")


@operation("cvt")
def compile_conversion(instruction: Instruction, machine: Machine) -> Step:
    """``cvt.rounding.dtype.atype d, a``, and ``cvt.rounding.f16x2.f32 d, high, low``."""
    modifiers = instruction.modifiers
    types = [m for m in modifiers if m in DTYPES]
    if len(types) != 2 or "pack" in modifiers or "rs" in modifiers:
        raise unsupported(instruction)
    target, source = types
    if target in ("f16x2", "bf16x2"):
        if source != "f32":
            raise unsupported(instruction)
        narrow = _to_float(target.removesuffix("x2"), instruction)
        return elementwise(instruction, machine, _pair(narrow), ("f32", "f32"), target)
    convert = _conversion(target, source, instruction)
    return elementwise(instruction, machine, convert, (source,), target)


def _pair(narrow: Function) -> Callable[[Values, Values], Values]:
    def pack(high: Values, low: Values) -> Values:
        high, low = np.broadcast_arrays(high, low)
        return narrow(np.stack((low, high), axis=1)).view(np.uint32).reshape(-1)

    return pack


def _conversion(target: str, source: str, instruction: Instruction) -> Function:
    if source in _FLOATS:
        widen: Function = bf16_to_float if source == "bf16" else lambda a: a
        if source == "f32" and "ftz" in instruction.modifiers:
            widen = flush
        narrow = _to_float(target, instruction) if target in _FLOATS else _to_integer(DTYPES[target], instruction)
        return lambda a: narrow(widen(a))
    if target in _FLOATS:
        return _integer_to_float(target, instruction)
    dtype = DTYPES[target]
    if "sat" in instruction.modifiers:
        limits = np.iinfo(dtype)
        own = np.iinfo(DTYPES[source])
        return lambda a: np.clip(a, max(own.min, limits.min), min(own.max, limits.max)).astype(dtype)
    return lambda a: a.astype(dtype)


def _to_integer(dtype: Dtype, instruction: Instruction) -> Function:
    """Return a function that rounds, then clamps to the integer's range; NaN becomes 0 (PTX ISA 9.0, section cvt)."""
    name = next((m for m in instruction.modifiers if m in _TO_INTEGER), None)
    if name is None:
        raise unsupported(instruction)
    rounded = _TO_INTEGER[name]
    limits = np.iinfo(dtype)
    too_large = 2.0 ** (8 * dtype.itemsize - (dtype.kind == "i"))

    def convert(a: Values) -> Values:
        wide = rounded(a.astype(np.float64))
        inside = (wide >= limits.min) & (wide < too_large)
        clamped = np.where(wide > 0, dtype.type(limits.max), dtype.type(limits.min))
        result = np.where(inside, np.where(inside, wide, 0.0).astype(dtype), clamped)
        return np.where(np.isnan(wide), dtype.type(0), result)

    return convert


def _integer_to_float(target: str, instruction: Instruction) -> Function:
    if not {"rn", "rz", "rm", "rp"} & set(instruction.modifiers):
        raise unsupported(instruction)
    if target == "bf16":
        if "rn" not in instruction.modifiers:
            raise unsupported(instruction)
        return lambda a: float_to_bf16(a.astype(np.float64).astype(np.float32))
    return lambda a: _directed(a, DTYPES[target], instruction)


def _directed(a: Values, dtype: Dtype, instruction: Instruction) -> Values:
    """Convert to a float type, rounded in the direction that the instruction names."""
    nearest = a.astype(dtype)
    modifiers = instruction.modifiers
    if not {"rz", "rm", "rp"} & set(modifiers):
        return nearest
    exact, back = a.astype(np.longdouble), nearest.astype(np.longdouble)
    if "rz" in modifiers:
        limit, wrong = 0.0, np.abs(back) > np.abs(exact)
    elif "rm" in modifiers:
        limit, wrong = -np.inf, back > exact
    else:
        limit, wrong = np.inf, back < exact
    return np.where(wrong, np.nextafter(nearest, dtype.type(limit)), nearest)


def _to_float(target: str, instruction: Instruction) -> Function:
    """Return the conversion of float16, float32 or float64 to a float type."""
    modifiers = instruction.modifiers
    if target in ("bf16", "f16"):
        if {"rm", "rp"} & set(modifiers):
            raise unsupported(instruction)
        narrow = float_to_bf16 if target == "bf16" else float_to_half
        convert: Function = lambda a: narrow(a, toward_zero="rz" in modifiers)  # noqa: E731
    elif target == "tf32":
        convert = lambda a: _to_tf32(a, away="rna" in modifiers)  # noqa: E731
    elif name := next((m for m in modifiers if m in _TO_INTEGER), None):
        convert = lambda a: _TO_INTEGER[name](a).astype(DTYPES[target])  # noqa: E731
    else:
        convert = lambda a: _directed(a, DTYPES[target], instruction)  # noqa: E731
    if "ftz" in modifiers and target == "f32":
        unflushed = convert
        convert = lambda a: flush(unflushed(a))  # noqa: E731
    return _bounded(convert, modifiers)


def _bounded(convert: Function, modifiers: tuple[str, ...]) -> Function:
    """``.sat`` clamps to [0, 1], NaN to 0; ``.relu`` clamps below at 0."""
    if "sat" in modifiers:
        return lambda a: convert(np.fmin(np.fmax(a, a.dtype.type(0)), a.dtype.type(1)))
    if "relu" in modifiers:
        return lambda a: convert(not_negative(a))
    return convert


def _to_tf32(values: Values, away: bool) -> Values:
    """Round float32 to the ten mantissa bits of tf32: ties away from zero (``.rna``) or to even."""
    bits = values.view(np.uint32)
    up = np.uint32(0x1000) if away else np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    rounded = ((bits + up) & np.uint32(0xFFFF_E000)).view(np.float32)
    return np.where(np.isfinite(values), rounded, values)
