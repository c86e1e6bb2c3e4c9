"""Reorders basic blocks so that instructions of one kind run together.

Python takes longer to start an instruction than NumPy takes to execute it for a few hundred threads. Inside a basic
block, only dependences through registers and memory fix the order of instructions. So a block is executed kind by kind:
independent instructions of one kind become one step, and arithmetic becomes a tape, which a compiled loop plays in
order.

Tapes: arithmetic instructions between memory accesses, executed in order by one compiled loop.

Python takes longer to start an instruction than a core takes to execute it. Tapes are built when a kernel is compiled:
this module decides which instructions can be on a tape, and encodes their operands.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np

from attnsim.ptx import compiled_arithmetic
from attnsim.ptx.lanes import Mask
from attnsim.ptx.machine import Machine, Step
from attnsim.ptx.registers import DTYPES, Place
from attnsim.ptx.syntax import Immediate, Instruction, Register, register_names

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


class Batchable(ABC):
    """A compiled instruction that can be executed together with others of its kind.

    Parameters
    ----------
    kind : hashable
        Instructions of one kind perform the same operation on different operands.
    memory : str, optional
        Class of its memory accesses, "" for none. Accesses of the same class, such as loads from shared memory, may be
        reordered; accesses of different classes keep their order.
    targets : int, optional
        Number of leading operands that it writes; it reads the others.
    in_order : bool, optional
        True if it may be executed together with instructions that depend on it; they are then passed in program order.
    """

    _step: Step

    def __init__(self, kind: Hashable, memory: str = "", targets: int = 1, in_order: bool = False) -> None:
        self.kind, self.memory, self.targets, self.in_order = kind, memory, targets, in_order

    def __call__(self, mask: Mask) -> None:
        """Execute it, by default by calling `_step`."""
        self._step(mask)

    @abstractmethod
    def together(self, others: Sequence[Self]) -> Step:
        """Return a step that executes it and others of its kind."""


def in_turn(steps: Sequence[Step]) -> Step:
    """Return a step that runs these steps in order."""

    def step(mask: Mask) -> None:
        for one in steps:
            one(mask)

    return steps[0] if len(steps) == 1 else step


def unless_ordered(step: Step, members: Sequence[Step], machine: Machine) -> Step:
    """Return `step`, or the single steps in order if `ordering` checks, which knows only the lanes of one batch."""
    alone = in_turn(members)

    def either(mask: Mask) -> None:
        (alone if machine.shared.ordering else step)(mask)

    return either


_TAPE = "tape"


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction, compiled.

    Parameters
    ----------
    step : Step
        The complete instruction.
    batchable : Batchable or None
        The instruction without `before`, if it can be executed together with others.
    before : callable or None
        A check that runs before the instruction.
    code : Code or None
        Its encoding on a tape, if it has one.
    """

    instruction: Instruction
    step: Step
    batchable: Batchable | None = None
    before: Callable[[Mask], None] | None = None
    code: Code | None = None

    @property
    def targets(self) -> int | None:
        """Number of leading operands that are written; None if any operand may be."""
        return 1 if self.code else self.batchable.targets if self.batchable else None

    @property
    def memory(self) -> str:
        """Class of its memory accesses, see :class:`Batchable`; "all" for an instruction of unknown effect."""
        return "" if self.code else self.batchable.memory if self.batchable else "all"

    @property
    def writes(self) -> set[str]:
        """Registers that may be written."""
        return register_names(self.instruction.operands[: self.targets])

    @property
    def reads(self) -> set[str]:
        """Registers that may be read."""
        operands, guard = self.instruction.operands, self.instruction.guard
        return register_names((*operands[self.targets or 0 :], *([guard] if guard else [])))


class BasicBlock(NamedTuple):
    """Steps that execute the instructions up to `end`, exclusive."""

    end: int
    steps: tuple[Step, ...]


def basic_blocks(lines: Sequence[Line], controls: Iterable[int], machine: Machine) -> dict[int, BasicBlock]:
    """Return the steps of each basic block, by its first instruction.

    A basic block begins at a branch target, at a control instruction, and after one.
    """
    controls = set(controls)
    heads = {target for line in lines for target in line.instruction.targets} | {at + 1 for at in controls} | controls
    # wgmma.wait_group gives registers back that it does not name.
    alone = {at for at, line in enumerate(lines) if "wait_group" in line.instruction.modifiers}
    varying = _varying(lines)
    runs = {}
    starts = sorted({0, *heads})
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        pieces = sorted({start, *(cut for at in alone if start <= at < end for cut in (at, at + 1)), end})
        parts = [_in_groups(lines[a:b], varying, machine) for a, b in pairwise(pieces)]
        runs[start] = BasicBlock(end, tuple(step for part in parts for step in part))
    return runs


