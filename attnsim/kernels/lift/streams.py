"""Builds instruction streams from the recorded warps of a block.

- Warps that use ``mma.sync``, or no products, do the same work on different rows. They form one stream, in the order
  in which their instructions ran.
- Each warpgroup that uses ``wgmma`` is a stream. Copies that other warps issue for it (a producer warp) are inserted
  where their buffer is released, or at the start if it is unused: in the simulator, the last warpgroup that releases a
  buffer issues the copy.
- The k-th copy of an mbarrier belongs to the k-th wait for it, and the k-th release of a buffer to the k-th copy that
  waits for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from attnsim.kernels.lift.drafts import Draft
from attnsim.kernels.lift.kinds import Known
from attnsim.kernels.lift.operations import Event
from attnsim.ptx.faults import UnsupportedInstruction
from attnsim.ptx.recording import Row
from attnsim.ptx.syntax import Function

WARPS = 4
"""Warps of a warpgroup."""


@dataclass(slots=True)
class _Copies:
    """Copies of the tensor copy engine.

    Parameters
    ----------
    by_full : dict of int to list of Draft
        Loads that complete on each mbarrier, in order.
    at_once : list of Draft
        Loads into unused buffers, which begin at the start.
    released : dict of (int, int) to list of Draft
        Loads that begin after the n-th arrival at an mbarrier, by (mbarrier, n).
    empties : set of int
        Mbarriers that copies wait for.
    """

    by_full: defaultdict[int, list[Draft]] = field(default_factory=lambda: defaultdict(list))
    at_once: list[Draft] = field(default_factory=list)
    released: defaultdict[tuple[int, int], list[Draft]] = field(default_factory=lambda: defaultdict(list))
    empties: set[int] = field(default_factory=set)


def streams(rows: Sequence[Row], function: Function, known: Sequence[Known]) -> list[list[Event]]:
    """Return one stream for each warpgroup that uses wgmma, else one stream of all warps.

    Raises
    ------
    UnsupportedInstruction
        For a wait without a copy, with its line.
    """
    groups = sorted({warp // WARPS for row in rows if known[row.position].kind == "wgmma" for warp in _warps(row)})
    if not groups:
        return [list(rows)]
    copies = _copies(rows, function, known, groups)
    return [_stream(rows, function, known, group, copies) for group in groups]


def as_one(side_by_side: Sequence[list[Draft]]) -> list[Draft]:
    """Merge the operations of several warpgroups that do the same work on different rows into those of one warpgroup.

    Bytes are summed; the k-th access to a tensor in one warpgroup belongs to the k-th in the others. Vector work is the
    mean over warpgroups with the same operations, since a mask may hide keys from the rows of one warpgroup only.
    """
    found = max(side_by_side, key=len)
    parts: dict[tuple[str, str, int], Draft] = {}
    for drafts in (found, *(other for other in side_by_side if other is not found)):
        seen = Counter[tuple[str, str]]()
        for one in drafts:
            if one.bytes and not one.whole:
                key = one.kind, one.tensor
                mine = parts.setdefault((*key, seen[key]), one)
                mine.bytes += 0 if mine is one else one.bytes
                seen[key] += 1
    alike = [drafts for drafts in side_by_side if [one.kind for one in drafts] == [one.kind for one in found]]
    for place, one in enumerate(found):
        if one.kind == "vector":
            for name in ("exps", "special", "fp32", "on_sums", "smem_bytes"):
                setattr(one, name, round(sum(getattr(drafts[place], name) for drafts in alike) / len(alike)))
    return found


def _warps(row: Row) -> list[int]:
    return [warp for warp, lanes in enumerate(row.lanes) if lanes]


def _copies(rows: Sequence[Row], function: Function, known: Sequence[Known], groups: Sequence[int]) -> _Copies:
    found = _Copies()
    arrived, waited = set[int](), Counter[int]()
    empty: int | None = None
    last: Draft | None = None
    for row in rows:
        one, mine = function.instructions[row.position], not any(warp // WARPS in groups for warp in _warps(row))
        if one.name == "mbarrier":
            if one.modifiers[0] == "arrive":
                arrived.add(row.mbarrier)
            elif "wait" in one.modifiers[0] and mine and row.mbarrier not in found.by_full:
                empty, last = row.mbarrier, None
                found.empties.add(empty)
                waited[empty] += 1 if empty in arrived else 0
        elif known[row.position].kind == "bulk copy" and row.moved:
            ((tensor, size),) = row.moved
            if last is not None and last.tensor == tensor and found.by_full[row.mbarrier][-1:] == [last]:
                last.bytes += size
                continue
            last = Draft("load", tensor, bytes=size, whole=True)
            found.by_full[row.mbarrier].append(last)
            if empty is None or not waited[empty]:
                found.at_once.append(last)
            else:
                found.released[empty, waited[empty] - 1].append(last)
    return found


def _stream(
    rows: Sequence[Row],
    function: Function,
    known: Sequence[Known],
    group: int,
    copies: _Copies,
) -> list[Event]:
    found: list[Event] = [replace(load, instructions=Counter()) for load in copies.at_once]
    waits, arrivals = Counter[int](), Counter[int]()
    spinning: tuple[int, int] | None = None
    for row in rows:
        lanes = row.lanes[WARPS * group : WARPS * (group + 1)]
        active = sum(lanes)
        if not active:
            continue
        one = function.instructions[row.position]
        if one.name == "mbarrier" and "wait" in one.modifiers[0]:
            if row.mbarrier in copies.by_full and spinning != (row.position, row.mbarrier):
                turn = waits[row.mbarrier]
                waits[row.mbarrier] += 1
                if turn >= len(copies.by_full[row.mbarrier]):
                    raise UnsupportedInstruction(f"{one.place}: waits for a copy that nobody has begun")
                found.append(Draft("wait", copies.by_full[row.mbarrier][turn].tensor))
            spinning = row.position, row.mbarrier
            continue
        spinning = None
        if one.name == "mbarrier" and row.mbarrier in copies.empties and "arrive" in one.modifiers[0]:
            for load in copies.released.get((row.mbarrier, arrivals[row.mbarrier]), ()):
                found.append(replace(load, instructions=Counter()))
            arrivals[row.mbarrier] += 1
        elif known[row.position].kind not in ("bulk copy", "bulk store"):
            share = active / sum(row.lanes)
            moved = tuple((name, round(size * share)) for name, size in row.moved)
            found.append(Row(row.position, lanes, round(row.shared_bytes * share), moved))
    return found
