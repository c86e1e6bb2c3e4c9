"""What the assembler leaves of the instructions of PTX, in the step of the loop that multiplies."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from attnsim.kernels.lift.drafts import VANISHING
from attnsim.kernels.lift.kinds import Known
from attnsim.kernels.lift.left import NOTHING, Left, spent_on, stretches_of
from attnsim.kernels.lift.loops import Ops
from attnsim.kernels.lift.ways import between_waits, code_marks, made, marks_of, shortest
from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.schedule.instructions import LANES, LDMATRIX_BYTES, MMA_FLOPS
from attnsim.ptx.lanes import WARP
from attnsim.ptx.machine_code import OTHER, Code, Instruction, inside
from attnsim.ptx.recording import Row
from attnsim.ptx.scheduler import turn_of
from attnsim.ptx.syntax import Function

PIPES = {"tensor": "tensor", "XU": "exp", "FMA": "fp32", "ALU": "integer", "LSU": "load_store"}
"""The pipes of machine code that are PTX's; fragments go to one that is counted apart."""
FRAGMENTS = "matrix_load"
UNCHARGED = "uncharged"
"""Where instructions of PTX go that no operation is charged for: branches, and what operations begin and wait with."""
_UNCHARGED = ("commit", "wait", "wgmma commit", "wgmma wait", "barrier", "mbarrier")
PIPE_LANES = ("fp32", "integer", "load_store")
"""Pipes whose instructions are charged by the lane."""


def schedulers(capability: int) -> int:
    """Of an SM; each has every so manyth warp."""
    return int(_figures(capability)["sm.warp_schedulers"])


def _figures(capability: int) -> dict[str, float]:
    return {one.key: one.value for one in architecture_of(capability).figures}


@functools.cache
def clocks(capability: int) -> Mapping[str, float]:
    """Clocks that a warp instruction holds a scheduler's share of each pipe of machine code, and two latencies."""
    row, figures, share = architecture_of(capability), _figures(capability), schedulers(capability)
    lanes = share * LANES
    multiplied = row.mma_sync_flops_per_clk or row.fp16_flops_per_clk
    return {
        "tensor": share * MMA_FLOPS / multiplied,
        "matrix_load": share * LDMATRIX_BYTES / figures["sm.shared_memory_bandwidth"],
        "exp": lanes / figures["sm.exp_rate"],
        "fp32": 2 * lanes / figures["sm.fp32_rate"],
        "integer": lanes / figures["sm.int32_rate"],
        "load_store": lanes / figures["sm.load_store_rate"],
        "mma latency": figures["tensor.mma_latency"],
        "shared memory latency": figures["sm.shared_memory_latency"],
    }


def left_of(
    function: Function,
    known: Iterable[Known],
    bodies: Iterable[Mapping[str, int]],
    code: Code,
    threads: int,
    rows: Sequence[Row],
    ops: Ops,
    in_step: int = 0,
) -> Left:
    """Compare a step of PTX with that of the machine code that has as many products.

    Both are the shortest turn of a loop: pieces that are seldom needed, such as masks that are jumped over, are in
    neither. A body is a step, or several that differ where none is like another: the fewest that both loops have as
    equal parts; and of those of several bodies the one with the exponentials of its body. Of a kernel without products
    all that a warp ran is compared. A turn whose loops inside turn differently often is compared whole, with each as
    often as it ran.

    Parameters
    ----------
    function : Function
    known : iterable of Known
        Its instructions.
    bodies : iterable of mapping of str to int
        Warp instructions of PTX by pipe, of all warps that share each: their products are those of steps.
    code : Code
    threads : int
        That share a body.
    rows : sequence of Row
        Of a block, as it ran.
    ops : tuple of TileOp
        Of that block.
    in_step : int
        Warps of a scheduler that share each operation, where what they wait for is counted; 0: it is not.
    """
    ptx = _as_code(function, known)
    warps = visits_of(rows, len(function.instructions))
    if not ptx.loops():
        return _by_ways(function, ptx, code, warps, ops)
    visits = [max(one) for one in zip(*warps, strict=True)]
    unlike = _of_turns(ptx, code, visits, in_step)
    if unlike is not None:
        return unlike
    found: dict[float, Left] = {}
    for products, exponentials in dict.fromkeys(amounts(body, threads) for body in bodies):
        for steps in (one for one in range(1, int(products) + 1) if products % one == 0):
            number = int(products) // steps
            mine, theirs = ptx.step(number), code.step(number)
            if mine and theirs:
                off = abs(steps * ptx.counts(mine)["exp"] / max(1.0, exponentials) - 1)
                found.setdefault(off, _compared(ptx, mine, code, theirs, number, visits, in_step))
                break
    return found[min(found)] if found else NOTHING


