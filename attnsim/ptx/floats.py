"""Float arithmetic in f32 and f64, and in f16 and bf16, single or packed in pairs.

Rounding is to nearest even; f32 also rounds down, up and to zero.

``cvt``: between integers and floats of all widths, and pairs of floats into one register.

Predicates and choices: setp, set, selp, slct.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from attnsim.ptx import compiled_arithmetic
from attnsim.ptx.counters import bf16_to_float, float_to_bf16, float_to_half, halves, pack
from attnsim.ptx.integers import Function, compile_integer, elementwise, pick
from attnsim.ptx.lanes import Mask, Values
from attnsim.ptx.machine import Machine, Step, items, operation, unsupported, value_type
from attnsim.ptx.registers import DTYPES, Dtype
from attnsim.ptx.syntax import Instruction


def flush(values: Values) -> Values:
    """Flush subnormal float32 to zero, as ``.ftz`` asks."""
    found = np.empty(values.shape, np.float32)
    compiled_arithmetic.flush(values.reshape(-1), found.reshape(-1))
    return found


def _fused(a: Values, b: Values, c: Values) -> Values:
    """``a b + c``, rounded to float64 and then to the operands' type (double rounding)."""
    return (a.astype(np.float64) * b + c).astype(a.dtype)


def _fused_double(a: Values, b: Values, c: Values) -> Values:
    """``a b + c`` for float64, computed in the machine's longest float type."""
    return (a.astype(np.longdouble) * b + c).astype(np.float64)


def _directed(name: str, toward: str) -> Function:
    """Return sums and products of f32 rounded down (``.rm``), up (``.rp``) or to zero (``.rz``).

    A product of two f32 is exact in float64, and the rounding error of a float64 sum is known exactly (Knuth, The Art
    of Computer Programming, volume 2, section 4.2.2, theorem B). So the result is the exact value's neighbour.
    """

    def rounded(*values: Values) -> Values:
        wide = [one.astype(np.float64) for one in values]
        a = wide[0] if name in ("add", "sub") else wide[0] * wide[1]
        b = -wide[1] if name == "sub" else wide[1] if name == "add" else wide[2] if name == "fma" else np.zeros_like(a)
        total = a + b
        of_b = total - a
        found = total.astype(np.float32)
        above = (total - found) + ((a - (total - of_b)) + (b - of_b))  # how far the exact value is above what was found
        down = (above < 0) & ((toward == "rm") | ((toward == "rz") & (found > 0)))
        up = (above > 0) & ((toward == "rp") | ((toward == "rz") & (found < 0)))
        most = np.float32(np.inf)
        return np.where(down, np.nextafter(found, -most), np.where(up, np.nextafter(found, most), found))

    return rounded


def _spread_nan(function: Function) -> Function:
    """``.NaN``: the result is NaN when any operand is."""
    return lambda *values: np.where(
        np.logical_or.reduce(np.broadcast_arrays(*(np.isnan(v) for v in values))),
        values[0].dtype.type(np.nan),
        function(*values),
    )


_FUNCTIONS: dict[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "fma": _fused,
    "mad": _fused,
    "div": np.divide,
    "min": lambda *values: functools.reduce(np.fmin, values),
    "max": lambda *values: functools.reduce(np.fmax, values),
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "rcp": np.reciprocal,
    "rsqrt": lambda a: np.reciprocal(np.sqrt(a)),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "copysign": lambda a, b: np.copysign(b, a),
}


_MODIFIERS = ("rn", "approx", "full", "ftz", "sat", "relu", "NaN")
"""Modifiers that are accepted besides the type; of the rounding modes only the nearest."""


@operation("add", "sub", "mul", "mad", "div", "rem", "min", "max", "neg", "abs", "sad")
def compile_arithmetic(instruction: Instruction, machine: Machine) -> Step:
    """Arithmetic that integers and floats share."""
    if "f" in value_type(instruction):
        return compile_float(instruction, machine)
    return compile_integer(instruction, machine)


