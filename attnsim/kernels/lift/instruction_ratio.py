"""Corrects operations charged by PTX instructions to the instructions of the machine code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from attnsim.kernels.lift.loops import Ops
from attnsim.models.schedule.instructions import LDMATRIX_BYTES, MMA_FLOPS
from attnsim.models.schedule.operation import TileOp
from attnsim.ptx.lanes import WARP

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
