"""Backward of fused attention: P is recomputed from the log-sum-exp, so five or seven GEMMs replace the forward's two.

FlashAttention-2 has a block for each tile of keys, which sums dQ with fp32 atomics
(``csrc/flash_attn/src/flash_bwd_kernel.h`` of Dao-AILab/flash-attention), between a kernel for D and a conversion of
dQ. On data-centre Blackwell the five GEMMs accumulate in tensor memory, dK and dV until the block ends
(``flash_attn/cute/flash_bwd_sm100.py``).

The form without atomics has two passes: one for dK and dV with keys in the outer loop, one for dQ with rows in the
outer loop. Both compute S and dP: seven GEMMs, no fp32 accumulator of dQ, deterministic sums (``_attn_bwd`` of
triton-lang/triton ``python/tutorials/06-fused-attention.py``, with both passes in one block; here two kernels, so that
each has the grid of its own outer loop).

Backward that accumulates dQ in memory: each tile of keys updates dQ of all rows that it visits.

``python/triton/ops/flash_attention.py`` of triton-lang/triton, as shipped in 2.1.0. A block for each head processes its
tiles of keys in turn, and at each visit reads dQ in fp32 and writes it back. Alternatively (`sequence_parallel`) a
block for each tile of keys writes its own dQ in 16 bits, and all of these are summed later. There is no prefetch
(`num_stages=1`): a step requests Q and waits for it. Eight barriers per step keep the warps in lockstep, so all wait
for spilled registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnsim.arrays import Ints
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.forward import DROPOUT_BITS, dropped
from attnsim.models.implementations.fused.order import ABSENT_CLKS, grid_of_heads
from attnsim.models.implementations.fused.tile import BackwardTile
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Seen, Tensor, uses_of
from attnsim.models.schedule.instructions import DS_INSTRUCTIONS, LANES, product
from attnsim.models.schedule.operation import BLOCK, STEP, Nest, TileOp, by_size, loop, once
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.row_tiles import classes, padded, row_tiles, visible_queries
from attnsim.models.schedule.schedule import Buffers, Kernel, Launch, TensorUse, in_step

KEYS_OUTSIDE, ROWS_OUTSIDE = ("S", "dP", "dV", "dK"), ("S", "dP", "dQ")
"""Products of a step in the pass for dK and dV, and in the pass for dQ."""
DROPOUT_INSTRUCTIONS = 3
"""Instructions per score, whose sign marks dropped ones: extraction, comparison, selection
(`Dropout::apply_dropout`)."""


def flash_backward(w: Workload, tile: BackwardTile) -> tuple[Kernel, ...]:
    """The kernels of FlashAttention-2's backward pass of `w`."""
    accumulator = w.heads_q * sum(n * rows for n, rows in _accumulated(w)) * padded(w.head_dim) * 4
    dq = w.heads_q * w.queries * w.head_dim * w.element_bytes
    convert = streaming(
        "convert_dQ",
        [Access("dQ accum", accumulator), Access("dQ", dq, True)],
        elements=accumulator // 4,
        fp32_per_element=2,
    )
    return (
        dot_do_o(w, Access("dQ accum", accumulator, True)),
        keys_outside(w, tile),
        convert,
        *sums_of_groups(w),
    )


def two_pass_backward(w: Workload, tile: BackwardTile) -> tuple[Kernel, ...]:
    """The kernels of the backward pass without atomics."""
    return (dot_do_o(w), keys_outside(w, tile, dq=False), rows_outside(w, tile), *sums_of_groups(w))


def dot_do_o(w: Workload, *cleared: Access) -> Kernel:
    """Kernel that computes D: for each row, the sum of dO times O."""
    rows = w.heads_q * w.queries
    elements = rows * w.head_dim_v
    read = [Access(name, elements * w.element_bytes) for name in ("O", "dO")]
    accesses = [*read, Access("D", rows * 4, True), *cleared]
    return streaming("dot_do_o", accesses, elements=elements, fp32_per_element=3)