@operation("fma", "sqrt", "rcp", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh", "copysign")
def compile_float(instruction: Instruction, machine: Machine) -> Step:
    """Arithmetic of floats.

    Approximate instructions (``.approx``) return the correctly rounded value here or one unit in the last place
    beside it, so they are at least as accurate as on a GPU. ``f32x2`` is two of f32 in one register of 64 bits, of
    which each half is worked on as if it stood alone (PTX ISA 9.0, "add", "sub", "mul" and "fma").
    """
    kind, modifiers = value_type(instruction), instruction.modifiers
    directed = [one for one in modifiers if one in ("rm", "rp", "rz")] if kind == "f32" else []
    known = instruction.name in (("add", "sub", "mul", "fma") if directed else _FUNCTIONS)
    if not known or not set(modifiers) <= {kind, *directed, *_MODIFIERS}:
        raise unsupported(instruction)
    function = _directed(instruction.name, directed[0]) if directed else _FUNCTIONS[instruction.name]
    if kind == "f64" and instruction.name in ("fma", "mad"):
        function = _fused_double
    if "NaN" in modifiers:
        function = _spread_nan(function)
    if kind == "f32x2" and instruction.name not in ("add", "sub", "mul", "fma"):
        raise unsupported(instruction)
    function = _finished(function, modifiers, kind.startswith("f32"))
    kinds = (kind,) * (len(instruction.operands) - 1)
    return elementwise(instruction, machine, _in_type(function, kind), kinds, kind)


def _finished(function: Function, modifiers: tuple[str, ...], single: bool) -> Function:
    """Wrap a function with flushing, saturation to [0, 1], or clamping below at 0."""
    if "ftz" in modifiers and single:
        plain = function
        function = lambda *values: flush(plain(*(flush(v) for v in values)))  # noqa: E731
    if "sat" in modifiers:
        unbounded = function
        function = lambda *values: np.fmin(np.fmax(unbounded(*values), 0), 1)  # noqa: E731
    if "relu" in modifiers:
        signed = function
        function = lambda *values: not_negative(signed(*values))  # noqa: E731
    return function


def not_negative(values: Values) -> Values:
    """``.relu``: negative values become zero; NaN stays."""
    return np.where(values < 0, values.dtype.type(0), values)


def _in_type(function: Function, kind: str) -> Function:
    """Wrap a function to take raw operands of a type; bf16 is computed in float32."""
    if kind in ("f16x2", "bf16x2"):
        bf16 = kind == "bf16x2"
        return lambda *values: pack(function(*(halves(v, bf16) for v in values)), bf16)
    if kind == "f32x2":
        return lambda *values: _pairs_as_bits(function(*(_pairs(v) for v in values)))
    if kind == "bf16":
        return lambda *values: float_to_bf16(function(*(bf16_to_float(v) for v in values)))
    return function


def _pairs(bits: Values) -> Values:
    """Unpack 64-bit registers into two floats, ``[lanes, 2]``, low half first."""
    return np.ascontiguousarray(bits).view(np.float32).reshape(-1, 2)


def _pairs_as_bits(values: Values) -> Values:
    return np.ascontiguousarray(values).view(np.uint64).reshape(-1)


@operation("testp")
def compile_test(instruction: Instruction, machine: Machine) -> Step:
    """``testp``: the class of a float."""
    kind = value_type(instruction)
    tests: dict[str, Function] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~np.isnan(a),
        "notanumber": np.isnan,
        "normal": lambda a: np.isfinite(a) & (np.abs(a) >= np.finfo(a.dtype).tiny),
        "subnormal": lambda a: (a != 0) & (np.abs(a) < np.finfo(a.dtype).tiny),
    }
    return elementwise(instruction, machine, tests[instruction.modifiers[0]], (kind,), "pred")


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
    return lambda a: _directed_conversion(a, DTYPES[target], instruction)


def _directed_conversion(a: Values, dtype: Dtype, instruction: Instruction) -> Values:
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
        convert = lambda a: _directed_conversion(a, DTYPES[target], instruction)  # noqa: E731
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


Compare = Callable[[Values, Values], Values]

