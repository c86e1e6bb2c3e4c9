"""Reconstructs a warp's path through machine code from its execution of the PTX.

An assembler keeps memory accesses, shuffles, barriers and exponentials one for one (*marks*), although it changes the
branches between them: it predicates code, inverts branches and unrolls loops. We take the shortest path that executes
as many of each mark as the warp executed in the PTX. A predicated mark may count or not; it is issued in either case.
The number of times that each edge between basic blocks is taken is the solution of an integer program: flow into a
block equals flow out of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnsim.kernels.lift.kinds import SPECIAL
from attnsim.ptx.flow import space_name
from attnsim.ptx.machine_code import Code
from attnsim.ptx.syntax import Function, Instruction

MARKS = {
    "LDG": "load",
    "STG": "store",
    "RED": "add",
    "REDG": "add",
    "LDGSTS": "copy",
    "SHFL": "shuffle",
    "BAR": "barrier",
    "MUFU": "special",
    "FADD": "sum",
    "HADD2": "conversion",
}
"""Marks: operations that assemblers keep one for one, by opcode."""
WIDE = ("load", "store")
"""Marks that include the width of the access in bits."""
AT_LEAST = ("special", "sum", "conversion")
"""Marks that may be more frequent in machine code: integer division uses a reciprocal, and exact rounding uses sums."""
_PTX = {"ld": "load", "ldu": "load", "st": "store", "red": "add"}
_OTHERS = {
    "shfl": "shuffle",
    "bar": "barrier",
    "barrier": "barrier",
    "ex2": "special",
    **dict.fromkeys(SPECIAL, "special"),
}


@dataclass(frozen=True, slots=True)
class WarpPath:
    """The instructions that a warp issues from beginning to end.

    Parameters
    ----------
    places : list of int
        Issued instructions, with repetitions, in a possible order.
    over : list of int
        Skipped instructions of pieces without a mark, with repetitions: the warp may have run them too.
    """

    places: list[int]
    over: list[int]


_BITS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128}
"""Widths of accesses in bits by the modifiers of machine code; 32 without a modifier."""


def marks_of(function: Function) -> list[str | None]:
    """Return the mark of each PTX instruction, None for most."""
    found: list[str | None] = []
    for one in function.instructions:
        mark = _OTHERS.get(one.name)
        if one.name in _PTX and space_name(one) == "global":
            mark = _PTX[one.name]
            if mark in WIDE:
                mark += f" {_width(one)}"
        elif one.name == "cp" and "bulk" not in one.modifiers and not one.modifiers[-1].endswith("_group"):
            mark = "copy"
        elif "f32" in one.modifiers:
            mark = "sum" if one.name in ("add", "sub") else "conversion" if one.modifiers == ("f32", "f16") else mark
        elif one.name in SPECIAL:  # of whole numbers, or of 64 bits
            mark = None
        found.append(mark)
    return found


def code_marks(code: Code) -> list[str | None]:
    """Return the mark of each machine code instruction."""
    found = [MARKS.get(one.name) for one in code.instructions]
    return [
        f"{mark} {next((_BITS[part] for part in one.opcode.split('.') if part in _BITS), 32)}" if mark in WIDE else mark
        for one, mark in zip(code.instructions, found, strict=True)
    ]


def _width(one: Instruction) -> int:
    """Return the bits that a thread accesses."""
    many = next((int(part[1:]) for part in one.modifiers if part in ("v2", "v4", "v8")), 1)
    return many * int(one.modifiers[-1].lstrip("bfsux"))


def marks_made(marks: Sequence[str | None], visits: Sequence[int]) -> Counter[str]:
    """Count the marks that a warp executed."""
    found = Counter[str]()
    for mark, times in zip(marks, visits, strict=True):
        if mark and times:
            found[mark] += times
    return found


def shortest_path(code: Code, marks: Sequence[str | None], wanted: Mapping[str, int]) -> WarpPath | None:
    """Find the shortest path from beginning to end with exactly these counts of marks.

    Parameters
    ----------
    marks : sequence of str or None
        Mark of each instruction.
    wanted : mapping of str to int
        Count of each mark.

    Returns
    -------
    WarpPath or None
        None if no path has these counts.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    blocks = _basic_blocks(code)
    edges = [(place, to) for place, (_, following) in blocks.items() for to in following]
    number = {place: row for row, place in enumerate(blocks)}
    into, out = np.zeros((2, len(blocks), len(edges)))
    for column, (place, to) in enumerate(edges):
        out[number[place], column] = 1
        if to is not None:
            into[number[to], column] = 1
    begun = np.zeros(len(blocks))
    begun[0] = 1
    rules = [LinearConstraint(out - into, begun, begun)]
    for kind in {mark for mark in marks if mark} | set(wanted):
        surely, perhaps = (
            np.array([_number(code, marks, where, kind, unsure) for where, _ in blocks.values()]) @ out
            for unsure in (False, True)
        )
        many = wanted.get(kind, 0)
        rules.append(LinearConstraint(surely + perhaps, many, np.inf))
        rules += [] if kind in AT_LEAST else [LinearConstraint(surely, -np.inf, many)]
    most = 2 + max(wanted.values(), default=0)
    for head, last in {(to, place) for place, to in edges if to is not None and to <= place}:  # no loop by itself
        entered = [to is not None and head <= to <= last and not head <= place <= last for place, to in edges]
        turned = [(place, to) == (last, head) for place, to in edges]
        begins = most * begun[number[head]]
        rules.append(LinearConstraint(np.subtract(turned, np.multiply(most, entered), dtype=float), -np.inf, begins))
    issued = np.array([len(where) for where, _ in blocks.values()]) @ out
    found = milp(issued, integrality=np.ones(len(edges), np.int64), bounds=Bounds(0, np.inf), constraints=rules)
    if found.x is None:
        return None
    flows = [round(flow) for flow in found.x]
    over: list[int] = []
    for (place, to), times in zip(edges, flows, strict=True):
        skipped = range(blocks[place][0].stop, to or 0)
        over += [] if any(marks[one] for one in skipped) else [*skipped] * times
    trail = _trail(dict(zip(edges, flows, strict=True)))
    return WarpPath([index for place in trail for index in blocks[place][0]], over)


