"""The register file: one row per register, and closures that read and write it by type."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnsim.ptx import compiled_arithmetic
from attnsim.ptx.faults import UnsupportedInstruction
from attnsim.ptx.lanes import Indices, Mask, Values
from attnsim.ptx.syntax import Immediate, Negated, Operand, Register, Symbol, size_of

Read = Callable[[], Values]
Write = Callable[[Values, Mask], None]
ReadRows = Callable[[], Values]
WriteRows = Callable[[Values, Mask], None]

Dtype = np.dtype[Any]

UNSIGNED: dict[int, Dtype] = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
"""Unsigned types by their size in bytes."""


def row_type(width: int) -> Dtype:
    """Return the NumPy type for `width` bytes that one lane loads or stores at once."""
    return UNSIGNED.get(width) or np.dtype(f"V{width}")


DTYPES: dict[str, Dtype] = {
    "pred": np.dtype(np.bool_),
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "bf16": np.dtype(np.uint16),
    "f16x2": np.dtype(np.uint32),
    "bf16x2": np.dtype(np.uint32),
    "f32x2": np.dtype(np.uint64),
    "tf32": np.dtype(np.float32),
    **{
        f"{kind}{8 * size}": np.dtype(f"{letter}{size}")
        for kind, letter in (("u", "u"), ("b", "u"), ("s", "i"))
        for size in (1, 2, 4, 8)
    },
}
"""NumPy type of each PTX type; bf16 and packed pairs are raw bits."""


SYMBOL_BYTES = 8


class Place(NamedTuple):
    """A register's number in the kernel, its row in the file of its width, and that width in bytes."""

    number: int
    row: int
    size: int


class Rows(NamedTuple):
    """Places of several registers of one width."""

    numbers: Indices
    rows: Indices
    size: int

    def joined(self, other: Rows) -> Rows:
        """Concatenate with other places."""
        return Rows(np.append(self.numbers, other.numbers), np.append(self.rows, other.rows), self.size)


_BY_NAME = {dtype.str: dtype for dtype in DTYPES.values()}

ONE, AGREED, WIDE = 1, 2, 0
"""State of a row of the register file: one value for all lanes, in its first place; that value in every place; or a
different value in each lane."""


