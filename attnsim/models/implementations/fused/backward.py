"""FlashAttention backward: a preprocess kernel, one block per tile of keys, a conversion of dQ.

P is recomputed from the log-sum-exp, so five GEMMs replace the forward's two; dQ is summed with fp32 atomics
(``csrc/flash_attn/src/flash_bwd_kernel.h`` of Dao-AILab/flash-attention). On data-centre Blackwell the five accumulate
in tensor memory, dK and dV until the block ends (``flash_attn/cute/flash_bwd_sm100.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from attnsim.arrays import Ints
from attnsim.models.implementations.fused.dropout import dropped
from attnsim.models.implementations.fused.loops import DROPOUT_BITS
from attnsim.models.implementations.fused.order import ABSENT_CLKS, grid_of_heads
from attnsim.models.implementations.fused.tile import BackwardTile
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Tensor
from attnsim.models.schedule.instructions import DS_INSTRUCTIONS, product
from attnsim.models.schedule.nest import Nest, by_size, loop, loop_nest, once
from attnsim.models.schedule.operation import TileOp
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.row_tiles import classes, visible_queries
from attnsim.models.schedule.schedule import Kernel
from attnsim.models.schedule.uses import TensorUse
from attnsim.models.schedule.widths import padded

KEYS_OUTSIDE, ROWS_OUTSIDE = ("S", "dP", "dV", "dK"), ("S", "dP", "dQ")
"""Products of a step of a pass for dK and dV, and of one for dQ."""
DROPOUT_INSTRUCTIONS = 3
"""Of a score, whose sign remembers what was dropped: extraction, comparison, selection (`Dropout::apply_dropout`)."""


def flash_backward(w: Workload, tile: BackwardTile) -> tuple[Kernel, ...]:
    """The kernels of the backward pass of `w`."""
    accumulator = w.heads_q * padded_rows(w) * padded(w.head_dim) * 4
    out = w.heads_q * w.queries * w.head_dim_v * w.element_bytes
    rows = w.heads_q * w.queries * 4
    dq = w.heads_q * w.queries * w.head_dim * w.element_bytes
    return (
        streaming(
            "dot_do_o",
            [
                Access("O", out),
                Access("dO", out),
                Access("D", rows, True),
                Access("dQ accum", accumulator, True),
            ],
            elements=out // w.element_bytes,
            fp32_per_element=3,
        ),
        keys_outside(w, tile),
        streaming(
            "convert_dQ",
            [Access("dQ accum", accumulator), Access("dQ", dq, True)],
            elements=accumulator // 4,
            fp32_per_element=2,
        ),
        *sums_of_groups(w),
    )


def padded_rows(w: Workload) -> int:
    """Rows of a head in the accumulator of dQ: those of each sequence padded to 128."""
    return sum(one.times * -(-one.queries // 128) * 128 for one in w.parts)


def sums_of_groups(w: Workload) -> list[Kernel]:
    """Of grouped heads, the kernels that add up dK and dV over the query heads of a group."""
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
    """The main kernel, a block for each tile of keys; `dq`: whether it also adds to dQ.

    Of sequences of different lengths the grid has as many blocks for each as the longest has key tiles
    (`run_flash_bwd_seqk_parallel` in ``csrc/flash_attn/src/flash_bwd_launch_template.h``), heads outermost.
    """
    (steps, missing_rows, missing_keys), blocks, absent = _key_tiles(w, tile)
    ops = BackwardOps(w, tile, (*KEYS_OUTSIDE, "dQ") if dq else KEYS_OUTSIDE)
    nest: Nest = [
        *by_size("prologue", missing_keys, ops.prologue, steps > 0),
        *by_size("first rows", missing_rows, ops.first_loads, steps > 0),
        *loop("row step", steps, ops.step, load_next=steps - 1),
        *by_size("epilogue", missing_keys, ops.epilogue, missing_keys < tile.keys),
        *once("no keys", [TileOp("delay", "exit", clks=ABSENT_CLKS)], missing_keys == tile.keys),
    ]
    segments, repeats = loop_nest(nest)
    d, dv = ops.d, ops.dv
    e = w.element_bytes
    expanded = " expanded" if w.group > 1 else ""
    buffers = tile.buffers(d, dv, e)
    key_tiles = [n.size for n in blocks]
    uses = (
        shared_rows("K", w.head_dim * e, w.heads_kv, [one.keys for one in w.parts], [w.group] * len(w.parts), w),
        shared_rows("V", w.head_dim_v * e, w.heads_kv, [one.keys for one in w.parts], [w.group] * len(w.parts), w),
        shared_rows("Q", w.head_dim * e, w.heads_q, [one.queries for one in w.parts], key_tiles, w),
        shared_rows("dO", w.head_dim_v * e, w.heads_q, [one.queries for one in w.parts], key_tiles, w),
        shared_rows("LSE, D", 8, w.heads_q, [one.queries for one in w.parts], key_tiles, w),
        *([shared_rows("dQ accum", d * 4, w.heads_q, _accumulated(w), key_tiles, w, written=True)] if dq else []),
        TensorUse(f"dK{expanded}", w.keys * w.head_dim * e, w.heads_q, written=True),
        TensorUse(f"dV{expanded}", w.keys * w.head_dim_v * e, w.heads_q, written=True),
    )
    return Kernel(
        name="flash_bwd" if dq else "flash_bwd_dkdv",
        threads=tile.warps * 32 + tile.extra_threads,
        registers_per_thread=tile.registers,
        segments=segments,
        repeats=repeats,
        launches=grid_of_heads(w, blocks, w.heads_q, absent),
        uses=uses,
        warpgroups=2,
        slowed_by_extra=True,
        path=tile.path,
        buffers=buffers,
        dtype=w.dtype,
        step="row tile",
    )


def _accumulated(w: Workload) -> list[int]:
    return [-(-one.queries // 128) * 128 for one in w.parts]


def shared_rows(
    tensor: str, width: int, heads: int, rows: list[int], sharers: list[int], w: Workload, written: bool = False
) -> TensorUse:
    """A tensor of so many rows a sequence, which blocks next to one another share: pieces and sharers in the mean."""
    counts = [one.times for one in w.parts]
    total = sum(n * count for n, count in zip(rows, counts, strict=True))
    mean = sum(n * count * each for n, count, each in zip(rows, counts, sharers, strict=True)) / total
    every = total * width * heads if len(counts) > 1 else 0
    return TensorUse(tensor, total * width // w.batch, w.batch * heads, mean, written=written, all_bytes=every)


def _key_tiles(w: Workload, tile: BackwardTile) -> tuple[tuple[Ints, ...], tuple[Ints, ...], int | None]:
    """Steps, missing rows and keys of each class, the classes of each sequence's blocks, and that of absent ones."""
    queries, keys = np.array([one[:2] for one in w.parts], dtype=np.int64).T
    tiles = -(-keys // tile.keys)
    part = np.repeat(np.arange(len(tiles)), tiles)
    number = np.arange(len(part), dtype=np.int64) - (np.cumsum(tiles) - tiles)[part]
    first = number * tile.keys
    last = np.minimum(first + tile.keys, keys[part]) - 1
    low, high = visible_queries(w, first, last, queries[part], (keys - queries)[part])
    start, stop = low // tile.rows, -(-high // tile.rows)
    row_tiles = -(-queries // tile.rows)[part]
    steps = np.maximum(stop - start, 0)
    missing_rows = np.where((steps > 0) & (stop == row_tiles), row_tiles * tile.rows - queries[part], 0)
    missing_keys = np.where(number == tiles[part] - 1, (number + 1) * tile.keys - keys[part], 0)
    columns = [steps, missing_rows, missing_keys]
    absent = tiles.min() < tiles.max()
    if absent:
        columns = [np.append(column, last) for column, last in zip(columns, (0, 0, tile.keys), strict=True)]
    found, inverse = classes(*columns)
    blocks = np.split(inverse[: len(part)], np.cumsum(tiles)[:-1])
    return found, tuple(one[None] for one in blocks), int(inverse[-1]) if absent else None


class BackwardOps:
    """Tile operations of a step of a main backward kernel, and the tensors that it moves.

    Parameters
    ----------
    w : Workload
    tile : BackwardTile
    products : tuple of str
        GEMMs of a step: `KEYS_OUTSIDE`, with dQ or without, or `ROWS_OUTSIDE`.
    widths : (int, int), optional
        Columns that are computed of head_dim and of head_dim_v. Default: as FlashAttention pads them.
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
        self.statistics = Tensor("LSE, D", "b h g i", 8)
        self.sums = Tensor("dQ accum", "b h g I", self.d * 4, written=True)
        self.dq = Tensor("dQ", "b h g i", of_qk, written=True)
        self.outputs = tuple(
            Tensor(f"{name}{expanded}", "b h g j", width, written=True) for name, width in (("dK", of_qk), ("dV", of_v))
        )

    def loads(self, rows: int) -> tuple[TileOp, ...]:
        """Q, the row statistics and dO of so many rows."""
        return self.q.load(rows), self.statistics.load(rows), self.do.load(rows)

    def prologue(self, missing: int = 0) -> Iterator[TileOp]:
        """K and V of the block."""
        keys = self.tile.keys - missing
        yield from (TileOp("delay", "block"), self.k.load(keys), self.v.load(keys))

    def first_loads(self, missing: int = 0) -> Iterator[TileOp]:
        """The first tile of rows, the last of the sequence and so perhaps a shorter one."""
        yield from (*self.loads(self.tile.rows - missing), self.k.wait(), self.v.wait())

    def step(self, load_next: bool, looked_up: Iterable[TileOp] = ()) -> Iterator[TileOp]:
        """One tile of rows; `load_next`: whether the next one, `looked_up` where it is listed, is fetched under way."""
        early, rows = self.tile.stages_q > 1, self.tile.rows
        yield from (self.q.wait(), self.statistics.wait(), TileOp("delay", "step"))
        if load_next and early:
            yield from (*looked_up, self.q.load(rows), self.statistics.load(rows))
        yield from (self.product("S"), self.probabilities(), self.do.wait())
        yield from (self.product("dP"), self.gradients(), self.product("dV"))
        if load_next:
            yield from (*(() if early else looked_up), self.do.load(rows))
        if "dQ" in self.products:  # with fp32 atomics; of a pair of blocks each adds half the rows
            yield from (self.product("dQ"), self.sums.store(rows // self.tile.pair))
        yield self.product("dK")
        if load_next and not early:
            yield from (self.q.load(rows), self.statistics.load(rows))

    def epilogue(self, missing: int = 0) -> Iterator[TileOp]:
        """The block's dK and dV."""
        yield TileOp("delay", "block")
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
