"""Integers: arithmetic, which wraps as a GPU's does, shifts, fields, permutations of bytes, counts of bits.

Elementwise instructions: a NumPy function of the operands, applied in every lane.

Atomics: atom and red on global and shared memory, lane after lane in ascending order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Self

import numpy as np

from attnsim.ptx.basic_blocks import Batchable
from attnsim.ptx.counters import halves, pack
from attnsim.ptx.flow import LOCAL_WINDOW, SHARED_WINDOW, WINDOWS, space_name
from attnsim.ptx.lanes import Mask, Values
from attnsim.ptx.machine import Machine, Step, items, operation, unsupported, value_type
from attnsim.ptx.memory import sectors
from attnsim.ptx.registers import DTYPES, UNSIGNED, Dtype
from attnsim.ptx.syntax import Immediate, Instruction, Operand

Function = Callable[..., Values]

_TRIED: set[Hashable] = set()
"""Kinds of instructions with operand types that their function is known to accept."""


class Elementwise(Batchable):
    """One elementwise instruction.

    Parameters
    ----------
    function : callable
        On arrays ``[lanes]`` or, where all lanes agree, ``[1]``.
    types : tuple of dtype
        Types that the operands are read as.
    """

    def __init__(
        self,
        instruction: Instruction,
        machine: Machine,
        function: Function,
        target: Operand,
        result: Dtype,
        sources: Sequence[Operand],
        types: Sequence[Dtype],
    ) -> None:
        immediates = tuple(str(o) if isinstance(o, Immediate) else "" for o in instruction.operands[4:])
        super().__init__((instruction.name, instruction.modifiers, len(sources), immediates))
        self._registers, self._function = machine.registers, function
        self._target, self._result = target, result
        self._sources, self._types = tuple(sources), tuple(types)
        self._write = machine.registers.write(target, result)
        types = tuple(types)
        if (self.kind, types) not in _TRIED:  # a wrong number of operands is found here, not while the kernel runs
            with np.errstate(all="ignore"):
                function(*(np.ones(1, kind) for kind in types))
            _TRIED.add((self.kind, types))
        self._reads = [machine.registers.read(o, t) for o, t in zip(sources, types, strict=True)]

    def __call__(self, mask: Mask) -> None:
        """Execute it."""
        self._write(self._function(*[read() for read in self._reads]), mask)

    def together(self, others: Sequence[Self]) -> Step:
        """Return one step for all of them: the function applied once to the lanes of all instructions, concatenated."""
        members, count, function = (self, *others), 1 + len(others), self._function
        targets = [m._target for m in members]
        write = self._registers.write_rows(targets, self._result)
        write_active = self._registers.write_active_rows(targets, self._result)
        operands = [[m._sources[i] for m in members] for i in range(len(self._sources))]
        # What all read from one place is read once.
        once = [len(set(same)) == 1 for same in operands]
        rows = [
            self._registers.read_rows(same[:1] if single else same, kind)
            for same, kind, single in zip(operands, self._types, once, strict=True)
        ]

        def step(mask: Mask) -> None:
            values = [read() for read in rows]
            width = max(value.shape[1] for value in values)
            # Of two warpgroups, each would else play the other's part too.
            active = not mask.full and mask.whole_warps and width > 1
            if active:
                values = [mask.take(value) if value.shape[1] > 1 else value for value in values]
                width = mask.count
            found = function(*(v.reshape(-1) if v.size == 1 else _flat(v, count, width) for v in values))
            same = (count, width if active else 1)
            wide = found.reshape(count, -1) if len(found) > 1 else np.broadcast_to(found, same)
            (write_active if active else write)(wide, mask)

        return step


def _flat(values: Values, count: int, width: int) -> Values:
    """Broadcast values ``[count or 1, width or 1]`` and flatten them to ``[count * width]``."""
    if values.shape == (count, width):
        return values.reshape(-1)
    return np.broadcast_to(values, (count, width)).reshape(-1)


def elementwise(
    instruction: Instruction, machine: Machine, function: Function, types: tuple[str, ...], result: str
) -> Step:
    """Return a step that writes a function of all source operands to the first operand.

    Parameters
    ----------
    function : callable
        On arrays ``[lanes]`` or, where all lanes agree, ``[1]``.
    types : tuple of str
        PTX types that the operands are read as.
    result : str
        PTX type of the destination.
    """
    target, *sources = instruction.operands
    kinds = [DTYPES[t] for t in types]
    return Elementwise(instruction, machine, function, target, DTYPES[result], sources, kinds)


def pick(condition: Values, yes: Values, no: Values) -> Values:
    """`yes` where the condition holds, else `no`."""
    return np.where(condition, yes, no)


def _typed(instruction: Instruction) -> tuple[str, Dtype, int]:
    """Return an instruction's type in PTX and in NumPy, and its width in bits."""
    kind = value_type(instruction)
    return kind, DTYPES[kind], 8 * DTYPES[kind].itemsize


