"""Corrects operations charged by PTX instructions to the instructions of the machine code."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnsim.kernels.lift.drafts import VANISHING, Ops
from attnsim.kernels.lift.kinds import Known
from attnsim.kernels.lift.paths import between_waits, code_marks, marks_made, marks_of, shortest_path
from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.schedule.instructions import LANES, LDMATRIX_BYTES, MMA_FLOPS
from attnsim.models.schedule.operation import TileOp
from attnsim.ptx.lanes import WARP
from attnsim.ptx.machine_code import OTHER, Code, Instruction, inside
from attnsim.ptx.recording import Row
from attnsim.ptx.scheduler import simulated_iteration
from attnsim.ptx.syntax import Function

WAITS = "scoreboards"
"""Name of delays for the time that warps wait for scoreboards."""


@dataclass(frozen=True, slots=True)
class InstructionRatio:
    """Instructions of one step in PTX and in machine code, and the waits between them.

    Work of a block outside the step, such as masking scores, is charged with a ratio of 1; for masks of our kernels the
    ratio is 0.97 to 1.03.

    Parameters
    ----------
    before, after : mapping of str to float
        Instructions of one warp's step by pipe, in PTX and in machine code; `issued` counts all but products, fragments
        and PTX moves.
    products : int
        Products of a warp in the step; 0 if there are none: then everything is charged in proportion.
    product_wait, other_wait : float
        Clocks that warps in step wait beyond the busy time of the pipes: per product of a warp, and per instruction
        that is neither a product nor a fragment.
    by_wait : tuple of mapping of str to float
        For kernels without products: ratio of machine code to PTX instructions by pipe, for each part between waits
        for loads; empty if PTX and machine code have different numbers of waits.
    """

    before: Mapping[str, float]
    after: Mapping[str, float]
    products: int
    product_wait: float = 0.0
    other_wait: float = 0.0
    by_wait: tuple[Mapping[str, float], ...] = ()

    def charged(self, ops: Ops, products: float, warps: int) -> Ops:
        """Return operations with PTX instruction counts scaled to machine code.

        Parameters
        ----------
        ops : tuple of TileOp
            A loop body.
        products : float
            Products of each warp in it.
        warps : int
            Warps that share the operations.
        """
        step = sum(op.flops for op in ops) * self.products / products if products else 0.0
        parts = split_at_waits(ops)
        if self.by_wait and len(parts) == len(self.by_wait):
            return tuple(_scaled(op, left) for part, left in zip(parts, self.by_wait, strict=True) for op in part)
        found: list[TileOp] = []
        open_step: list[TileOp] = []
        flops = 0
        for op in ops:
            open_step.append(op)
            flops += op.flops
            if op.flops and flops >= step > 0:
                found += self._step(open_step, warps)
                open_step, flops = [], 0
        return (*found, *self._step(open_step, warps))

    def with_waits(self, ops: Ops, warps: int) -> Ops:
        """Insert delays after products and vector work, for the clocks that their warps wait.

        The warps that share the operations wait together (:mod:`attnsim.ptx.scheduler`); other blocks, and other
        warpgroups that run ahead, proceed meanwhile.

        Parameters
        ----------
        ops : tuple of TileOp
            A loop body, already charged.
        warps : int
            Warps that share the operations.
        """
        found: list[TileOp] = []
        for op in ops:
            found.append(op)
            waits = self.product_wait * op.flops / MMA_FLOPS if op.kind == "mma" else 0.0
            waits += self.other_wait * op.issues if op.kind == "vector" else 0.0
            if clks := round(waits / warps):
                found.append(TileOp("delay", WAITS, clks=clks))
        return tuple(found)

    def _step(self, ops: Sequence[TileOp], warps: int) -> list[TileOp]:
        """Scale the operations of one step, or of the rest after the last step."""
        each = {pipe: self._of_all(pipe, amount / warps) for pipe, amount in spent_on(ops).items()}
        return [_scaled(op, each) for op in ops]

    def _of_all(self, pipe: str, spent: float) -> float:
        """Return the factor for instructions of a pipe: the step's ratio up to the step's count, 1 for those beyond."""
        before, after = self.before.get(pipe, 0), self.after.get(pipe, 0)
        if not before or not spent:
            return 1.0
        inside = min(spent, before) if self.products else spent
        return (inside * after / before + spent - inside) / spent


NOTHING = InstructionRatio({}, {}, 0)


def spent_on(ops: Iterable[TileOp]) -> dict[str, float]:
    """Return warp instructions of operations by pipe; `issued` counts all but products and fragments."""
    ops = list(ops)
    return {
        "fp32": sum(op.fp32 for op in ops) / WARP,
        "integer": sum(op.int32 for op in ops) / WARP,
        "load_store": sum(op.load_stores for op in ops) / WARP,
        "issued": sum(op.issues - _stays(op) for op in ops),
    }


def _scaled(op: TileOp, each: Mapping[str, float]) -> TileOp:
    """Return an operation with its instructions scaled by pipe, if it is charged by instructions."""
    if not op.issues:
        return op
    return op._replace(
        fp32=round(op.fp32 * each["fp32"]),
        int32=round(op.int32 * each["integer"]),
        load_stores=round(op.load_stores * each["load_store"]),
        issues=_stays(op) + round((op.issues - _stays(op)) * each["issued"]),
    )


def split_at_waits(ops: Iterable[TileOp]) -> list[list[TileOp]]:
    """Split operations before each wait for loads; consecutive waits stay together."""
    found: list[list[TileOp]] = [[]]
    for op in ops:
        if op.kind == "wait" and (not found[-1] or found[-1][-1].kind != "wait"):
            found.append([])
        found[-1].append(op)
    return found


def _stays(op: TileOp) -> int:
    """Return the instructions that do not change: products, and the fragments that they read."""
    if op.kind == "mma_async":
        return op.issues
    return min(op.issues, op.flops // MMA_FLOPS + op.smem_bytes // LDMATRIX_BYTES) if op.flops else 0


PIPES = {"tensor": "tensor", "XU": "exp", "FMA": "fp32", "ALU": "integer", "LSU": "load_store"}
"""Pipes of machine code by pipe of PTX; fragments have a pipe of their own."""
FRAGMENTS = "matrix_load"
UNCHARGED = "uncharged"
"""Pipe of PTX instructions that no operation is charged for: branches, and the start and wait of operations."""
_UNCHARGED = ("commit", "wait", "wgmma commit", "wgmma wait", "barrier", "mbarrier")
Places = Sequence[int]
"""Positions of instructions; of `visits`, one count per instruction."""
PIPE_LANES = ("fp32", "integer", "load_store")
"""Pipes whose instructions are charged per lane."""


def schedulers(capability: int) -> int:
    """Return the warp schedulers per SM; warp i runs on scheduler i mod n."""
    return int(_figures(capability)["sm.warp_schedulers"])


def _figures(capability: int) -> dict[str, float]:
    return {one.key: one.value for one in architecture_of(capability).figures}


@functools.cache
def clocks(capability: int) -> Mapping[str, float]:
    """Return the clocks that a warp instruction occupies a scheduler's share of each pipe, and two latencies."""
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


