"""Operations of a kernel's PTX as streams of tile operations."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from attnsim.kernels.lift.drafts import WORK, Draft
from attnsim.kernels.lift.kinds import Known
from attnsim.ptx.faults import UnsupportedInstruction
from attnsim.ptx.recording import Row
from attnsim.ptx.syntax import Function

MOST_SOURCES = 8
"""Largest number of products that are tracked as sources of one register."""

Event = Row | Draft
"""An instruction, or a complete operation: a copy by another warp, or a wait for one."""


def drafts_of(events: Iterable[Event], known: Sequence[Known], looping: range) -> list[Draft]:
    """Return the operations of a block, or of one warpgroup, in order; `looping` is the loop of its products."""
    lifting = _Lifting(known, looping)
    for event in events:
        if isinstance(event, Draft):
            lifting.take(event)
        else:
            lifting.step(event)
    return lifting.finished()


class _Lifting:
    def __init__(self, known: Sequence[Known], looping: range) -> None:
        self._known, self._looping = known, looping
        self._multiplies = any(one.kind in ("mma", "wgmma") for one in known)
        self._drafts: list[Draft] = []
        self._work = Draft("vector")
        self._fragments = Draft("mma")  # what warps have read since the last product
        self._product: Draft | None = None  # mma.sync that goes on
        self._async: Draft | None = None  # wgmma of the open group
        self._issued: list[Draft] = []
        self._loads: dict[str, Draft] = {}  # that go on, by tensor
        self._group: list[Draft] = []
        self._groups: list[list[Draft]] = []
        self._turning: list[Draft] = []  # loads that take turns, of which each began before another's last part
        self._pending: dict[str, Draft] = {}  # loads by the registers that they fill
        self._products: list[Draft] = []
        self._sources: dict[str, frozenset[int]] = {}  # products that a register comes from
        self._on_products: list[tuple[Draft, frozenset[int], int]] = []  # FP32 work on what products have left
        self._worked = False  # whether vector work stands between products, or exponentials before them
        self._touched = False  # whether vector work has read the product that goes on

    def step(self, row: Row) -> None:
        one = self._known[row.position]
        self._arrive(one)
        match one.kind:
            case "copy" | "load" | "bulk copy":
                self._load(row, one)
            case "commit":
                self._commit()
            case "wait":
                self._wait_groups(one.pending)
            case "mma":
                self._multiply(row, one)
            case "wgmma":
                self._issue(row, one)
            case "wgmma commit":
                self._commit_products()
            case "wgmma wait":
                self._wait_products(one.pending)
            case "store" | "bulk store":
                self._store(row, one)
            case "barrier":
                self._cut()
            case "mbarrier":
                pass
            case _:
                self._do(row, one)
        self._trace(one)

    def take(self, draft: Draft) -> None:
        """Append a complete operation."""
        self._loads = {}
        self._append(draft)

    def finished(self) -> list[Draft]:
        self._flush()
        if not self._products and self._work.instructions:  # what a block does last, which no latency stands for
            self._drafts.append(self._work)
        for draft, sources, lanes in self._on_products:
            if not any(self._products[number].consumed for number in sources):
                draft.on_sums += lanes
        return self._drafts

    def _append(self, draft: Draft) -> Draft:
        self._flush()
        waits = bool(self._drafts) and self._drafts[-1].kind == draft.kind == "wait"  # work is behind both
        if draft.kind == "wait" and not (self._products or self._worked or waits) and self._work.instructions:
            self._drafts.append(self._work)  # what a block does before its first step
            self._work = Draft("vector")
        self._product = None
        self._drafts.append(draft)
        return draft

    def _flush(self) -> None:
        if self._work.works:
            self._drafts.append(self._work)
            self._worked |= bool(self._products or self._work.exps)
            self._work = Draft("vector")
        self._touched = False

    def _cut(self) -> None:
        self._flush()
        if self._products and self._work.instructions:
            self._append(self._work)
            self._work = Draft("vector")
        self._product, self._loads = None, {}

    def _trace(self, one: Known) -> None:
        """Track the results of products through registers; results that reach an exponential are scores."""
        if one.kind in ("mma", "wgmma") or not one.writes:
            return
        found: frozenset[int] = frozenset()
        for name in one.reads:
            found |= self._sources.get(name, found)
        if len(found) > MOST_SOURCES:
            found = frozenset(sorted(found)[-MOST_SOURCES:])
        for name in one.writes:
            self._sources[name] = found
        if one.kind == "exp":
            for number in found:
                self._products[number].consumed = True

    def _arrive(self, one: Known) -> None:
        """Wait for the loads whose registers an instruction reads."""
        if self._pending:
            for name in one.reads & self._pending.keys():
                if name in self._pending:
                    self._wait(self._pending[name])

    def _wait(self, load: Draft) -> None:
        self._pending = {name: other for name, other in self._pending.items() if other is not load}
        if not load.waited:
            load.waited = True
            self._loads = {}
            self._append(Draft("wait", load.tensor))
        if any(one is load for one in self._turning):  # one scoreboard is theirs
            others, self._turning = self._turning, []
            for other in others:
                self._wait(other)

    def _load(self, row: Row, one: Known) -> None:
        if not self._multiplies and row.moved and (self._work.instructions["ALU"] or self._work.instructions["FMA"]):
            self._drafts.append(self._work)  # addresses come before what they are of
            self._work = Draft("vector")
        for tensor, size in row.moved:
            load = self._loads.get(tensor)
            if load is None:
                load = self._loads[tensor] = self._append(Draft("load", tensor))
                if one.kind == "copy":
                    self._group.append(load)
            elif not self._multiplies:
                self._begin_together(load)
            load.bytes += size
            if one.kind == "load":
                self._pending.update(dict.fromkeys(one.writes, load))
        self._count(row, one)

    def _begin_together(self, load: Draft) -> None:
        """Move a continued load to its last part, together with the loads that alternate with it."""
        place = next(number for number, one in enumerate(self._drafts) if one is load)
        while place and self._drafts[place - 1].kind == "load":
            place -= 1
        since = self._drafts[place:]
        self._turning = [one for one in since if one.kind == "load"]
        self._drafts[place:] = [*(one for one in since if one.kind != "load"), *self._turning]

    def _commit(self) -> None:
        self._groups.append(self._group)
        self._group, self._loads = [], {}

    def _wait_groups(self, pending: int) -> None:
        if pending < 0:
            self._commit()
        self._loads = {}
        while len(self._groups) > max(pending, 0):
            for load in self._groups.pop(0):
                self._wait(load)

    def _multiply(self, row: Row, one: Known) -> None:
        if self._product is None or self._work.exps or self._touched:
            self._product = self._begin(Draft("mma", lanes=sum(row.lanes)))
        product = self._product
        product.flops += one.tensor_flops * sum(row.lanes)
        product.add(self._fragments)
        self._fragments = Draft("mma")
        self._record(product, row, one)

    def _issue(self, row: Row, one: Known) -> None:
        if self._async is None:
            self._async = self._begin(Draft("mma_async", lanes=sum(row.lanes)))
        self._async.flops += one.tensor_flops * sum(row.lanes)
        self._async.smem_bytes += one.operand_bytes * (sum(row.lanes) // 128)
        self._record(self._async, row, one)

    def _begin(self, product: Draft) -> Draft:
        """Begin a product; without vector work between products, it takes the instructions before it."""
        self._append(product)
        if self._products and not self._worked:
            product.instructions += self._work.instructions
            self._work = Draft("vector")
        self._products.append(product)
        self._loads = {}
        return product

    def _commit_products(self) -> None:
        if self._async is not None:
            self._issued.append(self._async)
            self._async = None

    def _wait_products(self, pending: int) -> None:
        while len(self._issued) > pending:
            self._issued.pop(0)
            self._append(Draft("mma_wait"))

    def _record(self, product: Draft, row: Row, one: Known) -> None:
        product.outputs -= one.reads  # an accumulator that goes on under another name
        product.outputs |= one.writes
        product.instructions[one.pipe] += _warps(row)
        here = frozenset([len(self._products) - 1])
        self._sources.update(dict.fromkeys(one.writes, here))

    def _store(self, row: Row, one: Known) -> None:
        for tensor, size in row.moved:
            since = takewhile(lambda draft: draft.kind in ("store", "vector"), reversed(self._drafts))
            last = next((draft for draft in since if draft.kind == "store" and draft.tensor == tensor), None)
            if last is None:
                last = self._append(Draft("store", tensor))
            elif self._drafts[-1] is not last or self._work.works:  # done where its last part is
                self._flush()
                self._drafts.remove(last)
                self._drafts.append(last)
            last.bytes += size
            last.each_step |= row.position in self._looping
            last.instructions[one.pipe] += _warps(row)

    def _do(self, row: Row, one: Known) -> None:
        lanes, work = sum(row.lanes), self._work
        work.exps += one.exponentials * lanes
        work.special += one.special * lanes
        if one.kind == "fragment":
            self._fragments.smem_bytes += row.shared_bytes
            self._fragments.instructions[one.pipe] += _warps(row)
            return
        work.smem_bytes += row.shared_bytes
        if one.fp32:
            work.fp32 += one.fp32 * lanes
            found = (self._sources.get(name) for name in one.reads)
            sums = next((sources for sources in found if sources and len(sources) == 1), None)
            if sums:
                self._on_products.append((work, sums, one.fp32 * lanes))
            if self._product is not None and not self._product.outputs.isdisjoint(one.reads):
                self._touched = True
        self._count(row, one)

    def _count(self, row: Row, one: Known) -> None:
        self._work.instructions[one.pipe] += _warps(row)


def _warps(row: Row) -> int:
    return sum(lanes > 0 for lanes in row.lanes)


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
    groups = sorted({warp // WARPS for row in rows if known[row.position].kind == "wgmma" for warp in _warps_of(row)})
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
            for name in WORK:
                setattr(one, name, round(sum(getattr(drafts[place], name) for drafts in alike) / len(alike)))
    return found


def _warps_of(row: Row) -> list[int]:
    return [warp for warp, lanes in enumerate(row.lanes) if lanes]


def _copies(rows: Sequence[Row], function: Function, known: Sequence[Known], groups: Sequence[int]) -> _Copies:
    found = _Copies()
    arrived, waited = set[int](), Counter[int]()
    empty: int | None = None
    last: Draft | None = None
    for row in rows:
        one, mine = (
            function.instructions[row.position],
            not any(warp // WARPS in groups for warp in _warps_of(row)),
        )
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
