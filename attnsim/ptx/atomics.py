"""Atomics: atom and red on global and shared memory, lane after lane in ascending order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnsim.ptx.elementwise import pick
from attnsim.ptx.formats import halves, pack
from attnsim.ptx.lanes import Mask, Values
from attnsim.ptx.machine import Machine, Step, items, operation, unsupported, value_type
from attnsim.ptx.memory import sectors
from attnsim.ptx.registers import DTYPES
from attnsim.ptx.spaces import LOCAL_WINDOW, SHARED_WINDOW, WINDOWS, space_name
from attnsim.ptx.syntax import Instruction

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
