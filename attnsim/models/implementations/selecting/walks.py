"""Kernels of which each block walks over as many tiles as content or compression leaves it: forward and backward.

A walk is the number of tiles of each block. Heads of a sequence are launched before the next rows or keys (the grids of
the kernels here are batch, head, tile), so blocks that run at the same time work on all heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from attnsim.arrays import Ints
from attnsim.models.implementations.fused.backward import KEYS_OUTSIDE, ROWS_OUTSIDE, BackwardOps
from attnsim.models.implementations.fused.building import in_step
from attnsim.models.implementations.fused.loops import Operations
from attnsim.models.implementations.fused.tile import BackwardTile, FlashTile
from attnsim.models.implementations.selecting.triton_tiles import TritonBackwardTile
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.buffers import Buffers
from attnsim.models.schedule.nest import Nest, loop_nest, once
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.row_tiles import classes
from attnsim.models.schedule.schedule import Kernel, Launch
from attnsim.models.schedule.uses import TensorUse

LIST = "selected"
"""Tensor of the chosen blocks of each query, or of the queries of each block: int32."""
INDEX_BYTES = 4


@dataclass(frozen=True, slots=True)
class Walk:
    """What the blocks of a grid walk over.

    Parameters
    ----------
    steps : ndarray of int, shape [blocks] or [blocks, turns]
        Tiles; with several turns of an outer loop those of each.
    heads : int
        Blocks of each kind, launched one after the other.
    listed : int
        Bytes of a list that are read for each step, beside the step's tile; 0 without a list.
    masked : ndarray of int, shape [blocks], optional
        Of the steps of a backward block those that compute a mask's function.
    function : int
        FP32-lane instructions of that function a score.
    """

    steps: Ints
    heads: int
    listed: int = 0
    masked: Ints | None = None
    function: int = 0

    def kinds(self) -> tuple[Ints, Launch]:
        """Different blocks ``[kinds, turns]``, and which each one is in launch order."""
        return self.kinds_with()

    def kinds_with(self, *columns: Ints) -> tuple[Ints, Launch]:
        """The same where blocks differ in more, which then comes first."""
        kinds, inverse = classes(*columns, *(self.steps.T if self.steps.ndim == 2 else [self.steps]))
        return np.stack(kinds, axis=1), Launch(inverse, each=self.heads)


def _steps(walk: Walk, step: Callable[[bool], Segment]) -> tuple[Ints, Launch, Nest]:
    """Blocks, their launch and their steps: those with a mask's function first; `step` says whether more follow."""
    if walk.masked is None:
        kinds, launch = walk.kinds()
        return kinds, launch, [(step(True), np.maximum(kinds - 1, 0)), (step(False), kinds > 0)]
    both, launch = Walk(np.stack([walk.steps, walk.masked], axis=1), walk.heads).kinds()
    kinds, masked = both[:, :1], both[:, 1:]
    more, last = np.minimum(masked, np.maximum(kinds - 1, 0)), (kinds > 0) & (masked == kinds)
    nest: Nest = [(_with_function(step(True), walk.function), more), (step(True), np.maximum(kinds - 1, 0) - more)]
    nest += [(_with_function(step(False), walk.function), last), (step(False), (kinds > 0) & ~last)]
    return kinds, launch, nest


def _with_function(segment: Segment, instructions: int) -> Segment:
    """The step with a mask's function computed for each score."""
    ops = (op._replace(fp32=op.fp32 + instructions * op.scores) if op.scores else op for op in segment.ops)
    return Segment(f"{segment.name}, masked", tuple(ops))


def walked_tiles(walk: Walk) -> int:
    """Tiles that all blocks walk over."""
    return int(walk.steps.sum()) * walk.heads


def forward(
    w: Workload, tile: FlashTile, walk: Walk, rows: Sequence[int] | Ints, name: str, uses: tuple[TensorUse, ...],
    lse: bool = True,
) -> Kernel:  # fmt: skip
    """A forward kernel: Q stays, tiles of K and V pass one step ahead, every one masked.

    Counted instructions are of such a step, mask and all.

    Parameters
    ----------
    w : Workload
    tile : FlashTile
    walk : Walk
        Of a block that has several queries in turn a column each.
    rows : sequence of int
        Rows with a query in them of each block, in the order of the walk: whole, or fewer in the last.
    name : str
    uses : tuple of TensorUse
    lse : bool
        Whether the log-sum-exps of rows are stored.
    """
    ops = Operations(w, tile, lse=lse)
    kinds, launch = walk.kinds_with(np.asarray(rows, dtype=np.int64))
    valid, kinds = kinds[:, 0], kinds[:, 1:]
    listed = (TileOp("load", LIST, bytes=walk.listed), TileOp("wait", LIST)) if walk.listed else ()
    loads = (*listed, ops.load("K", tile.keys), ops.load("V", tile.keys))

    def step(more: bool) -> Segment:
        ops_ = (TileOp("wait", "K"), TileOp("wait", "V"), TileOp("delay", "step"), *(loads if more else ()))
        name = "step" if more else "last step"
        return Segment(name, (*ops_, ops.scores(), ops.softmax(tile.counts is None), ops.output()))

    nest: Nest = []
    busy = kinds > 0
    first = np.zeros_like(busy)
    first[:, 0] = busy[:, 0]
    nest.append((Segment("begin", (TileOp("delay", "block"),)), first))
    for size in sorted(set(valid.tolist()), reverse=True):
        here = (valid == size)[:, None] & busy
        tag = "" if size == max(valid) else f" ({size} rows)"
        nest.append((Segment(f"rows{tag}", (ops.load_q(size), *loads, TileOp("wait", "Q"))), here))
    nest += [(step(True), np.maximum(kinds - 1, 0)), (step(False), busy)]
    for size in sorted(set(valid.tolist()), reverse=True):
        here = (valid == size)[:, None] & busy
        tag = "" if size == max(valid) else f" ({size} rows)"
        nest.append((Segment(f"store{tag}", ops.stores(size, partial=False)), here))
    nest.append((Segment("end", (TileOp("delay", "block"),)), first))
    d, dv = tile.compiled(w)
    buffers = tile.buffers(d, dv, w.element_bytes)
    return in_step(_kernel(name, tile, nest, launch, uses, buffers, w, tile.warpgroups))


