"""Derives the loop nests of all blocks from those of a few: blocks of one shape differ only in iteration counts."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from attnsim import bounds
from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.kernels.lift.drafts import Body, Draft, Ops, merged, nest_of, repeated
from attnsim.kernels.lift.grid import Access, Blocks, blocks_of, launches, uses_of
from attnsim.kernels.lift.kinds import Known, kinds_of
from attnsim.kernels.lift.machine import amounts, instruction_ratio_of, loop_of_products, meet, schedulers
from attnsim.kernels.lift.operations import as_one, drafts_of, streams
from attnsim.kernels.lift.products import (
    SCORES,
    apart,
    beyond_scores,
    coalesced,
    finished,
    per_score,
    row_tiles,
    with_scores,
)
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.schedule import Kernel, Path
from attnsim.ptx.counters import PIPES
from attnsim.ptx.faults import UnsupportedInstruction
from attnsim.ptx.lanes import WARP, WARPGROUP, Dim3
from attnsim.ptx.machine_code import Code
from attnsim.ptx.recording import Recorder, Row
from attnsim.ptx.skeleton import Skeleton
from attnsim.ptx.syntax import Function

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


GRADIENT = by_hand(3, "FLOPs of all products over those of scores from which a kernel is a backward pass")
"""A forward pass has about 2, a backward pass 5; their steps may have different latencies."""
DTYPES = {"f16": "fp16", "bf16": "bf16", "tf32": "fp32", "e4m3": "fp8", "e5m2": "fp8"}
"""Formats of the tensor cores' inputs, by PTX's names."""


Finish = Callable[[Sequence[Draft], float], tuple[Ops, list[Counter[str]]]]
"""Converts drafts to operations and their instructions, given the FP32 instructions per score."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of a block other than threads.

    Parameters
    ----------
    registers : int
        Registers of a thread.
    shared_memory_bytes : int
        Dynamic and static.
    source : str
        Origin of the numbers.
    """

    registers: int
    shared_memory_bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class PtxLaunch:
    """A launch of a kernel.

    Parameters
    ----------
    shared_memory_bytes : int
        Dynamic.
    """

    function: Function
    grid: Dim3
    block: Dim3
    arguments: Mapping[str, Any]
    shared_memory_bytes: int


@dataclass(frozen=True, eq=False, slots=True)
class Nest:
    """The loop nest of all blocks of a grid.

    Parameters
    ----------
    bodies : list of tuple of TileOp
        Loop bodies in order.
    repeats : ndarray of int ``[classes, bodies]``
        Iterations of each body in a block of each class.
    instructions : tuple of mapping of str to int
        Warp instructions of the PTX by pipe, for each body.
    per_score : float
        Smallest number of FP32 instructions per score.
    """

    bodies: list[Ops]
    repeats: Ints
    instructions: tuple[Mapping[str, int], ...]
    per_score: float


def lift(
    launch: PtxLaunch,
    resources: Resources,
    *,
    counted: bool = True,
    code: Code | None = None,
    foreign: bool = False,
) -> tuple[Kernel, Nest]:
    """Lift a launch to a kernel for the simulator, and its loop nest.

    Every block of the grid is run without its arithmetic (:mod:`attnsim.ptx.skeleton`); some blocks of each kind are
    run completely.

    Parameters
    ----------
    counted : bool
        Charge work by its counted instructions; else by FlashAttention's instructions of the same path.
    code : Code, optional
        Machine code, to charge by its instructions instead of those of the PTX.
    foreign : bool
        True for kernels without a hand-written schedule. Two things differ:

        - Warps also wait for stall counts and scoreboards of the machine code (:mod:`attnsim.ptx.scheduler`).
        - Warps of ``mma.sync`` that meet at a barrier in each step stay together, so that none multiplies while another
          works on its products. Without `foreign`, each four warps run ahead of the others.

    Raises
    ------
    UnsupportedInstruction, Fault
        If the kernel cannot be run, or no operation of a schedule represents an instruction, with its line.
    """
    function = launch.function
    known, looping, skeleton, recorder = _compiled(function)
    if skeleton.unknown:
        raise UnsupportedInstruction(
            f"{function.name}: where blocks go depends on values that the kernel computes, "
            f"{skeleton.unknown[0].place}; a schedule has to know it before"
        )
    threads = math.prod(launch.block)
    called = launch.grid, launch.block, launch.arguments, launch.shared_memory_bytes
    record = skeleton.run(*called)
    blocks = blocks_of(record)
    groups = 1
    longest: list[Row] = []
    its_drafts: list[Draft] = []

    def run(number: int) -> list[Draft]:
        nonlocal groups, longest, its_drafts
        rows = recorder.block(blocks.first(number), *called)
        _check(function, skeleton, moved_by(rows, known), blocks.moved[number])
        side_by_side = streams(hoisted(rows, function, known), function, known)
        groups = len(side_by_side)
        drafts = apart(coalesced(with_scores(as_one([drafts_of(one, known, looping) for one in side_by_side]))))
        if len(rows) > len(longest):
            longest, its_drafts = rows, drafts
        return drafts

    path = _path(function)
    together = path != "mma_sync" or (foreign and meet(function, known))
    share = 1 if together else max(1, threads // WARPGROUP)

    def finish(drafts: Sequence[Draft], each: float) -> tuple[Ops, list[Counter[str]]]:
        ops: list[TileOp] = []
        counts: list[Counter[str]] = []
        for part in row_tiles(drafts):
            found, spent = finished(part if counted else beyond_scores(part, each), share, counted=counted)
            ops, counts = [*ops, *found], [*counts, *spent]
        return tuple(ops), counts

    nest = _nest(blocks, run, finish)
    bodies = nest.bodies
    if counted and code is not None:
        sharing = WARPGROUP if path == "wgmma" else threads
        warps = sharing // WARP // share
        in_step = max(1, warps // schedulers(code.capability)) if foreign else 0
        ops = finish(its_drafts, nest.per_score)[0]
        ratio = instruction_ratio_of(function, known, nest.instructions, code, sharing, longest, ops, in_step)
        bodies = [
            ratio.charged(body, amounts(spent, sharing)[0], warps)
            for body, spent in zip(bodies, nest.instructions, strict=True)
        ]
        bodies = [ratio.with_waits(body, warps) for body in bodies]
    sizes = {name: bytes_of(value) for name, value in launch.arguments.items()}
    kernel = Kernel(
        name=function.name,
        threads=threads,
        registers_per_thread=resources.registers,
        segments=tuple(Segment(name, body) for name, body in zip(_names(nest), bodies, strict=True)),
        repeats=nest.repeats[:, None, :],
        launches=launches(blocks.of_block),
        uses=uses_of(record.accesses, sizes),
        warpgroups=groups * share,
        path=path,
        multicast=function.cluster
        if any("multicast::cluster" in one.modifiers for one in function.instructions)
        else 1,
        buffers=(("shared memory", resources.shared_memory_bytes),),
        dtype=_dtype(function),
        is_backward=_is_gradient(nest),
    )
    return kernel, nest


@functools.lru_cache(maxsize=8)
def _compiled(function: Function) -> tuple[tuple[Known, ...], range, Skeleton, Recorder]:
    """Compile a kernel for lifting; results are cached for its next launch."""
    known = kinds_of(function)
    return known, loop_of_products(function, known), Skeleton(function), Recorder(function)


def _check(function: Function, skeleton: Skeleton, found: Mapping[Access, int], expected: Mapping[Access, int]) -> None:
    """Raise UnsupportedInstruction if a block's complete run accesses other bytes than its run without arithmetic."""
    if found != expected:
        where = f": {skeleton.guessed[0].place}" if skeleton.guessed else ""
        raise UnsupportedInstruction(
            f"{function.name}: where blocks go depends on values that the kernel computes{where}; "
            "a schedule has to know it before"
        )


