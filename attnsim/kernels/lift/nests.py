"""Derives the loop nests of all blocks from those of a few: blocks of one shape differ only in iteration counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from attnsim.arrays import Ints
from attnsim.kernels.lift.grid import Access, Blocks
from attnsim.kernels.lift.kinds import Known
from attnsim.kernels.lift.loops import Ops
from attnsim.ptx.recording import Row

SHORTEST = 5
"""Number of the shortest blocks of each shape that are run; five iterations are enough to recognise a loop."""


def to_run(blocks: Blocks) -> list[int]:
    """Return the classes that must be run: the shortest few of each shape.

    Blocks have the same shape if they reach the same instructions.
    """
    shapes: dict[bytes, list[int]] = {}
    for number in range(blocks.count):
        shapes.setdefault((blocks.visits[number] > 0).tobytes(), []).append(number)
    length = blocks.visits.sum(axis=1)
    found: list[int] = []
    for members in shapes.values():
        ordered = sorted(members, key=lambda number: int(length[number]))
        found += ordered[:SHORTEST]
    return sorted(found)


def between(blocks: Blocks, known: dict[int, Ints], number: int, bodies: Sequence[Ops]) -> Ints | None:
    """Extrapolate the iterations of a class from two classes that were run, if it lies on a line with them.

    Returns
    -------
    ndarray of int ``[bodies]`` or None
        None if there are no such two classes, or if the resulting bytes differ from those that the block accesses.
    """
    mine, names = blocks.visits[number], sorted(known, reverse=True)
    for one in names:
        for other in names:
            step = blocks.visits[one] - blocks.visits[other]
            there = np.flatnonzero(step)
            if other == one or not len(there):
                continue
            away = mine - blocks.visits[other]
            times, rest = divmod(int(away[there[0]]), int(step[there[0]]))
            if rest or not np.array_equal(away, times * step):
                continue
            counts = known[other] + times * (known[one] - known[other])
            if (counts >= 0).all() and moved(counts, bodies) == blocks.moved[number]:
                return counts
    return None


def moved_by(rows: Sequence[Row], known: Sequence[Known]) -> dict[Access, int]:
    """Return the bytes that a block accessed in its run."""
    found: Counter[Access] = Counter()
    for row in rows:
        for name, size in row.moved:
            found["store" if known[row.position].kind in ("store", "bulk store") else "load", name] += size
    return dict(found)


def moved(counts: Sequence[int] | Ints, bodies: Sequence[Ops]) -> dict[Access, int]:
    """Return the bytes of a block by ("load" or "store", tensor)."""
    found: Counter[Access] = Counter()
    for times, body in zip(counts, bodies, strict=True):
        for op in body:
            if op.bytes and times:
                found[op.kind, op.tensor] += int(times) * op.bytes
    return dict(found)
