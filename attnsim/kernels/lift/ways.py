"""The way that a warp goes through machine code, known from what it did in the PTX.

An assembler keeps accesses of memory, shuffles, barriers and exponentials one for one, whatever it does to the branches
around them: it runs under predicates what PTX jumps over, turns branches round and unrolls loops. So a warp goes the
shortest way that makes as many of each as it made in the PTX. What is under a predicate may count or not; it is issued
either way. How often each branch goes where is an integer program: what comes to a stretch leaves it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnsim.kernels.lift.kinds import SPECIAL
from attnsim.ptx.machine_code import Code
from attnsim.ptx.spaces import space_name
from attnsim.ptx.syntax import Function, Instruction

MARKS = {
    "LDG": "load", "STG": "store", "RED": "add", "REDG": "add", "LDGSTS": "copy", "SHFL": "shuffle", "BAR": "barrier",
    "MUFU": "special", "FADD": "sum", "HADD2": "conversion",
}  # fmt: skip
"""What assemblers keep one for one, by opcode."""
WIDE = ("load", "store")
"""Accesses that are told apart by their bits."""
AT_LEAST = ("special", "sum", "conversion")
"""Of which there may be more: whole numbers are divided by way of a reciprocal, and right rounding takes sums."""
_PTX = {"ld": "load", "ldu": "load", "st": "store", "red": "add"}
_OTHERS = {
    "shfl": "shuffle",
    "bar": "barrier",
    "barrier": "barrier",
    "ex2": "special",
    **dict.fromkeys(SPECIAL, "special"),
}


@dataclass(frozen=True, slots=True)
class Way:
    """What a warp issues from the beginning to the end.

    Parameters
    ----------
    places : list of int
        Of instructions, each as often as it is issued, in an order in which a warp may.
    over : list of int
        Of those without a mark that are jumped over, each as often: pieces that the warp may have run as well.
    """

    places: list[int]
    over: list[int]


_BITS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128}
"""Widths of accesses, by the modifiers of machine code; 32 without one."""


def marks_of(function: Function) -> list[str | None]:
    """The mark of each instruction of PTX, None for most."""
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
    """The mark of each instruction of machine code."""
    found = [MARKS.get(one.name) for one in code.instructions]
    return [
        f"{mark} {next((_BITS[part] for part in one.opcode.split('.') if part in _BITS), 32)}" if mark in WIDE else mark
        for one, mark in zip(code.instructions, found, strict=True)
    ]


def _width(one: Instruction) -> int:
    """Bits that a thread accesses."""
    many = next((int(part[1:]) for part in one.modifiers if part in ("v2", "v4", "v8")), 1)
    return many * int(one.modifiers[-1].lstrip("bfsux"))


def made(marks: Sequence[str | None], visits: Sequence[int]) -> Counter[str]:
    """How many of each a warp made."""
    found = Counter[str]()
    for mark, times in zip(marks, visits, strict=True):
        if mark and times:
            found[mark] += times
    return found


def shortest(code: Code, marks: Sequence[str | None], wanted: Mapping[str, int]) -> Way | None:
    """The shortest way from the beginning to the end that makes so many of each mark, and of no other any.

    Parameters
    ----------
    code : Code
    marks : sequence of str or None
        Of its instructions.
    wanted : mapping of str to int

    Returns
    -------
    Way or None
        None where no way makes these.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    stretches = _stretches(code)
    edges = [(place, to) for place, (_, following) in stretches.items() for to in following]
    number = {place: row for row, place in enumerate(stretches)}
    into, out = np.zeros((2, len(stretches), len(edges)))
    for column, (place, to) in enumerate(edges):
        out[number[place], column] = 1
        if to is not None:
            into[number[to], column] = 1
    begun = np.zeros(len(stretches))
    begun[0] = 1
    rules = [LinearConstraint(out - into, begun, begun)]
    for kind in {mark for mark in marks if mark} | set(wanted):
        surely, perhaps = (
            np.array([_number(code, marks, where, kind, unsure) for where, _ in stretches.values()]) @ out
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
    issued = np.array([len(where) for where, _ in stretches.values()]) @ out
    found = milp(issued, integrality=np.ones(len(edges), np.int64), bounds=Bounds(0, np.inf), constraints=rules)
    if found.x is None:
        return None
    flows = [round(flow) for flow in found.x]
    over: list[int] = []
    for (place, to), times in zip(edges, flows, strict=True):
        skipped = range(stretches[place][0].stop, to or 0)
        over += [] if any(marks[one] for one in skipped) else [*skipped] * times
    trail = _trail(dict(zip(edges, flows, strict=True)))
    return Way([index for place in trail for index in stretches[place][0]], over)


def _trail(flows: Mapping[tuple[int, int | None], int]) -> list[int]:
    """Where the stretches of a way begin, in an order in which a warp may come to them (Hierholzer's)."""
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
    """A way cut before each instruction that waits for what loads of global memory have set.

    Parameters
    ----------
    code : Code
    places : iterable of int
    loads : int
        That were made: what comes after those is under predicates that are not true.
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
    """How many of a mark a stretch makes, surely or under a predicate."""
    return sum(marks[index] == kind and code.instructions[index].predicate == unsure for index in where)


def _stretches(code: Code) -> dict[int, tuple[range, list[int | None]]]:
    """Instructions that follow one another and where they lead, None to the end, by where they begin."""
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