def instruction_ratio_of(
    function: Function,
    known: Iterable[Known],
    bodies: Iterable[Mapping[str, int]],
    code: Code,
    threads: int,
    rows: Sequence[Row],
    ops: Ops,
    in_step: int = 0,
) -> InstructionRatio:
    """Compare a step of PTX with the step of the machine code that has the same number of products.

    A step is the shortest iteration of a loop, without rarely executed pieces such as masks.

    - A body may contain several different steps: then it is split into the fewest equal parts that both loops have.
    - Of several bodies, the one whose exponentials agree best is taken.
    - For a kernel without products, everything that a warp ran is compared.
    - If a loop's inner loops have different iteration counts, its whole iteration is compared, with those counts.

    Parameters
    ----------
    known : iterable of Known
        Its classified instructions.
    bodies : iterable of mapping of str to int
        Warp instructions of PTX by pipe in each loop body, summed over the warps that share it.
    threads : int
        Threads that share a body.
    rows : sequence of Row
        Recorded instructions of a block.
    ops : tuple of TileOp
        Operations of that block.
    in_step : int
        Warps of a scheduler that share each operation, to model their waits; 0 to leave waits out.
    """
    ptx = _as_code(function, known)
    warps = visits_of(rows, len(function.instructions))
    if not ptx.loops():
        return _by_paths(function, ptx, code, warps, ops)
    visits = [max(one) for one in zip(*warps, strict=True)]
    unlike = _of_uneven_loops(ptx, code, visits, in_step)
    if unlike is not None:
        return unlike
    found: dict[float, InstructionRatio] = {}
    for products, exponentials in dict.fromkeys(amounts(body, threads) for body in bodies):
        for steps in (one for one in range(1, int(products) + 1) if products % one == 0):
            number = int(products) // steps
            ptx_path, code_path = ptx.step(number), code.step(number)
            if ptx_path and code_path:
                off = abs(steps * ptx.counts(ptx_path)["exp"] / max(1.0, exponentials) - 1)
                found.setdefault(off, _compared(ptx, ptx_path, code, code_path, number, visits, in_step))
                break
    return found[min(found)] if found else NOTHING


