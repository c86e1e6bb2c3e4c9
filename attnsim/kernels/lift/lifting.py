"""Lifts a launch of PTX to a kernel of the simulator."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnsim import bounds
from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.kernels.lift.drafts import Draft
from attnsim.kernels.lift.grid import Access, Blocks, blocks_of, launches, uses_of
from attnsim.kernels.lift.hoisting import hoisted
from attnsim.kernels.lift.kinds import Known, kinds_of
from attnsim.kernels.lift.loops import Body, Ops, merged, nest_of, repeated
from attnsim.kernels.lift.machine import amounts, instruction_ratio_of, loop_of_products, meet, schedulers
from attnsim.kernels.lift.nests import between, moved_by, to_run
from attnsim.kernels.lift.operations import drafts_of
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
from attnsim.kernels.lift.streams import as_one, streams
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.schedule import Kernel, Path
from attnsim.ptx.counters import PIPES
from attnsim.ptx.faults import UnsupportedInstruction
from attnsim.ptx.lanes import WARP, WARPGROUP, Dim3
from attnsim.ptx.machine_code import Code
from attnsim.ptx.recording import Recorder, Row
from attnsim.ptx.skeleton import Skeleton
from attnsim.ptx.syntax import Function

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
