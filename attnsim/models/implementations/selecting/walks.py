"""Kernels whose blocks walk over a variable number of tiles, by content or compression: forward and backward.

A walk is the number of tiles of each block. The grid decides the tiles of concurrent blocks: if heads and sequences are
its fastest axes, concurrent blocks work on all of them.

NSA's kernels are as Triton 3.0.0 compiles them, read from its output for
native-sparse-attention-triton@9bea856 (its ``install_dependency.sh`` names that release) for sm_80 and sm_90: layouts
in the TritonGPU IR, registers from ptxas, instructions from machine code (``schedule/instructions.csv``). A dot of
fewer than 64 rows, or of fewer than four warps, is mma.sync on Hopper too
(``lib/Dialect/TritonGPU/Transforms/AccelerateMatmul.cpp``, `getMMAVersionSafe`).

PyTorch passes for selection: `torch.topk` over rows of scores, and operations over whole tensors.

`torch.topk` has one block per row, which it reads once for each two bits of a number, then twice:
``aten/src/ATen/native/cuda/TensorTopK.cu``, `sbtopk::gatherTopK`: `radixSelect` finds the k-th value two bits at a time
(``SortingRadixSelect.cuh``, RADIX_BITS), then one pass writes greater values and one equal ones. A separate kernel
sorts the values found.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.backward import KEYS_OUTSIDE, ROWS_OUTSIDE, BackwardOps
from attnsim.models.implementations.fused.forward import Operations
from attnsim.models.implementations.fused.tile import FRAGMENT_COLUMNS, BackwardTile, FlashTile
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Tensor, declared
from attnsim.models.schedule.instructions import step_counts
from attnsim.models.schedule.operation import BLOCK, STEP, Nest, TileOp, by_size, loop, once
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.row_tiles import classes
from attnsim.models.schedule.schedule import Buffers, Kernel, Launch, in_step

RADIX_BITS = 2
VALUE_BITS = 32
PASSES = VALUE_BITS // RADIX_BITS + 2
"""Times that a block reads its row: once for each digit, and twice to gather."""
FOUND_BYTES = 12
"""Bytes of a value in fp32 and its index in int64."""
LIST, INDEX_BYTES = "selected", 4
"""Tensor of the chosen blocks or keys of each query: int32."""
PASS_INSTRUCTIONS = by_hand(46, "integer instructions an element and pass, as `countRadixUsingMask` writes them")
"""Address, bound and load 6, ordered integer 4, mask and digit 4; of each of four digits 8: a comparison (2), a ballot,
a sum, and a population count at a quarter of the rate."""


def top_k(scores: str, rows: int, columns: int, top: int) -> list[Kernel]:
    """Kernels of `torch.topk` and of sorting the indices found.

    Parameters
    ----------
    scores : str
        Tensor of `rows` x `columns` numbers in fp32.
    """
    axes = {"r": Axis(rows), "c": Axis(columns)}
    row, best = Tensor(scores, "r c", 4, times=PASSES), Tensor("found", "r", top * FOUND_BYTES, written=True)
    digits = TileOp("vector", "digits", int32=PASS_INSTRUCTIONS * columns)

    def body() -> Nest:
        return [
            *loop("pass", PASSES, lambda: (row.load(columns), row.wait(), STEP, digits)),
            *once("store", [BLOCK, best.store()]),
        ]

    select = declared(
        "top-k",
        axes,
        "r",
        (row, best),
        {},
        body,
        threads=min(1024, -(-columns // 32) * 32),
        registers_per_thread=32,
        buffers=(("digits", 1024),),
        dtype="fp32",
        step="pass",
    )
    found = rows * top * FOUND_BYTES
    return [select, *(_sorted(name, found, rows * top) for name in ("sort values", "sort places"))]


def _sorted(name: str, size: int, elements: int) -> Kernel:
    """Kernel for rows so short that a thread block sorts them in registers."""
    return over(name, {"found": size}, {"found": size}, elements)


def best_past(rows: int, top: int) -> list[Kernel]:
    """Indices found by `torch.topk`, without those in the future, as int32."""
    found = rows * top
    return [
        over("future", {"found": found * 8}, {"is future": found}, found),
        over("drop", {"found": found * 8, "is future": found}, {"found": found * 8}, found),
        over("to int32", {"found": found * 8}, {LIST: found * INDEX_BYTES}, found),
    ]


def clear(name: str, tensor: str, size: int) -> Kernel:
    """`torch.zeros`: the tensor written once."""
    return over(name, {}, {tensor: size}, size // 2)


def over(name: str, reads: dict[str, int], writes: dict[str, int], elements: int) -> Kernel:
    """An operation that passes once over the given bytes of each tensor."""
    accesses = [*(Access(x, n) for x, n in reads.items()), *(Access(x, n, True) for x, n in writes.items())]
    return streaming(name, accesses, elements=elements)


Tile = TypeVar("Tile", FlashTile, BackwardTile)
REGISTERS: dict[tuple[str, int, int], int] = by_hand(
    {
        ("forward", 80, 64): 96,
        ("forward", 80, 128): 128,
        ("forward", 90, 64): 124,
        ("forward", 90, 128): 156,
        ("dq", 80, 64): 141,
        ("dq", 80, 128): 99,
        ("dq", 90, 64): 152,
        ("dq", 90, 128): 176,
    },
    "registers a thread of the kernels of 16 rows, which decide how many blocks share an SM; the others have 255",
)


@dataclass(frozen=True, slots=True)
class TritonBackwardTile(BackwardTile):
    """A tile of a backward pass, with the arrangement of warps over each product.

    Parameters
    ----------
    across : int
        Warps of mma.sync side by side over an output's columns, each of which reads all of the operand with the rows.
    scores_in_registers : bool
        Whether subsequent products read P and dS from registers; the preceding products have their orientation.
    """

    across: int = 1
    scores_in_registers: bool = False

    def buffers(self, d: int, dv: int, element: int) -> Buffers:
        """Q and dO in `stages_q` buffers, K and V, and P and dS if they pass through shared memory."""
        scores = 0 if self.scores_in_registers else 2 * self.rows * self.keys
        return (
            ("Q, dO", self.stages_q * self.rows * (d + dv) * element),
            ("K, V", self.keys * (d + dv) * element),
            ("P, dS", scores * element),
        )

    def product_bytes(self, product: str, products: tuple[str, ...], d: int, dv: int, element: int) -> int:
        """Bytes of shared memory that half a block reads for one of its `products` in a step."""
        m, n = self.rows, self.keys
        turned = self.scores_in_registers and products == KEYS_OUTSIDE
        rows, columns = (n, m) if turned else (m, n)
        a, b, depth = {
            "S": (rows, columns, d),
            "dP": (rows, columns, dv),
            "dV": (n, dv, m),
            "dK": (n, d, m),
            "dQ": (m, d, n),
        }[product]
        if self.scores_in_registers and product not in ("S", "dP"):
            a = 0
        if self.path == "wgmma":
            return (a + self.warps // 4 * b) * depth * element // 2
        down = self.warps // self.across
        return (self.across * a + down * max(b, FRAGMENT_COLUMNS * self.across)) * depth * element // 2


def architecture(gpu: Gpu) -> int:
    """Architecture that the kernels are compiled for, of the two that were read."""
    return 90 if gpu.features.wgmma else 80


def compiled(tile: Tile, kernel: str, gpu: Gpu, width: int) -> Tile:
    """The tile with the instructions of `kernel` at head dimension `width`."""
    return replace(tile, counts=step_counts(kernel, architecture(gpu), width))


def registers(kernel: str, gpu: Gpu, width: int) -> int:
    """Registers per thread of the forward kernel of chosen blocks, or of its pass for dQ."""
    return REGISTERS[kernel, architecture(gpu), 128 if width > 64 else 64]


@dataclass(frozen=True, slots=True)
class Walk:
    """Tiles that the blocks of a grid walk over.

    Parameters
    ----------
    steps : ndarray of int, shape [blocks] or [blocks, turns]
        Tiles of each block of a head; with an outer loop, of each of its iterations.
    listed : int
        Bytes of a list read for each step, in addition to the step's tile; 0 without a list.
    masked : ndarray of int, shape [blocks], optional
        Steps of a backward block that compute a mask's function.
    function : int
        FP32-lane instructions of that function per score.
    grid : str
        Axes of the grid, slowest first: tiles `t`, sequences `b`, heads of K and V `h`, and query heads of each, `g`,
        if those of a group are not rows of one block.
    scattered : int
        For the tiles that pass, if each block has its own choice of them: as in
        :class:`~attnsim.models.schedule.schedule.TensorUse`.
    """

    steps: Ints
    listed: int = 0
    masked: Ints | None = None
    function: int = 0
    grid: str = "t b h g"
    scattered: int = 0
    list_name: str = LIST

    def kinds(self, *first: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Distinct blocks: their `first` columns, their steps ``[kinds, turns]`` and masked steps.

        The last array gives the kind of each block.
        """
        steps = self.steps.reshape(len(self.steps), -1)
        columns, order = classes(*first, *steps.T, *(() if self.masked is None else (self.masked,)))
        table, end = np.stack(columns, axis=1), len(first) + steps.shape[1]
        return table[:, : len(first)], table[:, len(first) : end], table[:, end:], order

    def over(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The tensors whose tiles pass."""
        return tuple(replace(one, scattered=self.scattered) for one in tensors)

    def list_of(self) -> tuple[Tensor, ...]:
        """The list as a tensor; empty if there is none."""
        return (Tensor(self.list_name, "b n", self.listed),) if self.listed else ()

    def kernel(
        self,
        name: str,
        w: Workload,
        outside: str,
        axes: dict[str, Axis],
        tensors: Iterable[Tensor],
        nest: Nest,
        order: Ints,
        **resources: Any,
    ) -> Kernel:
        """The kernel whose blocks are tiles `t` of the axis `outside`."""
        heads = {"b": Axis(w.batch), "h": Axis(w.heads_kv, cuts="n"), "g": Axis(w.group)}
        axes |= heads | {"t": Axis(len(self.steps), cuts=f"{outside} n"), "n": Axis(int(self.steps.sum()) * w.heads_kv)}
        before, _, after = (f" {self.grid} ").partition(" t ")
        times, each = (math.prod(heads[axis].tiles for axis in some.split()) for some in (before, after))
        return declared(
            name,
            axes,
            self.grid,
            tensors,
            {},
            lambda: nest,
            launches=(Launch(order, times, each),),
            dtype=w.dtype,
            step="tile",
            **resources,
        )


def forward(
    w: Workload, tile: FlashTile, walk: Walk, rows: Ints, name: str, queries: int, keys: int, lse: bool = True
) -> Kernel:
    """A forward kernel: Q stays, tiles of K and V pass one step ahead, every one masked.

    Counted instructions are those of such a step, including the mask.

    Parameters
    ----------
    walk : Walk
        For blocks that process several queries in turn, one column per query.
    rows : ndarray of int
        Rows of each block that hold a query, in the order of the walk: whole, or fewer in the last.
    queries, keys : int
        Queries and keys of a sequence that any block reads.
    lse : bool
        Whether the log-sum-exps of rows are stored.
    """
    ops, e = Operations(w, tile), w.element_bytes
    q = Tensor("Q", "b h g i", w.head_dim * e)
    k, v = walk.over(Tensor("K", "b h j", w.head_dim * e), Tensor("V", "b h j", w.head_dim_v * e))
    o = Tensor("O", "b h g i", w.head_dim_v * w.output_bytes, written=True)
    outputs = (o, Tensor("LSE", "b h g i", 4, written=True)) if lse else (o,)
    load = (*_look_up(walk), k.load(tile.keys), v.load(tile.keys))

    def turn(load_next: bool) -> Iterator[TileOp]:
        yield from (k.wait(), v.wait(), STEP)
        yield from load if load_next else ()
        yield from (ops.scores(), ops.softmax(tile.counts is None), ops.output())

    valid, steps, _, order = walk.kinds(rows)
    whole, busy = int(valid.max()), steps > 0
    nest = [
        *once("begin", [BLOCK], _begun(steps)),
        *by_size("rows", whole - valid, lambda n: (q.load(whole - n), *load, q.wait()), busy),
        *loop("step", steps, turn, load_next=steps - 1),
        *by_size("store", whole - valid, lambda n: (x.store(whole - n) for x in outputs), busy),
        *once("end", [BLOCK], _begun(steps)),
    ]
    kernel = walk.kernel(
        name,
        w,
        "i",
        {"i": Axis(queries), "j": Axis(keys)},
        (q, k, v, *walk.list_of(), *outputs),
        nest,
        order,
        threads=tile.warps * 32,
        registers_per_thread=tile.registers,
        warpgroups=tile.warpgroups,
        path=tile.path,
        buffers=tile.buffers(*tile.compiled(w), e),
    )
    return in_step(kernel)


def keys_outside(w: Workload, tile: BackwardTile, walk: Walk, name: str) -> Kernel:
    """The pass for dK and dV: a block for each tile of keys and each query head, tiles of rows pass."""
    ops, look_up = BackwardOps(w, tile, KEYS_OUTSIDE), _look_up(walk)

    def turn(load_next: bool, masked: bool = False) -> Iterator[TileOp]:
        return _with_function(ops.step(load_next, look_up), walk.function * masked)

    _, steps, masked, order = walk.kinds()
    nest = [
        *once("prologue", ops.prologue()),
        *once("first rows", (*look_up, *ops.first_loads()), steps > 0),
        *loop("row step", steps, turn, load_next=steps - 1, **({"masked": masked} if masked.size else {})),
        *once("epilogue", ops.epilogue()),
    ]
    passing = walk.over(ops.q, ops.do, *ops.statistics)
    tensors = (ops.k, ops.v, *passing, *walk.list_of(), *ops.outputs)
    axes = {"i": Axis(w.seq_q), "j": Axis(w.seq_kv)}
    return walk.kernel(name, w, "j", axes, tensors, nest, order, **_backward(tile, tile.buffers(ops.d, ops.dv, ops.e)))


def rows_outside(w: Workload, tile: BackwardTile, walk: Walk, rows: int, name: str) -> Kernel:
    """The pass for dQ: Q, dO and dQ of `rows` rows stay, tiles of K and V pass."""
    ops = BackwardOps(w, tile, ROWS_OUTSIDE)
    k, v = walk.over(ops.k, ops.v)
    load = (*_look_up(walk), k.load(tile.keys), v.load(tile.keys))

    def turn(load_next: bool, masked: bool = False) -> Iterator[TileOp]:
        yield from (k.wait(), v.wait(), STEP)
        yield from load if load_next else ()
        work = ops.product("S"), ops.probabilities(), ops.product("dP"), ops.gradients(), ops.product("dQ")
        yield from _with_function(work, walk.function * masked)

    _, steps, masked, order = walk.kinds()
    busy = steps > 0
    nest = [
        *once("begin", [BLOCK], _begun(steps)),
        *once("rows", (*ops.loads(rows), *load, *ops.waits()), busy),
        *loop("key step", steps, turn, load_next=steps - 1, **({"masked": masked} if masked.size else {})),
        *once("store", [ops.dq.store(rows)], busy),
        *once("end", [BLOCK], _begun(steps)),
    ]
    in_registers = isinstance(tile, TritonBackwardTile) and tile.scores_in_registers
    buffers = (
        ("Q, dO", tile.rows * (ops.d + ops.dv) * ops.e),
        ("K, V", tile.stages_q * tile.keys * (ops.d + ops.dv) * ops.e),
        ("dS", 0 if in_registers else tile.rows * tile.keys * ops.e),
    )
    axes = {"i": Axis(w.seq_q), "j": Axis(w.seq_kv)}
    tensors = (k, v, ops.q, ops.do, *ops.statistics, *walk.list_of(), ops.dq)
    return walk.kernel(name, w, "i", axes, tensors, nest, order, **_backward(tile, buffers))


def _look_up(walk: Walk) -> tuple[TileOp, ...]:
    """Loads that determine the next tile."""
    return tuple(op for one in walk.list_of() for op in (one.load(), one.wait()))


def _begun(steps: Ints) -> NDArray[np.bool_]:
    """True in the first iteration of each block that has any steps."""
    return np.asarray((steps > 0) & (np.arange(steps.shape[1]) == 0))


def _with_function(ops: Iterable[TileOp], instructions: int) -> Iterator[TileOp]:
    """Operations with `instructions` additional instructions per score."""
    return (op._replace(fp32=op.fp32 + instructions * op.scores) for op in ops)


def _backward(tile: BackwardTile, buffers: Buffers) -> dict[str, Any]:
    """Common fields of the backward kernels."""
    return {
        "threads": tile.warps * 32,
        "registers_per_thread": tile.registers,
        "warpgroups": 2,
        "path": tile.path,
        "buffers": buffers,
        "is_backward": True,
    }
