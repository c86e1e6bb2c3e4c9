"""The order in which the blocks of a fused forward kernel are launched."""

from __future__ import annotations

import numpy as np

from attnsim.models.arrays import Ints
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.tile import FlashTile
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Launch


def launch_order(w: Workload, gpu: Gpu, tile: FlashTile, inverse: Ints, heads: int, splits: int) -> tuple[Launch, ...]:
    """Block classes in launch order.

    Ascending: row tile fastest, then split, then head (FA2's grid). Longest first: within a section of heads whose
    K and V fit 32 MiB of L2, heads fastest, row tiles from last to first (FA3's dynamic scheduler).
    """
    if tile.order == "longest_first_by_sequence":
        return _by_sequence(w, tile, inverse, heads // w.batch, splits)
    if tile.order == "ascending" or splits > 1:
        return (Launch(inverse, heads),)
    section = section_heads(w, tile, heads)
    descending = inverse[::-1]
    whole = Launch(np.repeat(descending, section), heads // section)
    rest = heads % section
    return (whole, Launch(np.repeat(descending, rest), 1)) if rest else (whole,)


def _by_sequence(w: Workload, tile: FlashTile, inverse: Ints, heads: int, splits: int) -> tuple[Launch, ...]:
    """FA3's scheduler of variable lengths: sequence by sequence, within one by sections of 1 to 16 heads.

    The largest power of two of heads whose K and V fit 8 MiB (``flash_prepare_scheduler.cu``); in a section row tiles
    from last to first, heads and splits fastest.
    """
    descending = inverse.reshape(splits, -1).T[::-1]  # [row tiles, splits]
    one_tile = tile.keys * (w.head_dim + w.head_dim_v) * w.element_bytes
    fitting = (8 << 20) // one_tile // max(1, -(-w.seq_kv // tile.keys))
    section = 1 << min(4, max(0, fitting.bit_length() - 1))
    section = min(section * (1 if tile.pack_gqa else w.group), heads)
    sizes = [section] * (heads // section) + ([heads % section] if heads % section else [])
    orders = {size: np.repeat(descending[:, None], size, axis=1).reshape(-1) for size in set(sizes)}
    return (Launch(np.concatenate([orders[size] for size in sizes]), w.batch),)


def section_heads(w: Workload, tile: FlashTile, heads: int) -> int:
    """Heads of a section of longest-first order: so many that their K and V fit 32 MiB of L2, a power of two."""
    one_head = w.seq_kv * sum(tile.widths or (w.head_dim, w.head_dim_v)) * w.element_bytes
    section = 1 if one_head > 32 << 20 else 1 << int(np.log2((32 << 20) / one_head))
    return min(section * (1 if tile.pack_gqa else w.group), heads)