def _by_ways(function: Function, ptx: Code, code: Code, warps: Iterable[tuple[int, ...]], ops: Ops) -> Left:
    """Compare all that the warps of a block ran with the ways that they go through the machine code.

    What they ran of PTX beyond its own shortest way, such as hiding scores, is kept, as no access tells it: as far as
    the machine code jumps over something that it may be, and does not run it under predicates. Where each warp waits
    for loads as often as the block does, what is between two waits is compared.
    """
    before, after = defaultdict[str, float](float), defaultdict[str, float](float)
    parts = stretches_of(ops)
    spent = [spent_on(part) for part in parts]
    within: list[dict[str, float]] = [defaultdict(float) for _ in parts]
    marks, theirs = marks_of(function), code_marks(code)
    for visits, times in Counter(warps).items():
        wanted = made(marks, visits)
        mine, way = shortest(ptx, marks, wanted), shortest(code, theirs, wanted)
        if mine is None or way is None:
            return NOTHING
        least, found, over = _amounts(ptx, mine.places), _amounts(code, way.places), _amounts(code, way.over)
        ran = _amounts(ptx, [index for index, turns in enumerate(visits) for _ in range(turns)])
        beyond = {pipe: min(max(0.0, ran[pipe] - least[pipe]), over[pipe]) for pipe in PIPE_LANES}
        beyond["issued"] = sum(beyond.values())
        loads = sum(many for mark, many in wanted.items() if mark.startswith("load"))
        waiting = between_waits(code, way.places, loads)
        within = within if len(waiting) == len(parts) and all(one["issued"] for one in spent) else []
        for pipe in ran:
            before[pipe] += times * ran[pipe]
            after[pipe] += times * (found[pipe] + beyond[pipe])
            for sums, stretch in zip(within, waiting, strict=False):
                sums[pipe] += times * _amounts(code, stretch)[pipe] * (1 + beyond[pipe] / max(1.0, found[pipe]))
    shares = (
        {pipe: sums[pipe] / mine[pipe] if mine[pipe] else 1.0 for pipe in mine}
        for sums, mine in zip(within, spent, strict=False)
    )
    return Left(before, after, 0, stretches=tuple(shares))


def _of_turns(ptx: Code, code: Code, visits: Sequence[int], in_step: int) -> Left | None:
    """Compare a turn of the loop in which others turn differently often, each as often as it did."""
    for loop in ptx.loops():
        within = [one for one in ptx.loops() if inside(one, loop)]
        turns, parts, place = [], [], loop.start
        for one in within:
            before = next((visits[index] for index in range(one.start - 1, loop.start, -1) if visits[index]), 1)
            turns.append(max(1, round(max(visits[one.start : one.stop]) / before)))
            parts += [ptx.counts(range(place, one.start))["tensor"], turns[-1] * ptx.counts(one)["tensor"]]
            place = one.stop
        parts = [part for part in (*parts, ptx.counts(range(place, loop.stop))["tensor"]) if part]
        theirs = code.turn(parts, whole=True) if len(set(turns)) > 1 else None
        if theirs:
            mine = list(ptx.path(loop, turns, whole=True))
            return _compared(ptx, mine, code, theirs, sum(parts), visits, in_step)
    return None


def loop_of_products(function: Function, known: Sequence[Known]) -> range:
    """The smallest loop that all products of a kernel stand in; empty where there is none, or it goes over row tiles.

    One of row tiles has steps inside: a loop of products in which the block meets. What it stores ends a row tile.
    """
    code = _as_code(function, known)
    places = [index for index, one in enumerate(code.instructions) if one.pipe == "tensor"]
    around = [one for one in code.loops() if places[0] in one and places[-1] in one] if places else []
    found = min(around, key=len, default=range(0))
    steps = [one for one in code.loops() if inside(one, found)]
    return range(0) if any(known[place].kind == "barrier" for one in steps for place in one) else found


