"""The register file: one array per register, and closures that read and write it by type."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from attnsim.kernels.cpu.faults import UnsupportedInstruction
from attnsim.kernels.cpu.lanes import Mask, Values
from attnsim.kernels.cpu.ptx import Immediate, Negated, Operand, Register, Symbol, size_of

Read = Callable[[], Values]
Write = Callable[[Values, Mask], None]

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

    def require_presets(self) -> None:
        """Refuse as unsupported a kernel that reads a special register or a symbol that nobody has preset."""
        for name in self._outside:
            slot = self._slots[name]
            if self._values[slot] is self._initial[slot]:
                raise UnsupportedInstruction(f"'{name}' is not known to the interpreter")

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
        if not isinstance(operand, Register):
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
