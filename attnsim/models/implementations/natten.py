"""NATTEN's fused neighbourhood attention: tiles of tokens in as many dimensions as the layout has.

SHI-Labs/NATTEN, ``csrc/include/natten/cuda/{hopper_fna,blackwell_fna,fna}`` and ``src/natten/backends/configs``.
Tokens are permuted beforehand so that a tile is contiguous (by a separate kernel, not included). A block has one
tile of queries and walks the box of key tiles that contains their windows; tiles inside all windows need no mask.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.flash_attention import fa2_forward, hopper_tile
from attnsim.models.implementations.flash_attention_4 import choose_tile as blackwell_tile
from attnsim.models.implementations.fused.forward import (
    LOOPS,
    Operations,
    flash_peak_bytes,
    operands,
    results,
    tiled_kernel,
    with_ends,
)
from attnsim.models.implementations.fused.tile import FlashTile
from attnsim.models.implementations.implementation import Builder, TileRequest, record
from attnsim.models.mask.documents import Neighborhood
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Seen, uses_of
from attnsim.models.schedule.operation import TileOp
from attnsim.models.schedule.row_tiles import classes
from attnsim.models.schedule.schedule import Kernel, Launch, Schedule

SHAPES: dict[int, dict[int, tuple[int, ...]]] = {
    64: {1: (64,), 2: (8, 8), 3: (2, 8, 4)},
    128: {1: (128,), 2: (16, 8), 3: (2, 8, 8)},
    256: {1: (256,), 2: (16, 16), 3: (4, 8, 8)},
}
"""Tokens of a tile along each dimension, by its size and the dimensions of the layout."""


MASK_INSTRUCTIONS = by_hand(
    6, "FP32-lane instructions a score and dimension: remainder (2), two comparisons, and, select"
)


@dataclass(frozen=True, slots=True)
class BoxTile:
    """A tile of queries x keys, each a box of tokens."""

    flash: FlashTile
    queries: tuple[int, ...]
    keys: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.flash}, boxes {'x'.join(map(str, self.queries))} x {'x'.join(map(str, self.keys))}"


class _Operations(Operations):
    """Operations whose masked tiles compute the coordinates of each key along every dimension."""

    def softmax(self, masked: bool, first: bool = False) -> TileOp:
        """Online softmax; if masked, with the window's comparisons."""
        plain = super().softmax(masked, first)
        each = masked * MASK_INSTRUCTIONS * len(pattern(self.w).layout)
        return plain._replace(fp32=plain.fp32 + each * self.rows * self.tile.keys)


def pattern(w: Workload) -> Neighborhood:
    """The neighbourhood of a question.

    Raises
    ------
    InputError
        If its mask is not a neighbourhood, or the queries are not the keys.
    """
    parts = w.mask.parts
    if len(parts) != 1 or not isinstance(parts[0], Neighborhood) or not w.mask.band.left is w.mask.band.right is None:
        raise InputError(
            f"natten plays one neighbourhood, the mask is {w.mask}; write 'neighborhood 64x64 window 13x13'"
        )
    if w.seq_q != w.seq_kv:
        raise InputError(f"natten has as many queries as keys, not {w.seq_q} x {w.seq_kv}; leave seq_kv out")
    parts[0].check(w.seq_kv)
    return parts[0]


def boxes(part: Neighborhood, tile: BoxTile) -> tuple[list[Ints], list[Ints]]:
    """Key tiles along each dimension that query tiles visit, and those of them that all queries see fully."""
    visits, whole = [], []
    for d, (rows, keys) in enumerate(zip(tile.queries, tile.keys, strict=True)):
        first = np.arange(0, part.layout[d], rows, dtype=np.int64)
        last = np.minimum(first + rows, part.layout[d]) - 1
        low, end = (part.first_seen(d, place) for place in (first, last))
        high = end + part.window[d]
        visits.append(-(-high // keys) - low // keys)
        inner_low, inner_high = end, low + part.window[d]
        whole.append(np.maximum(0, inner_high // keys - -(-inner_low // keys)))
    return visits, whole


def _outer(factors: list[Ints]) -> Ints:
    """Products over dimensions, the last fastest, ``[tiles]``."""
    out = np.ones(1, dtype=np.int64)
    for factor in factors:
        out = np.multiply.outer(out, factor).reshape(-1)
    return out


def _box(tokens: int, dimensions: int) -> tuple[int, ...]:
    return SHAPES[tokens][dimensions]


def _building(name: str, rows: int, keys: int) -> Builder:
    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        part = pattern(w)
        n = len(part.layout)
        flash = _flash(w, gpu, rows, keys)
        tile = BoxTile(flash, _box(flash.rows, n), _box(flash.keys, n))
        kernel = _kernel(w, part, tile)
        useful = w.matrix_flops(w.batch * part.tokens * part.keys_seen)
        return Schedule("neighborhood", name, (kernel,), tile, flash_peak_bytes(w), useful_flops=useful)

    return build


def _flash(w: Workload, gpu: Gpu, rows: int, keys: int) -> FlashTile:
    if gpu.features.tcgen05:
        return replace(blackwell_tile(w, gpu), rows=rows, keys=keys, persistent=False, order="ascending")
    if gpu.features.wgmma:
        return replace(hopper_tile(rows, keys), persistent=False, order="ascending")
    return replace(fa2_forward(w, gpu), rows=rows, keys=keys, warps=4)


def _kernel(w: Workload, part: Neighborhood, tile: BoxTile) -> Kernel:
    flash = tile.flash
    visits, whole = map(_outer, boxes(part, tile))
    none = np.zeros_like(visits)
    # A kernel that needs a mask anywhere masks every tile; for whole boxes, the kernel without a mask runs.
    (steps, masked), inverse = classes(visits, visits if (visits != whole).any() else none)
    ops, missing = _Operations(w, flash), np.zeros_like(steps)
    mean = max(1.0, float(visits.sum() * flash.keys / w.seq_kv))
    axes = {
        "b": Axis(w.batch),
        "h": Axis(w.heads_kv),
        "g": Axis(w.group),
        "i": Axis(len(none) * flash.rows, flash.rows),
        "j": Axis(w.seq_kv, flash.keys),
    }
    (q, k, v), stored = operands(w, seen=Seen("i", w.seq_kv, mean)), results(w)
    body = LOOPS[flash.loop](ops, k, v, steps, masked, missing)
    nest = with_ends(ops, q, body, steps, missing, [(stored, steps >= 0)])
    uses = uses_of((q, k, v, *stored), axes, "b h g i")
    return tiled_kernel(w, flash, "fna", nest, (Launch(inverse, w.batch * w.heads_q),), uses)


RECORDS = (
    record("natten.hopper-fna", _building("natten.hopper-fna", 128, 128)),
    record("natten.blackwell-fna", _building("natten.blackwell-fna", 256, 128)),
    record("natten.cutlass-fna", _building("natten.cutlass-fna", 64, 128)),
)
