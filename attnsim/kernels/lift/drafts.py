"""Tile operations under construction from instructions, and the loops in finished streams of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher

from attnsim.models.schedule.operation import Kind, TileOp
from attnsim.ptx.lanes import WARP

VANISHING = ("moves",)
"""Pipes of PTX instructions that the assembler merges or drops."""

WORK = ("exps", "special", "fp32", "on_sums", "smem_bytes")
"""Amounts of vector work."""

CHARGED: tuple[Kind, ...] = ("vector", "mma", "mma_async")
"""Operations that are charged by instructions; those of copies, waits and stores are added to the next operation."""


@dataclass(slots=True)
class Draft:
    """One unfinished operation.

    Parameters
    ----------
    bytes, flops, smem_bytes, exps, fp32, scores : int
        As in :class:`attnsim.models.schedule.operation.TileOp`; `fp32` includes the work that becomes part of `scores`.
    special : int
        Other operations of the special function unit.
    on_sums : int
        Part of `fp32` that works on the results of products other than scores, such as the rescaling of O.
    instructions : Counter of str
        Warp instructions of the PTX by pipe.
    outputs : set of str
        Accumulator registers of a product.
    lanes : int
        Lanes that hold the accumulators.
    chains : int
        Number of accumulators that are summed into each result.
    consumed : bool
        Product: its result reaches an exponential.
    waited : bool
        Load: its wait has been found.
    whole : bool
        Copy: it is the copy of the whole block, not the part of one warpgroup.
    each_step : bool
        Store: it is in the loop of the products, so that every step has it.
    """

    kind: Kind
    tensor: str = ""
    bytes: int = 0
    flops: int = 0
    smem_bytes: int = 0
    exps: int = 0
    fp32: int = 0
    scores: int = 0
    special: int = 0
    on_sums: int = 0
    instructions: Counter[str] = field(default_factory=Counter)
    outputs: set[str] = field(default_factory=set)
    lanes: int = 0
    chains: int = 1
    consumed: bool = False
    waited: bool = False
    whole: bool = False
    each_step: bool = False

    @property
    def results(self) -> int:
        """Number of elements of a product."""
        return len(self.outputs) * self.lanes // self.chains

    @property
    def works(self) -> bool:
        """True if it has work other than addresses and predicates, which are counted with the next operation."""
        return bool(self.exps or self.special or self.fp32 or self.smem_bytes)

    def add(self, other: Draft) -> None:
        """Add the work of another operation."""
        for name in ("bytes", "flops", *WORK, "scores", "instructions"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.outputs |= other.outputs
        self.consumed = self.consumed or other.consumed

    def part(self, times: int, name: str) -> Draft:
        """Return one of `times` equal parts, under a name of its own, so that no loop is found over them."""
        instructions = Counter({pipe: count // times for pipe, count in self.instructions.items()})
        smem_bytes = self.smem_bytes // times
        return replace(self, tensor=name, flops=self.flops // times, smem_bytes=smem_bytes, instructions=instructions)

    def operation(self, groups: int, counted: Counter[str] | None) -> TileOp:
        """Return the finished operation for one of `groups` warpgroups that share it.

        Parameters
        ----------
        counted : Counter of str or None
            Its warp instructions by pipe, to charge by; None to charge scores by fitted numbers.
        """
        op = TileOp(
            self.kind,
            "P" if self.kind == "vector" and self.scores else self.tensor,
            bytes=self.bytes,
            flops=self.flops // groups,
            smem_bytes=self.smem_bytes // groups,
            scores=self.scores // groups,
            exps=(self.exps + self.special) // groups,
            fp32=self.fp32 // groups,
        )
        if counted is None:
            return op
        return op._replace(
            fp32=WARP * counted["FMA"] // groups,
            int32=WARP * counted["ALU"] // groups,
            load_stores=WARP * counted["LSU"] // groups,
            issues=sum(count for pipe, count in counted.items() if pipe not in VANISHING) // groups,
        )


def is_product(draft: Draft) -> bool:
    """True if an operation is a matrix product."""
    return draft.kind in ("mma", "mma_async")


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