def _divide(a: Values, b: Values) -> Values:
    """Divide, rounding towards zero; a division by zero returns all ones, as NVIDIA's integer division does."""
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
    kind, dtype, _ = _typed(instruction)
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


@operation("shl", "shr")
def compile_shift(instruction: Instruction, machine: Machine) -> Step:
    """Shifts; by the width or more they shift everything out."""
    kind, dtype, bits = _typed(instruction)
    left = instruction.name == "shl"
    arithmetic = not left and dtype.kind == "i"

    def shift(a: Values, amount: Values) -> Values:
        clamped: Values = np.minimum(amount, np.uint32(bits - 1)).astype(dtype)
        result: Values = np.left_shift(a, clamped) if left else np.right_shift(a, clamped)
        if arithmetic or int(amount.max()) < bits:
            return result
        return np.where(amount >= bits, dtype.type(0), result)

    return elementwise(instruction, machine, shift, (kind, "u32"), kind)


@operation("shf")
def compile_funnel_shift(instruction: Instruction, machine: Machine) -> Step:
    """``shf.l`` and ``shf.r``: 32 bits out of 64."""
    left, wrap = "l" in instruction.modifiers, "wrap" in instruction.modifiers

    def shift(low: Values, high: Values, amount: Values) -> Values:
        n = (amount & np.uint32(31) if wrap else np.minimum(amount, np.uint32(32))).astype(np.uint64)
        both = high.astype(np.uint64) << np.uint64(32) | low
        shifted = both << n >> np.uint64(32) if left else both >> n
        return shifted.astype(np.uint32)

    return elementwise(instruction, machine, shift, ("b32",) * 3, "b32")


