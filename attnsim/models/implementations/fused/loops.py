"""Loop orders of fused forward kernels on any tile: FlashAttention-2's, FlashAttention-3's, and two multi-stage ones.

FlashAttention-2 (Dao, arXiv 2307.08691): single-buffered copies that overlap the other GEMM. FlashAttention-3 (Shah et
al., arXiv 2407.08608): warpgroups with double-buffered copies, the GEMM of one step issued before the softmax of the
next. Both follow ``csrc/flash_attn/src/flash_fwd_kernel.h`` and ``hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp`` of
Dao-AILab/flash-attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.models.implementations.fused.dropout import dropped
from attnsim.models.implementations.fused.tile import FlashTile
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import product
from attnsim.models.schedule.nest import Nest
from attnsim.models.schedule.operation import Segment, TileOp

MASK_INSTRUCTIONS = by_hand(2, "FP32-lane instructions per score of a masked tile: compare and select")
DROPOUT_BITS, DROPOUT_INSTRUCTIONS = 8, 2
"""Of a score: random bits, and widening, comparison and masking of two scores at a time (`Dropout::apply_dropout`)."""
POLYNOMIAL_INSTRUCTIONS = by_hand(6, "FP32-lane instructions of an exponential that is computed as a polynomial")
"""Rounding down (2), three multiply-adds of degree 3, exponent (``flash_attn/cute/utils.py`` of
Dao-AILab/flash-attention, `ex2_emulation`)."""


PAGES = "page numbers"
"""Tensor of the numbers of the pages that a sequence has, 4 bytes each."""


def pages(w: Workload, keys: int) -> int:
    """Pages of so many keys: a cache without a page size has pages of one key (SGLang's `page_size = 1`)."""
    return -(-keys // (w.page_size or 1))


def page_bytes(w: Workload, keys: int) -> int:
    """Bytes of page numbers that a visit to a tile of so many keys reads: those of K, which are V's too."""
    return 4 * pages(w, keys)


def sizes(missing: Ints) -> list[int]:
    """By how much tiles are shorter than whole: every amount that there is, 0 for whole ones first."""
    return sorted(set(missing.tolist()))


class Operations:
    """The tile operations of a flash kernel, per warpgroup where they compute and per block where they load."""

    def __init__(self, w: Workload, tile: FlashTile, lse: bool) -> None:
        self.w, self.tile, self.lse = w, tile, lse
        self.rows = tile.rows // tile.warpgroups
        self.d, self.dv = tile.compiled(w)
        self.readers = tile.readers // tile.warpgroups

    def load(self, tensor: str, keys: int) -> TileOp:
        """K or V of so many keys."""
        width = self.w.head_dim if tensor == "K" else self.w.head_dim_v
        return TileOp("load", tensor, bytes=keys * width * self.w.element_bytes)

    def load_q(self, rows: int) -> TileOp:
        """Q of so many rows."""
        return TileOp("load", "Q", bytes=rows * self.w.head_dim * self.w.element_bytes)

    def look_up(self) -> tuple[TileOp, ...]:
        """What is read to learn which key tile is next, once for each: nothing where they follow one another."""
        return ()

    def page_numbers(self) -> tuple[TileOp, ...]:
        """Reading the page numbers of a tile and waiting for them, by warps that copy by them."""
        if not self.tile.looks_up_pages:
            return ()
        return TileOp("load", PAGES, bytes=page_bytes(self.w, self.tile.keys)), TileOp("wait", PAGES)

    def looked_up(self) -> tuple[TileOp, ...]:
        """Waiting for what :meth:`look_up` reads."""
        return ()

    def scores(self, kind: Literal["mma", "mma_async"] = "mma") -> TileOp:
        """S = Q K^T."""
        e, keys = self.w.element_bytes, self.tile.keys
        q_reads = 0 if self.tile.q_in_registers else self.rows * self.d * e * self.tile.across
        return self._product(
            TileOp(
                kind,
                "S",
                flops=2 * self.rows * keys * self.d,
                smem_bytes=self.readers * self.tile.read_columns(keys) * self.d * e + q_reads,
            )
        )

    def _product(self, op: TileOp) -> TileOp:
        """With its instructions where those of the kernel are counted; of wgmma the step's count has them."""
        return product(op) if self.tile.counts and self.tile.path == "mma_sync" else op

    def output(self, kind: Literal["mma", "mma_async"] = "mma") -> TileOp:
        """O += P V."""
        e, keys = self.w.element_bytes, self.tile.keys
        p_reads = self.rows * keys * e * self.tile.across if self.tile.p_in_smem else 0
        return self._product(
            TileOp(
                kind,
                "O",
                flops=2 * self.rows * keys * self.dv,
                smem_bytes=self.readers * keys * self.tile.read_columns(self.dv) * e + p_reads,
            )
        )

    def softmax(self, masked: bool, first: bool = False) -> TileOp:
        """Online softmax of one tile and the rescaling of O; `first`: it is the block's first tile."""
        tile, scores = self.tile, self.rows * self.tile.keys
        polynomials = tile.polynomials(scores)
        rescales = tile.rescale == "always" or (first and tile.rescale == "first")
        rescaled, mask = self.rows * rescales, MASK_INSTRUCTIONS * scores * masked
        if tile.counts and masked:
            mask = tile.counts.hiding(scores, MASK_INSTRUCTIONS)
        lanes = 1 if tile.rescale == "always" else 4  # each of the four lanes that share a row computes its factor
        exps = scores - polynomials + lanes * rescaled
        # Of accumulators in tensor memory: S is read in fp32 and P written; O is seldom rescaled.
        tmem = scores * (4 + self.w.element_bytes) if tile.path == "tcgen05" else 0
        if tile.counts:
            op = tile.counts.softmax(scores, exps, rescaled * self.dv, mask)._replace(tmem_bytes=tmem)
        else:
            fp32 = rescaled * self.dv + POLYNOMIAL_INSTRUCTIONS * polynomials + mask
            op = TileOp("vector", "P", tmem_bytes=tmem, scores=scores, exps=exps, fp32=fp32)
        return dropped(op, scores, DROPOUT_BITS, DROPOUT_INSTRUCTIONS) if self.w.dropout else op

    def stores(self, rows: int, partial: bool) -> tuple[TileOp, ...]:
        """O and LSE of the valid rows, in fp32 where a combine kernel merges them."""
        suffix = " partial" if partial else ""
        width = self.w.head_dim_v * (4 if partial else self.w.output_bytes)
        out = TileOp("store", f"O{suffix}", bytes=rows * width)
        return (out, TileOp("store", f"LSE{suffix}", bytes=rows * 4)) if self.lse or partial else (out,)


def _fa2_loop(ops: Operations, steps: Ints, masked: Ints, missing: Ints) -> Nest:
    """FA2: wait K, start V, S = Q K^T, wait V, start the next K, softmax, O += P V."""
    keys = ops.tile.keys
    always = ops.w.mask.right is not None or ops.w.mask.is_windowed

    begin, scores, wait_v = (TileOp("wait", "K"), TileOp("delay", "step")), ops.scores(), TileOp("wait", "V")
    next_keys, output = {True: (*ops.page_numbers(), ops.load("K", keys)), False: ()}, ops.output()
    softmax = {(mask, first): ops.softmax(mask, first) for mask in (False, True) for first in (False, True)}

    def step(name: str, v_keys: int, next_k: bool, mask: bool, first: bool = False) -> Segment:
        load = ops.load("V", v_keys)
        return Segment(name, (*begin, load, scores, wait_v, *next_keys[next_k], softmax[mask, first], output))

    one, many, none = steps == 1, steps > 1, np.zeros_like(steps)
    last_masked = many & (masked >= steps)
    middle_masked = np.where(many, np.clip(masked - 1, 0, steps - 2), none)
    nest: Nest = []
    for fewer in sizes(missing):
        here, is_ragged = missing == fewer, fewer > 0
        size, tag = keys - fewer, " (last keys)" * is_ragged
        nest += [
            (
                Segment(f"load K{tag}", (*ops.page_numbers(), ops.load("K", size), TileOp("wait", "Q"))),
                (here & (steps > 0)) * 1,
            ),
            (step(f"only step{tag}", size, False, always or is_ragged, True), (here & one) * 1),
            (step(f"first step{tag}", size, True, always or is_ragged, True), (here & many) * 1),
        ]
    nest += [
        (step("masked step", keys, True, True), middle_masked),
        (step("step", keys, True, False), np.where(many, steps - 2 - middle_masked, none)),
        (step("last step, masked", keys, False, True), last_masked * 1),
        (step("last step", keys, False, False), (many & ~last_masked) * 1),
    ]
    return nest


def _staged_loop(ops: Operations, steps: Ints, masked: Ints, missing: Ints) -> Nest:
    """Multi-stage: `stages` tiles in flight, a buffer is refilled as soon as its GEMM has read it."""
    keys, stages = ops.tile.keys, ops.tile.stages

    def step(name: str, load: bool, mask: bool) -> Segment:
        return Segment(
            name,
            (
                TileOp("wait", "K"),
                TileOp("delay", "step"),
                ops.scores(),
                *((ops.load("K", keys),) if load else ()),
                ops.softmax(mask),
                TileOp("wait", "V"),
                ops.output(),
                *((ops.load("V", keys),) if load else ()),
            ),
        )

    loading = np.maximum(steps - stages, 0)
    masked_loading = np.minimum(masked, loading)
    masked_rest = masked - masked_loading
    return [
        *_fill(ops, steps, missing),
        (step("masked step", True, True), masked_loading),
        (step("step", True, False), loading - masked_loading),
        (step("masked step, no load", False, True), masked_rest),
        (step("step, no load", False, False), steps - loading - masked_rest),
        *([(Segment("next tile", (TileOp("prefetch"),)), (steps > 0) * 1)] if ops.tile.persistent else []),
    ]


def _fill(ops: Operations, steps: Ints, missing: Ints) -> Nest:
    """Fill the pipeline: the first tile (the shorter one, where there is one), then the other stages."""
    keys, busy = ops.tile.keys, steps > 0

    def fill(name: str, size: int, wait: bool) -> Segment:
        wait_q = (TileOp("wait", "Q"),) if wait else ()
        return Segment(name, (*ops.look_up(), *ops.looked_up(), ops.load("K", size), ops.load("V", size), *wait_q))

    return [
        *((fill("fill (last keys)", keys - n, False), (busy & (missing == n)) * 1) for n in sizes(missing) if n),
        (fill("fill", keys, False), np.minimum(steps, ops.tile.stages) - (busy & (missing > 0))),
        (Segment("wait Q", (TileOp("wait", "Q"),)), busy * 1),
    ]


def _ring_loop(ops: Operations, steps: Ints, masked: Ints, missing: Ints) -> Nest:
    """Multi-stage with one barrier a step: wait K and V, start both of the tile `stages - 1` ahead, compute."""
    keys, ahead = ops.tile.keys, ops.tile.stages - 1

    def step(load: bool, mask: bool, first: bool) -> Segment:
        name = f"{'first ' if first else ''}step{', masked' if mask else ''}{'' if load else ', no load'}"
        return Segment(
            name,
            (
                TileOp("wait", "K"),
                TileOp("wait", "V"),
                TileOp("delay", "step"),
                *((ops.load("K", keys), ops.load("V", keys)) if load else ()),
                ops.scores(),
                ops.softmax(mask, first),
                ops.output(),
            ),
        )

    loading = np.maximum(steps - ahead, 0)
    nest = _fill(ops, np.minimum(steps, ahead), missing)
    done = np.zeros_like(steps)
    for first in (True, False):
        limit = np.minimum(steps, 1) if first else steps
        for load, mask in ((True, True), (True, False), (False, True), (False, False)):
            until = np.minimum(limit, loading if load else steps)
            until = np.minimum(until, masked) if mask else until
            nest.append((step(load, mask, first), np.maximum(until - done, 0)))
            done = np.maximum(done, until)
    return nest


def _fa3_loop(ops: Operations, steps: Ints, masked: Ints, missing: Ints) -> Nest:
    """FA3: issue S_j = Q K_j^T and O += P_{j-1} V_{j-1} back to back; softmax of j runs under the second."""
    keys, stages = ops.tile.keys, ops.tile.stages

    def first(name: str, load: bool, mask: bool) -> Segment:
        return Segment(
            name,
            (
                TileOp("wait", "K"),
                TileOp("delay", "step"),
                *(ops.look_up() if load else ()),
                ops.scores(),
                *((*ops.looked_up(), ops.load("K", keys)) if load else ()),
                ops.softmax(mask),
            ),
        )

    def step(name: str, load_k: bool, load_v: bool, mask: bool) -> Segment:
        return Segment(
            name,
            (
                TileOp("wait", "K"),
                TileOp("delay", "step"),
                *(ops.look_up() if load_k else ()),
                ops.scores("mma_async"),
                TileOp("wait", "V"),
                ops.output("mma_async"),
                TileOp("mma_wait", "S"),
                *((*ops.looked_up(), ops.load("K", keys)) if load_k else ()),
                ops.softmax(mask),
                TileOp("mma_wait", "O"),
                *((ops.load("V", keys),) if load_v else ()),
            ),
        )

    busy = steps > 0
    any_mask = masked > 0
    long = steps > stages  # the first step already refills K
    both = np.maximum(steps - 1 - stages, 0)
    only_v = np.where(steps - stages >= 1, 1, 0)
    after = np.maximum(steps - 1, 0)
    masked_after = np.maximum(masked - 1, 0)
    masked_both = np.minimum(masked_after, both)
    masked_v = np.minimum(masked_after - masked_both, only_v)
    masked_none = masked_after - masked_both - masked_v
    none = after - both - only_v
    return [
        *_fill(ops, steps, missing),
        (first("first step, masked", True, True), (long & any_mask) * 1),
        (first("first step", True, False), (long & ~any_mask) * 1),
        (first("first step, masked, no load", False, True), (busy & ~long & any_mask) * 1),
        (first("first step, no load", False, False), (busy & ~long & ~any_mask) * 1),
        (step("masked step", True, True, True), masked_both),
        (step("step", True, True, False), both - masked_both),
        (step("masked step, last V", False, True, True), masked_v),
        (step("step, last V", False, True, False), only_v - masked_v),
        (step("masked step, no load", False, False, True), masked_none),
        (step("step, no load", False, False, False), none - masked_none),
        (
            Segment(
                "last P V",
                (*((TileOp("prefetch"),) if ops.tile.persistent else ()), TileOp("wait", "V"), ops.output()),
            ),
            busy * 1,
        ),
    ]


LOOPS: dict[str, Callable[..., Nest]] = {
    "fa2": _fa2_loop,
    "fa3": _fa3_loop,
    "staged": _staged_loop,
    "ring": _ring_loop,
}
