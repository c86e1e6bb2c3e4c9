"""Closed form of FlashAttention-3's loop over a list of key tiles."""

from __future__ import annotations

from attnsim.models.closed_forms.form import Form, load, store, transfer
from attnsim.models.implementations.flash_attention_sparse import ListedTile, counts_of
from attnsim.models.implementations.flash_mask import BLOCK_BOUNDS, BOUNDS, COUNTER, PREPARE, BoundedTile, scan_name
from attnsim.models.implementations.fused.listed import busy_rows
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule


def closed_form(w: Workload, schedule: Schedule, listed: ListedTile) -> list[Form]:
    """The one kernel.

    A block of ``rows`` queries has its list walked by one tile of each head, by fewer where the last block is shorter
    and heads of a group share tiles. With ``v`` walked visits K and V are ``v keys`` rows less the missing rows of the
    last tile, and what is told of each tile is read ``v`` times; each tile of rows reads what it is told first, and Q
    where it visits anything.
    """
    t, told, counts = listed.forward, listed.told, counts_of(w, listed.forward)
    pack = w.group if t.pack_gqa else 1
    walkers = -(-w.seq_q * pack // t.rows) - pack * (counts.tiles.row_tiles - 1)
    visits, ends = (pack * int(n[:-1].sum()) + walkers * int(n[-1]) for n in (counts.visits, counts.last_key_tile))
    heads_q, heads_kv, e = w.batch * w.heads_q, w.batch * w.heads_kv, w.element_bytes
    heads, scores = heads_q // pack, visits * t.rows * t.keys
    read = visits * t.keys - ends * (-w.seq_kv % t.keys)
    d, dv = t.compiled(w)
    operands = (t.readers * t.keys * (d + dv) + t.rows * d + t.p_in_smem * t.rows * t.keys) * e
    tiles = pack * (counts.tiles.row_tiles - 1) + walkers
    widths = {"K": w.head_dim * e, "V": w.head_dim_v * e}
    return [
        Form(
            schedule.kernels[-1].name,
            (
                load("Q", heads_q * busy_rows(w, counts) * w.head_dim * e),
                *(load(x, heads * read * n, heads_kv * counts.touched_keys * n) for x, n in widths.items()),
                load(told.first, heads * tiles * told.first_bytes, told.first_unique),
                load(told.each, heads * visits * told.each_bytes, told.each_unique),
                store("O", heads_q * w.seq_q * w.head_dim_v * w.output_bytes),
                store("LSE", heads_q * w.seq_q * 4),
            ),
            flops=heads * scores * 2 * (d + dv),
            exponentials=heads * (scores + visits * t.rows),
            smem_bytes=heads * visits * operands,
        )
    ]


def bounded(w: Workload, schedule: Schedule, tile: BoundedTile) -> list[Form]:
    """FlashMask: the blocks' counter, each vector of bounds read once, two int32 written a tile of keys."""
    blocks = -(-w.seq_kv // tile.keys)
    ends = 8 * (blocks + -blocks % 4)
    scans = [
        transfer(scan_name(vector), [(BOUNDS, w.batch * w.seq_kv * 4)], [(BLOCK_BOUNDS, w.batch * ends)])
        for vector in range(tile.vectors)
    ]
    return [transfer(PREPARE, [], [(COUNTER, 4)]), *scans, *closed_form(w, schedule, tile)]