def _nest(blocks: Blocks, run: Callable[[int], list[Draft]], finish: Finish) -> Nest:
    """Build the nest of all classes from those that were run; runs more classes if the others do not follow."""
    ran = {number: run(number) for number in to_run(blocks)}
    while True:
        each = per_score([part for drafts in ran.values() for part in row_tiles(drafts)])
        settled = {number: finish(drafts, each) for number, drafts in ran.items()}
        longest = sorted(settled, key=lambda number: -len(settled[number][0]))
        turning: list[Ops] = []
        for number in longest:
            turning += repeated(settled[number][0], turning)
        nests = [nest_of(settled[number][0], turning) for number in longest]
        bodies, rows = merged(nests)
        known = {number: np.array(row, np.int64) for number, row in zip(longest, rows, strict=True)}
        for number in range(blocks.count):
            if number in ran:
                continue
            counts = between(blocks, {one: known[one] for one in ran}, number, bodies)
            if counts is None:
                bounds.reached(number, blocks.count)
                ran[number] = run(number)
                break
            known[number] = counts
        else:
            counted = _instructions(bodies, nests, [settled[number][1] for number in longest])
            return Nest(bodies, np.stack([known[number] for number in range(blocks.count)]), counted, each)


def _instructions(
    bodies: Sequence[Ops], nests: Sequence[Sequence[Body]], counts: Sequence[Sequence[Counter[str]]]
) -> tuple[Mapping[str, int], ...]:
    """Return the warp instructions of each body by pipe, the mean over its executions."""
    total, runs = [Counter[str]() for _ in bodies], [0] * len(bodies)
    for nest, counted in zip(nests, counts, strict=True):
        place = 0
        for body, times in nest:
            number = bodies.index(body)
            end = place + len(body) * times
            for one in counted[place:end]:
                total[number] += one
            runs[number] += times
            place = end
    return tuple(
        {pipe: round(summed[pipe] / times) for pipe in PIPES if summed[pipe]}
        for summed, times in zip(total, runs, strict=True)
    )


def _names(nest: Nest) -> list[str]:
    """Number the loops and the parts between them."""
    found, loop, part = [], 0, 0
    for most in nest.repeats.max(axis=0):
        if most > 1:
            loop += 1
            found.append(f"loop {loop}")
        else:
            part += 1
            found.append(f"part {part}")
    return found


def _is_gradient(nest: Nest) -> bool:
    products = [op for body in nest.bodies for op in body if op.flops]
    scores = sum(op.flops for op in products if op.tensor == SCORES)
    return 0 < GRADIENT * scores <= sum(op.flops for op in products)


def _path(function: Function) -> Path:
    names = {one.name for one in function.instructions}
    return "wgmma" if "wgmma" in names else "mma_sync" if "mma" in names else "simt"


def _dtype(function: Function) -> str:
    for one in function.instructions:
        if one.name in ("mma", "wgmma"):
            for modifier in one.modifiers:
                if modifier in DTYPES:
                    return DTYPES[modifier]
    return "fp16"


def bytes_of(value: Any) -> int:
    """Return the bytes of an argument in global memory."""
    return int(getattr(getattr(value, "array", value), "nbytes", 0))