def sums_of_groups(w: Workload) -> list[Kernel]:
    """Kernels that sum dK and dV over the query heads of a group; none without grouped heads."""
    if w.group == 1:
        return []
    kernels = []
    for name, width in (("dK", w.head_dim), ("dV", w.head_dim_v)):
        summed = w.heads_kv * w.keys * width * w.element_bytes
        kernels.append(
            streaming(
                f"sum {name}",
                [Access(f"{name} expanded", summed * w.group), Access(name, summed, True)],
                elements=summed * w.group // w.element_bytes,
            )
        )
    return kernels


def keys_outside(w: Workload, tile: BackwardTile, *, dq: bool = True) -> Kernel:
    """Kernel with a block per tile of keys: K, V, dK and dV stay, tiles of rows pass; with `dq` it also adds to dQ."""
    axes, ops = axes_of(w, tile), BackwardOps(w, tile, (*KEYS_OUTSIDE, "dQ") if dq else KEYS_OUTSIDE)
    queries, keys, tiles = axes["i"].sizes, axes["j"].sizes, axes["j"].tiles_of
    part = np.repeat(np.arange(len(tiles)), tiles)
    first = (np.arange(len(part)) - (np.cumsum(tiles) - tiles)[part]) * tile.keys
    last = np.minimum(first + tile.keys, keys[part]) - 1
    low, high = visible_queries(w, first, last, queries[part], (keys - queries)[part])
    stop = -(-high // tile.rows)
    steps = np.maximum(stop - low // tile.rows, 0)
    missing_rows = np.where(steps > 0, np.maximum(stop * tile.rows - queries[part], 0), 0)
    missing_keys = np.maximum(first + tile.keys - keys[part], 0)
    of_head = steps, missing_rows, missing_keys
    (steps, missing_rows, missing_keys), launches = _grid(w, tiles, of_head, absent=(0, 0, tile.keys))
    nest = [
        *by_size("prologue", missing_keys, ops.prologue, steps > 0),
        *by_size("first rows", missing_rows, ops.first_loads, steps > 0),
        *loop("row step", steps, ops.step, load_next=steps - 1),
        *by_size("epilogue", missing_keys, ops.epilogue, missing_keys < tile.keys),
        *once("no keys", [TileOp("delay", "exit", clks=ABSENT_CLKS)], missing_keys == tile.keys),
    ]
    sums = [Tensor("dK, dV sums", "b h g j", 4 * (ops.d + ops.dv), written=way) for way in (False, True)]
    if tile.slices:
        again = [ops.k.load(tile.keys), ops.v.load(tile.keys), sums[0].load(tile.keys), sums[1].store(tile.keys)]
        nest += once("K, V, dK and dV again", again, steps)
    tensors = (ops.k, ops.v, ops.q, ops.do, *ops.statistics, *((ops.sums,) if dq else ()), *ops.outputs)
    tensors += tuple(sums) if tile.slices else ()
    name, uses = "flash_bwd" if dq else "flash_bwd_dkdv", uses_of(tensors, axes, "h g b j")
    buffers = tile.buffers(ops.d, ops.dv, ops.e)
    return _main(ops, nest, uses, name=name, launches=launches, buffers=buffers, step="row tile")


def rows_outside(w: Workload, tile: BackwardTile) -> Kernel:
    """Kernel with a block per tile of rows: Q, dO and dQ stay, visible tiles of K and V pass, the last first."""
    axes, ops, band = axes_of(w, tile), BackwardOps(w, tile, ROWS_OUTSIDE), row_tiles(w, tile.rows, tile.keys)
    of_head = band.steps, band.missing_rows, band.missing_keys
    (steps, missing_rows, missing_keys), launches = _grid(w, axes["i"].tiles_of, of_head, absent=(0, tile.rows, 0))

    def first_keys(missing: int) -> Iterator[TileOp]:
        yield from (ops.k.load(tile.keys - missing), ops.v.load(tile.keys - missing), *ops.waits())

    def store_dq(missing: int) -> Iterator[TileOp]:
        yield from (BLOCK, ops.dq.store(tile.rows - missing))

    def step(load_next: bool) -> Iterator[TileOp]:
        yield from (ops.k.wait(), STEP, ops.product("S"), ops.probabilities())
        yield from (ops.v.wait(), ops.product("dP"))
        if load_next:
            yield ops.v.load(tile.keys)
        yield from (ops.gradients(), ops.product("dQ"))
        if load_next:
            yield ops.k.load(tile.keys)

    nest = [
        *by_size("prologue", missing_rows, lambda n: (BLOCK, *ops.loads(tile.rows - n)), steps > 0),
        *by_size("first keys", missing_keys, first_keys, steps > 0),
        *loop("key step", steps, step, load_next=steps - 1),
        *by_size("epilogue", missing_rows, store_dq, missing_rows < tile.rows),
        *once("no rows", [TileOp("delay", "exit", clks=ABSENT_CLKS)], missing_rows == tile.rows),
    ]
    buffers = (
        ("Q, dO", tile.rows * (ops.d + ops.dv) * ops.e),
        ("K, V", tile.keys * (ops.d + ops.dv) * ops.e),
        ("dS", tile.rows * tile.keys * ops.e),
    )
    tensors = (ops.k, ops.v, ops.q, ops.do, *ops.statistics, ops.dq)
    uses = uses_of(tensors, axes, "h g b i")
    return _main(ops, nest, uses, name="flash_bwd_dq", launches=launches, buffers=buffers, step="key tile")


def axes_of(w: Workload, tile: BackwardTile) -> dict[str, Axis]:
    """Axes: sequences b, heads h of K and V, query heads g of each, queries i, keys j; rows I of dQ's accumulator."""
    queries, keys = (tuple(getattr(one, name) for one in w.parts) for name in ("queries", "keys"))
    return {
        "b": Axis(tuple(one.times for one in w.parts)),
        "h": Axis(w.heads_kv),
        "g": Axis(w.group),
        "i": Axis(queries, tile.rows),
        "j": Axis(keys, tile.keys),
        "I": Axis(tuple(rows for _, rows in _accumulated(w)), tile.rows),
    }


def _accumulated(w: Workload) -> list[tuple[int, int]]:
    """Sequences, and rows of dQ's accumulator for each: those of a sequence padded to 128."""
    return [(one.times, -(-one.queries // 128) * 128) for one in w.parts]


def _grid(
    w: Workload, tiles: Ints, columns: tuple[Ints, ...], absent: tuple[int, ...]
) -> tuple[tuple[Ints, ...], tuple[Launch, ...]]:
    """Properties of the distinct blocks and their launches, from the blocks of a head, sequence after sequence.

    If sequences differ in length, the grid has for each as many blocks as the longest has tiles, heads outermost
    (`run_flash_bwd_seqk_parallel` in ``csrc/flash_attn/src/flash_bwd_launch_template.h``). `absent` describes a block
    without a tile.
    """
    ragged = tiles.min() < tiles.max()
    if ragged:
        columns = tuple(np.append(column, last) for column, last in zip(columns, absent, strict=True))
    found, inverse = classes(*columns)
    blocks = [one[None] for one in np.split(inverse[: tiles.sum()], np.cumsum(tiles)[:-1])]
    return found, grid_of_heads(w, blocks, w.heads_q, int(inverse[-1]) if ragged else None)


def _main(ops: BackwardOps, nest: Nest, uses: tuple[TensorUse, ...], **fields: Any) -> Kernel:
    """Main kernel of a backward pass."""
    return Kernel.of(
        nest,
        uses=uses,
        threads=ops.tile.warps * 32 + ops.tile.extra_threads,
        registers_per_thread=ops.tile.registers,
        warpgroups=2,
        is_backward=True,
        path=ops.tile.path,
        dtype=ops.w.dtype,
        **fields,
    )


class BackwardOps:
    """Tile operations of a step of a main backward kernel, and the tensors that it moves.

    Parameters
    ----------
    products : tuple of str
        GEMMs of a step: `KEYS_OUTSIDE`, with dQ or without, or `ROWS_OUTSIDE`.
    widths : (int, int), optional
        Computed columns of head_dim and of head_dim_v. Default: as FlashAttention pads them.
    """

    def __init__(
        self, w: Workload, tile: BackwardTile, products: tuple[str, ...], widths: tuple[int, int] | None = None
    ) -> None:
        self.w, self.tile, self.products = w, tile, products
        self.d, self.dv = widths or (padded(w.head_dim), padded(w.head_dim_v))
        self.e = w.element_bytes
        of_qk, of_v, expanded = w.head_dim * self.e, w.head_dim_v * self.e, " expanded" if w.group > 1 else ""
        self.k, self.v = Tensor("K", "b h j", of_qk), Tensor("V", "b h j", of_v)
        self.q, self.do = Tensor("Q", "b h g i", of_qk), Tensor("dO", "b h g i", of_v)
        self.statistics = Tensor("LSE", "b h g i", 4), Tensor("D", "b h g i", 4)
        self.sums = Tensor("dQ accum", "b h g I", self.d * 4, written=True)
        self.dq = Tensor("dQ", "b h g i", of_qk, written=True)
        self.outputs = tuple(
            Tensor(f"{name}{expanded}", "b h g j", width, written=True) for name, width in (("dK", of_qk), ("dV", of_v))
        )

    def loads(self, rows: int) -> tuple[TileOp, ...]:
        """Loads of Q, the row statistics and dO of `rows` rows."""
        return tuple(tensor.load(rows) for tensor in (self.q, *self.statistics, self.do))

    def waits(self) -> tuple[TileOp, ...]:
        """Waits for all loads of :meth:`loads`."""
        return tuple(tensor.wait() for tensor in (self.q, *self.statistics, self.do))

    def prologue(self, missing: int = 0) -> Iterator[TileOp]:
        """Loads of the block's K and V."""
        keys = self.tile.keys - missing
        yield from (BLOCK, self.k.load(keys), self.v.load(keys))

    def first_loads(self, missing: int = 0) -> Iterator[TileOp]:
        """Loads of the first tile of rows: the last of the sequence, which may be shorter."""
        yield from (*self.loads(self.tile.rows - missing), self.k.wait(), self.v.wait())

    def step(self, load_next: bool, looked_up: Iterable[TileOp] = ()) -> Iterator[TileOp]:
        """One tile of rows; with `load_next` the next one is loaded meanwhile, after `looked_up` if it is listed."""
        early, rows = self.tile.stages_q > 1, self.tile.rows
        *next_q, next_do = self.loads(rows)
        *arrived, do_arrived = self.waits()
        yield from (*arrived, STEP)
        if load_next and early:
            yield from (*looked_up, *next_q)
        yield from (self.product("S"), self.probabilities(), do_arrived)
        yield from (self.product("dP"), self.gradients(), self.product("dV"))
        if load_next:
            yield from (*(() if early else looked_up), next_do)
        if "dQ" in self.products:  # with fp32 atomics; each block of a pair adds half the rows
            yield from (self.product("dQ"), self.sums.store(rows // self.tile.pair))
        yield self.product("dK")
        if load_next and not early:
            yield from next_q

    def epilogue(self, missing: int = 0) -> Iterator[TileOp]:
        """Stores of the block's dK and dV."""
        yield BLOCK
        yield from (tensor.store(self.tile.keys - missing) for tensor in self.outputs)

    def product(self, name: str) -> TileOp:
        """One of the products of a step, half of it on each warpgroup."""
        tile, width = self.tile, self.dv if name in ("dP", "dV") else self.d
        shared = tile.product_bytes(name, self.products, self.d, self.dv, self.e)
        flops = 2 * (tile.rows * tile.keys * width // 2) * tile.copies(name, self.d)
        op = TileOp("mma", name, flops=flops, smem_bytes=shared)
        return product(op) if tile.counts and tile.path == "mma_sync" else op

    def probabilities(self) -> TileOp:
        """P from S; from tensor memory S is read in fp32 and P written there."""
        scores = self.tile.rows * self.tile.keys // 2
        op = TileOp("vector", "P", scores=scores, exps=scores, tmem_bytes=self._tensor_memory(scores))
        if self.tile.counts:
            op = self.tile.counts.gradients(scores)[0]
        return dropped(op, scores, DROPOUT_BITS, DROPOUT_INSTRUCTIONS) if self.w.dropout else op

    def gradients(self) -> TileOp:
        """dS = P (dP - D)."""
        scores = self.tile.rows * self.tile.keys // 2
        if self.tile.counts:
            return self.tile.counts.gradients(scores)[1]
        return TileOp("vector", "dS", fp32=DS_INSTRUCTIONS * scores, tmem_bytes=self._tensor_memory(scores))

    def _tensor_memory(self, scores: int) -> int:
        return scores * (4 + self.e) if self.tile.path == "tcgen05" else 0


WARP_ROWS = 16
"""Rows of an output per warp with ``mma.sync.m16n8k16``."""


@dataclass(frozen=True, slots=True)
class MemoryDqTile(BackwardTile):
    """A tile whose warps are stacked along the rows of each output: each reads its rows of A, and all of B.

    Triton uses this layout for dependent products (`warpsPerTileV2` in
    ``lib/Dialect/TritonGPU/Transforms/AccelerateMatmul.cpp``).

    Parameters
    ----------
    parallel : bool
        Whether each tile of keys has a block and its own dQ, computed as the transpose of K^T dS^T. Otherwise a head
        has one block, and dS stays in registers for dS K.
    spilled, reloaded : int
        Bytes of registers that a thread spills and reloads per step, if they exceed the L1.
    stack : int
        Bytes of a thread's stack for them.
    """

    parallel: bool = False
    spilled: int = 0
    reloaded: int = 0
    stack: int = 0

    def buffers(self, d: int, dv: int, element: int) -> Buffers:
        """Shared-memory buffers of a block and their bytes."""
        m, n = self.rows, self.keys
        return (
            ("Q, dO", m * (d + dv) * element),
            ("K, V", n * (d + dv) * element),
            ("P, dS, dQ", m * n * element),
        )

    def copies(self, product: str, d: int) -> int:
        """Warps that compute the same rows of a product, if it has fewer rows than all warps together."""
        return max(1, self.warps * WARP_ROWS // d) if product == "dQ" and self.parallel else 1

    def product_bytes(self, product: str, products: tuple[str, ...], d: int, dv: int, element: int) -> int:
        """Bytes of shared memory that half a block moves for one of its `products` per step."""
        m, n = self.rows, self.keys
        if product == "dQ":
            a, b = (d * self.copies(product, d), m) if self.parallel else (0, d)
            return (a + self.warps * b) * n * element // 2
        a, b, depth = {"S": (m, n, d), "dP": (m, n, dv), "dV": (n, dv, m), "dK": (n, d, m)}[product]
        return (a + self.warps * b) * depth * element // 2

    def __str__(self) -> str:
        form = "a dQ for each tile of keys" if self.parallel else "a block for each head"
        return f"{BackwardTile.__str__(self)}, {form}"


def memory_dq_backward(w: Workload, gpu: Gpu, tile: MemoryDqTile) -> tuple[Kernel, ...]:
    """Kernels of the backward pass of `w`, whose queries and keys are whole tiles."""
    (name, size), dq = dq_in_memory(w, tile), w.batch * w.heads_q * w.seq_q * w.head_dim * w.element_bytes
    return (
        streaming("clear dQ", [Access(name, size, True)], elements=size // w.element_bytes, fp32_per_element=0),
        dot_do_o(w),
        _memory_main(w, gpu, tile),
        streaming("sum dQ", [Access(name, size), Access("dQ", dq, True)], elements=size // w.element_bytes),
    )


def dq_in_memory(w: Workload, tile: MemoryDqTile) -> tuple[str, int]:
    """Name of dQ in memory before it is summed, and its bytes."""
    elements = w.batch * w.heads_q * w.seq_q * w.head_dim
    if tile.parallel:
        return "dQ parts", -(-w.seq_kv // tile.keys) * elements * w.element_bytes
    return "dQ accum", elements * 4


def _memory_main(w: Workload, gpu: Gpu, tile: MemoryDqTile) -> Kernel:
    """Main kernel: a block for each head, or for each tile of keys, those of all heads before the next tile's."""
    axes, heads, d, dv, e = axes_of(w, tile), w.batch * w.heads_q, w.head_dim, w.head_dim_v, w.element_bytes
    first = np.arange(axes["j"].tiles, dtype=np.int64) * tile.keys
    low, high = visible_queries(w, first, first + tile.keys - 1)
    steps = -(-high // tile.rows) - low // tile.rows
    (turns,), inverse = classes(steps) if tile.parallel else ((steps[None],), np.zeros(1, dtype=np.int64))
    blocks = heads * (len(steps) if tile.parallel else 1)
    axes |= {"resident": Axis(min(blocks, gpu.sm.count)), "byte": Axis(tile.stack)}
    ops, visits = BackwardOps(w, tile, (*KEYS_OUTSIDE, "dQ"), (d, dv)), float(steps.sum()) / axes["i"].tiles
    passed = [ops.q, ops.do, *ops.statistics]
    if tile.parallel:
        passed = [replace(tensor, seen=Seen("j", w.seq_q, max(1.0, visits))) for tensor in passed]
        sums = Tensor("dQ parts", "b h g i j", tile.rows * d * e, written=True, by_tile=True)
        read_back = []
    else:
        passed = [replace(tensor, times=visits) for tensor in passed]
        sums = replace(ops.sums, times=visits)
        read_back = [replace(sums, written=False)]
    spills = Tensor("spills", "resident byte", tile.warps * LANES, just_written=True)
    put_aside = [spills, replace(spills, written=True)] if tile.stack else []
    nest = [
        *once("prologue", (*ops.prologue(), ops.k.wait(), ops.v.wait()), turns > 0),
        *loop("row step", turns, lambda: _turn(ops, tile, sums, spills)),
        *once("epilogue", ops.epilogue(), turns > 0),
    ]
    tensors = (ops.k, ops.v, *ops.outputs, *passed, *read_back, sums, *put_aside)
    uses = uses_of(tensors, axes, "j b h g" if tile.parallel else "b h g")
    name, buffers = "flash_bwd_parts" if tile.parallel else "flash_bwd_turns", tile.buffers(d, dv, e)
    launches = (Launch(inverse, each=heads) if tile.parallel else Launch(inverse, heads),)
    return in_step(_main(ops, nest, uses, name=name, launches=launches, buffers=buffers, step="row tile"))


def _turn(ops: BackwardOps, tile: MemoryDqTile, sums: Tensor, spills: Tensor) -> Iterator[TileOp]:
    """One tile of rows: statistics and dO are requested when Q has arrived, dQ when dK is done."""
    q, *others = ops.loads(tile.rows)
    q_arrived, *statistics_arrived, do_arrived = ops.waits()
    yield from (q, q_arrived, STEP, *others)
    yield from (ops.product("S"), *statistics_arrived, ops.probabilities())
    yield from (do_arrived, ops.product("dV"), ops.product("dP"))
    if tile.stack:
        yield from (spills.load(tile.reloaded), spills.wait())
    yield ops.gradients()
    if tile.stack:
        yield spills.store(tile.spilled)
    yield ops.product("dK")
    if not tile.parallel:
        yield sums.load(tile.rows)
    yield ops.product("dQ")
    if not tile.parallel:
        yield sums.wait()
    yield sums.store(1 if sums.by_tile else tile.rows)