def meet(function: Function, known: Sequence[Known]) -> bool:
    """Whether the warps of a block wait for one another in each step: each innermost loop of products has a barrier."""
    loops = _as_code(function, known).loops()
    steps = [one for one in loops if not any(inside(other, one) for other in loops)]
    barriers = {place for place, one in enumerate(known) if one.kind == "barrier"}
    whole = {place for place in barriers if len(function.instructions[place].operands) == 1}  # no count: all threads
    return bool(steps) and all(not whole.isdisjoint(one) for one in steps)


def visits_of(rows: Sequence[Row], instructions: int) -> list[tuple[int, ...]]:
    """How often each warp of a block ran each instruction."""
    found = np.zeros((len(rows[0].lanes) if rows else 1, instructions), np.int64)
    for row in rows:
        found[:, row.position] += np.array(row.lanes) > 0
    return [tuple(map(int, one)) for one in found]


def amounts(body: Mapping[str, int], threads: int) -> tuple[float, float]:
    """Products and exponentials of a warp in a body."""
    return body.get("tensor", 0) * WARP / threads, body.get("XU", 0) * WARP / threads


def _ran(ptx: Code, mine: Sequence[int], code: Code, theirs: Sequence[int], visits: Sequence[int]) -> list[list[int]]:
    """Both without the pieces that no warp ran, such as loads of a next step: the k-th of one is that of the other."""
    pieces = [one.pieces(range(min(path), max(path) + 1)) for one, path in ((ptx, mine), (code, theirs))]
    unused = [number for number, one in enumerate(pieces[0]) if not any(visits[one.start : one.stop])]
    if len(pieces[0]) != len(pieces[1]) or not unused:
        return [list(mine), list(theirs)]
    away = [{index for number in unused for index in some[number]} for some in pieces]
    return [[index for index in path if index not in out] for path, out in zip((mine, theirs), away, strict=True)]


def _compared(
    ptx: Code, mine: Sequence[int], code: Code, theirs: Sequence[int], products: int, visits: Sequence[int], warps: int
) -> Left:
    mine, theirs = _ran(ptx, mine, code, theirs, visits)
    waits = waits_of(code, theirs, warps) if warps else (0.0, 0.0)
    return Left(_amounts(ptx, mine), _amounts(code, theirs), products, *waits)


def waits_of(code: Code, step: Sequence[int], in_step: int) -> tuple[float, float]:
    """Clocks of :class:`Left` for each product and for each other instruction of a warp."""
    ran = [code.instructions[at] for at in step]
    products = sum(one.pipe == "tensor" for one in ran)
    others = sum(one.pipe not in ("tensor", FRAGMENTS) for one in ran)
    turn = turn_of(ran, in_step, clocks(code.capability))
    return turn.products_wait / max(1, products), turn.others_wait / max(1, others)


def _amounts(code: Code, where: Sequence[int]) -> dict[str, float]:
    """Instructions by pipe; `issued`: all but products, fragments and those of PTX that vanish or are not charged."""
    counts = code.counts(where)
    stay = counts["tensor"] + counts[FRAGMENTS] + sum(counts[pipe] for pipe in (*VANISHING, UNCHARGED))
    counts["load_store"] += counts[FRAGMENTS]
    return {"issued": len(where) - stay, **{pipe: counts[pipe] for pipe in PIPE_LANES}}


def _as_code(function: Function, known: Iterable[Known]) -> Code:
    """PTX as if it were machine code."""
    return Code(
        function.name,
        tuple(
            Instruction(
                address=index,
                opcode="EXIT" if one.name in ("ret", "exit") else one.name,
                pipe=UNCHARGED if one.name == "bra" else _pipe(each),
                predicate=one.guard is not None,
                conditional=False,
                target=one.targets[0] if one.targets else None,
                stall=0,
                written=None,
                read=None,
                waits=(),
            )
            for index, (one, each) in enumerate(zip(function.instructions, known, strict=True))
        ),
    )


def _pipe(one: Known) -> str:
    if one.kind == "fragment":
        return FRAGMENTS
    if one.kind in _UNCHARGED:
        return UNCHARGED
    return one.pipe if one.pipe in VANISHING else PIPES.get(one.pipe, OTHER)
