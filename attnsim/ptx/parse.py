"""Parses PTX text: the subset of the grammar that NVRTC emits, including inline assembly.

Grammar: PTX ISA 9.0, chapters 4 (Syntax) and 5 (State Spaces, Types and Variables).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import replace

from attnsim.errors import InputError
from attnsim.ptx.faults import UnsupportedInstruction
from attnsim.ptx.syntax import (
    Address,
    Function,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Parameter,
    Register,
    Symbol,
    TensorAddress,
    Variable,
    Vector,
    size_of,
)

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_LINE_DIRECTIVE = re.compile(r"^[ \t]*\.(loc|file|version|target|address_size)\b[^\n]*$", re.M)
_VARIABLE = re.compile(
    r"(?:\.(?:visible|extern|weak|common)\s+)?\.(?P<space>shared|local|global|const)\s+"
    r"(?:\.align\s+(?P<align>\d+)\s+)?(?:\.attribute\([^)]*\)\s+)?\.(?P<type>\w+)\s+(?P<name>[\w$%]+)"
    r"(?P<dimensions>(?:\s*\[\s*\d*\s*\])*)\s*(?:=\s*(?P<content>.*))?$",
    re.S,
)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\((.*?)\))?([^{;]*)\{", re.S)
_CLUSTER = re.compile(r"\.reqnctapercluster\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?")
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+(?:\.ptr[^,]*?\s)?([\w$]+)(?:\[(\d+)\])?\s*$", re.S)
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_STATEMENT = re.compile(r"[^;]*;")
_REGISTERS = re.compile(r"\.reg\s*(?:\.v\d\s*)?\.(\w+)\s+(.*)", re.S)
_INSTRUCTION = re.compile(r"(?:@(!?\s*[\w$%]+)\s+)?([A-Za-z][\w.:]*)\s*(.*)", re.S)
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,{}\[\]]+")
_NUMBER = re.compile(r"-?\s*(0[fFdD][0-9a-fA-F]+|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+\.?\d*(?:[eE][-+]?\d+)?U?)$")


@functools.lru_cache(maxsize=64)
def parse(ptx: str) -> Mapping[str, Function]:
    """Parse the entry points of a translation unit, by name; results are cached by text."""
    # What goes leaves its line ends, so that lines keep their numbers.
    text = _LINE_DIRECTIVE.sub("", _COMMENT.sub(lambda found: " " + "\n" * found[0].count("\n"), ptx))
    outside, bodies = [], []
    position = 0
    for found in _ENTRY.finditer(text):
        end = _closing_brace(text, found.end())
        outside.append(text[position : found.start()])
        line = 1 + text.count("\n", 0, found.end())
        bodies.append((found[1], found[2] or "", _cluster(found[3]), text[found.end() : end], line))
        position = end + 1
    outside.append(text[position:])
    variables = tuple(v for part in " ".join(outside).split(";") if (v := _variable(part)) is not None)
    return {
        name: _Body(body, line).function(name, parameters, variables, cluster)
        for name, parameters, cluster, body, line in bodies
    }


def _cluster(directives: str) -> int:
    """Return the blocks of a cluster; raises UnsupportedInstruction unless they form a row in x."""
    found = _CLUSTER.search(directives)
    x, *others = [int(size or 1) for size in found.groups()] if found else [1]
    if any(size > 1 for size in others):
        raise UnsupportedInstruction(
            f"clusters of {x} x {' x '.join(map(str, others))} blocks; those in a row are known"
        )
    return x


def _closing_brace(text: str, start: int) -> int:
    depth = 1
    for found in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if found[0] == "{" else -1
        if depth == 0:
            return found.start()
    raise InputError("the PTX ends inside a function")


def _variable(statement: str) -> Variable | None:
    """Return the variable that a statement declares, else None."""
    start = re.search(r"(?:\.(?:visible|extern|weak|common)\s+)?\.(?:shared|local|global|const)\s", statement)
    found = _VARIABLE.match(statement[start.start() :].strip()) if start else None
    if found is None:
        return None
    dimensions = re.findall(r"\[\s*(\d*)\s*\]", found["dimensions"])
    item = size_of(found["type"])
    size = item * math.prod(int(d or 0) for d in dimensions)
    content = b"".join(_bits(number, item) for number in re.findall(r"-?\w+", found["content"] or ""))
    return Variable(
        space=found["space"],
        name=found["name"],
        align=int(found["align"] or item),
        size_bytes=size,
        content=content.ljust(size, b"\0"),
        given=found["content"] is not None,
    )


def _bits(number: str, size: int) -> bytes:
    value = int(number[2:], 16) if number[:2].lower() in ("0f", "0d") else int(number.rstrip("U"), 0)
    return (value % (1 << 8 * size)).to_bytes(size, "little")


def _parameter(text: str) -> Parameter:
    found = _PARAMETER.match(text.strip())
    if found is None:
        raise UnsupportedInstruction(f"parameter '{text.strip()}'")
    return Parameter(found[2], found[1], size_of(found[1]) * int(found[3] or 1))


class _Body:
    """Parser of one function body; scopes ``{ }`` of inline assembly have their own registers and labels."""

    def __init__(self, text: str, line: int) -> None:
        self._line = line
        self._scopes = [0]
        self._registers: dict[tuple[int, str], str] = {}
        self._labels: dict[tuple[int, str], int] = {}
        self._tables: dict[str, tuple[str, ...]] = {}
        self._variables: list[Variable] = []
        self._symbols: set[str] = set()
        self._operands: dict[str, Operand] = {}
        self._code: list[tuple[Instruction, tuple[int, ...]]] = []  # with the scopes that it stands in
        self._parse(text)

    def function(self, name: str, parameters: str, variables: tuple[Variable, ...], cluster: int) -> Function:
        """Return the parsed function, with the module variables that it names."""
        return Function(
            name,
            tuple(_parameter(p) for p in parameters.split(",") if p.strip()),
            tuple(self._resolved(instruction, scopes) for instruction, scopes in self._code),
            (*self._variables, *(v for v in variables if v.name in self._symbols)),
            cluster,
        )

    def _parse(self, text: str) -> None:
        position, scopes, label, counted = 0, 1, "", 0
        while position < len(text):
            self._line += text.count("\n", counted, position)
            counted = position
            character = text[position]
            if character.isspace() or character == ";":
                position += 1
            elif character == "{":
                self._scopes.append(scopes)
                scopes += 1
                position += 1
            elif character == "}":
                self._scopes.pop()
                position += 1
            elif found := _LABEL.match(text, position):
                label = found[1]
                self._labels[self._scopes[-1], label] = len(self._code)
                position = found.end()
            elif found := _STATEMENT.match(text, position):
                self._statement(" ".join(found[0][:-1].split()), label)
                position = found.end()
            else:
                raise InputError(f"line {self._line}: not PTX: {text[position : position + 60]!r}")

    def _statement(self, text: str, label: str) -> None:
        if not text.startswith("."):
            try:
                self._code.append((self._instruction(text), tuple(self._scopes)))
            except (UnsupportedInstruction, AssertionError) as fault:
                what = f": {fault.what}" if isinstance(fault, UnsupportedInstruction) else ""
                message = f"line {self._line} of the PTX '{text}' is not known to the interpreter{what}"
                raise UnsupportedInstruction(message) from fault
        elif found := _REGISTERS.match(text):
            for name in found[2].split(","):
                self._registers[self._scopes[-1], name.split("<")[0].strip()] = found[1]
        elif text.startswith(".branchtargets"):
            self._tables[label] = tuple(name.strip() for name in text.split(maxsplit=1)[1].split(","))
        elif (variable := _variable(text)) is not None:
            self._variables.append(variable)

    def _instruction(self, text: str) -> Instruction:
        found = _INSTRUCTION.match(text)
        if found is None:
            raise InputError(f"line {self._line}: not a PTX instruction: {text!r}")
        guard = self._operand(found[1]) if found[1] else None
        assert guard is None or isinstance(guard, Register | Negated)
        name, *modifiers = found[2].split(".")
        return Instruction(
            name=name,
            modifiers=tuple(modifiers),
            operands=tuple(self._operand(o.strip()) for o in _OPERAND.findall(found[3]) if o.strip()),
            guard=guard,
            targets=(),
            text=text,
            line=self._line,
        )

    def _operand(self, text: str) -> Operand:
        """Parse an operand; results are cached outside of inner scopes, where a name has one meaning."""
        if len(self._scopes) > 1:
            return self._read_operand(text)
        if text not in self._operands:
            self._operands[text] = self._read_operand(text)
        return self._operands[text]

    def _read_operand(self, text: str) -> Operand:
        if text.startswith("{"):
            return Vector(tuple(self._operand(item.strip()) for item in text[1:-1].split(",")))
        if text.startswith("["):
            return self._address(text[1:-1])
        if "|" in text:
            return Vector(tuple(self._operand(item.strip()) for item in text.split("|")))
        if text.startswith("!"):
            predicate = self._operand(text[1:].strip())
            assert isinstance(predicate, Register)
            return Negated(predicate)
        if _NUMBER.match(text):
            return Immediate(text.replace(" ", ""))
        return self._name(text)

    def _address(self, text: str) -> Address | TensorAddress:
        if found := re.fullmatch(r"\s*([\w$%.]+)\s*,\s*(\{.*\})\s*", text):
            map_, place = self._operand(found[1]), self._operand(found[2])
            assert isinstance(map_, Register | Symbol | Immediate) and isinstance(place, Vector)
            return TensorAddress(map_, place.items)
        found = re.fullmatch(r"\s*([\w$%.]+)\s*(?:\+\s*(-?\s*\d+|0x[0-9a-fA-F]+))?\s*", text)
        if found is None:
            raise UnsupportedInstruction(f"address '[{text}]'")
        base = self._operand(found[1])
        assert isinstance(base, Register | Symbol | Immediate)
        return Address(base, int((found[2] or "0").replace(" ", ""), 0))

    def _name(self, text: str) -> Register | Symbol:
        """Resolve a name: a register of the innermost scope that declares it, a special register, or a symbol."""
        for scope in reversed(self._scopes):
            for declared in (text, text.rstrip("0123456789")):
                if (kind := self._registers.get((scope, declared))) is not None:
                    return Register(f"{text}#{scope}" if scope else text, kind)
        if text.startswith("%"):
            return Register(text, "b64" if text.endswith("64") else "b32", special=True)
        self._symbols.add(text)
        return Symbol(text)

    def _resolved(self, instruction: Instruction, scopes: tuple[int, ...]) -> Instruction:
        """Fill in an instruction's branch targets."""
        if instruction.name not in ("bra", "brx"):
            return instruction
        last = instruction.operands[-1] if instruction.operands else None
        names = self._tables.get(last.name) if instruction.name == "brx" and isinstance(last, Symbol) else None
        if instruction.name == "bra" and isinstance(last, Symbol):
            names = (last.name,)
        if names is None:
            raise UnsupportedInstruction(f"{instruction.place} is not known to the interpreter: a branch to no label")
        return replace(instruction, targets=tuple(self._label(name, scopes) for name in names))

    def _label(self, name: str, scopes: tuple[int, ...]) -> int:
        for scope in reversed(scopes):
            if (scope, name) in self._labels:
                return self._labels[scope, name]
        raise InputError(f"the PTX branches to {name}, which it does not have")