def _trail(flows: Mapping[tuple[int, int | None], int]) -> list[int]:
    """Order the basic blocks of a path, given the times that each edge is taken (Hierholzer's algorithm)."""
    leads: dict[int | None, list[int | None]] = {}
    for (place, to), times in flows.items():
        leads.setdefault(place, []).extend([to] * times)
    found: list[int | None] = []
    pending: list[int | None] = [next(iter(leads))]
    while pending:
        if leads.get(pending[-1]):
            pending.append(leads[pending[-1]].pop())
        else:
            found.append(pending.pop())
    return [place for place in reversed(found) if place is not None]


def between_waits(code: Code, places: Iterable[int], loads: int) -> list[list[int]]:
    """Split a path before each instruction that waits for a load from global memory.

    Parameters
    ----------
    loads : int
        Number of loads that the warp executed; later ones are under false predicates.
    """
    found: list[list[int]] = [[]]
    pending = set[int | None]()
    for index in places:
        one = code.instructions[index]
        if not pending.isdisjoint(one.waits):
            pending.difference_update(one.waits)
            found.append([])
        found[-1].append(index)
        if one.name == "LDG" and loads:
            pending.add(one.written)
            loads -= 1
    return found


def _number(code: Code, marks: Sequence[str | None], where: range, kind: str, unsure: bool) -> int:
    """Count a mark in a basic block: its predicated instances (`unsure`) or the others."""
    return sum(marks[index] == kind and code.instructions[index].predicate == unsure for index in where)


def _basic_blocks(code: Code) -> dict[int, tuple[range, list[int | None]]]:
    """Return the basic blocks by their first instruction: their range, and their successors (None for the end)."""
    size = len(code.instructions)
    jumps = {index: to for index in range(size) if (to := code.target(index)) is not None}
    calls = (index for index, one in enumerate(code.instructions) if one.name == "CALL" and one.predicate)
    jumps |= {index: index + 2 for index in calls if jumps.get(index + 1, size) <= index}  # so loops are left, too
    ends = {index for index, one in enumerate(code.instructions) if one.name == "EXIT"}
    begins = {0, *jumps.values(), *(index + 1 for index in (*jumps, *ends))} - {size}
    ordered = sorted(begins)
    found: dict[int, tuple[range, list[int | None]]] = {}
    for place, stop in zip(ordered, [*ordered[1:], size], strict=True):
        last = code.instructions[stop - 1]
        sure = not last.predicate and not last.conditional
        leaves = stop - 1 in jumps or stop - 1 in ends
        following: list[int | None] = [jumps[stop - 1]] if stop - 1 in jumps else []
        following += [None] if stop - 1 in ends else []
        following += [stop] if stop < size and not (sure and leaves) else []
        found[place] = range(place, stop), following
    return found