@operation("lop3")
def compile_three_input_logic(instruction: Instruction, machine: Machine) -> Step:
    """``lop3.b32 d, a, b, c, table``."""
    if len(instruction.operands) != 5:
        raise unsupported(instruction)
    table = int(machine.read(instruction.operands[4], "u32")()[0])

    def logic(a: Values, b: Values, c: Values, _table: Values) -> Values:
        result: Values = np.zeros(1, np.uint32)
        for row in range(8):
            if table >> row & 1:
                result = result | (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
        return result

    return elementwise(instruction, machine, logic, ("b32",) * 4, "b32")


def _ones(count: Values) -> Values:
    """Return a uint64 with so many low bits set."""
    some = (np.uint64(1) << np.minimum(count, 63).astype(np.uint64)) - np.uint64(1)
    return np.where(count >= 64, ~np.uint64(0), some)


@operation("bfe")
def compile_bit_field_extract(instruction: Instruction, machine: Machine) -> Step:
    """``bfe d, a, position, length``, by PTX ISA 9.0, section bfe."""
    kind, dtype, bits = _typed(instruction)

    def extract(a: Values, position: Values, length: Values) -> Values:
        start, count = (position & np.uint32(255)).astype(np.int64), (length & np.uint32(255)).astype(np.int64)
        wide = a.astype(np.int64) if dtype.kind == "i" else a.view(UNSIGNED[dtype.itemsize]).astype(np.uint64)
        shifted = wide >> np.minimum(start, bits - 1 if dtype.kind == "i" else 63).astype(wide.dtype)
        if dtype.kind != "i":
            return np.where(start >= bits, np.uint64(0), shifted & _ones(count)).astype(dtype)
        drop = 64 - np.clip(count, 1, 64)
        return np.where(count == 0, 0, shifted << drop >> drop).astype(dtype)

    return elementwise(instruction, machine, extract, (kind, "u32", "u32"), kind)


@operation("bfi")
def compile_bit_field_insert(instruction: Instruction, machine: Machine) -> Step:
    """``bfi d, a, b, position, length``: the low bits of a into b."""
    kind, dtype, bits = _typed(instruction)

    def insert(a: Values, b: Values, position: Values, length: Values) -> Values:
        start, count = (position & np.uint32(255)).astype(np.uint64), length & np.uint32(255)
        at = np.minimum(start, np.uint64(63))
        field = np.where(start >= bits, np.uint64(0), _ones(count) << at)
        return ((b.astype(np.uint64) & ~field) | (a.astype(np.uint64) << at & field)).astype(dtype)

    return elementwise(instruction, machine, insert, (kind, kind, "u32", "u32"), kind)


@operation("popc", "clz", "brev", "bfind")
def compile_bit_count(instruction: Instruction, machine: Machine) -> Step:
    """Counts and orders of bits."""
    kind, dtype, bits = _typed(instruction)
    unsigned = UNSIGNED[dtype.itemsize]

    def bit_rows(a: Values) -> Values:
        return np.unpackbits(np.ascontiguousarray(a).view(np.uint8).reshape(len(a), -1)[:, ::-1], axis=1)

    def leading(a: Values) -> Values:
        rows = bit_rows(a)
        return np.where(rows.any(axis=1), rows.argmax(axis=1), bits).astype(np.uint32)

    def highest(a: Values) -> Values:
        shifted = np.where(a < 0, ~a, a).view(unsigned) if a.dtype.kind == "i" else a
        position = leading(shifted).astype(np.int64)
        found = position if "shiftamt" in instruction.modifiers else bits - 1 - position
        return np.where(position == bits, -1, found).astype(np.uint32)

    def reversed_bits(a: Values) -> Values:
        packed = np.packbits(bit_rows(a)[:, ::-1], axis=1)[:, ::-1]
        return np.ascontiguousarray(packed).view(unsigned).reshape(-1)

    functions: dict[str, Function] = {
        "popc": lambda a: bit_rows(a).sum(axis=1).astype(np.uint32),
        "clz": leading,
        "bfind": highest,
        "brev": reversed_bits,
    }
    result = kind if instruction.name == "brev" else "u32"
    return elementwise(instruction, machine, functions[instruction.name], (kind,), result)


@operation("prmt")
def compile_permute(instruction: Instruction, machine: Machine) -> Step:
    """``prmt.b32 d, a, b, selector``: any four bytes of eight."""
    if value_type(instruction) != instruction.modifiers[-1]:
        raise unsupported(instruction)

    def permute(a: Values, b: Values, selector: Values) -> Values:
        a, b, selector = np.broadcast_arrays(a, b, selector)
        source = np.stack((a, b), axis=1).view(np.uint8)
        nibbles = selector[:, None] >> np.array([0, 4, 8, 12], np.uint32)
        chosen = np.take_along_axis(source, (nibbles & 7).astype(np.int64), axis=1)
        signs = np.where(chosen & 0x80, np.uint8(0xFF), np.uint8(0))
        return np.where(nibbles & 8, signs, chosen).view(np.uint32).reshape(-1)

    return elementwise(instruction, machine, permute, ("b32",) * 3, "b32")


Update = Callable[..., Values]
"""An update of memory: (old values, operands) to new values."""

_NAMES = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


def _update(name: str, kind: str) -> Update | None:
    dtype = DTYPES[kind]
    if kind in ("f16x2", "bf16x2"):
        bf16 = kind == "bf16x2"
        return (lambda old, b: pack(halves(old, bf16) + halves(b, bf16), bf16)) if name == "add" else None
    floats = dtype.kind == "f"
    updates: dict[str, Update] = {
        "add": np.add,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "min": np.fmin if floats else np.minimum,
        "max": np.fmax if floats else np.maximum,
        "exch": lambda old, b: np.broadcast_to(b, old.shape),
        "cas": lambda old, compare, b: pick(old == compare, b, old),
        "inc": lambda old, b: pick(old >= b, np.zeros_like(old), old + dtype.type(1)),
        "dec": lambda old, b: pick((old == 0) | (old > b), b, old - dtype.type(1)),
    }
    return updates.get(name)


@operation("atom", "red")
def compile_atomic(instruction: Instruction, machine: Machine) -> Step:
    """``atom.space.op.type d, [a], b (, c)`` and ``red.space.op.type [a], b``."""
    kind, returns = value_type(instruction), instruction.name == "atom"
    name = next((m for m in instruction.modifiers if m in _NAMES), "")
    update = _update(name, kind)
    address, *values = instruction.operands[returns:]
    if update is None or kind == "bf16" or any(len(items(v)) > 1 for v in values):
        raise unsupported(instruction)
    where, reads = machine.address(address), [machine.read(v, kind) for v in values]
    write = machine.registers.write_active(instruction.operands[0], DTYPES[kind]) if returns else None
    apply = _apply_at if isinstance(update, np.ufunc) and not returns else _apply_in_order
    items_of = _items(instruction, machine)

    def step(mask: Mask) -> None:
        memory, rows = items_of(where(mask), DTYPES[kind].itemsize, mask)
        old = apply(update, memory.view(DTYPES[kind]), rows, [mask.of(read()) for read in reads])
        if write:
            write(old, mask)

    return step


def _apply_at(update: Update, memory: Values, rows: Values, operands: list[Values]) -> Values:
    """Apply a reduction, which returns no old values, so that equal addresses may be combined."""
    assert isinstance(update, np.ufunc)
    update.at(memory, rows, operands[0])
    return operands[0]


def _apply_in_order(update: Update, memory: Values, rows: Values, operands: list[Values]) -> Values:
    """Apply an atomic lane after lane; returns the old value of each lane.

    Each round handles the first remaining lane of every address, so a lane sees what the lanes before it wrote.
    """
    old = np.empty(len(rows), memory.dtype)
    remaining = np.arange(len(rows))
    while len(remaining):
        _, first = np.unique(rows[remaining], return_index=True)
        now = remaining[first]
        old[now] = memory[rows[now]]
        memory[rows[now]] = update(old[now], *(o[now] for o in operands))
        remaining = np.delete(remaining, first)
    return old


def _items(instruction: Instruction, machine: Machine) -> Callable[[Values, int, Mask], tuple[Values, Values]]:
    """Return a closure that finds the arrays that active lanes point into, and their rows in these."""
    space = space_name(instruction)
    if space not in ("global", "shared", ""):
        raise unsupported(instruction)

    def find(addresses: Values, size: int, mask: Mask) -> tuple[Values, Values]:
        window = int(addresses[0]) >> 32 << 32 if space == "" else WINDOWS[space]
        if window == SHARED_WINDOW:
            return machine.shared.atomic(addresses - (SHARED_WINDOW if space == "" else 0), size, mask)
        found = [] if window == LOCAL_WINDOW else list(machine.memory.parts(addresses, size, mask, "atomic"))
        if len(found) != 1:
            raise unsupported(instruction)
        tensor, _, rows = found[0]
        machine.counters.stores[tensor.name] += size * mask.count
        machine.counters.store_sectors[tensor.name] += sectors(addresses, mask)
        return tensor.rows(size), rows

    return find
