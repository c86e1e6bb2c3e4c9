"""Moves loads ahead within a basic block, as the assembler does.

PTX loads a value, works on it, and loads the next. The assembler issues all loads of a region, a part of a
basic block, before it waits for the first, as far as their addresses are known. Stores, barriers and waits keep their
place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from attnsim.kernels.lift.kinds import Known
from attnsim.ptx.recording import Row
from attnsim.ptx.syntax import Function

MOVING = ("load", "work", "exp")
"""Kinds of instructions that a load may move past."""


def hoisted(rows: Sequence[Row], function: Function, known: Sequence[Known]) -> list[Row]:
    """Return the recorded instructions of a block with the loads of each region moved ahead."""
    places = _places(function, known)
    found: list[Row] = []
    run: list[Row] = []
    for row in rows:
        last = run[-1].position if run else -1
        if run and not (row.position > last and places[row.position][0] == places[last][0]):
            found += sorted(run, key=lambda one: places[one.position])
            run = []
        run.append(row)
    return found + sorted(run, key=lambda one: places[one.position])


def _places(function: Function, known: Sequence[Known]) -> list[tuple[int, int, int]]:
    """Return a sort key of each instruction: its region, 1 if it comes after the loads, and its number."""
    found = [(number, 1, number) for number in range(len(known))]
    for start, stop in pairwise(_bounds(function, known)):
        for number in range(start, stop):
            found[number] = (start, 1, number)
        for number in _first(known, start, stop):
            found[number] = (start, 0, number)
    return found


def _bounds(function: Function, known: Sequence[Known]) -> list[int]:
    """Return the starts of the regions, which no load moves out of.

    They begin at branch targets, after branches, and around instructions that loads cannot pass.
    """
    found = {0, len(known)}
    for number, (instruction, one) in enumerate(zip(function.instructions, known, strict=True)):
        found |= set(instruction.targets)
        if one.kind not in MOVING or instruction.targets or one.pipe == "control":
            found |= {number, number + 1}
    return sorted(found)


def _first(known: Sequence[Known], start: int, stop: int) -> Iterator[int]:
    """Yield the loads of a region that depend on no other load of it, and the instructions of their addresses."""
    writer: dict[str, int] = {}
    needs: dict[int, set[int]] = {}
    for number in range(start, stop):
        one = known[number]
        needs[number] = {number}.union(*(needs[writer[name]] for name in one.reads if name in writer))
        writer.update(dict.fromkeys(one.writes, number))
        if one.kind == "load" and all(known[other].kind != "load" or other == number for other in needs[number]):
            yield from needs[number]
