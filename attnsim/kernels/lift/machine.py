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

PIPES = {"tensor": "tensor", "XU": "exp", "FMA": "fp32", "ALU": "integer", "LSU": "load_store"}
"""The pipes of machine code that are PTX's; fragments go to one that is counted apart."""
FRAGMENTS = "matrix_load"


@dataclass(frozen=True, slots=True)
class Left:
    """Instructions of machine code for each of PTX.

    Parameters
    ----------
    fp32, integer, load_store : float
        Of each pipe, fragments among the last.
    issued : float
        Of all, moves of PTX not counted.
    """

    fp32: float = 1.0
    integer: float = 1.0
    load_store: float = 1.0
    issued: float = 1.0

    def charged(self, ops: Ops) -> Ops:
        """Operations that are charged by instructions of PTX, charged by those of machine code."""
        return tuple(
            op._replace(
                fp32=round(op.fp32 * self.fp32),
                int32=round(op.int32 * self.integer),
                load_stores=round(op.load_stores * self.load_store),
                issues=round(op.issues * self.issued),
            )
            if op.issues
            else op
            for op in ops
        )


def left_of(
    function: Function, known: Iterable[Known], bodies: Iterable[Mapping[str, int]], code: Code, threads: int
) -> Left:
    """Compare a step of PTX with that of the machine code that has as many products.

    Both are the shortest turn of a loop: pieces that are seldom needed, such as masks that are jumped over, are in
    neither. A body is a step, or several that differ where none is like another: the fewest that both loops have as
    equal parts. Of a kernel without products all instructions are compared, beside as many accesses of memory.

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
        return _compared(ptx, range(len(ptx.instructions)), code, range(len(code.instructions)), by_access=True)
    products = {body.get("tensor", 0) * WARP / threads for body in bodies}
    whole = sorted((int(number) for number in products if number and number.is_integer()), reverse=True)
    for steps in range(1, max(whole, default=0) + 1):
        for number in (one // steps for one in whole if one % steps == 0):
            mine, theirs = ptx.step(number), code.step(number)
            if mine and theirs:
                return _compared(ptx, mine, code, theirs)
    return Left()


def _compared(ptx: Code, mine: Sequence[int], code: Code, theirs: Sequence[int], *, by_access: bool = False) -> Left:
    before, after = ptx.counts(mine), code.counts(theirs)
    for counts in (before, after):
        counts["load_store"] += counts[FRAGMENTS]
    each = before["load_store"] / max(1, after["load_store"]) if by_access else 1.0
    issued = len(mine) - sum(before[pipe] for pipe in VANISHING)
    parts = {pipe: each * after[pipe] / before[pipe] for pipe in ("fp32", "integer", "load_store") if before[pipe]}
    return Left(**parts, issued=each * len(theirs) / issued)


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
