"""Finds the loops in a stream of operations: bodies with repeat counts."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from attnsim.models.schedule.operation import TileOp

Ops = tuple[TileOp, ...]
Body = tuple[Ops, int]
"""A loop body, and its number of iterations."""


def repeated(ops: Sequence[TileOp], known: Sequence[Ops] = ()) -> list[Ops]:
    """Find the loop bodies in `ops`, besides the known ones.

    The body that covers most operations comes first, then those before and after it.

    A body waits for as many products as it starts, so that it can be repeated any number of times. It begins with a
    wait if possible, as loops over tiles do.
    """
    parts = [part for part, times in nest_of(ops, known) if times == 1 and part not in known]
    if known:
        return [body for part in parts for body in repeated(part)]
    best = (0, 0, 0)  # operations covered, minus the length of the body, place
    for length in range(1, len(ops) // 2 + 1):
        run = 0
        for place in range(length, len(ops) + 1):
            if place < len(ops) and ops[place] == ops[place - length]:
                run += 1
                continue
            covered, start = (run // length + 1) * length, place - run - length
            if covered > length and (covered, -length) > best[:2]:
                shifts = [shift for shift in range(run % length + 1) if _whole(ops, start + shift, length)]
                if shifts:
                    waits = [shift for shift in shifts if ops[start + shift].kind == "wait"]
                    best = (covered, -length, start + (waits or shifts)[0])
            run = 0
    covered, length, start = best[0], -best[1], best[2]
    if not covered:
        return []
    body = tuple(ops[start : start + length])
    return [body, *repeated(ops[:start]), *repeated(ops[start + covered :])]


def _whole(ops: Sequence[TileOp], start: int, length: int) -> bool:
    kinds = [one.kind for one in ops[start : start + length]]
    return kinds.count("mma_async") == kinds.count("mma_wait")


def nest_of(ops: Sequence[TileOp], bodies: Sequence[Ops]) -> list[Body]:
    """Split operations into the given bodies, wherever they occur, and the operations between them."""
    found: list[Body] = []
    between: list[TileOp] = []
    place = 0
    while place < len(ops):
        body = next((one for one in bodies if tuple(ops[place : place + len(one)]) == one), None)
        if body is None:
            between.append(ops[place])
            place += 1
            continue
        if between:
            found.append((tuple(between), 1))
            between = []
        times = 1
        place += len(body)
        while tuple(ops[place : place + len(body)]) == body:
            times, place = times + 1, place + len(body)
        found.append((body, times))
    return [*found, *([(tuple(between), 1)] if between else [])]


def merged(nests: Sequence[Sequence[Body]]) -> tuple[list[Ops], list[list[int]]]:
    """Merge nests into one sequence of bodies, with the repeat counts of each nest.

    A body that occurs in one nest only is inserted before the next body that the nest shares with earlier ones.
    """
    numbers: dict[Ops, int] = {}
    named = [[(numbers.setdefault(body, len(numbers)), times) for body, times in nest] for nest in nests]
    order: list[int] = []
    for nest in named:
        mine = [number for number, _ in nest]
        found: list[int] = []
        for change, a, b, c, d in SequenceMatcher(None, order, mine, autojunk=False).get_opcodes():
            found += order[a:b]
            if change != "equal":
                found += mine[c:d]
        order = found
    bodies = list(numbers)
    counts = []
    for nest in named:
        row, at = [0] * len(order), 0
        for number, times in nest:
            at = order.index(number, at)
            row[at] = times
            at += 1
        counts.append(row)
    return [bodies[number] for number in order], counts