def keys_outside(w: Workload, tile: BackwardTile, walk: Walk, name: str, uses: tuple[TensorUse, ...]) -> Kernel:
    """The pass for dK and dV: a block for each tile of keys and each query head, tiles of rows pass."""
    ops = BackwardOps(w, tile, KEYS_OUTSIDE)
    listed = (TileOp("load", LIST, bytes=walk.listed), TileOp("wait", LIST)) if walk.listed else ()

    def step(more: bool) -> Segment:
        return Segment("row step" if more else "last row step", tuple(ops.step(more, listed)))

    kinds, launch, steps = _steps(walk, step)
    nest: Nest = [
        *once("prologue", ops.prologue(), np.ones_like(kinds)),
        *once("first rows", (*listed, *ops.first_loads()), kinds > 0),
        *steps,
        *once("epilogue", ops.epilogue(), np.ones_like(kinds)),
    ]
    buffers = tile.buffers(ops.d, ops.dv, ops.e)
    return _kernel(name, tile, nest, launch, uses, buffers, w, 2, slowed=True)


def rows_outside(
    w: Workload, tile: BackwardTile, walk: Walk, rows: int, name: str, uses: tuple[TensorUse, ...]
) -> Kernel:
    """The pass for dQ: Q, dO and dQ of `rows` rows stay, tiles of K and V pass."""
    ops = BackwardOps(w, tile, ROWS_OUTSIDE)
    listed = (TileOp("load", LIST, bytes=walk.listed), TileOp("wait", LIST)) if walk.listed else ()
    k, v = (TileOp("load", x, bytes=tile.keys * n * ops.e) for x, n in (("K", w.head_dim), ("V", w.head_dim_v)))

    def step(more: bool) -> Segment:
        loads = (*listed, k, v) if more else ()
        return Segment(
            "key step" if more else "last key step",
            (
                TileOp("wait", "K"),
                TileOp("wait", "V"),
                TileOp("delay", "step"),
                *loads,
                ops.product("S"),
                ops.probabilities(),
                ops.product("dP"),
                ops.gradients(),
                ops.product("dQ"),
            ),
        )

    waits = tuple(TileOp("wait", tensor) for tensor in ("Q", "LSE, D", "dO"))
    kinds, launch, steps = _steps(walk, step)
    busy = kinds > 0
    first = np.zeros_like(busy)
    first[:, 0] = busy[:, 0]
    nest: Nest = [
        (Segment("begin", (TileOp("delay", "block"),)), first),
        (Segment("rows", (*ops.loads(rows), *listed, k, v, *waits)), busy),
        *steps,
        (Segment("store", (TileOp("store", "dQ", bytes=rows * w.head_dim * ops.e),)), busy),
        (Segment("end", (TileOp("delay", "block"),)), first),
    ]
    d, dv = ops.d, ops.dv
    in_registers = isinstance(tile, TritonBackwardTile) and tile.scores_in_registers
    buffers = (
        ("Q, dO", tile.rows * (d + dv) * ops.e),
        ("K, V", tile.stages_q * tile.keys * (d + dv) * ops.e),
        ("dS", 0 if in_registers else tile.rows * tile.keys * ops.e),
    )
    return _kernel(name, tile, nest, launch, uses, buffers, w, 2, slowed=True)


def _kernel(
    name: str, tile: FlashTile | BackwardTile, nest: Nest, launch: Launch, uses: tuple[TensorUse, ...],
    buffers: Buffers, w: Workload, warpgroups: int, slowed: bool = False,
) -> Kernel:  # fmt: skip
    segments, repeats = loop_nest(nest)
    return Kernel(
        name=name,
        threads=tile.warps * 32,
        registers_per_thread=tile.registers,
        segments=segments,
        repeats=repeats,
        launches=(launch,),
        uses=uses,
        warpgroups=warpgroups,
        path=tile.path,
        buffers=buffers,
        dtype=w.dtype,
        slowed_by_extra=slowed,
        step="tile",
    )


def scattered(tensor: str, piece_bytes: int, pieces: int, requested: int, running: int) -> TensorUse:
    """A tensor that blocks read in parts here and there, all pieces at the same time."""
    unique = piece_bytes * pieces
    return TensorUse(tensor, piece_bytes, pieces, max(1.0, running / pieces), max(1.0, requested / unique), scattered=2)