class Registers:
    """Registers of a batch of lanes: one row each, in one array per register width.

    While all lanes agree (loop counters, parameters, addresses of tiles) only the first place of a row is read and
    written, which costs almost nothing. A register that was never written holds all ones (NaN, -1). A read returns a
    view of the register, which changes with it.

    Parameters
    ----------
    passing : mapping of str to int
        Registers that are live in one basic block only, and the number of that block: blocks share these rows.

    Attributes
    ----------
    files : dict of str to ndarray ``[registers, lanes]``
        Register files by the name of a NumPy type; types of one width share memory.
    state : ndarray of uint8
        State of each register, in the order in which they were first named.
    """

    def __init__(self, passing: Mapping[str, int]) -> None:
        self._passing = passing
        self._taken: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._shared: dict[tuple[int, int], Place] = {}
        self._count = 0
        self._places: dict[str, Place] = {}
        self._initial: dict[int, list[int]] = {1: [], 2: [], 4: [], 8: []}
        self._preset: set[str] = set()
        self._outside: set[str] = set()
        self.files: dict[str, Values] = {}
        self.state: Values = np.zeros(0, np.uint8)

    def start(self, lanes: int) -> None:
        """Reset all registers, for so many lanes; 0 releases the memory."""
        self._preset.clear()
        self.state = np.full(self._count, ONE, np.uint8)
        for size, initial in self._initial.items():
            file = np.empty((len(initial), lanes), UNSIGNED[size])
            file[:, :1] = np.array(initial, UNSIGNED[size]).reshape(-1, 1)[:, :lanes]
            self.files |= {name: file.view(dtype) for name, dtype in _BY_NAME.items() if dtype.itemsize == size}

    def place(self, operand: Operand, size: int) -> Place | None:
        """Return the place of an operand of so many bytes; None if it is not a register of that width."""
        match operand:
            case Register() if size_of(operand.type) != size:
                return None
            case Register() | Symbol():
                if isinstance(operand, Symbol) and size != SYMBOL_BYTES:
                    return None
                if isinstance(operand, Symbol) or operand.special:
                    self._outside.add(operand.name)
                return self._place(operand.name, size)
        return None

    def constant(self, text: str, dtype: Dtype) -> Place:
        """Return the place of a register that holds a constant and is never written."""
        bits = int(immediate(text, dtype).view(UNSIGNED[dtype.itemsize])[0])
        return self._place(f"{bits} of {dtype.itemsize}", dtype.itemsize, bits)

    def _place(self, name: str, size: int, bits: int = -1) -> Place:
        if name not in self._places:
            basic_block = self._passing.get(name)
            self._places[name] = self._new(size, bits) if basic_block is None else self._shared_place(basic_block, size)
        return self._places[name]

    def _new(self, size: int, bits: int) -> Place:
        self._count += 1
        self._initial[size].append(bits % (1 << 8 * size))
        return Place(self._count - 1, len(self._initial[size]) - 1, size)

    def _shared_place(self, basic_block: int, size: int) -> Place:
        """Return a place that is shared with registers of other basic blocks."""
        taken = self._taken[basic_block, size]
        self._taken[basic_block, size] += 1
        if (taken, size) not in self._shared:
            self._shared[taken, size] = self._new(size, -1)
        return self._shared[taken, size]

    def preset(self, name: str, values: Values) -> None:
        """Set a special register or a symbol, if the kernel uses it."""
        if name in self._places:
            number, row, _ = self._places[name]
            self.files[values.dtype.str][row, : len(values)] = values
            self.state[number] = ONE if len(values) == 1 else WIDE
            self._preset.add(name)

    def without_preset(self) -> list[str]:
        """Return the special registers and symbols that the kernel reads but nobody has preset."""
        return sorted(self._outside - self._preset)

    def read(self, operand: Operand, dtype: Dtype) -> Read:
        """Return a closure that reads an operand as `dtype`; wider registers are truncated."""
        if isinstance(operand, Immediate):
            constant = immediate(operand.text, dtype)
            return lambda: constant
        if isinstance(operand, Negated):
            positive = self.read(operand.predicate, dtype)
            return lambda: ~positive()
        if not isinstance(operand, Symbol | Register):
            raise UnsupportedInstruction(f"operand {operand}")
        size = SYMBOL_BYTES if isinstance(operand, Symbol) else size_of(operand.type)
        place = self.place(operand, size)
        assert place is not None
        (number, row, _), files, kind = place, self.files, dtype.str

        def read() -> Values:
            values: Values = files[kind][row]
            return values[:1] if self.state[number] else values

        if size == dtype.itemsize:
            return read
        kind, bits = UNSIGNED[size].str, UNSIGNED[dtype.itemsize]
        return lambda: read().astype(bits).view(dtype)

    def write(self, operand: Operand, dtype: Dtype) -> Write:
        """Return a closure that writes values of `dtype`, sign-extended into a wider register."""
        if isinstance(operand, Symbol) and operand.name == "_":
            return lambda _values, _mask: None
        if not isinstance(operand, Register) or operand.special:
            raise UnsupportedInstruction(f"destination {operand}")
        size = size_of(operand.type)
        (number, row, _), files = self._place(operand.name, size), self.files
        extended = size != dtype.itemsize
        wide, bits = np.dtype(f"{'i' if dtype.kind == 'i' else 'u'}{size}"), UNSIGNED[dtype.itemsize]

        def write(value: Values, mask: Mask) -> None:
            if extended:
                value = (value if value.dtype.kind in "iu" else value.view(bits)).astype(wide)
            register = files[value.dtype.str][row]
            if not mask.full:
                if self.state[number] == ONE:
                    register[:] = register[0]
                np.copyto(register, value, where=mask.lanes)
                self.state[number] = WIDE
            elif len(value) == 1:
                register[0], self.state[number] = value[0], ONE
            else:
                register[:], self.state[number] = value, WIDE

        return write

    def write_active(self, operand: Operand, dtype: Dtype) -> Write:
        """Return a closure that writes one value per *active* lane, as loads return them."""
        write = self.write(operand, dtype)

        def step(values: Values, mask: Mask) -> None:
            if not mask.full:
                spread = np.empty(len(mask.lanes), values.dtype)
                spread[mask.index] = values
                values = spread
            write(values, mask)

        return step

    def read_rows(self, operands: Sequence[Operand], dtype: Dtype) -> ReadRows:
        """Return a closure that copies many operands' values, ``[operands, lanes]``, or ``[operands, 1]`` if all agree.

        If one operand differs between lanes, all are returned at full width.
        """
        rows = self.rows(operands, dtype)
        if rows:

            def found() -> Values:
                if self.state[rows.numbers].all():
                    return self.files[dtype.str][rows.rows, :1]
                self.spread(rows)
                return self.files[dtype.str][rows.rows]

            return found
        reads = [self.read(operand, dtype) for operand in operands]

        def one_by_one() -> Values:
            values = [read() for read in reads]
            wide = np.empty((len(values), max(len(value) for value in values)), dtype)
            for row, value in zip(wide, values, strict=True):
                row[:] = value
            return wide

        return one_by_one

    def write_rows(self, operands: Sequence[Operand], dtype: Dtype) -> WriteRows:
        """Return a closure that writes values ``[operands, lanes]`` or ``[operands, 1]`` of `dtype`."""
        places = self.rows(operands, dtype)
        if not places:
            writes = [self.write(operand, dtype) for operand in operands]

            def one_by_one(rows: Values, mask: Mask) -> None:
                for write, row in zip(writes, rows, strict=True):
                    write(row, mask)

            return one_by_one

        def write(rows: Values, mask: Mask) -> None:
            file, lanes = self.files[rows.dtype.str], len(mask.lanes)
            if mask.full:
                file[places.rows, : rows.shape[1]] = rows
                self.state[places.numbers] = WIDE if rows.shape[1] == lanes else ONE
                return
            self.spread(places)
            self.state[places.numbers] = WIDE
            for begin, end in mask.spans.tolist():
                file[places.rows, begin:end] = rows[:, begin:end] if rows.shape[1] == lanes else rows

        return write

    def write_active_rows(self, operands: Sequence[Operand], dtype: Dtype) -> WriteRows:
        """Return a closure that writes values of the *active* lanes, ``[operands, active]``."""
        places, write = self.rows(operands, dtype), self.write_rows(operands, dtype)

        def active(rows: Values, mask: Mask) -> None:
            if mask.full:
                return write(rows, mask)
            if not places:
                spread = np.empty((len(rows), len(mask.lanes)), rows.dtype)
                mask.put(spread, rows)
                return write(spread, mask)
            self.spread(places)
            self.state[places.numbers] = WIDE
            file, at = self.files[rows.dtype.str], 0
            for begin, end in mask.spans.tolist():
                file[places.rows, begin:end] = rows[:, at : at + end - begin]
                at += end - begin

        return active

    def spread(self, of: Rows) -> None:
        """Broadcast rows that hold one value in their first place to all their places."""
        compiled_arithmetic.spread(self.state, of.numbers, of.rows, self.files[UNSIGNED[of.size].str])

    def claim(self, of: Rows, mask: Mask) -> Values:
        """Return the register file of a width, to a caller that then writes every active lane of these rows."""
        if not mask.full:
            self.spread(of)
        self.state[of.numbers] = WIDE
        return self.files[UNSIGNED[of.size].str]

    def rows(self, operands: Sequence[Operand], dtype: Dtype) -> Rows | None:
        """Return the places of these operands; None unless all are registers or constants as wide as `dtype`."""
        size = dtype.itemsize
        places = [self.constant(o.text, dtype) if isinstance(o, Immediate) else self.place(o, size) for o in operands]
        known = [place for place in places if place]
        if len(known) < len(operands):
            return None
        return Rows(np.array([p.number for p in known]), np.array([p.row for p in known]), size)


@functools.lru_cache(maxsize=4096)
def immediate(text: str, dtype: Dtype) -> Values:
    """Parse a constant to an array ``[1]``."""
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    kind = digits[:2].lower()
    if kind in ("0f", "0d"):
        bits = np.array([int(digits[2:], 16)], np.uint32 if kind == "0f" else np.uint64)
        value = sign * bits.view(np.float32 if kind == "0f" else np.float64)
        return value.view(dtype) if value.dtype.itemsize == dtype.itemsize else value.astype(dtype)
    if dtype.kind == "f":
        return np.array([sign * float(digits)], dtype)
    if dtype.kind == "b":
        return np.array([int(digits, 0) != 0])
    digits = digits.rstrip("U")
    number = sign * int(digits, 0 if not digits.startswith("0") or kind in ("0x", "0b") else 8)
    return np.array([number % (1 << 8 * dtype.itemsize)], UNSIGNED[dtype.itemsize]).view(dtype)
