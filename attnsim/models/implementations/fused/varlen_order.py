"""Orders of blocks that libraries have for sequences of different lengths alone.

- grid by sequence: sequences outermost, then heads, row tiles fastest, as many of each as the longest has: blocks
  ``(steps, heads, batch)`` of TensorRT-LLM's FMHA v2 before Hopper, and the same numbers handed out by a counter on it
  (``fused_multihead_attention_v2.cpp``; ``fmha_v2/src/fmha/warpspec/dma.h``, unbalanced).
- last rows first: of such a grid the last row tile of every sequence and head, then the one before (the same,
  balanced, which it is under a causal mask where K and V fit the L2).
- sections by sequence: sequence after sequence, and of masked ones sections of 1 to 16 heads whose K and V fit 50 MiB,
  row tiles from last to first, heads fastest; ranges of keys outermost. The grid has as many blocks as there might be,
  and those too many leave (`SingleTileVarlenScheduler` in ``flash_attn/cute/tile_scheduler.py``).
- most queries first: sequences by their queries, then heads, row tiles fastest and of masked ones from the last
  (`thd_decode_unit` in ``python/cudnn/frost/tile_dsl/thd.py`` of NVIDIA/cudnn-frontend).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from attnsim.arrays import Ints
from attnsim.models.implementations.fused.tile import FlashTile, Order
from attnsim.models.question.lengths import Length
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Launch

SECTION_BYTES = 50 << 20
"""K and V of a section, in bytes."""

Parts = Sequence[tuple[Length, Ints]]
"""Sequences with the classes of the blocks of a head, ``[ranges of keys, row tiles]``."""


def in_sections(tiles: Ints, heads: int, section: int) -> Ints:
    """Blocks of `heads` heads by sections, in one the row tiles as given, ``[row tiles, ranges]``, then heads."""
    count, ranges = tiles.shape
    sections = [(heads // section, section), (1, heads % section)]
    orders = [
        np.broadcast_to(tiles[None, :, None], (times, count, size, ranges)).reshape(-1)
        for times, size in sections
        if size
    ]
    return np.concatenate(orders) if len(orders) > 1 else orders[0]


def _masked(w: Workload) -> bool:
    return w.mask.is_causal or w.mask.is_windowed


def _filled(parts: Parts, absent: int | None) -> Ints:
    """Classes of a grid of the longest, ``[sequences, ranges x row tiles]``, each sequence once."""
    longest = max(classes.shape[1] for _, classes in parts)
    rows = [
        np.pad(classes, ((0, 0), (0, longest - classes.shape[1])), constant_values=absent or 0) for _, classes in parts
    ]
    return np.stack([of.reshape(-1) for of in rows])


def _grid_by_sequence(w: Workload, tile: FlashTile, parts: Parts, heads: int, absent: int | None) -> list[Launch]:
    return [Launch(of, heads * one.times) for (one, _), of in zip(parts, _filled(parts, absent), strict=True)]


def _last_rows_first(w: Workload, tile: FlashTile, parts: Parts, heads: int, absent: int | None) -> list[Launch]:
    grid = np.repeat(_filled(parts, absent), [one.times for one, _ in parts], axis=0)
    return [Launch(np.tile(row, heads)) for row in grid.T[::-1]]


def _sections_by_sequence(w: Workload, tile: FlashTile, parts: Parts, heads: int, absent: int | None) -> list[Launch]:
    pack = w.group if tile.pack_gqa else 1
    most = SECTION_BYTES // ((w.head_dim + w.head_dim_v) * w.element_bytes * tile.keys)
    launches = []
    for one_range in range(len(parts[0][1])):
        for one, classes in parts:
            tiles = classes[one_range : one_range + 1].T
            key_tiles = len(tiles) * tile.rows // pack // tile.keys
            section = next((n for n in (16, 8, 4, 2) if n * key_tiles <= most), 1)
            order = in_sections(tiles[::-1], heads, min(section, heads)) if _masked(w) else np.tile(tiles[:, 0], heads)
            launches.append(Launch(order, one.times))
        if too_many := _excess(w, tile, parts):
            launches.append(Launch(np.array([absent], dtype=np.int64), heads * too_many))
    return launches


def _excess(w: Workload, tile: FlashTile, parts: Parts) -> int:
    """Blocks of a head in the grid of sections by sequence for which there is no row tile."""
    rows = w.queries * (w.group if tile.pack_gqa else 1)
    there: int = sum(one.times * of.shape[1] for one, of in parts)
    return (rows + w.batch * (tile.rows - 1)) // tile.rows - there


def _most_queries_first(w: Workload, tile: FlashTile, parts: Parts, heads: int, absent: int | None) -> list[Launch]:
    step = -1 if _masked(w) else 1
    return [
        Launch(classes[:, ::step].reshape(-1), heads * one.times)
        for one, classes in sorted(parts, key=lambda part: -part[0].queries)
    ]


VARLEN: Mapping[Order, Callable[[Workload, FlashTile, Parts, int, int | None], list[Launch]]] = {
    "grid_by_sequence": _grid_by_sequence,
    "last_rows_first": _last_rows_first,
    "sections_by_sequence": _sections_by_sequence,
    "most_queries_first": _most_queries_first,
}
"""How the blocks of each such order are launched: of (workload, tile, parts, heads, class of a block without rows)."""
