"""The loop nests of all blocks of a grid from those of a few: blocks that differ only in how often they turn."""

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
"""Of blocks of one shape the few shortest are run; from the fifth on, loops turn often enough to be seen as such."""


def to_run(blocks: Blocks) -> list[int]:
    """The classes that have to be run: of each shape the shortest few.

    Blocks have one shape that come to the same instructions.
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
    """How often a block of a class that was not run runs each body, by two that were and lie in line with it.

    Returns
    -------
    ndarray of int ``[bodies]`` or None
        None where no two do, or where the bytes that follow are not those that the block asks for.
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
    """Bytes that a block asked for as it ran."""
    found: Counter[Access] = Counter()
    for row in rows:
        for name, size in row.moved:
            found["store" if known[row.position].kind in ("store", "bulk store") else "load", name] += size
    return dict(found)


def moved(counts: Sequence[int] | Ints, bodies: Sequence[Ops]) -> dict[Access, int]:
    """Bytes of a block by ("load" or "store", tensor)."""
    found: Counter[Access] = Counter()
    for times, body in zip(counts, bodies, strict=True):
        for op in body:
            if op.bytes and times:
                found[op.kind, op.tensor] += int(times) * op.bytes
    return dict(found)