def _by_paths(function: Function, ptx: Code, code: Code, warps: Iterable[Places], ops: Ops) -> InstructionRatio:
    """Compare everything that the warps of a block ran with their paths through the machine code.

    Work beyond the shortest path of the PTX, such as masking scores, leaves no trace in memory accesses. It is kept, up
    to the size of the pieces that the machine code's path skips. If each warp waits for loads as often as the block
    does, the code between waits is compared part by part.
    """
    before, after = defaultdict[str, float](float), defaultdict[str, float](float)
    parts = split_at_waits(ops)
    spent = [spent_on(part) for part in parts]
    within: list[dict[str, float]] = [defaultdict(float) for _ in parts]
    marks, marks_of_code = marks_of(function), code_marks(code)
    for visits, times in Counter(warps).items():
        wanted = marks_made(marks, visits)
        ptx_path, path = shortest_path(ptx, marks, wanted), shortest_path(code, marks_of_code, wanted)
        if ptx_path is None or path is None:
            return NOTHING
        least, found, over = _amounts(ptx, ptx_path.places), _amounts(code, path.places), _amounts(code, path.over)
        ran = _amounts(ptx, [index for index, times_run in enumerate(visits) for _ in range(times_run)])
        beyond = {pipe: min(max(0.0, ran[pipe] - least[pipe]), over[pipe]) for pipe in PIPE_LANES}
        beyond["issued"] = sum(beyond.values())
        loads = sum(many for mark, many in wanted.items() if mark.startswith("load"))
        waiting = between_waits(code, path.places, loads)
        within = within if len(waiting) == len(parts) and all(one["issued"] for one in spent) else []
        for pipe in ran:
            before[pipe] += times * ran[pipe]
            after[pipe] += times * (found[pipe] + beyond[pipe])
            for sums, part in zip(within, waiting, strict=False):
                sums[pipe] += times * _amounts(code, part)[pipe] * (1 + beyond[pipe] / max(1.0, found[pipe]))
    shares = (
        {pipe: sums[pipe] / counts[pipe] if counts[pipe] else 1.0 for pipe in counts}
        for sums, counts in zip(within, spent, strict=False)
    )
    return InstructionRatio(before, after, 0, by_wait=tuple(shares))


def _of_uneven_loops(ptx: Code, code: Code, visits: Places, in_step: int) -> InstructionRatio | None:
    """Compare an iteration of a loop whose inner loops have different iteration counts."""
    for loop in ptx.loops():
        within = [one for one in ptx.loops() if inside(one, loop)]
        iterations, parts, place = [], [], loop.start
        for one in within:
            before = next((visits[index] for index in range(one.start - 1, loop.start, -1) if visits[index]), 1)
            iterations.append(max(1, round(max(visits[one.start : one.stop]) / before)))
            parts += [ptx.counts(range(place, one.start))["tensor"], iterations[-1] * ptx.counts(one)["tensor"]]
            place = one.stop
        parts = [part for part in (*parts, ptx.counts(range(place, loop.stop))["tensor"]) if part]
        code_path = code.iteration(parts, whole=True) if len(set(iterations)) > 1 else None
        if code_path:
            ptx_path = list(ptx.path(loop, iterations, whole=True))
            return _compared(ptx, ptx_path, code, code_path, sum(parts), visits, in_step)
    return None


