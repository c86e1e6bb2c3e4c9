"""What the assembler leaves of the instructions of PTX, in the step of the loop that multiplies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from attnsim.kernels.build.machine_code import OTHER, Code, Instruction
from attnsim.kernels.cpu.lanes import WARP
from attnsim.kernels.cpu.ptx import Function
from attnsim.kernels.lift.drafts import VANISHING
from attnsim.kernels.lift.kinds import Known
from attnsim.kernels.lift.loops import Ops
from attnsim.models.schedule.instructions import LDMATRIX_BYTES, MMA_FLOPS
from attnsim.models.schedule.operation import TileOp

PIPES = {"tensor": "tensor", "XU": "exp", "FMA": "fp32", "ALU": "integer", "LSU": "load_store"}
"""The pipes of machine code that are PTX's; fragments go to one that is counted apart."""
FRAGMENTS = "matrix_load"
PIPE_LANES = ("fp32", "integer", "load_store")
"""Pipes whose instructions are charged by the lane."""


@dataclass(frozen=True, slots=True)
class Left:
    """What the assembler leaves of a step of PTX.

    What a block does beyond it, such as hiding scores, is charged one for one: of masks ours keep 0.97 to 1.03.

    Parameters
    ----------
    before, after : mapping of str to float
        Warp instructions of a warp's step of PTX and of machine code by pipe; `issued`: all but products, fragments
        and moves of PTX.
    products : int
        Of a warp in the step; 0 where there are none, and all is charged in proportion.
    """

    before: Mapping[str, float]
    after: Mapping[str, float]
    products: int

    def charged(self, ops: Ops, products: float, warps: int) -> Ops:
        """Operations that are charged by instructions of PTX, charged by those of machine code.

        Parameters
        ----------
        ops : tuple of TileOp
            A body.
        products : float
            That each of its warps has.
        warps : int
            That share the operations.
        """
        step = sum(op.flops for op in ops) * self.products / products if products else 0.0
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

    def _step(self, ops: Sequence[TileOp], warps: int) -> list[TileOp]:
        """One step, or what is left behind the last."""
        spent = {
            "fp32": sum(op.fp32 for op in ops) / WARP,
            "integer": sum(op.int32 for op in ops) / WARP,
            "load_store": sum(op.load_stores for op in ops) / WARP,
            "issued": sum(op.issues - _stays(op) for op in ops),
        }
        each = {pipe: self._of_all(pipe, amount / warps) for pipe, amount in spent.items()}
        return [
            op._replace(
                fp32=round(op.fp32 * each["fp32"]),
                int32=round(op.int32 * each["integer"]),
                load_stores=round(op.load_stores * each["load_store"]),
                issues=_stays(op) + round((op.issues - _stays(op)) * each["issued"]),
            )
            if op.issues
            else op
            for op in ops
        ]

    def _of_all(self, pipe: str, spent: float) -> float:
        """The share of so many instructions that is left: of a step's that of the step, of further ones all."""
        before, after = self.before.get(pipe, 0), self.after.get(pipe, 0)
        if not before or not spent:
            return 1.0
        inside = min(spent, before) if self.products else spent
        return (inside * after / before + spent - inside) / spent


NOTHING = Left({}, {}, 0)


def _stays(op: TileOp) -> int:
    """Products of an operation and fragments that they read."""
    if op.kind == "mma_async":
        return op.issues
    return min(op.issues, op.flops // MMA_FLOPS + op.smem_bytes // LDMATRIX_BYTES) if op.flops else 0


def left_of(
    function: Function, known: Iterable[Known], bodies: Iterable[Mapping[str, int]], code: Code, threads: int
) -> Left:
    """Compare a step of PTX with that of the machine code that has as many products.

    Both are the shortest turn of a loop: pieces that are seldom needed, such as masks that are jumped over, are in
    neither. A body is a step, or several that differ where none is like another: the fewest that both loops have as
    equal parts; and of those of several bodies the one with the exponentials of its body. Of a kernel without products
    all instructions are compared, beside as many accesses of memory.

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
    """
    ptx = _as_code(function, known)
    if not ptx.loops():
        return _compared(ptx, range(len(ptx.instructions)), code, range(len(code.instructions)), 0)
    found: dict[float, Left] = {}
    for products, exponentials in dict.fromkeys(amounts(body, threads) for body in bodies):
        for steps in (one for one in range(1, int(products) + 1) if products % one == 0):
            number = int(products) // steps
            mine, theirs = ptx.step(number), code.step(number)
            if mine and theirs:
                off = abs(steps * ptx.counts(mine)["exp"] / max(1.0, exponentials) - 1)
                found.setdefault(off, _compared(ptx, mine, code, theirs, number))
                break
    return found[min(found)] if found else NOTHING


def amounts(body: Mapping[str, int], threads: int) -> tuple[float, float]:
    """Products and exponentials of a warp in a body."""
    return body.get("tensor", 0) * WARP / threads, body.get("XU", 0) * WARP / threads


def _compared(ptx: Code, mine: Sequence[int], code: Code, theirs: Sequence[int], products: int) -> Left:
    found = []
    for machine, where in ((ptx, mine), (code, theirs)):
        counts = machine.counts(where)
        stay = counts["tensor"] + counts[FRAGMENTS] + sum(counts[pipe] for pipe in VANISHING)
        counts["load_store"] += counts[FRAGMENTS]
        found.append({"issued": len(where) - stay, **{pipe: counts[pipe] for pipe in PIPE_LANES}})
    before, after = found
    each = 1.0 if products else before["load_store"] / max(1, after["load_store"])
    return Left(before, {pipe: each * count for pipe, count in after.items()}, products)


def _as_code(function: Function, known: Iterable[Known]) -> Code:
    """PTX as if it were machine code."""
    return Code(
        function.name,
        tuple(
            Instruction(
                address=index,
                opcode="EXIT" if one.name in ("ret", "exit") else one.name,
                pipe=_pipe(each),
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
    return one.pipe if one.pipe in VANISHING else PIPES.get(one.pipe, OTHER)