_ORDERED: dict[str, Compare] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}
_COMBINE: dict[str, Compare] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _comparison(instruction: Instruction, kind: str) -> Compare:
    """The comparison on raw operands. Of floats, ``ltu`` and its like hold for NaN, and ``ne`` does not."""
    name = next((m for m in instruction.modifiers if m in _ORDERED or m.removesuffix("u") in _ORDERED), None)
    if name is None or "f16x2" in kind:
        raise unsupported(instruction)
    floats = "f" in kind
    if name == "ne" and floats:
        compare: Compare = lambda a, b: (a < b) | (a > b)  # noqa: E731
    elif name in _ORDERED:
        compare = _ORDERED[name]
    else:
        ordered = _ORDERED[name.removesuffix("u")]
        compare = lambda a, b: ordered(a, b) | np.isnan(a) | np.isnan(b)  # noqa: E731
    if kind == "bf16":
        return lambda a, b: compare(bf16_to_float(a), bf16_to_float(b))
    if "ftz" in instruction.modifiers and kind == "f32":
        return lambda a, b: compare(flush(a), flush(b))
    return compare


@operation("setp")
def compile_set_predicate(instruction: Instruction, machine: Machine) -> Step:
    """``setp.cmp.type p, a, b`` and ``setp.cmp.bool.type p|q, a, b, c``."""
    kind = value_type(instruction)
    target, first, second, *rest = instruction.operands
    pairs, bf16 = kind in ("f16x2", "bf16x2"), kind == "bf16x2"
    compare = _comparison(instruction, "f16" if pairs else kind)
    a, b = machine.read(first, kind), machine.read(second, kind)
    writes = [machine.write(t, "pred") for t in items(target)]
    if pairs and (rest or len(writes) != 2):
        raise unsupported(instruction)
    combine = next((_COMBINE[m] for m in instruction.modifiers if m in _COMBINE), lambda p, _: p)
    third = machine.read(rest[0], "pred") if rest else lambda: np.ones(1, bool)

    def step(mask: Mask) -> None:
        other = third()
        found: Sequence[Values]
        if pairs:  # one predicate for each half
            found = list(np.ascontiguousarray(compare(halves(a(), bf16), halves(b(), bf16)).T))
        else:
            holds = compare(a(), b())
            found = holds, ~holds
        for write, value in zip(writes, found, strict=False):
            write(combine(value, other), mask)

    return step


@operation("set")
def compile_set(instruction: Instruction, machine: Machine) -> Step:
    """``set.cmp.dtype.type d, a, b``: all ones or 1.0 where the comparison holds, of pairs for each half."""
    result, kind = instruction.modifiers[-2:]
    if len(instruction.operands) != 3:
        raise unsupported(instruction)
    if kind in ("f16x2", "bf16x2"):
        return elementwise(instruction, machine, _set_of_pairs(instruction, result, kind), (kind, kind), result)
    compare = _comparison(instruction, kind)
    dtype = DTYPES[result]
    yes = dtype.type(1) if dtype.kind == "f" else np.array(-1).astype(dtype)[()]
    return elementwise(instruction, machine, lambda a, b: pick(compare(a, b), yes, dtype.type(0)), (kind, kind), result)


def _set_of_pairs(instruction: Instruction, result: str, kind: str) -> Compare:
    compare, bf16 = _comparison(instruction, "f16"), kind == "bf16x2"

    def chosen(a: Values, b: Values) -> Values:
        holds = compare(halves(a, bf16), halves(b, bf16))
        if result == kind:
            return pack(holds.astype(np.float32 if bf16 else np.float16), bf16)
        return np.ascontiguousarray(np.where(holds, np.uint16(0xFFFF), np.uint16(0))).view(DTYPES[result]).reshape(-1)

    return chosen


@operation("selp")
def compile_select(instruction: Instruction, machine: Machine) -> Step:
    """``selp d, a, b, p``: a where p holds."""
    kind = value_type(instruction)
    return elementwise(instruction, machine, lambda a, b, p: pick(p, a, b), (kind, kind, "pred"), kind)


@operation("slct")
def compile_select_by_sign(instruction: Instruction, machine: Machine) -> Step:
    """``slct d, a, b, c``: a where c is not negative."""
    kind, sign = instruction.modifiers[-2:]
    return elementwise(instruction, machine, lambda a, b, c: pick(c >= 0, a, b), (kind, kind, sign), kind)
