"""Syntax tree of PTX: functions, instructions and operands, as the parser returns them.

Names are those of PTX ISA 9.0, chapters 4 (Syntax), 5 (State Spaces, Types and Variables) and 6 (Instruction Operands).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from attnsim.ptx.faults import UnsupportedInstruction


@dataclass(frozen=True, slots=True)
class Register:
    """A register operand: its name, unique in the function, and declared type (``b32``, ``f32``, ``pred``...).

    `special` ones (``%tid.x``) are declared by PTX itself.
    """

    name: str
    type: str
    special: bool = False


@dataclass(frozen=True, slots=True)
class Immediate:
    """A constant as written: ``-4``, ``0x7f``, ``0f3F800000``."""

    text: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """The name of a variable or of a label."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """``[base + offset]``."""

    base: Register | Symbol | Immediate
    offset: int


@dataclass(frozen=True, slots=True)
class TensorAddress:
    """``[map, {x, y, ...}]``: a place in a tensor."""

    map: Register | Symbol | Immediate
    coordinates: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b, ...}``, or two destinations ``p|q``."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Negated:
    """A predicate operand ``!p``."""

    predicate: Register


Operand = Register | Immediate | Symbol | Address | TensorAddress | Vector | Negated


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Parameters
    ----------
    name : str
        First part of the opcode: ``ld``, ``mma``...
    modifiers : tuple of str
        Other parts of the opcode.
    operands : tuple of Operand
        Operands in order.
    guard : Register, Negated or None
        Predicate of ``@p`` or ``@!p``.
    targets : tuple of int
        Possible branch targets, as indices into the function's instructions.
    text : str
        The instruction as written.
    line : int
        Line of the PTX, from 1.
    """

    name: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | Negated | None
    targets: tuple[int, ...]
    text: str
    line: int = 0

    @property
    def place(self) -> str:
        """Description of the instruction, for messages."""
        return f"'{self.text}' (line {self.line} of the PTX)"


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a state space; `size_bytes` is 0 for dynamic shared memory, `given` is true if it has contents."""

    space: str
    name: str
    align: int
    size_bytes: int
    content: bytes
    given: bool = False


@dataclass(frozen=True, slots=True)
class Parameter:
    """A kernel parameter."""

    name: str
    type: str
    size_bytes: int


@dataclass(frozen=True, eq=False, slots=True)
class Function:
    """An entry point, compared by identity, so that results can be cached by it.

    ``cluster`` is the number of consecutive blocks in a cluster (``.reqnctapercluster``).
    """

    name: str
    parameters: tuple[Parameter, ...]
    instructions: tuple[Instruction, ...]
    variables: tuple[Variable, ...]
    cluster: int = 1


@functools.cache
def size_of(ptx_type: str) -> int:
    """Return the bytes of a PTX type such as ``f32``, ``bf16x2`` or ``b64``; a predicate has 1."""
    if ptx_type == "pred":
        return 1
    found = re.fullmatch(r"[a-z]+(\d+)(?:x(\d+))?", ptx_type)
    if found is None:
        raise UnsupportedInstruction(f"type '.{ptx_type}'")
    return int(found[1]) * int(found[2] or 1) // 8


def register_names(operands: Iterable[Operand]) -> set[str]:
    """Return the names of the registers among operands, including those in addresses and vectors."""
    found: set[str] = set()
    for operand in operands:
        match operand:
            case Register():
                found.add(operand.name)
            case Negated():
                found.add(operand.predicate.name)
            case Vector():
                found |= register_names(operand.items)
            case Address():
                found |= register_names([operand.base])
            case TensorAddress():
                found |= register_names([operand.map, *operand.coordinates])
    return found
