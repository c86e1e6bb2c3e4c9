"""Loop orders of fused forward kernels on any tile: FlashAttention-2's, FlashAttention-3's, and two multi-stage ones.

FlashAttention-2 (Dao, arXiv 2307.08691): single-buffered copies that overlap the other GEMM. FlashAttention-3 (Shah et
al., arXiv 2407.08608): warpgroups with double-buffered copies, the GEMM of one step issued before the softmax of the
next. Both follow ``csrc/flash_attn/src/flash_fwd_kernel.h`` and ``hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp`` of
Dao-AILab/flash-attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.models.implementations.fused.tile import FlashTile
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Tensor
from attnsim.models.schedule.instructions import product
from attnsim.models.schedule.operation import STEP, Nest, TileOp, by_size, loop, once

MASK_INSTRUCTIONS = by_hand(2, "FP32-lane instructions per score of a masked tile: compare and select")
DROPOUT_BITS, DROPOUT_INSTRUCTIONS = 8, 2
"""Random bits per score; and instructions per score to widen, compare and mask two scores at a time
(`Dropout::apply_dropout`)."""
PHILOX_BITS = 128
PHILOX_ROUNDS = 7
MULTIPLICATIONS, PIPE_TURNS, LOGIC = 2, 2, 4
"""Per Philox round: multiplications, pipe cycles of each, and instructions on the integer lanes."""
LANES = 32
POLYNOMIAL_INSTRUCTIONS = by_hand(6, "FP32-lane instructions of an exponential that is computed as a polynomial")
"""Rounding down (2), three multiply-adds of degree 3, exponent (``flash_attn/cute/utils.py`` of
Dao-AILab/flash-attention, `ex2_emulation`)."""

WAIT_Q, NEXT_TILE = TileOp("wait", "Q"), TileOp("prefetch")
PAGES = "page numbers"
"""Tensor of the numbers of the pages that a sequence has, 4 bytes each."""


def pages(w: Workload, keys: int) -> int:
    """Pages of `keys` keys; a cache without a page size has pages of one key (SGLang's `page_size = 1`)."""
    return -(-keys // (w.page_size or 1))


def page_bytes(w: Workload, keys: int) -> int:
    """Bytes of page numbers read per visit to a tile of `keys` keys; K and V have the same."""
    return 4 * pages(w, keys)


def dropped(op: TileOp, scores: int, bits: int, each: int) -> TileOp:
    """The operation with the dropout of `scores` scores: random numbers are made in registers, no data is moved.

    Philox in seven rounds gives 128 bits (``csrc/flash_attn/src/philox.cuh`` of Dao-AILab/flash-attention). A round is
    two multiplications of 32 bits to 64, which take the FP32 lanes twice, two exclusive ors and the two additions of
    its key. FlashAttention-1 uses 16 of the bits per score (`apply_dropout_16bits` of ``fmha/softmax.h``, v1.0.9),
    FlashAttention-2 8 (``dropout.h``). The backward pass makes the same numbers again.

    Parameters
    ----------
    op : TileOp
        Counted by pipe or not.
    bits : int
        Random bits per score.
    each : int
        Further integer instructions per score: extraction, comparison, selection.
    """
    calls = scores * bits // PHILOX_BITS
    multiplied, integer = calls * PHILOX_ROUNDS * MULTIPLICATIONS, calls * PHILOX_ROUNDS * LOGIC + scores * each
    return op._replace(
        fp32=op.fp32 + PIPE_TURNS * multiplied,
        int32=op.int32 + integer,
        issues=op.issues + (multiplied + integer) // LANES * (op.issues > 0),
    )


class Operations:
    """Tile operations of a flash kernel: per warpgroup for arithmetic, per block for loads."""

    def __init__(self, w: Workload, tile: FlashTile) -> None:
        self.w, self.tile = w, tile
        self.rows = tile.rows // tile.warpgroups
        self.d, self.dv = tile.compiled(w)
        self.readers = tile.readers // tile.warpgroups

    def look_up(self) -> tuple[TileOp, ...]:
        """Loads that determine the next key tile, once for each; none if key tiles are consecutive."""
        return ()

    def page_numbers(self) -> tuple[TileOp, ...]:
        """Load of a tile's page numbers and the wait for them, by warps that copy by these."""
        if not self.tile.looks_up_pages:
            return ()
        return TileOp("load", PAGES, bytes=page_bytes(self.w, self.tile.keys)), TileOp("wait", PAGES)

    def looked_up(self) -> tuple[TileOp, ...]:
        """Wait for the loads of :meth:`look_up`."""
        return ()

    def scores(self, kind: Literal["mma", "mma_async"] = "mma") -> TileOp:
        """S = Q K^T."""
        tile, e = self.tile, self.w.element_bytes
        q_reads = 0 if tile.q_in_registers else self.rows * self.d * e * tile.across
        return self._product(kind, "S", self.d, self.readers * tile.read_columns(tile.keys) * self.d * e + q_reads)

    def output(self, kind: Literal["mma", "mma_async"] = "mma") -> TileOp:
        """O += P V."""
        tile, e = self.tile, self.w.element_bytes
        p_reads = self.rows * tile.keys * e * tile.across if tile.p_in_smem else 0
        return self._product(kind, "O", self.dv, self.readers * tile.keys * tile.read_columns(self.dv) * e + p_reads)

    def _product(self, kind: Literal["mma", "mma_async"], tensor: str, columns: int, smem_bytes: int) -> TileOp:
        """A product with its instructions if the kernel's are counted; for wgmma the step's count includes them."""
        op = TileOp(kind, tensor, flops=2 * self.rows * self.tile.keys * columns, smem_bytes=smem_bytes)
        return product(op) if self.tile.counts and self.tile.path == "mma_sync" else op

    def softmax(self, masked: bool, first: bool = False) -> TileOp:
        """Online softmax of one tile and the rescaling of O; `first` marks the block's first tile."""
        tile, scores = self.tile, self.rows * self.tile.keys
        polynomials = tile.polynomials(scores)
        each_tile = tile.rescale in ("always", "through_registers")
        rescales = each_tile or (first and tile.rescale == "first")
        rescaled, mask = self.rows * rescales, MASK_INSTRUCTIONS * scores * masked
        if tile.counts and masked:
            mask = tile.counts.hiding(scores, MASK_INSTRUCTIONS)
        lanes = 1 if each_tile else 4  # each of the four lanes of a row computes its factor
        exps = scores - polynomials + lanes * rescaled
        # With accumulators in tensor memory, S is read in fp32 and P written; so is O, if it is rescaled in registers.
        tmem = scores * (4 + self.w.element_bytes) if tile.path == "tcgen05" else 0
        tmem += 8 * rescaled * self.dv * (tile.rescale == "through_registers")
        if tile.counts:
            op = tile.counts.softmax(scores, exps, rescaled * self.dv, mask, polynomials)._replace(tmem_bytes=tmem)
        else:
            fp32 = rescaled * self.dv + POLYNOMIAL_INSTRUCTIONS * polynomials + mask
            op = TileOp("vector", "P", tmem_bytes=tmem, scores=scores, exps=exps, fp32=fp32)
        return dropped(op, scores, DROPOUT_BITS, DROPOUT_INSTRUCTIONS) if self.w.dropout else op


def fa2(ops: Operations, k: Tensor, v: Tensor, steps: Ints, masked: Ints, missing: Ints) -> Nest:
    """FA2: wait K, start V, S = Q K^T, wait V, start the next K, softmax, O += P V; ragged tiles are masked."""
    keys = ops.tile.keys
    always = ops.w.mask.right is not None or ops.w.mask.is_windowed

    def turn(short: int, first: bool, load_next: bool, masked: bool) -> Iterator[TileOp]:
        yield from (k.wait(), STEP, v.load(keys - short), ops.scores(), v.wait())
        if load_next:
            yield from (*ops.page_numbers(), k.load(keys))
        yield from (ops.softmax(masked, first), ops.output())

    masked = np.maximum(masked, always | (missing > 0))
    return [
        *by_size("load K", missing, lambda n: (*ops.page_numbers(), k.load(keys - n), WAIT_Q), steps > 0),
        *loop("step", steps, turn, shorter=missing, first=1, load_next=steps - 1, masked=masked),
    ]


def fill(ops: Operations, k: Tensor, v: Tensor, filled: Ints, missing: Ints) -> Nest:
    """Fill the pipeline with `filled` tiles, the shorter one first, then wait for Q."""

    def turn(short: int) -> Iterator[TileOp]:
        keys = ops.tile.keys - short
        yield from (*ops.look_up(), *ops.looked_up(), k.load(keys), v.load(keys))

    return [*loop("fill", filled, turn, shorter=missing), *once("wait Q", [WAIT_Q], filled > 0)]


def staged(ops: Operations, k: Tensor, v: Tensor, steps: Ints, masked: Ints, missing: Ints) -> Nest:
    """Software pipeline: `stages` tiles in flight; a buffer is refilled as soon as its GEMM has read it."""
    keys, stages = ops.tile.keys, ops.tile.stages

    def turn(refill: bool, masked: bool) -> Iterator[TileOp]:
        yield from (k.wait(), STEP, ops.scores())
        if refill:
            yield k.load(keys)
        yield from (ops.softmax(masked), v.wait(), ops.output())
        if refill:
            yield v.load(keys)

    return [
        *fill(ops, k, v, np.minimum(steps, stages), missing),
        *loop("step", steps, turn, refill=steps - stages, masked=masked),
        *(once("next tile", [NEXT_TILE], steps > 0) if ops.tile.persistent else ()),
    ]


def ring(ops: Operations, k: Tensor, v: Tensor, steps: Ints, masked: Ints, missing: Ints) -> Nest:
    """Software pipeline with one barrier per step: wait K and V, start both of the tile `stages - 1` ahead, compute."""
    keys, ahead = ops.tile.keys, ops.tile.stages - 1

    def turn(first: bool, load_next: bool, masked: bool) -> Iterator[TileOp]:
        yield from (k.wait(), v.wait(), STEP)
        if load_next:
            yield from (k.load(keys), v.load(keys))
        yield from (ops.scores(), ops.softmax(masked, first), ops.output())

    return [
        *fill(ops, k, v, np.minimum(steps, ahead), missing),
        *loop("step", steps, turn, first=1, load_next=steps - ahead, masked=masked),
    ]


def fa3(ops: Operations, k: Tensor, v: Tensor, steps: Ints, masked: Ints, missing: Ints) -> Nest:
    """FA3: issue S_j = Q K_j^T and O += P_{j-1} V_{j-1} back to back; softmax of j runs under the second."""
    keys, stages = ops.tile.keys, ops.tile.stages

    def first_turn(refill_k: bool, masked: bool) -> Iterator[TileOp]:
        yield from (k.wait(), STEP)
        if refill_k:
            yield from ops.look_up()
        yield ops.scores()
        if refill_k:
            yield from (*ops.looked_up(), k.load(keys))
        yield ops.softmax(masked)

    def turn(refill_k: bool, refill_v: bool, masked: bool) -> Iterator[TileOp]:
        yield from (k.wait(), STEP)
        if refill_k:
            yield from ops.look_up()
        yield from (ops.scores("mma_async"), v.wait(), ops.output("mma_async"), TileOp("mma_wait", "S"))
        if refill_k:
            yield from (*ops.looked_up(), k.load(keys))
        yield from (ops.softmax(masked), TileOp("mma_wait", "O"))
        if refill_v:
            yield v.load(keys)

    refills = steps - stages
    return [
        *fill(ops, k, v, np.minimum(steps, stages), missing),
        *loop("first step", np.minimum(steps, 1), first_turn, refill_k=refills, masked=masked),
        *loop("step", steps - 1, turn, refill_k=refills - 1, refill_v=refills, masked=masked - 1),
        *once("last P V", [*(NEXT_TILE,) * ops.tile.persistent, v.wait(), ops.output()], steps > 0),
    ]


LOOPS: dict[str, Callable[..., Nest]] = {"fa2": fa2, "fa3": fa3, "staged": staged, "ring": ring}
"""Functions of (operations, K, V, key tiles, masked ones, keys missing from the last), the last three per class of
blocks."""