def _varying(lines: Sequence[Line]) -> set[str]:
    """Return the registers that may differ between threads of a block."""
    found = {name for line in lines for name in line.reads if name.startswith(("%tid", "%lane", "%warp"))}
    shared_by_all = ("ld", "mov", "cvta")
    pending = [line for line in lines if line.writes]
    while True:
        before = len(found)
        rest = []
        for line in pending:
            name, modifiers = line.instruction.name, line.instruction.modifiers
            given = name in shared_by_all and (name != "ld" or "param" in modifiers)
            if (line.memory and not given) or line.reads & found:
                found |= line.writes
            else:
                rest.append(line)
        pending = rest
        if len(found) == before:
            return found


def _in_groups(lines: Sequence[Line], varying: set[str], machine: Machine) -> list[Step]:
    """Return the steps of one basic block."""
    waits, then = _order(lines)
    kinds: list[Hashable] = []
    for position, line in enumerate(lines):
        same = line.batchable and (line.batchable.kind, not line.reads.isdisjoint(varying))
        kinds.append(_TAPE if line.code else same or position)
    left = Counter(kinds)
    ready: defaultdict[Hashable, list[int]] = defaultdict(list)
    for position, count in enumerate(waits):
        if not count:
            ready[kinds[position]].append(position)

    def gone(group: Sequence[int]) -> None:
        for position in group:
            for later in then[position]:
                waits[later] -= 1
                if not waits[later]:
                    ready[kinds[later]].append(later)

    steps: list[Step] = []
    while ready:
        taped: list[int] = []
        while _TAPE in ready:  # in their order, so that one may need another
            now = ready.pop(_TAPE)
            taped += now
            gone(now)
        if taped:
            steps.extend(_on_tape([lines[position] for position in taped], machine))
            continue
        # A kind of which all that are left can go; else the one with the largest part of them.
        chosen = max(ready, key=lambda kind: (len(ready[kind]) / left[kind], len(ready[kind])))
        group: list[int] = []
        while chosen in ready:
            now = ready.pop(chosen)
            group += now
            gone(now)
            batchable = lines[now[0]].batchable
            if not (batchable and batchable.in_order):
                break
        left[chosen] -= len(group)
        steps.extend(_as_one([lines[position] for position in group]))
    return steps


def _order(lines: Sequence[Line]) -> tuple[list[int], list[list[int]]]:
    """Return the dependences of instructions: how many others each waits for, and which ones wait for it."""
    writer: dict[str, int] = {}
    readers: defaultdict[str, list[int]] = defaultdict(list)
    last: list[int] = []  # of those that touched memory, the newest that may pass each other
    earlier: list[int] = []
    access = ""
    waits, then = [0] * len(lines), [list[int]() for _ in lines]
    for position, line in enumerate(lines):
        needs: set[int] = set()
        for name in line.reads:
            if name in writer:
                needs.add(writer[name])
        for name in line.writes:
            needs.update(readers.pop(name, ()))
            if name in writer:
                needs.add(writer[name])
        for name in line.reads:
            readers[name].append(position)
        for name in line.writes:
            writer[name] = position
        memory = line.memory
        if memory:
            if memory != access or memory == "all":
                last, earlier, access = [], last, memory
            last.append(position)
            needs.update(earlier)
        needs.discard(position)
        waits[position] = len(needs)
        for one in needs:
            then[one].append(position)
    return waits, then


def _on_tape(lines: Sequence[Line], machine: Machine) -> list[Step]:
    before = dict.fromkeys(line.before for line in lines if line.before)
    return [*before, Tape([line.code for line in lines if line.code], machine)]


def _as_one(lines: Sequence[Line]) -> list[Step]:
    first = lines[0]
    if len(lines) == 1 or first.batchable is None:
        return [first.step]
    before = dict.fromkeys(line.before for line in lines if line.before)
    return [*before, first.batchable.together([line.batchable for line in lines[1:] if line.batchable])]
