"""Attention over a latent cache: the absorbed form of multi-head latent attention as one kernel.

With W_UK absorbed into the queries and W_UV into the output (DeepSeek-V2, arXiv 2405.04434, section 2.1.2) every query
head attends the same keys, the cached latents with their rotary part, and the same values, the latents alone. So the
heads of a token fill the rows of a tile, and a tile of the cache that has been copied once serves as K and as V.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from attnsim.arrays import Bools, Ints
from attnsim.models.implementations.fused.forward import block_begins, pages_of
from attnsim.models.implementations.fused.loops import MASK_INSTRUCTIONS, PAGES, page_bytes, sizes
from attnsim.models.implementations.latent.tiles import LatentTile
from attnsim.models.implementations.latent.visits import FINAL, NOTHING, PARTIAL, Visits
from attnsim.models.question.workload import Latent, Workload
from attnsim.models.schedule.nest import Nest, loop_nest
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.schedule import Kernel
from attnsim.models.schedule.uses import TensorUse


def latent_attention(w: Workload, tile: LatentTile, visits: Visits, latent: Latent) -> Kernel:
    """The kernel that attends the cache.

    Parameters
    ----------
    w : Workload
        Of the absorbed form (:func:`attnsim.models.implementations.latent.visits.absorbed`).
    tile : LatentTile
    visits : Visits
    latent : Latent
    """
    ops = _Operations(w, tile, visits, latent)
    nest = _with_ends(ops, visits, _LOOPS[tile.loop](ops, visits))
    if w.page_size:
        nest.append((Segment("page numbers", (TileOp("load", PAGES, bytes=page_bytes(w, tile.keys)),)), visits.steps))
    segments, repeats = loop_nest(nest)
    e, rows, partial = w.element_bytes, w.queries * w.heads_q, visits.partial_pieces
    buffers = tile.buffers(latent, e)
    each = w.batch * w.heads_q
    uses = [
        use_of("Q latent", rows * latent.rank * e, each),
        use_of("Q rope", rows * latent.rope * e, each),
        TensorUse("lengths", 8 * w.batch, 1),
        use_of("Latent", w.keys * latent.width * e, w.batch, visits.sharers),
        use_of("O latent", rows * latent.rank * w.output_bytes, each, written=True),
        use_of("LSE", rows * 4, each, written=True),
        *([TensorUse(PAGES, 4 * pages_of(w), 1, visits.sharers)] if w.page_size else []),
    ]
    if partial:
        uses += [
            use_of("O partial", visits.partial_rows * latent.rank * 4, partial, written=True),
            use_of("LSE partial", visits.partial_rows * 4, partial, written=True),
        ]
    stored = {op.tensor for segment in segments for op in segment.ops}
    return Kernel(
        name="latent_attention",
        threads=tile.threads,
        registers_per_thread=tile.registers,
        segments=segments,
        repeats=repeats,
        launches=visits.launches,
        uses=tuple(use for use in uses if use.tensor in stored),
        warpgroups=tile.warpgroups,
        path=tile.path,
        max_blocks_per_sm=tile.max_blocks_per_sm,
        persistent=tile.persistent,
        buffers=buffers,
        dtype=w.dtype,
        step="key tile",
        role="attention",
    )


def use_of(tensor: str, size: int, pieces: int, sharers: float = 1.0, *, written: bool = False) -> TensorUse:
    """A tensor of so many bytes in pieces, one a sequence or one a head of it, that may differ in size."""
    return TensorUse(tensor, size // pieces, pieces, sharers, written=written, all_bytes=size)


class _Operations:
    """The tile operations of the kernel: loads of a block, and each warpgroup's equal share of the arithmetic."""

    def __init__(self, w: Workload, tile: LatentTile, visits: Visits, latent: Latent) -> None:
        self.w, self.tile, self.visits, self.latent = w, tile, visits, latent
        # A warp of an mma.sync kernel reads the operands of its own rows and columns; wgmma and tcgen05 read each once.
        down = max(1, min(tile.warps, tile.rows // 16)) if tile.path == "mma_sync" else 1
        self.readers = (down, tile.warps // down) if tile.path == "mma_sync" else (1, 1)

    def load(self, keys: int) -> tuple[TileOp, ...]:
        """A tile of the cache, or the block's share of it, and its V again where that is a copy of its own."""
        e = self.w.element_bytes
        whole = TileOp("load", "Latent", bytes=keys * self.latent.width * e // self.tile.pair)
        return (whole, *self.load_v(keys)) if self.tile.reload and not self.tile.v_over_k else (whole,)

    def load_v(self, keys: int) -> tuple[TileOp]:
        """The columns of a tile that serve as V, copied a second time."""
        return (TileOp("load", "Latent", bytes=keys * self.latent.rank * self.w.element_bytes),)

    def load_q(self, rows: int) -> tuple[TileOp, TileOp]:
        e = self.w.element_bytes
        return (
            TileOp("load", "Q latent", bytes=rows * self.latent.rank * e),
            TileOp("load", "Q rope", bytes=rows * self.latent.rope * e),
        )

    def product(self, name: Literal["S", "O"], kind: Literal["mma", "mma_async"] = "mma") -> TileOp:
        """S = Q K^T, or O += P V."""
        tile, e = self.tile, self.w.element_bytes
        down, across = self.readers
        width = self.latent.width if name == "S" else self.latent.rank
        left = tile.rows * (width if name == "S" else tile.keys)  # Q or P
        return TileOp(
            kind,
            name,
            flops=2 * tile.rows * tile.keys * width // tile.warpgroups,
            smem_bytes=(down * tile.keys * width // tile.pair + across * left) * e // tile.warpgroups,
        )

    def softmax(self, masked: bool) -> TileOp:
        """Online softmax of one tile and the rescaling of O."""
        rows, groups = self.tile.rows, self.tile.warpgroups
        scores = rows * self.tile.keys // groups
        fp32 = rows * self.latent.rank // groups + (MASK_INSTRUCTIONS * scores if masked else 0)
        tmem = scores * (4 + self.w.element_bytes) if self.tile.path == "tcgen05" else 0  # S read in fp32, P written
        return TileOp("vector", "P", tmem_bytes=tmem, scores=scores, exps=scores + rows // groups, fp32=fp32)

    def stores(self, rows: int, partial: bool) -> tuple[TileOp, TileOp]:
        """O in the latent space and LSE, in fp32 where partial."""
        if partial:
            return (
                TileOp("store", "O partial", bytes=rows * self.latent.rank * 4),
                TileOp("store", "LSE partial", bytes=rows * 4),
            )
        return (
            TileOp("store", "O latent", bytes=rows * self.latent.rank * self.w.output_bytes),
            TileOp("store", "LSE", bytes=rows * 4),
        )


def _with_ends(ops: _Operations, visits: Visits, body: Nest) -> Nest:
    """Put prologue and epilogue, for full and for ragged row tiles, around the loop over key tiles."""
    nest: Nest = []
    short = sizes(visits.missing_rows)
    begins = block_begins(*(ops.tile.chunk or width for width in (ops.latent.width, ops.latent.rank)))

    def here(missing: int) -> tuple[str, int, Bools]:
        return " (last rows)" * (missing > 0), ops.tile.rows - missing, visits.missing_rows == missing

    for tag, rows, of in map(here, short):
        nest.append((Segment(f"prologue{tag}", (begins, *ops.load_q(rows))), of & (visits.steps > 0)))
    nest += body
    for written, told in ((FINAL, ""), (PARTIAL, ", partial")):
        for tag, rows, of in map(here, short):
            stores = (TileOp("delay", "block"), *ops.stores(rows, bool(told)))
            nest.append((Segment(f"epilogue{told}{tag}", stores), of & (visits.written == written)))
    empty = (TileOp("load", "lengths", bytes=8), TileOp("wait", "lengths"), TileOp("delay", "block"))
    nest.append((Segment("exit", empty), (visits.written == NOTHING) * 1))
    return nest


def _short(visits: Visits) -> list[tuple[int, Ints]]:
    """By how many keys first tiles are shorter, each amount with the blocks that visit such a tile."""
    return [(n, (visits.missing_keys == n) & (visits.steps > 0)) for n in sizes(visits.missing_keys) if n]


def _fill(ops: _Operations, visits: Visits, filled: Ints) -> Nest:
    """The first tiles in flight, the shorter one first where there is one, and the wait for Q."""
    waits = (TileOp("wait", "Q latent"), TileOp("wait", "Q rope"))
    return [
        *((Segment("fill (last keys)", ops.load(ops.tile.keys - n)), of) for n, of in _short(visits)),
        (Segment("fill", ops.load(ops.tile.keys)), filled - (visits.missing_keys > 0) * (visits.steps > 0)),
        (Segment("wait Q", waits), (visits.steps > 0) * 1),
    ]


def _serial_loop(ops: _Operations, visits: Visits) -> Nest:
    """S, softmax, O of one tile after the other; a buffer is refilled when both products have read it."""
    tile = ops.tile

    def step(name: str, load: bool, mask: bool, v_keys: int) -> Segment:
        return Segment(
            name,
            (
                TileOp("wait", "Latent"),
                TileOp("delay", "step"),
                ops.product("S"),
                *(ops.load_v(v_keys) if tile.v_over_k else ()),
                ops.softmax(mask),
                *((TileOp("wait", "Latent"),) if tile.reload else ()),
                ops.product("O"),
                *(ops.load(tile.keys) if load else ()),
            ),
        )

    filled = np.minimum(visits.steps, tile.stages)
    loading = visits.steps - filled
    # Where V follows K into its place, the first step's V is as short as its K.
    apart = _short(visits) if tile.v_over_k else []
    short = sum((of * 1 for _, of in apart), np.zeros_like(visits.steps))
    short_loading = np.minimum(short, loading)
    masked_loading = np.clip(np.minimum(visits.masked, loading) - short_loading, 0, None)
    short_rest = short - short_loading
    masked_rest = np.clip(visits.masked - short - masked_loading, 0, filled - short_rest)
    return [
        *_fill(ops, visits, filled),
        *((step("first step (last keys)", True, True, tile.keys - n), short_loading * of) for n, of in apart),
        *((step("only step (last keys)", False, True, tile.keys - n), short_rest * of) for n, of in apart),
        (step("masked step", True, True, tile.keys), masked_loading),
        (step("step", True, False, tile.keys), loading - short_loading - masked_loading),
        (step("masked step, no load", False, True, tile.keys), masked_rest),
        (step("step, no load", False, False, tile.keys), filled - short_rest - masked_rest),
    ]


def _overlapped_loop(ops: _Operations, visits: Visits) -> Nest:
    """S of a tile and P V of the one before are issued together; softmax runs under the second."""

    def first(mask: bool) -> Segment:
        wait = (TileOp("wait", "Latent"), TileOp("delay", "step"))
        return Segment(f"first step{', masked' if mask else ''}", (*wait, ops.product("S"), ops.softmax(mask)))

    def step(name: str, load: bool, mask: bool) -> Segment:
        return Segment(
            name,
            (
                TileOp("wait", "Latent"),
                TileOp("delay", "step"),
                ops.product("S", "mma_async"),
                ops.product("O", "mma_async"),
                TileOp("mma_wait", "S"),
                ops.softmax(mask),
                TileOp("mma_wait", "O"),
                *(ops.load(ops.tile.keys) if load else ()),
            ),
        )

    # The buffer of a tile is free after its P V, a step later than its S.
    filled = np.minimum(visits.steps, ops.tile.stages)
    busy = (visits.steps > 0) * 1
    any_mask = (visits.masked > 0) * busy
    loading = visits.steps - filled
    after = visits.steps - busy
    masked_after = np.maximum(visits.masked - any_mask, 0)
    masked_loading = np.minimum(masked_after, loading)
    masked_rest = masked_after - masked_loading
    return [
        *_fill(ops, visits, filled),
        (first(True), any_mask),
        (first(False), busy - any_mask),
        (step("masked step", True, True), masked_loading),
        (step("step", True, False), loading - masked_loading),
        (step("masked step, no load", False, True), masked_rest),
        (step("step, no load", False, False), after - loading - masked_rest),
        (Segment("last P V", (ops.product("O"),)), busy),
    ]


_LOOPS: dict[str, Callable[[_Operations, Visits], Nest]] = {"serial": _serial_loop, "overlapped": _overlapped_loop}
