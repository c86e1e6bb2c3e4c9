"""Predicates and choices: setp, set, selp, slct."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from attnsim.ptx.counters import bf16_to_float, halves, pack
from attnsim.ptx.floats import flush
from attnsim.ptx.integers import elementwise, pick
from attnsim.ptx.lanes import Mask, Values
from attnsim.ptx.machine import Machine, Step, items, operation, unsupported, value_type
from attnsim.ptx.registers import DTYPES
from attnsim.ptx.syntax import Instruction

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