def loop_of_products(function: Function, known: Sequence[Known]) -> range:
    """Return the smallest loop with all products of a kernel; empty if there is none, or it is a loop over row tiles.

    A loop over row tiles contains a loop of products with a barrier; its stores end a row tile.
    """
    code = _as_code(function, known)
    places = [index for index, one in enumerate(code.instructions) if one.pipe == "tensor"]
    enclosing = [one for one in code.loops() if places[0] in one and places[-1] in one] if places else []
    found = min(enclosing, key=len, default=range(0))
    steps = [one for one in code.loops() if inside(one, found)]
    return range(0) if any(known[place].kind == "barrier" for one in steps for place in one) else found


def meet(function: Function, known: Sequence[Known]) -> bool:
    """True if every innermost loop of products has a barrier of all threads, so that warps meet in each step."""
    loops = _as_code(function, known).loops()
    steps = [one for one in loops if not any(inside(other, one) for other in loops)]
    barriers = {place for place, one in enumerate(known) if one.kind == "barrier"}
    whole = {place for place in barriers if len(function.instructions[place].operands) == 1}  # no count: all threads
    return bool(steps) and all(not whole.isdisjoint(one) for one in steps)


def visits_of(rows: Sequence[Row], instructions: int) -> list[tuple[int, ...]]:
    """Count how often each warp of a block ran each instruction, ``[warps][instructions]``."""
    found = np.zeros((len(rows[0].lanes) if rows else 1, instructions), np.int64)
    for row in rows:
        found[:, row.position] += np.array(row.lanes) > 0
    return [tuple(map(int, one)) for one in found]


def amounts(body: Mapping[str, int], threads: int) -> tuple[float, float]:
    """Return the products and exponentials of one warp in a body."""
    return body.get("tensor", 0) * WARP / threads, body.get("XU", 0) * WARP / threads


def _ran(ptx: Code, ptx_path: Places, code: Code, code_path: Places, visits: Places) -> list[list[int]]:
    """Remove the pieces that no warp ran, such as loads for the next step, from both paths.

    The k-th piece of the PTX corresponds to the k-th piece of the machine code.
    """
    pieces = [one.pieces(range(min(path), max(path) + 1)) for one, path in ((ptx, ptx_path), (code, code_path))]
    unused = [number for number, one in enumerate(pieces[0]) if not any(visits[one.start : one.stop])]
    if len(pieces[0]) != len(pieces[1]) or not unused:
        return [list(ptx_path), list(code_path)]
    away = [{index for number in unused for index in some[number]} for some in pieces]
    return [[at for at in path if at not in out] for path, out in zip((ptx_path, code_path), away, strict=True)]


def _compared(
    ptx: Code, ptx_path: Places, code: Code, code_path: Places, products: int, visits: Places, warps: int
) -> InstructionRatio:
    ptx_path, code_path = _ran(ptx, ptx_path, code, code_path, visits)
    waits = waits_of(code, code_path, warps) if warps else (0.0, 0.0)
    return InstructionRatio(_amounts(ptx, ptx_path), _amounts(code, code_path), products, *waits)


def waits_of(code: Code, step: Places, in_step: int) -> tuple[float, float]:
    """Return the waits of :class:`InstructionRatio` in clocks, per product and per other instruction of a warp."""
    ran = [code.instructions[at] for at in step]
    products = sum(one.pipe == "tensor" for one in ran)
    others = sum(one.pipe not in ("tensor", FRAGMENTS) for one in ran)
    iteration = simulated_iteration(ran, in_step, clocks(code.capability))
    return iteration.products_wait / max(1, products), iteration.others_wait / max(1, others)


def _amounts(code: Code, where: Places) -> dict[str, float]:
    """Count instructions by pipe; `issued` leaves out products, fragments, and PTX that vanishes or is not charged."""
    counts = code.counts(where)
    stay = counts["tensor"] + counts[FRAGMENTS] + sum(counts[pipe] for pipe in (*VANISHING, UNCHARGED))
    counts["load_store"] += counts[FRAGMENTS]
    return {"issued": len(where) - stay, **{pipe: counts[pipe] for pipe in PIPE_LANES}}


def _as_code(function: Function, known: Iterable[Known]) -> Code:
    """Represent PTX in the form of machine code."""
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
