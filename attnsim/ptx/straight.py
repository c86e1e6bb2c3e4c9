"""Straight runs of instructions, put into an order in which those that do the same stand together.

Python takes longer to start an instruction than NumPy takes to play it for a few hundred threads. Between two places
where lanes may come or go, only two things hold instructions in their order: registers, and memory. So a run of them is
executed kind by kind, each kind as one step wherever none of its instructions needs what another of them does, and
arithmetic whose turn has come in its own order on a tape.
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


class Alike(ABC):
    """A compiled instruction that knows how to be executed with others.

    Parameters
    ----------
    kind : hashable
        Instructions of one kind do the same on other operands.
    memory : str, optional
        "" where it does not touch memory. Instructions that say the same here may pass each other, such as loads from
        shared memory; others that touch memory keep their order.
    targets : int, optional
        Leading operands that it writes; it reads the others.
    in_order : bool, optional
        Whether it may be executed with others that need what it does: they are then given in an order that holds.
    """

    _step: Step

    def __init__(self, kind: Hashable, memory: str = "", targets: int = 1, in_order: bool = False) -> None:
        self.kind, self.memory, self.targets, self.in_order = kind, memory, targets, in_order

    def __call__(self, mask: Mask) -> None:
        """Execute it, by default as `_step` does."""
        self._step(mask)

    @abstractmethod
    def together(self, others: Sequence[Self]) -> Step:
        """A step that executes it and others of its kind."""


def in_turn(steps: Sequence[Step]) -> Step:
    """One step after another."""

    def step(mask: Mask) -> None:
        for one in steps:
            one(mask)

    return steps[0] if len(steps) == 1 else step


def unless_ordered(step: Step, members: Sequence[Step], machine: Machine) -> Step:
    """The step of several; one after another where `ordering` checks, which knows the lanes of a batch and no more."""
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
    instruction : Instruction
    step : Step
        All of it.
    alike : Alike or None
        Where it may be executed with others: it, without what comes before.
    before : callable or None
        What comes before.
    code : Code or None
        Where it may stand on a tape: how.
    """

    instruction: Instruction
    step: Step
    alike: Alike | None = None
    before: Callable[[Mask], None] | None = None
    code: Code | None = None

    @property
    def targets(self) -> int | None:
        """Leading operands that are written; None where any may be."""
        return 1 if self.code else self.alike.targets if self.alike else None

    @property
    def memory(self) -> str:
        """As of Alike: which accesses to memory may pass each other."""
        return "" if self.code else self.alike.memory if self.alike else "all"

    @property
    def writes(self) -> set[str]:
        """Registers that may be written."""
        return register_names(self.instruction.operands[: self.targets])

    @property
    def reads(self) -> set[str]:
        """Registers that may be read."""
        operands, guard = self.instruction.operands, self.instruction.guard
        return register_names((*operands[self.targets or 0 :], *([guard] if guard else [])))


class Straight(NamedTuple):
    """Steps that play instructions up to `end`, exclusive."""

    end: int
    steps: tuple[Step, ...]


def straight_runs(lines: Sequence[Line], controls: Iterable[int], machine: Machine) -> dict[int, Straight]:
    """The runs between places where lanes may come or go, by the first instruction of each.

    Lanes come to the targets of branches and to what stands after a control instruction.
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
        runs[start] = Straight(end, tuple(step for part in parts for step in part))
    return runs


def _varying(lines: Sequence[Line]) -> set[str]:
    """Registers that need not be the same in all threads of a block."""
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
    """The steps of instructions that no lane enters or leaves on the way."""
    waits, then = _order(lines)
    kinds: list[Hashable] = []
    for position, line in enumerate(lines):
        same = line.alike and (line.alike.kind, not line.reads.isdisjoint(varying))
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
            alike = lines[now[0]].alike
            if not (alike and alike.in_order):
                break
        left[chosen] -= len(group)
        steps.extend(_as_one([lines[position] for position in group]))
    return steps


def _order(lines: Sequence[Line]) -> tuple[list[int], list[list[int]]]:
    """For each instruction how many others it waits for, and which wait for it."""
    writer: dict[str, int] = {}
    readers: defaultdict[str, list[int]] = defaultdict(list)
    last: list[int] = []  # of those that touched memory, the newest that may pass each other
    earlier: list[int] = []
    way = ""
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
            if memory != way or memory == "all":
                last, earlier, way = [], last, memory
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
    if len(lines) == 1 or first.alike is None:
        return [first.step]
    before = dict.fromkeys(line.before for line in lines if line.before)
    return [*before, first.alike.together([line.alike for line in lines[1:] if line.alike])]
