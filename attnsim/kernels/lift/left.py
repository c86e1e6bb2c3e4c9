"""What the assembler leaves of the instructions of operations, which were charged by those of PTX."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from attnsim.kernels.lift.loops import Ops
from attnsim.models.schedule.instructions import LDMATRIX_BYTES, MMA_FLOPS
from attnsim.models.schedule.operation import TileOp
from attnsim.ptx.lanes import WARP

WAITS = "scoreboards"
"""The name of a delay that stands for what warps wait for."""


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
    product_wait, other_wait : float
        Clocks that warps which go in step take beyond those of the pipes, for each product of a warp and for each of
        its instructions that is neither a product nor a fragment.
    stretches : tuple of mapping of str to float
        Of a kernel without products: how many times as many instructions of each pipe there are between its waits for
        loads; empty where PTX and machine code do not wait as often.
    """

    before: Mapping[str, float]
    after: Mapping[str, float]
    products: int
    product_wait: float = 0.0
    other_wait: float = 0.0
    stretches: tuple[Mapping[str, float], ...] = ()

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
        parts = stretches_of(ops)
        if self.stretches and len(parts) == len(self.stretches):
            return tuple(_scaled(op, left) for part, left in zip(parts, self.stretches, strict=True) for op in part)
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
        """Operations, each product and each work on vectors with the clocks behind it for which its warps wait.

        Those that share the operations do so together (:mod:`attnsim.ptx.scheduler`); other blocks, and
        other warpgroups that run ahead, go on meanwhile.

        Parameters
        ----------
        ops : tuple of TileOp
            A body, charged.
        warps : int
            That share the operations.
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
        """One step, or what is left behind the last."""
        each = {pipe: self._of_all(pipe, amount / warps) for pipe, amount in spent_on(ops).items()}
        return [_scaled(op, each) for op in ops]

    def _of_all(self, pipe: str, spent: float) -> float:
        """The share of so many instructions that is left: of a step's that of the step, of further ones all."""
        before, after = self.before.get(pipe, 0), self.after.get(pipe, 0)
        if not before or not spent:
            return 1.0
        inside = min(spent, before) if self.products else spent
        return (inside * after / before + spent - inside) / spent


NOTHING = Left({}, {}, 0)


def spent_on(ops: Iterable[TileOp]) -> dict[str, float]:
    """Warp instructions of operations by pipe; `issued`: all but products and fragments."""
    ops = list(ops)
    return {
        "fp32": sum(op.fp32 for op in ops) / WARP,
        "integer": sum(op.int32 for op in ops) / WARP,
        "load_store": sum(op.load_stores for op in ops) / WARP,
        "issued": sum(op.issues - _stays(op) for op in ops),
    }


def _scaled(op: TileOp, each: Mapping[str, float]) -> TileOp:
    """An operation with so many times as many instructions of each pipe, if it is charged by any."""
    if not op.issues:
        return op
    return op._replace(
        fp32=round(op.fp32 * each["fp32"]),
        int32=round(op.int32 * each["integer"]),
        load_stores=round(op.load_stores * each["load_store"]),
        issues=_stays(op) + round((op.issues - _stays(op)) * each["issued"]),
    )


def stretches_of(ops: Iterable[TileOp]) -> list[list[TileOp]]:
    """Operations cut before each wait for loads that is not one with the wait before."""
    found: list[list[TileOp]] = [[]]
    for op in ops:
        if op.kind == "wait" and (not found[-1] or found[-1][-1].kind != "wait"):
            found.append([])
        found[-1].append(op)
    return found


def _stays(op: TileOp) -> int:
    """Products of an operation and fragments that they read."""
    if op.kind == "mma_async":
        return op.issues
    return min(op.issues, op.flops // MMA_FLOPS + op.smem_bytes // LDMATRIX_BYTES) if op.flops else 0
