"""Launch order of the blocks of a fused forward kernel.

For sequences of different lengths, libraries have additional orders:

- grid by sequence: sequences outermost, then heads, row tiles fastest, each as many as the longest has: blocks
  ``(steps, heads, batch)`` of TensorRT-LLM's FMHA v2 before Hopper, and the same numbers assigned by a counter on
  Hopper (``fused_multihead_attention_v2.cpp``; ``fmha_v2/src/fmha/warpspec/dma.h``, unbalanced).
- last rows first: of such a grid the last row tile of every sequence and head, then the one before (the same files,
  balanced: under a causal mask if K and V fit the L2).
- sections by sequence: sequence after sequence, masked ones in sections of 1 to 16 heads whose K and V fit 50 MiB,
  row tiles from last to first, heads fastest; ranges of keys outermost. The grid has an upper bound of the blocks;
  excess blocks exit (`SingleTileVarlenScheduler` in ``flash_attn/cute/tile_scheduler.py``).
- most queries first: sequences by their queries, then heads, row tiles fastest, masked ones from the last
  (`thd_decode_unit` in ``python/cudnn/frost/tile_dsl/thd.py`` of NVIDIA/cudnn-frontend).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.tile import FlashTile, Order
from attnsim.models.question.lengths import Length
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Launch

ABSENT_CLKS = by_hand(800, "clocks that a block takes to find that its sequence has no tile for it, and to leave")
"""290 to 330 ns of a slot on an SM: derived from calls of one prefill chunk and many decodes on an RTX 4090, of which
they are up to a quarter."""


SECTION_BYTES = 50 << 20
"""K and V of a section, in bytes."""

Parts = Sequence[tuple[Length, Ints]]
"""Sequences with the classes of the blocks of a head, ``[ranges of keys, row tiles]``."""

MOST_JOINED = by_hand(1 << 20, "blocks that are listed one by one; beyond, the launches of sequences stay apart")


def launch_order(
    w: Workload, gpu: Gpu, tile: FlashTile, blocks: Sequence[Ints], heads: int, absent: int | None = None
) -> tuple[Launch, ...]:
    """Block classes in launch order.

    - Ascending: row tile fastest, then split, then head (FA2's grid). If sequences differ in length, each has the row
      tiles of the longest, and heads are outermost if keys are not split (`run_flash_fwd` and `run_flash_splitkv_fwd`
      in ``flash_fwd_launch_template.h``).
    - Longest first: within a section of heads whose K and V fit 32 MiB of L2, heads fastest, row tiles from last to
      first (FA3's dynamic scheduler).

    Parameters
    ----------
    blocks : sequence of ndarray, shape [splits, row tiles]
        Classes of the blocks of a head, for each of `w.parts`.
    heads : int
        Heads of a sequence that have separate blocks.
    absent : int, optional
        Class of a block whose sequence has no row tile for it.
    """
    parts = list(zip(w.parts, blocks, strict=True))
    if tile.order == "longest_first_by_sequence":
        return joined(
            [
                _by_sequence(w, tile, one, classes, heads)
                for one, classes in longest_sequences(w, tile.rows, tile.keys, parts)
            ]
        )
    if tile.order == "planned":
        return _planned(tile, parts, heads)
    if (own := VARLEN.get(tile.order)) is not None:
        return joined(own(w, tile, parts, heads, absent))
    split = any(len(classes) > 1 for classes in blocks)
    if tile.order == "ascending" or split:
        if split or tile.persistent:
            return joined([Launch(classes.reshape(-1), heads * one.times) for one, classes in parts])
        return grid_of_heads(w, blocks, heads, absent)
    return _longest_first(w, tile, parts, heads)


def _longest_first(w: Workload, tile: FlashTile, parts: Parts, heads: int) -> tuple[Launch, ...]:
    if len(parts) > 1:
        rows = [np.tile(classes.reshape(-1)[::-1], one.times) for one, classes in parts]
        return (Launch(np.concatenate(rows), heads),)
    (one, classes), *_ = parts
    section, heads = section_heads(w, tile, heads * one.times), heads * one.times
    descending = classes.reshape(-1)[::-1]
    whole = Launch(descending, heads // section, section)
    rest = heads % section
    return (whole, Launch(descending, 1, rest)) if rest else (whole,)


def grid_of_heads(w: Workload, blocks: Sequence[Ints], heads: int, absent: int | None) -> tuple[Launch, ...]:
    """Grid with heads outermost, and for each sequence as many blocks of a head as the longest needs."""
    if len(blocks) == 1:
        return (Launch(blocks[0].reshape(-1), heads * w.batch),)
    sizes, times = np.array([classes.size for classes in blocks]), [one.times for one in w.parts]
    grid = np.full((len(blocks), sizes.max()), 0 if absent is None else absent, dtype=np.int64)
    grid[np.arange(grid.shape[1]) < sizes[:, None]] = np.concatenate(blocks, axis=None)
    if len(set(times)) == 1:
        return (Launch(grid, heads, times[0]),)
    return (Launch(np.repeat(grid, times, axis=0).reshape(-1), heads),)


def longest_sequences(w: Workload, rows: int, keys: int, parts: Parts) -> Parts:
    """Sequences as FA3's scheduler sorts them: most key tiles per work item first; under a causal mask, most keys left.

    With a window their order is kept (`varlen_sort_batches` in ``hopper/flash_api.cpp``,
    `prepare_varlen_num_blocks_kernel` in ``hopper/flash_prepare_scheduler.cu``).
    """
    if w.mask.is_windowed:
        return parts

    def first(part: tuple[Length, Ints]) -> int:
        one, classes = part
        key_tiles = math.ceil(math.ceil(one.keys / keys) / len(classes))
        return classes.shape[1] * rows - key_tiles * keys if w.mask.is_causal else -key_tiles

    return sorted(parts, key=first)


def joined(launches: list[Launch]) -> tuple[Launch, ...]:
    """Merge the launches of many sequences into one: simulating many small launches takes longer."""
    if len(launches) == 1 or sum(len(one) * one.times for one in launches) > MOST_JOINED:
        return tuple(launches)
    return (Launch(np.concatenate([one.classes for one in launches for _ in range(one.times)])),)


def _by_sequence(w: Workload, tile: FlashTile, one: Length, classes: Ints, heads: int) -> Launch:
    """FA3's variable-length scheduler: sequence by sequence, within one by sections of 1 to 16 heads.

    A section is the largest power of two of heads whose K and V fit 8 MiB (``flash_prepare_scheduler.cu``). Within it,
    row tiles run from last to first, heads and splits fastest.
    """
    descending = classes.T[::-1]  # [row tiles, splits]
    one_tile = tile.keys * (w.head_dim + w.head_dim_v) * w.element_bytes
    fitting = (8 << 20) // one_tile // max(1, -(-one.keys // tile.keys))
    section = 1 << min(4, max(0, fitting.bit_length() - 1))
    section = min(section * (1 if tile.pack_gqa else w.group), heads)
    return Launch(in_sections(descending, heads, section), one.times)


def _planned(tile: FlashTile, parts: Parts, heads: int) -> tuple[Launch, ...]:
    """FlashInfer's plans, heads outermost: `PrefillPlan` keeps the given order of sequences, row tiles and chunks.

    `PrefillSM90Plan`, whose blocks are persistent, takes most keys first, and of a sequence the last row tile first.
    """
    if tile.persistent:
        parts = sorted(parts, key=lambda part: -part[0].keys)
        items = [np.tile(classes.reshape(-1)[::-1], one.times) for one, classes in parts]
    else:
        items = [np.tile(classes.T.reshape(-1), one.times) for one, classes in parts]
    if len(parts) == 1:
        (one, classes), *_ = parts
        return (Launch((classes[:, ::-1] if tile.persistent else classes).T.reshape(-1), heads * one.times),)
    return (Launch(np.concatenate(items), heads),)


def section_heads(w: Workload, tile: FlashTile, heads: int) -> int:
    """Heads per section of longest-first order: the largest power of two whose K and V fit 32 MiB of L2."""
    one_head = w.seq_kv * sum(tile.widths or (w.head_dim, w.head_dim_v)) * w.element_bytes
    section = 1 if one_head > 32 << 20 else 1 << int(np.log2((32 << 20) / one_head))
    return min(section * (1 if tile.pack_gqa else w.group), heads)


def in_sections(tiles: Ints, heads: int, section: int) -> Ints:
    """Blocks of `heads` heads by sections; within one the given row tiles, ``[row tiles, ranges]``, then heads."""
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
    """Classes of a grid sized for the longest, ``[sequences, ranges x row tiles]``, with each sequence once."""
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
    """Blocks per head without a row tile in the grid of sections by sequence."""
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
"""Launch function of each such order: (workload, tile, parts, heads, class of a block without rows) to launches."""
