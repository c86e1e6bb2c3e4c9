"""Tapes: arithmetic instructions between memory accesses, executed in order by one compiled loop.

Python takes longer to start an instruction than a core takes to execute it. Tapes are built when a kernel is compiled:
this module decides which instructions can be on a tape, and encodes their operands.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from attnsim.ptx import compiled_arithmetic
from attnsim.ptx.lanes import Mask
from attnsim.ptx.machine import Machine
from attnsim.ptx.registers import DTYPES, Place
from attnsim.ptx.syntax import Immediate, Instruction, Register

Code = tuple[int, ...]
"""Encoding of one instruction: family, operation, then number, row and width of each operand."""


class Kind:
    """Encoding of an opcode on a tape: family and operation, and the types of its target and sources."""

    def __init__(self, family: int, operation: int, *types: str) -> None:
        self.family, self.operation, self.types = family, operation, types


@functools.cache
def kinds() -> dict[str, Kind]:
    """Return the opcodes that can be on a tape, with their encodings."""
    c = compiled_arithmetic
    two = {"add": c.ADD, "sub": c.SUB, "min": c.MIN, "max": c.MAX}
    logic = {"and": c.AND, "or": c.OR, "xor": c.XOR}
    orders = {"eq": c.EQ, "ne": c.NE, "lt": c.LT, "le": c.LE, "gt": c.GT, "ge": c.GE}
    rounded = {f"{name}.rn": op for name, op in {**two, "mul": c.MUL}.items() if name not in ("min", "max")}
    found = {
        **{
            f"{name}.f32": Kind(c.F32, op, "f32", "f32", "f32") for name, op in {**two, **rounded, "mul": c.MUL}.items()
        },
        **{f"{name}.f32": Kind(c.F32, op, "f32", "f32") for name, op in {"neg": c.NEG, "abs": c.ABS}.items()},
        **{f"setp.{name}.f32": Kind(c.COMPARE_F32, op, "pred", "f32", "f32") for name, op in orders.items()},
        **{f"{name}.pred": Kind(c.PREDICATES, op, "pred", "pred", "pred") for name, op in logic.items()},
        **{f"{name}.pred": Kind(c.PREDICATES, op, "pred", "pred") for name, op in {"not": c.NOT, "mov": c.MOV}.items()},
        "fma.rn.f32": Kind(c.FUSED, 0, "f32", "f32", "f32", "f32"),
        "cvt.rn.f16x2.f32": Kind(c.PACK, c.F16, "f16x2", "f32", "f32"),
        "cvt.rn.bf16x2.f32": Kind(c.PACK, c.BF16, "bf16x2", "f32", "f32"),
        **{f"cvt.{to}32.{of}64": Kind(c.NARROW, 0, f"{to}32", f"{of}64") for to in "us" for of in "us"},
    }
    for bits in ("32", "64"):
        raw, of = f"b{bits}", getattr(c, f"LOGIC_{bits}")
        found |= {f"{name}.{raw}": Kind(of, op, raw, raw, raw) for name, op in logic.items()}
        found |= {f"mov.{one}{bits}": Kind(of, c.MOV, raw, raw) for one in "busf"}
        found |= {f"selp.{one}{bits}": Kind(getattr(c, f"SELECT_{bits}"), 0, raw, raw, raw, "pred") for one in "busf"}
        found |= {
            f"setp.{name}.{raw}": Kind(getattr(c, f"COMPARE_U{bits}"), orders[name], "pred", raw, raw)
            for name in ("eq", "ne")
        }
        found[f"not.{raw}"] = Kind(of, c.NOT, raw, raw)
        found[f"shl.{raw}"] = Kind(getattr(c, f"SHIFT_U{bits}"), c.LEFT, raw, raw, "u32")
        found[f"neg.s{bits}"] = Kind(getattr(c, f"S{bits}"), c.NEG, raw, raw)
    for kind in ("u32", "s32", "u64", "s64"):
        of, compare = getattr(c, kind.upper()), getattr(c, f"COMPARE_{kind.upper()}")
        found |= {f"{name}.{kind}": Kind(of, op, kind, kind, kind) for name, op in {**two, "mul.lo": c.MUL}.items()}
        found |= {f"setp.{name}.{kind}": Kind(compare, op, "pred", kind, kind) for name, op in orders.items()}
        found[f"mad.lo.{kind}"] = Kind(getattr(c, f"MAD_U{kind[1:]}"), 0, *(f"u{kind[1:]}",) * 4)
        found[f"shr.{kind}"] = Kind(getattr(c, f"SHIFT_{kind.upper()}"), c.RIGHT, kind, kind, "u32")
    for one in "us":
        narrow, wide, named = f"{one}32", f"{one}64", one.upper()
        found[f"cvt.{wide}.{narrow}"] = Kind(getattr(c, f"WIDEN_{named}"), 0, wide, narrow)
        found[f"mul.wide.{narrow}"] = Kind(getattr(c, f"MUL_WIDE_{named}"), 0, wide, narrow, narrow)
        found[f"mad.wide.{narrow}"] = Kind(getattr(c, f"MAD_WIDE_{named}"), 0, wide, narrow, narrow, wide)
    return found


def code_of(instruction: Instruction, machine: Machine) -> Code | None:
    """Encode an instruction, without its guard, for a tape; None if that is not possible."""
    kind, target = kinds().get(".".join((instruction.name, *instruction.modifiers))), instruction.operands[:1]
    if not kind or len(instruction.operands) != len(kind.types):
        return None
    if not isinstance(target[0], Register) or target[0].special:
        return None
    places: list[Place] = []
    for operand, ptx_type in zip(instruction.operands, kind.types, strict=True):
        dtype = DTYPES[ptx_type]
        if isinstance(operand, Immediate):
            place: Place | None = machine.registers.constant(operand.text, dtype)
        else:
            place = machine.registers.place(operand, dtype.itemsize)
        if place is None:
            return None
        places.append(place)
    places += [places[1]] * (4 - len(places))
    return (kind.family, kind.operation, *(number for place in places for number in place))


class Tape:
    """A step that executes encoded instructions in order."""

    def __init__(self, instructions: Sequence[Code], machine: Machine) -> None:
        self._code = np.array(instructions, np.int64)
        self._registers, self._play = machine.registers, compiled_arithmetic.play

    def __call__(self, mask: Mask) -> None:
        """Execute all instructions."""
        registers = self._registers
        files = registers.files
        self._play(
            self._code,
            mask.spans,
            mask.full,
            registers.state,
            files["|u1"],
            files["<u4"],
            files["<i4"],
            files["<f4"],
            files["<u8"],
            files["<i8"],
        )
