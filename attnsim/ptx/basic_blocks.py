"""Reorders basic blocks so that instructions of one kind run together.

Python takes longer to start an instruction than NumPy takes to execute it for a few hundred threads. Inside a basic
block, only dependences through registers and memory fix the order of instructions. So a block is executed kind by kind:
independent instructions of one kind become one step, and arithmetic becomes a tape, which a compiled loop plays in
order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Self

from attnsim.ptx.lanes import Mask
from attnsim.ptx.machine import Machine, Step
from attnsim.ptx.syntax import Instruction, register_names
from attnsim.ptx.tape import Code, Tape


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
