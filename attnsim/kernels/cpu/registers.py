"""The register file: one array per register, and closures that read and write it by type."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attnsim.kernels.cpu.faults import UnsupportedInstruction
from attnsim.kernels.cpu.lanes import Mask, Values
from attnsim.kernels.cpu.ptx import Immediate, Negated, Operand, Register, Symbol, size_of

Read = Callable[[], Values]
Write = Callable[[Values, Mask], None]
ReadRows = Callable[[int], Values]
WriteRows = Callable[[Values, Mask], None]

Dtype = np.dtype[Any]

UNSIGNED: dict[int, Dtype] = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
"""Raw bits, by bytes."""


def row_type(width: int) -> Dtype:
    """The NumPy type of `width` bytes that one lane loads or stores at once."""
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
"""NumPy's type of each PTX type; bf16 and packed pairs are bits."""


class Registers:
    """Registers of a batch of lanes.

    A register is an array ``[lanes]``, or ``[1]`` while all lanes agree: loop counters, parameters and addresses of
    tiles stay that small, and cost next to nothing. One that was never written holds all ones (NaN, -1).
    """

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}
        self._initial: list[Values] = []
        self._values: list[Values] = []
        self._outside: set[str] = set()

    def _slot(self, name: str, size: int) -> int:
        if name not in self._slots:
            self._slots[name] = len(self._values)
            self._initial.append(np.full(1, -1, f"i{size}").view(UNSIGNED[size]))
            self._values.append(self._initial[-1])
        return self._slots[name]

    def reset(self) -> None:
        """Forget everything."""
        self._values[:] = self._initial

    def preset(self, name: str, values: Values) -> None:
        """Give a special register or a symbol its value, if the kernel uses it."""
        if name in self._slots:
            self._values[self._slots[name]] = values

    def without_preset(self) -> list[str]:
        """Special registers and symbols that the kernel reads and nobody has preset."""
        slots = ((name, self._slots[name]) for name in self._outside)
        return sorted(name for name, slot in slots if self._values[slot] is self._initial[slot])

    def read(self, operand: Operand, dtype: Dtype) -> Read:
        """A closure that returns the operand's value as `dtype`; wider registers are truncated."""
        if isinstance(operand, Immediate):
            constant = immediate(operand.text, dtype)
            return lambda: constant
        if isinstance(operand, Negated):
            positive = self.read(operand.predicate, dtype)
            return lambda: ~positive()
        if not isinstance(operand, Symbol | Register):
            raise UnsupportedInstruction(f"operand {operand}")
        if isinstance(operand, Symbol) or operand.special:
            self._outside.add(operand.name)
        size = 8 if isinstance(operand, Symbol) else size_of(operand.type)
        slot, values = self._slot(operand.name, size), self._values
        if size == dtype.itemsize:

            def read() -> Values:
                value = values[slot]
                return value if value.dtype is dtype else value.view(dtype)

            return read
        held = UNSIGNED[size]
        bits = UNSIGNED[dtype.itemsize]
        return lambda: values[slot].view(held).astype(bits).view(dtype)

    def write(self, operand: Operand, dtype: Dtype) -> Write:
        """A closure that stores values of `dtype`; into a wider register they are extended by their sign."""
        if isinstance(operand, Symbol) and operand.name == "_":
            return lambda _values, _mask: None
        if not isinstance(operand, Register) or operand.special:
            raise UnsupportedInstruction(f"destination {operand}")
        size = size_of(operand.type)
        slot, registers = self._slot(operand.name, size), self._values
        extended = size != dtype.itemsize
        wide, bits = np.dtype(f"{'i' if dtype.kind == 'i' else 'u'}{size}"), UNSIGNED[dtype.itemsize]

        def write(value: Values, mask: Mask) -> None:
            if extended:
                value = (value if value.dtype.kind in "iu" else value.view(bits)).astype(wide)
            if not mask.full:
                value = np.where(mask.lanes, value, registers[slot].view(value.dtype))
            registers[slot] = value

        return write

    def write_active(self, operand: Operand, dtype: Dtype) -> Write:
        """A closure that stores one value per *active* lane, as loads return them."""
        write = self.write(operand, dtype)

        def step(values: Values, mask: Mask) -> None:
            if not mask.full:
                spread = np.empty(len(mask.lanes), values.dtype)
                spread[mask.index] = values
                values = spread
            write(values, mask)

        return step

    def read_rows(self, operands: Sequence[Operand], dtype: Dtype) -> ReadRows:
        """A closure that returns many operands' values, ``[operands, lanes]``, or ``[operands, 1]``.

        Its values are new or shared with registers; those that are not the same in all lanes make all of them wide.
        """
        reads = [self.read(operand, dtype) for operand in operands]
        slots = self._slots_of(operands, dtype)
        values, count = self._values, len(reads)

        def rows(lanes: int) -> Values:
            if slots:
                found = [v if (v := values[slot]).dtype is dtype else v.view(dtype) for slot in slots]
            else:
                found = [read() for read in reads]
            if count == 1:
                return found[0].reshape(1, -1)
            joined = np.concatenate(found)
            if len(joined) in (count, count * lanes):
                return joined.reshape(count, -1)
            wide = np.empty((count, lanes), dtype)
            for row, value in zip(wide, found, strict=True):
                row[:] = value
            return wide

        return rows

    def write_rows(self, operands: Sequence[Operand], dtype: Dtype) -> WriteRows:
        """A closure that stores values ``[operands, lanes]`` or ``[operands, 1]`` of `dtype`."""
        slots, registers = self._slots_of(operands, dtype), self._values
        if slots is None:
            writes = [self.write(operand, dtype) for operand in operands]

            def one_by_one(rows: Values, mask: Mask) -> None:
                for write, row in zip(writes, rows, strict=True):
                    write(row, mask)

            return one_by_one

        def write(rows: Values, mask: Mask) -> None:
            if not mask.full:
                kept = self._wide(slots, len(mask.lanes), rows.dtype)
                np.copyto(kept, rows, where=mask.lanes)
                rows = kept
            for slot, row in zip(slots, rows, strict=True):
                registers[slot] = row

        return write

    def write_active_rows(self, operands: Sequence[Operand], dtype: Dtype) -> WriteRows:
        """A closure that stores values of the *active* lanes, ``[operands, active]``."""
        slots, registers, write = self._slots_of(operands, dtype), self._values, self.write_rows(operands, dtype)

        def active(rows: Values, mask: Mask) -> None:
            if mask.full:
                return write(rows, mask)
            if slots is None:
                spread = np.empty((len(rows), len(mask.lanes)), rows.dtype)
                mask.put(spread, rows)
                return write(spread, mask)
            kept = self._wide(slots, len(mask.lanes), rows.dtype)
            mask.put(kept, rows)
            for slot, row in zip(slots, kept, strict=True):
                registers[slot] = row

        return active

    def _wide(self, slots: Sequence[int], lanes: int, dtype: Dtype) -> Values:
        """A copy of registers, ``[slots, lanes]``."""
        values = self._values
        found = [v if (v := values[slot]).dtype is dtype else v.view(dtype) for slot in slots]
        if all(len(value) == lanes for value in found):
            return np.concatenate(found).reshape(len(slots), lanes)
        wide = np.empty((len(slots), lanes), dtype)
        for row, value in zip(wide, found, strict=True):
            row[:] = value
        return wide

    def _slots_of(self, operands: Sequence[Operand], dtype: Dtype) -> list[int] | None:
        """Where these registers are kept; None unless all are registers as wide as `dtype`."""
        plain = all(isinstance(o, Register) and not o.special and size_of(o.type) == dtype.itemsize for o in operands)
        return [self._slot(o.name, dtype.itemsize) for o in operands if isinstance(o, Register)] if plain else None


@functools.lru_cache(maxsize=4096)
def immediate(text: str, dtype: Dtype) -> Values:
    """A constant as an array ``[1]``."""
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
